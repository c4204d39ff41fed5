"""The one loop of training steps, with its clock; all that trains in this project goes through it.

A method at work on a task is a :class:`Trainer`: pure functions of a :class:`State`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from proxlin.bench.status import RunStatus

# After so many rejected steps in a row a run is over: five where numbers are not finite, as in
# Ceres; more where a line search finds no step, which one bad batch can cause.
DIVERGED_AFTER, STALLED_AFTER = 5, 20


class State(NamedTuple):
    """All arrays that steps change, and all that a checkpoint holds of arrays.

    Attributes:
        params: the parameters.
        stats: the statistics of BatchNorm, ``()`` for networks without them.
        method: the state of the method.
    """

    params: Any
    stats: Any
    method: Any


class Report(NamedTuple):
    """What a step reports, as scalars; NaN where a method has no such number.

    Attributes:
        value: the loss of the batch before the step.
        jvps: Jacobian-vector products.
        vjps: vector-Jacobian products.
        eta: the stepsize found by a step rule.
        gamma: the regularization of the subproblem.
        residual: of the inner solver, before its last step.
        rejected: whether the parameters stayed as they were.
        finite: whether all that was computed is finite.
    """

    value: Array
    jvps: Array
    vjps: Array
    eta: Array
    gamma: Array
    residual: Array
    rejected: Array
    finite: Array


class Trainer(NamedTuple):
    """A method at work on a task.

    Attributes:
        init: ``init(params, stats) -> state``.
        step: ``step(state, inputs, targets) -> (state, report)``.
    """

    init: Callable[[Any, Any], State]
    step: Callable[..., tuple[State, Report]]


class Stepped(NamedTuple):
    """One step that was made.

    Attributes:
        state: after the step.
        report: what the step reports, on the host.
        seconds: that it took, its batch included.
    """

    state: Any
    report: Any
    seconds: float


def steps(
    step: Callable[..., tuple[Any, Any]], state: Any, batches: Iterable[tuple[Any, ...]]
) -> Iterator[Stepped]:
    """Makes one step for each batch.

    The clock runs from the request for a batch to the end of its step. What the caller does between
    steps, such as evaluation, is off the clock.

    Args:
        step: ``step(state, *batch) -> (state, report)``, as that of a :class:`Trainer`.
        state: before the first step.
        batches: as many as there are steps to make, or endless.

    Yields:
        The state after each step, its report and its seconds.

    Example:
        >>> count = lambda total, number: (total + number, {"added": number})
        >>> [done.state for done in steps(count, 0, [(1,), (2,)])]
        [1, 3]
    """
    batches = iter(batches)
    while True:
        start = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            return
        state, report = jax.block_until_ready(step(state, *batch))
        report = jax.device_get(report)
        yield Stepped(state, report, time.perf_counter() - start)


def compile_step(step: Callable[..., Any], state: Any, batch: tuple[Any, ...]) -> float:
    """Makes a step and forgets it, so that later ones are compiled; returns its seconds.

    The step works on a copy, because a method may reuse the memory of its arguments.
    """
    start = time.perf_counter()
    jax.block_until_ready(step(jax.tree.map(jnp.copy, state), *batch))
    return time.perf_counter() - start


def trouble(finite: bool, in_a_row: int) -> RunStatus | None:
    """The status of a run that should not go on, or None.

    Args:
        finite: whether all that the last step computed is finite.
        in_a_row: how many steps up to now were rejected, without one between that was accepted.
    """
    if not finite and in_a_row >= DIVERGED_AFTER:
        return RunStatus.DIVERGED
    return RunStatus.STALLED if in_a_row >= STALLED_AFTER else None
