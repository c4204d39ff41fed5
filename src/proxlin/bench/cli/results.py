"""``proxlin figure`` and ``proxlin report``."""

from __future__ import annotations

import json
import pathlib
from typing import Annotated

import typer

from proxlin.bench import figures, records, report, sweep
from proxlin.bench.cli.app import Json, Scale, app, errors
from proxlin.bench.errors import UsageError
from proxlin.bench.records import Run


@app.command("figure")
def draw_figure(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(figures.FIGURES)}.")],
    runs: Annotated[pathlib.Path, typer.Option(help="Folder of the records.")] = pathlib.Path(
        "runs"
    ),
    scale: Scale = "smoke",
    of: Annotated[
        str | None,
        typer.Option("--sweep", help="Draw another sweep, such as a TOML file of your own."),
    ] = None,
    out: Annotated[pathlib.Path | None, typer.Option(help="The file: .svg, .png or .pdf.")] = None,
    as_json: Json = False,
) -> None:
    """Draw a figure of the paper from the records of its sweep."""
    with errors():
        path = out or pathlib.Path(f"{name}.svg")
        found = _runs_of(of or name, runs, scale)
        selection = figures.select(name, found)
        figures.draw(selection, path, scale)
        rows = figures.table(selection)
        print(json.dumps(rows) if as_json else f"wrote {path} from {len(found)} runs")


@app.command("report")
def write_report(
    runs: Annotated[pathlib.Path, typer.Argument(help="Folder of the records.")],
    scale: Scale = "smoke",
    out: Annotated[pathlib.Path, typer.Option(help="File to write.")] = pathlib.Path("report.html"),
) -> None:
    """Write one HTML page with figures, tables, configurations and environment."""
    with errors():
        everything = records.load_runs(runs)
        by_figure = {name: sweep.find(sweep.load(name, scale), runs) for name in figures.FIGURES}
        report.write_report(
            {name: found for name, found in by_figure.items() if found}, everything, out, scale
        )
        print(f"wrote {out}")


def _runs_of(name: str, root: pathlib.Path, scale: str) -> list[Run]:
    found = sweep.find(sweep.load(name, scale), root)
    if not found:
        raise UsageError(
            f"{root} holds no run of {name} at scale {scale}; run `proxlin sweep {name} --scale "
            f"{scale} --out {root}` first"
        )
    return found
