"""What the records hold of a run before it starts: nothing, a part of it, or all of it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterable

from proxlin.bench import checkpoints, methods, records, storage, tasks
from proxlin.bench.errors import StorageError
from proxlin.bench.records import Config, Run

# What a run can be continued with when it has ended: none of it changes the steps that were taken.
_LENGTHS = {"epochs", "max_steps", "max_seconds"}


def with_defaults(config: Config) -> Config:
    """The configuration of a run, complete, so that equal runs have equal names.

    It has every option of its method, and the version of a task of the user's.
    """
    options = methods.complete(config.method, config.options)
    version = tasks.load(config.task).version if tasks.is_own(config.task) else ""
    return Config(**{**config.as_dict(), "options": options, "version": version})


def recorded(config: Config, root: pathlib.Path) -> Run | None:
    """The record of a run, if there is one.

    Raises:
        StorageError: if its folder holds another run.
    """
    folder = config.folder(root)
    if not (folder / "run.json").exists():
        return None
    run = records.load_run(folder)
    old, new = Config(**run.config).identity, config.identity
    differing = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    if differing:
        raise StorageError(
            f"{run.folder} holds another run, and they differ in {', '.join(differing)}; it "
            f"has { {key: old.get(key) for key in differing} }. Choose another folder"
        )
    return run


def shorter(config: Config, root: pathlib.Path, below: int) -> Run | None:
    """The longest run that is this one up to a step below ``below``, and can be continued."""
    found = [
        run
        for run in _relatives(config, root, _LENGTHS)
        if 0 < run.meta.get("steps", 0) < below
        and (run.status.succeeded or not run.status.ended)
        and checkpoints.steps(run.folder / "checkpoints")
        and not storage.in_use(run.folder)
    ]
    return max(found, key=lambda run: run.meta["steps"], default=None)


def has_changed(config: Config, root: pathlib.Path) -> bool:
    """Whether an earlier version of the task has such a run."""
    return bool(config.version) and any(True for _ in _relatives(config, root, {"version"}))


def similar(config: Config, root: pathlib.Path) -> list[Run]:
    """Other runs of the same task, method and batch size, whose steps take about as long."""
    different = {"options", "seed", "evals_per_epoch", "train_examples", "version", *_LENGTHS}
    return list(_relatives(config, root, different))


def compile_seconds(config: Config, root: pathlib.Path) -> float | None:
    """How long a similar run took to compile, None if there was none."""
    found = [run.meta.get("compile_seconds") for run in similar(config, root)]
    return max(filter(None, found), default=None)


def _relatives(config: Config, root: pathlib.Path, different: set[str]) -> Iterable[Run]:
    """The runs beside this one that have the same configuration but for some keys."""
    kept = lambda c: {k: v for k, v in c.identity.items() if k not in different}
    folder = config.folder(root)
    for path in sorted(folder.parent.glob("*/run.json")):
        with contextlib.suppress(
            StorageError, TypeError
        ):  # damaged, which does not concern this run
            run = records.load_run(path.parent)
            if path.parent != folder and kept(Config(**run.config)) == kept(config):
                yield run


def place_of(config: Config, root: pathlib.Path) -> dict[str, str]:
    """Where the file of a task of the user's is, seen from the record."""
    path = config.task.rpartition(":")[0]
    return {"file": os.path.relpath(path, config.folder(root))} if path.endswith(".py") else {}


def copy(run: Run, folder: pathlib.Path) -> None:
    """Copies the results of a run so far, for another one to continue."""
    records.write_lines(folder / "metrics.jsonl", run.metrics)
    checkpoints.copy(run.folder / "checkpoints", folder / "checkpoints")


def clear(folder: pathlib.Path) -> None:
    """Deletes the record of a run, ``run.json`` last, so that a half-deleted one is found again."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    (folder / "run.json").unlink(missing_ok=True)
