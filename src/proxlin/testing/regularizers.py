"""A checker for regularizers of your own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from proxlin.algebra import algebra_dtype
from proxlin.linearize import check_params
from proxlin.regularizers import Regularizer
from proxlin.testing.findings import Findings, kind, tolerance_of


def check_regularizer(
    regularizer: Regularizer, params: PyTree, *, tolerance: float | None = None
) -> None:
    r"""Tests a regularizer against the identities that the library relies on.

    Around the parameters that are given: the value is one number, finite there, and convex, even
    after :math:`\tfrac\lambda2 \|w\|^2` is taken away for the modulus :math:`\lambda`; the
    proximity operator keeps structure, shapes and dtypes, and :math:`p =
    \operatorname{prox}_{t \rho}(z)` satisfies :math:`(z - p) / t \in \partial \rho(p)`. Points
    where the value is infinite, off a constraint, are welcome.

    Args:
        regularizer: the regularizer.
        params: a pytree of parameters at which the value is finite.
        tolerance: relative; the root of the rounding error when None.

    Raises:
        ValueError: that names every identity that does not hold, and by how much.

    Example:
        >>> import jax.numpy as jnp
        >>> from proxlin import L1
        >>> check_regularizer(L1(0.1), {"w": jnp.array([1.0, -0.2])})
    """
    check_params(params)
    # Where prox is used: half precision would look like an error of it.
    params = jax.tree.map(jnp.asarray, params)
    dtype = algebra_dtype(params)
    params = jax.tree.map(lambda w: w.astype(dtype), params)
    found = Findings(tolerance_of(dtype) if tolerance is None else tolerance)
    rng = np.random.default_rng(0)
    near = lambda tree, size: jax.tree.map(
        lambda w: w + jnp.asarray(size * rng.normal(size=w.shape), w.dtype), tree
    )
    square = lambda w: float(optax.tree.vdot(w, w))
    value = regularizer.value(params)
    if jnp.shape(value) != () or not bool(jnp.isfinite(value)):
        raise ValueError(f"{regularizer}: value must be one finite number, not {value}")
    if kind(regularizer.prox(params, 1.0)) != kind(params):
        raise ValueError(f"{regularizer}: prox changes structure, shapes or dtypes")
    for _ in range(5):
        a, b = near(params, 1.0), near(params, 1.0)
        inside = regularizer.prox(a, 1.0), regularizer.prox(b, 1.0)
        for x, y in ((a, b), inside):
            half = 0.5 * (regularizer.value(x) + regularizer.value(y))
            if half == jnp.inf:  # not both within the constraint: nothing to hold
                continue
            middle = jax.tree.map(lambda x, y: 0.5 * (x + y), x, y)
            spread = 0.125 * regularizer.modulus * square(optax.tree.sub(x, y))
            slack = half - regularizer.value(middle) - spread
            found.least("convexity, with the modulus", slack, float(half))
    for stepsize in (0.1, 1.0, 10.0):
        z = near(params, 1.0)
        p = regularizer.prox(z, stepsize)
        pulled, at = optax.tree.sub(z, p), regularizer.value(p)
        others = [near(p, size) for size in (1e-2, 1e-1, 1.0) for _ in range(5)]
        # Off a constraint anything holds; these points are within it, if the prox is.
        others += [regularizer.prox(other, stepsize) for other in others]
        others += [optax.tree.scale(size, p) for size in (0.0, 0.9, 1.1)]
        for other in (*others, z, params):
            rise = float(optax.tree.vdot(pulled, optax.tree.sub(other, p))) / stepsize
            slack = regularizer.value(other) - at - rise
            found.least(f"prox for stepsize {stepsize}", slack, abs(rise) + abs(float(at)))
    found.conclude(regularizer, "regularizer")
