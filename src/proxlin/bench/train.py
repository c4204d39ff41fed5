"""One run: its steps, evaluations, checkpoints and record.

The clock measures training steps, including their batches, but not compilation, evaluation and
checkpoints.
"""

from __future__ import annotations

import datetime
import itertools
import math
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax

from proxlin.bench import checkpoints, loop, methods, records, start, storage, tasks
from proxlin.bench.environment import environment
from proxlin.bench.errors import BenchError, StorageError, UsageError, rejections
from proxlin.bench.evaluation import EVALUATION_BATCH, evaluator
from proxlin.bench.loop import Report, State, Trainer
from proxlin.bench.progress import Progress
from proxlin.bench.records import Config, Run
from proxlin.bench.signals import Signals
from proxlin.bench.status import RunStatus
from proxlin.bench.tasks import Task
from proxlin.bench.watch import Watch

CHECKPOINT_SECONDS = 30.0


def train(
    config: Config,
    root: pathlib.Path,
    *,
    data_dir: pathlib.Path | None = None,
    resume: bool = False,
    rerun: bool = False,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    watch: Watch = Watch(),
) -> Run:
    """Trains once and records the run below ``root``.

    Args:
        config: what to run.
        root: where records go; each run has its own folder.
        data_dir: the folder of the data sets.
        resume: continue from the newest checkpoint, if there is one, or else from that of a run
            that differs in nothing but being shorter. A run that has ended is not repeated.
        rerun: delete the record of this run, if there is one, and start again.
        checkpoint_seconds: time between checkpoints; there is one more at the end or on a signal.
        watch: observes the run.

    Returns:
        The record.

    Raises:
        UsageError: for a task, method or option that does not exist, or for an unfinished run
            without ``resume``.
        DataError: if the data is missing or damaged.
        StorageError: if the folder cannot be written, or is in use.
    """
    if resume and rerun:
        raise UsageError("--resume continues a run and --rerun starts it again: give one of them")
    config = start.with_defaults(config)
    folder, recorded = config.folder(root), start.recorded(config, root)
    if recorded and recorded.status.ended and not rerun:
        how = "" if recorded.status is RunStatus.FINISHED else f" ({recorded.status})"
        watch.told(f"already finished{how}, nothing run; --rerun to repeat")
        return recorded
    if recorded and not (resume or rerun):
        raise UsageError(
            f"{folder} holds an unfinished run: continue it with --resume, or start it again with "
            "--rerun"
        )
    task = tasks.load(config.task, data_dir)
    with rejections(f"method {config.method!r}"):
        trainer = methods.build(config.method, task, config.options)
    training = _Training(config, root, task, trainer, watch, checkpoint_seconds)
    state = first_state(task, trainer, config)
    storage.check_folder(folder, (checkpoints.KEEP + 1) * checkpoints.size(state) + 2**20)
    with storage.lock(folder):
        if rerun:
            start.clear(folder)
        elif recorded is None:
            training.look_around(resume)
        return training.run(state)


def first_state(task: Task, trainer: Trainer, config: Config) -> State:
    """The state before the first step."""
    return jax.jit(trainer.init)(*task.init(config.seed))


class _Training:
    """One run, from its start or last checkpoint to its end."""

    def __init__(
        self,
        config: Config,
        root: pathlib.Path,
        task: Task,
        trainer: Trainer,
        watch: Watch,
        checkpoint_seconds: float,
    ) -> None:
        self.config, self.root, self.task, self.watch = config, root, task, watch
        self.folder, self.progress = config.folder(root), Progress()
        self.checkpoint_seconds = checkpoint_seconds
        self.trainer, self.evaluate = trainer, evaluator(task)
        self.per_epoch = len(task.dataset.train) // config.batch_size
        if self.per_epoch == 0:
            raise UsageError(
                f"batch_size is {config.batch_size}, but {config.task} has only "
                f"{len(task.dataset.train)} training examples"
            )
        self.total = config.steps(len(task.dataset.train))
        self.meta: dict[str, Any] = {
            "config": config.as_dict(),
            "hash": config.hash,
            "status": RunStatus.RUNNING,
            "message": "",
            "task": task.describe() | start.place_of(config, root),
            "environment": environment(),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "compile_seconds": 0.0,
        }

    def look_around(self, resume: bool) -> None:
        """Takes over what a shorter run has done, and tells what else there is."""
        before = start.shorter(self.config, self.root, self.total) if resume else None
        if before:
            self._write(RunStatus.RUNNING, f"continues {before.folder.name}")
            start.copy(before, self.folder)
            self.watch.told(f"continues {before.folder}, which is shorter")
        elif start.has_changed(self.config, self.root):
            self.watch.told("the task has changed since earlier runs; their records are kept")
        elif resume:
            self.watch.told("nothing to resume; starts at step 0")

    def run(self, state: State) -> Run:
        self.state = state
        try:
            self._begin()
            self.watch.started(self.config, self.progress, self.total)
            with Signals() as signals:
                status, message = self._steps(signals)
                self.meta["signal"] = signals.received
        except BenchError:
            raise  # not the run's fault: its record stays unchanged
        except Exception as error:
            status, message = _failure(error)
            self._end(status, message)
            if status is RunStatus.FAILED:
                raise
        else:
            self._end(status, message)
        return records.load_run(self.folder)

    def _end(self, status: RunStatus, message: str) -> None:
        self._write(status, message)
        self.watch.ended(status, message)

    def _begin(self) -> None:
        """Restores the newest checkpoint or starts from scratch, and compiles."""
        found = checkpoints.restore(self.folder / "checkpoints", self.state)
        if found is None:
            if (self.folder / "run.json").exists():
                self.watch.told("no checkpoint was saved; starts at step 0")
        else:
            self._check_data()
            progress = Progress.of(found.counters)
            self.state = found.state
            self.progress = progress._replace(resumed=progress.resumed + 1)
            self.meta["damaged"] = list(found.damaged.values())
            records.truncate_metrics(self.folder, progress.step)
            damaged = (f"; checkpoint {step} is damaged" for step in found.damaged)
            self.watch.told(f"resumed at step {progress.step}" + "".join(damaged))
        self._compile()
        if found is None:
            (self.folder / "metrics.jsonl").unlink(missing_ok=True)
            self._write(RunStatus.RUNNING, "")
            self._evaluate()

    def _compile(self) -> None:
        self.watch.compiling(start.compile_seconds(self.config, self.root))
        step, batch = self.trainer.step, next(self._batches(0))
        with rejections(f"{self.config.task} by {self.config.method}"):
            self.meta["compile_seconds"] = loop.compile_step(step, self.state, batch)

    def _check_data(self) -> None:
        before = records.load_run(self.folder).meta["task"]["sha256"]
        if before != self.task.dataset.sha256:
            raise StorageError(
                f"{self.folder} was started with other data (sha256 {before}, now "
                f"{self.task.dataset.sha256}); choose another folder for --out"
            )

    def _batches(self, step: int) -> Iterator[tuple[Any, Any]]:
        """The batches from a given step on, epoch after epoch."""
        while True:
            epoch, start = divmod(step, self.per_epoch)
            batches = self.task.dataset.train.epoch(
                self.config.seed, epoch, self.config.batch_size, start
            )
            for batch in batches:
                yield batch
                step += 1

    def _steps(self, signals: Signals) -> tuple[RunStatus, str]:
        """Takes all steps; returns how the run ended."""
        saved = time.perf_counter()
        batches = itertools.islice(
            self._batches(self.progress.step), self.total - self.progress.step
        )
        for done in loop.steps(self.trainer.step, self.state, batches):
            self.state = done.state
            self.progress = self.progress.after(done.report, done.seconds)
            self.watch.stepped(self.progress, done.report)
            status, message = self._verdict(done.report)
            evaluated = status or self._is_evaluated(self.progress.step)
            if evaluated and not self._evaluate() and not status:
                where = f"at step {self.progress.step}"
                return RunStatus.DIVERGED, f"the test loss is not finite {where}"
            ends = status or signals.received or self.progress.step == self.total
            if ends or time.perf_counter() - saved > self.checkpoint_seconds:
                self._save()
                saved = time.perf_counter()
            if status:
                return status, message
            if signals.received and self.progress.step < self.total:
                interrupted = f"by signal {signals.received}; it can be resumed"
                return RunStatus.INTERRUPTED, interrupted
        return RunStatus.FINISHED, ""

    def _verdict(self, report: Report) -> tuple[RunStatus | None, str]:
        """The status with which the run ends here, or None."""
        progress = self.progress
        status = loop.trouble(bool(report.finite), progress.in_a_row)
        if status is not None:
            why = "non-finite numbers" if status is RunStatus.DIVERGED else "no acceptable step"
            many = f"{progress.in_a_row} consecutive rejected steps, up to step {progress.step}"
            return status, f"{why}: {many}"
        if self.config.max_seconds is not None and progress.seconds >= self.config.max_seconds:
            return RunStatus.BUDGET, f"the limit of {self.config.max_seconds} seconds is reached"
        return None, ""

    def _is_evaluated(self, step: int) -> bool:
        part = lambda step: step * self.config.evals_per_epoch // self.per_epoch
        return step == self.total or part(step) > part(step - 1)

    def _evaluate(self) -> bool:
        """Evaluates and writes a line; returns whether the test loss is finite."""
        progress, dataset, size = self.progress, self.task.dataset, EVALUATION_BATCH
        train = dataset.train.batches(size, self.config.train_examples)
        train_loss, train_accuracy = self.evaluate(self.state, train)
        test_loss, test_accuracy = self.evaluate(self.state, dataset.test.batches(size))
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
            **progress.means,
            "rejected": progress.rejected,
        }
        self.progress = progress.evaluated()
        records.append_line(self.folder / "metrics.jsonl", line)
        self.watch.evaluated(line)
        return math.isfinite(test_loss)

    def _save(self) -> None:
        checkpoints.save(self.folder / "checkpoints", self.state, self.progress._asdict())

    def _write(self, status: RunStatus, message: str) -> None:
        progress = self.progress
        self.meta |= {
            "status": status,
            "message": message,
            "seconds": progress.seconds,
            "steps": progress.step,
            "rejected_steps": list(progress.rejected_steps),
            "resumed": progress.resumed,
        }
        records.write_run(self.folder, self.meta)


def _failure(error: Exception) -> tuple[RunStatus, str]:
    """The status for an error: a run out of memory has ended, any other can be resumed."""
    exhausted = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
    if isinstance(error, MemoryError) or exhausted:
        return RunStatus.OOM, "out of memory; use a smaller --batch-size"
    return RunStatus.FAILED, f"{type(error).__name__}: {error}"
