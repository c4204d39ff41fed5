r"""The walk from parameters and a batch to a prox-linear direction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PyTree

from proxlin.batch import Batch
from proxlin.checks import require
from proxlin.linearize import Linearization, Model, Params, check_params
from proxlin.losses import Loss, weighted_grad, weighted_value
from proxlin.regularizers import Regularizer, Zero
from proxlin.solvers import Status
from proxlin.solvers.system import count, dot, select
from proxlin.subproblems import (
    PartialLinearization,
    Proximity,
    Scalar,
    Subproblem,
    check_combination,
    dual_quadratic,
)
from proxlin.terms import Sum, Term, make_terms


class Info(NamedTuple):
    r"""What a direction is worth and what it cost.

    Attributes:
        grad: the gradient :math:`\nabla h` of the mini-batch objective, free of charge.
        slope: :math:`\langle d, \nabla h \rangle`, positive for a descent direction :math:`-d`.
        predicted: the decrease :math:`\langle d, \nabla h \rangle - \tfrac12 \langle d, (G +
            I/\gamma) d \rangle` that the quadratic model promises; NaN where nothing asked for it.
        steps: inner steps.
        residual: relative residual of the subproblem before the last inner step (the one after
            it would cost a product more); NaN for a direct solver.
        jvps: Jacobian-vector products spent.
        vjps: vector-Jacobian products spent, the one for the gradient among them.
        status: a :class:`proxlin.Status`.
        aux: what the model returned beside its outputs.
        penalty: :math:`\rho(w)`, the regularizer at the parameters.
        primal: value of the convex subproblem at :math:`d`; NaN for the quadratic ones.
        dual: value of its dual, a lower bound of the minimum; likewise.
        gap: the difference of the two, which bounds the error of the subproblem's solution.
    """

    grad: Params
    slope: Scalar
    predicted: Scalar
    steps: Int[Array, ""]
    residual: Scalar
    jvps: Int[Array, ""]
    vjps: Int[Array, ""]
    status: Int[Array, ""]
    aux: Any
    penalty: Scalar
    primal: Scalar
    dual: Scalar
    gap: Scalar


@dataclasses.dataclass(frozen=True)
class Direction:
    r"""A direction with all that a step rule may ask about it; lives inside one trace.

    Attributes:
        value: the objective :math:`h` at the parameters.
        d: the direction, in the dtypes of the parameters; zero where it is not usable.
        info: the report.
        usable: whether nothing was non-finite and no value was bad.
        gamma: the regularisation it was computed with.
        plin: the convex model it comes from.
        pull: :math:`J^* \alpha`, where a regularizer makes the way along the direction an arc.
        predicts: whether ``info.predicted`` is known.
        objective: displacement -> :math:`(h + \rho)(w - \text{displacement})`, on the same batch
            and with the same ``args``; what the model returns beside its outputs is discarded.
    """

    value: Scalar
    d: Params
    info: Info
    usable: Bool[Array, ""]
    gamma: Scalar
    plin: PartialLinearization
    pull: Params | None
    predicts: bool
    objective: Callable[[Params], Scalar]

    @property
    def total(self) -> Scalar:
        r""":math:`h + \rho` at the parameters."""
        return self.value if self.pull is None else self.value + self.info.penalty

    @property
    def vector(self) -> Params:
        """The direction in the one dtype of the algebra."""
        return jax.tree.map(lambda x: x.astype(self.value.dtype), self.d)

    def displacement(self, eta: Scalar, pull: Params | None = None) -> Params:
        r"""The way from the parameters to a trial point, in their dtypes.

        :math:`\eta d`, or with a regularizer the prox arc :math:`w - \operatorname{prox}_{\eta
        \gamma \rho}(w - \eta \gamma J^* \alpha)`, on which zeros are exact.
        """
        if self.pull is None:
            return jax.tree.map(lambda x: eta.astype(x.dtype) * x, self.d)
        pull = self.pull if pull is None else pull
        arc = Proximity.of(self.plin, self.gamma).arc(eta, pull)
        return _cast_like(arc, self.d)

    def along(self, eta: Scalar) -> Scalar:
        r"""The objective at the trial point of :math:`\eta`."""
        return self.objective(self.displacement(eta))

    def with_prediction(self) -> Direction:
        """The same with ``info.predicted``; one JVP where the solver did not give it for free."""
        if self.predicts:
            return self
        d = self.vector
        predicted = self.plin.predicted(d, self.gamma, self.plin.curvature(d))
        info = self.info._replace(predicted=predicted, jvps=self.info.jvps + 1)
        return dataclasses.replace(self, info=info, predicts=True)


class Options(TypedDict, total=False):
    """The options of :func:`value_and_direction`, which all optimizers take too."""

    subproblem: Subproblem
    solver: Any
    regularizer: Regularizer
    curvature_size: int | None
    chunk_size: int | None
    has_aux: bool


@dataclasses.dataclass(frozen=True)
class Oracle:
    """A model, a loss and the way to a direction; see :func:`value_and_direction`."""

    model: Model | Sum
    loss: Loss | None = None
    subproblem: Subproblem = dual_quadratic
    solver: Any = None
    regularizer: Regularizer = Zero()  # noqa: RUF009
    curvature_size: int | None = None
    chunk_size: int | None = None
    has_aux: bool = False

    def __post_init__(self) -> None:
        terms = self.terms
        if not isinstance(self.regularizer, Regularizer):
            raise TypeError(f"regularizer must be one such as L1(1e-3), not {self.regularizer!r}")
        if not callable(self.subproblem):
            raise TypeError(
                f"subproblem must be a function such as dual_quadratic, not {self.subproblem!r}"
            )
        check_combination(self.subproblem, terms.loss, self.solver, self.regularizer)
        for name in ("curvature_size", "chunk_size"):
            size = getattr(self, name)
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

    def direction(
        self,
        params: Params,
        inputs: PyTree,
        targets: PyTree,
        args: tuple[Any, ...],
        gamma: Any,
        weights: Any,
    ) -> Direction:
        """One walk: linearise, differentiate the loss, solve the subproblem, map back."""
        check_params(params)
        batch = self.terms.batch(
            params,
            inputs,
            targets,
            args,
            weights,
            has_aux=self.has_aux,
            per_example=bool(self.curvature_size or self.chunk_size),
        )
        some = batch if self.curvature_size is None else self.terms.some(batch, self.curvature_size)
        gamma, gamma_ok = _checked_gamma(gamma, batch.dtype)

        lin = self._linearize(params, batch.inputs, args)
        value = weighted_value(self.terms.loss, lin.outputs, batch.targets, batch.weights)
        pull = weighted_grad(self.terms.loss, lin.outputs, batch.targets, batch.weights)
        plin = self._partial_linearization(lin, params, batch, some, args, grad=lin.vjp(pull))
        solved = self.subproblem(plin, gamma, self.solver)

        slope = dot(solved.d, plin.grad)
        finite = jnp.isfinite(value) & jnp.isfinite(slope) & _all_finite(solved.d)
        status = jnp.where(finite, solved.status, count(Status.NON_FINITE))
        status = jnp.where(batch.good & gamma_ok, status, count(Status.BAD_VALUE))
        usable = (status == count(Status.OK)) | (status == count(Status.BREAKDOWN))
        d = _cast_like(solved.d, params)
        d = select(usable, d, jax.tree.map(jnp.zeros_like, d))
        unknown = jnp.full_like(slope, jnp.nan)
        info = Info(
            grad=_cast_like(plin.grad, params),
            slope=slope,
            predicted=unknown if solved.predicted is None else solved.predicted,
            steps=solved.steps,
            residual=solved.residual,
            jvps=solved.jvps,
            vjps=solved.vjps + 1,
            status=status,
            aux=lin.aux,
            penalty=self.regularizer.value(params).astype(value.dtype),
            primal=solved.primal,
            dual=solved.dual,
            gap=solved.primal - solved.dual,
        )
        return Direction(
            value=value,
            d=d,
            info=info,
            usable=usable,
            gamma=gamma,
            plin=plin,
            pull=solved.pull,
            predicts=solved.predicted is not None,
            objective=lambda way: self._objective(optax.tree.sub(params, way), batch, args),
        )

    def _linearize(self, params: Params, inputs: PyTree, args: tuple[Any, ...]) -> Linearization:
        return self.terms.linearize(
            params, inputs, args, has_aux=self.has_aux, chunk_size=self.chunk_size
        )

    def _partial_linearization(
        self,
        lin: Linearization,
        params: Params,
        batch: Batch,
        some: Batch,
        args: tuple[Any, ...],
        grad: Params,
    ) -> PartialLinearization:
        """The convex model, on the whole batch or on some of its examples."""
        if some is not batch:
            lin = self._linearize(params, some.inputs, args)
        return PartialLinearization(
            linearization=lin,
            loss=self.terms.loss,
            targets=some.targets,
            weights=some.weights,
            grad=grad,
            params=jax.tree.map(lambda w: w.astype(batch.dtype), params),
            regularizer=self.regularizer,
            same_examples=some is batch,
        )

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
    curvature_size: int | None = None,
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
        curvature_size: take the curvature from this many examples of the batch, evenly spread,
            and the gradient from all of them; in a sum, from this many of each term, and from all
            of a term that has fewer.
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
    if jnp.shape(gamma) != ():
        raise ValueError(f"gamma must be one number, not an array of shape {jnp.shape(gamma)}")
    good = require(
        lambda g: jnp.asarray(g) > 0, lambda g: f"gamma={g}: it must be a positive number", gamma
    )
    return jnp.asarray(gamma, dtype), good


def _cast_like(tree: PyTree, like: PyTree) -> PyTree:
    return jax.tree.map(lambda x, w: x.astype(w.dtype), tree, like)


def _all_finite(tree: PyTree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))
