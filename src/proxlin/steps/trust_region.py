"""A rule that adapts gamma to the decrease on the batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxlin.algebra import Number, Params, Scalar, count
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

    Attributes:
        gamma: the first gamma.
        low: below this ratio gamma shrinks.
        high: above this ratio gamma grows.
        shrink: the factor by which it shrinks.
        grow: the factor by which it grows.
        min_gamma: the least gamma.
        max_gamma: the largest gamma.
        max_residual: the largest relative residual, before the last inner step, to grow with.
    """

    gamma: Number = 1.0
    low: Number = 0.25
    high: Number = 0.75
    shrink: Number = 0.5
    grow: Number = 2.0
    min_gamma: Number = 1e-30
    max_gamma: Number = 1e30
    max_residual: Number = 0.5

    def __post_init__(self) -> None:
        if callable(self.gamma):
            raise TypeError("TrustRegion adapts gamma itself: give a first number, not a schedule")
        check_positive(self, "gamma", "grow", "min_gamma", "max_gamma", "max_residual")
        check_fraction(self, "low", "high", "shrink")
        wrong = self.low > self.high, self.grow < 1, self.min_gamma > self.max_gamma
        if any(map(known, wrong)):
            raise ValueError(f"{self}: needs low <= high, grow >= 1 and min_gamma <= max_gamma")

    def gamma_at(self, steps: Int[Array, ""], carried: Scalar) -> Scalar:
        """The gamma carried over."""
        return carried

    def step(self, direction: Direction, steps: Int[Array, ""], state: Any = ()) -> Step:
        """Compares the decrease with the prediction; one forward pass, at most one JVP."""
        direction = direction.with_prediction()
        predicted, gamma = direction.predicted, direction.gamma
        direction, slack = _slack(direction)
        one = jnp.ones_like(direction.total)
        displacement = direction.displacement(one)
        decrease = direction.total - direction.objective(displacement)
        ratio = (decrease + slack) / (predicted + slack)
        ratio = jnp.where(predicted >= 0, ratio, -one)
        # At a critical point there is nothing to predict.
        ratio = jnp.where(_vanishes(direction.d), one, ratio)
        accepted = (ratio > 0) & jnp.isfinite(ratio)
        blind = predicted <= slack
        grows = accepted & (blind | (ratio > self.high)) & self._solved(direction)
        keeps = accepted & (blind | (ratio >= self.low))
        factor = jnp.where(grows, self.grow, jnp.where(keeps, 1.0, self.shrink))
        factor = jnp.where(direction.usable, factor, self.shrink).astype(gamma.dtype)
        following = jnp.clip(gamma * factor, self.min_gamma, self.max_gamma)
        return Step(
            eta=one,
            displacement=displacement,
            accepted=accepted,
            gamma=following,
            info=direction.info,
            evaluations=count(1),
        )

    def _solved(self, direction: Direction) -> Bool[Array, ""]:
        """Whether the subproblem was solved well enough to be regularized less."""
        slope = direction.slope
        enough = ~(direction.cost.residual > self.max_residual) | (direction.kept_slope >= 0.5)
        felt = direction.square > jnp.finfo(slope.dtype).eps ** 0.5 * slope
        return enough & felt & (direction.predicted >= 0.25 * slope)


def _slack(direction: Direction) -> tuple[Direction, Scalar]:
    """The rounding of the objective; with one more JVP if the prediction is not much larger."""
    slack = direction.rounding
    predicted = direction.predicted
    near = direction.usable & (predicted >= 0) & (predicted <= 1e4 * slack)
    more = jax.lax.cond(near, direction.rounding_of_params, lambda: jnp.zeros_like(slack))
    return direction.spend(jvps=count(near)), slack + more


def _vanishes(d: Params) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(x == 0) for x in jax.tree.leaves(d)]))
