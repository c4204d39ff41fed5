r"""The base class of step rules, and what they decide."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from proxlin.algebra import Number, Params, Scalar, Shapes, count
from proxlin.checks import check_number
from proxlin.direction import Direction, Info

ScalarOrSchedule = Number | Callable[[Any], Any]


class Step(NamedTuple):
    r"""The decision of a step rule.

    Attributes:
        eta: the stepsize.
        displacement: what to subtract from the parameters, :math:`\eta d` or the prox arc at
            :math:`\eta`.
        accepted: whether to take the step.
        gamma: the gamma to carry over.
        info: the report of the direction, including what the rule asked and spent.
        evaluations: forward passes at trial points.
        state: the next state of the rule, if the step is taken.
        rejected_state: the next state if it is not taken; the same as before if None.
    """

    eta: Scalar
    displacement: Params
    accepted: Bool[Array, ""]
    gamma: Scalar
    info: Info
    evaluations: Int[Array, ""]
    state: Any = ()
    rejected_state: Any = None


class StepRule(abc.ABC):
    """Decides how far to go along a direction; a frozen dataclass with separate state.

    Attributes:
        gamma: the regularization of the subproblem, a number or an Optax schedule.
        composite: whether it can handle a regularizer.
    """

    gamma: ScalarOrSchedule
    composite: ClassVar[bool] = True

    def first_gamma(self) -> Scalar:
        """The gamma of the first step."""
        return at(self.gamma, count(0))

    def gamma_at(self, steps: Int[Array, ""], carried: Scalar) -> Scalar:
        """The gamma for a step, given the number of steps before it and the gamma carried over."""
        return at(self.gamma, steps)

    def init(self, params: Shapes) -> Any:
        """The state before the first step, a pytree; empty for most rules."""
        return ()

    @abc.abstractmethod
    def step(self, direction: Direction, steps: Int[Array, ""], state: Any = ()) -> Step:
        """Decides; ``steps`` counts the steps taken before this one."""


def at(value: ScalarOrSchedule, steps: Int[Array, ""]) -> Scalar:
    """A number, or a schedule at a step, in the default float dtype."""
    return jnp.asarray(value(steps) if callable(value) else value).astype(jnp.result_type(float))


def known(condition: Any) -> bool:
    """Whether a condition is known to hold; one on traced (injected) numbers is not."""
    return not isinstance(condition, jax.core.Tracer) and bool(condition)


def check_positive(rule: StepRule, *names: str) -> None:
    """Raises if one of these attributes is known and not a positive number."""
    for name in names:
        value = getattr(rule, name)
        if callable(value) or isinstance(value, jax.core.Tracer):
            continue
        check_number(f"{type(rule).__name__}({name}={value!r})", value, "a positive number")
        if np.ndim(value) != 0 or not value > 0:
            raise ValueError(f"{type(rule).__name__}({name}={value!r}): give a positive number")


def check_fraction(rule: StepRule, *names: str) -> None:
    """Raises if one of these attributes is known and not between 0 and 1."""
    for name in names:
        value = getattr(rule, name)
        owner = f"{type(rule).__name__}({name}={value!r})"
        check_number(owner, value, "a number between 0 and 1")
        if not isinstance(value, jax.core.Tracer) and not 0 < value < 1:
            raise ValueError(
                f"{type(rule).__name__}({name}={value!r}): give a number between 0 and 1"
            )
