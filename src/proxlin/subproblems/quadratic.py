r"""The quadratic subproblems: each loss replaced by its second-order expansion.

With the weighted gradients :math:`\omega_i g_i` and factors :math:`\sqrt{\omega_i} B_i` of the
Hessians in the place of :math:`g` and :math:`B`, and :math:`M = J^* B`, they are

.. math::
    (I / \gamma + M M^*)\, d &= J^* g  &&\text{(primal)} \\
    (I / \gamma + M^* M)\, u &= M^* J^* g, \quad d = \gamma (J^* g - M u) &&\text{(dual)}

so that :math:`\alpha = g - B u` is the dual variable of the paper, and :math:`u = 0` is a
gradient step. With momentum the linear term :math:`J^* g` becomes :math:`J^* g +
\tfrac{\mu}{\gamma} P_{\text{last}} d_{\text{last}}`; with a metric :math:`P` the identity of
parameter space becomes :math:`P`, and :math:`M = P^{-1} J^* B` with :math:`M^* = B^\top J` in its
inner product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from proxlin.checks import require
from proxlin.linearize import Outputs, Params
from proxlin.losses import Factor, Loss, each
from proxlin.regularizers import Zero
from proxlin.solvers import (
    CG,
    LinearSolver,
    NormalSystem,
    ProximalGradient,
    Rows,
    Status,
    TermRows,
)
from proxlin.solvers.system import add_scaled, count, dot, scale
from proxlin.subproblems.composite import primal_composite
from proxlin.subproblems.plin import (
    PartialLinearization,
    Proximity,
    Scalar,
    Subsolution,
    joined,
    vector_of,
)


def primal_quadratic(plin: PartialLinearization, gamma: Scalar, solver: Any = None) -> Subsolution:
    r"""The quadratic subproblem in the parameters.

    .. math:: (I / \gamma + M M^*)\, d = \nabla h, \qquad M = J^* B

    :math:`\tau \ge 1` steps of :class:`proxlin.CG` cost :math:`\tau - 1` VJPs and :math:`\tau`
    JVPs, and the predicted decrease comes for free. ``gamma`` may be infinite: the generalized
    Gauss-Newton step, which for the logistic loss is a natural-gradient step. With a regularizer
    the problem is not linear any more and accelerated proximal gradient solves it.

    Args:
        plin: the convex model.
        gamma: the regularisation.
        solver: a linear solver, ``CG(2)`` if None; with a regularizer ``ProximalGradient()``.

    Returns:
        The direction and what it cost.

    Raises:
        TypeError: for a solver that cannot serve, or a loss without Hessian.
    """
    factors = plin.factors()
    factor = joined(factors)
    if not isinstance(plin.regularizer, Zero):
        start = plin.value(plin.linearization.outputs)
        return primal_composite(
            plin,
            gamma,
            solver or ProximalGradient(),
            value=lambda v: start + 0.5 * dot(factor.rmv(v), factor.rmv(v)),
            grad=lambda v: factor.mv(factor.rmv(v)),
        )
    system = NormalSystem(
        forward=lambda d: factor.rmv(plin.linearization.jvp(vector_of(d))),
        adjoint=lambda v: plin.lift(plin.linearization.vjp(factor.mv(v))),
        shift=1 / gamma,
        rhs=plin.lift(plin.linear_term),
        rows=lambda: _rows(plin, factors, of_x=False),
    )
    solution = (solver or CG()).solve(system)
    curvature = dot(solution.misfit, solution.misfit)
    unknown = jnp.full_like(gamma, jnp.nan)
    return Subsolution(
        d=solution.x,
        pull=None,
        predicted=plin.predicted(solution.x, gamma, curvature),
        primal=unknown,
        dual=unknown,
        steps=solution.steps,
        residual=solution.residual,
        jvps=solution.forwards,
        vjps=solution.adjoints,
        status=solution.status,
    )


def dual_quadratic(
    plin: PartialLinearization,
    gamma: Scalar,
    solver: LinearSolver | None = None,
    *,
    anchor: Callable[[Params], Params] = lambda grad: grad,
    passes: int = 1,
) -> Subsolution:
    r"""The quadratic subproblem in the dual, with :math:`m k` variables instead of :math:`p`.

    .. math:: (I / \gamma + M^* M)\, u = M^* \nabla h, \qquad d = \gamma (\nabla h - M u)

    At convergence this is the equality-constrained dual of the paper, preconditioned by
    :math:`D^{1/2}` for the logistic loss; :math:`\tau` steps of :class:`proxlin.CG` cost
    :math:`\tau` VJPs and :math:`\tau` JVPs, and none of them can lose the descent property.

    With a regularizer this is Algorithm 3: the conjugate of :math:`r` is bounded by a quadratic
    around an anchor :math:`u^t`,

    .. math:: (\mu I + M^* M)\, u = M^* (\nabla h + \mu \nabla r^*(u^t) - u^t), \qquad
        d = \nabla r^*(\nabla h - M u)

    and, without inner steps, :math:`d` is the proximal gradient step.

    Args:
        plin: the convex model.
        gamma: the regularisation, finite.
        solver: a linear solver, ``CG(2)`` if None.
        anchor: the gradient -> :math:`u^t`. The gradient itself is right; zero, as the paper has
            it, is biased: the minimiser of the regularized objective is then not a fixed point.
            Choose it by ``functools.partial(dual_quadratic, anchor=...)``.
        passes: how often to solve; each pass after the first puts the anchor where the last one
            ended, which approaches the exact subproblem.

    Returns:
        The direction and what it cost.

    Raises:
        TypeError: for a solver that does not solve linear systems, or a loss without Hessian.
        ValueError: for infinite gamma, where the dual is not defined.
    """
    finite = require(
        jnp.isfinite,
        lambda g: f"gamma={g}: the dual needs a finite gamma; use subproblem=primal_quadratic",
        gamma,
    )
    # Under jit the status says so; a finite number keeps it from being reported as non-finite.
    gamma = jnp.where(finite, gamma, jnp.ones_like(gamma))
    proximity = Proximity.of(plin, gamma)
    smooth = isinstance(plin.regularizer, Zero)
    solver = solver or CG()
    factors = plin.factors()
    factor = joined(factors)
    around = anchor(plin.grad)
    # B v = g says something of the linear term only where that is the gradient of these examples.
    known = plin.same_examples and plin.source is None
    jvps = vjps = count(0)
    for _ in range(1 if smooth else passes):
        source = plin.lift(plin.linear_term)
        if not smooth:
            source = scale(proximity.strength, proximity.conjugate_grad(around))
            source = add_scaled(source, 1, add_scaled(plin.grad, -1, around))
        solution = solver.solve(
            NormalSystem(
                forward=lambda u: plin.lift(plin.linearization.vjp(factor.mv(u))),
                adjoint=lambda d: factor.rmv(plin.linearization.jvp(vector_of(d))),
                shift=proximity.strength,
                source=source,
                preimage=factor.preimage if known and smooth else None,
                rows=lambda: _rows(plin, factors, of_x=True),
            )
        )
        if not smooth:  # grad - M u from the misfit source - M u
            around = add_scaled(solution.misfit, 1, add_scaled(plin.grad, -1, source))
        jvps, vjps = jvps + solution.adjoints, vjps + solution.forwards
    unknown = jnp.full_like(gamma, jnp.nan)
    return Subsolution(
        d=scale(gamma, solution.misfit) if smooth else proximity.conjugate_grad(around),
        pull=None if smooth else around,
        predicted=None,
        primal=unknown,
        dual=unknown,
        steps=solution.steps,
        residual=solution.residual,
        jvps=jvps,
        vjps=vjps,
        status=jnp.where(finite, solution.status, count(Status.BAD_VALUE)),
    )


def _rows(plin: PartialLinearization, factors: PyTree[Factor], *, of_x: bool) -> Rows:
    """Rows of B^T J for a direct solver, with the very factor of its products with M."""
    lin = plin.linearization

    def one(_: Loss, outputs: Outputs, jacobian: Any, factor: Factor) -> TermRows:
        # The columns of B, and J^T of them. Of all examples at once, because the factor that
        # eigh gives is not unique; and not B^T of the rows of J, which XLA:CPU of jaxlib 0.10.2
        # miscompiles (a vmap over the last axis of v - sum(s * v), in float32 under jit).
        column = lambda e: factor.mv(jnp.broadcast_to(e, outputs.shape))
        b = jax.vmap(column, out_axes=-1)(jnp.eye(outputs.shape[-1], dtype=outputs.dtype))

        def rows(indices: Int[Array, " b"]) -> Float[Array, "rows p"]:
            rows = jacobian(indices, b[indices])
            return rows.reshape(-1, rows.shape[-1])

        return TermRows(rows, outputs.shape[0], outputs[0].size)

    terms = each(one, plin.loss, lin.outputs, lin.rows, factors)
    return Rows(
        terms=(terms,) if isinstance(terms, TermRows) else terms,
        of_x=of_x,
        tolerance=lin.rounding**0.5,
    )
