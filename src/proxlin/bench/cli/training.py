"""``proxlin tasks``, ``methods``, ``train``, ``sweep`` and ``demo``."""

from __future__ import annotations

import json
import pathlib
import shlex
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from proxlin.bench import demo, estimate, methods, sweep, tasks
from proxlin.bench.cli.app import DataDir, Json, Out, Scale, app, brief, console, errors
from proxlin.bench.display import Bar, failures, sentence
from proxlin.bench.errors import UsageError
from proxlin.bench.records import Config
from proxlin.bench.scalars import Scalars
from proxlin.bench.start import with_defaults
from proxlin.bench.status import RunStatus
from proxlin.bench.train import CHECKPOINT_SECONDS
from proxlin.bench.train import train as run_training
from proxlin.bench.watch import Watch, Watches


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
    table = Table("method", "description", "options", box=None, pad_edge=False)
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
        list[str] | None,
        typer.Option("--option", "-o", help="Option of the method, as in -o gamma=0.1."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples in a batch.")] = 128,
    epochs: Annotated[float, typer.Option(help="Passes over the training examples.")] = 10.0,
    max_steps: Annotated[int | None, typer.Option(help="Stop after this many steps.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Stop after this many seconds of training.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the initialization and of the batches.")] = 0,
    evals_per_epoch: Annotated[int, typer.Option(help="Evaluations in each epoch.")] = 1,
    train_examples: Annotated[int, typer.Option(help="Examples for the training loss.")] = 1000,
    out: Out = pathlib.Path("runs"),
    data_dir: DataDir = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the last checkpoint, or that of a shorter run."),
    ] = False,
    rerun: Annotated[
        bool, typer.Option("--rerun", help="Delete the record of this run and start again.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write scalars for TensorBoard to the record.")
    ] = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(help="Seconds between checkpoints.")
    ] = CHECKPOINT_SECONDS,
    as_json: Json = False,
) -> None:
    """Train once and record the run."""
    with errors():
        asked = Config(
            task=task,
            method=method,
            options=_pairs(option or []),
            batch_size=batch_size,
            epochs=epochs,
            max_steps=max_steps,
            max_seconds=max_seconds,
            seed=seed,
            evals_per_epoch=evals_per_epoch,
            train_examples=train_examples,
        )
        config = with_defaults(asked)
        watch: Watch = Bar(console, sweep.describe(config))
        if tensorboard:
            watch = Watches(watch, Scalars(config.folder(out)))
        run = run_training(
            config,
            out,
            data_dir=data_dir,
            resume=resume,
            rerun=rerun,
            checkpoint_seconds=checkpoint_seconds,
            watch=watch,
        )
        print(json.dumps(brief(run)) if as_json else sentence(run))
        raise typer.Exit(run.exit_code)


@app.command("sweep")
def run_sweep(
    name: Annotated[str, typer.Argument(help="A figure, 'all', or a TOML file of your own.")],
    scale: Scale = "smoke",
    out: Out = pathlib.Path("runs"),
    data_dir: DataDir = None,
    isolate: Annotated[
        bool | None, typer.Option(help="One process per run; the default, except at scale smoke.")
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="Only list the runs, and about how long they take.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the experiments of a figure; skip those already recorded."""
    with errors():
        names = sweep.names() if name == "all" else [name]
        configs = {c.hash: c for each in names for c in sweep.load(each, scale)}
        if list_only:
            _list_runs(list(configs.values()), out, data_dir, as_json)
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
            print(json.dumps([brief(run) for run in runs]))
        else:
            ended = f"{len(runs)} of {len(configs)} runs have ended{failures(runs)}"
            print(f"{ended}; `{_drawing(name, scale, out)}` draws them" if runs else ended)
        # A stepsize that diverges is a result; a run out of memory has none.
        too_large = any(run.status is RunStatus.OOM for run in runs)
        raise typer.Exit(1 if missing else RunStatus.OOM.exit_code if too_large else 0)


@app.command("demo")
def run_demo(
    epochs: Annotated[int, typer.Option(help="Passes over the training examples.")] = 30,
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0.", min=1)] = 5,
    out: Annotated[
        pathlib.Path, typer.Option(help="Folder for the figure and the record.")
    ] = pathlib.Path("demo"),
) -> None:
    """Compare five methods on handwritten digits, in a minute."""
    with errors():
        demo.run(epochs, range(seeds), out, Console())


def _list_runs(
    configs: list[Config], out: pathlib.Path, data_dir: pathlib.Path | None, as_json: bool
) -> None:
    """Prints what a sweep would run, with its time on this machine."""
    done = [sweep.finished(config, out) for config in configs]
    times = [
        0.0 if there else estimate.seconds(config, out, data_dir)
        for config, there in zip(configs, done, strict=True)
    ]
    if as_json:
        listed = zip(configs, times, strict=True)
        print(json.dumps([{**c.as_dict(), "hash": c.hash, "seconds": t} for c, t in listed]))
        return
    for config, there, seconds in zip(configs, done, times, strict=True):
        left = "its data is missing" if seconds is None else f"about {estimate.words(seconds)}"
        print(f"{sweep.describe(config)}: {'recorded' if there else left}")
    if any(times):
        total = estimate.words(sum(filter(None, times)))
        print(f"in all about {total} on this machine, to a factor of two or three")


def _drawing(name: str, scale: str, out: pathlib.Path) -> str:
    """The command that draws what a sweep has run."""
    if name == "all":
        return shlex.join(["proxlin", "report", str(out)])
    given = [*(["--scale", scale] if scale != "smoke" else [])]
    given += ["--runs", str(out)] if out != pathlib.Path("runs") else []
    return shlex.join(["proxlin", "figure", name, *given])


def _pairs(options: list[str]) -> dict[str, str]:
    split = [option.partition("=") for option in options]
    for (name, equals, _), option in zip(split, options, strict=True):
        if not (name and equals):
            raise UsageError(f"--option takes name=value, got {option!r}")
    return {name: value for name, _, value in split}
