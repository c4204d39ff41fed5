"""Networks of dense layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from proxlin.bench.models.layers import dense, init_dense
from proxlin.bench.models.network import Inputs, Network, Outputs, Params, Shape, stateless


def linear(shape: Shape, classes: int) -> Network:
    """One dense layer on the flattened inputs: logistic regression.

    Example:
        >>> import jax
        >>> params, stats = linear((8, 8, 1), 10).init(jax.random.key(0))
        >>> params[0]["w"].shape, stats
        ((64, 10), ())
    """
    return mlp(shape, classes, hidden=())


def mlp(shape: Shape, classes: int, hidden: Sequence[int] = (64,)) -> Network:
    """A perceptron on the flattened inputs, with SiLU between its layers.

    Args:
        shape: of one input.
        classes: number of outputs.
        hidden: sizes of the hidden layers.

    Returns:
        The network.

    Example:
        >>> import jax
        >>> params, _ = mlp((64,), 10, hidden=(32,)).init(jax.random.key(0))
        >>> [layer["w"].shape for layer in params]
        [(64, 32), (32, 10)]
    """
    sizes = [math.prod(shape), *hidden, classes]
    return stateless(lambda key: init_perceptron(key, sizes), perceptron)


def autoencoder(shape: Shape, encoder: Sequence[int] = (1000, 500, 250, 30)) -> Network:
    r"""The deep autoencoder of Hinton and Salakhutdinov (2006), on the flattened inputs.

    .. math:: f(x) = D(E(x))

    The encoder has tanh between its layers and a linear code; the decoder mirrors it. There is one
    output for each number of the input: the logit of a probability, for
    :class:`proxlin.BinaryLogistic`.

    Args:
        shape: of one input.
        encoder: sizes of the layers after the input; the last one is the code.

    Returns:
        The network.

    Example:
        >>> import jax
        >>> params, _ = autoencoder((28, 28, 1)).init(jax.random.key(0))
        >>> sum(x.size for x in jax.tree.leaves(params))
        2837314
    """
    sizes = [math.prod(shape), *encoder]

    def init(key: Array) -> Params:
        one, other = jax.random.split(key)
        return {
            "encoder": init_perceptron(one, sizes),
            "decoder": init_perceptron(other, sizes[::-1]),
        }

    def forward(params: Params, inputs: Inputs) -> Outputs:
        code = perceptron(params["encoder"], inputs, jnp.tanh)
        return perceptron(params["decoder"], code, jnp.tanh)

    return stateless(init, forward)


def init_perceptron(key: Array, sizes: Sequence[int]) -> Params:
    """Dense layers from each size to the next."""
    pairs = list(itertools.pairwise(sizes))
    keys = jax.random.split(key, len(pairs))
    return [init_dense(k, i, o) for k, (i, o) in zip(keys, pairs, strict=True)]


def perceptron(
    params: Params, inputs: Inputs, activation: Callable[[Array], Array] = jax.nn.silu
) -> Outputs:
    """Dense layers on flattened inputs, each but the last followed by an activation."""
    *hidden, last = params
    x = inputs.reshape(len(inputs), -1)
    for layer in hidden:
        x = activation(dense(layer, x))
    return dense(last, x)
