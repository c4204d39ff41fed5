"""The bench: tasks, methods, runs and figures. It imports the library, never the reverse."""

from __future__ import annotations

import os
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxlin.bench.tasks import Task
    from proxlin.bench.trained import Trained


def load(
    folder: str | os.PathLike[str],
    *,
    task: Task | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> Trained:
    """Loads what a run has trained.

    Args:
        folder: of the run, as ``proxlin train`` prints it.
        task: the task, if it cannot be found by the name in the record.
        data_dir: the folder of the data sets.

    Returns:
        The task, the parameters, also averaged, the state, the metrics, and a way to predict.

    Raises:
        UsageError: if the task is not found.
        StorageError: if there is no record, or no checkpoint that can be used.

    Example:
        >>> import tempfile
        >>> from proxlin.bench.records import Config
        >>> from proxlin.bench.train import train
        >>> config = Config("digits-linear", "sgd", max_steps=2)
        >>> run = train(config, pathlib.Path(tempfile.mkdtemp()))
        >>> trained = load(run.folder)
        >>> trained.predict(trained.task.dataset.test.inputs[:5]).shape
        (5, 10)
    """
    from proxlin.bench import trained

    where = None if data_dir is None else pathlib.Path(data_dir)
    return trained.load(pathlib.Path(folder), task=task, data_dir=where)


def main() -> None:
    """Runs the command ``proxlin``, or says how to install the packages of the bench."""
    # XLA warns when it loads cached programs, which concerns nobody.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        from proxlin.bench import cli
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("proxlin"):
            raise
        raise SystemExit(
            f"error: the bench needs {error.name}; install it with: pip install 'proxlin[bench]'"
        ) from error
    cli.main()
