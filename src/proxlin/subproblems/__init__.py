"""Primal and dual subproblems, quadratic and convex, and which solver serves which."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array, Bool

from proxlin.checks import require
from proxlin.losses import Loss, Losses, each
from proxlin.metrics import Euclidean, Metric
from proxlin.regularizers import Regularizer, Zero
from proxlin.solvers import CG, CompositeSolver, LinearSolver, MultiShiftCG, SmoothSolver
from proxlin.subproblems.convex import dual_convex as dual_convex
from proxlin.subproblems.convex import primal_convex as primal_convex
from proxlin.subproblems.plin import PartialLinearization as PartialLinearization
from proxlin.subproblems.plin import Proximity as Proximity
from proxlin.subproblems.plin import Scalar as Scalar
from proxlin.subproblems.plin import Subproblem as Subproblem
from proxlin.subproblems.plin import Subsolution as Subsolution
from proxlin.subproblems.plin import vector_of as vector_of
from proxlin.subproblems.quadratic import dual_quadratic as dual_quadratic
from proxlin.subproblems.quadratic import primal_quadratic as primal_quadratic

_LINEAR = "CG(max_steps) or Cholesky()"
_COMPOSITE = "ProximalGradient()"


def check_combination(
    subproblem: Any, losses: Losses, solver: Any, regularizer: Regularizer
) -> None:
    """Raises TypeError, saying what is missing and what would work, unless all four fit.

    Subproblems of the user's own (other functions) are not looked into.
    """
    subproblem = getattr(subproblem, "func", subproblem)  # functools.partial
    each(lambda loss: _check_loss(subproblem, loss, solver, regularizer), losses)


def _check_loss(subproblem: Any, loss: Loss, solver: Any, regularizer: Regularizer) -> None:
    if subproblem in (dual_quadratic, primal_quadratic) and not loss.twice_differentiable:
        raise TypeError(
            f"{subproblem.__name__} needs a Hessian factor, which {loss} does not have; use "
            f"subproblem=dual_convex with {_COMPOSITE}"
        )
    if subproblem is primal_convex and not loss.differentiable:
        raise TypeError(
            f"primal_convex needs a smooth loss, which {loss} is not; use subproblem=dual_convex "
            f"with {_COMPOSITE}"
        )
    if subproblem is dual_convex and not loss.has_conjugate:
        raise TypeError(
            f"dual_convex needs a conjugate, which {loss} does not have; pass one to "
            "FromFunction(fn, conjugate=...), or use subproblem=primal_convex"
        )
    if solver is not None:
        _check_solver(subproblem, loss, solver, isinstance(regularizer, Zero))


def has_momentum(momentum: Any) -> bool:
    """Whether there is momentum, now or later: an array may be injected, whatever it is now."""
    return isinstance(momentum, jax.Array) or bool(momentum != 0)


def check_momentum(momentum: Any) -> Bool[Array, ""]:
    """Whether momentum is allowed; raises where that is known and false."""
    return require(
        lambda m: (m >= 0) & (m < 1),
        lambda m: f"momentum={m!r}: give a number of at least 0 and below 1",
        momentum,
    )


def check_memory(
    subproblem: Any, solver: Any, regularizer: Regularizer, metric: Metric, momentum: float
) -> None:
    """Raises unless a metric and momentum can be used with the rest.

    Subproblems of the user's own are not looked into: they find the momentum in
    ``plin.linear_term``, and that they are in the metric is checked of what they return.
    """
    if not isinstance(metric, Metric):
        raise TypeError(f"metric must be one such as Kronecker() or Euclidean(), not {metric!r}")
    check_momentum(momentum)
    curved = not isinstance(metric, Euclidean)
    if not curved and not has_momentum(momentum):
        return
    what = f"{metric}" if curved else f"momentum={momentum}"
    convex = getattr(subproblem, "func", subproblem) in (dual_convex, primal_convex)
    if convex or not isinstance(regularizer, Zero):
        raise TypeError(
            f"{what} works with subproblem=dual_quadratic or primal_quadratic and without "
            f"regularizer, not with {subproblem} and {regularizer}"
        )
    if curved and not isinstance(solver, CG | MultiShiftCG | None):
        raise TypeError(f"{what} works with solver=CG(max_steps), not with {solver}")


def _check_solver(subproblem: Any, loss: Loss, solver: Any, smooth: bool) -> None:
    linear_dual = subproblem is dual_convex and smooth and loss.quadratic
    serves: dict[Any, tuple[tuple[type, ...], str]] = {
        dual_quadratic: ((LinearSolver,), _LINEAR),
        primal_quadratic: ((LinearSolver,), _LINEAR)
        if smooth
        else ((CompositeSolver,), _COMPOSITE),
        primal_convex: ((CompositeSolver, SmoothSolver), f"{_COMPOSITE} or LBFGS()")
        if smooth
        else ((CompositeSolver,), _COMPOSITE),
        dual_convex: ((CompositeSolver, LinearSolver), f"{_COMPOSITE} or {_LINEAR}")
        if linear_dual
        else ((CompositeSolver,), _COMPOSITE),
    }
    if subproblem not in serves:
        return
    kinds, names = serves[subproblem]
    if not isinstance(solver, kinds):
        with_what = f"{loss}" + ("" if smooth else " and a regularizer")
        raise TypeError(
            f"{solver} cannot solve {subproblem.__name__} with {with_what}; use {names}"
        )
