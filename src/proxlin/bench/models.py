"""Networks in plain JAX: ``init(key, ...) -> params`` and ``apply(params, inputs) -> outputs``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

Params: TypeAlias = PyTree[Array]
Images = Float[Array, "m height width channels"]


def init_mlp(key: Array, sizes: Sequence[int]) -> Params:
    """Weights and biases of a perceptron with layers of these sizes, inputs and outputs included.

    Example:
        >>> import jax
        >>> [layer["w"].shape for layer in init_mlp(jax.random.key(0), [64, 32, 10])]
        [(64, 32), (32, 10)]
    """
    pairs = list(itertools.pairwise(sizes))
    keys = jax.random.split(key, len(pairs))
    return [_dense(k, i, o) for k, (i, o) in zip(keys, pairs, strict=True)]


def mlp(params: Params, inputs: Float[Array, "m d"]) -> Float[Array, "m k"]:
    """A perceptron with SiLU between its layers."""
    *hidden, last = params
    for layer in hidden:
        inputs = jax.nn.silu(inputs @ layer["w"] + layer["b"])
    return inputs @ last["w"] + last["b"]


def init_convnet(
    key: Array, shape: tuple[int, int, int] = (32, 32, 3), classes: int = 10
) -> Params:
    """The ConvNet of the paper's experiments for images of a shape: 1,070,794 parameters.

    Example:
        >>> import jax
        >>> sum(x.size for x in jax.tree.leaves(init_convnet(jax.random.key(0))))
        1070794
    """
    height, width, channels = shape
    keys = jax.random.split(key, 4)
    return {
        "conv1": _conv(keys[0], channels, 32),
        "conv2": _conv(keys[1], 32, 64),
        "dense1": _dense(keys[2], (height // 4) * (width // 4) * 64, 256),
        "dense2": _dense(keys[3], 256, classes),
    }


def convnet(params: Params, inputs: Images) -> Float[Array, "m k"]:
    """Twice convolution, SiLU and average pooling; then a dense layer, SiLU, a dense layer."""
    for name in ("conv1", "conv2"):
        layer = params[name]
        inputs = jax.lax.conv_general_dilated(
            inputs, layer["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        inputs = _average_pool(jax.nn.silu(inputs + layer["b"]))
    return mlp([params["dense1"], params["dense2"]], inputs.reshape(len(inputs), -1))


def _average_pool(x: Images) -> Images:
    """Means over windows of 2 x 2."""
    m, height, width, channels = x.shape
    return x.reshape(m, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))


def _dense(key: Array, inputs: int, outputs: int) -> Params:
    scale = jnp.sqrt(2 / inputs)
    return {"w": scale * jax.random.normal(key, (inputs, outputs)), "b": jnp.zeros(outputs)}


def _conv(key: Array, inputs: int, outputs: int) -> Params:
    scale = jnp.sqrt(2 / (9 * inputs))
    kernel = scale * jax.random.normal(key, (3, 3, inputs, outputs))
    return {"w": kernel, "b": jnp.zeros(outputs)}
