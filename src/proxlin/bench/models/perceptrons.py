"""Networks of dense layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
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
    pairs = list(itertools.pairwise([math.prod(shape), *hidden, classes]))

    def init(key: Array) -> Params:
        keys = jax.random.split(key, len(pairs))
        return [init_dense(k, i, o) for k, (i, o) in zip(keys, pairs, strict=True)]

    return stateless(init, perceptron)


def perceptron(params: Params, inputs: Inputs) -> Outputs:
    """Dense layers, each but the last followed by SiLU."""
    *hidden, last = params
    x = inputs.reshape(len(inputs), -1)
    for layer in hidden:
        x = jax.nn.silu(dense(layer, x))
    return dense(last, x)
