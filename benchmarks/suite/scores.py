"""Targets, the steps to reach them, and speed-ups."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.suite.training import Point

Row = Mapping[str, Any]
BASELINE = "adamw"


class Curve(NamedTuple):
    """The scores of some runs over time, the larger the better: losses are negative."""

    steps: list[int]
    scores: list[float]


def score(point: Point, by: str) -> float:
    """The score of an evaluation, the larger the better; what does not exist is the worst."""
    value = point.accuracy if by == "accuracy" else point.loss
    if value is None:
        return -math.inf
    return value if by == "accuracy" else -value


def curve(row: Row, by: str) -> Curve:
    """The curve of a run; one that diverged is the worst from there on."""
    found = [Point(*each) for each in row["curve"]]
    scores = [score(point, by) for point in found]
    steps = [point.step for point in found]
    if row["status"] != "finished":
        return Curve([*steps, row["steps"]], [*scores, -math.inf])
    return Curve(steps, scores)


def final(row: Row, by: str) -> float:
    """The score at the end of a run."""
    return curve(row, by).scores[-1]


def mean(rows: Sequence[Row], by: str) -> Curve:
    """The mean of curves with the same steps; the worst after one of them has diverged."""
    curves = [curve(row, by) for row in rows]
    longest = max(curves, key=lambda each: len(each.steps))
    columns = [[_at(each, step) for each in curves] for step in longest.steps]
    return Curve(longest.steps, [statistics.fmean(column) for column in columns])


def _at(curve: Curve, step: float) -> float:
    """The score after so many steps, interpolated; that of the last point from there on."""
    steps, scores = curve
    if step >= steps[-1]:
        return scores[-1]
    i = next(i for i, each in enumerate(steps) if each > step)
    if i == 0 or steps[i - 1] == step:
        return scores[max(i - 1, 0)]
    if -math.inf in (scores[i - 1], scores[i]):
        return -math.inf
    part = (step - steps[i - 1]) / (steps[i] - steps[i - 1])
    return scores[i - 1] + part * (scores[i] - scores[i - 1])


def score_at(rows: Sequence[Row], by: str, step: float) -> list[float]:
    """The score of each run after so many steps."""
    return [_at(curve(row, by), step) for row in rows]


def steps_to(target: float, curve: Curve) -> float:
    """After how many steps a curve first reaches a target, interpolated; infinite for a miss."""
    before = None
    for step, value in zip(*curve, strict=True):
        if value >= target:
            if before is None or not math.isfinite(before[1]):
                return float(step)
            part = (target - before[1]) / (value - before[1])
            return before[0] + part * (step - before[0])
        before = (step, value)
    return math.inf


def target(rows: Sequence[Row], by: str) -> float:
    """What is to be reached: the best score of the baseline, in the mean over its seeds."""
    return max(mean(rows, by).scores)


def geometric_mean(ratios: Iterable[float]) -> float:
    """The geometric mean; zero if one of them is, NaN if there is none.

    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    found = list(ratios)
    if not found:
        return math.nan
    if 0 in found:
        return 0.0
    return math.exp(statistics.fmean(math.log(ratio) for ratio in found))


def with_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; NaN for the error of a single value."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return statistics.fmean(values) if values else math.nan, math.nan
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
