"""Who observes a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from proxlin.bench.loop import Report
from proxlin.bench.progress import Progress
from proxlin.bench.records import Config
from proxlin.bench.status import RunStatus


class Watch:
    """Observes a run, while the clock is stopped. This one does nothing."""

    def told(self, message: str) -> None:
        """What the user should know of a run, such as where it resumes."""

    def compiling(self, about: float | None) -> None:
        """The step is being compiled; ``about`` is how many seconds that took last time."""

    def started(self, config: Config, progress: Progress, total: int) -> None:
        """The run starts or resumes; ``total`` is its number of steps."""

    def stepped(self, progress: Progress, report: Report) -> None:
        """A step was taken."""

    def evaluated(self, line: Mapping[str, Any]) -> None:
        """A line was added to the metrics."""

    def ended(self, status: RunStatus, message: str) -> None:
        """The run is over."""


class Watches(Watch):
    """Several that observe the same run: each is told all of it."""

    def __init__(self, *watches: Watch) -> None:
        for event in ("told", "compiling", "started", "stepped", "evaluated", "ended"):
            setattr(self, event, _for_each([getattr(watch, event) for watch in watches]))


def _for_each(calls: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def tell(*arguments: Any) -> None:
        for call in calls:
            call(*arguments)

    return tell
