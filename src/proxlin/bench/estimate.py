"""How long runs will take: from records of similar ones, or else from a gradient that is timed."""

from __future__ import annotations

import functools
import pathlib
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from proxlin.bench import start, tasks
from proxlin.bench.errors import DataError
from proxlin.bench.records import Config
from proxlin.bench.tasks import Task

_TO_START = 5.0  # seconds until the first step, if nothing is known: compilation, mostly
_NUMBERS = 2**18  # so many inputs are enough to time a gradient
# Gradients in a step; those of prox-linear methods are in `gradients`.
_GRADIENTS = {"auto": 1.5, "lbfgs": 2.0, "shampoo": 1.5, "soap": 1.5, "kfac": 4.0}


def seconds(
    config: Config, root: pathlib.Path, data_dir: pathlib.Path | None = None
) -> float | None:
    """About how long a run takes on this machine, right to a factor of two or three.

    Args:
        config: of the run, complete.
        root: the folder of the records, of which those of the same task and method tell most.
        data_dir: the folder of the data sets.

    Returns:
        Seconds with compilation and evaluation, or None if the data is not there.
    """
    try:
        task = tasks.load(config.task, data_dir)
    except DataError:
        return None
    steps = config.steps(len(task.dataset.train))
    known = [run.meta for run in start.similar(config, root) if run.meta.get("steps")]
    if known:
        step = statistics.median(meta["seconds"] / meta["steps"] for meta in known)
        first = statistics.median(meta["compile_seconds"] for meta in known)
    else:
        step = config.batch_size * gradients(config) * _gradient(task, config.batch_size)
        first = _TO_START
    forward = step / (3 * config.batch_size * gradients(config))
    evaluated = min(config.train_examples, len(task.dataset.train)) + len(task.dataset.test)
    per_epoch = max(1, len(task.dataset.train) // config.batch_size)
    evaluations = 1 + steps / per_epoch * config.evals_per_epoch
    return first + steps * step + evaluations * evaluated * forward


def gradients(config: Config) -> float:
    """What a step costs, in gradients of the batch, for a network with convolutions.

    Example:
        >>> gradients(Config("digits-mlp", "spl", {"inner": 2, "subproblem": "dual"}))
        4.0
    """
    inner = config.options.get("inner")
    if inner is not None:
        return inner + (1.0 if config.options["subproblem"] == "primal" else 2.0)
    return _GRADIENTS.get(config.method, 1.0)


@functools.lru_cache(maxsize=16)
def _gradient(task: Task, batch_size: int) -> float:
    """Seconds of a gradient for each example, the best of three."""
    numbers = int(np.prod(task.dataset.shape))
    examples = min(batch_size, max(4, _NUMBERS // numbers))
    inputs, targets = next(task.dataset.train.batches(examples, examples))
    params, stats = task.init(0)

    @jax.jit
    @jax.grad
    def gradient(params: Any) -> Any:
        outputs, _ = task.network.apply(params, task.dataset.prepare(inputs), stats)
        return jnp.mean(task.loss.value(outputs, targets))

    times = []
    for _ in range(4):
        begin = time.perf_counter()
        jax.block_until_ready(gradient(params))
        times.append(time.perf_counter() - begin)
    return min(times[1:]) / len(targets)


def words(seconds: float) -> str:
    """A length of time, rounded.

    Example:
        >>> [words(seconds) for seconds in (4.2, 200.0, 9_000.0, 500_000.0)]
        ['4 s', '3 min', '2.5 h', '5.8 days']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.2g} h" if hours < 48 else f"{hours / 24:.2g} days"
