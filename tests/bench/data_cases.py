"""Little datasets in the published formats, with sums of their own."""

from __future__ import annotations

import gzip
import hashlib
import struct

import numpy as np

from proxlin.bench.data.catalog import Source
from proxlin.bench.data.files import KnownFile


def idx(array):
    """An IDX file of bytes."""
    array = np.asarray(array, np.uint8)
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist_files(seed=0, train=7, test=3):
    """Contents by name, and the arrays they hold."""
    rng = np.random.default_rng(seed)
    contents, arrays = {}, {}
    for prefix, n in (("train", train), ("t10k", test)):
        images = rng.integers(256, size=(n, 28, 28), dtype=np.uint8)
        labels = rng.integers(10, size=n, dtype=np.uint8)
        arrays[prefix] = (images, labels)
        contents[f"{prefix}-images-idx3-ubyte"] = idx(images)
        contents[f"{prefix}-labels-idx1-ubyte"] = idx(labels)
    return contents, arrays


def cifar10_files(seed=0, n=4):
    """Contents by name, of n records each."""
    rng = np.random.default_rng(seed)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    records = {name: rng.integers(10, size=(n, 3073), dtype=np.uint8) for name in names}
    return {name: record.tobytes() for name, record in records.items()}


def source(name, contents, **more):
    """The source of these contents."""
    known = (
        KnownFile(file, len(content), hashlib.sha256(content).hexdigest())
        for file, content in contents.items()
    )
    return Source(name, tuple(known), **more)


def write(folder, contents, packed=False):
    """The files, gzipped or not."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, 1))
        else:
            (folder / name).write_bytes(content)
    return folder
