r"""The convex-linear subproblems: the loss kept as it is.

.. math::
    \min_d \sum_i \omega_i\, \ell_i(f_i - J_i d) + r(d) = - \min_a
    \sum_i \omega_i (\ell_i^*(a_i) - \langle f_i, a_i \rangle) + r^*(J^* (\omega a))

Dual variables are scaled by the weights: :math:`\alpha_i = \omega_i a_i`, so that each :math:`a_i`
lies in the domain of its :math:`\ell_i^*` whatever its weight, and steps are taken in the inner
product that the weights define.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from proxlin.checks import require
from proxlin.linearize import Outputs, Params
from proxlin.losses import each
from proxlin.regularizers import Zero
from proxlin.solvers import (
    CompositeProblem,
    LinearSolver,
    ProximalGradient,
    SmoothSolver,
    Status,
)
from proxlin.solvers.system import add_scaled, count, dot
from proxlin.subproblems.composite import convex_status, model_start, primal_composite
from proxlin.subproblems.plin import PartialLinearization, Proximity, Scalar, Subsolution
from proxlin.subproblems.quadratic import dual_quadratic


def primal_convex(plin: PartialLinearization, gamma: Scalar, solver: Any = None) -> Subsolution:
    r"""The convex-linear subproblem in the parameters (equation 3 of the paper).

    Args:
        plin: the convex model.
        gamma: the regularisation.
        solver: ``ProximalGradient()`` if None; ``LBFGS()`` where there is no regularizer.

    Returns:
        The direction, what it cost, and the duality gap.
    """
    outputs = plin.linearization.outputs
    pull = plin.pull(outputs)

    # The model without its linear part, which belongs to the gradient of the whole batch.
    def value(v: Outputs) -> Scalar:
        return plin.value(add_scaled(outputs, -1, v)) + dot(pull, v)

    def grad(v: Outputs) -> Outputs:
        return add_scaled(pull, -1, plin.pull(add_scaled(outputs, -1, v)))

    if isinstance(solver, SmoothSolver):
        return _primal_smooth(plin, gamma, solver, value, grad)
    return primal_composite(plin, gamma, solver or ProximalGradient(), value=value, grad=grad)


def dual_convex(plin: PartialLinearization, gamma: Scalar, solver: Any = None) -> Subsolution:
    r"""The convex-linear subproblem in the dual (equation 7 of the paper).

    .. math:: \min_a \sum_i \omega_i (\ell_i^*(a_i) - \langle f_i, a_i \rangle)
        + r^*(J^* (\omega a))

    by accelerated proximal steps with the loss's ``prox_conjugate``, which keep :math:`a` in the
    domain of the conjugate: the simplex for the logistic, hinge and sparsemax losses. They start
    at the gradient of the loss, which is a (proximal) gradient step in the parameters. The
    regularizer enters exactly, through its proximity operator. For the squared loss the dual is a
    linear system, and linear solvers serve it too.

    Args:
        plin: the convex model.
        gamma: the regularisation, finite.
        solver: ``ProximalGradient()`` if None.

    Returns:
        The direction, what it cost, and the duality gap.
    """
    if isinstance(solver, LinearSolver):
        return dual_quadratic(plin, gamma, solver)
    finite = require(
        jnp.isfinite,
        lambda g: f"gamma={g}: the dual needs a finite gamma; use subproblem=primal_convex",
        gamma,
    )
    # Under jit the status says so; a finite number keeps it from being reported as non-finite.
    gamma = jnp.where(finite, gamma, jnp.ones_like(gamma))
    proximity = Proximity.of(plin, gamma)
    lin, losses, targets = plin.linearization, plin.loss, plin.targets
    first = each(lambda loss, f, y: loss.grad(f, y), losses, lin.outputs, targets)

    def conjugate(a: Outputs) -> Scalar:
        values = each(lambda loss, x, y: loss.conjugate(x, y), losses, a, targets)
        return jax.tree.reduce(
            jnp.add, jax.tree.map(lambda w, v: jnp.sum(w * v), plin.weights, values)
        )

    def prox(x: Outputs, t: Scalar) -> Outputs:
        point = add_scaled(add_scaled(first, 1, x), t, lin.outputs)
        a = each(lambda loss, z, y: loss.prox_conjugate(z, y, t), losses, point, targets)
        return add_scaled(a, -1, first)

    def bounds(x: Outputs, image: Params) -> tuple[Scalar, Scalar]:
        d = proximity.conjugate_grad(add_scaled(plin.grad, 1, image))
        primal = _model_value(plin, d, lin.jvp(d)) + proximity.value(d)
        a = add_scaled(first, 1, x)
        own = conjugate(a) - dot(plin.weigh(a), lin.outputs)
        return primal, -own - proximity.conjugate(add_scaled(plin.grad, 1, image))

    zero = jax.tree.map(jnp.zeros_like, plin.grad)
    solution = (solver or ProximalGradient()).solve(
        CompositeProblem(
            apply=lambda x: lin.vjp(plin.weigh(x)),
            adjoint=lin.jvp,
            smooth_grad=lambda v: proximity.conjugate_grad(add_scaled(plin.grad, 1, v)),
            prox=prox,
            inner=lambda x, y: dot(plin.weigh(x), y),
            image_inner=dot,
            start=jax.tree.map(jnp.zeros_like, first),
            start_image=zero,
            bounds=bounds,
        )
    )
    pull = add_scaled(plin.grad, 1, solution.image)
    d = proximity.conjugate_grad(pull)
    predicted = model_start(plin) - solution.upper
    status = convex_status(solution.solved, predicted)
    return Subsolution(
        d=d,
        pull=None if isinstance(plin.regularizer, Zero) else pull,
        predicted=predicted,
        primal=solution.upper,
        dual=solution.lower,
        steps=solution.steps,
        residual=solution.residual,
        jvps=solution.adjoints,
        vjps=solution.applies,
        status=jnp.where(finite, status, count(Status.BAD_VALUE)),
    )


def _primal_smooth(
    plin: PartialLinearization,
    gamma: Scalar,
    solver: SmoothSolver,
    value: Callable[[Outputs], Scalar],
    grad: Callable[[Outputs], Outputs],
) -> Subsolution:
    lin = plin.linearization

    def value_and_grad(d: Params) -> tuple[Scalar, Params]:
        image = lin.jvp(d)
        total = value(image) - dot(plin.grad, d) + dot(d, d) / (2 * gamma)
        slope = add_scaled(lin.vjp(grad(image)), -1, plin.grad)
        return total, add_scaled(slope, 1 / gamma, d)

    solution = solver.minimise(value_and_grad, jax.tree.map(jnp.zeros_like, plin.grad))
    d = solution.x
    image = lin.jvp(d)
    pull = add_scaled(plin.grad, -1, lin.vjp(grad(image)))
    primal = value(image) - dot(plin.grad, d) + dot(d, d) / (2 * gamma)
    conjugate = dot(grad(image), image) - value(image)
    predicted = model_start(plin) - primal
    return Subsolution(
        d=d,
        pull=None,
        predicted=predicted,
        primal=primal,
        dual=-conjugate - 0.5 * gamma * dot(pull, pull),
        steps=solution.steps,
        residual=solution.residual,
        jvps=solution.evaluations + 1,
        vjps=solution.evaluations + 1,
        status=convex_status(solution.solved, predicted),
    )


def _model_value(plin: PartialLinearization, d: Params, image: Outputs) -> Scalar:
    """The convex model, its gradient at zero corrected to that of the whole batch."""
    value = plin.value(add_scaled(plin.linearization.outputs, -1, image))
    if plin.same_examples:
        return value
    own = dot(plin.pull(plin.linearization.outputs), image)
    return value + own - dot(plin.grad, d)
