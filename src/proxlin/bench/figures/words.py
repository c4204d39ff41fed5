"""The texts of a figure: its setting and its caption."""

from __future__ import annotations

from collections.abc import Sequence

from proxlin.bench.figures.selection import Panel, Selection, Setting
from proxlin.bench.records import Run

SHOWN = 3  # settings of a curve: the best one, and faintly the next two


def shown(panels: Sequence[Panel]) -> list[Setting]:
    """The settings that are drawn."""
    return [s for panel in panels for curve in panel.curves for s in curve.settings[:SHOWN]]


def setting_of(selection: Selection, scale: str | None = None) -> str:
    """Data, network, batch size, epochs, seeds and scale, if any, in one line."""
    runs = selection.runs
    every = lambda key: sorted({run.config[key] for run in runs})
    epochs, seeds = every("epochs"), every("seed")
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"median and range of seeds {_list(seeds)}"
    size = "the paper's scale" if scale == "paper" else f"reduced scale ({scale})"
    return "; ".join(
        [
            _data_and_networks(runs) if selection.spec.number else _tasks(runs),
            f"batch size {_list(every('batch_size'))}",
            f"{_list(epochs)} {'epoch' if epochs == [1] else 'epochs'}",
            which,
            *([size] if scale else []),
        ]
    )


def _tasks(runs: Sequence[Run]) -> str:
    names = {run.task for run in runs}
    return names.pop() if len(names) == 1 else f"{len(names)} tasks"


def _data_and_networks(runs: Sequence[Run]) -> str:
    pairs = sorted({(run.meta["task"]["dataset"], run.task) for run in runs})
    networks = [task.removeprefix(f"{dataset}-") for dataset, task in pairs]
    together = lambda words: " and ".join(dict.fromkeys(words))
    return f"{together(dataset for dataset, _ in pairs)}, {together(networks)}"


def _list(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def caption(selection: Selection) -> str:
    """How to read the lines, and which of the figure's curves have no runs."""
    settings = shown(selection.panels)
    curves = [curve for panel in selection.panels for curve in panel.curves]
    sentences = []
    if any(len(curve.settings) > 1 for curve in curves):
        classes = any(setting.final("test_accuracy") is not None for setting in settings)
        by = "accuracy" if classes else "loss"
        sentences.append(
            f"Full color: the best setting by final test {by}; faint: the two next best."
        )
    if any(setting.trouble for setting in settings):
        sentences.append("×: where a run ended that diverged or did not finish.")
    runs = [run for setting in settings for run in setting.runs]
    part = {n for run in runs if (n := run.config["train_examples"]) < run.meta["task"]["train"]}
    if part:
        sentences.append(f"Training loss: of the first {min(part):,} examples.")
    if selection.spec.number and (absent := selection.missing()):
        sentences.append(f"No runs: {'; '.join(absent)}.")
    return " ".join(sentences)
