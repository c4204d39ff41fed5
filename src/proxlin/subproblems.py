r"""The subproblems of a prox-linear step, primal and dual; gamma and weights live here only.

Around parameters :math:`w` with outputs :math:`f`, and with weights :math:`\omega` that sum to one
(:math:`1/m` each, if all examples count the same), a prox-linear direction minimises

.. math:: \sum_i \omega_i\, \ell_i(f_i - J_i d) + \tfrac{1}{2 \gamma} \|d\|^2 ,

and its quadratic variant the same with each loss replaced by its second-order expansion. With the
weighted gradients :math:`\omega_i g_i` and factors :math:`\sqrt{\omega_i} B_i` of the Hessians in
the place of :math:`g` and :math:`B`, and :math:`M = J^* B`, the quadratic variant is

.. math::
    (I / \gamma + M M^*)\, d &= J^* g  &&\text{(primal)} \\
    (I / \gamma + M^* M)\, u &= M^* J^* g, \quad d = \gamma (J^* g - M u) &&\text{(dual)}

so that :math:`\alpha = g - B u` is the dual variable of the paper, and :math:`u = 0` is a
gradient step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from proxlin.checks import require
from proxlin.linearize import Linearization, Outputs, Params
from proxlin.losses import Factor, Loss
from proxlin.solvers import LinearSolver, NormalSystem, Rows, Solution, Status
from proxlin.solvers.system import count, dot, scale

Scalar = Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class PartialLinearization:
    r"""The convex model of the objective: its loss, on the linearised network.

    .. math:: \mathrm{plin}(d) = \sum_i \omega_i\, \ell_i(f_i - J_i d)

    Attributes:
        linearization: the network at the parameters.
        loss: the convex loss.
        targets: the targets.
        weights: :math:`\omega`, one for each example, of sum one.
        grad: the gradient of the objective.
        same_examples: whether the gradient is that of these examples, and not of a larger batch
            of which these are the ones that curvature is taken from.
    """

    linearization: Linearization
    loss: Loss
    targets: PyTree
    weights: Float[Array, "*n"]
    grad: Params
    same_examples: bool = True

    def factor(self, examples: Any = slice(None)) -> Factor:
        r"""The factor :math:`\sqrt{\omega} B` of the Hessian at the outputs, of some examples."""
        outputs = self.linearization.outputs[examples]
        targets = jax.tree.map(lambda y: y[examples], self.targets)
        mv, rmv, preimage = self.loss.hessian_factor(outputs, targets)
        root = jnp.sqrt(self.weights[examples])[..., None]
        return Factor(
            mv=lambda u: root * mv(u),
            rmv=lambda v: rmv(root * v),
            preimage=None if preimage is None else root * preimage,
        )

    def curvature(self, d: Params) -> Scalar:
        r""":math:`\langle d, G d \rangle` for the Gauss-Newton matrix :math:`G`; one JVP."""
        root = self.factor().rmv(self.linearization.jvp(d))
        return dot(root, root)


class Subsolution(NamedTuple):
    r"""An approximate solution of a subproblem.

    Attributes:
        d: the direction.
        curvature: :math:`\langle d, G d \rangle` where it came for free, else None.
        steps: inner steps.
        residual: the relative residual before the last one.
        jvps: how many JVPs were spent.
        vjps: how many VJPs were spent.
        status: a :class:`proxlin.Status`.
    """

    d: Params
    curvature: Scalar | None
    steps: Int[Array, ""]
    residual: Scalar
    jvps: Int[Array, ""]
    vjps: Int[Array, ""]
    status: Int[Array, ""]


Subproblem = Callable[[PartialLinearization, Scalar, Any], Subsolution]


def primal_quadratic(
    plin: PartialLinearization, gamma: Scalar, solver: LinearSolver
) -> Subsolution:
    r"""The quadratic subproblem in the parameters.

    .. math:: (I / \gamma + M M^*)\, d = \nabla h, \qquad M = J^* B

    :math:`\tau \ge 1` steps of :class:`proxlin.CG` cost :math:`\tau - 1` VJPs and :math:`\tau`
    JVPs, and the curvature of the direction comes for free. ``gamma`` may be infinite: the
    generalized Gauss-Newton step, which for the logistic loss is a natural-gradient step.

    Args:
        plin: the convex model.
        gamma: the regularisation.
        solver: a linear solver.

    Returns:
        The direction and what it cost.

    Raises:
        TypeError: for a solver that does not solve linear systems, or a loss without Hessian.
    """
    _check_solver("primal_quadratic", solver)
    factor = plin.factor()
    system = NormalSystem(
        forward=lambda d: factor.rmv(plin.linearization.jvp(d)),
        adjoint=lambda v: plin.linearization.vjp(factor.mv(v)),
        shift=1 / gamma,
        rhs=plin.grad,
        rows=_rows(plin, of_x=False),
    )
    solution = solver.solve(system)
    return Subsolution(
        d=solution.x,
        curvature=dot(solution.misfit, solution.misfit),
        steps=solution.steps,
        residual=solution.residual,
        jvps=solution.forwards,
        vjps=solution.adjoints,
        status=solution.status,
    )


def dual_quadratic(plin: PartialLinearization, gamma: Scalar, solver: LinearSolver) -> Subsolution:
    r"""The quadratic subproblem in the dual, with :math:`m k` variables instead of :math:`p`.

    .. math:: (I / \gamma + M^* M)\, u = M^* \nabla h, \qquad d = \gamma (\nabla h - M u)

    At convergence this is the equality-constrained dual of the paper, preconditioned by
    :math:`D^{1/2}` for the logistic loss; :math:`\tau` steps of :class:`proxlin.CG` cost
    :math:`\tau` VJPs and :math:`\tau` JVPs, and none of them can lose the descent property.

    Args:
        plin: the convex model.
        gamma: the regularisation, finite.
        solver: a linear solver.

    Returns:
        The direction and what it cost.

    Raises:
        TypeError: for a solver that does not solve linear systems, or a loss without Hessian.
        ValueError: for infinite gamma, where the dual is not defined.
    """
    _check_solver("dual_quadratic", solver)
    finite = require(
        jnp.isfinite,
        lambda g: f"gamma={g}: the dual needs a finite gamma; use subproblem=primal_quadratic",
        gamma,
    )
    # Under jit the status says so; a finite number keeps it from being reported as non-finite.
    gamma = jnp.where(finite, gamma, jnp.ones_like(gamma))
    factor = plin.factor()
    system = NormalSystem(
        forward=lambda u: plin.linearization.vjp(factor.mv(u)),
        adjoint=lambda d: factor.rmv(plin.linearization.jvp(d)),
        shift=1 / gamma,
        source=plin.grad,
        preimage=factor.preimage if plin.same_examples else None,
        rows=_rows(plin, of_x=True),
    )
    solution: Solution = solver.solve(system)
    return Subsolution(
        d=scale(gamma, solution.misfit),
        curvature=None,
        steps=solution.steps,
        residual=solution.residual,
        jvps=solution.adjoints,
        vjps=solution.forwards,
        status=jnp.where(finite, solution.status, count(Status.BAD_VALUE)),
    )


def _check_solver(name: str, solver: Any) -> None:
    if not isinstance(solver, LinearSolver):
        raise TypeError(
            f"{name} is a linear system and {solver!r} does not solve those; use CG(max_steps) or "
            "Cholesky()"
        )


def _rows(plin: PartialLinearization, *, of_x: bool) -> Rows:
    """Rows of B^T J for a direct solver."""
    outputs: Outputs = plin.linearization.outputs

    def block(indices: Int[Array, " b"]) -> Float[Array, "rows p"]:
        jacobian = plin.linearization.rows(indices)
        rmv = plin.factor(indices).rmv
        rows = jax.vmap(rmv, in_axes=-1, out_axes=-1)(jacobian)
        return rows.reshape(-1, rows.shape[-1])

    return Rows(
        block=block,
        examples=outputs.shape[0],
        per_example=outputs[0].size,
        of_x=of_x,
        agree=plin.linearization.examples_independent,
    )
