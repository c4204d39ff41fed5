"""A first comparison, in a minute: ``proxlin demo``, or ``make demo``.

Trains a small perceptron on the handwritten digits of scikit-learn with the two methods of the
paper, ``auto``, and SGD and Adam at two stepsizes each. Nothing is tuned, and nothing is left out:
the table and the figure show every run.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tempfile
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from proxlin.bench import figures, storage
from proxlin.bench.records import Config, Run
from proxlin.bench.start import with_defaults
from proxlin.bench.train import train

METHODS: Sequence[tuple[str, dict[str, float]]] = (
    ("spl", {}),
    ("armijo-spl", {}),
    ("auto", {}),
    ("sgd", {"stepsize": 0.1}),
    ("sgd", {"stepsize": 1.0}),
    ("adam", {"stepsize": 1e-3}),
    ("adam", {"stepsize": 1e-2}),
)
COLUMNS = ("method", "options", "test accuracy", "test loss", "seconds", "steps", "status")


def run(epochs: int, seeds: Sequence[int], out: pathlib.Path, console: Console) -> None:
    """Trains, prints the table, writes ``demo.png`` and ``demo.json``.

    Args:
        epochs: passes over the training examples.
        seeds: each method runs with each of them.
        out: the folder for the figure and the record.
        console: where the table goes.

    Raises:
        UsageError: for numbers that are not positive.
        StorageError: if the folder cannot be written.
    """
    storage.check_folder(out, 2**20)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        runs = _compare(epochs, seeds, pathlib.Path(folder), console)
    selection = figures.select("comparison", runs)
    spec = dataclasses.replace(selection.spec, number="")  # it is none of the paper's figures
    selection = selection._replace(spec=spec)
    figures.draw(selection, out / "demo.png", "demo")
    record = ",\n".join(json.dumps({**run.meta, "metrics": run.metrics}) for run in runs)
    storage.write_atomically(out / "demo.json", f"[\n{record}\n]\n")
    console.print(_table(selection))
    console.print(_remark(runs))
    console.print(
        f"{time.perf_counter() - start:.0f} seconds in total; figure and record: "
        f"{out / 'demo.png'}, {out / 'demo.json'}",
        soft_wrap=True,
    )


def _compare(
    epochs: int, seeds: Sequence[int], folder: pathlib.Path, console: Console
) -> list[Run]:
    configs = [
        with_defaults(Config("digits-mlp", method, options, epochs=epochs, seed=seed))
        for method, options in METHODS
        for seed in seeds
    ]
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeRemainingColumn())
    with Progress(TextColumn("{task.description:>12}"), *columns, console=console) as progress:
        bar = progress.add_task("", total=len(configs))
        runs = []
        for config in configs:
            progress.update(bar, description=config.method)
            runs.append(train(config, folder))
            progress.advance(bar)
    return runs


def _table(selection: figures.Selection) -> Table:
    """The final results, one row for each setting."""
    runs = selection.runs
    seeds = sorted({run.config["seed"] for run in runs})
    title = f"Digits of scikit-learn, perceptron, batch {runs[0].config['batch_size']}\n"
    title += f"medians over {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
    grid = Table(title=title)
    for name in COLUMNS:
        grid.add_column(name, justify="left" if name in COLUMNS[:2] else "right")
    for row in figures.table(selection):
        cells = dict(zip(figures.HEADINGS, figures.cells(row), strict=True))
        grid.add_row(*(cells[name] for name in COLUMNS))
    return grid


def _remark(runs: Sequence[Run]) -> str:
    armijo = [run for run in runs if run.config["method"] == "armijo-spl"]
    etas = [line["eta"] for run in armijo for line in run.metrics if line["eta"] is not None]
    mean = sum(etas) / len(etas)
    return (
        "Nothing was tuned. Seconds are those of the training steps.\n"
        f"The line search of Armijo SPL took a stepsize of {mean:.3g} on average."
    )
