"""What a step costs, in gradients of the same batch; measured apart from the runs.

All methods of a workload take turns in one process, with gradients before and after each, so that
the ratio does not depend on what else the machine does. A method takes forty steps in a row at a
time, since some compute roots or bases every tenth or twentieth step.
"""

from __future__ import annotations

import json
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.suite import running
from benchmarks.suite.rivals import METHODS
from benchmarks.suite.scores import BASELINE
from benchmarks.suite.workloads import WORKLOADS, Workload, load
from proxlin.bench import loop, storage
from proxlin.bench.environment import environment
from proxlin.bench.errors import UsageError
from proxlin.bench.loop import State, Trainer

ROUNDS = 5
STEPS = 40  # of a method in a round
GRADIENTS = 5  # before and after
FILE = "cost.json"

Costs = dict[str, Any]


def read(folder: pathlib.Path = running.RESULTS) -> Costs:
    """All that is recorded: for each workload its methods."""
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def measure_on(name: str, methods: Sequence[str], folder: pathlib.Path = running.RESULTS) -> None:
    """Measures some methods on a workload, and replaces what was recorded of them."""
    found = measure(load(name), methods)
    costs = read(folder)
    costs[name] = {**costs.get(name, {}), **found}
    folder.mkdir(parents=True, exist_ok=True)
    storage.write_atomically(folder / FILE, json.dumps(costs, indent=1, sort_keys=True) + "\n")


def measure(workload: Workload, methods: Sequence[str]) -> Costs:
    """The cost of each method, see the module."""
    batches = _repeated(workload)
    trainers = dict(_trainers(workload, {BASELINE: None, **dict.fromkeys(methods)}))
    states, first = {}, {}
    params, stats = workload.task.init(0)
    gradient = _gradient(workload, params, stats)
    _seconds(gradient, batches, 2)  # compiles; what JAX sets up once is not the first method's
    for name, trainer in trainers.items():
        states[name] = jax.jit(trainer.init)(params, stats)
        first[name] = loop.compile_step(trainer.step, states[name], next(batches))
    size = _bytes(params)
    ratios, gradients = _rounds(trainers, states, gradient, batches)
    about = {key: x for key, x in environment().items() if key != "command"}
    return {
        name: {
            "gradients": round(statistics.median(ratios[name]), 3),
            "gradient_seconds": round(statistics.median(gradients), 5),
            "rounds": [round(ratio, 3) for ratio in ratios[name]],
            "first_call": round(first[name], 1),
            "first_call_of_adamw": round(first[BASELINE], 1),
            "state": round(_bytes(states[name].method) / size, 2),
            "environment": about,
        }
        for name in trainers
        if name in methods
    }


def planned(name: str, method: str, folder: pathlib.Path = running.RESULTS) -> int:
    """The steps of a method that cost as many gradients as the budget of the baseline."""
    costs = read(folder).get(name, {})
    if not {method, BASELINE} <= {*costs}:
        raise UsageError(f"{method} on {name}: run `python -m benchmarks.suite cost` first")
    return round(WORKLOADS[name].steps * costs[BASELINE]["gradients"] / costs[method]["gradients"])


def _trainers(workload: Workload, methods: Mapping[str, None]) -> Iterator[tuple[str, Trainer]]:
    """The trainers of the methods that can run on a workload."""
    for name in methods:
        method = METHODS[name]
        try:
            yield name, method.make(workload.task, workload.steps, **method.start)
        except UsageError as error:
            print(f"{workload.name} {name}: {error}", flush=True)


def _rounds(
    trainers: Mapping[str, Trainer],
    states: dict[str, State],
    gradient: Callable[..., Any],
    batches: Iterator[Any],
) -> tuple[dict[str, list[float]], list[float]]:
    """The ratios of each round, with states that go on, and the seconds of gradients."""
    ratios: dict[str, list[float]] = {name: [] for name in trainers}
    gradients: list[float] = []
    for _ in range(ROUNDS):
        before = _seconds(gradient, batches, GRADIENTS)
        for name, trainer in trainers.items():

            def step(*batch: Any, name: str = name, trainer: Trainer = trainer) -> Any:
                states[name], report = trainer.step(states[name], *batch)
                return report

            took = _seconds(step, batches, STEPS)
            after = _seconds(gradient, batches, GRADIENTS)
            ratios[name].append(2 * took / (before + after))
            before = after
            gradients.append(after)
    return ratios, gradients


def _seconds(function: Callable[..., Any], batches: Iterator[Any], times: int) -> float:
    """The mean seconds of a call."""
    start = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(function(*next(batches)))
    return (time.perf_counter() - start) / times


def _repeated(workload: Workload) -> Iterator[Any]:
    """A few batches over and over, so that nothing but steps is measured."""
    source = workload.batches(0)
    some = [next(source) for _ in range(8)]
    while True:
        yield from some


def _gradient(workload: Workload, params: Any, stats: Any) -> Callable[..., Any]:
    task = workload.task

    @jax.jit
    def gradient(params: Any, inputs: Any, targets: Any) -> Any:
        def objective(params: Any) -> Any:
            outputs, _ = task.network.apply(params, task.dataset.prepare(inputs), stats)
            return jnp.mean(task.loss.value(outputs, targets))

        return jax.grad(objective)(params)

    return lambda *batch: gradient(params, *batch)


def _bytes(tree: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(tree))
