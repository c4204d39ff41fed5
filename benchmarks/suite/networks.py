"""Networks of the suite that the bench does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from proxlin.bench.models.layers import dense, init_dense, init_layer_norm, layer_norm
from proxlin.bench.models.network import Images, Network, Outputs, Params, Shape, stateless
from proxlin.bench.models.perceptrons import init_perceptron, perceptron

Tokens = Float[Array, "m n width"]


def vision_transformer(
    shape: Shape, classes: int, *, patch: int = 8, layers: int = 3, width: int = 96, heads: int = 4
) -> Network:
    r"""A small vision transformer (Dosovitskiy et al., 2021).

    .. math::
        x \leftarrow x + A(N(x)), \qquad x \leftarrow x + M(N(x))

    in each layer, as in :func:`proxlin.bench.models.transformer` but with attention in both
    directions. Patches are embedded by a dense layer, positions have learned embeddings, and the
    mean over all patches goes to the last layer, as in Beyer et al. (2022).
    """
    height, image_width, channels = shape
    rows, columns = height // patch, image_width // patch

    def init(key: Array) -> Params:
        first, second, last, *keys = jax.random.split(key, 3 + layers)
        return {
            "patches": init_dense(first, patch * patch * channels, width),
            "places": 0.02 * jax.random.normal(second, (rows * columns, width), jnp.float32),
            "layers": [_init_layer(k, width) for k in keys],
            "norm": init_layer_norm(width),
            "dense": init_dense(last, width, classes),
        }

    def forward(params: Params, images: Images) -> Outputs:
        x = images.reshape(-1, rows, patch, columns, patch, channels).transpose(0, 1, 3, 2, 4, 5)
        x = dense(params["patches"], x.reshape(-1, rows * columns, patch * patch * channels))
        x = x + params["places"][None]
        for layer in params["layers"]:
            x = x + _attention(layer, layer_norm(layer["norm1"], x), heads)
            hidden = jax.nn.silu(dense(layer["dense1"], layer_norm(layer["norm2"], x)))
            x = x + dense(layer["dense2"], hidden)
        return dense(params["dense"], layer_norm(params["norm"], x).mean(axis=1))

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


def _attention(params: Params, x: Tokens, heads: int) -> Tokens:
    m, n, width = x.shape
    parts = dense(params["queries"], x).reshape(m, n, 3, heads, width // heads)
    queries, keys, values = (parts[:, :, i] for i in range(3))
    mixed = jax.nn.dot_product_attention(queries, keys, values)
    return dense(params["mix"], mixed.reshape(m, n, width))


def gru(shape: Shape, classes: int, *, width: int = 128) -> Network:
    r"""A gated recurrent unit (Cho et al., 2014) over the rows of an image, from top to bottom.

    .. math::
        z, r = \sigma(W x + U h), \qquad
        h \leftarrow (1 - z) h + z \tanh(V x + r \odot T h)

    The last state goes to a dense layer.
    """
    rows, columns, channels = shape

    def init(key: Array) -> Params:
        first, second, last = jax.random.split(key, 3)
        return {
            "inputs": init_dense(first, columns * channels, 3 * width),
            "state": init_dense(second, width, 3 * width),
            "dense": init_dense(last, width, classes),
        }

    def forward(params: Params, images: Images) -> Outputs:
        x = dense(params["inputs"], images.reshape(-1, rows, columns * channels))

        def one(h: Array, row: Array) -> tuple[Array, None]:
            update, reset, new = jnp.split(row, 3, axis=-1)
            of_update, of_reset, of_new = jnp.split(dense(params["state"], h), 3, axis=-1)
            update = jax.nn.sigmoid(update + of_update)
            new = jnp.tanh(new + jax.nn.sigmoid(reset + of_reset) * of_new)
            return h + update * (new - h), None

        start = jnp.zeros((len(images), width), x.dtype)
        last, _ = jax.lax.scan(one, start, x.swapaxes(0, 1))
        return dense(params["dense"], last)

    return stateless(init, forward)


def embeddings(
    sizes: Mapping[str, int], outputs: int, *, width: int = 64, hidden: Sequence[int] = (1024, 512)
) -> Network:
    """A perceptron on the embeddings of categories, one table of embeddings for each column.

    Args:
        sizes: how many categories each column of the inputs has.
        outputs: how many there are.
        width: of an embedding.
        hidden: sizes of the hidden layers.
    """
    names = list(sizes)

    def init(key: Array) -> Params:
        last, *keys = jax.random.split(key, 1 + len(names))
        return {
            "tables": {
                name: jax.random.normal(k, (sizes[name], width), jnp.float32)
                for name, k in zip(names, keys, strict=True)
            },
            "dense": init_perceptron(last, [len(names) * width, *hidden, outputs]),
        }

    def forward(params: Params, inputs: Int[Array, "m columns"]) -> Outputs:
        found = [params["tables"][name][inputs[:, i]] for i, name in enumerate(names)]
        return perceptron(params["dense"], jnp.concatenate(found, axis=-1))

    return stateless(init, forward)
