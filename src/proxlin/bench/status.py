"""How runs end, and their exit codes on the command line."""

from __future__ import annotations

import enum


class RunStatus(enum.StrEnum):
    """The state of a run; its value is what ``run.json`` holds.

    RUNNING: in progress, or killed before its end was recorded.
    FINISHED: all steps were taken.
    BUDGET: its time limit was reached.
    DIVERGED: non-finite numbers in several consecutive steps, or in the test loss.
    STALLED: no acceptable step was found, many times in a row.
    OOM: out of memory.
    INTERRUPTED: ended by a signal, after it was saved.
    KILLED: ended by a signal that left no time to save.
    FAILED: ended by an unexpected error; it can be resumed.

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
        """Whether the run ended as requested."""
        return self in (self.FINISHED, self.BUDGET)

    @property
    def exit_code(self) -> int:
        """0 for success, 4 for a run that ended otherwise, 1 for one that can be resumed."""
        return 0 if self.succeeded else 4 if self.ended else 1
