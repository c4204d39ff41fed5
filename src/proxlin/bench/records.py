"""One folder per run: ``run.json`` has its configuration, ``metrics.jsonl`` its results."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from proxlin.bench.errors import StorageError, UsageError
from proxlin.bench.status import RunStatus
from proxlin.bench.storage import explained, write_atomically
from proxlin.bench.tasks import is_own

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Config:
    """What determines a run: equal configurations give equal numbers on equal machines.

    Attributes:
        task: name of the task, see :mod:`proxlin.bench.tasks`.
        method: name of the method, see :mod:`proxlin.bench.methods`.
        options: options of the method that differ from its defaults.
        batch_size: examples in a batch; an incomplete last batch of an epoch is dropped.
        epochs: passes over the training examples.
        max_steps: ends the run after this many steps, for slow methods.
        max_seconds: ends the run after this many seconds of training steps.
        seed: for the initialization and the order of the examples.
        evals_per_epoch: evaluations in each epoch, besides the one before the first step.
        train_examples: training examples on which the training loss is evaluated.
        version: of a task of the user's, see :attr:`proxlin.bench.tasks.Task.version`; empty for
            those of the bench, and in old records. Filled in, not chosen.

    Example:
        >>> Config("digits-mlp", "spl", {"gamma": 0.1}).hash[:10]
        '...'
    """

    task: str
    method: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    batch_size: int = 128
    epochs: float = 1.0
    max_steps: int | None = None
    max_seconds: float | None = None
    seed: int = 0
    evals_per_epoch: int = 1
    train_examples: int = 1000
    version: str = ""

    def __post_init__(self) -> None:
        # Sorted and with one type of number, so that equal configurations have equal hashes.
        object.__setattr__(self, "options", dict(sorted(self.options.items())))
        object.__setattr__(self, "epochs", float(self.epochs))
        for name in ("batch_size", "epochs", "evals_per_epoch", "train_examples"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be positive, got {getattr(self, name)}")
        if self.max_steps is not None and self.max_steps < 1:
            raise UsageError(f"max_steps must be at least 1, got {self.max_steps}")
        if self.seed < 0:
            raise UsageError(f"seed must not be negative, got {self.seed}")

    def as_dict(self) -> dict[str, Any]:
        """The configuration as JSON has it."""
        found = dataclasses.asdict(self)
        return found if self.version else {k: v for k, v in found.items() if k != "version"}

    def steps(self, examples: int) -> int:
        """The number of steps with so many training examples; zero if there is no full batch.

        Example:
            >>> Config("digits-mlp", "spl", batch_size=10, epochs=2.5).steps(45)
            10
        """
        steps = math.ceil(self.epochs * (examples // self.batch_size))
        return min(steps, self.max_steps or steps)

    @property
    def identity(self) -> dict[str, Any]:
        """What makes a run this one: for a task of the user's its version, not its folder."""
        return self.as_dict() | ({"task": _without_folder(self.task)} if self.version else {})

    @property
    def hash(self) -> str:
        """The name of this configuration: sha256 of the canonical JSON of its identity."""
        canonical = json.dumps(self.identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def folder(self, root: pathlib.Path) -> pathlib.Path:
        """The folder of its run below ``root``; a task from a file is named after the file."""
        task = _without_folder(self.task).replace(":", "-")
        return root / task / f"{self.method}-{self.hash[:10]}"


def _without_folder(task: str) -> str:
    """The name of a task of the user's without the folder of its file."""
    return task.replace("\\", "/").split("/")[-1] if is_own(task) else task


@dataclasses.dataclass(frozen=True)
class Run:
    """The record of a run.

    Attributes:
        folder: where it is.
        meta: all of ``run.json``.
        metrics: the lines of ``metrics.jsonl``.
    """

    folder: pathlib.Path
    meta: Mapping[str, Any]
    metrics: list[dict[str, Any]]

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration, see :class:`Config`."""
        return self.meta["config"]

    @property
    def task(self) -> str:
        """The name of the task, without the folder of its file."""
        return _without_folder(self.config["task"])

    @property
    def status(self) -> RunStatus:
        """How the run ended."""
        return RunStatus(self.meta["status"])

    @property
    def best(self) -> dict[str, float]:
        """The lowest losses and highest accuracies of all evaluations."""
        kinds = {"train_loss": min, "test_loss": min, "train_accuracy": max, "test_accuracy": max}
        values = {key: [x for m in self.metrics if (x := m.get(key)) is not None] for key in kinds}
        return {key: kinds[key](found) for key, found in values.items() if found}

    @property
    def exit_code(self) -> int:
        """The exit code of ``proxlin train``: 128 + the signal that interrupted the run, if any.

        Otherwise that of the status, see :attr:`RunStatus.exit_code`.
        """
        if self.status is RunStatus.INTERRUPTED:
            return 128 + int(self.meta["signal"])
        return self.status.exit_code


def write_run(folder: pathlib.Path, meta: Mapping[str, Any]) -> None:
    """Writes ``run.json`` atomically."""
    text = json.dumps({"format": FORMAT, **meta}, indent=2, allow_nan=False)
    write_atomically(folder / "run.json", text + "\n")


def append_line(path: pathlib.Path, line: Mapping[str, Any]) -> None:
    """Appends one line of JSON and flushes it to disk; non-finite numbers become null."""
    text = json.dumps({key: finite_or_none(x) for key, x in line.items()}) + "\n"
    with explained(path.parent, len(text)):
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())


def finite_or_none(x: Any) -> Any:
    """None for numbers that JSON cannot represent."""
    return None if isinstance(x, float) and not math.isfinite(x) else x


def truncate_metrics(folder: pathlib.Path, step: int) -> None:
    """Drops lines after ``step`` and an incomplete last line: a resumed run writes them again."""
    path = folder / "metrics.jsonl"
    write_lines(path, [line for line in lines(path) if line["step"] <= step])


def write_lines(path: pathlib.Path, kept: Iterable[Mapping[str, Any]]) -> None:
    """Rewrites all lines of a file, so that lines can be appended after a crash."""
    write_atomically(path, "".join(json.dumps(line) + "\n" for line in kept))


def load_run(folder: pathlib.Path) -> Run:
    """Reads one record.

    Args:
        folder: of the run.

    Returns:
        The run, without an incomplete last line, which a killed process may leave.

    Raises:
        StorageError: for a damaged file; the message names it.
    """
    path = folder / "run.json"
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        complete = {"format", "config", "hash", "status", "task", "environment"} <= set(meta)
        complete = complete and meta["status"] in {*RunStatus}
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(
            f"{path} cannot be read ({error}); delete the folder to run it again"
        ) from error
    if not complete or meta["format"] != FORMAT:
        raise StorageError(
            f"{path} is not a record of format {FORMAT}; delete the folder to run it again"
        )
    return Run(folder, meta, list(lines(folder / "metrics.jsonl")))


def load_runs(root: pathlib.Path) -> list[Run]:
    """Reads every record below ``root``, in the order of their folders.

    Raises:
        UsageError: if there is none.
        StorageError: for a damaged file.
    """
    runs = [load_run(path.parent) for path in sorted(root.rglob("run.json"))]
    if not runs:
        raise UsageError(
            f"there are no runs in {root}; run `proxlin sweep` or `proxlin train` first"
        )
    return runs


def newest(runs: Sequence[Run]) -> list[Run]:
    """Without the runs of earlier versions of their task."""
    version = lambda run: run.config.get("version", "")
    last: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: run.meta.get("started", "")):
        last[run.task] = version(run)
    return [run for run in runs if version(run) == last[run.task]]


def lines(path: pathlib.Path) -> Iterable[dict[str, Any]]:
    """The lines of a file, without an incomplete last one, which a killed process may leave."""
    if not path.exists():
        return
    found = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(found, start=1):
        try:
            yield dict(json.loads(line))
        except (ValueError, TypeError) as error:
            if number == len(found):
                return
            raise StorageError(f"line {number} of {path} is broken: {error}") from error
