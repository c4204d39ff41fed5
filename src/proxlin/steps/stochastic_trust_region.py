"""A rule that adapts gamma to the slope on the next batch."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxlin.algebra import (
    Number,
    Params,
    Scalar,
    Shapes,
    algebra_dtype,
    cast,
    cast_like,
    count,
    dot,
    zeros_like,
)
from proxlin.direction import Direction
from proxlin.steps.rule import Step, StepRule, check_fraction, check_positive, known
from proxlin.steps.searches import best_on_model


class SlopeState(NamedTuple):
    r"""The state of :class:`StochasticTrustRegion`.

    Attributes:
        displacement: the last one, :math:`s`.
        curvature: its :math:`\langle s, G s \rangle`, on its own batch.
        mean_curvature: the average of these curvatures.
        mean_slope: the average of the slopes where steps ended, each on the following batch.
        ratio: ``mean_slope`` over ``mean_curvature``.
        starting: whether the ratio has not yet fallen to 0.1.
    """

    displacement: Params
    curvature: Scalar
    mean_curvature: Scalar
    mean_slope: Scalar
    ratio: Scalar
    starting: Bool[Array, ""]


@dataclasses.dataclass(frozen=True)
class StochasticTrustRegion(StepRule):
    r"""Model steps, with gamma adapted to the slope that the next batch has where they end.

    At the end of a step :math:`s = w - w^+`, the gradient of the next batch :math:`S^+`, which is
    computed anyway and is independent of the step, gives the remaining slope. Along the step, the
    curvature of the model has reduced the slope by :math:`\langle s, G_S s \rangle`. The ratio

    .. math:: \text{ratio} = \frac{\operatorname{mean} \langle \nabla h_{S^+}(w^+), s \rangle}
        {\operatorname{mean} \langle s, G_S s \rangle}

    is large for short steps, zero for steps to the lowest point of their line, minus a half for
    steps that end as high as they began, and minus one for steps that followed only the noise of
    their batch. Both are averaged over steps before they are divided, so that the noise of batches
    cancels. Above ``target`` gamma grows, below it shrinks, by a factor of at most
    :math:`e^{\text{rate}}` a step.

    The target is not zero, because the step with the largest immediate gain is too short for those
    that follow: noise stays in directions of curvature, and is soon unlearned when gamma falls. Nor
    is the slope at the start of a step, on its own batch, a good denominator: much may be noise.

    Gamma changes faster in two cases. At the start, until the ratio first falls to 0.1, it doubles
    while curvature has no effect on the subproblem (its solution keeps 97 % of the gradient step's
    slope): this is how it leaves a first gamma that is much too small. And it is halved if the
    convex model is lowest before the middle of the direction.

    The length of each step is that of :class:`ModelStep`, bounded for non-negative losses by
    :math:`\langle \nabla h_S(w), s \rangle \le 2 h_S(w)`. A step to the minimum of a non-negative
    parabola satisfies this, so steps are shortened only if curvature is missing: if few examples of
    a batch still have a loss, and the model is taken from others. Gamma shrinks then. A step whose
    slope promises :math:`h_S(w)` or more is tried first, with one forward pass; if the batch
    objective rises, the step is rejected and gamma halved.

    Costs one JVP, and one copy of the parameters in memory.

    Attributes:
        gamma: the first gamma; better too small than too large.
        target: the ratio to keep.
        width: the distance from it at which gamma changes by the whole rate.
        rate: the largest change of the logarithm of gamma in one step, except in the two cases.
        decay: of the averages.
        min_gamma: the least gamma.
        max_gamma: the largest gamma.
    """

    gamma: Number = 1e-2
    target: Number = -0.75
    width: Number = 0.5
    rate: Number = 0.05
    decay: Number = 0.9
    min_gamma: Number = 1e-30
    max_gamma: Number = 1e30
    composite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if callable(self.gamma):
            raise TypeError(f"{type(self).__name__} adapts gamma itself: give a first number")
        check_positive(self, "gamma", "width", "rate", "min_gamma", "max_gamma")
        check_fraction(self, "decay")
        finite = isinstance(self.target, jax.core.Tracer) or math.isfinite(self.target)
        if not finite or known(self.min_gamma > self.max_gamma):
            raise ValueError(f"{self}: needs a finite target and min_gamma <= max_gamma")

    def gamma_at(self, steps: Int[Array, ""], carried: Scalar) -> Scalar:
        """The gamma carried over."""
        return carried

    def init(self, params: Shapes) -> SlopeState:
        """No step, and no slopes."""
        zero = jnp.zeros((), algebra_dtype(params))
        return SlopeState(
            displacement=zeros_like(params),
            curvature=zero,
            mean_curvature=zero,
            mean_slope=zero,
            ratio=zero,
            starting=jnp.asarray(True),
        )

    def step(self, direction: Direction, steps: Int[Array, ""], state: Any = ()) -> Step:
        """Judges the last step by the gradient of this batch; one JVP."""
        lowest, direction, change = best_on_model(direction)
        eta = jnp.minimum(lowest, _furthest(direction))
        displacement = direction.displacement(eta)
        rises, looks = self._rises(direction, eta, displacement)
        ratio, mean_curvature, mean_slope = self._ratio(direction, state)
        starting = state.starting & (ratio > 0.1)
        factor = self._factor(direction, eta, lowest, ratio, starting)
        factor = jnp.where(direction.usable & ~rises, factor, 0.5).astype(ratio.dtype)
        following = SlopeState(
            displacement=displacement,
            curvature=eta**2 * direction.model.curvature(change),
            mean_curvature=mean_curvature,
            mean_slope=mean_slope,
            ratio=ratio,
            starting=starting,
        )
        return Step(
            eta=eta,
            displacement=displacement,
            accepted=(lowest > 0) & ~rises,
            gamma=jnp.clip(direction.gamma * factor, self.min_gamma, self.max_gamma),
            info=direction.info,
            evaluations=looks,
            state=cast_like(following, state),
        )

    def _rises(
        self, direction: Direction, eta: Scalar, displacement: Params
    ) -> tuple[Bool[Array, ""], Int[Array, ""]]:
        """Whether the objective rises, if a step promises all of it; one forward pass then."""
        much = direction.usable & (eta * direction.slope >= jnp.abs(direction.value))
        highest = direction.value + direction.rounding
        rises = lambda: ~(direction.objective(displacement) <= highest)
        return jax.lax.cond(much, rises, lambda: jnp.asarray(False)), count(much)

    def _ratio(self, direction: Direction, state: SlopeState) -> tuple[Scalar, Scalar, Scalar]:
        """The remaining slope over the curvature, one as long as there is none; both averages."""
        last = cast(state, direction.value.dtype)
        average = lambda old, new: self.decay * old + (1 - self.decay) * new
        curvature = average(last.mean_curvature, last.curvature)
        slope = average(last.mean_slope, dot(direction.model.grad, last.displacement))
        one = jnp.ones_like(curvature)
        ratio = jnp.where(curvature > 0, slope / jnp.where(curvature > 0, curvature, one), one)
        return ratio, curvature, slope

    def _factor(
        self,
        direction: Direction,
        eta: Scalar,
        lowest: Scalar,
        ratio: Scalar,
        starting: Bool[Array, ""],
    ) -> Scalar:
        """The factor from one gamma to the next."""
        factor = jnp.exp(self.rate * jnp.clip((ratio - self.target) / self.width, -1, 1))
        factor = jnp.where(starting & (direction.kept_slope > 0.97), 2.0, factor)
        factor = jnp.where(eta < lowest, jnp.exp(-self.rate), factor)
        return jnp.where(lowest < 0.5, 0.5, factor).astype(ratio.dtype)


def _furthest(direction: Direction) -> Scalar:
    """The stepsize at which the slope promises twice the value, the most there is to gain."""
    slope = direction.slope
    bounded = (slope > 0) & direction.model.nonnegative
    return jnp.where(bounded, 2 * direction.value / jnp.where(bounded, slope, 1), jnp.inf)
