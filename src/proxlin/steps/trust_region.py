"""A rule that adapts gamma to the decrease on the batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxlin.algebra import (
    Number,
    Params,
    Scalar,
    Shapes,
    add_scaled,
    cast_like,
    count,
    dot,
    plain,
    select,
)
from proxlin.direction import Direction
from proxlin.steps.rule import Step, StepRule, check_fraction, check_positive, known


@dataclasses.dataclass(frozen=True)
class TrustRegion(StepRule):
    r"""Full steps, with gamma adapted to how well the quadratic model predicts them.

    .. math:: \text{ratio} = \frac{h(w) - h(w - d)}
        {\langle d, \nabla h \rangle - \tfrac12 \langle d, (G + I/\gamma) d \rangle}

    on the same batch, with the rounding of :math:`h` added to numerator and denominator; both
    include a regularizer. Below ``low`` gamma shrinks, above ``high`` it grows, and a ratio that is
    not positive or not finite also rejects the step. If the subproblem has no usable solution,
    gamma shrinks too. If the prediction is below rounding, the ratio is meaningless: there is
    nothing to lose, and gamma grows.

    Gamma does not grow once the proximity term has no effect, :math:`\|d\|^2 / \gamma \le
    \sqrt{\mathrm{eps}} \langle d, \nabla h \rangle`, so it settles at a minimum. Nor does it grow
    while conjugate gradients are badly truncated, because few steps solve a less regularized
    subproblem even worse. They are if they realize less than half of the decrease :math:`\tfrac12
    \langle d, \nabla h \rangle` of an exact solution; and if their residual exceeds
    ``max_residual``, unless the direction keeps half of the slope of :math:`\gamma \nabla h`: no
    solution has more slope than that, so at least half of the possible gain is realized.

    With ``nielsen`` gamma follows the ratio smoothly (Nielsen, 1999): an accepted step multiplies
    it by :math:`1 / \max(1/\text{grow}, 1 - (2\, \text{ratio} - 1)^3)`, and rejected ones divide it
    by 2, 4, 8 and so on. The prediction in this ratio is without the proximity term.

    With ``acceleration`` steps follow the curved path that a direction begins (Transtrum and
    Sethna, 2012): :math:`w - d - e` with :meth:`the correction of second order
    <proxlin.extend.Direction.acceleration>`, computed by the same factorization from one more
    forward pass. A step whose correction is longer than ``acceleration`` times :math:`\|d\|_P` is
    rejected: there the path bends too much for a step of this length. Where the prediction is at
    rounding level, so is the correction, and it is left out.

    Attributes:
        gamma: the first gamma.
        low: below this ratio gamma shrinks.
        high: above this ratio gamma grows.
        shrink: the factor by which it shrinks.
        grow: the factor by which it grows.
        min_gamma: the least gamma.
        max_gamma: the largest gamma.
        max_residual: the largest relative residual, before the last inner step, to grow with.
        nielsen: whether gamma follows the ratio smoothly; ``low`` and ``high`` have no effect then,
            and ``shrink`` only where the subproblem has no usable solution.
        acceleration: the largest length of a correction, relative to that of the direction; None
            for straight steps.
    """

    gamma: Number = 1.0
    low: Number = 0.25
    high: Number = 0.75
    shrink: Number = 0.5
    grow: Number = 2.0
    min_gamma: Number = 1e-30
    max_gamma: Number = 1e30
    max_residual: Number = 0.5
    nielsen: bool = False
    acceleration: Number | None = None

    def __post_init__(self) -> None:
        if callable(self.gamma):
            raise TypeError("TrustRegion adapts gamma itself: give a first number, not a schedule")
        check_positive(self, "gamma", "grow", "min_gamma", "max_gamma", "max_residual")
        check_fraction(self, "low", "high", "shrink")
        wrong = self.low > self.high, self.grow < 1, self.min_gamma > self.max_gamma
        if any(map(known, wrong)):
            raise ValueError(f"{self}: needs low <= high, grow >= 1 and min_gamma <= max_gamma")
        if self.acceleration is not None:
            check_positive(self, "acceleration")

    def init(self, params: Shapes) -> Any:
        """With ``nielsen`` the factor by which the next rejection shrinks gamma."""
        return jnp.full((), 0.5, jnp.result_type(float)) if self.nielsen else ()

    def gamma_at(self, steps: Int[Array, ""], carried: Scalar) -> Scalar:
        """The gamma carried over."""
        return carried

    def step(self, direction: Direction, steps: Int[Array, ""], state: Any = ()) -> Step:
        """Compares the decrease with the prediction; one or two forward passes and a JVP."""
        direction = direction.with_prediction()
        predicted = direction.predicted
        direction, slack = _slack(direction)
        one = jnp.ones_like(direction.total)
        blind = predicted <= slack
        displacement, straight = direction.displacement(one), jnp.asarray(True)
        if self.acceleration is not None:
            direction, displacement, straight = _accelerated(
                direction, self.acceleration, blind=predicted <= 100 * slack
            )
        decrease = direction.total - direction.objective(displacement)
        if self.nielsen:  # what the model promises without the proximity term
            predicted = predicted + 0.5 * direction.square
        ratio = (decrease + slack) / (predicted + slack)
        ratio = jnp.where((predicted >= -slack) & straight, ratio, -one)
        # At a critical point there is nothing to predict.
        ratio = jnp.where(_vanishes(direction.d), one, ratio)
        accepted = (ratio > 0) & jnp.isfinite(ratio)
        factor = self._factor(direction, ratio, accepted, blind, state)
        # At a minimum rounding decides whether a direction descends, and gamma is not to blame.
        lost = ~direction.usable & (jnp.abs(direction.slope) <= slack)
        factor = jnp.where(lost, 1, factor)
        following = direction.gamma * factor.astype(direction.gamma.dtype)
        return Step(
            eta=one,
            displacement=displacement,
            accepted=accepted,
            gamma=jnp.clip(following, self.min_gamma, self.max_gamma),
            info=direction.info,
            evaluations=count(1 if self.acceleration is None else 2),
            state=self.init(direction.params),
            rejected_state=0.5 * state if self.nielsen else None,
        )

    def _factor(
        self,
        direction: Direction,
        ratio: Scalar,
        accepted: Bool[Array, ""],
        blind: Bool[Array, ""],
        state: Any,
    ) -> Scalar:
        """What gamma is multiplied by."""
        if self.nielsen:
            smooth = 1 / jnp.maximum(1 / self.grow, 1 - (2 * jnp.clip(ratio, 0, 1) - 1) ** 3)
            smooth = jnp.where(blind, self.grow, smooth)
            smooth = jnp.where(self._solved(direction), smooth, jnp.minimum(smooth, 1))
            factor = jnp.where(accepted, smooth, jnp.asarray(state, smooth.dtype))
        else:
            grows = accepted & (blind | (ratio > self.high)) & self._solved(direction)
            keeps = accepted & (blind | (ratio >= self.low))
            factor = jnp.where(grows, self.grow, jnp.where(keeps, 1.0, self.shrink))
        return jnp.where(direction.usable, factor, self.shrink)

    def _solved(self, direction: Direction) -> Bool[Array, ""]:
        """Whether the subproblem was solved well enough to be regularized less."""
        slope = direction.slope
        enough = ~(direction.cost.residual > self.max_residual) | (direction.kept_slope >= 0.5)
        felt = direction.square > jnp.finfo(slope.dtype).eps ** 0.5 * slope
        return enough & felt & (direction.predicted >= 0.25 * slope)


def _accelerated(
    direction: Direction, longest: Number, *, blind: Bool[Array, ""]
) -> tuple[Direction, Params, Bool[Array, ""]]:
    """The displacement with its correction, and whether the path is straight enough."""
    direction, correction = direction.acceleration()
    d = direction.solved.d
    straight = dot(correction, correction) <= longest**2 * dot(d, d)
    curved = cast_like(plain(add_scaled(d, 1, correction)), direction.params)
    # Not a multiple of it by zero: it may not be finite.
    return direction, select(straight & ~blind, curved, direction.d), straight | blind


def _slack(direction: Direction) -> tuple[Direction, Scalar]:
    """The rounding of the objective; with one more JVP if the prediction is not much larger."""
    slack = direction.rounding
    predicted = direction.predicted
    near = direction.usable & (predicted >= 0) & (predicted <= 1e4 * slack)
    more = jax.lax.cond(near, direction.rounding_of_params, lambda: jnp.zeros_like(slack))
    return direction.spend(jvps=count(near)), slack + more


def _vanishes(d: Params) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(x == 0) for x in jax.tree.leaves(d)]))
