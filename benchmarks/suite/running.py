"""Which runs there are, and their records: tuning and the seeds of the best settings."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from benchmarks.suite import scores, training
from benchmarks.suite.rivals import METHODS, Method, Setting
from benchmarks.suite.scores import Row
from benchmarks.suite.workloads import WORKLOADS, Workload, load
from proxlin.bench import records, storage
from proxlin.bench.environment import environment
from proxlin.bench.errors import InUseError

RESULTS = pathlib.Path(__file__).parent.parent / "results" / "suite"
LOCKS = pathlib.Path(tempfile.gettempdir(), "proxlin-suite")
TUNED_ON = 0  # the seed
DIGITS = 5  # of the numbers in records


# ---- records -----------------------------------------------------------------------------------


class Records:
    """The lines of one workload, a run each.

    Attributes:
        path: of the file.
    """

    def __init__(self, workload: str, folder: pathlib.Path = RESULTS) -> None:
        self.path = folder / f"{workload}.jsonl"

    def rows(self) -> list[Row]:
        """All runs, the newest of those that were repeated."""
        newest = {_key(row): row for row in records.lines(self.path)}
        return list(newest.values())

    def find(self, method: str, setting: Setting, seed: int, steps: int) -> Row | None:
        """A run that is recorded."""
        asked = {"method": method, "setting": dict(setting), "seed": seed, "steps": steps}
        return next((row for row in self.rows() if _key(row) == _key(asked)), None)

    def of(self, method: str, steps: int) -> list[Row]:
        """The runs of a method with so many steps."""
        return [row for row in self.rows() if (row["method"], row["steps"]) == (method, steps)]

    def append(self, row: Row) -> None:
        """Writes a run."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._alone():
            if self.path.exists() and not self.path.read_bytes().endswith(b"\n"):
                # without the line that a kill has torn
                records.write_lines(self.path, list(records.lines(self.path)))
            records.append_line(self.path, row)

    def forget(self, methods: Iterable[str]) -> None:
        """Drops the runs of some methods, such as those of an older version."""
        names = set(methods)
        with self._alone():
            if self.path.exists():
                kept = [row for row in records.lines(self.path) if row["method"] not in names]
                records.write_lines(self.path, kept)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process writes meanwhile."""
        name = hashlib.sha256(str(self.path.resolve()).encode()).hexdigest()[:16]
        LOCKS.mkdir(parents=True, exist_ok=True)
        with (LOCKS / f"{name}.lock").open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def _key(row: Row) -> str:
    what = {key: row[key] for key in ("method", "setting", "seed", "steps")}
    return json.dumps(what, sort_keys=True)


# ---- one run -----------------------------------------------------------------------------------


def run_once(
    workload: Workload, method: str, setting: Setting, seed: int, steps: int, recorded: Records
) -> Row | None:
    """Runs and records what is not recorded yet; None if another process is running it."""
    asked = {"method": method, "setting": dict(setting), "seed": seed, "steps": steps}
    with _claimed(workload.name, _key(asked)) as mine:
        found = recorded.find(**asked)
        if found is not None or not mine:
            return found
        row = {"workload": workload.name, **asked, **_outcome(workload, asked)}
        recorded.append(row)
        last = row["curve"][-1]
        print(
            time.strftime("%H:%M"),
            workload.name,
            method,
            setting,
            seed,
            row["status"],
            last,
            flush=True,
        )
        return row


def _outcome(workload: Workload, asked: Row) -> dict[str, Any]:
    """How a run went, as a line of a record has it."""
    about = {k: x for k, x in environment().items() if k != "command"}  # before files change
    method: Method = METHODS[asked["method"]]
    trainer = method.make(workload.task, asked["steps"], **asked["setting"])
    done = training.run(workload, trainer, asked["seed"], asked["steps"], method.evaluated)
    return {
        "status": done.status.value,
        "curve": [[_rounded(x) for x in point] for point in done.curve],
        "seconds": round(done.seconds, 1),
        "first_call": round(done.first_call, 1),
        "environment": about,
    }


def _rounded(x: float | None) -> float | None:
    return x if x is None or isinstance(x, int) else float(f"{x:.{DIGITS}g}")


@contextlib.contextmanager
def _claimed(workload: str, key: str) -> Iterator[bool]:
    """Whether this process may do a run; locks end with their process."""
    name = hashlib.sha256(f"{workload} {key}".encode()).hexdigest()[:16]
    folder = LOCKS / name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with storage.lock(folder):
            yield True
    except InUseError:
        yield False


# ---- tuning ------------------------------------------------------------------------------------


def best(rows: Sequence[Row], by: str) -> Row:
    """The run with the best score at its end; where all have diverged, the one of lowest rate."""

    def rank(row: Row) -> tuple[float, float]:
        final = scores.final(row, by)
        return final, 0.0 if math.isfinite(final) else -row["setting"].get("rate", 0.0)

    return max(rows, key=rank)


def tune(
    method: Method, by: str, rows: Callable[[], Sequence[Row]], run: Callable[[Setting], Any]
) -> Setting:
    """The best setting, none of whose neighbors in the grid is better.

    The grid has no end: it grows from its start until the best setting lies inside of it, with all
    its neighbors run.

    Args:
        method: with a grid.
        by: "accuracy" or "loss".
        rows: what is recorded so far.
        run: runs a setting.
    """
    if not any(row["setting"] == method.start for row in rows()):
        run(method.start)
    while True:
        found = best(rows(), by)["setting"]
        done = [row["setting"] for row in rows()]
        missing = [setting for setting in method.neighbors(found) if setting not in done]
        if not missing:
            return found
        run(missing[0])


def tune_on(name: str, method: str, folder: pathlib.Path = RESULTS) -> Setting:
    """Tunes a method on a workload with one seed."""
    workload, recorded = load(name), Records(name, folder)

    def run(setting: Setting) -> None:
        while run_once(workload, method, setting, TUNED_ON, workload.steps, recorded) is None:
            time.sleep(10)  # another process is at it

    return tune(METHODS[method], workload.score, lambda: _grid_of(recorded, workload, method), run)


def _grid_of(recorded: Records, workload: Workload, method: str) -> list[Row]:
    return [row for row in recorded.of(method, workload.steps) if row["seed"] == TUNED_ON]


def best_setting(name: str, method: str, folder: pathlib.Path = RESULTS) -> Setting:
    """The best setting among those recorded; the start of the grid if there is none."""
    spec = WORKLOADS[name]
    rows = [row for row in Records(name, folder).of(method, spec.steps) if row["seed"] == TUNED_ON]
    return best(rows, spec.score)["setting"] if rows else METHODS[method].start


# ---- seeds -------------------------------------------------------------------------------------


def run_seeds(
    name: str,
    method: str,
    seeds: Sequence[int],
    folder: pathlib.Path = RESULTS,
    steps: int | None = None,
) -> None:
    """The best setting of a method on several seeds, as far as it is not recorded.

    Args:
        name: of the workload.
        method: its name.
        seeds: of the runs.
        folder: of the records.
        steps: how many; by default the budget of the workload.
    """
    workload, recorded = load(name), Records(name, folder)
    setting = best_setting(name, method, folder)
    for seed in seeds:
        run_once(workload, method, setting, seed, steps or workload.steps, recorded)
