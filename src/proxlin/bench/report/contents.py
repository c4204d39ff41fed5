"""What a report shows of a folder of records."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from proxlin.bench import figures, records, sweep
from proxlin.bench.errors import UsageError
from proxlin.bench.figures import FIGURES, Selection
from proxlin.bench.records import Run
from proxlin.bench.tasks import is_own

FigureRuns: TypeAlias = Mapping[str, Mapping[str, Sequence[Run]]]


class Entry(NamedTuple):
    """A figure of the page.

    Attributes:
        name: unique on the page, part of a link.
        title: its heading.
        selection: its runs, sorted.
        scale: of a figure of the paper; None for a task.
    """

    name: str
    title: str
    selection: Selection
    scale: str | None


class Contents(NamedTuple):
    """What the page shows: figures, the tasks first, and all runs."""

    entries: tuple[Entry, ...]
    runs: tuple[Run, ...]


def gather(root: pathlib.Path, scales: Sequence[str] = sweep.SCALES) -> Contents:
    """The figures that a folder of records has the runs of, and its tasks.

    Args:
        root: the folder.
        scales: of which figures of the paper are looked for.

    Raises:
        UsageError: if there are no runs, or no such scale.
    """
    found: dict[str, dict[str, Sequence[Run]]] = {scale: {} for scale in scales}
    for scale, name in itertools.product(scales, FIGURES):
        configs = sweep.load(name, scale)
        runs = sweep.find(configs, root)
        if figures.spec_of(name).has_subject(configs, runs):
            found[scale][name] = runs
    return contents(found, records.load_runs(root))


def contents(figure_runs: FigureRuns, runs: Sequence[Run]) -> Contents:
    """What the page shows of these runs.

    Args:
        figure_runs: by scale, and by the name of their figure, a key of :data:`FIGURES`.
        runs: others to be listed. Tasks that have runs in no figure come first, the user's before
            those of the bench.

    Raises:
        UsageError: for an unknown figure, or if there is no run at all.
    """
    several = sum(map(bool, figure_runs.values())) > 1
    drawn = [
        Entry(
            f"{name}-{scale}" if several else name,
            selection.spec.title + (f", scale {scale}" if several else ""),
            selection,
            scale,
        )
        for scale, named in figure_runs.items()
        for name, given in named.items()
        if any(map(figures.spec_of(name).matches, given))
        for selection in [figures.select(name, given)]
    ]
    shown = [run for entry in drawn for run in entry.selection.runs]
    everything = list({run.meta["hash"]: run for run in [*shown, *runs]}.values())
    if not everything:
        raise UsageError(
            "there are no runs to report: run `proxlin sweep` or `proxlin train` first"
        )
    hashes = {run.meta["hash"] for run in shown}
    rest = {run.task for run in everything if run.meta["hash"] not in hashes}
    own = [
        Entry(f"task-{number}", task, figures.select_tasks(members), None)
        for number, task in enumerate(sorted(rest, key=lambda name: (not is_own(name), name)))
        for members in [[run for run in everything if run.task == task]]
    ]
    return Contents((*own, *drawn), tuple(everything))
