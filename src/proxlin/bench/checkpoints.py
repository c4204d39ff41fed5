"""Checkpoints by Orbax with checksums: if one is damaged, the one before it is used."""

from __future__ import annotations

import hashlib
import json
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from proxlin.bench.errors import StorageError
from proxlin.bench.storage import explained, write_atomically

KEEP = 3


class Restored(NamedTuple):
    """A checkpoint.

    Attributes:
        state: the pytree that was saved.
        counters: the numbers saved with it.
        damaged: why newer checkpoints could not be used, by their steps.
    """

    state: Any
    counters: dict[str, Any]
    damaged: dict[int, str]


def save(folder: pathlib.Path, state: Any, counters: Mapping[str, Any]) -> None:
    """Saves a state; it is valid once its seal, a file of checksums, is written at the end.

    Args:
        folder: of the checkpoints; the newest three are kept.
        state: any pytree of arrays.
        counters: numbers that belong to it, ``step`` among them.

    Raises:
        StorageError: if the disk is full; earlier checkpoints are kept.

    Example:
        >>> import tempfile, jax.numpy as jnp
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> save(folder, {"w": jnp.arange(3)}, {"step": 7})
        >>> restored = restore(folder, {"w": jnp.zeros(3, int)})
        >>> restored.state["w"], restored.counters["step"]
        (Array([0, 1, 2], dtype=int32), 7)
    """
    import orbax.checkpoint as ocp

    step = f"{counters['step']:010d}"
    leaves = _leaves(state)
    with explained(folder, size(state)):
        folder.mkdir(parents=True, exist_ok=True)
        _discard(folder, step)  # a damaged one
        for unsealed in {path.name for path in folder.iterdir() if path.is_dir()} - {
            *_steps(folder)
        }:
            shutil.rmtree(folder / unsealed, ignore_errors=True)
        try:
            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.save((folder / step).absolute(), leaves)
        except ValueError as error:  # how TensorStore reports a full or read-only disk
            raise OSError(str(error)) from error
        seal = {"files": _sums(folder / step), "counters": dict(counters)}
        write_atomically(folder / f"{step}.json", json.dumps(seal, indent=1))
        for old in _steps(folder)[:-KEEP]:
            _discard(folder, old)


def restore(folder: pathlib.Path, like: Any) -> Restored | None:
    """The newest undamaged state.

    Args:
        folder: of the checkpoints.
        like: a pytree of the structure, shapes and dtypes that were saved.

    Returns:
        The checkpoint, or None if there are none.

    Raises:
        StorageError: if there are checkpoints, but all of them are damaged.
    """
    import orbax.checkpoint as ocp

    damaged: dict[int, str] = {}
    target = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), _leaves(like))
    for step in reversed(_steps(folder)):
        try:
            seal = json.loads((folder / f"{step}.json").read_text(encoding="utf-8"))
            if seal["files"] != _sums(folder / step):
                raise ValueError("its files have changed")
            with ocp.StandardCheckpointer() as checkpointer:
                leaves = checkpointer.restore((folder / step).absolute(), target)
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged[int(step)] = f"{folder / step}: {error}"
            continue
        return Restored(_fill(like, leaves), seal["counters"], damaged)
    if damaged:
        raise StorageError(
            f"no checkpoint is usable: {'; '.join(damaged.values())}. Give --rerun to start again"
        )
    return None


def copy(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies all checkpoints, their seals last."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in _steps(source):
        shutil.copytree(source / step, folder / step, dirs_exist_ok=True)
        shutil.copy(source / f"{step}.json", folder)


def steps(folder: pathlib.Path) -> list[int]:
    """The steps of which there are checkpoints, whole or damaged."""
    return [int(step) for step in _steps(folder)]


def size(state: Any) -> int:
    """Bytes of a state."""
    return sum(np.dtype(x.dtype).itemsize * x.size for x in jax.tree.leaves(state))


def _leaves(state: Any) -> dict[str, Any]:
    """The arrays by number: states have many types, and Orbax cannot save empty arrays."""
    leaves = enumerate(jax.tree.leaves(state))
    return {f"{i:05d}": x for i, x in leaves if x.size > 0}


def _fill(like: Any, leaves: Mapping[str, Any]) -> Any:
    flat, structure = jax.tree.flatten(like)
    return jax.tree.unflatten(structure, [leaves.get(f"{i:05d}", x) for i, x in enumerate(flat)])


def _steps(folder: pathlib.Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.json"))


def _sums(folder: pathlib.Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _discard(folder: pathlib.Path, step: str) -> None:
    """Deletes a checkpoint, the seal first, so that a half-deleted one is not valid."""
    (folder / f"{step}.json").unlink(missing_ok=True)
    shutil.rmtree(folder / step, ignore_errors=True)
