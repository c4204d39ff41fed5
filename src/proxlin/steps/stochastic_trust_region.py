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
    plain,
    zeros_like,
)
from proxlin.checks import check_integer
from proxlin.direction import Direction
from proxlin.steps.rule import Step, StepRule, check_fraction, check_positive, known
from proxlin.steps.searches import best_on_model


class SlopeState(NamedTuple):
    r"""The state of :class:`StochasticTrustRegion`.

    Attributes:
        displacement: the last one, :math:`s`.
        last: the numbers of the last step.
        mean: their averages, with the slopes where steps ended, each on the following batch.
        ratio: the averaged slope at the end over the averaged curvature.
        starting: whether the ratio has not yet fallen to 0.1.
    """

    displacement: Params
    last: Slopes
    mean: Slopes
    ratio: Scalar
    starting: Bool[Array, ""]


class Slopes(NamedTuple):
    r"""Numbers of a step.

    Attributes:
        start: the slope at its start, on its own batch.
        curvature: its :math:`\langle s, G s \rangle`, on its own batch.
        end: the slope at its end, on the following batch.
        shrink: the factor by which the length of training has shortened it.
    """

    start: Scalar
    curvature: Scalar
    end: Scalar
    shrink: Scalar


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
    :math:`e^{\text{rate}}` a step. Where the ratio is large, steps :math:`1 + \text{ratio}` times
    as long would end at the lowest point of their line, and gamma grows faster, by a factor of
    :math:`(1 + \text{ratio})^{\text{rate}}` a step.

    On average a step lowers the objective by :math:`(\text{ratio} + \tfrac12) \langle s, G s
    \rangle`. Where noise stops all progress the ratio is minus a half whatever gamma is. A target
    above that makes gamma fall there. The target is not zero, because the step with the largest
    immediate gain is too short for those that follow, and because an average of the parameters
    removes most of the noise that long steps leave.

    Gamma does not fall where the curvature is less than a tenth of the slope, and grows only if the
    ratio is above the target by more than ``width``. Such steps keep so little noise that the
    average of the parameters needs no shorter ones. Their ratio says little: it is mostly noise, by
    which gamma must not climb; and batches of one epoch share no example, so the next one is a
    little worse for every step, however short.

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

    If the number of steps is known, they shrink to nothing over the second half of them, linearly.
    The ratio is that of the steps before they were shortened.

    Costs one JVP, unless the solver gave it for free, and one copy of the parameters in memory.

    Attributes:
        gamma: the first gamma; better too small than too large.
        target: the ratio to keep.
        width: the distance from it at which gamma changes by the whole rate.
        rate: how fast the logarithm of gamma changes.
        decay: of the averages.
        min_gamma: the least gamma.
        max_gamma: the largest gamma.
        steps: the number of steps of the training; None if it is not known.
    """

    gamma: Number = 1e-2
    target: Number = -0.375
    width: Number = 0.5
    rate: Number = 0.05
    decay: Number = 0.9
    min_gamma: Number = 1e-30
    max_gamma: Number = 1e30
    steps: int | None = None
    composite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if callable(self.gamma):
            raise TypeError(f"{type(self).__name__} adapts gamma itself: give a first number")
        check_positive(self, "gamma", "width", "rate", "min_gamma", "max_gamma")
        check_fraction(self, "decay")
        if self.steps is not None:
            check_integer(self, "steps", least=1)
        finite = isinstance(self.target, jax.core.Tracer) or math.isfinite(self.target)
        if not finite or known(self.min_gamma > self.max_gamma):
            raise ValueError(f"{self}: needs a finite target and min_gamma <= max_gamma")

    def gamma_at(self, steps: Int[Array, ""], carried: Scalar) -> Scalar:
        """The gamma carried over."""
        return carried

    def init(self, params: Shapes) -> SlopeState:
        """No step, and no slopes."""
        zero = jnp.zeros((), algebra_dtype(params))
        none = Slopes(start=zero, curvature=zero, end=zero, shrink=zero + 1)
        return SlopeState(
            displacement=zeros_like(params),
            last=none,
            mean=none,
            ratio=zero,
            starting=jnp.asarray(True),
        )

    def step(self, direction: Direction, steps: Int[Array, ""], state: Any = ()) -> Step:
        """Judges the last step by the gradient of this batch."""
        lowest, direction, change = best_on_model(direction)
        longest = jnp.minimum(lowest, _furthest(direction))
        shrink = self._shrink(steps).astype(longest.dtype)
        eta = shrink * longest
        displacement = direction.displacement(eta)
        rises, looks = self._rises(direction, eta, displacement)
        judged = self._judged(direction, state)
        factor = self._factor(direction, judged, longest < lowest)
        factor = jnp.where(lowest < 0.5, 0.5, factor)
        factor = jnp.where(direction.usable & ~rises, factor, 0.5).astype(longest.dtype)
        d = plain(direction.solved.d)
        following = judged._replace(
            displacement=displacement,
            last=Slopes(
                start=eta * direction.slope,
                curvature=eta**2 * direction.model.curvature(d, change),
                end=jnp.zeros_like(eta),
                shrink=shrink,
            ),
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

    def _shrink(self, steps: Int[Array, ""]) -> Scalar:
        """How much the length of training shortens this step."""
        if self.steps is None:
            return jnp.ones((), jnp.result_type(float))
        return jnp.clip(2 * (self.steps - steps) / self.steps, 0, 1)

    def _rises(
        self, direction: Direction, eta: Scalar, displacement: Params
    ) -> tuple[Bool[Array, ""], Int[Array, ""]]:
        """Whether the objective rises, if a step promises all of it; one forward pass then."""
        much = direction.usable & (eta * direction.slope >= jnp.abs(direction.total))
        highest = direction.total + direction.rounding
        rises = lambda: ~(direction.objective(displacement) <= highest)
        return jax.lax.cond(much, rises, lambda: jnp.asarray(False)), count(much)

    def _judged(self, direction: Direction, state: SlopeState) -> SlopeState:
        """The state with what the gradient of this batch says about previous steps."""
        state = cast(state._replace(starting=jnp.ones(())), direction.value.dtype)._replace(
            starting=state.starting
        )
        last = state.last
        # What the step would have been without shortening: slopes are linear in its length.
        shrink = jnp.where(last.shrink > 0, last.shrink, 1)
        start, curvature = last.start / shrink, last.curvature / shrink**2
        end = dot(direction.model.grad, state.displacement) + last.curvature
        new = last._replace(start=start, curvature=curvature, end=end / shrink - curvature)
        mean = jax.tree.map(lambda a, b: self.decay * a + (1 - self.decay) * b, state.mean, new)
        known = mean.curvature > 0
        # One as long as there is no curvature.
        ratio = jnp.where(known, mean.end / jnp.where(known, mean.curvature, 1), 1)
        return state._replace(mean=mean, ratio=ratio, starting=state.starting & (ratio > 0.1))

    def _factor(
        self, direction: Direction, judged: SlopeState, shortened: Bool[Array, ""]
    ) -> Scalar:
        """The factor from one gamma to the next."""
        away = (judged.ratio - self.target) / self.width
        long = judged.mean.curvature >= 0.1 * judged.mean.start
        away = jnp.clip(jnp.where(long, away, jnp.maximum(away - 1, 0)), -1, 1)
        # Steps 1 + ratio times as long would end at the lowest point of their line.
        further = jnp.maximum(1, jnp.log1p(jnp.maximum(judged.ratio, 0)))
        factor = jnp.exp(self.rate * away * further)
        factor = jnp.where(judged.starting & (direction.kept_slope > 0.97), 2.0, factor)
        return jnp.where(shortened, jnp.exp(-self.rate), factor)


def _furthest(direction: Direction) -> Scalar:
    """The stepsize at which the slope promises twice the value, the most there is to gain."""
    slope = direction.slope
    bounded = (slope > 0) & direction.model.nonnegative
    return jnp.where(bounded, 2 * direction.total / jnp.where(bounded, slope, 1), jnp.inf)
