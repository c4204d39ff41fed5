"""``proxlin``: the bench on the command line."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.table import Table

import proxlin
from proxlin.bench import data as datasets
from proxlin.bench import demo, figures, methods, records, report, sweep, tasks
from proxlin.bench.data.places import cache
from proxlin.bench.display import Bar, downloads, failures, sentence
from proxlin.bench.errors import BenchError, DataError, UsageError
from proxlin.bench.records import Config, Run
from proxlin.bench.status import RunStatus
from proxlin.bench.train import CHECKPOINT_SECONDS
from proxlin.bench.train import train as run_training

app = typer.Typer(
    help="Train, compare, and draw the figures of 'Dual Gauss-Newton Directions'.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Get data sets, and check them.", no_args_is_help=True)
app.add_typer(data_app, name="data")

console = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Write JSON for a script to read.")]
Out = Annotated[pathlib.Path, typer.Option(help="Folder of the records.")]
DataDir = Annotated[pathlib.Path | None, typer.Option(help="Where data lies [PROXLIN_DATA].")]
Scale = Annotated[str, typer.Option(help=f"One of {', '.join(sweep.SCALES)}.")]


@app.command("tasks")
def list_tasks(as_json: Json = False) -> None:
    """List the tasks: a data set, a hyphen, a network."""
    if as_json:
        print(json.dumps(tasks.names()))
        return
    table = Table("network", "data sets", box=None, pad_edge=False)
    for network in tasks.NETWORKS:
        table.add_row(network, ", ".join(tasks.datasets_of(network)))
    Console().print(table)
    print("A task is a data set and a network, as in digits-mlp, or one of your own:")
    print("  proxlin train --task path/to/file.py:name")


@app.command("methods")
def list_methods(as_json: Json = False) -> None:
    """List the methods with their options and defaults."""
    found = {
        name: {key: option.default for key, option in methods.options_of(name).items()}
        for name in methods.METHODS
    }
    if as_json:
        print(json.dumps(found))
        return
    table = Table("method", "what it is", "options", box=None, pad_edge=False)
    for name, options in found.items():
        text = ", ".join(f"{key}={value}" for key, value in options.items())
        table.add_row(name, (methods.METHODS[name].__doc__ or "").split("\n")[0], text)
    Console().print(table)


@app.command()
def train(
    task: Annotated[
        str, typer.Option(help="See `proxlin tasks`; or path/to/file.py:name.")
    ] = "digits-mlp",
    method: Annotated[str, typer.Option(help="See `proxlin methods`.")] = "auto",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Of the method, as in -o gamma=0.1.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples in a batch.")] = 128,
    epochs: Annotated[float, typer.Option(help="Passes over the training examples.")] = 10.0,
    max_steps: Annotated[int | None, typer.Option(help="End earlier.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="End when the clock has run so long.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of initialization and order.")] = 0,
    evals_per_epoch: Annotated[int, typer.Option(help="Evaluations in each epoch.")] = 1,
    train_examples: Annotated[int, typer.Option(help="Training examples to evaluate on.")] = 1000,
    out: Out = pathlib.Path("runs"),
    data_dir: DataDir = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint.")
    ] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Time between checkpoints.")
    ] = CHECKPOINT_SECONDS,
    as_json: Json = False,
) -> None:
    """Train once, and record it."""
    with _errors():
        config = Config(
            task, method, _pairs(option or []), batch_size, epochs, max_steps, max_seconds, seed,
            evals_per_epoch, train_examples,
        )  # fmt: skip
        watch = Bar(console, sweep.describe(config))
        run = run_training(
            config,
            out,
            data_dir=data_dir,
            resume=resume,
            checkpoint_seconds=checkpoint_seconds,
            watch=watch,
        )
        print(json.dumps(_brief(run)) if as_json else sentence(run))
        if run.status is RunStatus.INTERRUPTED:
            raise typer.Exit(128 + run.meta["signal"])
        raise typer.Exit(run.status.exit_code)


@app.command("sweep")
def run_sweep(
    name: Annotated[str, typer.Argument(help="A figure, 'all', or a TOML file of your own.")],
    scale: Scale = "smoke",
    out: Out = pathlib.Path("runs"),
    data_dir: DataDir = None,
    isolate: Annotated[
        bool | None, typer.Option(help="A process for each run [all scales but smoke].")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only list the runs.")] = False,
    as_json: Json = False,
) -> None:
    """Run what a figure needs; what has been run is skipped."""
    with _errors():
        names = sweep.names() if name == "all" else [name]
        configs = {c.hash: c for each in names for c in sweep.load(each, scale)}
        if list_only:
            listed = [{**c.as_dict(), "hash": c.hash} for c in configs.values()]
            print(
                json.dumps(listed) if as_json else "\n".join(map(sweep.describe, configs.values()))
            )
            return
        runs = sweep.run(
            list(configs.values()),
            out,
            data_dir=data_dir,
            isolate=scale != "smoke" if isolate is None else isolate,
            watch=lambda config: Bar(console, sweep.describe(config)),
            tell=lambda line: console.print(line, soft_wrap=True, markup=False),
        )
        missing = len(configs) - len(runs)
        if as_json:
            print(json.dumps([_brief(run) for run in runs]))
        else:
            ended = f"{len(runs)} of {len(configs)} runs have ended{failures(runs)}"
            print(f"{ended}; `proxlin figure {name}` draws them")
        # A stepsize that diverges is a result; a run that found no memory is missing one.
        too_large = any(run.status is RunStatus.OOM for run in runs)
        raise typer.Exit(1 if missing else RunStatus.OOM.exit_code if too_large else 0)


@app.command("figure")
def draw_figure(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(figures.FIGURES)}.")],
    runs: Annotated[pathlib.Path, typer.Option(help="Folder of the records.")] = pathlib.Path(
        "runs"
    ),
    scale: Scale = "smoke",
    of: Annotated[
        str | None, typer.Option("--sweep", help="Another sweep, as a TOML file of your own.")
    ] = None,
    out: Annotated[pathlib.Path | None, typer.Option(help="The file: .svg, .png or .pdf.")] = None,
    as_json: Json = False,
) -> None:
    """Draw a figure of the paper from the records of its sweep, or of another one."""
    with _errors():
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
    out: Annotated[pathlib.Path, typer.Option(help="The page.")] = pathlib.Path("report.html"),
) -> None:
    """Write one HTML page with figures, tables, configurations and environment."""
    with _errors():
        everything = records.load_runs(runs)
        by_figure = {name: sweep.find(sweep.load(name, scale), runs) for name in figures.FIGURES}
        report.write_report(
            {name: found for name, found in by_figure.items() if found}, everything, out, scale
        )
        print(f"wrote {out}")


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or cifar10.")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set and check it; nothing else ever downloads."""
    with _errors():
        with downloads(console) as progress:
            folder = datasets.fetch(name, data_dir, progress)
        print(f"{name} is in {folder}")


@data_app.command("verify")
def verify_data(path: pathlib.Path, as_json: Json = False) -> None:
    """Say which data set lies in a folder, and whether its files are whole."""
    with _errors():
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


@app.command("demo")
def run_demo(
    epochs: Annotated[int, typer.Option(help="Passes over the training examples.")] = 30,
    seeds: Annotated[int, typer.Option(help="How many, from 0 on.", min=1)] = 5,
    out: Annotated[
        pathlib.Path, typer.Option(help="Folder for the figure and the record.")
    ] = pathlib.Path("demo"),
) -> None:
    """Compare six methods on handwritten digits, in a minute."""
    with _errors():
        demo.run(epochs, range(seeds), out, Console())


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Settings of all commands."""
    if version:
        print(proxlin.__version__)
        raise typer.Exit()


def main() -> None:
    """The entry point: keeps compiled programs, as most runs compile the same ones again."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache() / "xla"))
    app()


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """What the user can mend, as one line; what is ours, with its traceback."""
    try:
        yield
    except BenchError as error:
        console.print(f"error: {error}", soft_wrap=True, markup=False)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(130) from error


def _pairs(options: list[str]) -> dict[str, str]:
    split = [option.partition("=") for option in options]
    for (name, equals, _), option in zip(split, options, strict=True):
        if not (name and equals):
            raise UsageError(f"--option takes name=value, got {option!r}")
    return {name: value for name, _, value in split}


def _runs_of(name: str, root: pathlib.Path, scale: str) -> list[Run]:
    found = sweep.find(sweep.load(name, scale), root)
    if not found:
        raise UsageError(
            f"{root} holds no run of {name} at scale {scale}; `proxlin sweep {name} --scale "
            f"{scale} --out {root}` makes them"
        )
    return found


def _brief(run: Run) -> dict[str, Any]:
    last = run.metrics[-1] if run.metrics else {}
    return {"folder": str(run.folder), "status": run.status, **run.config, "last": last}


if __name__ == "__main__":
    main()
