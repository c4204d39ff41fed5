"""Which runs go where: panels, curves, settings, and which setting is the best."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from proxlin.bench.errors import UsageError
from proxlin.bench.figures.specs import (
    FIGURES,
    STYLES,
    TASKS,
    Spec,
    describe,
    describe_options,
    value_of,
)
from proxlin.bench.records import Run, newest
from proxlin.bench.status import RunStatus

Numbers = Float[np.ndarray, " points"]

_ENDS = {RunStatus.OOM: "out of memory"}  # statuses that need explaining


class Band(NamedTuple):
    """A curve: the median over the seeds, and their range."""

    x: Numbers
    median: Numbers
    low: Numbers
    high: Numbers


@dataclass(frozen=True)
class Setting:
    """Runs that differ in their seeds only.

    Attributes:
        runs: one run for each seed, in their order.
    """

    runs: tuple[Run, ...]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.runs[0].config["method"]

    def label(self, *first: str) -> str:
        """Method and options, ``first`` ones first, and what went wrong.

        Args:
            *first: keys to be named before the other options.

        Returns:
            The text for a legend, such as ``"SPL, γ = 1, τ = 2 (diverged)"``.
        """
        parts = [STYLES[self.method].label, describe_options(self.runs[0], first)]
        note = self.trouble or self.cut
        return ", ".join(filter(None, parts)) + (f" ({note})" if note else "")

    @functools.cached_property
    def trouble(self) -> str:
        """What went wrong: ``"diverged"``, ``"out of memory"``, ...; empty if nothing did."""
        troubles = [trouble for run in self.runs if (trouble := trouble_of(run))]
        if not troubles:
            return ""
        words = " and ".join(dict.fromkeys(troubles))
        if len(troubles) == len(self.runs):
            return words
        return f"{words}: {len(troubles)} of {len(self.runs)} seeds"

    @property
    def cut(self) -> str:
        """``"first N steps"`` if steps or seconds were limited to less than all epochs."""
        last = [run.metrics[-1] for run in self.runs if run.metrics]
        epochs = self.runs[0].config["epochs"]
        if not last or all(line["epoch"] >= epochs for line in last):
            return ""
        return f"first {min(line['step'] for line in last)} steps"

    def final(self, name: str) -> float | None:
        """Median over the seeds of a metric's last value; None if no seed has one."""
        last = [run.metrics[-1].get(name) for run in self.runs if run.metrics]
        values = [value for value in last if value is not None]
        return float(np.median(values)) if values else None

    @property
    def rank(self) -> tuple[bool, float, float, str]:
        """Sorts settings: by final test accuracy, highest first, the median over the seeds.

        Equal ones, and those of tasks without classes, are sorted by final test loss, lowest
        first. Settings of which a seed diverged or did not finish come last.
        """
        accuracy, loss = self.final("test_accuracy"), self.final("test_loss")
        return (
            bool(self.trouble),
            math.inf if accuracy is None else -accuracy,
            math.inf if loss is None else loss,
            self.label(),
        )

    def band(self, metric: str, across: str) -> Band:
        """A metric against epochs or seconds, as long as all seeds have finite numbers.

        Seconds are sums of medians over the seeds, which one run on a busy machine hardly affects.
        """
        count = min(_sound(run.metrics, metric) for run in self.runs)
        pick = lambda name: np.array(
            [[line[name] for line in run.metrics[:count]] for run in self.runs], dtype=float
        )
        y = pick(metric)
        start = np.zeros((len(y), 1))
        x = np.cumsum(np.median(np.diff(pick(across), axis=1, prepend=start), axis=0))
        return Band(x, np.median(y, axis=0), y.min(axis=0), y.max(axis=0))


class Curve(NamedTuple):
    """The settings to choose from, the best one first."""

    key: tuple[Any, ...]
    settings: tuple[Setting, ...]


class Panel(NamedTuple):
    """The curves of one panel."""

    key: tuple[Any, ...]
    curves: tuple[Curve, ...]

    @property
    def settings(self) -> list[Setting]:
        """All settings of all curves."""
        return [setting for curve in self.curves for setting in curve.settings]


class Selection(NamedTuple):
    """The runs of a figure, sorted: all that drawings, captions and tables are made from.

    Attributes:
        name: a key of :data:`FIGURES`.
        spec: what the figure shows.
        panels: in their order.
    """

    name: str
    spec: Spec
    panels: tuple[Panel, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs, drawn or not."""
        settings = (setting for panel in self.panels for setting in panel.settings)
        return [run for setting in settings for run in setting.runs]

    def title_of(self, panel: tuple[Any, ...]) -> str:
        """The title of a panel with this key: what the title of the figure does not say."""
        varies = [len({p.key[i] for p in self.panels}) > 1 for i in range(len(panel))]
        parts = [
            describe(name, value)
            for name, value, various in zip(self.spec.panel_keys, panel, varies, strict=True)
            if various or name not in ("task", "batch_size")
        ]
        return ", ".join(parts)

    def missing(self) -> list[str]:
        """Panels of the paper, and curves of the paper or of another panel, that have no runs."""
        absent = []
        if self.spec.panels:
            for prefix in dict.fromkeys(panel.key[:-1] for panel in self.panels):
                there = {panel.key[-1] for panel in self.panels if panel.key[:-1] == prefix}
                keys = [(*prefix, value) for value in self.spec.panels if value not in there]
                absent += [self.title_of(key) for key in keys]
        expected = [(value,) for value in self.spec.curves]
        found = (curve.key for panel in self.panels for curve in panel.curves)
        curves = dict.fromkeys([*expected, *found])
        for panel in self.panels:
            there = {curve.key for curve in panel.curves}
            where = self.title_of(panel.key)
            for key in (key for key in curves if key not in there):
                what = ", ".join(map(describe, self.spec.curve_by, key))
                absent.append(f"{what} ({where})" if where else what)
        return absent


def trouble_of(run: Run) -> str:
    """What went wrong with a run; empty if nothing did.

    A run whose final training loss exceeds its initial one also counts as diverged.
    """
    if not run.status.succeeded:
        return _ENDS.get(run.status, run.status.value)
    losses = [line["train_loss"] for line in run.metrics]
    sound = losses and None not in (losses[0], losses[-1]) and losses[-1] <= losses[0]
    return "" if sound else RunStatus.DIVERGED.value


def spec_of(name: str) -> Spec:
    """The figure of this name.

    Raises:
        UsageError: if there is none; the message lists the names.
    """
    if name not in FIGURES:
        raise UsageError(f"there is no figure {name!r}; choose one of {', '.join(FIGURES)}")
    return FIGURES[name]


def select(name: str, runs: Iterable[Run]) -> Selection:
    """Sorts runs into the panels of a figure, their curves, and settings from best to worst.

    Args:
        name: a key of :data:`FIGURES`.
        runs: in any order; those that the figure does not show are left out.

    Returns:
        The panels; settings are sorted by :attr:`Setting.rank`.

    Raises:
        UsageError: if there is no such figure, or no run for it.
    """
    spec = spec_of(name)
    shown = [run for run in runs if spec.matches(run)]
    if not shown:
        raise UsageError(
            f"there are no runs for the figure {name}; it shows {', '.join(spec.methods)}: "
            "run its sweep first"
        )
    return _sorted(name, spec, shown)


def select_tasks(runs: Iterable[Run]) -> Selection:
    """Sorts any runs by task and batch size, and by method.

    Of a task of the user's only the newest version is shown: others are other tasks.
    """
    return _sorted("tasks", TASKS, newest([run for run in runs if TASKS.matches(run)]))


def _sorted(name: str, spec: Spec, runs: Sequence[Run]) -> Selection:
    panels = _group(runs, spec.panel_keys, spec.panels)
    return Selection(
        name=name,
        spec=spec,
        panels=tuple(Panel(key, _curves(members, spec)) for key, members in panels),
    )


def _curves(runs: Sequence[Run], spec: Spec) -> tuple[Curve, ...]:
    return tuple(
        Curve(key, _settings(members)) for key, members in _group(runs, spec.curve_by, spec.curves)
    )


def _settings(runs: Sequence[Run]) -> tuple[Setting, ...]:
    seedless = lambda run: json.dumps({**run.config, "seed": None}, sort_keys=True)
    settings = [
        Setting(tuple(sorted(members, key=lambda run: run.config["seed"])))
        for members in _gather(runs, seedless).values()
    ]
    return tuple(sorted(settings, key=lambda setting: setting.rank))


def _group(
    runs: Sequence[Run], keys: tuple[str, ...], order: tuple[Any, ...]
) -> list[tuple[tuple[Any, ...], list[Run]]]:
    """Runs by the values of keys: those in ``order`` first and in its order, then sorted."""
    groups = _gather(runs, lambda run: tuple(value_of(run, key) for key in keys))
    place = lambda value: order.index(value) if value in order else len(order)
    sort = lambda value: (place(value), value is None, 0 if value is None else value)
    return sorted(groups.items(), key=lambda item: [sort(value) for value in item[0]])


def _gather(runs: Sequence[Run], key: Callable[[Run], Any]) -> dict[Any, list[Run]]:
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def _sound(metrics: Sequence[dict[str, Any]], name: str) -> int:
    """How many lines come before the first missing number."""
    broken = (i for i, line in enumerate(metrics) if None in (line["train_loss"], line[name]))
    return next(broken, len(metrics))
