"""What the proximity term carries from step to step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool

from proxlin.algebra import (
    Params,
    Scalar,
    Shapes,
    Vector,
    algebra_dtype,
    count,
    covector,
    zeros_like,
)
from proxlin.checks import check_number, require
from proxlin.metrics import Metric


class ProximityState(NamedTuple):
    r"""The state of the proximity term; a plain pytree, empty without a metric and momentum.

    Attributes:
        metric: the state of the metric.
        momentum: :math:`\eta P d` of the last step, in the metric of that step.
        seen: how many gradients the metric has learned from.
    """

    metric: Any = ()
    momentum: Params | tuple[()] = ()
    seen: Any = ()

    @classmethod
    def init(cls, params: Shapes, metric: Metric, momentum: Any) -> ProximityState:
        """The state before the first step."""
        zeros = zeros_like(params, algebra_dtype(params))
        return cls(
            metric=metric.init(params),
            momentum=zeros if has_momentum(momentum) else (),
            seen=() if metric.is_identity else count(0),
        )

    def learned(self, metric: Metric, grad: Params, sound: Bool[Array, ""]) -> ProximityState:
        """The state after a gradient, or a diagonal, that the metric learns from if it is sound."""
        if metric.is_identity:
            return self
        update = lambda: metric.update(self.metric, grad, self.seen)
        return self._replace(
            metric=jax.lax.cond(sound, update, lambda: self.metric),
            seen=jnp.where(sound, optax.safe_increment(self.seen), self.seen),
        )

    def after(
        self, d: Vector, eta: Scalar, taken: Bool[Array, ""], drop: Bool[Array, ""]
    ) -> ProximityState:
        r"""The state after a step :math:`\eta d`, or after one that was rejected.

        Args:
            d: the direction.
            eta: the stepsize.
            taken: whether the step was taken.
            drop: whether to forget the last step, if it was not.
        """
        if not jax.tree.leaves(self.momentum):
            return self

        def next_momentum(x: Array, old: Array) -> Array:
            kept = jnp.where(drop, jnp.zeros_like(old), old)
            return jnp.where(taken, eta.astype(old.dtype) * x.astype(old.dtype), kept)

        return self._replace(momentum=jax.tree.map(next_momentum, covector(d), self.momentum))


def has_momentum(momentum: Any) -> bool:
    """Whether there is momentum, now or later: an injected array may be zero only for now."""
    return isinstance(momentum, jax.Array) or bool(momentum != 0)


def check_momentum(momentum: Any) -> Bool[Array, ""]:
    """Whether momentum is allowed; raises if it is known not to be."""
    check_number(f"momentum={momentum!r}", momentum, "a number in [0, 1)")
    return require(
        lambda m: (m >= 0) & (m < 1),
        lambda m: f"momentum={m!r}: give a number in [0, 1)",
        momentum,
    )
