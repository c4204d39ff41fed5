"""How runs end, and the exit codes of the command line for it."""

from __future__ import annotations

import enum


class RunStatus(enum.StrEnum):
    """The state of a run; its value is what ``run.json`` holds.

    RUNNING: at work, or killed before it could say so.
    FINISHED: all steps were made.
    BUDGET: its seconds were spent.
    DIVERGED: non-finite numbers, several steps in a row or in the test loss.
    STALLED: no acceptable step, many times in a row.
    OOM: out of memory.
    INTERRUPTED: by a signal, after it was saved.
    KILLED: by a signal that left no time to save.
    FAILED: by an error that is not the run's own.

    Example:
        >>> RunStatus("diverged").ended, RunStatus.DIVERGED.exit_code
        (True, 4)
    """

    RUNNING = "running"
    FINISHED = "finished"
    BUDGET = "budget"
    DIVERGED = "diverged"
    STALLED = "stalled"
    OOM = "oom"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether the run is over, so that resuming it does nothing."""
        return self.succeeded or self in (self.DIVERGED, self.STALLED, self.OOM)

    @property
    def succeeded(self) -> bool:
        """Whether it came to the end that was asked for."""
        return self in (self.FINISHED, self.BUDGET)

    @property
    def exit_code(self) -> int:
        """Zero for success, 4 for a run that has failed for good, else 1."""
        return 0 if self.succeeded else 4 if self.ended else 1
