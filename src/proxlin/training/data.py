"""Batches of the user's data, and a model's loss and accuracy on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from proxlin.linearize import Model
from proxlin.losses import BinaryLogistic, Loss
from proxlin.objective import Objective, Sum

_EVALUATION_BATCH = 512


def batches(data: Any, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Any, Any]]:
    """The batches of an epoch: shuffled rows of arrays, or what the data yields.

    The rows that are left at the end of an epoch wait for the next one, which shuffles anew, so
    that all batches have the same size and the step is compiled once.
    """
    if not isinstance(data, tuple):
        yield from data
        return
    count = rows_of(data)
    size = min(batch_size, count)
    order = np.random.default_rng((seed, epoch)).permutation(count)
    for start in range(0, count - size + 1, size):
        yield rows(data, order[start : start + size])


def check_data(name: str, data: Any) -> None:
    """Raises unless this is (inputs, targets) in arrays of equal length, or can be iterated."""
    if not isinstance(data, tuple):
        if iter(data) is data:
            raise TypeError(
                f"{name} is a {type(data).__name__}, which can be read only once, and each epoch "
                "reads it again: give a list, a loader, or a tuple (inputs, targets) of arrays"
            )
        return
    if len(data) != 2:
        raise ValueError(f"{name} is a tuple of {len(data)}: give (inputs, targets)")
    lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
    if len(lengths) != 1 or lengths & {(), (0,)}:
        raise ValueError(
            f"{name} has arrays of lengths {sorted(lengths)}: all need the same number of "
            "examples, at least one, along their first axis"
        )


def rows_of(data: PyTree) -> int:
    """The number of examples."""
    return int(np.shape(jax.tree.leaves(data)[0])[0])


def rows(data: PyTree, which: Any) -> PyTree:
    """Some of the examples."""
    return jax.tree.map(lambda leaf: leaf[which], data)


def evaluator(
    model: Model | Sum, loss: Loss | None, data: Any
) -> Callable[[PyTree], dict[str, float]]:
    """``evaluate(params)``, the mean loss and, for classes, the accuracy on all of the data."""
    objective = Objective.of(model, loss)

    @jax.jit
    def one(params: PyTree, inputs: PyTree, targets: PyTree) -> dict[str, Any]:
        parts = objective.batches(params, inputs, targets, (), None, per_example=False)
        outputs = objective.outputs(params, parts, ())
        found = {"loss": objective.value(outputs, parts)}
        right = None if objective.is_sum else _right(loss, outputs[0], parts[0].targets)
        return found if right is None else {**found, "accuracy": jnp.mean(right)}

    def evaluate(params: PyTree) -> dict[str, float]:
        total: dict[str, float] = {}
        count = 0
        for batch in _parts(data, whole=objective.is_sum):
            size = rows_of(batch[0])
            count += size
            for name, value in one(params, *batch).items():
                total[name] = total.get(name, 0.0) + size * float(value)
        return {name: value / count for name, value in total.items()}

    return evaluate


def _parts(data: Any, whole: bool) -> Iterable[Any]:
    if not isinstance(data, tuple):
        return data
    if whole:
        return [data]
    starts = range(0, rows_of(data), _EVALUATION_BATCH)
    return (rows(data, slice(start, start + _EVALUATION_BATCH)) for start in starts)


def _right(loss: Any, outputs: Any, targets: Any) -> Any:
    """Which examples are classified correctly; None if there are no classes."""
    if isinstance(loss, BinaryLogistic):
        return ((outputs > 0) == (targets > 0.5)).astype(jnp.float32)
    if jnp.shape(targets) != outputs.shape[:-1] or not jnp.issubdtype(targets.dtype, jnp.integer):
        return None
    return (jnp.argmax(outputs, axis=-1) == targets).astype(jnp.float32)
