r"""Subproblems in the parameters that are not linear systems."""

from __future__ import annotations

from collections.abc import Callable

from proxlin.algebra import Params, Scalar, add_scaled, dot, zeros_like
from proxlin.objective import TermOutputs
from proxlin.proximity import Proximity
from proxlin.solvers import CompositeProblem, CompositeSolver, Cost, Status
from proxlin.subproblems.base import Subsolution
from proxlin.subproblems.model import ConvexModel


def primal_composite(
    model: ConvexModel,
    proximity: Proximity,
    solver: CompositeSolver,
    *,
    value: Callable[[TermOutputs], Scalar],
    grad: Callable[[TermOutputs], TermOutputs],
) -> Subsolution:
    r"""Minimizes :math:`\varphi(J d) - \langle \nabla h, d \rangle + r(d)` by proximal steps.

    Args:
        model: the convex model.
        proximity: :math:`r`.
        solver: a composite solver.
        value: :math:`\varphi`, the model of the loss without its linear part.
        grad: its gradient.

    Returns:
        The direction, its cost, and the duality gap.
    """

    def dual_image(image: TermOutputs) -> Params:
        return add_scaled(model.grad, -1, model.vjp(grad(image)))

    def bounds(d: Params, image: TermOutputs) -> tuple[Scalar, Scalar]:
        # By Fenchel-Young the conjugate of phi at its own gradient needs no formula.
        slope = grad(image)
        conjugate = dot(slope, image) - value(image)
        primal = value(image) - dot(model.grad, d) + proximity.value(d)
        return primal, -conjugate - proximity.conjugate(dual_image(image))

    solution = solver.solve(
        CompositeProblem(
            apply=model.jvp,
            adjoint=model.vjp,
            smooth_grad=grad,
            prox=lambda x, t: proximity.prox(add_scaled(x, t, model.grad), t),
            inner=dot,
            image_inner=dot,
            start=zeros_like(model.grad),
            start_image=zeros_like(model.outputs),
            bounds=bounds,
        )
    )
    # With a regularizer the direction is the end of the prox arc, so steps along it are sparse; at
    # the solution this changes nothing. The VJP is that of the bounds.
    image = None if proximity.smooth else dual_image(solution.image)
    d = solution.x if image is None else proximity.conjugate_grad(image)
    return convex_solution(
        model, proximity, d, image, (solution.upper, solution.lower), solution.cost
    )


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
