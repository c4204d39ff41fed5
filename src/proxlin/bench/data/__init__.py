"""Datasets: checked when they are read, and downloaded only on request.

The order of the examples is a pure function of the seed, the epoch and the step, so that a run can
resume in the middle of an epoch, and all methods see the same batches.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

from proxlin.bench.data import catalog, images, places, readers, text
from proxlin.bench.data.catalog import Source
from proxlin.bench.data.datasets import Arrays, Batch, Dataset, Split, reconstruction
from proxlin.bench.data.fetch import Progress, fetch
from proxlin.bench.data.files import Fault
from proxlin.bench.data.verify import FileState, verify
from proxlin.bench.errors import DataError, UsageError

__all__ = [
    "DATASETS",
    "Arrays",
    "Batch",
    "Dataset",
    "FileState",
    "Progress",
    "Split",
    "fetch",
    "load",
    "reconstruction",
    "verify",
]


def load(name: str, data_dir: pathlib.Path | None = None) -> Dataset:
    """Loads a dataset from its files.

    Args:
        name: one of :data:`DATASETS`.
        data_dir: the folder with all datasets, or with the files of this one; by default
            ``PROXLIN_DATA``, or ``proxlin/data`` in the user's cache. The digits and the text
            need none.

    Raises:
        UsageError: if there is no dataset of this name.
        DataError: if a file is missing, truncated or altered; the message says what to do.

    Example:
        >>> digits = load("digits")
        >>> len(digits.train), len(digits.test), digits.shape
        (1347, 450, (8, 8, 1))
    """
    if name not in DATASETS:
        raise UsageError(f"there is no dataset {name!r}; choose one of {', '.join(DATASETS)}")
    return DATASETS[name](data_dir)


def _from_files(
    source: Source,
    read: Callable[[Source, pathlib.Path], Dataset],
    data_dir: pathlib.Path | None,
) -> Dataset:
    try:
        return read(source, places.locate(source, data_dir))
    except Fault as fault:
        message = f"{fault}; `proxlin data fetch {source.name}` downloads it again"
        raise DataError(message) from fault


DATASETS: dict[str, Callable[[pathlib.Path | None], Dataset]] = {
    "digits": lambda data_dir: readers.load_digits(),
    "text": lambda data_dir: text.load_text(),
    "mnist": functools.partial(_from_files, catalog.MNIST, readers.load_mnist),
    "fashion-mnist": functools.partial(_from_files, catalog.FASHION_MNIST, readers.load_mnist),
    "cifar10": functools.partial(_from_files, catalog.CIFAR10, readers.load_cifar10),
    "imagenet": images.load_imagenet,
}
"""Name -> loader, which takes the data folder."""
