"""The numbers behind a figure."""

from __future__ import annotations

from typing import TypedDict

from proxlin.bench.figures.selection import Selection, Setting
from proxlin.bench.figures.specs import STYLES, describe_options
from proxlin.bench.status import RunStatus

HEADINGS = (
    "panel",
    "method",
    "options",
    "seeds",
    "train loss",
    "test loss",
    "test accuracy",
    "steps",
    "seconds",
    "time per step",
    "JVPs",
    "VJPs",
    "status",
)


class Row(TypedDict):
    """The final results of one setting: medians over the seeds, None where there is no number.

    Attributes:
        panel: title of the panel, empty if there is only one.
        method: as the legend calls it.
        options: of the method.
        seeds: how many.
        train_loss: on the training examples that are evaluated.
        test_loss: on all test examples.
        test_accuracy: between 0 and 1.
        steps: of training.
        seconds: of the training steps alone.
        relative: seconds per step, as a multiple of the fastest in the panel.
        jvps: Jacobian-vector products.
        vjps: vector-Jacobian products.
        status: ``"finished"``, ``"first N steps"``, or what went wrong.
        best: whether no setting of the same curve is ranked above it.
    """

    panel: str
    method: str
    options: str
    seeds: int
    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    steps: float | None
    seconds: float | None
    relative: float | None
    jvps: float | None
    vjps: float | None
    status: str
    best: bool


def cells(row: Row) -> list[str]:
    """A row as text, in the order of :data:`HEADINGS`."""
    show = lambda value, form: "" if value is None else format(value, form)
    accuracy, relative = row["test_accuracy"], row["relative"]
    return [
        row["panel"],
        row["method"],
        row["options"],
        str(row["seeds"]),
        show(row["train_loss"], ".4g"),
        show(row["test_loss"], ".4g"),
        "" if accuracy is None else f"{100 * accuracy:.1f} %",
        show(row["steps"], ",.0f"),
        show(row["seconds"], ",.2f"),
        "" if relative is None else f"{relative:.1f} ×",
        show(row["jvps"], ",.0f"),
        show(row["vjps"], ",.0f"),
        row["status"],
    ]


def table(selection: Selection) -> list[Row]:
    """All settings of a figure, whether drawn or not: panel by panel, the best of a curve first.

    Args:
        selection: the runs of the figure, sorted.

    Returns:
        One row for each setting.
    """
    rows = []
    for panel in selection.panels:
        title = selection.title_of(panel.key)
        costs = [cost for setting in panel.settings if (cost := _seconds_per_step(setting))]
        fewest = min(costs, default=None)
        rows += [
            _row(title, setting, selection.spec.named_by, fewest, best=setting is curve.settings[0])
            for curve in panel.curves
            for setting in curve.settings
        ]
    return rows


def _row(
    panel: str, setting: Setting, named_by: tuple[str, ...], fewest: float | None, best: bool
) -> Row:
    cost = _seconds_per_step(setting)
    return Row(
        panel=panel,
        method=STYLES[setting.method].label,
        options=describe_options(setting.runs[0], named_by),
        seeds=len(setting.runs),
        train_loss=setting.final("train_loss"),
        test_loss=setting.final("test_loss"),
        test_accuracy=setting.final("test_accuracy"),
        steps=setting.final("step"),
        seconds=setting.final("seconds"),
        relative=cost / fewest if cost and fewest else None,
        jvps=setting.final("jvps"),
        vjps=setting.final("vjps"),
        status=setting.trouble or setting.cut or RunStatus.FINISHED.value,
        best=best,
    )


def _seconds_per_step(setting: Setting) -> float | None:
    seconds, steps = setting.final("seconds"), setting.final("step")
    return seconds / steps if seconds and steps else None
