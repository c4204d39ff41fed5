r"""The convex-linear subproblems, which do not approximate the loss.

.. math::
    \min_d \sum_i \omega_i\, \ell_i(f_i - J_i d) + r(d) = - \min_a
    \sum_i \omega_i (\ell_i^*(a_i) - \langle f_i, a_i \rangle) + r^*(J^* (\omega a))

Dual variables are scaled by the weights, :math:`\alpha_i = \omega_i a_i`: each :math:`a_i` lies in
the domain of its :math:`\ell_i^*` whatever its weight, and steps are taken in the inner product
that the weights define.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp

from proxlin.algebra import Params, Scalar, add_scaled, dot, zeros_like
from proxlin.losses import Loss
from proxlin.objective import TermOutputs
from proxlin.proximity import Proximity
from proxlin.regularizers import Regularizer
from proxlin.solvers import (
    CompositeProblem,
    CompositeSolver,
    LinearSolver,
    ProximalGradient,
    SmoothSolver,
    Status,
)
from proxlin.subproblems.base import COMPOSITE, LINEAR, Subproblem, Subsolution
from proxlin.subproblems.composite import (
    PrimalProblem,
    convex_solution,
    solve_composite,
    solve_smooth,
)
from proxlin.subproblems.model import ConvexModel
from proxlin.subproblems.quadratic import DualQuadratic


@dataclasses.dataclass(frozen=True)
class PrimalConvex(Subproblem):
    r"""The convex-linear subproblem in the parameters (equation 3 of the paper).

    It needs a smooth loss. ``proxlin.primal_convex`` is a ready instance.
    """

    name: ClassVar[str | None] = "primal_convex"
    takes_metric: ClassVar[bool] = False

    def missing(self, loss: Loss) -> str | None:
        """A gradient."""
        if loss.differentiable:
            return None
        return f"a smooth loss, which {loss} is not; use subproblem=dual_convex with {COMPOSITE}"

    def solvers(self, loss: Loss, regularizer: Regularizer) -> dict[type, str]:
        """Composite ones; without a regularizer, smooth ones too."""
        smooth: dict[type, str] = {SmoothSolver: "LBFGS()"} if regularizer.is_zero else {}
        return {CompositeSolver: COMPOSITE, **smooth}

    def solve(self, model: ConvexModel, proximity: Proximity, solver: Any = None) -> Subsolution:
        """Solves it, by default with ``ProximalGradient()``."""
        outputs = model.outputs
        slope = model.output_grad(outputs)

        # The model without its linear part, which belongs to the gradient of the whole batch.
        def value(v: TermOutputs) -> Scalar:
            return model.value(add_scaled(outputs, -1, v)) + dot(slope, v)

        def grad(v: TermOutputs) -> TermOutputs:
            return add_scaled(slope, -1, model.output_grad(add_scaled(outputs, -1, v)))

        problem = PrimalProblem(
            model=model, proximity=proximity, smooth_value=value, smooth_grad=grad
        )
        if isinstance(solver, SmoothSolver):
            return solve_smooth(problem, solver)
        return solve_composite(problem, solver or ProximalGradient())


@dataclasses.dataclass(frozen=True)
class DualConvex(Subproblem):
    r"""The convex-linear subproblem in the dual (equation 7 of the paper).

    .. math:: \min_a \sum_i \omega_i (\ell_i^*(a_i) - \langle f_i, a_i \rangle)
        + r^*(J^* (\omega a))

    by accelerated proximal steps with the loss's ``prox_conjugate``, which keep :math:`a` in the
    domain of the conjugate: the simplex for the logistic, hinge and sparsemax losses. They start
    at the gradient of the loss, which is a (proximal) gradient step in the parameters. The
    regularizer enters exactly, through its proximity operator. For the squared loss the dual is a
    linear system, and linear solvers work too. It needs a finite gamma.

    ``proxlin.dual_convex`` is a ready instance.
    """

    name: ClassVar[str | None] = "dual_convex"
    takes_metric: ClassVar[bool] = False

    def missing(self, loss: Loss) -> str | None:
        """A conjugate."""
        if loss.has_conjugate:
            return None
        return (
            f"a conjugate, which {loss} does not have; pass one to "
            "FromFunction(fn, conjugate=...), or use subproblem=primal_convex"
        )

    def solvers(self, loss: Loss, regularizer: Regularizer) -> dict[type, str]:
        """Composite ones; for a quadratic loss without a regularizer, linear ones too."""
        linear: dict[type, str] = (
            {LinearSolver: LINEAR} if regularizer.is_zero and loss.quadratic else {}
        )
        return {CompositeSolver: COMPOSITE, **linear}

    def solve(self, model: ConvexModel, proximity: Proximity, solver: Any = None) -> Subsolution:
        """Solves it, by default with ``ProximalGradient()``."""
        if isinstance(solver, LinearSolver):
            return DualQuadratic().solve(model, proximity, solver)
        proximity, finite = proximity.with_finite_gamma(
            "the dual needs a finite gamma; use subproblem=primal_convex"
        )
        dual = _Dual(model, proximity)
        solution = (solver or ProximalGradient()).solve(dual.problem())
        image = add_scaled(model.grad, 1, solution.image)
        solved = convex_solution(
            model,
            proximity,
            proximity.conjugate_grad(image),
            None if proximity.smooth else image,
            (solution.upper, solution.lower),
            solution.cost.transposed,
        )
        cost = solved.cost.with_status(Status.BAD_VALUE, where=~finite)
        return solved._replace(cost=cost)


dual_convex = DualConvex()
primal_convex = PrimalConvex()


@dataclasses.dataclass(frozen=True)
class _Dual:
    r"""The dual problem in :math:`x = a - \nabla \ell(f)`, which starts at zero."""

    model: ConvexModel
    proximity: Proximity

    @functools.cached_property
    def first(self) -> TermOutputs:
        r""":math:`\nabla \ell(f)` of each example, without its weight."""
        return self._each(lambda loss, f, y: loss.grad(f, y), self.model.outputs)

    def problem(self) -> CompositeProblem:
        model = self.model
        return CompositeProblem(
            apply=lambda x: model.vjp(model.weigh(x)),
            adjoint=model.jvp,
            smooth_grad=self.direction,
            prox=self.prox,
            inner=lambda x, y: dot(model.weigh(x), y),
            image_inner=dot,
            start=zeros_like(self.first),
            start_image=zeros_like(model.grad),
            bounds=self.bounds,
        )

    def direction(self, image: Params) -> Params:
        return self.proximity.conjugate_grad(add_scaled(self.model.grad, 1, image))

    def prox(self, x: TermOutputs, t: Scalar) -> TermOutputs:
        point = add_scaled(add_scaled(self.first, 1, x), t, self.model.outputs)
        a = self._each(lambda loss, z, y: loss.prox_conjugate(z, y, t), point)
        return add_scaled(a, -1, self.first)

    def bounds(self, x: TermOutputs, image: Params) -> tuple[Scalar, Scalar]:
        model, d = self.model, self.direction(image)
        primal = model.value_along(d, model.jvp(d)) + self.proximity.value(d)
        a = add_scaled(self.first, 1, x)
        own = self._conjugate(a) - dot(model.weigh(a), model.outputs)
        return primal, -own - self.proximity.conjugate(add_scaled(model.grad, 1, image))

    def _conjugate(self, a: TermOutputs) -> Scalar:
        values = self._each(lambda loss, x, y: loss.conjugate(x, y), a)
        weighted = [
            jnp.sum(batch.weights * v) for batch, v in zip(self.model.batches, values, strict=True)
        ]
        return functools.reduce(jnp.add, weighted)

    def _each(self, fn: Callable[..., Any], x: TermOutputs) -> TermOutputs:
        model = self.model
        return tuple(
            fn(loss, own, batch.targets)
            for loss, own, batch in zip(model.objective.losses, x, model.batches, strict=True)
        )
