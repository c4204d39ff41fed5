"""What the records say: a summary of each method on each workload."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.suite import cost, running, scores
from benchmarks.suite.rivals import METHODS, Setting
from benchmarks.suite.scores import BASELINE, Curve, Row
from benchmarks.suite.workloads import WORKLOADS


class Result(NamedTuple):
    """A method on a workload, at its best setting; NaN for what is not known.

    Attributes:
        setting: the best one.
        seeds: how many there are.
        open_grid: whether a neighbor of the setting in its grid was not run.
        curve: the mean over the seeds, the larger the better.
        finals: the score of each seed at its end.
        steps: to the target; infinite for a miss.
        gradients: likewise.
        step: the gradients that a step costs.
        same: the scores at as many gradients as the baseline takes in its whole budget.
        seconds: to the target, as long as the measured gradients took.
        first_call: seconds until the first step is compiled.
    """

    setting: Setting
    seeds: int
    open_grid: bool
    curve: Curve
    finals: list[float]
    steps: float
    gradients: float
    step: float
    same: list[float]
    seconds: float
    first_call: float


class Summary(NamedTuple):
    """A workload.

    Attributes:
        target: what is to be reached, the larger the better; NaN without runs of the baseline.
        budget: the steps of a run.
        gradients: the gradients that the baseline takes in them.
        results: of each method that was run.
    """

    target: float
    budget: int
    gradients: float
    results: Mapping[str, Result]


def summarize(folder: pathlib.Path = running.RESULTS) -> dict[str, Summary]:
    """All workloads."""
    costs = cost.read(folder)
    return {
        name: summary(
            running.Records(name, folder).rows(), spec.score, spec.steps, costs.get(name, {})
        )
        for name, spec in WORKLOADS.items()
    }


def summary(rows: Sequence[Row], by: str, budget: int, costs: Mapping[str, Any]) -> Summary:
    """One workload."""
    best = {name: of_best(rows, name, by, budget) for name in METHODS}
    target = scores.target(best[BASELINE], by) if best[BASELINE] else math.nan
    known = lambda key: {name: costs.get(name, {}).get(key, math.nan) for name in METHODS}
    step, second, first_call = map(known, ("gradients", "gradient_seconds", "first_call"))
    gradients = budget * step[BASELINE]

    def result(name: str) -> Result:
        setting, curve = best[name][0]["setting"], scores.mean(best[name], by)
        grid = [row["setting"] for row in rows if (row["method"], row["steps"]) == (name, budget)]
        steps = scores.steps_to(target, curve) if math.isfinite(target) else math.nan
        return Result(
            setting=setting,
            seeds=len(best[name]),
            open_grid=any(beside not in grid for beside in METHODS[name].neighbors(setting)),
            curve=curve,
            finals=[scores.final(row, by) for row in best[name]],
            steps=steps,
            gradients=steps * step[name],
            step=step[name],
            same=same_gradients(rows, best[name], by, gradients / step[name]),
            seconds=steps * step[name] * second[name],
            first_call=first_call[name],
        )

    return Summary(
        target, budget, gradients, {name: result(name) for name in METHODS if best[name]}
    )


def of_best(
    rows: Sequence[Row], method: str, by: str, steps: int, setting: Setting | None = None
) -> list[Row]:
    """The runs of a method at its best setting, or at a given one, one for each seed."""
    mine = [row for row in rows if (row["method"], row["steps"]) == (method, steps)]
    grid = [row for row in mine if row["seed"] == running.TUNED_ON]
    if setting is None:
        setting = running.best(grid, by)["setting"] if grid else {}
    return [row for row in mine if row["setting"] == setting]


def same_gradients(rows: Sequence[Row], best: Sequence[Row], by: str, steps: float) -> list[float]:
    """The scores after so many steps, which a gradient budget allows.

    Of runs that were planned to be about so long, if there are any. Otherwise of those with the
    whole budget of steps, on their way or, where more are allowed than were taken, at their end.
    """
    if math.isnan(steps):
        return []
    method, setting = best[0]["method"], best[0]["setting"]
    near = {
        row["steps"]
        for row in rows
        if (row["method"], row["setting"]) == (method, setting)
        and abs(row["steps"] / steps - 1) < PLANNED_WITHIN
    }
    if not near:
        return scores.score_at(best, by, steps)
    nearest = min(near, key=lambda planned: abs(planned - steps))
    return [scores.final(row, by) for row in of_best(rows, method, by, nearest, setting)]


PLANNED_WITHIN = 0.03  # as costs are measured again


def speed_up(summary: Summary, method: str, unit: str) -> float:
    """The baseline's budget over what a method needs to reach the target; zero for a miss.

    Args:
        summary: of the workload.
        method: its name.
        unit: "steps" or "gradients".
    """
    if method not in summary.results:
        return math.nan
    needed = getattr(summary.results[method], unit)
    whole = summary.budget if unit == "steps" else summary.gradients
    return 0.0 if math.isinf(needed) else whole / needed
