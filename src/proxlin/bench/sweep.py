"""Sweeps: the runs of a figure, from a TOML file, at one of four scales.

A file has a table for each scale. Its keys are those of :class:`proxlin.bench.records.Config` and
apply to all runs; ``runs`` lists methods with their options, and may override any key. A list of
values stands for one run with each value, several lists for all combinations. Files of tasks are
looked for from the folder of the TOML file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from typing import Any

from proxlin.bench import records, storage
from proxlin.bench.errors import (
    BenchError,
    DataError,
    Interrupted,
    InUseError,
    KilledError,
    StorageError,
    UsageError,
)
from proxlin.bench.records import Config, Run
from proxlin.bench.signals import Signals
from proxlin.bench.start import with_defaults
from proxlin.bench.status import RunStatus
from proxlin.bench.train import train
from proxlin.bench.watch import Watch

SCALES = ("smoke", "digits", "small", "paper")
_KEYS = {field.name for field in dataclasses.fields(Config)} - {"method", "options", "version"}


def names() -> list[str]:
    """The figures that have a sweep."""
    files = (resources.files("proxlin.bench") / "sweeps").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files)


def load(name: str, scale: str) -> list[Config]:
    """The runs of a sweep.

    Args:
        name: a figure of the paper, or a TOML file of your own.
        scale: ``"smoke"`` (seconds), ``"digits"`` (minutes), ``"small"`` (hours on two cores) or
            ``"paper"``.

    Returns:
        The configurations, each once, with all options of their methods.

    Raises:
        UsageError: if there is no such sweep, or its file cannot be used.

    Example:
        >>> load("primal-vs-dual", "paper")[0].task
        'cifar10-convnet'
    """
    tables = _read(name)
    if scale not in tables:
        raise UsageError(f"sweep {name} has no scale {scale!r}; it has {', '.join(tables)}")
    common = {key: value for key, value in tables[scale].items() if key != "runs"}
    entries = tables[scale].get("runs", [])
    folder = pathlib.Path(name).parent
    try:
        configs = [c for entry in entries for c in _expand({**common, **entry}, folder)]
    except (TypeError, BenchError) as error:
        raise UsageError(f"sweep {name}, scale {scale}: {error}") from error
    return list({config.hash: config for config in configs}.values())


def _read(name: str) -> dict[str, Any]:
    own = name.endswith(".toml")
    if not own and name not in names():
        raise UsageError(
            f"there is no sweep {name!r}; choose one of {', '.join(names())}, or a TOML "
            "file of your own"
        )
    file = (
        pathlib.Path(name) if own else resources.files("proxlin.bench") / "sweeps" / f"{name}.toml"
    )
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"sweep {name} cannot be read: {error}") from error


def _expand(entry: dict[str, Any], folder: pathlib.Path) -> Iterable[Config]:
    """All combinations of the values in lists; files of tasks are seen from a folder."""
    entry = {("seed" if key == "seeds" else key): value for key, value in entry.items()}
    if "method" not in entry or "task" not in entry:
        raise UsageError(f"a run needs a task and a method, got {entry}")
    lists = [value if isinstance(value, list) else [value] for value in entry.values()]
    for values in itertools.product(*lists):
        chosen = dict(zip(entry, values, strict=True))
        method = chosen.pop("method")
        own = {key: value for key, value in chosen.items() if key in _KEYS}
        if ".py:" in own["task"]:
            own["task"] = str(folder / own["task"])
        options = {key: value for key, value in chosen.items() if key not in _KEYS}
        yield with_defaults(Config(method=method, options=options, **own))


def run(
    configs: Sequence[Config],
    root: pathlib.Path,
    *,
    data_dir: pathlib.Path | None = None,
    isolate: bool = False,
    watch: Callable[[Config], Watch],
    tell: Callable[[str], None],
) -> list[Run]:
    """Runs what is not yet recorded; one failure does not stop the rest.

    Args:
        configs: what to run.
        root: where records go. Several processes may share it: each run is locked by the one
            that works on it, and the others take the next.
        data_dir: the folder of the data sets.
        isolate: one process per run, so that a killed run does not end the sweep, and no run
            inherits memory from another.
        watch: returns the observer of a run.
        tell: called with a line about each run that was skipped or failed.

    Returns:
        The records of the sweep that have ended.

    Raises:
        Interrupted: by a signal, after the current run was saved.
        DataError, StorageError: for errors that would stop every run.
    """
    for number, config in enumerate(configs, start=1):
        label = f"[{number}/{len(configs)}] {describe(config)}"
        if finished(config, root):
            tell(f"{label}: already recorded")
            continue
        try:
            if isolate:
                _in_process(config, root, data_dir)
            else:
                begun = bool(find([config], root))
                train(config, root, data_dir=data_dir, resume=begun, watch=watch(config))
        except InUseError:
            tell(f"{label}: another process is running it")
            continue
        except KilledError as error:
            tell(f"{label}: {error}")
            continue
        except UsageError as error:  # e.g. a rival that is not installed
            tell(f"{label}: skipped: {error}")
            continue
        done = find([config], root)
        tell(f"{label}: {done[0].status if done else 'not finished'}")
        if done and done[0].status is RunStatus.INTERRUPTED:
            raise Interrupted(done[0].meta["signal"])
    return [r for r in find(configs, root) if r.status.ended]


def finished(config: Config, root: pathlib.Path) -> bool:
    """Whether a run has already ended."""
    return any(run.status.ended for run in find([config], root))


def find(configs: Sequence[Config], root: pathlib.Path) -> list[Run]:
    """The records of these configurations that exist."""
    folders = (config.folder(root) for config in configs)
    return [records.load_run(folder) for folder in folders if (folder / "run.json").exists()]


def describe(config: Config) -> str:
    """A configuration in one line.

    Example:
        >>> describe(Config("digits-mlp", "adam", {"stepsize": 0.01}))
        'digits-mlp adam stepsize=0.01 batch_size=128 seed=0'
    """
    options = [
        f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}"
        for k, v in config.options.items()
        if v is not None
    ]
    parts = [
        config.task,
        config.method,
        *options,
        f"batch_size={config.batch_size}",
        f"seed={config.seed}",
    ]
    return " ".join(parts)


def command(config: Config) -> list[str]:
    """The arguments of ``proxlin`` that start this run."""
    given = [
        f"--{key.replace('_', '-')}={value}"
        for key, value in config.as_dict().items()
        if key not in ("options", "version") and value is not None
    ]
    options = [
        f"--option={key}={value}" for key, value in config.options.items() if value is not None
    ]
    return ["train", *given, *options]


def _in_process(config: Config, root: pathlib.Path, data_dir: pathlib.Path | None) -> None:
    if storage.in_use(config.folder(root)):
        raise InUseError(f"{config.folder(root)} is in use")
    place = ["--out", str(root), *(["--data-dir", str(data_dir)] if data_dir else [])]
    place += ["--resume"] if find([config], root) else []
    arguments = [sys.executable, "-m", "proxlin.bench", *command(config), *place]
    before = _oom_kills()
    code = _wait(subprocess.Popen(arguments))
    if code < 0:
        # The kernel sends SIGKILL when memory runs out, but so may anyone: it counts its own.
        _killed(config, root, -code, oom=code == -signal.SIGKILL and _oom_kills() > before)
    elif code in (DataError.exit_code, StorageError.exit_code):
        raise BenchError("a run failed, see above")
    elif code == UsageError.exit_code:
        raise UsageError("see above")


def _killed(config: Config, root: pathlib.Path, number: int, *, oom: bool) -> None:
    """Writes the record for a process that could not; without ``oom`` the run can be resumed."""
    end = ", out of memory; use a smaller batch_size" if oom else "; continue with the same command"
    message = f"killed by signal {number}{end}"
    status = RunStatus.OOM if oom else RunStatus.KILLED
    change = {"status": status, "message": message, "signal": number}
    folder = config.folder(root)
    # Another process that shares the root may already have resumed the run.
    with storage.lock(folder) if folder.exists() else contextlib.nullcontext():
        for run in find([config], root):
            if run.status.ended:  # before the signal
                return
            records.write_run(folder, {**run.meta, **change})
    raise KilledError(message)


def _oom_kills(system: pathlib.Path = pathlib.Path("/")) -> int:
    """How many processes the kernel has killed for memory, in this control group if known."""
    with contextlib.suppress(OSError):  # not Linux
        groups = (system / "proc/self/cgroup").read_text()
        own = re.search(r"^0::/(.*)$", groups, re.MULTILINE)
        events = system / "sys/fs/cgroup" / (own[1] if own else "") / "memory.events"
        counters = events if events.exists() else system / "proc/vmstat"
        count = re.search(r"^oom_kill (\d+)$", counters.read_text(), re.MULTILINE)
        return int(count[1]) if count else 0
    return 0


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process; a signal also ends the sweep, once the process has saved."""
    code = None
    with Signals() as signals:
        while code is None:
            try:
                code = process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                if signals.received is not None:  # Ctrl-C reaches the process anyway
                    if signals.received == signal.SIGTERM:
                        process.terminate()
                    code = process.wait()
    # A process that got the signal twice could not record it.
    if signals.received is not None or code in (-signal.SIGINT, -signal.SIGTERM):
        raise Interrupted(signals.received or -code)
    return code
