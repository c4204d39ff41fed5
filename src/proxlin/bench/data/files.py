"""Untrusted files: read up to a known size, and checked against a known checksum.

Nothing here unpickles, or unpacks more than is expected.
"""

from __future__ import annotations

import gzip
import hashlib
import pathlib
import zlib
from typing import NamedTuple

from proxlin.bench.errors import DataError

_CHUNK = 2**20


class KnownFile(NamedTuple):
    """A file as it was published, without compression."""

    name: str
    size: int
    sha256: str


class Fault(DataError):
    """A file that is not as it was published.

    Attributes:
        state: missing, truncated, altered or unreadable.
        reason: what is wrong.
    """

    def __init__(self, path: pathlib.PurePath, state: str, reason: str) -> None:
        super().__init__(f"{path}: {state}: {reason}")
        self.state = state
        self.reason = reason


def find(folder: pathlib.Path, name: str) -> pathlib.Path:
    """The file of this name in a folder, or the same with ``.gz``.

    Raises:
        Fault: if there is neither.
    """
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise Fault(folder / name, "missing", "not found, with or without .gz")


def read(path: pathlib.Path, size: int) -> bytearray:
    """The content of a file, unpacked if its name ends in ``.gz``, of exactly ``size`` bytes.

    At most one byte more is unpacked, however large the file would become.

    Raises:
        Fault: if there is less or more, or the file cannot be read.
    """
    content = bytearray()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while len(content) <= size:
                chunk = file.read(min(_CHUNK, size + 1 - len(content)))
                if not chunk:
                    break
                content += chunk
    except EOFError:  # the compressed file ends too early, and so does its content
        pass
    except (gzip.BadGzipFile, zlib.error) as error:
        raise Fault(path, "altered", f"damaged gzip ({error})") from error
    except OSError as error:
        raise Fault(path, "unreadable", str(error.strerror)) from error
    if len(content) < size:
        raise Fault(path, "truncated", f"{len(content):,} bytes of {size:,}")
    if len(content) > size:
        raise Fault(path, "altered", f"more than the {size:,} bytes expected")
    return content


def check(path: pathlib.PurePath, content: bytes | bytearray, sha256: str) -> None:
    """Raises a Fault unless the content has the known checksum."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise Fault(path, "altered", f"its sha256 is {found[:12]}..., not {sha256[:12]}...")


def load(folder: pathlib.Path, known: KnownFile) -> bytearray:
    """The content of a known file in a folder, packed or not.

    Raises:
        Fault: if it is missing, truncated or altered.
    """
    path = find(folder, known.name)
    content = read(path, known.size)
    check(path, content, known.sha256)
    return content
