"""One run: a method on a workload for so many steps, and its curve."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from benchmarks.suite.workloads import Workload
from proxlin.bench import loop
from proxlin.bench.evaluation import EVALUATION_BATCH, evaluator, statistics
from proxlin.bench.loop import Report, State, Trainer
from proxlin.bench.status import RunStatus
from proxlin.bench.tasks import Task

EVALUATIONS = 25  # evenly spaced; two more come before the first of them
AVERAGED_OVER = 16  # batches for the statistics of averaged parameters


class Point(NamedTuple):
    """An evaluation; None where a number does not exist or is not finite.

    Attributes:
        step: after how many steps.
        accuracy: on the test examples.
        loss: on the test examples.
        train_loss: the mean over the batches since the last evaluation.
    """

    step: int
    accuracy: float | None
    loss: float | None
    train_loss: float | None


class Outcome(NamedTuple):
    """How a run went.

    Attributes:
        status: finished, diverged or stalled.
        curve: the evaluations, the first one before training.
        seconds: of the steps, without evaluation and compilation.
        first_call: seconds of the first step, nearly all of them for its compilation.
    """

    status: RunStatus
    curve: list[Point]
    seconds: float
    first_call: float


def points(steps: int) -> list[int]:
    """The steps after which a run is evaluated."""
    early = [steps / 100, steps / 50]
    even = [steps * i / EVALUATIONS for i in range(EVALUATIONS + 1)]
    return sorted({round(x) for x in early + even})


def run(
    workload: Workload,
    trainer: Trainer,
    seed: int,
    steps: int,
    evaluated: Callable[[Any, Any], Any] | None = None,
) -> Outcome:
    """Trains and evaluates.

    Args:
        workload: what is trained.
        trainer: of the method.
        seed: of the initialization and the batches.
        steps: how many.
        evaluated: ``evaluated(state, params)``: the parameters to evaluate with; None for the last.
    """
    state = jax.jit(trainer.init)(*workload.task.init(seed))
    first_call = loop.compile_step(trainer.step, state, next(workload.batches(seed)))
    seconds, step, in_a_row = 0.0, 0, 0
    values: list[float] = []
    curve = [_look(workload, state, values, 0, None)]
    ends, status = set(points(steps)), RunStatus.FINISHED
    batches = itertools.islice(workload.batches(seed), steps)
    for done in loop.steps(trainer.step, state, batches):
        step, seconds = step + 1, seconds + done.seconds
        values.append(float(done.report.value))
        in_a_row = in_a_row + 1 if done.report.rejected else 0
        trouble = loop.trouble(bool(done.report.finite), in_a_row)
        if step in ends and trouble is None:
            curve.append(_look(workload, done.state, values, step, evaluated))
            values.clear()
            trouble = None if curve[-1].loss is not None else RunStatus.DIVERGED
        if trouble is not None:
            status = trouble
            break
    return Outcome(status, curve, seconds, first_call)


def _look(
    workload: Workload,
    state: State,
    values: list[float],
    step: int,
    evaluated: Callable[[Any, Any], Any] | None,
) -> Point:
    """Evaluates on the test examples."""
    if evaluated is not None:
        state = averaged(workload, state, evaluated)
    loss, accuracy = evaluator(workload.task)(state, workload.test(EVALUATION_BATCH))
    numbers = (accuracy, loss, float(np.mean(values)) if values else None)
    return Point(step, *(x if x is not None and math.isfinite(x) else None for x in numbers))


# ---- averages ----------------------------------------------------------------------------------


def averaged(workload: Workload, state: State, evaluated: Callable[[Any, Any], Any]) -> State:
    """The state to evaluate averaged parameters with: they have statistics of their own.

    For methods whose average the bench does not know; the statistics are of the examples that it
    takes for those it knows.
    """
    params = jax.jit(evaluated)(state.method, state.params)
    if not jax.tree.leaves(state.stats):
        return state._replace(params=params)
    train = workload.task.dataset.train
    examples = train.batches(EVALUATION_BATCH, AVERAGED_OVER * EVALUATION_BATCH)
    stats = statistics(workload.task, params, (inputs for inputs, _ in examples))
    return state._replace(params=params, stats=stats)


# ---- gradients ---------------------------------------------------------------------------------


def gradient_trainer(task: Task, optimizer: optax.GradientTransformation) -> Trainer:
    """Gradient steps of an Optax optimizer, which gets the value of the loss too."""
    extended = optax.with_extra_args_support(optimizer)

    def step(params: Any, stats: Any, state: Any, inputs: Any, targets: Any) -> Any:
        def objective(params: Any) -> tuple[Array, Any]:
            outputs, after = task.network.apply(params, task.dataset.prepare(inputs), stats)
            return jnp.mean(task.loss.value(outputs, targets)), after

        (value, after), grad = jax.value_and_grad(objective, has_aux=True)(params)
        updates, state = extended.update(grad, state, params, value=value)
        return optax.apply_updates(params, updates), after, state, value

    return trainer(lambda params, stats: extended.init(params), step)


def trainer(
    init: Callable[[Any, Any], Any], step: Callable[..., Any], compiled: bool = True
) -> Trainer:
    """A trainer that rejects steps to what is not finite, as prox-linear methods do.

    Args:
        init: ``init(params, stats) -> state``.
        step: ``step(params, stats, state, inputs, targets) -> (params, stats, state, value)``.
        compiled: whether the step is compiled here; otherwise it compiles itself.
    """
    jit = jax.jit if compiled else lambda function: function
    select = jax.jit(_select) if not compiled else _select

    @jit
    def one(state: State, inputs: Any, targets: Any) -> tuple[State, Report]:
        *new, value = step(*state, inputs, targets)
        return select(State(*new), state, value)

    return Trainer(lambda params, stats: State(params, stats, init(params, stats)), one)


def _select(new: State, old: State, value: Array) -> tuple[State, Report]:
    """The new state if it is finite, else the old one."""
    finite = jnp.isfinite(value) & jnp.isfinite(optax.tree.norm(new.params))
    kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)
    none, nan = jnp.zeros((), jnp.int32), jnp.full((), jnp.nan, jnp.float32)
    return kept, Report(value, none, none + 1, nan, nan, nan, ~finite, finite)
