r"""The walk from parameters and a batch to a prox-linear direction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PyTree

from proxlin.arrays import as_floats
from proxlin.batch import Batch
from proxlin.checks import require
from proxlin.direction.found import Direction, Info, Memory, descending, descends
from proxlin.linearize import (
    Linearization,
    Model,
    Params,
    algebra_dtype,
    cast_like,
    check_params,
)
from proxlin.losses import Loss, weighted_grad, weighted_value
from proxlin.metrics import Euclidean, Metric
from proxlin.regularizers import Regularizer, Zero
from proxlin.solvers import Status
from proxlin.solvers.system import Pair, add_scaled, count, dot, select
from proxlin.subproblems import (
    PartialLinearization,
    Scalar,
    Subproblem,
    check_combination,
    check_memory,
    check_momentum,
    dual_quadratic,
    has_momentum,
    vector_of,
)
from proxlin.terms import Size, Sum, Term, make_terms


@dataclasses.dataclass(frozen=True)
class Oracle:
    """A model, a loss and the way to a direction; see :func:`value_and_direction`.

    ``metric`` and ``momentum`` carry over from step to step; see :func:`proxlin.prox_linear`.
    """

    model: Model | Sum
    loss: Loss | None = None
    subproblem: Subproblem = dual_quadratic
    solver: Any = None
    regularizer: Regularizer = Zero()  # noqa: RUF009
    curvature_size: Size | None = None
    chunk_size: int | None = None
    has_aux: bool = False
    metric: Metric = Euclidean()  # noqa: RUF009
    momentum: float = 0.0

    def __post_init__(self) -> None:
        terms = self.terms
        if not isinstance(self.regularizer, Regularizer):
            raise TypeError(f"regularizer must be one such as L1(1e-3), not {self.regularizer!r}")
        if not callable(self.subproblem):
            raise TypeError(
                f"subproblem must be a function such as dual_quadratic, not {self.subproblem!r}"
            )
        check_combination(self.subproblem, terms.loss, self.solver, self.regularizer)
        check_memory(self.subproblem, self.solver, self.regularizer, self.metric, self.momentum)
        for name in ("curvature_size", "chunk_size"):
            size = getattr(self, name)
            if callable(size) and name == "curvature_size":
                continue
            if size is not None and (not isinstance(size, int) or size < 1):
                raise ValueError(f"{name}={size!r}: give a positive integer, or None")
        if self.chunk_size is not None and self.has_aux:
            raise ValueError(
                "chunk_size with has_aux: statistics of a batch cannot be taken chunk by chunk; "
                "drop one of the two"
            )

    @property
    def terms(self) -> Term | Sum:
        """What the objective is made of."""
        return make_terms(self.model, self.loss)

    @property
    def has_momentum(self) -> bool:
        """Whether directions lean on the last step."""
        return has_momentum(self.momentum)

    def remember(self, params: Params) -> Memory:
        """The memory before the first step."""
        dtype = algebra_dtype(params)
        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, dtype), params)
        return Memory(self.metric.init(params), zeros if self.has_momentum else ())

    def direction(
        self,
        params: Params,
        inputs: PyTree,
        targets: PyTree,
        args: tuple[Any, ...],
        gamma: Any,
        weights: Any,
        memory: Memory = Memory(),
        taken: Int[Array, ""] | int = 0,
    ) -> Direction:
        """One walk: linearise, differentiate the loss, solve the subproblem, map back."""
        check_params(params)
        params = jax.tree.map(jnp.asarray, params)  # in the precision that JAX gives them
        batch = self.terms.batch(
            params,
            inputs,
            targets,
            args,
            weights,
            has_aux=self.has_aux,
            per_example=bool(self.curvature_size or self.chunk_size),
        )
        gamma, gamma_ok = _checked_gamma(gamma, batch.dtype)
        values_ok = batch.good & gamma_ok & check_momentum(self.momentum)
        some = batch if self.curvature_size is None else self.terms.some(batch, self.curvature_size)

        lin = self._linearize(params, batch.inputs, args)
        value = weighted_value(self.terms.loss, lin.outputs, batch.targets, batch.weights)
        pull = weighted_grad(self.terms.loss, lin.outputs, batch.targets, batch.weights)
        whole = some is batch
        plin = PartialLinearization(
            linearization=lin if whole else self._linearize(params, some.inputs, args),
            loss=self.terms.loss,
            targets=some.targets,
            weights=some.weights,
            grad=lin.vjp(pull),
            params=jax.tree.map(lambda w: w.astype(batch.dtype), params),
            regularizer=self.regularizer,
            same_examples=whole,
        )
        plin, learnt = self._with_memory(plin, gamma, memory, count(taken))
        solved = self.subproblem(plin, gamma, self.solver)
        if plin.inverse is not None and not isinstance(solved.d, Pair):
            raise TypeError(
                f"{self.subproblem} returned a direction that is not in the metric {self.metric}: "
                "it must be made of plin.lift(covector)"
            )
        if self.has_momentum:
            plin, solved = descending(plin, gamma, solved)

        slope = dot(vector_of(solved.d), plin.grad)
        penalty = self.regularizer.value(params).astype(value.dtype)
        finite = jnp.isfinite(value) & jnp.isfinite(slope) & _all_finite(solved.d)
        status = jnp.where(descends(plin, solved, slope, penalty), solved.status, Status.ASCENT)
        status = jnp.where(solved.status == Status.BAD_VALUE, solved.status, status)
        status = jnp.where(finite, status, Status.NON_FINITE)
        status = count(jnp.where(values_ok, status, Status.BAD_VALUE))
        usable = (status == count(Status.OK)) | (status == count(Status.INEXACT))
        paired = select(usable, solved.d, jax.tree.map(jnp.zeros_like, solved.d))
        momentum = getattr(paired, "covector", paired) if self.has_momentum else ()
        momentum = cast_like(momentum, memory.momentum)
        unknown = jnp.full_like(slope, jnp.nan)
        info = Info(
            grad=cast_like(plin.grad, params),
            slope=slope,
            predicted=unknown if solved.predicted is None else solved.predicted,
            steps=solved.steps,
            residual=solved.residual,
            jvps=solved.jvps,
            vjps=solved.vjps + 1,
            status=status,
            aux=lin.aux,
            penalty=penalty,
            primal=solved.primal,
            dual=solved.dual,
            gap=solved.primal - solved.dual,
        )
        return Direction(
            value=value,
            d=cast_like(vector_of(paired), params),
            info=info,
            usable=usable,
            sound=values_ok & jnp.isfinite(value) & _all_finite(plin.grad),
            gamma=gamma,
            plin=plin,
            pull=solved.pull,
            predicts=solved.predicted is not None,
            paired=paired,
            memory=Memory(learnt, momentum),
            objective=lambda way: self._objective(optax.tree.sub(params, way), batch, args),
        )

    def _linearize(self, params: Params, inputs: PyTree, args: tuple[Any, ...]) -> Linearization:
        return self.terms.linearize(
            params, inputs, args, has_aux=self.has_aux, chunk_size=self.chunk_size
        )

    def _with_memory(
        self, plin: PartialLinearization, gamma: Scalar, memory: Memory, taken: Int[Array, ""]
    ) -> tuple[PartialLinearization, Any]:
        r"""The convex model with what earlier steps have taught, and the metric's new state.

        With momentum :math:`\mu` the linear term gains :math:`\tfrac{\mu}{\gamma} P_{\text{last}}
        d_{\text{last}}`, in the metric of the last step: the proximity term is :math:`\tfrac{1}{2
        \gamma} \|d - \mu P^{-1} P_{\text{last}} d_{\text{last}}\|_P^2`. Where the metric does not
        change this is SPRING (Goldshlager et al., 2024).
        """
        if isinstance(self.metric, Euclidean) and not self.has_momentum:
            return plin, ()
        source = plin.grad
        if self.has_momentum:
            last = cast_like(memory.momentum, plin.grad)
            source = add_scaled(plin.grad, jnp.asarray(self.momentum, gamma.dtype) / gamma, last)
        learnt = self.metric.update(memory.metric, plin.grad, taken)
        return dataclasses.replace(
            plin,
            source=source if self.has_momentum else None,
            inverse=self.metric.inverse(learnt, source, taken),
        ), learnt

    def _objective(self, params: Params, batch: Batch, args: tuple[Any, ...]) -> Scalar:
        outputs = self.terms.evaluate(
            params, batch.inputs, args, has_aux=self.has_aux, chunk_size=self.chunk_size
        )
        value = weighted_value(self.terms.loss, outputs, batch.targets, batch.weights)
        if isinstance(self.regularizer, Zero):
            return value
        return value + self.regularizer.value(params).astype(value.dtype)


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

    It takes the place of ``jax.value_and_grad``. With :math:`h(w) = \sum_i \omega_i
    \ell_i(f_i(w))` it approximately solves

    .. math:: d = \operatorname{argmin}_d \sum_i \omega_i\, \ell_i(f_i - J_i d)
        + \tfrac{1}{2 \gamma} \|d\|^2

    or its quadratic approximation (equations 3 and 4 of the paper), in the parameters or in the
    dual. ``params - d`` is the step; :math:`-d` is a descent direction after any number of inner
    steps, and :math:`d = \gamma \nabla h` after none.

    Args:
        model: ``model(params, inputs, *args) -> outputs`` of shape ``(m, ..., k)``, or a
            :class:`proxlin.Sum` of terms, each with its own model and loss. Inputs, targets,
            ``weights`` and ``info.aux`` are then tuples with one entry for each term.
        loss: a convex loss; a sum brings its own.
        subproblem: :func:`proxlin.dual_quadratic`, :func:`proxlin.primal_quadratic`,
            :func:`proxlin.dual_convex` or :func:`proxlin.primal_convex`.
        solver: how to solve it; None is ``CG(2)`` for linear systems, else
            ``ProximalGradient()``.
        regularizer: a convex :math:`\rho` of the parameters, added to the objective and, as it
            is, to the subproblem.
        curvature_size: take the curvature from this many examples, spread over the batch, and the
            gradient from all of them; a number, or a function of the batch size. With weights, the
            heaviest example of each stretch of the batch counts for it. In a sum, from this many of
            each term, and from all of a term that has fewer.
        chunk_size: go through the batch in chunks of this many examples, so that memory is
            bounded; for models in which no example influences another.
        has_aux: whether the model returns ``(outputs, aux)``.

    Returns:
        ``fn(params, inputs, targets, *args, gamma=1.0, weights=None) -> ((value, info), d)``.
        ``args`` are passed to the model as they are (rng keys, BatchNorm statistics, frozen
        parameters). ``weights``, of shape ``(m,)`` or of that of the outputs without the last
        axis, make the objective a weighted mean; rows of weight zero may hold anything. ``d``
        has the structure and dtypes of ``params``, and is zero where ``info.status`` says that
        it cannot be used.

    Raises:
        TypeError, ValueError: for options, parameters or batches that cannot be used.

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
        model, loss, subproblem, solver, regularizer, curvature_size, chunk_size, has_aux
    )

    def fn(
        params: Params,
        inputs: PyTree,
        targets: PyTree,
        *args: Any,
        gamma: Any = 1.0,
        weights: Any = None,
    ) -> tuple[tuple[Scalar, Info], Params]:
        direction = oracle.direction(params, inputs, targets, args, gamma, weights)
        return (direction.value, direction.info), direction.d

    return fn


def _checked_gamma(gamma: Any, dtype: Any) -> tuple[Scalar, Bool[Array, ""]]:
    number = as_floats("gamma", gamma, dtype)
    if number.shape != ():
        raise ValueError(f"gamma must be one number, not an array of shape {number.shape}")
    good = require(
        lambda g: g > 0, lambda g: f"gamma={gamma}: it must be a positive number", number
    )
    return number, good


def _all_finite(tree: PyTree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))
