"""The data sets of the suite that the bench does not have, and augmentation."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import UInt8

from proxlin.bench.data.datasets import Arrays, Dataset, one_hot
from proxlin.bench.data.places import root
from proxlin.bench.data.text import CHARACTERS, CONTEXT, encode
from proxlin.bench.errors import DataError

TEST_PIECES = 2000  # of text
TEST_FLIGHTS = 30_000


def load_bible(data_dir: pathlib.Path | None = None) -> Dataset:
    """The King James Bible in pieces of 64 characters; the targets are those that come next.

    For testing there are 2,000 pieces out of all parts of it, in runs of 50.
    """
    numbers = encode(_stored("bible", data_dir)["text"].tobytes().decode())
    pieces = (len(numbers) - 1) // CONTEXT
    inputs, targets = (
        numbers[shift : shift + pieces * CONTEXT].reshape(pieces, CONTEXT) for shift in (0, 1)
    )
    every = pieces // (TEST_PIECES // 50)  # a run of 50 pieces in so many
    test = np.arange(pieces) % every < 50
    test &= np.arange(pieces) < every * (TEST_PIECES // 50)
    return _dataset(
        "bible",
        f"King James Bible, pieces of {CONTEXT} characters",
        inputs,
        targets.astype(np.int32),
        test,
        classes=CHARACTERS,
        shape=(CONTEXT, CHARACTERS),
        prepare=one_hot(CHARACTERS),
    )


def load_air_time(data_dir: pathlib.Path | None = None) -> Dataset:
    """How long flights from New York in 2013 were in the air, by distance, time and weather.

    All numbers but the indicators of categories are standardized.
    """
    columns = _stored("flights", data_dir)
    numbers = ("distance", "lat", "lon", "temp", "humid", "wind_speed", "pressure", "visib")
    year = 2 * np.pi * (columns["month"] - 1 + columns["day"] / 31) / 12
    day = 2 * np.pi * columns["sched_dep_time"] / 2400
    wind = np.deg2rad(columns["wind_dir"])
    waves = [wave(x) for x in (year, 2 * year, day, wind) for wave in (np.sin, np.cos)]
    inputs = np.stack([*(columns[key] for key in numbers), *waves], axis=1)
    targets = columns["air_time"][:, None]
    test = _test_flights(len(targets))
    inputs, targets = (
        np.nan_to_num((x - np.nanmean(x[~test], axis=0)) / np.nanstd(x[~test], axis=0))
        for x in (inputs, targets)
    )
    kinds = [np.eye(FLIGHTS[key])[columns[key]] for key in ("carrier", "origin")]
    inputs = np.concatenate([inputs, *kinds], axis=1).astype(np.float32)
    targets = targets.astype(np.float32)
    description = "flights from New York in 2013: distance, time, weather -> time in the air"
    return _dataset("flights", description, inputs, targets, test, shape=inputs.shape[1:])


def load_destinations(data_dir: pathlib.Path | None = None) -> Dataset:
    """Where flights from New York in 2013 went, by the categories of :data:`FLIGHTS`."""
    columns = dict(_stored("flights", data_dir))
    columns["date"] = 31 * (columns["month"] - 1) + columns["day"] - 1
    columns["hour"] = columns["hour"] - columns["hour"].min()
    inputs = np.stack([columns[key] for key in FLIGHTS], axis=1).astype(np.int32)
    description = f"flights from New York in 2013: {', '.join(FLIGHTS)} -> destination"
    return _dataset(
        "flights",
        description,
        inputs,
        columns["dest"],
        _test_flights(len(inputs)),
        classes=DESTINATIONS,
        shape=inputs.shape[1:],
    )


DESTINATIONS = 104
FLIGHTS: Mapping[str, int] = {  # how many categories each column has
    "carrier": 16,
    "origin": 3,
    "tailnum": 4037,
    "flight": 3835,
    "hour": 19,
    "date": 372,
}


def augmented(
    images: UInt8[np.ndarray, "m height width channels"], seed: int, step: int, margin: int = 4
) -> UInt8[np.ndarray, "m height width channels"]:
    """Images shifted by up to ``margin`` pixels, and mirrored or not, at random.

    What comes in at the border is black. A pure function of seed and step.
    """
    rng = np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 0, 0, 1]))
    m, height, width, _ = images.shape
    padded = np.pad(images, [(0, 0), (margin, margin), (margin, margin), (0, 0)])
    top, left = rng.integers(0, 2 * margin + 1, (2, m))
    columns = left[:, None] + np.arange(width)
    columns = np.where(rng.random((m, 1)) < 0.5, columns, columns[:, ::-1])
    rows = top[:, None] + np.arange(height)
    return padded[np.arange(m)[:, None, None], rows[:, :, None], columns[:, None, :]]


def _test_flights(n: int) -> np.ndarray:
    """Which flights are for testing, at random but always the same."""
    test = np.zeros(n, bool)
    test[np.random.Generator(np.random.Philox(key=0)).permutation(n)[:TEST_FLIGHTS]] = True
    return test


def _stored(name: str, data_dir: pathlib.Path | None) -> Mapping[str, np.ndarray]:
    path = root(data_dir) / name / f"{name}.npz"
    if not path.is_file():
        raise DataError(f"{path}: not found; run `python -m benchmarks.suite data`")
    with np.load(path) as arrays:
        return dict(arrays)


def _dataset(
    name: str,
    description: str,
    inputs: np.ndarray,
    targets: np.ndarray,
    test: np.ndarray,
    classes: int = 0,
    shape: tuple[int, ...] = (),
    prepare=lambda inputs: inputs,
) -> Dataset:
    """Splits arrays; the sha256 is that of inputs and targets for training, then for testing."""
    splits = [Arrays(inputs[rows], targets[rows]) for rows in (~test, test)]
    content = b"".join(array.tobytes() for s in splits for array in (s.inputs, s.targets))
    sha256 = hashlib.sha256(content).hexdigest()
    return Dataset(name, description, classes, shape, *splits, sha256, prepare)
