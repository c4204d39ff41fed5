"""The application, and what its commands share."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console

import proxlin
from proxlin.bench import sweep
from proxlin.bench.errors import BenchError
from proxlin.bench.records import Run

app = typer.Typer(
    help="Train, compare, and draw the figures of 'Dual Gauss-Newton Directions'.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help as it is written: no word in brackets is taken for a style
)
console = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Out = Annotated[pathlib.Path, typer.Option(help="Folder of the records.")]
DataDir = Annotated[
    pathlib.Path | None, typer.Option(help="Folder of the data sets; else PROXLIN_DATA.")
]
Scale = Annotated[str, typer.Option(help=f"One of {', '.join(sweep.SCALES)}.")]


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Options of all commands."""
    if version:
        print(proxlin.__version__)
        raise typer.Exit()


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Prints errors that the user can fix in one line; others keep their traceback."""
    try:
        yield
    except BenchError as error:
        console.print(f"error: {error}", soft_wrap=True, markup=False)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error


def brief(run: Run) -> dict[str, Any]:
    """A summary of a run for JSON."""
    last = run.metrics[-1] if run.metrics else {}
    where = {"folder": str(run.folder), "status": run.status}
    return {**where, **run.config, "last": last, "best": run.best}
