r"""The quadratic subproblems: each loss replaced by its second-order expansion.

With the weighted gradients :math:`\omega_i g_i` and factors :math:`\sqrt{\omega_i} B_i` of the
Hessians in the place of :math:`g` and :math:`B`, and :math:`M = J^* B`, they are

.. math::
    (I / \gamma + M M^*)\, d &= J^* g  &&\text{(primal)} \\
    (I / \gamma + M^* M)\, u &= M^* J^* g, \quad d = \gamma (J^* g - M u) &&\text{(dual)}

so :math:`\alpha = g - B u` is the dual variable of the paper, and :math:`u = 0` is a gradient
step. With momentum the linear term :math:`J^* g` is that of the proximity term; with a metric
:math:`P` the identity of parameter space becomes :math:`P`, and :math:`M = P^{-1} J^* B` with
:math:`M^* = B^\top J` in its inner product.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

from proxlin.algebra import Image, Params, Vector, add_scaled, dot, plain, scale
from proxlin.losses import Loss
from proxlin.metrics import Space
from proxlin.objective import TermOutputs
from proxlin.proximity import Proximity
from proxlin.regularizers import Regularizer
from proxlin.solvers import (
    CG,
    CompositeSolver,
    LinearSolver,
    NormalSystem,
    ProximalGradient,
    Rows,
    Status,
)
from proxlin.subproblems.base import COMPOSITE, LINEAR, Subproblem, Subsolution
from proxlin.subproblems.composite import PrimalProblem, solve_composite
from proxlin.subproblems.model import ConvexModel, Factors


def _missing_hessian(loss: Loss) -> str | None:
    if loss.twice_differentiable:
        return None
    return (
        f"a Hessian factor, which {loss} does not have; use subproblem=dual_convex with {COMPOSITE}"
    )


@dataclasses.dataclass(frozen=True)
class PrimalQuadratic(Subproblem):
    r"""The quadratic subproblem in the parameters.

    .. math:: (I / \gamma + M M^*)\, d = \nabla h, \qquad M = J^* B

    :math:`\tau \ge 1` steps of :class:`proxlin.CG` cost :math:`\tau - 1` VJPs and :math:`\tau`
    JVPs, and the predicted decrease comes for free. ``gamma`` may be infinite: the generalized
    Gauss-Newton step, which for the logistic loss is a natural-gradient step. With a regularizer
    the problem is no longer linear: accelerated proximal gradient solves it, for finite gammas.

    ``proxlin.primal_quadratic`` is a ready instance.
    """

    name: ClassVar[str | None] = "primal_quadratic"

    def missing(self, loss: Loss) -> str | None:
        """A Hessian factor."""
        return _missing_hessian(loss)

    def solvers(self, loss: Loss, regularizer: Regularizer) -> dict[type, str]:
        """Linear ones; composite ones with a regularizer."""
        return {LinearSolver: LINEAR} if regularizer.is_zero else {CompositeSolver: COMPOSITE}

    def solve(self, model: ConvexModel, proximity: Proximity, solver: Any = None) -> Subsolution:
        """Solves it, by default with ``CG(2)``, or with a regularizer ``ProximalGradient()``."""
        factors = model.factors()
        if not proximity.smooth:
            start = model.value(model.outputs)
            problem = PrimalProblem(
                model=model,
                proximity=proximity,
                smooth_value=lambda v: start + 0.5 * dot(factors.rmv(v), factors.rmv(v)),
                smooth_grad=lambda v: factors.mv(factors.rmv(v)),
            )
            return solve_composite(problem, solver or ProximalGradient())
        solver = solver or CG()

        space = proximity.space

        def forward(d: Vector) -> Any:
            change = model.jvp(space.outer(d))
            root = factors.rmv(change)
            # A solver that only combines vectors also combines the changes of the outputs.
            return Image(root, change) if solver.takes_metric else root

        system = NormalSystem(
            forward=forward,
            adjoint=lambda v: space.inner(model.vjp(factors.mv(plain(v)))),
            shift=proximity.strength,
            rhs=space.inner(proximity.linear_term(model.grad)),
            preimage=_preimage(model, proximity, factors),
            rows=lambda: _rows(model.rows, space, of_x=False),
            whole=lambda: _rows(model.whole_rows, space, of_x=False),
        )
        solution, again = solver.solve_and_keep(system)
        d = space.direction(solution.x)
        predicted = change = root = None
        if solution.misfit is not None:
            root = scale(-1, plain(solution.misfit))
            if isinstance(solution.misfit, Image):
                change = scale(-1, solution.misfit.change)
            curvature = dot(root, root)
            curvature += model.decay_along(plain(d))
            predicted = proximity.predicted(d, model.grad, curvature)
        return Subsolution(
            d=d,
            cost=solution.cost,
            predicted=predicted,
            change=change,
            root=root,
            correction=lambda v: space.direction(again(v)),
        )


def _gradient(grad: Params) -> Params:
    """The gradient itself: the unbiased anchor."""
    return grad


@dataclasses.dataclass(frozen=True)
class DualQuadratic(Subproblem):
    r"""The quadratic subproblem in the dual, with :math:`m k` variables instead of :math:`p`.

    .. math:: (I / \gamma + M^* M)\, u = M^* \nabla h, \qquad d = \gamma (\nabla h - M u)

    At convergence this is the equality-constrained dual of the paper, preconditioned by
    :math:`D^{1/2}` for the logistic loss; :math:`\tau` steps of :class:`proxlin.CG` cost
    :math:`\tau` VJPs and :math:`\tau` JVPs, and give a descent direction for any :math:`\tau`.
    It needs a finite gamma.

    With a regularizer this is Algorithm 3: the conjugate of :math:`r` is bounded by a quadratic
    around an anchor :math:`u^t`,

    .. math:: (\lambda I + M^* M)\, u = M^* (\nabla h + \lambda \nabla r^*(u^t) - u^t), \qquad
        d = \nabla r^*(\nabla h - M u)

    with :math:`\lambda` the strength of :math:`r`; without inner steps, :math:`d` is the proximal
    gradient step.

    ``proxlin.dual_quadratic`` is a ready instance.

    Attributes:
        anchor: the gradient -> :math:`u^t`. The gradient itself is unbiased. With zero, as in the
            paper, the minimizer of the regularized objective is not a fixed point.
        passes: how often to solve; each pass after the first takes the result of the last one as
            its anchor, which approaches the exact subproblem.
    """

    anchor: Callable[[Params], Params] = _gradient
    passes: int = 1
    name: ClassVar[str | None] = "dual_quadratic"

    def __post_init__(self) -> None:
        if not callable(self.anchor):
            raise TypeError(f"anchor must be a function of the gradient, not {self.anchor!r}")
        if not isinstance(self.passes, int) or self.passes < 1:
            raise ValueError(f"passes={self.passes!r}: give a positive integer")

    def missing(self, loss: Loss) -> str | None:
        """A Hessian factor."""
        return _missing_hessian(loss)

    def solvers(self, loss: Loss, regularizer: Regularizer) -> dict[type, str]:
        """Linear ones."""
        return {LinearSolver: LINEAR}

    def solve(self, model: ConvexModel, proximity: Proximity, solver: Any = None) -> Subsolution:
        """Solves it, by default with ``CG(2)``."""
        proximity, finite = proximity.with_finite_gamma(
            "the dual needs a finite gamma; use subproblem=primal_quadratic"
        )
        solver = solver or CG()
        fn = self._smooth if proximity.smooth else self._regularized
        solved = fn(model, proximity, solver)
        cost = solved.cost.with_status(Status.BAD_VALUE, where=~finite)
        return solved._replace(cost=cost)

    def _smooth(
        self, model: ConvexModel, proximity: Proximity, solver: LinearSolver
    ) -> Subsolution:
        factors, space = model.factors(), proximity.space
        data = space.inner(proximity.linear_term(model.grad))
        system = dataclasses.replace(
            _system(model, proximity, factors, data),
            preimage=_preimage(model, proximity, factors),
        )
        solution, again = solver.solve_and_keep(system)
        direction = lambda misfit: proximity.conjugate_grad(space.direction(misfit))
        return Subsolution(
            d=direction(solution.misfit),
            cost=solution.cost.transposed,
            correction=lambda v: direction(again(v)),
        )

    def _regularized(
        self, model: ConvexModel, proximity: Proximity, solver: LinearSolver
    ) -> Subsolution:
        factors, around = model.factors(), self.anchor(model.grad)
        costs = []
        for _ in range(self.passes):
            data = scale(proximity.strength, proximity.conjugate_grad(around))
            data = add_scaled(data, 1, add_scaled(model.grad, -1, around))
            solution = solver.solve(_system(model, proximity, factors, data))
            # grad - M u from the misfit data - M u
            around = add_scaled(solution.misfit, 1, add_scaled(model.grad, -1, data))
            costs.append(solution.cost.transposed)
        cost = functools.reduce(lambda before, own: own.after(before), costs)
        return Subsolution(d=proximity.conjugate_grad(around), cost=cost, dual_image=around)


dual_quadratic = DualQuadratic()
primal_quadratic = PrimalQuadratic()


def _system(model: ConvexModel, proximity: Proximity, factors: Factors, data: Any) -> NormalSystem:
    """The dual system, whose right-hand side is M* of the data."""
    space = proximity.space
    return NormalSystem(
        forward=lambda u: space.inner(model.vjp(factors.mv(u))),
        adjoint=lambda d: factors.rmv(model.jvp(space.outer(d))),
        shift=proximity.strength,
        data=data,
        rows=lambda: _rows(model.rows, space, of_x=True),
        whole=lambda: _rows(model.whole_rows, space, of_x=True),
    )


def _preimage(model: ConvexModel, proximity: Proximity, factors: Factors) -> TermOutputs | None:
    """B v = g helps only if the linear term is the gradient of these examples."""
    return factors.preimage if model.whole and not proximity.has_momentum else None


def _rows(rows: Rows, space: Space, *, of_x: bool) -> Rows:
    """Dense rows as the solver's vectors see them."""
    divided = lambda term: term._replace(
        block=lambda i: space.divide_rows(term.block(i)),
        columns=lambda i: space.divide_rows(term.transposed(i).T).T,
    )
    return rows._replace(
        terms=tuple(map(divided, rows.terms)),
        of_x=of_x,
        dense=lambda: space.divide_rows(rows.matrix()),
    )
