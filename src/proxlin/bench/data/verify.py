"""Which datasets a folder holds, and whether their files are as published."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from proxlin.bench.data import files, images
from proxlin.bench.data.catalog import SOURCES, Source
from proxlin.bench.data.files import Fault, KnownFile
from proxlin.bench.data.places import holds
from proxlin.bench.errors import DataError


class FileState(NamedTuple):
    """The state of a file.

    Attributes:
        dataset: the name of the dataset it belongs to.
        path: where it is, or should be.
        state: ok, missing, truncated, altered or unreadable.
        message: what is wrong, if anything is.
    """

    dataset: str
    path: pathlib.Path
    state: str
    message: str = ""


def verify(path: pathlib.Path, sources: Mapping[str, Source] = SOURCES) -> list[FileState]:
    """The state of each file of the datasets in a folder.

    The folder may be that of one dataset, or hold folders of several. Of images, the
    folder is listed, and each broken image.

    Args:
        path: the folder.
        sources: what was published.

    Raises:
        DataError: if there is no folder, or no dataset in it.
    """
    if not path.is_dir():
        raise DataError(f"{path}: no such folder; give one that holds a dataset, or several")
    folders = [path, *sorted(entry for entry in path.iterdir() if entry.is_dir())]
    subfolders = {source.subfolder for source in sources.values()} - {""}
    folders += [folder / name for folder in folders for name in subfolders]
    states = [
        state
        for folder in dict.fromkeys(folders)  # each once, in this order
        if (found := [s for s in sources.values() if holds(folder, s)])
        for state in _closest(folder, found)
    ]
    for folder in (path, path / "imagenet"):
        if images.is_image_folder(folder):
            states += _images(folder)
    if not states:
        raise DataError(
            f"{path}: no dataset found; known are {', '.join(sources)}, and folders of JPEG files"
        )
    return states


def examine(dataset: str, folder: pathlib.Path, known: KnownFile) -> FileState:
    """The state of one file."""
    path = folder / known.name
    try:
        path = files.find(folder, known.name)
        files.load(folder, known)
    except Fault as fault:
        return FileState(dataset, path, fault.state, fault.reason)
    return FileState(dataset, path, "ok")


def _closest(folder: pathlib.Path, sources: Iterable[Source]) -> list[FileState]:
    """The states for the source with most files right, as MNIST and others share file names."""

    def rank(states: list[FileState]) -> tuple[int, bool]:
        right = sum(file.state == "ok" for file in states)
        return right, states[0].dataset == folder.name

    return max(([examine(s.name, folder, file) for file in s.files] for s in sources), key=rank)


def _images(folder: pathlib.Path) -> list[FileState]:
    """The folder of images, and each broken image in it."""
    splits = images.list_splits(folder)
    broken = [
        FileState("imagenet", path, "altered", reason)
        for split in splits
        for path, reason in split.broken()
    ]
    count = sum(map(len, splits))
    return [FileState("imagenet", folder, "ok", f"{count:,} images, {len(broken)} broken"), *broken]
