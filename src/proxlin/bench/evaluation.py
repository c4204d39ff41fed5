"""The loss and the accuracy of a task on a set of examples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxlin.bench.loop import State
from proxlin.bench.tasks import Task

EVALUATION_BATCH = 125  # small batches fit in the caches of a CPU

Evaluate = Callable[[State, Iterable[tuple[Any, Any]]], tuple[float, float | None]]


@functools.lru_cache(maxsize=4)  # compiled once for the runs of a sweep
def evaluator(task: Task) -> Evaluate:
    """``evaluate(state, batches) -> (mean loss, accuracy or None)`` for a task."""

    @jax.jit
    def sums(params: Any, stats: Any, inputs: Any, targets: Any) -> tuple[Array, Array, int]:
        outputs = task.network.predict(params, task.dataset.prepare(inputs), stats)
        scores = jnp.zeros((), jnp.float32) if task.score is None else task.score(outputs, targets)
        values = task.loss.value(outputs, targets)  # for text, one for each position
        return jnp.sum(values), jnp.sum(scores), values.size

    def evaluate(state: State, batches: Iterable[tuple[Any, Any]]) -> tuple[float, float | None]:
        total = np.zeros(3)
        for inputs, targets in batches:
            part = sums(state.params, state.stats, inputs, targets)
            total += np.array(jax.device_get(part), np.float64)
        loss, score, count = total.tolist()
        return loss / count, None if task.score is None else score / count

    return evaluate
