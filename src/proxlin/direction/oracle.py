r"""The path from parameters and a batch to a prox-linear direction."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, PyTree

from proxlin.algebra import (
    MetricVector,
    Params,
    Scalar,
    Shapes,
    add_scaled,
    all_finite,
    cast,
    dot,
    plain,
)
from proxlin.arrays import as_floats
from proxlin.batch import Batch, Share, Size
from proxlin.checks import check_number, require
from proxlin.direction.result import Direction
from proxlin.linearize import Model, check_params
from proxlin.losses import Loss
from proxlin.meshes import is_explicit, with_explicit_axes
from proxlin.metrics import Euclidean, Metric
from proxlin.objective import Decay, Objective, Sum
from proxlin.proximity import Proximity, ProximityState, check_momentum
from proxlin.regularizers import Regularizer, Zero
from proxlin.solvers import Status
from proxlin.subproblems import (
    ConvexModel,
    Subproblem,
    Subsolution,
    as_subproblem,
    dual_quadratic,
    vjp,
)


@dataclasses.dataclass(frozen=True)
class Oracle:
    """All options of a direction, as users pass them; see :func:`value_and_direction`.

    This is the boundary: behind it there is an :class:`Objective`, whose terms are always a tuple.
    ``metric`` and ``momentum`` have a state; see :func:`proxlin.prox_linear`.
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
    momentum: Any = 0.0
    weight_decay: Any = 0.0
    mask: Any = None

    def __post_init__(self) -> None:
        objective = self.objective
        object.__setattr__(self, "subproblem", as_subproblem(self.subproblem))
        if not isinstance(self.regularizer, Regularizer):
            raise TypeError(
                f"regularizer must be a Regularizer such as L1(1e-3), not {self.regularizer!r}"
            )
        if not isinstance(self.metric, Metric):
            raise TypeError(f"metric must be a Metric such as Kronecker(), not {self.metric!r}")
        check_momentum(self.momentum)
        self.subproblem.check(
            objective.losses, self.solver, self.regularizer, self.metric, self.momentum
        )
        if self.objective.decay is not None and not self.subproblem.takes_metric:
            raise TypeError(
                f"weight_decay={self.weight_decay} with {self.subproblem}: use regularizer="
                "SquaredL2(strength), which is the same, or subproblem=dual_quadratic"
            )
        for name in ("curvature_size", "chunk_size"):
            size = getattr(self, name)
            if name == "curvature_size" and (callable(size) or isinstance(size, Share)):
                continue
            if size is not None and (not isinstance(size, int) or size < 1):
                raise ValueError(f"{name}={size!r}: give a positive integer, or None")
        if self.chunk_size is not None and self.has_aux:
            raise ValueError(
                "chunk_size with has_aux: batch statistics cannot be computed chunk by chunk; drop "
                "one of the two"
            )

    @functools.cached_property
    def objective(self) -> Objective:
        """What is minimized."""
        return Objective.of(
            self.model,
            self.loss,
            has_aux=self.has_aux,
            chunk_size=self.chunk_size,
            decay=self._decay(),
        )

    def _decay(self) -> Decay | None:
        owner = f"weight_decay={self.weight_decay!r}"
        check_number(owner, self.weight_decay, "a non-negative number")
        require(
            lambda rate: (rate >= 0) & jnp.isfinite(rate),
            lambda rate: f"weight_decay={rate}: give a non-negative number",
            jnp.asarray(self.weight_decay),
        )
        if not isinstance(self.weight_decay, jax.Array) and self.weight_decay == 0:
            return None
        return Decay(self.weight_decay, self.mask)

    def on_axes_of(self, params: PyTree, inputs: PyTree, args: tuple[Any, ...]) -> Oracle:
        """The same, with models that see the mesh axes of these arrays, if these are explicit."""
        if not is_explicit((params, inputs, args)):
            return self
        on = lambda model, x: with_explicit_axes(model, params, x, *args)
        if not isinstance(self.model, Sum):
            return dataclasses.replace(self, model=on(self.model, inputs))
        if not isinstance(inputs, tuple) or len(inputs) != len(self.model.terms):
            return self  # reported where inputs are split
        pairs = zip(self.model.terms, inputs, strict=True)
        terms = [dataclasses.replace(term, model=on(term.model, x)) for term, x in pairs]
        return dataclasses.replace(self, model=Sum(*terms))

    def init(self, params: Shapes) -> ProximityState:
        """The state of the proximity term before the first step."""
        return ProximityState.init(params, self.metric, self.momentum)

    def direction(
        self,
        params: PyTree,
        inputs: PyTree,
        targets: PyTree,
        args: tuple[Any, ...],
        gamma: Any,
        weights: Any,
        state: ProximityState = ProximityState(),
    ) -> Direction:
        """Linearizes the network, builds the convex model and solves the subproblem."""
        check_params(params)
        params = jax.tree.map(jnp.asarray, params)  # in the precision that JAX gives them
        sizes = bool(self.curvature_size or self.chunk_size)
        batches = self.objective.batches(params, inputs, targets, args, weights, per_example=sizes)
        gamma, allowed = self._checked(gamma, batches)
        value, aux, model = self._model(params, batches, args)
        sound = allowed & jnp.isfinite(value) & all_finite(model.grad)
        state = state.learned(self.metric, *self._lesson(model, sound))
        proximity = Proximity.of(
            params=cast(params, gamma.dtype),
            grad=model.grad,
            gamma=gamma,
            regularizer=self.regularizer,
            metric=self.metric,
            momentum=self.momentum,
            state=state,
        )
        solved = self.subproblem.solve(model, proximity, self.solver)
        self._check_metric(proximity, solved)
        slope = dot(plain(solved.d), model.grad)
        return Direction(
            value=value,
            slope=slope,
            solved=_usable(solved, proximity, model.grad, value, slope, allowed),
            model=model,
            proximity=proximity,
            params=params,
            aux=aux,
            sound=sound,
            state=state,
            objective=lambda displacement: self._at(
                optax.tree.sub(params, displacement), batches, args
            ),
            outputs_at=lambda displacement: self.objective.outputs(
                optax.tree.sub(params, displacement), model.batches, args
            ),
        )

    def _checked(self, gamma: Any, batches: tuple[Batch, ...]) -> tuple[Scalar, Bool[Array, ""]]:
        """Gamma in the dtype of the algebra, and whether all values are allowed."""
        number = as_floats("gamma", gamma, batches[0].dtype)
        if number.shape != ():
            raise ValueError(f"gamma must be one number, not an array of shape {number.shape}")
        good = require(
            lambda g: g > 0, lambda g: f"gamma={gamma}: it must be a positive number", number
        )
        for batch in batches:
            good &= batch.good
        return number, good & check_momentum(self.momentum)

    def _model(
        self, params: Params, batches: tuple[Batch, ...], args: tuple[Any, ...]
    ) -> tuple[Scalar, Any, ConvexModel]:
        """The value of the objective, the auxiliary outputs, and the convex model."""
        objective, part = self.objective, batches
        if self.curvature_size is not None:
            part = objective.part(batches, self.curvature_size)
        whole = all(own is batch for own, batch in zip(part, batches, strict=True))
        linearizations = objective.linearize(params, batches, args)
        outputs = tuple(lin.outputs for lin in linearizations)
        value = objective.value(outputs, batches)
        grad = vjp(linearizations, objective.output_grad(outputs, batches))
        wide = cast(params, value.dtype)
        if objective.decay is not None:
            grad = add_scaled(grad, 1, objective.decay.apply(wide, params))
        model = ConvexModel(
            objective=objective,
            batches=part,
            linearizations=linearizations if whole else objective.linearize(params, part, args),
            grad=grad,
            params=wide,
            whole=whole and objective.decay is None,
        )
        return value, objective.aux(linearizations), model

    def _lesson(self, model: ConvexModel, sound: Bool[Array, ""]) -> tuple[Params, Bool[Array, ""]]:
        """What the metric learns from, and whether that is sound."""
        if not self.metric.of_curvature:
            return model.grad, sound
        independent = getattr(self.metric, "independent", False)
        diagonal = model.diagonal(independent, getattr(self.metric, "max_elements", 2**26))
        return diagonal, sound & all_finite(diagonal)

    def _check_metric(self, proximity: Proximity, solved: Subsolution) -> None:
        if proximity.inverse is not None and not isinstance(solved.d, MetricVector):
            raise TypeError(
                f"{self.subproblem} returned a direction that is not in the metric {self.metric}: "
                "compute it with proximity.precondition(covector)"
            )

    def _at(self, params: Params, batches: tuple[Batch, ...], args: tuple[Any, ...]) -> Scalar:
        """The objective, including the regularizer, at other parameters."""
        value = self.objective.value(self.objective.outputs(params, batches, args), batches)
        if self.objective.decay is not None:
            value += self.objective.decay.value(cast(params, value.dtype))
        return value + self.regularizer.value(params).astype(value.dtype)


def _usable(
    solved: Subsolution,
    proximity: Proximity,
    grad: Params,
    value: Scalar,
    slope: Scalar,
    allowed: Bool[Array, ""],
) -> Subsolution:
    """The solution with its final status, and the VJP of the gradient added to its cost."""
    # An entry of d that is not finite makes the slope so, even against a zero of the gradient.
    finite = jnp.isfinite(value) & jnp.isfinite(slope)
    if isinstance(solved.d, MetricVector):
        finite &= jnp.isfinite(dot(solved.d, solved.d))  # its image, too
    bad = solved.cost.status == Status.BAD_VALUE
    ascends = ~proximity.descends(solved.d, grad) & ~bad
    cost = solved.cost.plus(vjps=1)
    cost = cost.with_status(Status.ASCENT, where=ascends)
    cost = cost.with_status(Status.NON_FINITE, where=~finite)
    cost = cost.with_status(Status.BAD_VALUE, where=~allowed)
    return solved._replace(cost=cost)
