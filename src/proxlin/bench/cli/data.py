"""``proxlin data``: data sets."""

from __future__ import annotations

import json
import pathlib
from typing import Annotated

import typer

from proxlin.bench import data as datasets
from proxlin.bench.cli.app import DataDir, Json, app, console, errors
from proxlin.bench.display import downloads
from proxlin.bench.errors import DataError

data_app = typer.Typer(help="Download and check data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set and check it; no other command downloads."""
    with errors():
        with downloads(console) as progress:
            folder = datasets.fetch(name, data_dir, progress)
        print(f"{name} is in {folder}")


@data_app.command("verify")
def verify_data(path: pathlib.Path, as_json: Json = False) -> None:
    """Identify the data set in a folder and check its files."""
    with errors():
        states = datasets.verify(path)
        if as_json:
            print(json.dumps([state._asdict() for state in states], default=str))
        else:
            for state in states:
                print(
                    f"{state.state:10} {state.path}"
                    + (f": {state.message}" if state.message else "")
                )
        if any(state.state != "ok" for state in states):
            raise typer.Exit(DataError.exit_code)
