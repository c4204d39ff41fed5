"""What the bench cannot go on with, and the exit code of the command line for it."""

from __future__ import annotations


class BenchError(Exception):
    """Something that the user can mend; the command line prints it without a traceback."""

    exit_code = 1


class UsageError(BenchError):
    """A name, an option or a file of the user's that cannot be used."""

    exit_code = 2


class DataError(BenchError):
    """Data that is missing, truncated or altered; the message names the file."""

    exit_code = 3


class StorageError(BenchError):
    """A folder that cannot be written, is in use, or holds damaged records."""

    exit_code = 5


class InUseError(StorageError):
    """A folder that another process works on."""


class Interrupted(BenchError):
    """A signal ended the work after what was done had been saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}; go on with the same command")
        self.exit_code = 128 + number


class KilledError(BenchError):
    """A signal ended the process of a run, which could not save."""
