"""Tanh perceptrons, and derivatives of functions of points."""

from __future__ import annotations

import folx
import jax
import jax.numpy as jnp


def perceptron(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def first_params(sizes, seed):
    """Uniform within one over the root of the number of inputs, weights and biases."""
    keys = jax.random.split(jax.random.key(seed), len(sizes) - 1)
    params = []
    for key, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True):
        draw = jax.random.uniform(key, (a + 1, b), jnp.float64, -1, 1) / a**0.5
        params.append({"w": draw[:-1], "b": draw[-1]})
    return params


def along(u, axis):
    """The derivative along one axis: again a function of points."""
    return lambda x: jax.jvp(u, (x,), (jnp.zeros_like(x).at[:, axis].set(1),))[1]


def laplacian(u, axes):
    """The sum of second derivatives along some axes, the last ones: again a function of points.

    Forward over forward for one or two of them, one after the other: batched by ``jax.vmap``, the
    rows of the Jacobian cost several times as much. For more, folx goes through the network once
    with all first derivatives and the Laplacian (Li et al., 2024).
    """
    if len(axes) <= 2:
        return lambda x: sum(along(along(u, axis), axis)(x) for axis in axes)
    forward = folx.ForwardLaplacianOperator(0)

    def of(point):
        rest, own = jnp.split(point, [len(point) - len(axes)])
        return forward(lambda own: u(jnp.concatenate([rest, own])[None])[0, 0])(own)[0]

    return lambda x: jax.vmap(of)(x)[:, None]
