"""The methods by name: ours, Optax's, and the rivals of the paper.

A method is a function of a task and of options with defaults; it returns a
:class:`proxlin.bench.loop.Trainer`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Float

import proxlin
from proxlin.bench.errors import UsageError
from proxlin.bench.loop import Report, State, Trainer, trainer
from proxlin.bench.options import read
from proxlin.bench.rivals.shampoo import shampoo as shampoo_of
from proxlin.bench.rivals.soap import soap as soap_of
from proxlin.bench.tasks import Task
from proxlin.extend import StepRule

SUBPROBLEMS = {"dual": proxlin.dual_quadratic, "primal": proxlin.primal_quadratic}


# ---- ours --------------------------------------------------------------------------------------


def _by(rule: Callable[[float], StepRule], what: str) -> Callable[..., Trainer]:
    """Prox-linear steps with a step rule, which takes gamma."""

    def method(
        task: Task,
        *,
        gamma: float = 1.0,
        inner: int = 2,
        subproblem: str = "dual",
        curvature_size: int | None = None,
    ) -> Trainer:
        return trainer_of(
            task,
            proxlin.prox_linear(
                task.network.apply,
                task.loss,
                step=rule(gamma),
                init_aux=(),
                has_aux=True,
                curvature_size=curvature_size,
                **_options(inner, subproblem),
            ),
        )

    method.__doc__ = what
    return method


def auto(task: Task) -> Trainer:
    """Prox-linear steps with nothing to tune: sub-sampled curvature, metric, momentum, gamma."""
    model, loss = task.network.apply, task.loss
    return trainer_of(task, proxlin.auto(model, loss, has_aux=True, init_aux=()))


def _inside(
    optimizer: Callable[[float], optax.GradientTransformation], stepsize: float, name: str
) -> Callable[..., Trainer]:
    """An Optax optimizer with the prox-linear direction in place of the gradient."""

    def method(
        task: Task,
        *,
        stepsize: float = stepsize,
        gamma: float = 1.0,
        inner: int = 2,
        subproblem: str = "dual",
    ) -> Trainer:
        return trainer_of(
            task,
            proxlin.direction_as_gradient(
                task.network.apply,
                task.loss,
                optimizer(stepsize),
                gamma=gamma,
                init_aux=(),
                has_aux=True,
                **_options(inner, subproblem),
            ),
        )

    method.__doc__ = f"{name} on the prox-linear direction instead of the gradient."
    return method


def _options(inner: int, subproblem: str) -> dict[str, Any]:
    if subproblem not in SUBPROBLEMS:
        raise UsageError(f"subproblem is {subproblem!r}; it must be one of {list(SUBPROBLEMS)}")
    return {"subproblem": SUBPROBLEMS[subproblem], "solver": proxlin.CG(inner)}


def trainer_of(task: Task, optimizer: optax.GradientTransformationExtraArgs) -> Trainer:
    """The trainer of a prox-linear method, made with ``has_aux=True`` and ``init_aux=()``."""

    def init(params: Any, stats: Any) -> State:
        return State(params, stats, optimizer.init(params))

    def step(state: State, inputs: Any, targets: Any) -> tuple[State, Report]:
        # Statistics are stored once, in the state of the bench; the method gets them for this step.
        before = state.method._replace(aux=state.stats)
        updates, after = optimizer.update(
            None,
            before,
            state.params,
            inputs=task.dataset.prepare(inputs),
            targets=targets,
            args=(state.stats,),
        )
        report = Report(
            value=after.info.value,
            jvps=after.info.jvps,
            vjps=after.info.vjps,
            eta=after.eta,
            gamma=after.gamma,
            residual=after.info.residual,
            rejected=after.rejected > before.rejected,
            finite=after.info.status != proxlin.Status.NON_FINITE,
        )
        params = optax.apply_updates(state.params, updates)
        return State(params, after.aux, after._replace(aux=())), report

    return trainer(init, step)


# ---- gradients ---------------------------------------------------------------------------------


def _gradient(
    optimizer: Callable[[float], optax.GradientTransformation], stepsize: float, name: str
) -> Callable[..., Trainer]:
    def method(task: Task, *, stepsize: float = stepsize) -> Trainer:
        return _optax(task, optimizer(stepsize))

    method.__doc__ = f"{name} of Optax."
    return method


def lbfgs(task: Task, *, memory: int = 10) -> Trainer:
    """L-BFGS of Optax with its zoom line search on the batch."""
    return _optax(task, optax.lbfgs(memory_size=memory))


def shampoo(task: Task, *, stepsize: float = 0.1, block_size: int = 256) -> Trainer:
    """Shampoo with factors in diagonal blocks and momentum 0.9."""
    return _optax(task, shampoo_of(stepsize, block_size=block_size))


def soap(task: Task, *, stepsize: float = 3e-3, every: int = 10) -> Trainer:
    """SOAP, Adam in the eigenbasis of Shampoo."""
    return _optax(task, soap_of(stepsize, every=every))


def kfac(task: Task, *, stepsize: float = 0.01, damping: float = 1e-3) -> Trainer:
    """KFAC of kfac-jax with momentum 0.9; needs the environment of `make rivals`."""
    from proxlin.bench.rivals import kfac as rival

    inner = rival.kfac(
        task.network, task.loss, task.dataset.shape, stepsize=stepsize, damping=damping
    )
    prepare, reject = jax.jit(task.dataset.prepare), jax.jit(_reject_if_not_finite)

    def step(state: State, inputs: Any, targets: Any) -> tuple[State, Report]:
        *new, info = inner.step(*state, prepare(inputs), jnp.asarray(targets))
        return reject(info["value"], State(*new), state)

    return Trainer(lambda params, stats: State(params, stats, inner.init(params, stats)), step)


def _optax(task: Task, optimizer: optax.GradientTransformation) -> Trainer:
    """Gradient steps of an Optax optimizer."""
    extended = optax.with_extra_args_support(optimizer)

    def step(state: State, inputs: Any, targets: Any) -> tuple[State, Report]:
        inputs = task.dataset.prepare(inputs)

        def objective(params: Any) -> tuple[Float[Array, ""], Any]:
            outputs, stats = task.network.apply(params, inputs, state.stats)
            return jnp.mean(task.loss.value(outputs, targets)), stats

        (value, stats), grad = jax.value_and_grad(objective, has_aux=True)(state.params)
        updates, method = extended.update(
            grad,
            state.method,
            state.params,
            value=value,
            grad=grad,
            value_fn=lambda w: objective(w)[0],
        )
        new = State(optax.apply_updates(state.params, updates), stats, method)
        return _reject_if_not_finite(value, new, state)

    return trainer(lambda params, stats: State(params, stats, extended.init(params)), step)


def _reject_if_not_finite(value: Array, new: State, old: State) -> tuple[State, Report]:
    """Rejects a non-finite step of a gradient method, as ours do: nothing changes."""
    finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(new.params))
    kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)
    none, nan = jnp.zeros((), jnp.int32), jnp.full((), jnp.nan, jnp.float32)
    report = Report(
        value=value,
        jvps=none,
        vjps=none + 1,
        eta=nan,
        gamma=nan,
        residual=nan,
        rejected=~finite,
        finite=finite,
    )
    return kept, report


# ---- by name -----------------------------------------------------------------------------------

_momentum = lambda stepsize: optax.sgd(stepsize, momentum=0.9)

METHODS: Mapping[str, Callable[..., Trainer]] = {
    "spl": _by(proxlin.Fixed, "Stochastic prox-linear steps with a fixed gamma."),
    "armijo-spl": _by(proxlin.Armijo, "Prox-linear steps with Armijo's line search."),
    "model-step": _by(proxlin.ModelStep, "Prox-linear steps that minimize the convex model."),
    "trust-region": _by(proxlin.TrustRegion, "Prox-linear steps, gamma adapted to the decrease."),
    "auto": auto,
    "spl-sgd": _inside(optax.sgd, 1.0, "SGD"),
    "spl-momentum": _inside(_momentum, 0.1, "SGD with momentum 0.9"),
    "spl-adam": _inside(optax.adam, 1e-3, "Adam"),
    "spl-adafactor": _inside(optax.adafactor, 1e-2, "AdaFactor"),
    "sgd": _gradient(optax.sgd, 0.1, "SGD"),
    "momentum": _gradient(_momentum, 0.01, "SGD with momentum 0.9"),
    "adam": _gradient(optax.adam, 1e-3, "Adam"),
    "adafactor": _gradient(optax.adafactor, 1e-2, "AdaFactor"),
    "muon": _gradient(optax.contrib.muon, 1e-2, "Muon"),
    "lbfgs": lbfgs,
    "shampoo": shampoo,
    "soap": soap,
    "kfac": kfac,
}


def options_of(name: str) -> dict[str, inspect.Parameter]:
    """The options of a method with their types and defaults.

    Raises:
        UsageError: for an unknown name.

    Example:
        >>> {key: option.default for key, option in options_of("adam").items()}
        {'stepsize': 0.001}
    """
    if name not in METHODS:
        raise UsageError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    # evaluated, because `from __future__ import annotations` leaves strings
    signature = inspect.signature(METHODS[name], eval_str=True)
    return {key: p for key, p in signature.parameters.items() if key != "task"}


def complete(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a method: those given, checked, and the defaults of the rest.

    Args:
        name: of the method.
        given: options by name; strings, as from a command line, are converted.

    Raises:
        UsageError: for an option that the method does not have or a value of the wrong type.

    Example:
        >>> complete("spl", {"gamma": "0.1"})["gamma"]
        0.1
    """
    known = options_of(name)
    for key in given:
        if key not in known:
            raise UsageError(f"method {name!r} has no option {key!r}; it has {', '.join(known)}")
    return {key: read(name, p, given.get(key, p.default)) for key, p in known.items()}


def build(name: str, task: Task, options: Mapping[str, Any]) -> Trainer:
    """The trainer of a method for a task."""
    return _build(name, task, tuple(complete(name, options).items()))


@functools.lru_cache(maxsize=1)  # runs that differ only in their seeds share compiled programs
def _build(name: str, task: Task, options: tuple[tuple[str, Any], ...]) -> Trainer:
    return METHODS[name](task, **dict(options))
