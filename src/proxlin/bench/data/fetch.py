"""Downloads, only on request: bounded in size, checked, and moved into place atomically."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO

from proxlin.bench.data import files
from proxlin.bench.data.catalog import SOURCES, Download, Source
from proxlin.bench.data.files import Fault, KnownFile
from proxlin.bench.data.places import home, root
from proxlin.bench.data.verify import examine
from proxlin.bench.errors import DataError, StorageError, UsageError

Progress = Callable[[str, int, int], None]
"""Called with the name of a file, its bytes so far, and its size."""

_IMAGENET = (
    "imagenet cannot be fetched: its terms ask each user to register, at https://image-net.org. "
    "Put the images of ILSVRC 2012 in {folder}, as train/<class>/*.JPEG and val/<class>/*.JPEG"
)


def fetch(
    name: str,
    data_dir: pathlib.Path | None = None,
    progress: Progress = lambda name, done, size: None,
    sources: Mapping[str, Source] = SOURCES,
) -> pathlib.Path:
    """Downloads the missing files of a dataset.

    Intact files are left alone. Files and downloads that are not as published are kept as
    ``*.bad``, for inspection.

    Args:
        name: of the dataset.
        data_dir: the folder with all datasets; by default ``PROXLIN_DATA``, or the user's cache.
        progress: called as bytes arrive.
        sources: what was published, and where.

    Returns:
        The folder of the dataset.

    Raises:
        UsageError: if no dataset of this name can be fetched.
        DataError: if the server cannot be reached, or sends something else.
        StorageError: if the folder cannot be written.
    """
    if name == "imagenet":
        raise DataError(_IMAGENET.format(folder=root(data_dir) / name))
    if name not in sources:
        names = ", ".join(sources)
        raise UsageError(
            f"cannot fetch {name!r}; choose one of {names}. digits comes with scikit-learn, text "
            "with Python"
        )
    source = sources[name]
    folder = home(source, data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for download in source.downloads:
            known = [source[file] for file in download.holds]
            states = [examine(name, folder, file) for file in known]
            if all(file.state == "ok" for file in states):
                continue
            for file in states:
                if file.state in ("truncated", "altered"):
                    os.replace(file.path, f"{file.path}.bad")
            with _downloaded(download, folder, progress) as path:
                _place(download, path, folder, known)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return folder


@contextlib.contextmanager
def _downloaded(
    download: Download, folder: pathlib.Path, progress: Progress
) -> Iterator[pathlib.Path]:
    """A checked download in a temporary file; if it is faulty, it is kept as ``*.bad``."""
    import pooch
    import requests

    path = folder / f".{os.getpid()}.{download.name}"
    try:
        with path.open("wb") as file:
            plain = {"Accept-Encoding": "identity"}  # compressed files stay compressed
            get = pooch.HTTPDownloader(chunk_size=2**16, headers=plain)
            get(download.url, _Bounded(file, download, progress), None)
        if path.stat().st_size < download.size:
            raise Fault(path, "truncated", f"{path.stat().st_size:,} bytes of {download.size:,}")
        if pooch.file_hash(path, "md5") != download.md5:
            raise Fault(path, "altered", f"its MD5 is not {download.md5}")
        yield path
    except requests.RequestException as error:
        raise DataError(f"{download.url}: cannot be fetched: {error}") from error
    except Fault as error:
        bad = folder / f"{download.name}.bad"
        os.replace(path, bad)
        raise DataError(
            f"{download.url}: {error.state}: {error.reason}; kept as {bad}, try again later"
        ) from error
    finally:
        path.unlink(missing_ok=True)


class _Bounded:
    """A file that accepts no more bytes than expected, and reports its progress."""

    def __init__(self, file: BinaryIO, download: Download, progress: Progress) -> None:
        self.file, self.download, self.progress = file, download, progress

    def write(self, chunk: bytes) -> None:
        size = self.download.size
        if self.file.tell() + len(chunk) > size:
            path = pathlib.Path(self.file.name)
            raise Fault(path, "altered", f"more than the {size:,} bytes expected")
        self.file.write(chunk)
        self.progress(self.download.name, self.file.tell(), size)

    def flush(self) -> None:
        self.file.flush()


def _place(
    download: Download, path: pathlib.Path, folder: pathlib.Path, known: list[KnownFile]
) -> None:
    """Moves a download into place; of an archive, the members with known names."""
    if not download.name.endswith(".tar.gz"):
        [file] = known
        files.check(path, files.read(path, file.size), file.sha256)
        os.replace(path, folder / download.name)
        return
    for file, content in read_tar(path, known):
        part = folder / f".{os.getpid()}.{file.name}"
        try:
            part.write_bytes(content)
            os.replace(part, folder / file.name)
        finally:
            part.unlink(missing_ok=True)


def read_tar(path: pathlib.Path, known: list[KnownFile]) -> Iterator[tuple[KnownFile, bytes]]:
    """The known files in an archive, whatever their folders.

    Nothing is unpacked to a path that the archive chooses: only the last part of a member's name
    counts, and only regular files of exactly the known size and checksum are accepted.

    Raises:
        Fault: if one is missing, not a regular file, or not what was published.
    """
    missing = {file.name: file for file in known}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                file = missing.pop(member.name.rpartition("/")[2], None)
                if file is None:
                    continue
                content = archive.extractfile(member) if member.isreg() else None
                if content is None or member.size != file.size:
                    what = f"{member.name} is not a regular file of {file.size:,} bytes"
                    raise Fault(path, "altered", what)
                data = content.read(file.size)
                files.check(path / member.name, data, file.sha256)
                yield file, data
    except (tarfile.TarError, EOFError) as error:
        raise Fault(path, "altered", f"damaged archive ({error})") from error
    if missing:
        raise Fault(path, "altered", f"no {', '.join(missing)} in it")
