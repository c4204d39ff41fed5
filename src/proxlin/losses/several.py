r"""One loss, or one for each term of a sum: then outputs, targets and weights are tuples too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from proxlin.losses.base import Loss

Losses: TypeAlias = Loss | tuple[Loss, ...]


def each(fn: Callable[..., Any], losses: Losses, *trees: PyTree) -> Any:
    """``fn(loss, x, ...)`` for each loss and its part of the trees, in a tuple if there is one.

    Example:
        >>> from proxlin import Logistic, Squared
        >>> each(lambda loss, x: (loss, x["a"]), (Squared(), Logistic()), ({"a": 1}, {"a": 2}))
        ((Squared(), 1), (Logistic(), 2))
    """
    return jax.tree.map(fn, losses, *trees, is_leaf=lambda x: isinstance(x, Loss))


def weighted_value(
    losses: Losses, outputs: PyTree, targets: PyTree, weights: PyTree
) -> Float[Array, ""]:
    r""":math:`\sum_i \omega_i\, \ell_i(f_i)`, over all terms."""
    values = each(
        lambda loss, f, y, w: jnp.sum(w * loss.value(f, y)), losses, outputs, targets, weights
    )
    return jax.tree.reduce(jnp.add, values)


def weighted_grad(losses: Losses, outputs: PyTree, targets: PyTree, weights: PyTree) -> PyTree:
    r""":math:`\omega_i \nabla \ell_i(f_i)`, the gradient of the sum with respect to the outputs."""
    return each(
        lambda loss, f, y, w: w[..., None] * loss.grad(f, y), losses, outputs, targets, weights
    )
