"""What a run has trained, to predict with or to look at."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import warnings
from typing import Any

import jax

from proxlin.bench import checkpoints, evaluation, methods, records, tasks
from proxlin.bench.errors import StorageError, UsageError
from proxlin.bench.loop import State
from proxlin.bench.records import Config, Run
from proxlin.bench.tasks import Task
from proxlin.bench.train import first_state


@dataclasses.dataclass(frozen=True)
class Trained:
    """The end of a run, or its newest checkpoint.

    Attributes:
        run: the record, with its configuration and status.
        task: the network, the loss and the data.
        state: parameters, statistics of BatchNorm and the state of the method.
        step: of the checkpoint.
    """

    run: Run
    task: Task
    state: State
    step: int

    @property
    def params(self) -> Any:
        """The last parameters."""
        return self.state.params

    @property
    def averaged(self) -> Any:
        """The parameters to evaluate with: their average if the method keeps one, else the last."""
        return self._evaluated.params

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One line for each evaluation."""
        return self.run.metrics

    def predict(self, inputs: Any) -> jax.Array:
        """Outputs of the network for raw inputs, such as those of ``task.dataset.test``.

        With the averaged parameters, and statistics of BatchNorm that belong to them: what the
        losses and accuracies of the record were computed from.
        """
        prepared = self.task.dataset.prepare(inputs)
        return self.task.network.predict(self.averaged, prepared, self._evaluated.stats)

    @functools.cached_property
    def _evaluated(self) -> State:
        return evaluation.averaged(self.task, self.state)


def load(
    folder: pathlib.Path, *, task: Task | None = None, data_dir: pathlib.Path | None = None
) -> Trained:
    """Loads what a run has trained; see :func:`proxlin.bench.load`."""
    run = records.load_run(folder)
    config = Config(**run.config)
    if task is None:
        task = _find(run, config, data_dir)
    trainer = methods.build(config.method, task, config.options)
    found = checkpoints.restore(folder / "checkpoints", first_state(task, trainer, config))
    if found is None:
        raise StorageError(f"{folder} has no checkpoint: its parameters were not saved")
    return Trained(run, task, found.state, found.counters["step"])


def _find(run: Run, config: Config, data_dir: pathlib.Path | None) -> Task:
    """The task of a run: a file of the user's is looked for from the record, then from here."""
    name = config.task
    if "file" in run.meta["task"]:
        place = run.folder / run.meta["task"]["file"]
        if place.is_file():
            name = f"{place.resolve()}:{name.rpartition(':')[2]}"
    try:
        task = tasks.load(name, data_dir)
    except UsageError as error:
        raise UsageError(f"{error}; give load(..., task=...) if it is elsewhere") from error
    if config.version and task.version != config.version:
        warnings.warn(
            f"{config.task} or its data has changed since the run in {run.folder}: the parameters "
            "are those of the run, the network is that of today",
            stacklevel=4,
        )
    return task
