"""What a run has done so far, in numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from proxlin.bench.loop import Report

NAMED = 100  # at most so many rejected steps are listed in a record


class Progress(NamedTuple):
    """What a run has done so far; this and its :class:`~proxlin.bench.loop.State` can be resumed.

    Attributes:
        step: steps taken.
        seconds: measured by the clock.
        jvps, vjps: products computed.
        rejected: rejected steps.
        rejected_steps: the numbers of the first hundred of them.
        in_a_row: consecutive rejected steps so far.
        recent: steps, and sums of eta, gamma and residual, since the last evaluation.
        resumed: how often the run was resumed.
    """

    step: int = 0
    seconds: float = 0.0
    jvps: int = 0
    vjps: int = 0
    rejected: int = 0
    rejected_steps: tuple[int, ...] = ()
    in_a_row: int = 0
    recent: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    resumed: int = 0

    @classmethod
    def of(cls, counters: Mapping[str, Any]) -> Progress:
        """The progress from the JSON of a checkpoint."""
        plain: dict[str, Any] = {
            key: tuple(x) if isinstance(x, list) else x for key, x in counters.items()
        }
        return cls(**plain)

    def after(self, report: Report, seconds: float) -> Progress:
        """The progress after one more step."""
        step, rejected = self.step + 1, bool(report.rejected)
        numbers = (1.0, float(report.eta), float(report.gamma), float(report.residual))
        which = (*self.rejected_steps, step) if rejected else self.rejected_steps
        return self._replace(
            step=step,
            seconds=self.seconds + seconds,
            jvps=self.jvps + int(report.jvps),
            vjps=self.vjps + int(report.vjps),
            rejected=self.rejected + rejected,
            rejected_steps=which[:NAMED],
            in_a_row=self.in_a_row + 1 if rejected else 0,
            recent=tuple(a + b for a, b in zip(self.recent, numbers, strict=True)),
        )

    @property
    def means(self) -> dict[str, float]:
        """Means of eta, gamma and residual since the last evaluation."""
        count, *sums = self.recent
        means = [x / count if count else math.nan for x in sums]
        return dict(zip(("eta", "gamma", "residual"), means, strict=True))

    def evaluated(self) -> Progress:
        """The same, with the means reset."""
        return self._replace(recent=Progress().recent)
