"""Tasks: a network, a loss and data."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from proxlin import BinaryLogistic, Hinge, Logistic, Loss, Sparsemax
from proxlin.bench import data, models, sources
from proxlin.bench.errors import UsageError
from proxlin.bench.models.network import Network, stateless

NETWORKS: Mapping[str, Callable[..., Network]] = {
    "linear": models.linear,
    "mlp": models.mlp,
    "convnet": models.convnet,
    "cnn-short": functools.partial(models.cnn, depth=1),
    "cnn-medium": functools.partial(models.cnn, depth=2),
    "cnn-long": functools.partial(models.cnn, depth=3),
    "resnet-tiny": functools.partial(models.resnet, blocks=(1, 1), width=8),
    "resnet18": functools.partial(models.resnet, blocks=(2, 2, 2, 2)),
    "resnet34": functools.partial(models.resnet, blocks=(3, 4, 6, 3)),
    "autoencoder": lambda shape, classes: models.autoencoder(shape),
    "transformer": models.transformer,
}

# The data sets that networks take; those not listed take any images.
_TAKES: Mapping[str, tuple[str, ...]] = {
    "autoencoder": ("digits", "mnist", "fashion-mnist"),  # pixels in [0, 1], which its loss needs
    "transformer": ("text",),
}
_IMAGES = tuple(name for name in data.DATASETS if name != "text")

Score = Callable[[Float[Array, "*m k"], Array], Float[Array, "*m"]]


def accuracy(outputs: Float[Array, "*m k"], targets: Array) -> Float[Array, "*m"]:
    """1 for each example whose largest output is at its label, else 0.

    The label of a distribution is its most probable class.

    Example:
        >>> import jax.numpy as jnp
        >>> accuracy(jnp.eye(2), jnp.array([0, 0]))
        Array([1., 0.], dtype=float32)
    """
    if jnp.ndim(targets) == outputs.ndim:
        targets = jnp.argmax(targets, axis=-1)
    best = jnp.argmax(outputs, axis=-1).astype(targets.dtype)
    return (best == targets).astype(jnp.float32)


def binary_accuracy(outputs: Float[Array, "*m 1"], targets: Array) -> Float[Array, "*m"]:
    """1 for each example whose one output has the sign of its label, 0 or 1, else 0.

    Example:
        >>> import jax.numpy as jnp
        >>> binary_accuracy(jnp.array([[3.0], [2.0]]), jnp.array([1, 0]))
        Array([1., 0.], dtype=float32)
    """
    yes = outputs[..., 0] > 0
    return (yes == (targets.reshape(yes.shape) > 0.5)).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class Task:
    """A network, a loss and data.

    Attributes:
        name: what records and figures call it.
        network: see :class:`proxlin.bench.models.Network`.
        loss: a convex loss.
        dataset: see :class:`proxlin.bench.data.Dataset`.
        score: the accuracy of each example, 0 or 1; None for tasks without one.
        source: checksum of the source files of a task of the user's; empty for the bench's.
    """

    name: str
    network: Network
    loss: Loss
    dataset: data.Dataset
    score: Score | None = accuracy
    source: str = ""

    @property
    def version(self) -> str:
        """What tells a task of the user's from earlier ones of its name: source and data."""
        made_of = f"{self.source} {self.dataset.sha256}"
        return hashlib.sha256(made_of.encode()).hexdigest()[:16] if self.source else ""

    def init(self, seed: int) -> tuple[Any, Any]:
        """Parameters and statistics, a function of the seed alone."""
        return jax.jit(self.network.init)(jax.random.key(seed))

    def describe(self) -> dict[str, Any]:
        """What records hold about it."""
        params, _ = jax.eval_shape(self.network.init, jax.random.key(0))
        return {
            "dataset": self.dataset.name,
            "description": self.dataset.description,
            "sha256": self.dataset.sha256,
            "loss": type(self.loss).__name__,
            "parameters": sum(x.size for x in jax.tree.leaves(params)),
            "train": len(self.dataset.train),
            "test": len(self.dataset.test),
        }


def datasets_of(network: str) -> tuple[str, ...]:
    """The data sets that a network can learn from.

    Example:
        >>> datasets_of("transformer")
        ('text',)
    """
    return _TAKES.get(network, _IMAGES)


def names() -> list[str]:
    """The tasks that come with the bench, ``dataset-network``."""
    return [
        f"{dataset}-{network}"
        for dataset in data.DATASETS
        for network in NETWORKS
        if dataset in datasets_of(network)
    ]


def load(name: str, data_dir: pathlib.Path | None = None) -> Task:
    """Loads a task by name, or from a file or module of the user.

    Args:
        name: ``dataset-network``, ``path/to/file.py:name`` or ``module:name``. In the file or
            module, the name is that of a :class:`Task` or of a function without arguments that
            returns one.
        data_dir: the folder of the data sets.

    Returns:
        The task with its data.

    Raises:
        UsageError: if there is no such task.
        DataError: if its data is missing or damaged.
    """
    if is_own(name):
        return _from_user(name, sources.checksum(name.rpartition(":")[0]))
    return _from_bench(name, data_dir)


def is_own(name: str) -> bool:
    """Whether a name is that of a task of the user's.

    Example:
        >>> is_own("path/to/file.py:name"), is_own("digits-mlp")
        (True, False)
    """
    return ":" in name


@functools.lru_cache(maxsize=2)  # the runs of a sweep share data and compiled programs
def _from_bench(name: str, data_dir: pathlib.Path | None) -> Task:
    for dataset in data.DATASETS:
        network = name.removeprefix(f"{dataset}-")
        if network != name and network in NETWORKS:
            return _load(name, dataset, network, data_dir)
    raise UsageError(
        f"there is no task {name!r}; a task is a data set ({', '.join(data.DATASETS)}), a hyphen "
        f"and a network ({', '.join(NETWORKS)}), as in 'digits-mlp', or one of your own as "
        "'path/to/file.py:name'"
    )


def _load(name: str, dataset: str, network: str, data_dir: pathlib.Path | None) -> Task:
    if dataset not in datasets_of(network):
        raise UsageError(
            f"there is no task {name!r}: {network} takes {', '.join(datasets_of(network))}, not "
            f"{dataset}; `proxlin tasks` lists the combinations"
        )
    loaded = data.load(dataset, data_dir)
    made = NETWORKS[network](loaded.shape, loaded.classes)
    if network == "autoencoder":
        return Task(name, made, BinaryLogistic(), data.reconstruction(loaded), score=None)
    return Task(name, made, Logistic(), loaded)


def own(
    name: str,
    *,
    init: Callable[[Array], Any],
    model: Callable[[Any, Array], Array],
    loss: Loss,
    train: tuple[Any, Any],
    test: tuple[Any, Any],
    score: Score | None = None,
) -> Task:
    """A task of your own: a model, a loss and arrays.

    Args:
        name: what records and figures call it.
        init: a key -> parameters.
        model: ``model(params, inputs) -> outputs``.
        loss: a convex loss.
        train: inputs and targets for training.
        test: inputs and targets for testing.
        score: the accuracy of each example. If None, :func:`accuracy` for the losses of
            classification, :func:`binary_accuracy` for one output with labels 0 and 1, and none
            for others.

    Example:
        >>> import jax.numpy as jnp, numpy as np, proxlin
        >>> x = np.linspace(0, 1, 8, dtype=np.float32)[:, None]
        >>> task = own(
        ...     "line",
        ...     init=lambda key: jnp.zeros((1, 1)),
        ...     model=lambda w, x: x @ w,
        ...     loss=proxlin.Squared(),
        ...     train=(x, 2 * x),
        ...     test=(x, 2 * x),
        ... )
        >>> task.describe()["parameters"]
        1
    """
    splits = [
        data.Arrays(np.asarray(inputs), np.asarray(targets)) for inputs, targets in (train, test)
    ]
    content = b"".join(array.tobytes() for s in splits for array in (s.inputs, s.targets))
    dataset = data.Dataset(
        name=name,
        description=f"{name}; {len(splits[0])} examples to train, {len(splits[1])} to test",
        classes=0,
        shape=splits[0].inputs.shape[1:],
        train=splits[0],
        test=splits[1],
        sha256=hashlib.sha256(content).hexdigest(),
        prepare=lambda inputs: inputs,
    )
    return Task(name, stateless(init, model), loss, dataset, score or _score_of(loss, splits))


def _score_of(loss: Loss, splits: list[data.Arrays]) -> Score | None:
    if isinstance(loss, (Logistic, Sparsemax, Hinge)):
        return accuracy
    is_label = lambda y: y.shape[1:] == (1,) and bool(np.isin(y, (0, 1)).all())
    labels = isinstance(loss, BinaryLogistic) and all(is_label(s.targets) for s in splits)
    return binary_accuracy if labels else None


@functools.lru_cache(maxsize=2)
def _from_user(name: str, source: str) -> Task:
    place, _, attribute = name.rpartition(":")
    module = sources.load(place)
    if not hasattr(module, attribute):
        raise UsageError(f"{place} has no {attribute!r} (asked for by --task {name})")
    found = getattr(module, attribute)
    task = found if isinstance(found, Task) else found() if callable(found) else found
    if not isinstance(task, Task):
        raise UsageError(
            f"{attribute!r} in {place} is {type(found).__name__}; it must be a Task, as "
            "proxlin.bench.tasks.own(...) returns it, or a function that returns one"
        )
    # The record has the name on the command line, which finds the task again.
    return dataclasses.replace(task, name=name, source=source)
