"""One routine draws all figures."""

from __future__ import annotations

import io
import pathlib
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from proxlin.bench.errors import UsageError
from proxlin.bench.figures.selection import Panel, Selection, Setting
from proxlin.bench.figures.specs import STYLES, Spec, Style
from proxlin.bench.figures.words import SHOWN, caption, setting_of, shown
from proxlin.bench.storage import explained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

DASHES = ("-", "--", "-.", ":")
_DATES: dict[str, dict[str, Any]] = {
    ".svg": {"Date": None},
    ".png": {},
    ".pdf": {"CreationDate": None},
}
LABELS = {
    "epoch": "epochs",
    "step": "steps",
    "seconds": "seconds of training steps",
    "train_loss": "training loss",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
}

Limits = dict[str, tuple[float, float]]


def draw(selection: Selection, path: pathlib.Path, scale: str | None = None) -> None:
    """Draws a figure into a file; the same runs give the same file.

    Args:
        selection: the runs of the figure, sorted.
        path: the file, with the suffix ``.svg``, ``.png`` or ``.pdf``.
        scale: of the experiments; the title says "reduced scale" for all but ``"paper"``. None
            for runs that are of no figure of the paper.

    Raises:
        UsageError: for another suffix.
        StorageError: if the file cannot be written.
    """
    if path.suffix not in _DATES:
        raise UsageError(
            f"a figure cannot be written to {path.name}: use one of {', '.join(_DATES)}"
        )
    drawn = figure(selection, scale)
    with explained(path.parent, 1_000_000):
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(drawn, path, path.suffix, salt=selection.name)


def svg(selection: Selection, scale: str | None = None) -> str:
    """Draws a figure as text, see :func:`draw`."""
    stream = io.StringIO()
    _save(figure(selection, scale), stream, ".svg", salt=selection.name)
    return stream.getvalue()


def _save(drawn: Figure, target: pathlib.Path | io.StringIO, suffix: str, salt: str) -> None:
    """Saves reproducibly: without dates and random ids."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": salt}):
        drawn.savefig(target, format=suffix[1:], metadata=_DATES[suffix])


def figure(selection: Selection, scale: str | None = None) -> Figure:
    """Builds a figure: panels in a column, each with metrics against epochs and seconds.

    Args:
        selection: the runs of the figure, sorted.
        scale: of the experiments, see :func:`draw`.

    Returns:
        The figure; its subfigures are the panels.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    spec, panels = selection.spec, selection.panels
    styles = _styles(spec, panels)
    single = len(panels) == 1
    width, height = (9.0, 7.0) if single else (10.5, 2.9 * len(panels) + 1.1)
    drawn = Figure(figsize=(width, height), dpi=120, layout=ConstrainedLayoutEngine(wspace=0.04))
    setting = textwrap.fill(setting_of(selection, scale), int(13 * width))
    # Names are not mathematics: a dollar sign is literal.
    drawn.suptitle(f"{spec.title}\n{setting}", fontsize=11, parse_math=False)
    words = textwrap.fill(caption(selection), int(16 * width))
    drawn.supxlabel(words, x=0.01, ha="left", fontsize=8, parse_math=False)
    rows = drawn.subfigures(len(panels), squeeze=False)[:, 0]
    for part, panel in zip(rows, panels, strict=True):
        alike = [other for other in panels if _task(selection, other) == _task(selection, panel)]
        metrics = _metrics(spec, alike)
        limits = {metric: _limits(alike, metric) for metric in metrics}
        title = selection.title_of(panel.key)
        part.suptitle(title, fontsize=10, weight="bold", parse_math=False)
        _draw_panel(part, panel, spec, metrics, limits, styles, stacked=single)
    return drawn


# ---- axes --------------------------------------------------------------------------------------


def _task(selection: Selection, panel: Panel) -> str:
    """The task of a panel: panels of the same task share their scales."""
    return dict(zip(selection.spec.panel_keys, panel.key, strict=True))["task"]


def _metrics(spec: Spec, panels: Sequence[Panel]) -> list[str]:
    """The vertical axes; the test loss where there is no accuracy."""
    runs = (run for panel in panels for setting in panel.settings for run in setting.runs)
    lines = [line for run in runs for line in run.metrics]
    there = lambda metric: any(line[metric] is not None for line in lines)
    return [metric if there(metric) else "test_loss" for metric in spec.metrics]


def _limits(panels: Sequence[Panel], metric: str) -> tuple[float, float]:
    """One range for these panels, to compare them: that of the settings that did not diverge."""
    settings = shown(panels)
    sound = [setting for setting in settings if not setting.trouble] or settings
    bands = [band for s in sound if (band := s.band(metric, "epoch")).x.size]
    if not bands:
        return (0.0, 1.0) if metric == "test_accuracy" else (0.1, 10.0)
    highest = max(float(band.median.max()) for band in bands)
    if metric == "test_accuracy":
        # The end of training matters: values far below all final ones are cut off.
        worst = min(float(band.median[-1]) for band in bands)
        lowest = max(0.0, worst - max(highest - worst, 0.1))
        return lowest, min(1.0, highest + 0.1 * (highest - lowest))
    values = np.concatenate([band.median for band in bands])
    lowest = float(values[values > 0].min(initial=highest))
    start = max(float(band.median[0]) for band in bands)
    return lowest / 1.2, 1.2 * start


def _styles(spec: Spec, panels: Sequence[Panel]) -> dict[Any, Style]:
    """The style of each curve, the same in all panels: its method's, or a shade for its value."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if not spec.named_by:
        return {}
    keys = sorted({curve.key for panel in panels for curve in panel.curves})
    shades = colormaps["viridis"](np.linspace(0.0, 0.8, len(keys)))
    return {
        key: Style("", to_hex(shade), DASHES[number % len(DASHES)])
        for number, (key, shade) in enumerate(zip(keys, shades, strict=True))
    }


def _draw_panel(
    part: SubFigure,
    panel: Panel,
    spec: Spec,
    metrics: Sequence[str],
    limits: Limits,
    styles: dict[Any, Style],
    stacked: bool,
) -> None:
    """All metrics across all horizontal axes: in a grid, or side by side."""
    shape = (len(metrics), len(spec.across)) if stacked else (1, len(metrics) * len(spec.across))
    grid = part.subplots(*shape, squeeze=False).reshape(len(metrics), len(spec.across))
    for row, metric in zip(grid, metrics, strict=True):
        for axes, across in zip(row, spec.across, strict=True):
            for curve in panel.curves:
                style = styles.get(curve.key, STYLES[curve.settings[0].method])
                for setting in reversed(curve.settings[:SHOWN]):  # the best one on top
                    best = setting is curve.settings[0]
                    named = best or len(panel.curves) == 1
                    label = setting.label(*spec.named_by) if named else None
                    _draw_setting(axes, setting, metric, across, style, label, best, limits[metric])
            _dress(axes, metric, across, limits[metric])
        row[0].set_ylabel(LABELS[metric])
        for axes in row[1:]:
            axes.tick_params(labelleft=False)
    if stacked:
        for axes in grid[:-1].flat:
            axes.tick_params(labelbottom=False)
            axes.set_xlabel("")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    if len(panel.curves) == 1:
        handles, labels = handles[::-1], labels[::-1]
    pixels = 65 + 7 * max(map(len, labels))  # of a column, at 120 per inch
    legend = part.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=max(1, min(3, int(120 * part.figure.get_figwidth() / pixels))),
        frameon=False,
        fontsize=9,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw_setting(
    axes: Axes,
    setting: Setting,
    metric: str,
    across: str,
    style: Style,
    label: str | None,
    best: bool,
    limits: tuple[float, float],
) -> None:
    """The median over the seeds, their range for the best setting, and a cross at a failure."""
    band = setting.band(metric, across)
    look: dict[str, Any] = {
        "color": style.color,
        "alpha": 1.0 if best else 0.35,
        "zorder": 3 if best else 2,
    }
    axes.plot(band.x, band.median, style.dashes, label=label, **look)
    if best and len(setting.runs) > 1:
        axes.fill_between(band.x, band.low, band.high, color=style.color, alpha=0.12, linewidth=0)
    if setting.trouble:
        # An end outside the axes is marked at their edge.
        end = np.clip(band.median[-1:], *limits)
        axes.plot(band.x[-1:], end, "x", markersize=8, clip_on=False, **look)


def _dress(axes: Axes, metric: str, across: str, limits: tuple[float, float]) -> None:
    """Scales, ticks and grid as in all figures of the project."""
    from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

    axes.set(xlabel=LABELS[across], ylim=limits)
    axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])
    if metric == "test_accuracy":
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    else:
        axes.set(yscale="log", ylim=limits)
        decades = np.log10(limits[1] / limits[0])
        subs = (1, 1.5, 2, 3, 4, 6, 8) if decades < 1 else (1, 2, 5) if decades < 2 else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3, which="both", linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
