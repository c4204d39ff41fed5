"""The eight workloads: a task, a batch size, a number of steps and a score."""

from __future__ import annotations

import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.suite import networks
from benchmarks.suite.data import (
    FLIGHTS,
    augmented,
    load_air_time,
    load_bible,
    load_destinations,
)
from proxlin import BinaryLogistic, Logistic, Squared
from proxlin.bench import data, models
from proxlin.bench.data import reconstruction
from proxlin.bench.tasks import Task, accuracy

DEVELOPMENT = ("convnet", "charlm", "tabular", "autoencoder")
"""Constants of ``auto`` may be chosen on these workloads."""

HELD_OUT = ("resnet", "vit", "recurrent", "embeddings")
"""No constant may be chosen on these; they are reported apart."""


class Spec(NamedTuple):
    """A workload before its data is loaded; see :class:`Workload`."""

    about: str
    task: Callable[[pathlib.Path | None], Task]
    batch: int
    steps: int
    score: str
    examples: int | None = None
    augmented: bool = False


@dataclass(frozen=True)
class Workload:
    """What is trained, for how long, and what counts.

    Attributes:
        name: as in :data:`WORKLOADS`.
        task: network, loss and data.
        batch: examples in a batch.
        steps: the budget: those that a run takes.
        score: "accuracy", to be maximized, or "loss", to be minimized, of the test examples.
        examples: how many test examples, from the first, are evaluated; None for all.
        augmented: whether images for training are shifted and mirrored at random.
    """

    name: str
    task: Task
    batch: int
    steps: int
    score: str
    examples: int | None = None
    augmented: bool = False

    def batches(self, seed: int, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Batches without end from step ``start`` on, a pure function of seed and step."""
        per_epoch = len(self.task.dataset.train) // self.batch
        first, skipped = divmod(start, per_epoch)
        step = start
        for epoch in itertools.count(first):
            skip = skipped if epoch == first else 0
            for inputs, targets in self.task.dataset.train.epoch(seed, epoch, self.batch, skip):
                yield augmented(inputs, seed, step) if self.augmented else inputs, targets
                step += 1

    def test(self, batch: int) -> Iterator[tuple[Any, Any]]:
        """The test examples that are evaluated, in order."""
        return self.task.dataset.test.batches(batch, self.examples)


def _images(name: str, dataset: str, network: Callable[..., models.Network]) -> Callable[..., Task]:
    """Classification of images of a data set of the bench."""

    def make(data_dir: pathlib.Path | None) -> Task:
        loaded = data.load(dataset, data_dir)
        return Task(name, network(loaded.shape, loaded.classes), Logistic(), loaded, accuracy)

    return make


def _charlm(data_dir: pathlib.Path | None) -> Task:
    loaded = load_bible(data_dir)
    network = models.transformer(loaded.shape, loaded.classes, layers=2, width=128)
    return Task("charlm", network, Logistic(), loaded, accuracy)


def _tabular(data_dir: pathlib.Path | None) -> Task:
    loaded = load_air_time(data_dir)
    network = models.mlp(loaded.shape, 1, hidden=(512, 512, 512))
    return Task("tabular", network, Squared(), loaded, score=None)


def _autoencoder(data_dir: pathlib.Path | None) -> Task:
    loaded = reconstruction(data.load("mnist", data_dir))
    return Task("autoencoder", models.autoencoder(loaded.shape), BinaryLogistic(), loaded, None)


def _embeddings(data_dir: pathlib.Path | None) -> Task:
    loaded = load_destinations(data_dir)
    network = networks.embeddings(FLIGHTS, loaded.classes)
    return Task("embeddings", network, Logistic(), loaded, accuracy)


_resnet = functools.partial(models.resnet, blocks=(1, 1, 1), width=12)

WORKLOADS: Mapping[str, Spec] = {
    "convnet": Spec(
        "the paper's ConvNet, CIFAR-10",
        _images("convnet", "cifar10", models.convnet),
        batch=256,
        steps=420,
        score="accuracy",
        examples=5000,
    ),
    "charlm": Spec(
        "transformer for characters, 2 layers of width 128, King James Bible",
        _charlm,
        batch=32,  # of 64 characters
        steps=900,
        score="loss",
    ),
    "tabular": Spec(
        "perceptron, 3 layers of width 512, time in the air of 327,346 flights",
        _tabular,
        batch=1024,
        steps=6000,
        score="loss",
    ),
    "autoencoder": Spec(
        "deep autoencoder of Hinton and Salakhutdinov, MNIST",
        _autoencoder,
        batch=500,
        steps=1700,
        score="loss",
        examples=5000,
    ),
    "resnet": Spec(
        "residual network with BatchNorm, 3 blocks, CIFAR-10 shifted and mirrored",
        _images("resnet", "cifar10", _resnet),
        batch=128,
        steps=700,
        score="accuracy",
        examples=5000,
        augmented=True,
    ),
    "vit": Spec(
        "vision transformer, 3 layers of width 96, CIFAR-10",
        _images("vit", "cifar10", networks.vision_transformer),
        batch=128,
        steps=950,
        score="accuracy",
        examples=5000,
    ),
    "recurrent": Spec(
        "gated recurrent unit of width 128 over the rows of Fashion-MNIST",
        _images("recurrent", "fashion-mnist", networks.gru),
        batch=256,
        steps=2000,
        score="accuracy",
        examples=5000,
    ),
    "embeddings": Spec(
        "8,314 embeddings of categories and a perceptron, destinations of 327,346 flights",
        _embeddings,
        batch=1024,
        steps=2500,
        score="loss",
    ),
}


@functools.lru_cache(maxsize=1)  # the runs of a workload share data and compiled programs
def load(name: str, data_dir: pathlib.Path | None = None) -> Workload:
    """A workload with its data, by name."""
    spec = WORKLOADS[name]
    return Workload(
        name,
        task=spec.task(data_dir),
        batch=spec.batch,
        steps=spec.steps,
        score=spec.score,
        examples=spec.examples,
        augmented=spec.augmented,
    )
