r"""The base class of subproblems: it declares what it accepts, and solves it."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from proxlin.algebra import Params, Scalar, Vector
from proxlin.deprecation import warn_deprecated
from proxlin.losses import Loss
from proxlin.metrics import DiagonalMetric, Metric
from proxlin.objective import TermOutputs
from proxlin.proximity import Proximity, has_momentum
from proxlin.regularizers import Regularizer
from proxlin.solvers import Cost
from proxlin.subproblems.model import ConvexModel

LINEAR = "CG(max_steps), MultiShiftCG(max_steps), Cholesky(), QR() or SVD()"
COMPOSITE = "ProximalGradient()"


class Subsolution(NamedTuple):
    r"""An approximate solution of a subproblem.

    Attributes:
        d: the direction; with a metric :math:`P` together with :math:`P d`.
        cost: steps, products with the Jacobian and its adjoint, and how it ended.
        dual_image: :math:`J^* \alpha`, which :math:`\nabla r^*` maps to the direction; None without
            a regularizer, where the direction is a multiple of it.
        predicted: the decrease that the model promises; None if it did not come for free.
        change: :math:`J d`, the change of the outputs; None if it did not come for free.
        root: :math:`B^\top J d`; None if it did not come for free.
        correction: maps :math:`v` in the space of :math:`B^\top J d` to :math:`(P / \gamma +
            J^\top B B^\top J)^{-1} J^\top B v`, with what the solver has computed already; None if
            the subproblem is not quadratic, or has a regularizer.
        primal: the value of the convex subproblem at :math:`d`; None for the quadratic ones.
        dual: the value of its dual, a lower bound; None for the quadratic ones.
    """

    d: Vector
    cost: Cost
    dual_image: Params | None = None
    predicted: Scalar | None = None
    change: TermOutputs | None = None
    root: TermOutputs | None = None
    correction: Callable[[TermOutputs], Vector] | None = None
    primal: Scalar | None = None
    dual: Scalar | None = None


@dataclasses.dataclass(frozen=True)
class Subproblem(abc.ABC):
    """A convex problem whose solution is a direction; a frozen dataclass.

    A subclass implements :meth:`solve`, and overrides the rest to declare what it accepts; by
    default that is any loss, any solver, any regularizer and any metric.

    Attributes:
        name: its name in messages; that of the class if None.
        takes_metric: whether it works in a metric and with momentum.
    """

    name: ClassVar[str | None] = None
    takes_metric: ClassVar[bool] = True

    @abc.abstractmethod
    def solve(self, model: ConvexModel, proximity: Proximity, solver: Any = None) -> Subsolution:
        """Solves it approximately, with the given solver or the default one."""

    def missing(self, loss: Loss) -> str | None:
        """What a loss lacks, and what to do about it; None if nothing."""
        return None

    def solvers(self, loss: Loss, regularizer: Regularizer) -> dict[type, str]:
        """The kinds of solvers that it accepts, and how to write them."""
        return {object: "any solver"}

    def check(
        self,
        losses: tuple[Loss, ...],
        solver: Any,
        regularizer: Regularizer,
        metric: Metric,
        momentum: Any,
    ) -> None:
        """Raises TypeError, with what is missing and what would work, unless all fit."""
        name = self._name
        for loss in losses:
            missing = self.missing(loss)
            if missing is not None:
                raise TypeError(f"{name} needs {missing}")
            kinds = self.solvers(loss, regularizer)
            if solver is not None and not isinstance(solver, tuple(kinds)):
                what = f"{loss}" + ("" if regularizer.is_zero else " and a regularizer")
                raise TypeError(
                    f"{solver} cannot solve {name} with {what}; use {' or '.join(kinds.values())}"
                )
        self._check_metric(solver, regularizer, metric, momentum)

    def _check_metric(
        self, solver: Any, regularizer: Regularizer, metric: Metric, momentum: Any
    ) -> None:
        if metric.is_identity and not has_momentum(momentum):
            return
        what = f"momentum={momentum}" if metric.is_identity else f"{metric}"
        if not self.takes_metric:
            raise TypeError(
                f"{self._name} does not take {what}; use subproblem=dual_quadratic or "
                "primal_quadratic"
            )
        if not regularizer.is_zero:
            raise TypeError(f"{what} does not go together with {regularizer}; drop one of the two")
        easy = metric.is_identity or isinstance(metric, DiagonalMetric)
        if not easy and not getattr(solver, "takes_metric", solver is None):
            raise TypeError(
                f"{solver} does not take {what}; use CG(max_steps) or MultiShiftCG(max_steps)"
            )

    @property
    def _name(self) -> str:
        return self.name or type(self).__name__

    def __call__(self, **options: Any) -> Any:
        """The same with other options; keeps ``functools.partial`` of it working."""
        return dataclasses.replace(self, **options)


def as_subproblem(given: Any) -> Subproblem:
    """The subproblem that was passed as ``subproblem=``.

    Raises:
        TypeError: for anything else.
    """
    if isinstance(given, functools.partial) and isinstance(given.func, Subproblem):
        new = given()
        options = ", ".join(f"{name}=..." for name in given.keywords)
        instead = f"{type(new).__name__}({options})"
        warn_deprecated("functools.partial of a subproblem", instead=instead, removal="0.2")
        return new
    if not isinstance(given, Subproblem):
        raise TypeError(f"subproblem must be a Subproblem such as dual_quadratic, not {given!r}")
    return given
