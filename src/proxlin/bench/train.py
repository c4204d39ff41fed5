"""The loop, the clock and the checkpoints of one run.

The clock runs for training steps, their batches included; compilation, evaluation and checkpoints
are off it.
"""

from __future__ import annotations

import functools
import math
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from proxlin.bench import checkpoints, methods, records, storage, tasks
from proxlin.bench.environment import environment
from proxlin.bench.errors import BenchError, StorageError, UsageError
from proxlin.bench.methods import Report, Trainer
from proxlin.bench.records import Config, Run
from proxlin.bench.signals import Signals
from proxlin.bench.tasks import Task

# After so many refused steps in a row a run is over: five where numbers are not finite, as in
# Ceres; more where a line search finds no step, which one bad batch can cause.
DIVERGED_AFTER, STALLED_AFTER = 5, 20
CHECKPOINT_SECONDS = 30.0
EVALUATION_BATCH = 125  # small ones stay in the caches of a CPU
ENDED = ("finished", "diverged", "stalled", "oom", "budget")


class Watch:
    """Sees a run go on, off the clock. This one shows nothing."""

    def started(self, config: Config, step: int, total: int) -> None:
        """The run begins, or goes on, at a step."""

    def stepped(self, step: int, value: float) -> None:
        """A step was done, at a batch of this loss."""

    def evaluated(self, line: Mapping[str, Any]) -> None:
        """A line was added to the metrics."""

    def ended(self, status: str, message: str) -> None:
        """The run is over."""


class State(NamedTuple):
    """What the steps change, and all that a checkpoint holds of arrays."""

    params: Any
    stats: Any
    method: Any


class Progress(NamedTuple):
    """What a run has done so far; with :class:`State` all that is needed to go on.

    Attributes:
        step: steps done.
        seconds: on the clock.
        jvps, vjps: products done.
        refused: refused steps.
        refused_steps: which ones, the first hundred.
        in_a_row: refused steps up to now without one between them that was taken.
        recent: steps, and sums of eta, gamma and residual since the last evaluation.
        resumed: how often the run was resumed.
    """

    step: int = 0
    seconds: float = 0.0
    jvps: int = 0
    vjps: int = 0
    refused: int = 0
    refused_steps: tuple[int, ...] = ()
    in_a_row: int = 0
    recent: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    resumed: int = 0


def train(
    config: Config,
    root: pathlib.Path,
    *,
    data_dir: pathlib.Path | None = None,
    resume: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    watch: Watch = Watch(),
) -> Run:
    """Trains once, and records it below ``root``.

    Args:
        config: what to run.
        root: where records go; the run has a folder of its own.
        data_dir: where data lies.
        resume: go on from the newest checkpoint, if there is one. A run that has ended is not
            run again.
        checkpoint_seconds: time between checkpoints; one more at the end or on a signal.
        watch: sees it go on.

    Returns:
        The record.

    Raises:
        UsageError: for a task, method or option that does not exist, or a folder in which a run
            was begun, without ``resume``.
        DataError: if the data is missing or damaged.
        StorageError: if the folder cannot be written, or is in use.
    """
    config = with_defaults(config)
    folder = config.folder(root)
    if (folder / "run.json").exists():
        run = records.load_run(folder)
        _check_same(run, config)
        if run.status in ENDED:
            return run
        if not resume:
            raise UsageError(
                f"{folder} holds a run that was begun: go on with --resume, or delete it"
            )
    task = tasks.load(config.task, data_dir)
    trainer = methods.build(config.method, task, config.options)
    loop = _Loop(config, folder, task, trainer, watch, checkpoint_seconds)
    state = _first(task, trainer, config)
    storage.check_folder(folder, (checkpoints.KEEP + 1) * checkpoints.size(state) + 2**20)
    with storage.lock(folder):
        return loop.run(state)


def with_defaults(config: Config) -> Config:
    """The configuration with every option of its method, so that equal runs have equal names."""
    options = methods.complete(config.method, config.options)
    return Config(**{**config.as_dict(), "options": options})


def _first(task: Task, trainer: Trainer, config: Config) -> State:
    params, stats = task.init(config.seed)
    return State(params, stats, jax.jit(trainer.init)(params, stats))


def _check_same(run: Run, config: Config) -> None:
    old, new = dict(run.config), config.as_dict()
    differing = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    if differing:
        raise StorageError(
            f"{run.folder} holds another run; they differ in {', '.join(differing)}: "
            f"{ {key: old.get(key) for key in differing} } there. Choose another folder"
        )


class _Loop:
    """One run: begun or resumed, stepped, evaluated, ended."""

    def __init__(
        self,
        config: Config,
        folder: pathlib.Path,
        task: Task,
        trainer: Trainer,
        watch: Watch,
        checkpoint_seconds: float,
    ) -> None:
        self.config, self.folder, self.task, self.watch = config, folder, task, watch
        self.checkpoint_seconds = checkpoint_seconds
        self.trainer, self.evaluate = trainer, evaluator(task)
        self.per_epoch = len(task.dataset.train) // config.batch_size
        if self.per_epoch == 0:
            raise UsageError(
                f"batch_size is {config.batch_size}, but {config.task} has only "
                f"{len(task.dataset.train)} training examples"
            )
        steps = math.ceil(config.epochs * self.per_epoch)
        self.total = min(steps, config.max_steps or steps)
        self.meta: dict[str, Any] = {
            "config": config.as_dict(),
            "hash": config.hash,
            "status": "running",
            "message": "",
            "task": task.describe(),
            "environment": environment(),
            "compile_seconds": 0.0,
        }

    def run(self, state: State) -> Run:
        self.state, self.progress = state, Progress()
        try:
            self._begin()
            self.watch.started(self.config, self.progress.step, self.total)
            with Signals() as signals:
                status, message = self._steps(signals)
                self.meta["signal"] = signals.received
        except BenchError:
            raise  # not the run's fault: its record stays as it is
        except Exception as error:
            status, message = _failure(error)
            self._end(status, message)
            if status == "failed":
                raise
        else:
            self._end(status, message)
        return records.load_run(self.folder)

    def _end(self, status: str, message: str) -> None:
        self._write(status, message)
        self.watch.ended(status, message)

    def _begin(self) -> None:
        """Goes back to the newest checkpoint, or to the start, and compiles."""
        found = checkpoints.restore(self.folder / "checkpoints", self.state)
        if found is None:
            (self.folder / "metrics.jsonl").unlink(missing_ok=True)
            self._write("running", "")
        else:
            self._check_data()
            progress = _progress(found.counters)
            self.state = found.state
            self.progress = progress._replace(resumed=progress.resumed + 1)
            self.meta["damaged"] = found.damaged
            records.truncate_metrics(self.folder, progress.step)
        self._compile()
        if found is None:
            self._evaluate()

    def _check_data(self) -> None:
        before = records.load_run(self.folder).meta["task"]["sha256"]
        if before != self.task.dataset.sha256:
            raise StorageError(
                f"{self.folder} was begun with other data (sha256 {before}, now "
                f"{self.task.dataset.sha256}); choose another folder for --out"
            )

    def _compile(self) -> None:
        """Takes a step and forgets it; on a copy, because a method may reuse its arguments."""
        start = time.perf_counter()
        batch = next(self._batches(0))
        copy: State = jax.tree.map(jnp.copy, self.state)
        jax.block_until_ready(self.trainer.step(*copy, inputs=batch[0], targets=batch[1]))
        self.meta["compile_seconds"] = time.perf_counter() - start

    def _batches(self, step: int) -> Iterator[tuple[Any, Any]]:
        """The batches from a step on, epoch after epoch."""
        while True:
            epoch, start = divmod(step, self.per_epoch)
            batches = self.task.dataset.train.epoch(
                self.config.seed, epoch, self.config.batch_size, start
            )
            for batch in batches:
                yield batch
                step += 1

    def _steps(self, signals: Signals) -> tuple[str, str]:
        """Steps to the end, and how it came."""
        saved = time.perf_counter()
        batches = self._batches(self.progress.step)
        while self.progress.step < self.total:
            start = time.perf_counter()
            inputs, targets = next(batches)
            *new, report = self.trainer.step(*self.state, inputs=inputs, targets=targets)
            self.state, report = State(*new), jax.device_get(report)  # waits for the step
            self.progress = _advance(self.progress, report, time.perf_counter() - start)
            self.watch.stepped(self.progress.step, float(report.value))
            status, message = self._verdict(report)
            evaluated = status or self._is_evaluated(self.progress.step)
            if evaluated and not self._evaluate() and not status:
                return "diverged", f"the test loss is not finite at step {self.progress.step}"
            ends = status or signals.received or self.progress.step == self.total
            if ends or time.perf_counter() - saved > self.checkpoint_seconds:
                self._save()
                saved = time.perf_counter()
            if status:
                return status, message
            if signals.received and self.progress.step < self.total:
                return "interrupted", f"by signal {signals.received}; it can be resumed"
        return "finished", ""

    def _verdict(self, report: Report) -> tuple[str, str]:
        """The status with which the run ends here, or nothing."""
        progress = self.progress
        many = f"{progress.in_a_row} refused steps in a row, the last one {progress.step}"
        if not report.finite and progress.in_a_row >= DIVERGED_AFTER:
            return "diverged", f"numbers that are not finite: {many}"
        if progress.in_a_row >= STALLED_AFTER:
            return "stalled", f"no step is found: {many}"
        if self.config.max_seconds is not None and progress.seconds >= self.config.max_seconds:
            return "budget", f"{self.config.max_seconds} seconds are spent"
        return "", ""

    def _is_evaluated(self, step: int) -> bool:
        part = lambda step: step * self.config.evals_per_epoch // self.per_epoch
        return step == self.total or part(step) > part(step - 1)

    def _evaluate(self) -> bool:
        """Writes a line; whether the test loss is finite."""
        state, progress = self.state, self.progress
        dataset, size = self.task.dataset, EVALUATION_BATCH
        train = dataset.train.batches(size, self.config.train_examples)
        train_loss, train_accuracy = self.evaluate(state.params, state.stats, train)
        test_loss, test_accuracy = self.evaluate(
            state.params, state.stats, dataset.test.batches(size)
        )
        steps, *sums = progress.recent
        means = [x / steps if steps else math.nan for x in sums]
        line = {
            "epoch": progress.step / self.per_epoch,
            "step": progress.step,
            "seconds": progress.seconds,
            "train_loss": train_loss,
            "train_accuracy": train_accuracy,
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
            "jvps": progress.jvps,
            "vjps": progress.vjps,
            **dict(zip(("eta", "gamma", "residual"), means, strict=True)),
            "refused": progress.refused,
        }
        self.progress = progress._replace(recent=Progress().recent)
        records.append_line(self.folder / "metrics.jsonl", line)
        self.watch.evaluated(line)
        return math.isfinite(test_loss)

    def _save(self) -> None:
        checkpoints.save(self.folder / "checkpoints", self.state, self.progress._asdict())

    def _write(self, status: str, message: str) -> None:
        progress = self.progress
        self.meta |= {
            "status": status,
            "message": message,
            "seconds": progress.seconds,
            "steps": progress.step,
            "refused_steps": list(progress.refused_steps),
            "resumed": progress.resumed,
        }
        records.write_run(self.folder, self.meta)


def _failure(error: Exception) -> tuple[str, str]:
    """A run that was too large for the memory has ended; any other error is not the run's own."""
    exhausted = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
    if isinstance(error, MemoryError) or exhausted:
        return "oom", "out of memory; take a smaller --batch-size"
    return "failed", f"{type(error).__name__}: {error}"


def _advance(progress: Progress, report: Report, seconds: float) -> Progress:
    step, refused = progress.step + 1, bool(report.refused)
    numbers = (1.0, float(report.eta), float(report.gamma), float(report.residual))
    which = (*progress.refused_steps, step) if refused else progress.refused_steps
    return progress._replace(
        step=step,
        seconds=progress.seconds + seconds,
        jvps=progress.jvps + int(report.jvps),
        vjps=progress.vjps + int(report.vjps),
        refused=progress.refused + refused,
        refused_steps=which[:100],
        in_a_row=progress.in_a_row + 1 if refused else 0,
        recent=tuple(a + b for a, b in zip(progress.recent, numbers, strict=True)),
    )


def _progress(counters: Mapping[str, Any]) -> Progress:
    lists: dict[str, Any] = {
        key: tuple(x) if isinstance(x, list) else x for key, x in counters.items()
    }
    return Progress(**lists)


@functools.lru_cache(maxsize=4)  # compiled once for the runs of a sweep
def evaluator(task: Task) -> Any:
    """``evaluate(params, stats, batches) -> (mean loss, accuracy or None)`` for a task."""

    @jax.jit
    def sums(params: Any, stats: Any, inputs: Any, targets: Any) -> tuple[Array, Array, int]:
        outputs = task.network.predict(params, task.dataset.prepare(inputs), stats)
        scores = jnp.zeros((), jnp.float32) if task.score is None else task.score(outputs, targets)
        values = task.loss.value(outputs, targets)  # one for each place of a text
        return jnp.sum(values), jnp.sum(scores), values.size

    def evaluate(params: Any, stats: Any, batches: Any) -> tuple[float, float | None]:
        total = np.zeros(3)
        for inputs, targets in batches:
            total += np.array(jax.device_get(sums(params, stats, inputs, targets)), np.float64)
        loss, score, count = total.tolist()
        return loss / count, None if task.score is None else score / count

    return evaluate
