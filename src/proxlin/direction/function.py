r"""``value_and_direction``: a direction in place of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import PyTree

from proxlin.algebra import Params, Scalar
from proxlin.batch import Size
from proxlin.direction.oracle import Oracle
from proxlin.direction.result import Info
from proxlin.linearize import Model
from proxlin.losses import Loss
from proxlin.meshes import automatically
from proxlin.objective import Sum
from proxlin.regularizers import Regularizer, Zero
from proxlin.subproblems import Subproblem, dual_quadratic


def value_and_direction(
    model: Model | Sum,
    loss: Loss | None = None,
    *,
    subproblem: Subproblem = dual_quadratic,
    solver: Any = None,
    regularizer: Regularizer = Zero(),
    curvature_size: Size | None = None,
    chunk_size: int | None = None,
    has_aux: bool = False,
) -> Callable[..., tuple[tuple[Scalar, Info], Params]]:
    r"""A function that computes the objective and a prox-linear direction.

    It replaces ``jax.value_and_grad``. With :math:`h(w) = \sum_i \omega_i \ell_i(f_i(w))` it
    approximately solves

    .. math:: d = \operatorname{argmin}_d \sum_i \omega_i\, \ell_i(f_i - J_i d)
        + \tfrac{1}{2 \gamma} \|d\|^2

    or its quadratic approximation (equations 3 and 4 of the paper), in the parameters or in the
    dual. ``params - d`` is the step; :math:`-d` is a descent direction after any number of inner
    steps, and :math:`d = \gamma \nabla h` after none.

    Args:
        model: ``model(params, inputs, *args) -> outputs`` of shape ``(m, ..., k)``, or a
            :class:`proxlin.Sum` of terms, each with its own model and loss. Inputs, targets,
            ``weights`` and ``info.aux`` are then tuples with one entry for each term.
        loss: a convex loss; None for a sum, whose terms have their own.
        subproblem: :data:`proxlin.dual_quadratic`, :data:`proxlin.primal_quadratic`,
            :data:`proxlin.dual_convex` or :data:`proxlin.primal_convex`.
        solver: how to solve it; None is ``CG(2)`` for linear systems, else
            ``ProximalGradient()``.
        regularizer: a convex :math:`\rho` of the parameters, added to the objective and, without
            approximation, to the subproblem.
        curvature_size: take the curvature from this many examples, spread over the batch, and the
            gradient from all of them; a number, or a function of the batch size. With weights, the
            heaviest example of each stretch of the batch represents it. In a sum, from this many of
            each term, and from all of a term that has fewer.
        chunk_size: go through the batch in chunks of this many examples at most, to bound memory;
            for models in which no example influences another.
        has_aux: whether the model returns ``(outputs, aux)``.

    Returns:
        ``fn(params, inputs, targets, *args, gamma=1.0, weights=None) -> ((value, info), d)``.
        ``args`` are passed to the model unchanged (rng keys, BatchNorm statistics, frozen
        parameters). ``weights``, of shape ``(m,)`` or that of the outputs without the last axis,
        make the objective a weighted mean; rows of weight zero may contain anything. ``d`` has the
        structure and dtypes of ``params``, and is zero if ``info.status`` says that it is not
        usable.

    Raises:
        TypeError, ValueError: for options, parameters or batches that are not allowed.

    Example:
        >>> import jax.numpy as jnp
        >>> from proxlin import Squared
        >>> fn = value_and_direction(lambda w, x: x @ w, Squared())
        >>> w, x = jnp.zeros((2, 1)), jnp.eye(2)
        >>> (value, info), d = fn(w, x, jnp.ones((2, 1)), gamma=1e4)
        >>> value, jnp.round(w - d, 2).ravel()
        (Array(0.5, dtype=float32), Array([1., 1.], dtype=float32))
    """
    oracle = Oracle(
        model=model,
        loss=loss,
        subproblem=subproblem,
        solver=solver,
        regularizer=regularizer,
        curvature_size=curvature_size,
        chunk_size=chunk_size,
        has_aux=has_aux,
    )

    def fn(
        params: PyTree,
        inputs: PyTree,
        targets: PyTree,
        *args: Any,
        gamma: Any = 1.0,
        weights: Any = None,
    ) -> tuple[tuple[Scalar, Info], Params]:
        own = oracle.on_axes_of(params, inputs, args)

        def parts(*given: Any) -> tuple[tuple[Scalar, Info], Params, Params]:
            direction = own.direction(*given)
            info = direction.info
            return (direction.value, info._replace(grad=())), info.grad, direction.d

        given = (params, inputs, targets, args, gamma, weights)
        (value, info), grad, d = automatically(parts, given, like=(None, params, params))
        return (value, info._replace(grad=grad)), d

    return fn
