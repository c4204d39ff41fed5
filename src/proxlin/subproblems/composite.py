r"""Subproblems in the parameters that are not linear systems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp

from proxlin.algebra import Params, Scalar, add_scaled, dot, zeros_like
from proxlin.objective import TermOutputs
from proxlin.proximity import Proximity
from proxlin.solvers import CompositeProblem, CompositeSolver, Cost, SmoothSolver, Status
from proxlin.subproblems.base import Subsolution
from proxlin.subproblems.model import ConvexModel


@dataclasses.dataclass(frozen=True)
class PrimalProblem:
    r"""The subproblem :math:`\min_d \varphi(J d) - \langle \nabla h, d \rangle + r(d)`.

    Attributes:
        model: the convex model.
        proximity: :math:`r`.
        smooth_value: :math:`\varphi`, the model of the loss without its linear part.
        smooth_grad: its gradient.
    """

    model: ConvexModel
    proximity: Proximity
    smooth_value: Callable[[TermOutputs], Scalar]
    smooth_grad: Callable[[TermOutputs], TermOutputs]

    def value(self, d: Params, image: TermOutputs) -> Scalar:
        """The value at a direction, given its image :math:`J d`."""
        linear = dot(self.model.grad, d)
        return self.smooth_value(image) - linear + self.proximity.value(d)

    def dual_image(self, image: TermOutputs) -> Params:
        r""":math:`\nabla h - J^* \nabla \varphi`, the image of a dual variable; one VJP."""
        return add_scaled(self.model.grad, -1, self.model.vjp(self.smooth_grad(image)))

    def bounds(self, d: Params, image: TermOutputs) -> tuple[Scalar, Scalar]:
        """The value at a direction, and that of the dual, which is no higher than the minimum."""
        # By Fenchel-Young the conjugate of phi at its own gradient needs no formula.
        conjugate = dot(self.smooth_grad(image), image) - self.smooth_value(image)
        lower = -conjugate - self.proximity.conjugate(self.dual_image(image))
        return self.value(d, image), lower


def solve_composite(problem: PrimalProblem, solver: CompositeSolver) -> Subsolution:
    """Solves the subproblem by proximal steps.

    With a regularizer the direction is the end of the prox arc, so steps along it are sparse. At
    the solution this changes nothing; before it, one more JVP gives the value there.
    """
    model, proximity = problem.model, problem.proximity
    finite = jnp.asarray(True)
    if not proximity.smooth:
        proximity, finite = proximity.with_finite_gamma(
            "a regularizer needs a finite gamma; use a large one"
        )
        problem = dataclasses.replace(problem, proximity=proximity)
    solution = solver.solve(
        CompositeProblem(
            apply=model.jvp,
            adjoint=model.vjp,
            smooth_grad=problem.smooth_grad,
            prox=lambda x, t: proximity.prox(add_scaled(x, t, model.grad), t),
            inner=dot,
            image_inner=dot,
            start=zeros_like(model.grad),
            start_image=zeros_like(model.outputs),
            bounds=problem.bounds,
        )
    )
    if proximity.smooth:
        bounds = solution.upper, solution.lower
        return convex_solution(model, proximity, solution.x, None, bounds, solution.cost)
    image = problem.dual_image(solution.image)  # the VJP is that of the bounds
    d = proximity.conjugate_grad(image)
    bounds = problem.value(d, model.jvp(d)), solution.lower
    solved = convex_solution(model, proximity, d, image, bounds, solution.cost.plus(jvps=1))
    return solved._replace(cost=solved.cost.with_status(Status.BAD_VALUE, where=~finite))


def solve_smooth(problem: PrimalProblem, solver: SmoothSolver) -> Subsolution:
    """Solves the subproblem without a regularizer by a smooth solver."""
    model, proximity = problem.model, problem.proximity

    def value_and_grad(d: Params) -> tuple[Scalar, Params]:
        image = model.jvp(d)
        grad = add_scaled(proximity.grad(d), -1, problem.dual_image(image))
        return problem.value(d, image), grad

    solution = solver.minimize(value_and_grad, zeros_like(model.grad))
    bounds = problem.bounds(solution.x, model.jvp(solution.x))
    cost = solution.cost.plus(jvps=1, vjps=1)
    return convex_solution(model, proximity, solution.x, None, bounds, cost)


def convex_solution(
    model: ConvexModel,
    proximity: Proximity,
    d: Params,
    dual_image: Params | None,
    bounds: tuple[Scalar, Scalar],
    cost: Cost,
) -> Subsolution:
    """A solution with its gap; INEXACT if the model rises along ``d``."""
    primal, dual = bounds
    predicted = model.value(model.outputs) + proximity.penalty - primal
    return Subsolution(
        d=d,
        cost=cost.with_status(Status.INEXACT, where=predicted < 0),
        dual_image=dual_image,
        predicted=predicted,
        primal=primal,
        dual=dual,
    )
