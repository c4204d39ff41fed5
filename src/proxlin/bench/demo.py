"""A first comparison: ``python -m proxlin.bench.demo``, or ``make demo``.

Trains a small perceptron on the handwritten digits that come with scikit-learn: with the two
methods of the paper, and with SGD and Adam at two stepsizes each. Nothing is tuned and nothing is
left out: what the table and the figure show is all that was run. The clock runs for training
steps only; compilation and evaluation are off it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

import proxlin
from proxlin.bench import models

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console
    from rich.table import Table

SIZES = (64, 64, 10)
BATCH = 128
LOSS = proxlin.Logistic()

Examples = tuple[Float[np.ndarray, "m 64"], Int[np.ndarray, " m"]]


class Data(NamedTuple):
    """Images scaled to [0, 1], and labels."""

    train: Examples
    test: Examples


class Method(NamedTuple):
    """A way to train, and how the figure draws it."""

    name: str
    init: Callable[[Any], Any]
    step: Callable[..., tuple[Any, Any]]  # (params, state, inputs, targets) -> (params, state)
    color: str
    dashes: str


class Run(NamedTuple):
    """One training run: a number for each epoch, the first one before any step."""

    seed: int
    seconds: list[float]
    test_loss: list[float]
    test_accuracy: list[float]
    steps: int
    shortened: int  # steps with a stepsize below one, by a line search


# ---- what is trained on what by whom -----------------------------------------------------------


def load_digits() -> Data:
    """The 1,797 digits of 8 x 8 pixels, in the same 1,347 and 450 each time."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    inputs, labels = load_digits(return_X_y=True)
    inputs, labels = (inputs / 16).astype(np.float32), labels.astype(np.int32)
    train_x, test_x, train_y, test_y = train_test_split(
        inputs, labels, test_size=0.25, stratify=labels, random_state=0
    )
    return Data((train_x, train_y), (test_x, test_y))


def methods() -> list[Method]:
    """The paper's two methods at the gamma of the paper; SGD and Adam at two stepsizes each."""
    return [
        _prox_linear("SPL, gamma 1", proxlin.spl(models.mlp, LOSS), "tab:blue", "-"),
        _prox_linear("Armijo SPL, gamma 1", proxlin.armijo_spl(models.mlp, LOSS), "k", ":"),
        _gradient("SGD 0.1", optax.sgd(0.1), "tab:orange", "--"),
        _gradient("SGD 1", optax.sgd(1.0), "tab:orange", "-"),
        _gradient("Adam 0.001", optax.adam(1e-3), "tab:green", "--"),
        _gradient("Adam 0.01", optax.adam(1e-2), "tab:green", "-"),
    ]


def _prox_linear(
    name: str, optimizer: optax.GradientTransformationExtraArgs, color: str, dashes: str
) -> Method:
    @jax.jit
    def step(params: Any, state: Any, inputs: Array, targets: Array) -> tuple[Any, Any]:
        updates, state = optimizer.update(None, state, params, inputs=inputs, targets=targets)
        return optax.apply_updates(params, updates), state

    return Method(name, optimizer.init, step, color, dashes)


def _gradient(
    name: str, optimizer: optax.GradientTransformation, color: str, dashes: str
) -> Method:
    def objective(params: Any, inputs: Array, targets: Array) -> Float[Array, ""]:
        return jnp.mean(LOSS.value(models.mlp(params, inputs), targets))

    @jax.jit
    def step(params: Any, state: Any, inputs: Array, targets: Array) -> tuple[Any, Any]:
        grad = jax.grad(objective)(params, inputs, targets)
        updates, state = optimizer.update(grad, state, params)
        return optax.apply_updates(params, updates), state

    return Method(name, optimizer.init, step, color, dashes)


# ---- the loop and the clock --------------------------------------------------------------------


def train(method: Method, data: Data, epochs: int, seed: int, tick: Callable[[], None]) -> Run:
    """Trains once; ``tick`` is called after each epoch, off the clock."""
    params = models.init_mlp(jax.random.key(seed), SIZES)
    state = method.init(params)
    rng = np.random.default_rng(seed)  # the same batches for all methods
    jax.block_until_ready(method.step(params, state, *batches(data.train, rng)[0]))  # compiles
    seconds, points, etas = [0.0], [evaluate(params, data.test)], []
    for _ in range(epochs):
        epoch = batches(data.train, rng)
        start = time.perf_counter()
        for inputs, targets in epoch:
            params, state = method.step(params, state, inputs, targets)
            etas.append(getattr(state, "eta", 1.0))
        jax.block_until_ready((params, state))
        seconds.append(seconds[-1] + time.perf_counter() - start)
        points.append(evaluate(params, data.test))
        tick()
    losses, accuracies = (list(column) for column in zip(*points, strict=True))
    shortened = int(np.sum(np.array(jax.device_get(etas)) < 1))
    return Run(seed, seconds, losses, accuracies, len(etas), shortened)


def batches(train: Examples, rng: np.random.Generator) -> list[Examples]:
    """The full batches of one epoch, in memory before the clock starts."""
    inputs, targets = train
    order = rng.permutation(len(targets))
    count = len(targets) // BATCH
    rows = [order[i * BATCH : (i + 1) * BATCH] for i in range(count)]
    return jax.block_until_ready(jax.device_put([(inputs[r], targets[r]) for r in rows]))


def evaluate(params: Any, test: Examples) -> tuple[float, float]:
    """Mean loss and accuracy."""
    loss, accuracy = _evaluate(params, *test)
    return float(loss), float(accuracy)


@jax.jit
def _evaluate(params: Any, inputs: Array, targets: Array) -> tuple[Array, Array]:
    outputs = models.mlp(params, inputs)
    right = jnp.argmax(outputs, axis=-1) == targets
    return jnp.mean(LOSS.value(outputs, targets)), jnp.mean(right)


def compare(
    data: Data, epochs: int, seeds: Sequence[int], console: Console
) -> list[tuple[Method, list[Run]]]:
    """All methods, in turn for each seed, so that a busy machine slows down all of them alike."""
    everyone = methods()
    runs: dict[str, list[Run]] = {method.name: [] for method in everyone}
    with _progress(console, list(runs), epochs * len(seeds)) as advance:
        for seed in seeds:
            for method in everyone:
                tick = functools.partial(advance, method.name)
                runs[method.name].append(train(method, data, epochs, seed, tick))
    return [(method, runs[method.name]) for method in everyone]


@contextlib.contextmanager
def _progress(
    console: Console, names: Sequence[str], epochs: int
) -> Iterator[Callable[[str], None]]:
    """One bar for each method; one line for each where there is no terminal."""
    if not console.is_terminal:
        done = dict.fromkeys(names, 0)

        def count(name: str) -> None:
            done[name] += 1
            if done[name] == epochs:
                console.print(f"{name}: {epochs} epochs done")

        yield count
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description:>20}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("epochs"), console=console) as progress:
        tasks = {name: progress.add_task(name, total=epochs) for name in names}
        yield lambda name: progress.advance(tasks[name])


# ---- the record, the table and the figure ------------------------------------------------------


def record(
    results: Sequence[tuple[Method, list[Run]]], epochs: int, command: str, source: str | None
) -> dict[str, Any]:
    """All numbers, and what is needed to get them again."""
    seeds = [run.seed for run in results[0][1]]
    return {
        "command": command,
        "seed": seeds[0],
        "seeds": seeds,
        "epochs": epochs,
        "batch": BATCH,
        "data": "digits of scikit-learn, scaled to [0, 1]; 1,347 to train, 450 to test",
        "network": "perceptron " + "-".join(map(str, SIZES)) + ", SiLU, float32",
        "date": datetime.date.today().isoformat(),
        "commit": source,
        "versions": versions(),
        "machine": machine(),
        "methods": [
            {
                "name": method.name,
                "median": _final(runs),
                "diverged": diverged(runs),
                "runs": [_without_nan(run._asdict()) for run in runs],
            }
            for method, runs in results
        ],
    }


def _final(runs: Sequence[Run]) -> dict[str, Any]:
    """Medians over the seeds after the last epoch."""
    last = lambda name: float(np.median([getattr(run, name)[-1] for run in runs]))
    return _without_nan(
        {
            "test_accuracy": last("test_accuracy"),
            "test_loss": last("test_loss"),
            "seconds": float(clock(runs)[-1]),
            "steps": runs[0].steps,
        }
    )


def clock(runs: Sequence[Run]) -> Float[np.ndarray, " epochs"]:
    """Seconds up to each epoch: sums of medians over the seeds, which one busy run cannot move."""
    each = np.diff([run.seconds for run in runs], axis=1)
    return np.concatenate([[0.0], np.cumsum(np.median(each, axis=0))])


def diverged(runs: Sequence[Run]) -> bool:
    """Whether a run ends with a loss that is not finite, or above the one it began with."""
    return any(not run.test_loss[-1] <= run.test_loss[0] for run in runs)


def _without_nan(numbers: dict[str, Any]) -> dict[str, Any]:
    """None in the place of what JSON cannot write."""
    clean = lambda x: x if not isinstance(x, float) or math.isfinite(x) else None
    return {
        key: [clean(x) for x in value] if isinstance(value, list) else clean(value)
        for key, value in numbers.items()
    }


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    packages = ("jax", "jaxlib", "optax", "numpy", "scikit-learn", "matplotlib")
    others = {name: importlib.metadata.version(name) for name in packages}
    return {"proxlin": proxlin.__version__, "python": platform.python_version(), **others}


def machine() -> dict[str, Any]:
    """Where the seconds were measured."""
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "device": jax.devices()[0].device_kind,
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        # far above the number of cores, others were at work and the seconds say little
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def commit() -> str | None:
    """The commit that this file was run from, if it was run from a clone."""
    here = pathlib.Path(__file__).resolve()
    git = functools.partial(
        subprocess.run, cwd=here.parent, capture_output=True, text=True, check=False
    )
    try:
        root = git(["git", "rev-parse", "--show-toplevel"]).stdout.strip()
        # An installed copy may lie in the repository of another project, whose commits say nothing.
        if not root or pathlib.Path(root) / "src/proxlin/bench/demo.py" != here:
            return None
        return git(["git", "describe", "--always", "--dirty"]).stdout.strip()
    except OSError:  # no git
        return None


def table(results: Sequence[tuple[Method, list[Run]]]) -> Table:
    """The end of training in one row for each method."""
    from rich.table import Table

    title = _setting(results).replace("; ", "\n").replace(" (and range)", "")
    grid = Table(title=title, caption=_caption(results), caption_justify="left")
    grid.add_column("method")
    for name in ("test accuracy", "test loss", "seconds", "steps"):
        grid.add_column(name, justify="right")
    for method, runs in results:
        final = _final(runs)
        quality = [f"{100 * final['test_accuracy']:.1f} %", f"{final['test_loss'] or math.nan:.3f}"]
        if diverged(runs):
            quality = ["diverged", ""]
        grid.add_row(method.name, *quality, f"{final['seconds']:.2f}", str(final["steps"]))
    return grid


def _setting(results: Sequence[tuple[Method, list[Run]]]) -> str:
    seeds = [run.seed for run in results[0][1]]
    which = f"seed {seeds[0]}"
    if len(seeds) > 1:
        which = f"median (and range) of seeds {seeds[0]} to {seeds[-1]}"
    network = "-".join(map(str, SIZES))
    return f"Digits of scikit-learn, perceptron {network}, batch {BATCH}; {which}"


def _caption(results: Sequence[tuple[Method, list[Run]]]) -> str:
    _, armijo = next(pair for pair in results if pair[0].name.startswith("Armijo"))
    shortened, steps = sum(r.shortened for r in armijo), sum(r.steps for r in armijo)
    return (
        "Nothing was tuned. Seconds are those of the training steps.\n"
        f"The line search of Armijo SPL shortened {shortened} of {steps} steps."
    )


def draw(results: Sequence[tuple[Method, list[Run]]], path: pathlib.Path) -> None:
    """Test loss and accuracy, against epochs and against seconds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

    figure = Figure(figsize=(9, 6.4), dpi=120, layout="constrained")
    figure.suptitle(_setting(results), fontsize=11)
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    for row, name in enumerate(("test_loss", "test_accuracy")):
        for column, against in enumerate(("epochs", "seconds")):
            for method, runs in results:
                _draw_curve(axes[row, column], method, runs, name, against)
            axes[row, column].grid(alpha=0.3, which="both", linewidth=0.5)
            axes[row, column].spines[["top", "right"]].set_visible(False)
    worst = min(_final(runs)["test_accuracy"] for _, runs in results)
    axes[0, 0].set(ylabel="test loss", yscale="log")
    axes[0, 0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0, 0].yaxis.set_major_formatter("{x:g}")
    axes[0, 0].yaxis.set_minor_formatter(NullFormatter())
    axes[1, 0].set(ylabel="test accuracy", xlabel="epochs", ylim=(min(0.8, worst - 0.05), 1))
    axes[1, 0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[1, 0].locator_params(axis="y", steps=[1, 2, 5])
    axes[1, 1].set(xlabel="seconds of training steps")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_curve(axes: Axes, method: Method, runs: Sequence[Run], name: str, against: str) -> None:
    """The median over the seeds, and their range."""
    y = np.array([getattr(run, name) for run in runs])
    x = clock(runs) if against == "seconds" else np.arange(y.shape[1])
    label = f"{method.name} (diverged)" if diverged(runs) else method.name
    axes.plot(x, np.median(y, axis=0), method.dashes, color=method.color, label=label)
    axes.fill_between(x, y.min(0), y.max(0), color=method.color, alpha=0.12, linewidth=0)


# ---- the command -------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, prints the table, writes ``demo.png`` and ``demo.json``."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser().parse_args(arguments)
    _check_extras()
    from rich.console import Console

    console = Console()
    seeds = range(options.seed, options.seed + options.repeats)
    start = time.perf_counter()
    source = commit()  # before training: the files may change while it runs
    results = compare(load_digits(), options.epochs, seeds, console)
    draw(results, options.output / "demo.png")
    command = shlex.join(["python", "-m", "proxlin.bench.demo", *arguments])
    numbers = record(results, options.epochs, command, source)
    text = json.dumps(numbers, indent=1, allow_nan=False)
    (options.output / "demo.json").write_text(text + "\n")
    console.print(table(results))
    console.print(
        f"{time.perf_counter() - start:.0f} seconds in all; figure and record: "
        f"{options.output / 'demo.png'}, {options.output / 'demo.json'}",
        soft_wrap=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m proxlin.bench.demo",
        description="Trains a small network with proxlin, SGD and Adam, and compares them.",
    )
    parser.add_argument("--epochs", type=_positive, default=30)
    parser.add_argument("--repeats", type=_positive, default=5, help="how many seeds (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results/demo"))
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def _check_extras() -> None:
    extras = {"matplotlib": "matplotlib", "rich": "rich", "sklearn": "scikit-learn"}
    missing = [name for module, name in extras.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise SystemExit(
            f"the demo needs {', '.join(missing)}; install them by: pip install 'proxlin[bench]'"
        )


if __name__ == "__main__":
    main()
