r"""One step of training: a direction, a step along it, and what is kept of both."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree

from proxlin.direction import Memory, Oracle
from proxlin.linearize import Params, check_params
from proxlin.regularizers import Zero
from proxlin.solvers.system import count
from proxlin.steps import Step, StepRule
from proxlin.subproblems import Scalar


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
    steps: Int[Array, ""]
    residual: Scalar
    jvps: Int[Array, ""]
    vjps: Int[Array, ""]
    evaluations: Int[Array, ""]
    status: Int[Array, ""]


class ProxLinearState(NamedTuple):
    """What a prox-linear method carries from one step to the next: a plain pytree.

    Attributes:
        taken: steps taken so far; schedules are evaluated at it.
        gamma: the regularisation: the next one for a trust region, else the last one used.
        eta: the last stepsize, zero if the step was refused.
        refused: steps refused so far.
        aux: what the model last returned beside its outputs, on steps that were taken.
        info: the report of the last step.
        then: the state of the optimizer that the direction is handed to.
        memory: what directions learn from the steps before: the metric and the momentum.
        rule: what the step rule remembers.
    """

    taken: Int[Array, ""]
    gamma: Scalar
    eta: Scalar
    refused: Int[Array, ""]
    aux: Any
    info: StepInfo
    then: Any
    memory: Memory
    rule: Any


def transformation(
    oracle: Oracle, rule: StepRule, then: optax.GradientTransformation, init_aux: Any
) -> optax.GradientTransformationExtraArgs:
    r"""Hands :math:`\eta d` to ``then``, and keeps all as it was when the step is refused.

    Args:
        oracle: what gives a direction for a batch.
        rule: what gives a step along it.
        then: what makes updates of the step, an Optax transformation.
        init_aux: the first ``state.aux``.

    Returns:
        An Optax transformation with a :class:`ProxLinearState`.

    Raises:
        TypeError, ValueError: for pieces that do not go together.
    """
    then = optax.with_extra_args_support(then)
    if not isinstance(oracle.regularizer, Zero) and not rule.composite:
        raise TypeError(
            f"{rule} does not know regularizers; use Armijo(), TrustRegion() or Fixed() with "
            f"{oracle.regularizer}"
        )
    if oracle.has_aux != (init_aux is not None):
        raise ValueError(
            "has_aux=True and init_aux go together: a model that returns (outputs, aux) needs the "
            "first aux, of the same structure, before its first step"
        )

    def init(params: Params) -> ProxLinearState:
        _check_unmasked(params)
        params = _arrays(params)
        zero = jnp.zeros((), jnp.result_type(float))
        none = count(0)
        state = ProxLinearState(
            taken=none,
            gamma=rule.first_gamma(),
            eta=zero,
            refused=none,
            aux=init_aux,
            info=StepInfo(*(zero,) * 5, none, zero, *(none,) * 4),
            then=then.init(params),
            memory=oracle.remember(params),
            rule=rule.remember(params),
        )
        return jax.tree.map(_own, state)

    def update(
        updates: None,
        state: ProxLinearState,
        params: Params | None = None,
        *,
        inputs: PyTree,
        targets: PyTree,
        args: tuple[Any, ...] = (),
        weights: Any = None,
        **extra: Any,
    ) -> tuple[PyTree, ProxLinearState]:
        _check_call(updates, params, args)
        params = _arrays(params)
        gamma = rule.gamma_at(state.taken, state.gamma)
        direction = oracle.direction(
            params, inputs, targets, args, gamma, weights, state.memory, state.taken
        )
        _check_aux(state.aux, direction.info.aux)
        step = rule.step(direction, state.taken, state.rule)
        taken = direction.usable & step.accepted
        eta = jnp.where(taken, step.eta, 0)
        way = jax.tree.map(lambda x: jnp.where(taken, x, 0), step.displacement)
        new, inner = then.update(way, state.then, params, **{"value": direction.value, **extra})
        new = jax.tree.map(lambda u, w: jnp.where(taken, u, 0).astype(w.dtype), new, params)
        kept = lambda x, old: jax.tree.map(lambda a, b: jnp.where(taken, a, b), x, old)
        return new, ProxLinearState(
            taken=jnp.where(taken, optax.safe_increment(state.taken), state.taken),
            gamma=jnp.where(direction.sound, _default(step.gamma), state.gamma),
            eta=_default(eta),
            refused=state.refused + count(~taken),
            aux=kept(direction.info.aux, state.aux),
            info=_report(direction.value, step),
            then=kept(inner, state.then),
            memory=kept(direction.memory.after(step.eta), state.memory),
            rule=kept(step.memory, state.rule),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _arrays(params: Params) -> Params:
    """Parameters as JAX has them; shapes, and what Optax asks ``init`` with, as they are."""
    if not jax.tree.leaves(params):
        return params
    check_params(params)
    shape_only = lambda w: isinstance(w, jax.ShapeDtypeStruct)
    return jax.tree.map(lambda w: w if shape_only(w) else jnp.asarray(w), params)


def _own(x: Any) -> Array:
    """A leaf of the first state, in a buffer of its own.

    A step that is given the state to overwrite (``donate_argnums``) gives each buffer away once,
    and not those of the parameters or of ``init_aux``. With a dtype, because numbers would be
    weakly typed and compile a second program.
    """
    return jnp.array(x, jnp.result_type(x), copy=True)


def _report(value: Scalar, step: Step) -> StepInfo:
    found = {**step.info._asdict(), "value": value, "evaluations": step.evaluations}
    return StepInfo(*(_default(found[name]) for name in StepInfo._fields))


def _default(x: Array) -> Array:
    """A number in the default precision, whatever that of the parameters; counts as they are."""
    return x.astype(jnp.result_type(float)) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _check_unmasked(params: Params) -> None:
    is_masked = lambda x: isinstance(x, optax.MaskedNode)
    if any(is_masked(leaf) for leaf in jax.tree.leaves(params, is_leaf=is_masked)):
        raise ValueError(
            "optax.masked (or optax.partition) around a prox-linear method hides parameters that "
            "the model needs. Freeze parameters before the method instead, which also saves their "
            "cost: write model(trainable, inputs, frozen) and pass args=(frozen,)"
        )


def _check_call(updates: Any, params: Params | None, args: Any) -> None:
    if updates is not None:
        raise ValueError(
            "a prox-linear method computes its own direction and ignores gradients: call "
            "update(None, state, params, inputs=..., targets=...), put it first in optax.chain, "
            "and give it the whole batch instead of wrapping it in optax.MultiSteps (chunk_size "
            "bounds memory)"
        )
    if params is None:
        raise ValueError("a prox-linear method linearises the model at params: pass them to update")
    _check_unmasked(params)
    if not isinstance(args, tuple):
        raise TypeError(f"args must be a tuple, args=(x,) for one argument; got {type(args)}")


def _check_aux(old: Any, new: Any) -> None:
    shapes = [
        jax.tree.map(lambda x: (jnp.shape(x), str(jnp.result_type(x))), tree) for tree in (old, new)
    ]
    # Flattened, because nodes such as equinox.nn.State are equal to nothing but themselves.
    if jax.tree.flatten(shapes[0]) != jax.tree.flatten(shapes[1]):
        raise ValueError(
            f"the model returned aux {shapes[1]}, but init_aux is {shapes[0]}: their structures, "
            "shapes and dtypes must be equal"
        )
