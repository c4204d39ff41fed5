"""A loss from any convex function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float, PyTree

from proxlin.losses.base import Loss, Outputs, PerExample


@dataclasses.dataclass(frozen=True)
class FromFunction(Loss):
    r"""The loss :math:`\ell(f) = \mathrm{fn}(f, y)` of a convex function; curvature by autodiff.

    The factor of the Hessian comes from the eigenvalues of one :math:`k \times k` matrix for each
    example, so the Hessian may be singular, and :math:`k` should be moderate.

    Attributes:
        fn: ``fn(outputs, target) -> scalar`` for one example, ``outputs`` of shape ``(k,)``.
            Two such losses are equal when their functions are: pass a named function, not a
            fresh lambda, to avoid recompilation.
        conjugate_fn: ``conjugate(dual, target) -> scalar``, if known.

    Example:
        >>> import jax.numpy as jnp
        >>> huber = FromFunction(lambda f, y: jnp.sum(jnp.sqrt(1 + (f - y) ** 2) - 1))
        >>> huber.value(jnp.zeros((2, 1)), jnp.zeros((2, 1)))
        Array([0., 0.], dtype=float32)
    """

    fn: Callable[[Float[Array, " k"], Any], Float[Array, ""]]
    conjugate_fn: Callable[[Float[Array, " k"], Any], Float[Array, ""]] | None

    def __init__(
        self,
        fn: Callable[[Any, Any], Any],
        conjugate: Callable[[Any, Any], Any] | None = None,
    ):
        """See the class; ``conjugate`` becomes ``conjugate_fn``."""
        object.__setattr__(self, "fn", fn)
        object.__setattr__(self, "conjugate_fn", conjugate)

    @property
    def has_conjugate(self) -> bool:
        """Whether one was passed."""
        return self.conjugate_fn is not None

    def value(self, outputs: Outputs, targets: PyTree) -> PerExample:
        """``fn`` for each example."""
        return _for_each_example(self.fn, outputs, targets)

    def conjugate(self, duals: Outputs, targets: PyTree) -> PerExample:
        """The function that was passed; raises TypeError if none was."""
        if self.conjugate_fn is None:
            return super().conjugate(duals, targets)
        return _for_each_example(self.conjugate_fn, duals, targets)


def _for_each_example(fn: Callable[[Any, Any], Any], outputs: Outputs, targets: Any) -> PerExample:
    for _ in range(outputs.ndim - 1):
        fn = jax.vmap(fn)
    return fn(outputs, targets)
