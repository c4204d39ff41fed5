r"""Prox-linear methods as Optax transformations."""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree

from proxlin.direction import Memory, Options, Oracle
from proxlin.linearize import Model, Params
from proxlin.losses import Loss
from proxlin.metrics import Euclidean, Kronecker, Metric
from proxlin.regularizers import Regularizer, Zero
from proxlin.solvers.system import count
from proxlin.steps import (
    Armijo,
    Fixed,
    ScalarOrSchedule,
    Step,
    StepRule,
    StochasticTrustRegion,
)
from proxlin.subproblems import Scalar, Subproblem, dual_quadratic
from proxlin.terms import Sum


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


def prox_linear(
    model: Model | Sum,
    loss: Loss | None = None,
    *,
    step: StepRule = Armijo(beta=0.1),
    metric: Metric = Euclidean(),
    momentum: float = 0.0,
    init_aux: Any = None,
    **options: Unpack[Options],
) -> optax.GradientTransformationExtraArgs:
    r"""Prox-linear steps :math:`w - \eta\, d(\gamma)` with a step rule.

    ``update`` takes no gradient: the incoming updates are None, and the batch comes by keyword,

        ``updates, state = opt.update(None, state, params, inputs=x, targets=y)``

    with ``args=(...)`` for what the model takes beside its inputs and ``weights`` for the
    examples. It returns :math:`-\eta d`, to be added by ``optax.apply_updates``. A step is refused
    (zero updates, ``state.refused`` one higher, ``state.aux`` and all else as before) when anything
    is not finite, a value is not allowed, or the rule finds no step.

    Args:
        model: ``model(params, inputs, *args) -> outputs``, or ``(outputs, aux)`` with ``has_aux``;
            or a :class:`proxlin.Sum` of terms, with tuples of inputs and targets.
        loss: a convex loss; a sum brings its own.
        step: a step rule. The default asks for more decrease than the 1e-4 of the paper: on
            saturated losses, as those of unscaled inputs, a step that realises next to nothing of
            its slope can leave a network that does not learn any more.
        metric: the metric :math:`P` of the proximity term :math:`\tfrac{1}{2 \gamma} \langle d, P d
            \rangle`: :class:`proxlin.Euclidean`, or :class:`proxlin.Diagonal` or
            :class:`proxlin.Kronecker`, which learn from the gradients of the steps before.
        momentum: :math:`\mu` of a proximity term :math:`\tfrac{1}{2 \gamma} \|d - \mu
            d_{\text{last}}\|_P^2` around the last step (SPRING). Where it turns the direction into
            an ascent direction of the batch, the step is a gradient step in the metric. For heavy
            balls outside the subproblem take :func:`direction_as_gradient` with
            ``optax.sgd(1.0, momentum=...)``.
        init_aux: with ``has_aux``, the first ``state.aux``, of the structure the model returns.
        **options: those of :func:`proxlin.value_and_direction`.

    Returns:
        An Optax transformation with a :class:`ProxLinearState`.

    Raises:
        TypeError, ValueError: for options that cannot be used.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from proxlin import Squared
        >>> opt = prox_linear(lambda w, x: x @ w, Squared())
        >>> w, x, y = jnp.zeros((2, 1)), jnp.eye(2), jnp.ones((2, 1))
        >>> state = opt.init(w)
        >>> for _ in range(20):
        ...     updates, state = opt.update(None, state, w, inputs=x, targets=y)
        ...     w = optax.apply_updates(w, updates)
        >>> bool(jnp.allclose(w, 1, atol=1e-3))
        True
    """
    if not isinstance(step, StepRule):
        raise TypeError(f"step must be a step rule such as Armijo() or Fixed(), not {step!r}")
    oracle = Oracle(model, loss, metric=metric, momentum=momentum, **options)
    return _transformation(oracle, step, optax.scale(-1.0), init_aux)


def direction_as_gradient(
    model: Model | Sum,
    loss: Loss | None = None,
    optimizer: optax.GradientTransformation | None = None,
    *,
    gamma: ScalarOrSchedule = 1.0,
    init_aux: Any = None,
    **options: Unpack[Options],
) -> optax.GradientTransformationExtraArgs:
    r"""The prox-linear direction in the place of the gradient, for any Optax optimizer.

    Either ``optax.chain(direction_as_gradient(model, loss), optax.adam(1e-3))``, or with the
    optimizer inside, ``direction_as_gradient(model, loss, optax.adam(1e-3))``: then a refused
    step leaves the state of that optimizer as it was, which a chain cannot do.

    Args:
        model: as in :func:`prox_linear`.
        loss: likewise.
        optimizer: what to do with the direction; None returns :math:`+d`.
        gamma: the regularisation, a number or an Optax schedule.
        init_aux: as in :func:`prox_linear`.
        **options: those of :func:`proxlin.value_and_direction`.

    Returns:
        An Optax transformation with a :class:`ProxLinearState`.

    Raises:
        TypeError, ValueError: for options that cannot be used.

    Example:
        >>> import optax
        >>> from proxlin import Squared
        >>> opt = direction_as_gradient(lambda w, x: x @ w, Squared(), optax.adam(1e-3))
    """
    oracle = Oracle(model, loss, **options)
    return _transformation(oracle, Fixed(gamma), optimizer or optax.identity(), init_aux)


def spl(
    model: Model | Sum,
    loss: Loss | None = None,
    gamma: ScalarOrSchedule = 1.0,
    *,
    subproblem: Subproblem | None = None,
    solver: Any = None,
    regularizer: Regularizer = Zero(),
    curvature_size: int | None = None,
    chunk_size: int | None = None,
    has_aux: bool = False,
    init_aux: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""The paper's stochastic prox-linear method, :math:`w - d(\gamma)`.

    :func:`prox_linear` with :class:`proxlin.Fixed`. Its signature is spelt out so that
    ``optax.inject_hyperparams(spl, static_args=("model", "loss"))`` works, which takes every
    callable among the defaults for a schedule; hence ``subproblem=None`` for
    :func:`proxlin.dual_quadratic`. Other options that are not numbers to be injected
    (``curvature_size``, ``subproblem``) belong in its ``static_args`` too.
    """
    return prox_linear(
        model,
        loss,
        step=Fixed(gamma),
        init_aux=init_aux,
        subproblem=subproblem or dual_quadratic,
        solver=solver,
        regularizer=regularizer,
        curvature_size=curvature_size,
        chunk_size=chunk_size,
        has_aux=has_aux,
    )


def armijo_spl(
    model: Model | Sum,
    loss: Loss | None = None,
    gamma: ScalarOrSchedule = 1.0,
    *,
    init_aux: Any = None,
    **options: Unpack[Options],
) -> optax.GradientTransformationExtraArgs:
    r"""The paper's Armijo SPL, :math:`w - \eta\, d(\gamma)` with :math:`\eta` by backtracking.

    :func:`prox_linear` with :class:`proxlin.Armijo` and the constants of the paper.
    """
    return prox_linear(model, loss, step=Armijo(gamma), init_aux=init_aux, **options)


def auto(
    model: Model | Sum,
    loss: Loss | None = None,
    *,
    chunk_size: int | None = None,
    has_aux: bool = False,
    init_aux: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Prox-linear steps with nothing to tune.

    :func:`prox_linear` on the quadratic dual, with

    - curvature from an eighth of the batch, at least 32 examples, and two conjugate-gradient steps;
    - the proximity term in a metric that is learnt from gradients, :class:`proxlin.Kronecker`, and
      around 0.9 times the last step;
    - gamma and the stepsize by :class:`proxlin.StochasticTrustRegion`: gamma starts small, grows
      until curvature or the next batch says that steps are long enough, and follows from there.

    There is no learning rate. Each piece is an option of :func:`prox_linear`.

    Args:
        model: as in :func:`prox_linear`.
        loss: likewise; it needs a Hessian factor.
        chunk_size: as in :func:`proxlin.value_and_direction`.
        has_aux: whether the model returns ``(outputs, aux)``.
        init_aux: as in :func:`prox_linear`.

    Returns:
        An Optax transformation with a :class:`ProxLinearState`.

    Raises:
        TypeError, ValueError: as :func:`prox_linear`.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from proxlin import Logistic
        >>> opt = auto(lambda w, x: x @ w, Logistic())
        >>> w, x, y = jnp.zeros((2, 2)), jnp.eye(2), jnp.array([0, 1])
        >>> state = opt.init(w)
        >>> for _ in range(30):
        ...     updates, state = opt.update(None, state, w, inputs=x, targets=y)
        ...     w = optax.apply_updates(w, updates)
        >>> bool(state.info.value < 0.1)
        True
    """
    return prox_linear(
        model,
        loss,
        step=StochasticTrustRegion(),
        metric=Kronecker(),
        momentum=0.9,
        curvature_size=lambda m: min(m, max(32, m // 8)),
        chunk_size=chunk_size,
        has_aux=has_aux,
        init_aux=init_aux,
    )


def _transformation(
    oracle: Oracle, rule: StepRule, then: optax.GradientTransformation, init_aux: Any
) -> optax.GradientTransformationExtraArgs:
    """Hands eta * d to ``then``, and keeps all as it was when the step is refused."""
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
        zero = jnp.zeros((), jnp.result_type(float))
        none = count(0)
        return ProxLinearState(
            taken=none,
            gamma=rule.first_gamma(),
            eta=zero,
            refused=none,
            # With a dtype, because numbers would be weakly typed and compile a second program.
            aux=jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), init_aux),
            info=StepInfo(*(zero,) * 5, none, zero, *(none,) * 4),
            then=then.init(params),
            memory=oracle.remember(params),
            rule=rule.remember(params),
        )

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
        real = lambda x: x.astype(jnp.result_type(float))
        return new, ProxLinearState(
            taken=jnp.where(taken, optax.safe_increment(state.taken), state.taken),
            gamma=jnp.where(direction.usable, real(step.gamma), state.gamma),
            eta=real(eta),
            refused=state.refused + count(~taken),
            aux=kept(direction.info.aux, state.aux),
            info=_report(direction.value, step),
            then=kept(inner, state.then),
            memory=kept(direction.memory.after(step.eta), state.memory),
            rule=kept(step.memory, state.rule),
        )

    return optax.GradientTransformationExtraArgs(init, update)


def _report(value: Scalar, step: Step) -> StepInfo:
    real = lambda x: x.astype(jnp.result_type(float))
    info = step.info
    return StepInfo(
        value=real(value),
        penalty=real(info.penalty),
        slope=real(info.slope),
        predicted=real(info.predicted),
        gap=real(info.gap),
        steps=info.steps,
        residual=real(info.residual),
        jvps=info.jvps,
        vjps=info.vjps,
        evaluations=step.evaluations,
        status=info.status,
    )


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
