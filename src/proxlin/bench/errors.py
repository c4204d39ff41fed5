"""Errors of the bench, with their exit codes on the command line."""

from __future__ import annotations


class BenchError(Exception):
    """An error that the user can fix; the command line prints it without a traceback."""

    exit_code = 1


class UsageError(BenchError):
    """An unusable name, option or file."""

    exit_code = 2


class DataError(BenchError):
    """Data that is missing, truncated or altered; the message names the file."""

    exit_code = 3


class StorageError(BenchError):
    """A folder that cannot be written, is in use, or holds damaged records."""

    exit_code = 5


class InUseError(StorageError):
    """A folder that another process is using."""


class Interrupted(BenchError):
    """A signal ended the work; everything done so far is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}; continue with the same command")
        self.exit_code = 128 + number


class KilledError(BenchError):
    """A signal ended the process of a run before it could save."""
