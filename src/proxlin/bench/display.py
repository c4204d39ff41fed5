"""What the terminal shows during a run: a progress bar, or plain lines."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from proxlin.bench.records import Config, Run
from proxlin.bench.status import RunStatus
from proxlin.bench.train import Watch


class Bar(Watch):
    """A progress bar for one run; without a terminal, one line for each evaluation.

    Args:
        console: where to show it.
        label: the text in front of it.
    """

    def __init__(self, console: Console, label: str) -> None:
        self._console, self._label = console, label
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def started(self, config: Config, step: int, total: int) -> None:
        """Shows the bar, from the step at which a resumed run continues."""
        if not self._console.is_terminal:
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[losses]}", markup=False),
        )
        self._progress = Progress(*columns, console=self._console)
        self._task = self._progress.add_task(self._label, total=total, completed=step, losses="")
        self._progress.start()

    def stepped(self, step: int, value: float) -> None:
        """Moves the bar."""
        if self._progress:
            self._progress.update(self._task, completed=step)

    def evaluated(self, line: Mapping[str, Any]) -> None:
        """Shows the newest numbers."""
        losses = summary(line)
        if self._progress:
            self._progress.update(self._task, losses=losses)
        elif not self._console.is_terminal:
            epoch = f"epoch {line['epoch']:.2f}, {line['seconds']:.1f} s"
            self._console.print(f"{self._label}: {epoch}, {losses}", soft_wrap=True, markup=False)

    def ended(self, status: RunStatus, message: str) -> None:
        """Prints how the run ended, unless it finished."""
        if self._progress:
            self._progress.stop()
        if status is not RunStatus.FINISHED:
            text = f"{self._label}: {status}" + (f", {message}" if message else "")
            self._console.print(text, soft_wrap=True, markup=False)


@contextlib.contextmanager
def downloads(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each file being downloaded: ``progress(name, bytes so far, all bytes)``."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=console) as progress:
        bars: dict[str, TaskID] = {}

        def advance(name: str, done: int, size: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=size)
            progress.update(bars[name], completed=done)

        yield advance


def summary(line: Mapping[str, Any]) -> str:
    """An evaluation in a few words.

    Example:
        >>> summary({"test_loss": 0.25, "test_accuracy": 0.975})
        'test loss 0.25, test accuracy 97.5 %'
    """
    loss, accuracy = line["test_loss"], line["test_accuracy"]
    text = "test loss not finite" if loss is None else f"test loss {loss:.4g}"
    return text if accuracy is None else f"{text}, test accuracy {100 * accuracy:.1f} %"


def sentence(run: Run) -> str:
    """How a run ended, with its last numbers, and where it is recorded."""
    if not run.metrics:  # e.g. if the first step was out of memory
        return f"{run.status}: {run.meta['message']}; recorded in {run.folder}"
    last = run.metrics[-1]
    return (
        f"{run.status} after {last['step']} steps and {last['seconds']:.1f} s: {summary(last)}; "
        f"recorded in {run.folder}"
    )


def failures(runs: Sequence[Run]) -> str:
    """How many runs failed, and how: ``", 2 diverged"``."""
    counts = Counter(run.status for run in runs if not run.status.succeeded)
    return "".join(f", {count} {status}" for status, count in counts.items())
