"""The convolutional networks of the paper."""

from __future__ import annotations

import itertools

import jax
from jaxtyping import Array

from proxlin.bench.errors import UsageError
from proxlin.bench.models.layers import average_pool, conv, init_conv, init_dense
from proxlin.bench.models.network import (
    Images,
    Network,
    Outputs,
    Params,
    Shape,
    image_shape,
    stateless,
)
from proxlin.bench.models.perceptrons import perceptron


def convnet(shape: Shape, classes: int) -> Network:
    """The ConvNet of the paper's experiments (Appendix E).

    Convolution, SiLU and average pooling, twice; then a dense layer, SiLU and a dense layer.

    Args:
        shape: of one image, with height and width multiples of 4.
        classes: number of outputs.

    Returns:
        The network.

    Raises:
        UsageError: for other shapes.

    Example:
        >>> import jax
        >>> params, _ = convnet((32, 32, 3), 10).init(jax.random.key(0))
        >>> sum(x.size for x in jax.tree.leaves(params))
        1070794
    """
    height, width, channels = image_shape("convnet", shape, multiple=4)

    def init(key: Array) -> Params:
        keys = jax.random.split(key, 4)
        return {
            "conv1": init_conv(keys[0], channels, 32),
            "conv2": init_conv(keys[1], 32, 64),
            "dense1": init_dense(keys[2], (height // 4) * (width // 4) * 64, 256),
            "dense2": init_dense(keys[3], 256, classes),
        }

    def forward(params: Params, x: Images) -> Outputs:
        for layer in (params["conv1"], params["conv2"]):
            x = average_pool(jax.nn.silu(conv(layer, x)))
        return perceptron([params["dense1"], params["dense2"]], x)

    return stateless(init, forward)


def cnn(shape: Shape, classes: int, depth: int) -> Network:
    """The paper's CNNs of various depths (Appendix F): short, medium and long for 1, 2 and 3.

    ``depth`` layers of 128 filters, ``depth`` of 64 and ``depth`` of 32, all of 3 x 3 pixels and
    followed by SiLU, then a dense layer. The paper mentions neither pooling nor strides, so
    there are none: zero padding keeps the size of the images, and the dense layer takes all
    32 * height * width features.

    Args:
        shape: of one image.
        classes: number of outputs.
        depth: layers of each width.

    Returns:
        The network.

    Raises:
        UsageError: for other shapes, or a depth below 1.

    Example:
        >>> import jax
        >>> params, _ = cnn((32, 32, 3), 10, depth=1).init(jax.random.key(0))
        >>> sum(x.size for x in jax.tree.leaves(params))
        423530
    """
    height, width, channels = image_shape("cnn", shape)
    if depth < 1:
        raise UsageError(f"cnn of depth {depth}: give 1, 2 or 3 for short, medium or long")
    pairs = list(itertools.pairwise([channels, *[128] * depth, *[64] * depth, *[32] * depth]))

    def init(key: Array) -> Params:
        *keys, last = jax.random.split(key, len(pairs) + 1)
        return {
            "convs": [init_conv(k, i, o) for k, (i, o) in zip(keys, pairs, strict=True)],
            "dense": init_dense(last, height * width * 32, classes),
        }

    def forward(params: Params, x: Images) -> Outputs:
        for layer in params["convs"]:
            x = jax.nn.silu(conv(layer, x))
        return perceptron([params["dense"]], x)

    return stateless(init, forward)
