"""Where datasets are stored."""

from __future__ import annotations

import os
import pathlib

from proxlin.bench.data.catalog import Source
from proxlin.bench.errors import DataError


def cache() -> pathlib.Path:
    """The folder of this project in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base, "proxlin")


def root(data_dir: pathlib.Path | None = None) -> pathlib.Path:
    """The folder with all datasets: as given, else ``PROXLIN_DATA``, else in the user's cache."""
    if data_dir is not None:
        return data_dir
    if given := os.environ.get("PROXLIN_DATA"):
        return pathlib.Path(given).expanduser()
    return cache() / "data"


def locate(source: Source, data_dir: pathlib.Path | None = None) -> pathlib.Path:
    """The folder that holds a dataset: one of its name in the data folder, or that folder itself.

    Raises:
        DataError: if there is none; the message says what to run.
    """
    base = root(data_dir)
    for folder in (base / source.name, base):
        for place in (folder, folder / source.subfolder):
            if holds(place, source):
                return place
    raise DataError(
        f"{source.name} is neither in {base / source.name} nor in {base}: run `proxlin data fetch "
        f"{source.name}`, or point --data-dir or PROXLIN_DATA to the folder that contains "
        f"{source.files[0].name}"
    )


def home(source: Source, data_dir: pathlib.Path | None = None) -> pathlib.Path:
    """The dataset's own folder, to write to.

    Never a folder of another name: its files may belong to another dataset, under the same names.
    """
    base = root(data_dir)
    folder = base if base.name == source.name else base / source.name
    nested = folder / source.subfolder
    return nested if holds(nested, source) else folder


def holds(folder: pathlib.Path, source: Source) -> bool:
    """Whether a folder holds any file of a dataset, compressed or not."""
    names = (known.name for known in source.files)
    return any((folder / f"{name}{end}").is_file() for name in names for end in ("", ".gz"))
