"""What training sees of a dataset: two splits, and how raw examples become inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from proxlin.bench.errors import UsageError

Batch: TypeAlias = tuple[np.ndarray, np.ndarray]
"""Raw inputs, such as pixels in uint8, and targets: labels in int32, or numbers in float32."""

Prepare: TypeAlias = Callable[[Any], Float[Array, "m ..."]]
"""Raw inputs -> what the network takes, in float32; may be jitted."""


class Split(Protocol):
    """Examples to train on, or to test on."""

    def __len__(self) -> int: ...

    def epoch(self, seed: int, epoch: int, batch_size: int, start: int = 0) -> Iterator[Batch]:
        """The full batches of one epoch; an incomplete last batch is dropped.

        Args:
            seed: for the order.
            epoch: its number; each epoch has its own order.
            batch_size: examples in a batch.
            start: how many batches to skip, at no cost, to resume within an epoch.

        Returns:
            Batches that are a pure function of the seed, the epoch and the step within it.

        Raises:
            UsageError: if there is no full batch, or ``start`` lies beyond the epoch.
        """
        ...

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Batch]:
        """Each example once, in a fixed order, for evaluation; the last batch may be smaller.

        Args:
            batch_size: examples in a batch.
            limit: how many examples, from the first; by default all.
        """
        ...


@dataclass(frozen=True)
class Dataset:
    """A dataset.

    Attributes:
        name: as in :data:`proxlin.bench.data.DATASETS`.
        description: for records and titles: the data that was actually used.
        classes: how many labels there are.
        shape: of one input after ``prepare``.
        train: what to train on.
        test: what to test on.
        sha256: of the content; each loader documents of what exactly.
        prepare: raw inputs -> what the network takes.
    """

    name: str
    description: str
    classes: int
    shape: tuple[int, ...]
    train: Split
    test: Split
    sha256: str
    prepare: Prepare


@dataclass(frozen=True, eq=False)
class Arrays:
    """A split in memory.

    Example:
        >>> split = Arrays(np.arange(5, dtype=np.uint8), np.arange(5, dtype=np.int32))
        >>> [len(targets) for _, targets in split.epoch(seed=0, epoch=0, batch_size=2)]
        [2, 2]
        >>> [targets.tolist() for _, targets in split.batches(2)]
        [[0, 1], [2, 3], [4]]
    """

    inputs: Shaped[np.ndarray, "n ..."]
    targets: Shaped[np.ndarray, "n ..."]

    def __len__(self) -> int:
        return len(self.targets)

    def epoch(self, seed: int, epoch: int, batch_size: int, start: int = 0) -> Iterator[Batch]:
        """The full batches of one epoch; see :class:`Split`."""
        for rows in epoch_rows(len(self), seed, epoch, batch_size, start):
            yield self.inputs[rows], self.targets[rows]

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Batch]:
        """Each example once, in order; see :class:`Split`."""
        stop = len(self) if limit is None else min(limit, len(self))
        for i in range(0, stop, batch_size):
            rows = slice(i, min(i + batch_size, stop))
            yield self.inputs[rows], self.targets[rows]


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """A split whose targets are the prepared inputs, flattened.

    Example:
        >>> split = Arrays(np.array([[[0, 16]]], np.uint8), np.array([7], np.int32))
        >>> [targets.tolist() for _, targets in Reconstruction(split, scaled(16)).batches(1)]
        [[[0.0, 1.0]]]
    """

    split: Split
    prepare: Prepare

    def __len__(self) -> int:
        return len(self.split)

    def epoch(self, seed: int, epoch: int, batch_size: int, start: int = 0) -> Iterator[Batch]:
        """The full batches of one epoch; see :class:`Split`."""
        return self._with_targets(self.split.epoch(seed, epoch, batch_size, start))

    def batches(self, batch_size: int, limit: int | None = None) -> Iterator[Batch]:
        """Each example once, in order; see :class:`Split`."""
        return self._with_targets(self.split.batches(batch_size, limit))

    def _with_targets(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for inputs, _ in batches:
            yield inputs, np.asarray(self.prepare(inputs)).reshape(len(inputs), -1)


def reconstruction(dataset: Dataset) -> Dataset:
    """The dataset for a network that reconstructs its inputs.

    Example:
        >>> from proxlin.bench import data
        >>> data.reconstruction(data.load("digits")).description
        'digits of scikit-learn, 8 x 8 pixels scaled to [0, 1], to be reconstructed'
    """
    return replace(
        dataset,
        description=f"{dataset.description}, to be reconstructed",
        train=Reconstruction(dataset.train, dataset.prepare),
        test=Reconstruction(dataset.test, dataset.prepare),
    )


def epoch_rows(
    n: int, seed: int, epoch: int, batch_size: int, start: int = 0
) -> Int[np.ndarray, "steps b"]:
    """Which of n examples are in which batch of an epoch, from batch ``start`` on.

    The order comes from a counter-based generator with the key (seed, epoch), so that a run
    can resume anywhere without saving the order.

    Example:
        >>> epoch_rows(7, seed=0, epoch=0, batch_size=2).shape
        (3, 2)
        >>> bool((epoch_rows(7, 0, 0, 2, start=1) == epoch_rows(7, 0, 0, 2)[1:]).all())
        True
    """
    if not 1 <= batch_size <= n:
        raise UsageError(f"batch size {batch_size} for {n:,} examples: give one from 1 to {n:,}")
    steps = n // batch_size
    if not 0 <= start <= steps:
        raise UsageError(
            f"start at step {start} of an epoch of {steps}: give one from 0 to {steps}"
        )
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(n)
    return order[: steps * batch_size].reshape(steps, batch_size)[start:]


def scaled(largest: int) -> Prepare:
    """Pixels from 0 to ``largest``, scaled to [0, 1]."""
    return lambda inputs: inputs.astype(jnp.float32) / largest


def one_hot(classes: int) -> Prepare:
    """Numbers below ``classes`` as one-hot vectors."""
    return lambda inputs: jax.nn.one_hot(inputs, classes, dtype=jnp.float32)


def standardized(mean: Sequence[float], std: Sequence[float]) -> Prepare:
    """Pixels from 0 to 255, scaled to [0, 1], less the mean of each channel, over its deviation."""
    channel = lambda values: np.array(values, np.float32).reshape(1, 1, 1, -1)
    center, scale = channel(mean), channel(std)
    return lambda inputs: (inputs.astype(jnp.float32) / 255 - center) / scale
