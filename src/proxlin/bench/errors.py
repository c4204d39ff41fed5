"""Errors of the bench, with their exit codes on the command line."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator


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


@contextlib.contextmanager
def rejections(what: str) -> Iterator[None]:
    """Turns what the checks of the library and of Optax raise into a :class:`UsageError`.

    Errors of the user's own code keep their traceback.

    Args:
        what: was asked for, for the message.

    Example:
        >>> import proxlin
        >>> with rejections("method 'spl'"):
        ...     proxlin.CG(-1)
        Traceback (most recent call last):
            ...
        proxlin.bench.errors.UsageError: method 'spl': CG(max_steps=-1): give an integer ...
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        module = frames[-1].f_globals.get("__name__", "")
        if module.split(".")[0] not in ("proxlin", "optax"):
            raise
        raise UsageError(f"{what}: {error}") from error
