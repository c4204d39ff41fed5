r"""One step of training: a direction, a step along it, and the next state."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from proxlin.algebra import Scalar, Shapes, algebra_dtype, all_finite, count, stored
from proxlin.average import averaged, first_average
from proxlin.deprecation import deprecated_fields
from proxlin.direction import Oracle
from proxlin.linearize import check_params
from proxlin.meshes import automatically, kept_in_place, mesh_of, replicated
from proxlin.optimizer.contract import check_call, check_unmasked, restored, restored_aux
from proxlin.proximity import ProximityState
from proxlin.solvers import Cost, Status
from proxlin.steps import Step, StepRule


class StepInfo(NamedTuple):
    """The report of one step in scalars, of the same structure from ``init`` on.

    ``value`` is the objective before the step, ``evaluations`` counts the forward passes at trial
    points, and the rest is as in :class:`proxlin.Info`.
    """

    value: Scalar
    penalty: Scalar
    slope: Scalar
    predicted: Scalar
    gap: Scalar
    evaluations: Int[Array, ""]
    cost: Cost

    @property
    def steps(self) -> Int[Array, "..."]:
        """Inner steps."""
        return self.cost.steps

    @property
    def residual(self) -> Float[Array, "..."]:
        """The last known relative residual."""
        return self.cost.residual

    @property
    def jvps(self) -> Int[Array, "..."]:
        """Jacobian-vector products."""
        return self.cost.jvps

    @property
    def vjps(self) -> Int[Array, "..."]:
        """Vector-Jacobian products."""
        return self.cost.vjps

    @property
    def status(self) -> Int[Array, "..."]:
        """A :class:`proxlin.Status`."""
        return self.cost.status


@deprecated_fields({"memory": "proximity"}, removal="0.2")
class ProxLinearState(NamedTuple):
    """What a prox-linear method carries from one step to the next: a plain pytree.

    Attributes:
        taken: steps taken so far; schedules are evaluated at it.
        gamma: the regularization: the next one for a trust region, else the last one used.
        eta: the last stepsize, zero if the step was rejected.
        rejected: steps rejected so far.
        refused: the old name of ``rejected``, until version 0.2.
        aux: the auxiliary output of the model at the last step that was taken.
        info: the report of the last step.
        then: the state of the optimizer that gets the direction.
        proximity: the state of the proximity term: its metric and momentum.
        rule: the state of the step rule.
        average: the average of the parameters that steps have left, see
            :func:`proxlin.eval_params`; empty if none is kept.
    """

    taken: Int[Array, ""]
    gamma: Scalar
    eta: Scalar
    rejected: Int[Array, ""]
    refused: Int[Array, ""]
    aux: Any
    info: StepInfo
    then: Any
    proximity: ProximityState
    rule: Any
    average: Any = ()


def transformation(
    oracle: Oracle,
    rule: StepRule,
    then: optax.GradientTransformation,
    init_aux: Any,
    average: bool = False,
    state_dtype: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Hands :math:`\eta d` to ``then``, and keeps everything unchanged if the step is rejected.

    Args:
        oracle: computes a direction for a batch.
        rule: decides on a step along it.
        then: turns the step into updates, an Optax transformation.
        init_aux: the first ``state.aux``.
        average: whether to keep an average of the parameters.
        state_dtype: what the momentum and the state of the rule are stored in.

    Returns:
        An Optax transformation with a :class:`ProxLinearState`.

    Raises:
        TypeError, ValueError: for pieces that do not work together.
    """
    then = optax.with_extra_args_support(then)
    if not oracle.regularizer.is_zero and not rule.composite:
        raise TypeError(
            f"{rule} does not support regularizers; use Armijo(), TrustRegion() or Fixed() with "
            f"{oracle.regularizer}"
        )
    if oracle.has_aux != (init_aux is not None):
        raise ValueError(
            "has_aux=True and init_aux go together: for a model that returns (outputs, aux), pass "
            "the first aux, of the same structure, as init_aux"
        )

    def narrow(state: ProximityState) -> ProximityState:
        """Without the metric, which would lose its smallest eigenvalues."""
        return state._replace(momentum=stored(state.momentum, state_dtype))

    def init(params: PyTree) -> ProxLinearState:
        check_unmasked(params)
        params = _arrays(params)
        zero = jnp.zeros((), jnp.result_type(float))
        none = count(0)
        state = ProxLinearState(
            taken=none,
            gamma=rule.first_gamma(),
            eta=zero,
            rejected=none,
            refused=none,
            aux=init_aux,
            info=_no_report(),
            then=then.init(params),
            proximity=narrow(oracle.init(params)),
            rule=stored(rule.init(params), state_dtype),
            average=first_average(params) if average else (),
        )
        mesh = mesh_of(params)
        return jax.tree.map(lambda x: replicated(_own(x), mesh), state)

    def update(
        updates: Any,
        state: Any,
        params: PyTree = None,
        *,
        inputs: PyTree,
        targets: PyTree,
        args: Any = (),
        weights: Any = None,
        **extra: Any,
    ) -> tuple[PyTree, ProxLinearState]:
        check_call(updates, params, args)
        params = _arrays(params)
        state = restored(state, jax.eval_shape(init, params))
        own = oracle.on_axes_of(params, inputs, args)
        given = (state, params, inputs, targets, args, weights, extra)
        return automatically(functools.partial(advance, own), given, like=(params, state))

    def advance(
        oracle: Oracle,
        state: ProxLinearState,
        params: PyTree,
        inputs: PyTree,
        targets: PyTree,
        args: tuple[Any, ...],
        weights: Any,
        extra: dict[str, Any],
    ) -> tuple[PyTree, ProxLinearState]:
        widened = lambda x: x if state_dtype is None else stored(x, algebra_dtype(params))
        gamma = rule.gamma_at(state.taken, state.gamma)
        direction = oracle.direction(params, inputs, targets, args, gamma, weights, state.proximity)
        aux = restored_aux(direction.aux, state.aux)
        step = rule.step(direction, state.taken, widened(state.rule))
        taken = direction.usable & step.accepted & all_finite(step.displacement)
        eta = jnp.where(taken, step.eta, 0)
        moved = jax.tree.map(lambda x: jnp.where(taken, x, 0), step.displacement)
        new, inner = then.update(moved, state.then, params, **{"value": direction.value, **extra})
        new = jax.tree.map(lambda u, w: jnp.where(taken, u, 0).astype(w.dtype), new, params)
        kept = lambda x, old: jax.tree.map(lambda a, b: jnp.where(taken, a, b), x, old)
        after = ProxLinearState(
            taken=jnp.where(taken, optax.safe_increment(state.taken), state.taken),
            gamma=jnp.where(direction.sound, _default(step.gamma), state.gamma),
            eta=_default(eta),
            rejected=state.rejected + count(~taken),
            refused=state.refused + count(~taken),
            aux=kept(aux, state.aux),
            info=_report(direction.value, step),
            then=kept(inner, state.then),
            proximity=narrow(direction.next_state(step.eta, taken)),
            rule=kept(
                stored(step.state, state_dtype),
                state.rule
                if step.rejected_state is None
                else stored(step.rejected_state, state_dtype),
            ),
            average=kept(averaged(state.average, params, state.taken), state.average)
            if average
            else (),
        )
        return kept_in_place(new, params), kept_in_place(after, state)

    return optax.GradientTransformationExtraArgs(init, update)


def _arrays(params: PyTree) -> Shapes:
    """Parameters as JAX arrays; shapes, and the placeholders of Optax, unchanged."""
    if not jax.tree.leaves(params):
        return params
    check_params(params)
    shape_only = lambda w: isinstance(w, jax.ShapeDtypeStruct)
    return jax.tree.map(lambda w: w if shape_only(w) else jnp.asarray(w), params)


def _own(x: Any) -> Array:
    """A leaf of the first state, in its own buffer and with a dtype.

    With ``donate_argnums`` a step may give each buffer away only once, and not those of the
    parameters or ``init_aux``. Without a dtype, numbers would be weakly typed and compile a second
    program.
    """
    return jnp.array(x, jnp.result_type(x), copy=True)


def _no_report() -> StepInfo:
    """The report before the first step."""
    zero, none = jnp.zeros((), jnp.result_type(float)), count(0)
    return StepInfo(
        value=zero,
        penalty=zero,
        slope=zero,
        predicted=zero,
        gap=zero,
        evaluations=none,
        cost=Cost(steps=none, residual=zero, jvps=none, vjps=none, status=count(Status.OK)),
    )


def _report(value: Scalar, step: Step) -> StepInfo:
    info = step.info
    report = StepInfo(
        value=value,
        penalty=info.penalty,
        slope=info.slope,
        predicted=info.predicted,
        gap=info.gap,
        evaluations=step.evaluations,
        cost=info.cost,
    )
    return jax.tree.map(_default, report)


def _default(x: Array) -> Array:
    """A number in the default precision, whatever that of the parameters; counts unchanged."""
    return x.astype(jnp.result_type(float)) if jnp.issubdtype(x.dtype, jnp.floating) else x
