r"""Rules that decide how far to go, with a gamma that is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxlin.direction import Direction, Info
from proxlin.linearize import Outputs, Params
from proxlin.solvers.system import add_scaled, count, dot, select
from proxlin.steps.rule import (
    ScalarOrSchedule,
    Step,
    StepRule,
    at,
    check_fraction,
    check_positive,
    known,
)
from proxlin.subproblems import Scalar


@dataclasses.dataclass(frozen=True)
class Fixed(StepRule):
    r"""The same stepsize at every step, :math:`w - \eta\, d(\gamma)`.

    Attributes:
        gamma: the regularisation, a number or an Optax schedule.
        eta: the stepsize, a number or an Optax schedule.

    Example:
        >>> import optax
        >>> rule = Fixed(gamma=optax.exponential_decay(1.0, 100, 0.5), eta=1.0)
    """

    gamma: ScalarOrSchedule = 1.0
    eta: ScalarOrSchedule = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "gamma", "eta")

    def step(self, direction: Direction, steps: Int[Array, ""], memory: Any = ()) -> Step:
        """Always takes the step."""
        eta = at(self.eta, steps).astype(direction.value.dtype)
        way = direction.displacement(eta)
        return Step(eta, way, jnp.asarray(True), direction.gamma, direction.info, count(0))


@dataclasses.dataclass(frozen=True)
class Armijo(StepRule):
    r"""Backtracking on the mini-batch objective.

    The first :math:`\eta` of ``max_eta``, ``max_eta * shrink``, ... that satisfies

    .. math:: h(w - \eta d) \le h(w) - \beta\, \eta \langle d, \nabla h \rangle
        + \text{rounding}

    is taken, with the rounding of the objective at :math:`w`. Each search starts at ``max_eta``:
    nothing carries over from one batch to the next. Trial points see the same batch and the same
    ``args`` (so the same dropout), and their statistics are discarded. If no stepsize passes, the
    step is refused.

    With a regularizer the trial points lie on the prox arc, :math:`w_\eta =
    \operatorname{prox}_{\eta \gamma \rho}(w - \eta \gamma J^* \alpha)`, and the test is

    .. math:: (h + \rho)(w_\eta) \le (h + \rho)(w) - \beta \bigl(\langle \nabla h, w - w_\eta
        \rangle + \rho(w) - \rho(w_\eta)\bigr) + \text{rounding}

    with a positive bracket; if none passes, the search is repeated on the arc of the gradient.

    Attributes:
        gamma: the regularisation, a number or an Optax schedule.
        beta: the fraction of the slope that must be realised.
        shrink: the factor between two trials.
        max_eta: the first trial.
        max_backtracks: how often to shrink before giving up.
    """

    gamma: ScalarOrSchedule = 1.0
    beta: float = 1e-4
    shrink: float = 0.8
    max_eta: float = 1.0
    max_backtracks: int = 30

    def __post_init__(self) -> None:
        check_positive(self, "gamma", "max_eta")
        check_fraction(self, "beta", "shrink")
        if known(self.max_backtracks < 0):
            raise ValueError(f"Armijo(max_backtracks={self.max_backtracks}): give at least 0")

    def step(self, direction: Direction, steps: Int[Array, ""], memory: Any = ()) -> Step:
        """Searches; one forward pass for each trial."""
        eta, passed, evaluations = self._search(direction, direction.pull, direction.usable)
        way = direction.displacement(eta)
        if direction.pull is not None:
            again = direction.usable & ~passed
            slower, late, more = self._search(direction, direction.plin.grad, again)
            way = select(late, direction.displacement(slower, direction.plin.grad), way)
            eta, passed = jnp.where(late, slower, eta), passed | late
            evaluations += more
        return Step(eta, way, passed, direction.gamma, direction.info, evaluations)

    def _search(
        self, direction: Direction, pull: Params | None, start: Bool[Array, ""]
    ) -> tuple[Scalar, Bool[Array, ""], Int[Array, ""]]:
        """The first stepsize that passes, whether one did, and how many were tried."""
        total = direction.total
        slack = direction.rounding

        def trial(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            eta, _, evaluations = state
            way = direction.displacement(eta, pull)
            promised = _promised(direction, eta, way)
            enough = direction.objective(way) <= total - self.beta * promised + slack
            passed = enough & (promised >= 0)
            return jnp.where(passed, eta, self.shrink * eta), passed, evaluations + 1

        return jax.lax.while_loop(
            lambda s: ~s[1] & (s[2] <= self.max_backtracks) & start,
            trial,
            (jnp.asarray(self.max_eta, total.dtype), jnp.asarray(False), count(0)),
        )


def _promised(direction: Direction, eta: Scalar, way: Params) -> Scalar:
    """What the objective, linearised but for its regularizer, falls by."""
    if direction.pull is None:
        return eta * direction.info.slope
    plin = direction.plin
    lifted = jax.tree.map(lambda x: x.astype(eta.dtype), way)
    after = plin.regularizer.value(add_scaled(plin.params, -1, lifted))
    return dot(plin.grad, lifted) + direction.info.penalty - after


@dataclasses.dataclass(frozen=True)
class ModelStep(StepRule):
    r"""The best step along the direction on the convex model.

    .. math:: \eta = \operatorname{argmin}_{\eta \in [0, 1]}
        \sum_i \omega_i\, \ell_i(f_i - \eta J_i d) + \tfrac{\eta^2}{2 \gamma} \|d\|^2

    costs one JVP and no forward pass. The quadratic model does not see how far a saturated loss
    is from its quadratic expansion; the convex model does. Where curvature is taken from a part
    of the batch, so is the convex model, its slope corrected to that of the whole batch. It does
    not know regularizers.

    Attributes:
        gamma: the regularisation, a number or an Optax schedule.
    """

    gamma: ScalarOrSchedule = 1.0
    composite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive(self, "gamma")

    def step(self, direction: Direction, steps: Int[Array, ""], memory: Any = ()) -> Step:
        """Finds the root of the derivative by bisection, to three digits."""
        eta, info, _ = best_on_model(direction)
        return Step(eta, direction.displacement(eta), eta > 0, direction.gamma, info, count(0))


def best_on_model(direction: Direction) -> tuple[Scalar, Info, Outputs]:
    """The stepsize of :class:`ModelStep`, the report with the JVP that it cost, and that JVP."""
    change = direction.plin.linearization.jvp(direction.vector)
    derivative = _model_derivative(direction, change)
    one = jnp.ones_like(direction.value)

    def halve(bounds: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = bounds
        middle = 0.5 * (low + high)
        beyond = ~(derivative(middle) <= 0)
        return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

    # Whether the whole step is best is asked once, and carried: where the model is a parabola the
    # answer is a matter of rounding, and compilers may round a second answer the other way.
    shortest = jnp.where(derivative(one) <= 0, one, jnp.zeros_like(one))
    smallest = jnp.finfo(one.dtype).tiny / jnp.finfo(one.dtype).eps
    eta, _ = jax.lax.while_loop(
        lambda b: direction.usable & (b[1] - b[0] > 1e-3 * b[1]) & (b[1] > smallest),
        halve,
        (shortest, one),
    )
    return eta, direction.info._replace(jvps=direction.info.jvps + 1), change


def _model_derivative(direction: Direction, change: Outputs) -> Callable[[Scalar], Scalar]:
    """The derivative in eta of the convex model along the direction, which changes outputs so."""
    plin, d = direction.plin, direction.vector
    outputs = plin.linearization.outputs

    def gain(eta: Scalar) -> Scalar:
        return dot(change, plin.pull(add_scaled(outputs, -eta, change)))

    zero = jnp.zeros_like(direction.value)
    complete = plin.same_examples and plin.source is None
    missing = zero if complete else dot(d, plin.linear_term) - gain(zero)
    return lambda eta: eta * direction.square - gain(eta) - missing
