"""The loss and the accuracy of a task on a set of examples, also with averaged parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import proxlin
from proxlin.bench.loop import State
from proxlin.bench.models.layers import MOMENTUM
from proxlin.bench.tasks import Task

EVALUATION_BATCH = 125  # small batches fit in the caches of a CPU
_STATISTICS_OVER = 16  # batches

Evaluate = Callable[[State, Iterable[tuple[Any, Any]]], tuple[float, float | None]]


@functools.lru_cache(maxsize=4)  # compiled once for the runs of a sweep
def evaluator(task: Task) -> Evaluate:
    """``evaluate(state, batches) -> (mean loss, accuracy or None)`` for a task.

    If the method keeps an average of the parameters, that is what is evaluated.
    """

    @jax.jit
    def sums(params: Any, stats: Any, inputs: Any, targets: Any) -> tuple[Array, Array, int]:
        outputs = task.network.predict(params, task.dataset.prepare(inputs), stats)
        scores = jnp.zeros((), jnp.float32) if task.score is None else task.score(outputs, targets)
        values = task.loss.value(outputs, targets)  # for text, one for each position
        return jnp.sum(values), jnp.sum(scores), values.size

    def evaluate(state: State, batches: Iterable[tuple[Any, Any]]) -> tuple[float, float | None]:
        state = averaged(task, state)
        total = np.zeros(3)
        for inputs, targets in batches:
            part = sums(state.params, state.stats, inputs, targets)
            total += np.array(jax.device_get(part), np.float64)
        loss, score, count = total.tolist()
        return loss / count, None if task.score is None else score / count

    return evaluate


def averaged(task: Task, state: State) -> State:
    """The state with the average of the parameters, and statistics of BatchNorm that belong to it.

    A state without an average is returned as it is.
    """
    if not jax.tree.leaves(getattr(state.method, "average", ())):
        return state
    params = proxlin.eval_params(state.method, state.params)
    if not jax.tree.leaves(state.stats):
        return state._replace(params=params)
    examples = task.dataset.train.batches(EVALUATION_BATCH, _STATISTICS_OVER * EVALUATION_BATCH)
    stats = statistics(task, params, (inputs for inputs, _ in examples))
    return state._replace(params=params, stats=stats)


def statistics(task: Task, params: Any, batches: Iterable[Any]) -> Any:
    """The means over batches of inputs of the statistics of BatchNorm, for given parameters."""
    found = [_batch_statistics(task)(params, inputs) for inputs in batches]
    return jax.tree.map(lambda *each: sum(each) / len(each), *found)


@functools.lru_cache(maxsize=4)
def _batch_statistics(task: Task) -> Callable[[Any, Any], Any]:
    """The statistics of one batch: what is added to running averages of zero."""
    _, shapes = jax.eval_shape(task.network.init, jax.random.key(0))

    @jax.jit
    def one(params: Any, inputs: Any) -> Any:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        _, stats = task.network.apply(params, task.dataset.prepare(inputs), zeros)
        return jax.tree.map(lambda x: x / (1 - MOMENTUM), stats)

    return one
