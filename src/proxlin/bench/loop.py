"""The one loop of training steps, with its clock.

It is the loop of the bench, the benchmarks and the precision examples. A method applied to a task
is a :class:`Trainer`: pure functions of a :class:`State`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from proxlin.bench.status import RunStatus

# A run ends after this many consecutive rejected steps: five if numbers are not finite, as in
# Ceres; more if a line search finds no step, which one bad batch can cause.
DIVERGED_AFTER, STALLED_AFTER = 5, 20


class State(NamedTuple):
    """Everything that a step changes; the arrays of a checkpoint.

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
        rejected: whether the parameters stayed unchanged.
        finite: whether everything computed is finite.
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
    """A method applied to a task.

    Attributes:
        init: ``init(params, stats) -> state``.
        step: ``step(state, inputs, targets) -> (state, report)``; the state before it may be gone.
    """

    init: Callable[[Any, Any], State]
    step: Callable[..., tuple[State, Report]]


def trainer(
    init: Callable[[Any, Any], State], step: Callable[..., tuple[State, Report]]
) -> Trainer:
    """A trainer from pure functions: jitted, and each step reuses the memory of the state before.

    The first state has buffers of its own, so that no step gives away the caller's parameters.
    """
    own = lambda params, stats: jax.tree.map(jnp.copy, init(params, stats))
    return Trainer(own, jax.jit(step, donate_argnums=0))


class Stepped(NamedTuple):
    """One step that was taken.

    Attributes:
        state: after the step.
        report: what the step reports, on the host.
        seconds: how long it took, including its batch.
    """

    state: Any
    report: Any
    seconds: float


def steps(
    step: Callable[..., tuple[Any, Any]], state: Any, batches: Iterable[tuple[Any, ...]]
) -> Iterator[Stepped]:
    """Takes one step for each batch.

    The clock runs from the request for a batch to the end of its step. What the caller does between
    steps, such as evaluation, is off the clock.

    Args:
        step: ``step(state, *batch) -> (state, report)``, as that of a :class:`Trainer`.
        state: before the first step.
        batches: one for each step, possibly without end.

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
    """Compiles a step by taking one and discarding it; returns its seconds.

    The step works on a copy, because a method may reuse the memory of its arguments.
    """
    start = time.perf_counter()
    jax.block_until_ready(step(jax.tree.map(jnp.copy, state), *batch))
    return time.perf_counter() - start


def trouble(finite: bool, in_a_row: int) -> RunStatus | None:
    """The status of a run that should not continue, or None.

    Args:
        finite: whether everything that the last step computed is finite.
        in_a_row: consecutive rejected steps so far.
    """
    if not finite and in_a_row >= DIVERGED_AFTER:
        return RunStatus.DIVERGED
    return RunStatus.STALLED if in_a_row >= STALLED_AFTER else None
