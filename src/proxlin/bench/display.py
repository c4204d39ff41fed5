"""What the terminal shows during a run: a progress bar, or plain lines."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Column

from proxlin.bench.loop import Report
from proxlin.bench.progress import Progress
from proxlin.bench.records import Config, Run
from proxlin.bench.status import RunStatus
from proxlin.bench.watch import Watch


class Bar(Watch):
    """A progress bar for one run; without a terminal, one line for each evaluation.

    Args:
        console: where to show it.
        label: the text in front of it.
    """

    def __init__(self, console: Console, label: str) -> None:
        self._console, self._label = console, label
        self._bar: RichProgress | None = None
        self._task = TaskID(0)
        self._pace = self._losses = ""
        self._total = 0

    def told(self, message: str) -> None:
        """Prints it."""
        self._console.print(f"{self._label}: {message}", soft_wrap=True, markup=False)

    def compiling(self, about: float | None) -> None:
        """Says so, because nothing else is seen to happen."""
        known = f", about {about:.0f} s" if about and about >= 1 else ""
        self.told(f"compiling{known}")

    def started(self, config: Config, progress: Progress, total: int) -> None:
        """Shows the bar, from the step at which a resumed run continues."""
        self._total = total
        if not self._console.is_terminal:
            return
        rest = Column(no_wrap=False, ratio=1)  # in a narrow window the numbers take several lines
        columns = (
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("steps,"),
            TimeRemainingColumn(),
            TextColumn("left:"),
            TextColumn("{task.fields[numbers]}", markup=False, table_column=rest),
        )
        self._bar = RichProgress(*columns, console=self._console, expand=True)
        start = progress.step
        self._task = self._bar.add_task(self._label, total=total, completed=start, numbers="")
        self._bar.start()

    def stepped(self, progress: Progress, report: Report) -> None:
        """Moves the bar."""
        self._pace = pace(progress, report)
        if self._bar:
            self._bar.update(self._task, completed=progress.step, numbers=self._numbers)
        elif progress.step < self._total:
            left = progress.seconds / progress.step * (self._total - progress.step)
            self._pace += f", {left:,.0f} s left"

    def evaluated(self, line: Mapping[str, Any]) -> None:
        """Shows the newest numbers."""
        self._losses = summary(line)
        if self._bar:
            self._bar.update(self._task, numbers=self._numbers)
        elif not self._console.is_terminal:
            epoch = f"epoch {line['epoch']:.2f}, {line['seconds']:.1f} s"
            self.told(f"{epoch}, {self._numbers}")

    @property
    def _numbers(self) -> str:
        return "; ".join(filter(None, [self._losses, self._pace]))

    def ended(self, status: RunStatus, message: str) -> None:
        """Prints how the run ended, unless it finished."""
        if self._bar:
            self._bar.stop()
        if status is not RunStatus.FINISHED:
            self.told(f"{status}" + (f", {message}" if message else ""))


def pace(progress: Progress, report: Report) -> str:
    """The last step and the rate of all of them, in a few words."""
    gamma, step = float(report.gamma), progress.step
    parts = [
        f"batch loss {float(report.value):.3g}",
        "" if math.isnan(gamma) else f"gamma {gamma:.3g}",
        f"{step - progress.rejected} of {step} steps accepted",
        f"{_rounded(step / progress.seconds)} steps/s" if progress.seconds else "",
    ]
    return ", ".join(filter(None, parts))


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


@contextlib.contextmanager
def downloads(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each file being downloaded: ``progress(name, bytes so far, all bytes)``."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with RichProgress(TextColumn("{task.description}"), *columns, console=console) as progress:
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
