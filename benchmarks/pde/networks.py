"""Tanh perceptrons, and derivatives of functions of points."""

from __future__ import annotations

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
    """The sum of second derivatives, forward over forward, along all axes at once."""

    def of(x):
        directions = jnp.eye(x.shape[1], dtype=x.dtype)[jnp.asarray(axes)]

        def second(e):
            e = jnp.broadcast_to(e, x.shape)
            return jax.jvp(lambda x: jax.jvp(u, (x,), (e,))[1], (x,), (e,))[1]

        return jnp.sum(jax.vmap(second)(directions), axis=0)

    return of
