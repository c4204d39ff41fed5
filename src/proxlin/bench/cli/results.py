"""``proxlin figure`` and ``proxlin report``."""

from __future__ import annotations

import json
import pathlib
import shlex
from typing import Annotated, Any

import typer

from proxlin.bench import figures, records, report, sweep
from proxlin.bench.cli.app import Json, Scale, app, brief, errors
from proxlin.bench.errors import UsageError
from proxlin.bench.records import Run

_NAMES = "; ".join(f"{name}, {spec.number}" for name, spec in figures.FIGURES.items())


@app.command("figure")
def draw_figure(
    name: Annotated[
        str | None,
        typer.Argument(help=f"A TOML file of your own, or a figure of the paper: {_NAMES}."),
    ] = None,
    runs: Annotated[pathlib.Path, typer.Option(help="Folder of the records.")] = pathlib.Path(
        "runs"
    ),
    scale: Scale = "smoke",
    of: Annotated[
        str | None,
        typer.Option("--sweep", help="Draw the figure from the runs of another sweep."),
    ] = None,
    out: Annotated[pathlib.Path | None, typer.Option(help="The file: .svg, .png or .pdf.")] = None,
    as_json: Json = False,
) -> None:
    """Draw the runs of a folder, of a sweep of your own, or a figure of the paper.

    Without a name, all runs of the folder are drawn by step and by second, task by task.
    """
    with errors():
        own = name is None or name.endswith(".toml")
        if name and not own:
            figures.spec_of(name)  # before the records are read
        source = of or name
        found = _runs_of(source, runs, scale) if source else records.load_runs(runs)
        selection = figures.select_tasks(found) if own else figures.select(str(name), found)
        size = None if own else scale
        path = out or pathlib.Path(f"{pathlib.Path(name or runs.resolve().name).stem}.svg")
        figures.draw(selection, path, size)
        rows = figures.table(selection)
        print(json.dumps(rows) if as_json else f"wrote {path} from {len(selection.runs)} runs")


@app.command("report")
def write_report(
    runs: Annotated[pathlib.Path, typer.Argument(help="Folder of the records.")] = pathlib.Path(
        "runs"
    ),
    scale: Annotated[
        str | None, typer.Option(help="Only figures of the paper at this scale.")
    ] = None,
    out: Annotated[pathlib.Path, typer.Option(help="File to write.")] = pathlib.Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write one HTML page with figures, tables, configurations and environment."""
    with errors():
        found = report.gather(runs, sweep.SCALES if scale is None else [scale])
        report.write_report(found, out)
        print(json.dumps(_told(found, out)) if as_json else f"wrote {out}")


def _told(found: report.Contents, out: pathlib.Path) -> dict[str, Any]:
    """The numbers of a report."""
    tables = {entry.title: figures.table(entry.selection) for entry in found.entries}
    return {"report": str(out), "figures": tables, "runs": [brief(run) for run in found.runs]}


def _runs_of(name: str, root: pathlib.Path, scale: str) -> list[Run]:
    found = sweep.find(sweep.load(name, scale), root)
    if not found:
        given = ["proxlin", "sweep", name, "--scale", scale, "--out", str(root)]
        raise UsageError(
            f"{root} holds no run of {name} at scale {scale}; run `{shlex.join(given)}` first"
        )
    return found
