"""The small problems that tests share: every loss with targets that fit, and a little network."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import proxlin


def softmax_cross_entropy(f, y):
    return jax.nn.logsumexp(f) - f[y]


def singular(f, y):
    """Convex in two outputs, with a Hessian of rank one everywhere."""
    return jax.nn.softplus(f[0] + 2 * f[1] - y)


LOSSES = {
    "squared": proxlin.Squared(),
    "logistic": proxlin.Logistic(),
    "binary": proxlin.BinaryLogistic(),
    "function": proxlin.FromFunction(softmax_cross_entropy),
    "singular": proxlin.FromFunction(singular),
}
SUBPROBLEMS = {"primal": proxlin.primal_quadratic, "dual": proxlin.dual_quadratic}


def outputs_of(name: str) -> int:
    return 2 if name == "singular" else 3


def targets_of(name: str, examples: tuple[int, ...], dtype, seed: int = 0):
    rng = np.random.default_rng(seed)
    k = outputs_of(name)
    if name in ("logistic", "function"):
        return jnp.asarray(rng.integers(0, k, examples))
    if name == "binary":
        return jnp.asarray(rng.uniform(size=(*examples, k)), dtype)
    if name == "singular":
        return jnp.asarray(rng.normal(size=examples), dtype)
    return jnp.asarray(rng.normal(size=(*examples, k)), dtype)


def network(params, inputs):
    """A smooth perceptron; inputs may have any number of example axes."""
    bias = params["b1"].reshape((1,) * (inputs.ndim - 1) + (-1,))
    return jnp.tanh(inputs @ params["w1"] + bias) @ params["w2"]


def problem(
    name: str, dtype, m: int = 6, seed: int = 0, hidden: int = 4, features: int = 5
) -> tuple[Any, Any, Any]:
    """Parameters, inputs and targets of a small problem for the loss of that name."""
    rng = np.random.default_rng(seed)
    params = {
        "w1": jnp.asarray(rng.normal(size=(features, hidden)) / np.sqrt(features), dtype),
        "b1": jnp.asarray(0.1 * rng.normal(size=hidden), dtype),
        "w2": jnp.asarray(rng.normal(size=(hidden, outputs_of(name))) / np.sqrt(hidden), dtype),
    }
    inputs = jnp.asarray(rng.normal(size=(m, features)), dtype)
    return params, inputs, targets_of(name, (m,), dtype, seed)


def dense(name: str, params, inputs, targets, weights=None, model=network):
    """Gradient and Gauss-Newton matrix of the mean objective in float64, by explicit Jacobians."""
    up = lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x
    params, inputs, targets = jax.tree.map(up, (params, inputs, targets))
    flat, unravel = ravel_pytree(params)
    outputs = model(params, inputs)
    jacobian = jax.jacobian(lambda w: model(unravel(w), inputs))(flat)
    loss = LOSSES[name]
    examples = outputs.shape[:-1]
    weights = jnp.ones(examples) if weights is None else weights.astype(jnp.float64)
    weights = weights / weights.sum()
    flat_outputs = outputs.reshape(-1, outputs.shape[-1])
    flat_targets = targets.reshape(-1, *targets.shape[len(examples) :])
    single = lambda f, y: loss.value(f[None], y[None])[0]
    g = jax.vmap(jax.grad(single))(flat_outputs, flat_targets)
    h = jax.vmap(jax.hessian(single))(flat_outputs, flat_targets)
    j = jacobian.reshape(len(flat_outputs), -1, flat.size)
    w = weights.reshape(-1)
    return jnp.einsum("n,nkp,nk->p", w, j, g), jnp.einsum("n,nkp,nkl,nlq->pq", w, j, h, j)


def part_of_batch(weights: np.ndarray, size: int) -> np.ndarray:
    """Weights of all rows, zero but for those that curvature of ``size`` examples comes from."""
    m = len(weights)
    rows = weights.reshape(m, -1).sum(1)
    part = np.zeros_like(weights)
    for j in range(size):
        first, last = j * m // size, (j + 1) * m // size
        heaviest = first + int(np.argmax(rows[first:last]))
        if rows[heaviest] > 0:
            part[heaviest] = weights[heaviest] * (rows[first:last].sum() / rows[heaviest])
    return part / part.sum()


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0], np.float64)


def relative_error(got, want) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))
