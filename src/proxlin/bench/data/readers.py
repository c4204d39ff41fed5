"""The datasets that fit in memory, from their published files."""

from __future__ import annotations

import hashlib
import math
import pathlib

import numpy as np
from jaxtyping import Int32, UInt8

from proxlin.bench.data import files
from proxlin.bench.data.catalog import Source
from proxlin.bench.data.datasets import Arrays, Dataset, scaled, standardized
from proxlin.bench.errors import DataError

# Of the 50,000 training images, channel by channel, with pixels scaled to [0, 1].
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)

_CIFAR10_RECORD = 1 + 3 * 32 * 32  # a label; red, green and blue, row by row


def load_digits() -> Dataset:
    """The 1,797 digits of scikit-learn, 8 x 8 pixels, always split into the same 1,347 and 450.

    The sha256 is that of the pixels and labels (uint8, int32) for training, then for testing.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    inputs = pixels.astype(np.uint8).reshape(-1, 8, 8, 1)
    targets = labels.astype(np.int32)
    train_x, test_x, train_y, test_y = train_test_split(
        inputs, targets, test_size=0.25, stratify=targets, random_state=0
    )
    content = b"".join(x.tobytes() for x in (train_x, train_y, test_x, test_y))
    return Dataset(
        name="digits",
        description="digits of scikit-learn, 8 x 8 pixels scaled to [0, 1]",
        classes=10,
        shape=(8, 8, 1),
        train=Arrays(train_x, train_y),
        test=Arrays(test_x, test_y),
        sha256=hashlib.sha256(content).hexdigest(),
        prepare=scaled(16),
    )


def load_mnist(source: Source, folder: pathlib.Path) -> Dataset:
    """MNIST, or another dataset of the same four IDX files, compressed or not.

    The sha256 is that of the list of files; see :func:`manifest_sha256`.

    Raises:
        DataError: if a file is missing, truncated or altered.
    """

    def split(prefix: str) -> Arrays:
        images, labels = (
            parse_idx(folder / name, files.load(folder, source[name]), axes)
            for name, axes in (
                (f"{prefix}-images-idx3-ubyte", 3),
                (f"{prefix}-labels-idx1-ubyte", 1),
            )
        )
        if len(images) != len(labels):
            raise DataError(f"{folder}: {len(images)} images of {prefix}, {len(labels)} labels")
        return Arrays(images[..., None], labels.astype(np.int32))

    train, test = split("train"), split("t10k")
    title = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}.get(source.name, source.name)
    return Dataset(
        name=source.name,
        description=f"{title}, 28 x 28 pixels scaled to [0, 1]",
        classes=10,
        shape=(*train.inputs.shape[1:],),
        train=train,
        test=test,
        sha256=manifest_sha256(source),
        prepare=scaled(255),
    )


def parse_idx(
    path: pathlib.Path, content: bytes | bytearray, axes: int
) -> UInt8[np.ndarray, "..."]:
    """The array in an IDX file of bytes.

    The header is ``0 0 8 axes``, then the length of each axis in four bytes, the highest first.

    Raises:
        DataError: if the header is wrong, or does not match the size.
    """
    start = 4 + 4 * axes
    if bytes(content[:4]) != bytes((0, 0, 8, axes)) or len(content) < start:
        raise DataError(
            f"{path}: not an IDX file of bytes with {axes} axes: it starts with "
            f"{bytes(content[:4]).hex()}, not {0x800 + axes:08x}"
        )
    shape = np.frombuffer(content, ">u4", count=axes, offset=4).tolist()
    size = start + math.prod(shape)  # in Python's integers, which do not overflow
    if len(content) != size:
        raise DataError(f"{path}: {len(content):,} bytes, but its header says {size:,}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def load_cifar10(source: Source, folder: pathlib.Path) -> Dataset:
    """CIFAR-10 from its binary version: five files for training, one for testing.

    The sha256 is that of the list of files; see :func:`manifest_sha256`.

    Raises:
        DataError: if a file is missing, truncated or altered.
    """
    *train, test = (
        parse_cifar10(folder / known.name, files.load(folder, known)) for known in source.files
    )
    images, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Dataset(
        name=source.name,
        description="CIFAR-10, 32 x 32 pixels in color, each channel standardized",
        classes=10,
        shape=(32, 32, 3),
        train=Arrays(images, labels),
        test=Arrays(*test),
        sha256=manifest_sha256(source),
        prepare=standardized(CIFAR10_MEAN, CIFAR10_STD),
    )


def parse_cifar10(
    path: pathlib.Path, content: bytes | bytearray
) -> tuple[UInt8[np.ndarray, "n 32 32 3"], Int32[np.ndarray, " n"]]:
    """The images and labels in a file of CIFAR-10.

    Raises:
        DataError: if the size is not a whole number of records.
    """
    if len(content) % _CIFAR10_RECORD:
        raise DataError(
            f"{path}: {len(content):,} bytes are not a whole number of records of "
            f"{_CIFAR10_RECORD:,} bytes"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _CIFAR10_RECORD)
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[:, 0].astype(np.int32)


def manifest_sha256(source: Source) -> str:
    """The checksum of the list of files, as ``sha256sum`` prints it; each file was checked."""
    lines = "".join(f"{known.sha256}  {known.name}\n" for known in source.files)
    return hashlib.sha256(lines.encode()).hexdigest()
