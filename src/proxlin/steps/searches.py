r"""Rules that decide how far to go, for a given gamma."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxlin.algebra import Number, Params, Scalar, count, plain, select
from proxlin.checks import check_integer
from proxlin.direction import Direction
from proxlin.objective import TermOutputs
from proxlin.steps.rule import (
    ScalarOrSchedule,
    Step,
    StepRule,
    at,
    check_fraction,
    check_positive,
)


@dataclasses.dataclass(frozen=True)
class Fixed(StepRule):
    r"""The same stepsize at every step, :math:`w - \eta\, d(\gamma)`.

    Attributes:
        gamma: the regularization, a number or an Optax schedule.
        eta: the stepsize, a number or an Optax schedule.

    Example:
        >>> import optax
        >>> rule = Fixed(gamma=optax.exponential_decay(1.0, 100, 0.5), eta=1.0)
    """

    gamma: ScalarOrSchedule = 1.0
    eta: ScalarOrSchedule = 1.0

    def __post_init__(self) -> None:
        check_positive(self, "gamma", "eta")

    def step(self, direction: Direction, steps: Int[Array, ""], state: Any = ()) -> Step:
        """Always takes the step."""
        eta = at(self.eta, steps).astype(direction.value.dtype)
        return Step(
            eta=eta,
            displacement=direction.displacement(eta),
            accepted=jnp.asarray(True),
            gamma=direction.gamma,
            info=direction.info,
            evaluations=count(0),
        )


@dataclasses.dataclass(frozen=True)
class Armijo(StepRule):
    r"""Backtracking on the mini-batch objective.

    The first :math:`\eta` of ``max_eta``, ``max_eta * shrink``, ... that satisfies

    .. math:: h(w - \eta d) \le h(w) - \beta\, \eta \langle d, \nabla h \rangle
        + \text{rounding}

    is taken, with the rounding of the objective at :math:`w`. Each search starts at ``max_eta``:
    nothing carries over from one batch to the next. Trial points use the same batch and the same
    ``args`` (and so the same dropout), and their statistics are discarded. If no stepsize passes,
    the step is rejected.

    With a regularizer the trial points lie on the prox arc, :math:`w_\eta =
    \operatorname{prox}_{\eta \gamma \rho}(w - \eta \gamma J^* \alpha)`, and the test is

    .. math:: (h + \rho)(w_\eta) \le (h + \rho)(w) - \beta \bigl(\langle \nabla h, w - w_\eta
        \rangle + \rho(w) - \rho(w_\eta)\bigr) + \text{rounding}

    with a non-negative bracket; if none passes, the search is repeated on the arc of the gradient.

    Attributes:
        gamma: the regularization, a number or an Optax schedule.
        beta: the fraction of the slope that must be realized.
        shrink: the factor between two trials.
        max_eta: the first trial.
        max_backtracks: how often to shrink before giving up.
    """

    gamma: ScalarOrSchedule = 1.0
    beta: Number = 1e-4
    shrink: Number = 0.8
    max_eta: Number = 1.0
    max_backtracks: int | Array = 30

    def __post_init__(self) -> None:
        check_positive(self, "gamma", "max_eta")
        check_fraction(self, "beta", "shrink")
        if not isinstance(self.max_backtracks, jax.Array):  # as when it is injected
            check_integer(self, "max_backtracks", least=0)

    def step(self, direction: Direction, steps: Int[Array, ""], state: Any = ()) -> Step:
        """Searches, with one forward pass for each trial."""
        eta, passed, evaluations = self._search(direction, None, direction.usable)
        displacement = direction.displacement(eta)
        if not direction.proximity.smooth:
            grad = direction.model.grad
            again = direction.usable & ~passed
            slower, late, more = self._search(direction, grad, again)
            displacement = select(late, direction.displacement(slower, grad), displacement)
            eta, passed = jnp.where(late, slower, eta), passed | late
            evaluations += more
        return Step(
            eta=eta,
            displacement=displacement,
            accepted=passed,
            gamma=direction.gamma,
            info=direction.info,
            evaluations=evaluations,
        )

    def _search(
        self, direction: Direction, dual_image: Params | None, start: Bool[Array, ""]
    ) -> tuple[Scalar, Bool[Array, ""], Int[Array, ""]]:
        """The first stepsize that passes, whether one did, and how many were tried."""
        total = direction.total
        slack = direction.rounding

        def trial(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            eta, _, evaluations = state
            displacement = direction.displacement(eta, dual_image)
            promised = direction.promised(eta, displacement)
            enough = direction.objective(displacement) <= total - self.beta * promised + slack
            passed = enough & (promised >= 0)
            return jnp.where(passed, eta, self.shrink * eta), passed, evaluations + 1

        return jax.lax.while_loop(
            lambda s: ~s[1] & (s[2] <= self.max_backtracks) & start,
            trial,
            (jnp.asarray(self.max_eta, total.dtype), jnp.asarray(False), count(0)),
        )


@dataclasses.dataclass(frozen=True)
class ModelStep(StepRule):
    r"""The best step along the direction on the convex model.

    .. math:: \eta = \operatorname{argmin}_{\eta \in [0, 1]}
        \sum_i \omega_i\, \ell_i(f_i - \eta J_i d) + r(\eta d)

    costs one JVP and no forward pass. The quadratic model does not see how far a saturated loss
    is from its quadratic expansion; the convex model does. If curvature is taken from a part of
    the batch, so is the convex model, with its slope corrected to that of the whole batch. It does
    not support regularizers.

    Attributes:
        gamma: the regularization, a number or an Optax schedule.
    """

    gamma: ScalarOrSchedule = 1.0
    composite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive(self, "gamma")

    def step(self, direction: Direction, steps: Int[Array, ""], state: Any = ()) -> Step:
        """Finds the root of the derivative by bisection, to three digits."""
        eta, direction, _ = best_on_model(direction)
        return Step(
            eta=eta,
            displacement=direction.displacement(eta),
            accepted=eta > 0,
            gamma=direction.gamma,
            info=direction.info,
            evaluations=count(0),
        )


def best_on_model(direction: Direction) -> tuple[Scalar, Direction, TermOutputs]:
    """The stepsize of :class:`ModelStep`, the direction with one more JVP, and that JVP."""
    direction, change = direction.change()
    derivative = _model_derivative(direction, change)
    one = jnp.ones_like(direction.value)

    def halve(bounds: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = bounds
        middle = 0.5 * (low + high)
        beyond = ~(derivative(middle) <= 0)
        return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

    # Whether the whole step is best is decided once and reused: if the model is a parabola, this
    # depends on rounding, and a compiler may round differently the second time.
    shortest = jnp.where(derivative(one) <= 0, one, jnp.zeros_like(one))
    smallest = jnp.finfo(one.dtype).tiny / jnp.finfo(one.dtype).eps
    eta, _ = jax.lax.while_loop(
        lambda b: direction.usable & (b[1] - b[0] > 1e-3 * b[1]) & (b[1] > smallest),
        halve,
        (shortest, one),
    )
    return eta, direction, change


def _model_derivative(direction: Direction, change: TermOutputs) -> Callable[[Scalar], Scalar]:
    """The derivative of the convex model in eta, given the change J d of the outputs."""
    d = direction.solved.d
    of_model = direction.model.slope_along(plain(d), change)
    of_proximity = direction.proximity.slope_along(d, direction.model.grad)
    return lambda eta: of_model(eta) + of_proximity(eta)
