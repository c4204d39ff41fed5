"""A transformer for text, character by character."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float

from proxlin.bench.errors import UsageError
from proxlin.bench.models.layers import dense, init_dense, init_layer_norm, layer_norm
from proxlin.bench.models.network import Network, Params, Shape, stateless

Characters = Float[Array, "m context width"]


def transformer(
    shape: Shape, classes: int, *, layers: int = 2, width: int = 64, heads: int = 4
) -> Network:
    r"""A small decoder: predicts the next character at each position (Radford et al., 2019).

    .. math::
        x \leftarrow x + A(N(x)), \qquad x \leftarrow x + M(N(x))

    in each layer, with causal attention :math:`A`, a perceptron :math:`M` of one hidden layer,
    four times as wide, with SiLU, and layer normalization :math:`N`, which also comes before the
    last dense layer. Positions have learned embeddings.

    Args:
        shape: of one input: the length of the context and the number of characters; each
            position is a one-hot vector.
        classes: number of outputs at each position.
        layers: how many.
        width: of the embeddings.
        heads: of the attention, a divisor of the width.

    Returns:
        The network, whose outputs have the shape ``(m, context, classes)``.

    Raises:
        UsageError: for inputs of another shape, or a width that is not divisible by the heads.

    Example:
        >>> import jax
        >>> params, _ = transformer((64, 96), 96).init(jax.random.key(0))
        >>> sum(x.size for x in jax.tree.leaves(params))
        116576
    """
    if len(shape) != 2:
        raise UsageError(
            f"transformer for inputs of shape {shape}: it takes texts of shape (context, "
            "characters), as the data set 'text' has them; for other inputs choose linear or mlp"
        )
    if width % heads:
        raise UsageError(f"transformer of width {width} with {heads} heads: they must divide it")
    context, characters = shape

    def init(key: Array) -> Params:
        first, second, last, *keys = jax.random.split(key, 3 + layers)
        return {
            "embedding": init_dense(first, characters, width)["w"],
            "places": init_dense(second, context, width)["w"],
            "layers": [_init_layer(k, width) for k in keys],
            "norm": init_layer_norm(width),
            "dense": init_dense(last, width, classes),
        }

    def forward(params: Params, inputs: Float[Array, "m context k"]) -> Characters:
        x = inputs @ params["embedding"] + params["places"][None]
        for layer in params["layers"]:
            x = x + _attention(layer, layer_norm(layer["norm1"], x), heads)
            hidden = jax.nn.silu(dense(layer["dense1"], layer_norm(layer["norm2"], x)))
            x = x + dense(layer["dense2"], hidden)
        return dense(params["dense"], layer_norm(params["norm"], x))

    return stateless(init, forward)


def _init_layer(key: Array, width: int) -> Params:
    keys = jax.random.split(key, 4)
    return {
        "norm1": init_layer_norm(width),
        "queries": init_dense(keys[0], width, 3 * width),
        "mix": init_dense(keys[1], width, width),
        "norm2": init_layer_norm(width),
        "dense1": init_dense(keys[2], width, 4 * width),
        "dense2": init_dense(keys[3], 4 * width, width),
    }


def _attention(params: Params, x: Characters, heads: int) -> Characters:
    """Each position attends to itself and to earlier positions."""
    m, context, width = x.shape
    parts = dense(params["queries"], x).reshape(m, context, 3, heads, width // heads)
    queries, keys, values = (parts[:, :, i] for i in range(3))
    mixed = jax.nn.dot_product_attention(queries, keys, values, is_causal=True)
    return dense(params["mix"], mixed.reshape(m, context, width))
