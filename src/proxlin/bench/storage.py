"""Atomic writes, checks of folders before the work starts, and a lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import platform
import shutil
from collections.abc import Iterator
from typing import Any

from proxlin.bench.errors import InUseError, StorageError


def write_atomically(path: pathlib.Path, text: str) -> None:
    """Writes a file atomically: readers see the old or the new one, even if the writer is killed.

    Args:
        path: the file.
        text: its content.

    Raises:
        StorageError: if the disk is full or the folder cannot be written.

    Example:
        >>> import tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "run.json"
        >>> write_atomically(file, "{}")
        >>> file.read_text(), [path.name for path in file.parent.iterdir()]
        ('{}', ['run.json'])
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with explained(path.parent, len(text)):
        try:
            with temporary.open("w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(folder: pathlib.Path, needed: int) -> Iterator[None]:
    """Turns errors of a folder that cannot be written into a :class:`StorageError`."""
    try:
        yield
    except OSError as error:
        reason = f"cannot write to {folder} ({error.strerror or error})"
        file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
        if file:
            raise StorageError(
                f"cannot write to {folder}: {file} is a file; name a folder"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StorageError(
                f"{reason}: change its permissions or choose another folder"
            ) from error
        free = shutil.disk_usage(folder).free if folder.exists() else 0
        raise StorageError(
            f"{reason}; {needed:,} bytes are needed, {free:,} are free. What was saved before is "
            "intact: free some space or choose another folder, and continue with --resume"
        ) from error


def check_folder(folder: pathlib.Path, needed: int) -> None:
    """Creates a folder and writes to it, before hours of work depend on it.

    Args:
        folder: where a run will be written.
        needed: the most bytes that the run will need.

    Raises:
        StorageError: if the folder cannot be created or written, or the disk has too little space.
    """
    with explained(folder, needed):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}.tmp"
        probe.write_bytes(b"proxlin")
        probe.unlink()
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageError(
            f"{folder} is on a disk with {free:,} free bytes, and the run needs about {needed:,}: "
            "free some space or choose another folder"
        )


@contextlib.contextmanager
def lock(folder: pathlib.Path) -> Iterator[None]:
    """Locks a folder for this process; the system unlocks it however the process ends.

    Raises:
        InUseError: if another process holds it; the message says which.
    """
    path = folder / "lock"
    with explained(folder, 100):
        stream = path.open("a+", encoding="utf-8")
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InUseError(
                f"{folder} is in use by {_holder(path)}; wait for it, or choose another folder"
            ) from error
        stream.truncate(0)
        json.dump({"process": os.getpid(), "host": platform.node()}, stream)
        stream.flush()
        yield


def in_use(folder: pathlib.Path) -> bool:
    """Whether another process holds a folder."""
    try:
        with lock(folder) if folder.exists() else contextlib.nullcontext():
            return False
    except InUseError:
        return True


def _holder(path: pathlib.Path) -> str:
    try:
        holder: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['process']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
