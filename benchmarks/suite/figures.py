"""Performance profiles, and curves of all workloads."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchmarks.suite.results import Summary, speed_up
from benchmarks.suite.rivals import METHODS
from benchmarks.suite.workloads import DEVELOPMENT, HELD_OUT, WORKLOADS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 8.0  # factor of a profile
COLORS = {
    "auto": "black",
    "auto-steps": "dimgray",
    "adamw": "tab:blue",
    "nadamw": "tab:cyan",
    "muon": "tab:red",
    "soap": "tab:orange",
    "shampoo": "tab:brown",
    "momentum": "tab:green",
    "kfac": "tab:olive",
    "schedule-free": "tab:purple",
    "prodigy": "tab:pink",
    "d-adaptation": "plum",
    "momo-adam": "yellowgreen",
    "dowg": "silver",
}


def draw(summaries: Mapping[str, Summary], folder: pathlib.Path) -> None:
    """Both figures, as files."""
    folder.mkdir(parents=True, exist_ok=True)
    _save(profiles(summaries), folder / "profiles.svg")
    _save(curves(summaries), folder / "curves.svg")


def profile(summaries: Mapping[str, Summary], unit: str) -> dict[str, list[float]]:
    """For each method the factors, at most one a workload, by which it needs more than the best.

    A workload that nothing was measured on, or that nobody has solved, is left out; a miss is
    infinite.
    """
    found: dict[str, list[float]] = {}
    for summary in summaries.values():
        speeds = {m: speed_up(summary, m, unit) for m in summary.results}
        best = max((x for x in speeds.values() if not math.isnan(x)), default=0.0)
        if best == 0:
            continue
        for method in METHODS:
            speed = speeds.get(method, math.nan)
            if not math.isnan(speed):
                found.setdefault(method, []).append(best / speed if speed else math.inf)
    return found


def profiles(summaries: Mapping[str, Summary]) -> Figure:
    """The share of the workloads that a method solves within a factor of the best."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, unit in zip(drawn.subplots(1, 2, sharey=True), ("steps", "gradients"), strict=True):
        for method, factors in profile(summaries, unit).items():
            inside = sorted(x for x in factors if x <= LARGEST)
            shares = [i / len(factors) for i in range(len(inside) + 1)]
            x, y = [1.0, *inside, LARGEST], [*shares, shares[-1]]
            axes.step(x, y, where="post", label=method, **_style(method))
        axes.set(xscale="log", xlim=(1, LARGEST), ylim=(0, 1.02), xlabel=f"factor, in {unit}")
        axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.minorticks_off()
    drawn.axes[0].set_ylabel("share of the workloads solved")
    _legend(drawn)
    return drawn


def curves(summaries: Mapping[str, Summary]) -> Figure:
    """Test scores by gradients; the dotted line is the target."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(13, 6), layout="constrained")
    names = (*DEVELOPMENT, *HELD_OUT)
    for axes, name in zip(drawn.subplots(2, 4).flat, names, strict=True):
        _curves_of(axes, name, summaries[name])
        held_out = "" if name in DEVELOPMENT else " (held out)"
        axes.set_title(f"{name}{held_out}: test {WORKLOADS[name].score}", fontsize=9)
    for axes in drawn.axes[4:]:
        axes.set_xlabel("gradients of the batch")
    _legend(drawn)
    return drawn


def _curves_of(axes: Axes, name: str, summary: Summary) -> None:
    loss = WORKLOADS[name].score == "loss"
    sign = -1 if loss else 1
    for method, result in summary.results.items():
        if math.isnan(result.step):
            continue
        points = [(s, y) for s, y in zip(*result.curve, strict=True) if s and math.isfinite(y)]
        x, y = [s * result.step for s, _ in points], [sign * y for _, y in points]
        axes.plot(x, y, label=method, **_style(method))
    if math.isnan(summary.target):
        return
    axes.axhline(sign * summary.target, color="black", linestyle=":", linewidth=0.8)
    scores = [r.curve.scores for r in summary.results.values()]
    shown = [y for own in scores for y in (max(own), own[-1]) if math.isfinite(y)]
    base = abs(summary.target)
    # The best and the end of each method are inside, also of one that misses the target by far.
    low = min(summary.target - 0.35 * base, *(y - 0.1 * base for y in shown))
    high = max(summary.target, *shown) + 0.03 * base
    axes.set_ylim(sorted((sign * low, sign * high)))


def _style(method: str) -> dict[str, object]:
    ours = method.startswith("auto")
    return {"color": COLORS[method], "linewidth": 2 if ours else 1.1, "zorder": 3 if ours else 2}


def _legend(drawn: Figure) -> None:
    labels = {
        label: line
        for axes in drawn.axes
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    drawn.legend(labels.values(), labels, loc="outside right center", fontsize=8, frameon=False)


def _save(drawn: Figure, path: pathlib.Path) -> None:
    """Without dates and random ids, so that the same results give the same file."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        drawn.savefig(path, metadata={"Date": None})
