r"""Subproblems in the parameters whose proximity term is not smooth, or whose loss is kept."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from proxlin.linearize import Outputs, Params
from proxlin.regularizers import Zero
from proxlin.solvers import CompositeProblem, CompositeSolver, Status
from proxlin.solvers.system import add_scaled, count, dot
from proxlin.subproblems.plin import PartialLinearization, Proximity, Scalar, Subsolution


def primal_composite(
    plin: PartialLinearization,
    gamma: Scalar,
    solver: CompositeSolver,
    *,
    value: Callable[[Outputs], Scalar],
    grad: Callable[[Outputs], Outputs],
) -> Subsolution:
    r"""Minimises :math:`\varphi(J d) - \langle \nabla h, d \rangle + r(d)` by proximal steps.

    Args:
        plin: the convex model.
        gamma: the regularisation.
        solver: a composite solver.
        value: :math:`\varphi`, the model of the loss without its linear part.
        grad: its gradient.

    Returns:
        The direction, what it cost, and the duality gap.
    """
    proximity = Proximity.of(plin, gamma)
    lin = plin.linearization

    def pull_at(image: Outputs) -> Params:
        return add_scaled(plin.grad, -1, lin.vjp(grad(image)))

    def bounds(d: Params, image: Outputs) -> tuple[Scalar, Scalar]:
        # By Fenchel-Young the conjugate of phi at its own gradient needs no formula.
        slope = grad(image)
        conjugate = dot(slope, image) - value(image)
        primal = value(image) - dot(plin.grad, d) + proximity.value(d)
        return primal, -conjugate - proximity.conjugate(pull_at(image))

    zero = jax.tree.map(jnp.zeros_like, plin.grad)
    solution = solver.solve(
        CompositeProblem(
            apply=lin.jvp,
            adjoint=lin.vjp,
            smooth_grad=grad,
            prox=lambda x, t: proximity.prox(add_scaled(x, t, plin.grad), t),
            inner=dot,
            image_inner=dot,
            start=zero,
            start_image=jax.tree.map(jnp.zeros_like, lin.outputs),
            bounds=bounds,
        )
    )
    smooth = isinstance(plin.regularizer, Zero)
    # With a regularizer the direction is the end of the prox arc, so that steps along it are
    # sparse; at the solution this changes nothing. The VJP is the one of the bounds.
    pull = None if smooth else pull_at(solution.image)
    predicted = model_start(plin) - solution.upper
    return Subsolution(
        d=solution.x if smooth else proximity.conjugate_grad(pull),
        pull=pull,
        predicted=predicted,
        primal=solution.upper,
        dual=solution.lower,
        steps=solution.steps,
        residual=solution.residual,
        jvps=solution.applies,
        vjps=solution.adjoints,
        status=convex_status(solution.solved, predicted),
    )


def convex_status(solved: Bool[Array, ""], predicted: Scalar) -> Int[Array, ""]:
    """OK, or INEXACT where what was asked for was not reached, or the model rises along ``d``."""
    return jnp.where(solved & ~(predicted < 0), count(Status.OK), count(Status.INEXACT))


def model_start(plin: PartialLinearization) -> Scalar:
    """The subproblem at d = 0."""
    value = plin.value(plin.linearization.outputs)
    if isinstance(plin.regularizer, Zero):
        return value
    return value + plin.regularizer.value(plin.params)
