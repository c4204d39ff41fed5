"""Seconds until a test accuracy or a test loss is reached, by ours and by the rivals.

    python benchmarks/time_to_target.py [--problem cifar10-convnet] [--seeds 0 1 2]

Each setting of a method runs on one seed to the first target, the defaults before the rest of the
grids; then the best setting of each method runs on all seeds to all targets, seed by seed, so that
the methods take turns. A run ends at its last target, at 1.5 times the best time so far to the
target that is next (``--cap``, one for all targets or one for each), or when it diverges: it is not
finite, or back where it began for good. What it has not reached by then is infinite.

The clock runs for steps, their batches included; compilation and evaluation, every few steps on the
test examples, are off it. With each evaluation one gradient of a batch is timed: their median says
how fast the machine was, and the seconds count in gradients too.

A run that has ended is at once a line of ``benchmarks/results/time_to_target.jsonl``, and is not
run again when the command is; the tables in ``time_to_target.md`` are made from the lines.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import pathlib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from proxlin.bench import loop, methods, records, tasks
from proxlin.bench.environment import environment, machine
from proxlin.bench.evaluation import EVALUATION_BATCH, evaluator
from proxlin.bench.loop import State
from proxlin.bench.status import RunStatus

RESULTS = pathlib.Path(__file__).parent / "results"
OURS = "auto"
LOST_AFTER = 10  # evaluations in a row without a loss 5 % below that of step 0
CAP = 1.5  # times the best time so far; --cap sets another for the seeds of the best setting
GRIDS: Mapping[str, Sequence[Mapping[str, float]]] = {
    OURS: [{}],
    "adam": [{"stepsize": s} for s in (1e-3, 3e-4, 2e-3, 3e-3)],
    "momentum": [{"stepsize": s} for s in (0.01, 0.03, 0.05, 0.1)],
    "spl": [{"gamma": g} for g in (1.0, 0.1, 0.01)],
    "armijo-spl": [{"gamma": g} for g in (1.0, 0.1, 0.01)],
    "muon": [{"stepsize": s} for s in (0.01, 0.003, 0.03, 0.1)],
    "shampoo": [{"stepsize": s} for s in (0.1, 0.03, 0.3)],
}  # the first setting of each is its default

Row = Mapping[str, Any]


class Point(NamedTuple):
    """An evaluation."""

    step: int
    seconds: float
    loss: float | None  # None where it is not finite
    accuracy: float | None  # None where the task has none


class Problem(NamedTuple):
    """A task, and what is to be reached on its test examples."""

    task: str
    batch: int
    targets: tuple[float, ...]  # the easiest first
    score: str = "accuracy"
    every: int = 25  # steps between evaluations
    examples: int | None = None  # the first so many test examples only
    epochs: int = 40  # after which a run gives up, where no best time caps it

    def reaches(self, point: Point, target: float) -> bool:
        value = getattr(point, self.score)
        if value is None:
            return False
        return value >= target if self.score == "accuracy" else value <= target

    def first_at(self, curve: Sequence[Point], target: float) -> Point | None:
        return next((point for point in curve if self.reaches(point, target)), None)


PROBLEMS = {
    problem.task: problem
    for problem in (
        Problem("cifar10-convnet", 256, (0.65, 0.70)),
        Problem("fashion-mnist-convnet", 256, (0.87, 0.90), every=50),
        # A gradient takes ten times that of the ConvNet: fewer steps, and fewer test examples.
        Problem("cifar10-cnn-short", 256, (0.55, 0.65, 0.70), every=10, examples=2500),
        Problem("fashion-mnist-autoencoder", 500, (230.0,), score="loss"),
    )
}


# ---- one run -----------------------------------------------------------------------------------


def train(
    problem: Problem,
    task: tasks.Task,
    method: str,
    options: Mapping[str, float],
    seed: int,
    caps: Mapping[float, float],
) -> dict[str, Any]:
    """Steps until all targets are reached, each within its cap; what a line says of them."""
    trainer, evaluate = methods.build(method, task, options), evaluator(task)
    state = jax.jit(trainer.init)(*task.init(seed))
    example = next(batches(problem, task, seed))
    loop.compile_step(trainer.step, state, example)
    gradient_seconds(task, state, example)
    curve: list[Point] = []
    gradients: list[float] = []
    step, seconds, in_a_row = 0, 0.0, 0

    def look() -> None:
        test = task.dataset.test.batches(EVALUATION_BATCH, problem.examples)
        loss, accuracy = evaluate(state, test)
        curve.append(Point(step, seconds, records.finite_or_none(loss), accuracy))
        gradients.append(gradient_seconds(task, state, example))

    look()
    end = verdict(problem, curve, caps, seconds, None)
    for done in () if end else loop.steps(trainer.step, state, batches(problem, task, seed)):
        state, step, seconds = done.state, step + 1, seconds + done.seconds
        in_a_row = in_a_row + 1 if done.report.rejected else 0
        if step % problem.every == 0:
            look()
        trouble = loop.trouble(bool(done.report.finite), in_a_row)
        end = verdict(problem, curve, caps, seconds, trouble)
        if end:
            break
    points = [problem.first_at(curve, target) for target in caps]
    return {
        "problem": problem.task,
        "method": method,
        "options": dict(options),
        "seed": seed,
        "targets": list(caps),
        "seconds": [point and point.seconds for point in points],
        "steps": [point and point.step for point in points],
        "end": end or "epochs",
        "seconds_per_step": seconds / max(step, 1),
        "gradient_seconds": statistics.median(gradients),
        "curve": curve,
    }


def verdict(
    problem: Problem,
    curve: Sequence[Point],
    caps: Mapping[float, float],
    seconds: float,
    trouble: RunStatus | None,
) -> str:
    """Why a run ends here, or nothing: all is reached, time is up, or no step is accepted."""
    pending = [target for target in caps if problem.first_at(curve, target) is None]
    if not pending:
        return "reached"
    if curve[-1].loss is None or lost(curve):
        return RunStatus.DIVERGED.value
    if trouble is not None:
        return trouble.value
    return "cap" if seconds > caps[pending[0]] else ""


def lost(curve: Sequence[Point]) -> bool:
    """Whether a run is no better than its initial parameters, as after a collapse to chance."""
    last = [point.loss for point in curve[1:]][-LOST_AFTER:]  # all finite, or it has ended before
    return len(last) == LOST_AFTER and min(last) > 0.95 * curve[0].loss


def batches(problem: Problem, task: tasks.Task, seed: int) -> Iterator[tuple[Any, Any]]:
    for epoch in range(problem.epochs):
        yield from task.dataset.train.epoch(seed, epoch, problem.batch)


@functools.lru_cache(maxsize=1)
def gradient_of(task: tasks.Task) -> Any:
    def objective(params: Any, stats: Any, inputs: Any, targets: Any) -> Any:
        outputs, _ = task.network.apply(params, task.dataset.prepare(inputs), stats)
        return jnp.mean(task.loss.value(outputs, targets))

    return jax.jit(jax.grad(objective))


def gradient_seconds(task: tasks.Task, state: State, batch: tuple[Any, Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(gradient_of(task)(state.params, state.stats, *batch))
    return time.perf_counter() - start


# ---- which runs --------------------------------------------------------------------------------


def seconds_to(row: Row, target: float) -> float:
    """Infinite where the target was not reached, or not asked for."""
    found = dict(zip(row["targets"], row["seconds"], strict=True)).get(target)
    return math.inf if found is None else found


def time_given(row: Row, target: float) -> float:
    """The seconds after which a run was stopped before the target, infinite where it was not."""
    stopped = row["end"] == "cap" and math.isinf(seconds_to(row, target))
    return Point(*row["curve"][-1]).seconds if stopped else math.inf


def seconds_at_least(row: Row, target: float) -> float:
    """The seconds to a target, or those of a run that was stopped before it."""
    return min(seconds_to(row, target), time_given(row, target))


def caps_of(
    rows: Sequence[Row], targets: Sequence[float], cap: Sequence[float]
) -> dict[float, float]:
    """The seconds for each target: so many times the best time so far."""
    best = [min((seconds_to(row, t) for row in rows), default=math.inf) for t in targets]
    return {t: c * b for t, c, b in zip(targets, cap, best, strict=True)}


def answers(row: Row, targets: Sequence[float], cap: Sequence[float]) -> bool:
    """Whether a run leaves nothing to ask about these targets, perhaps on its way to others."""
    count = len(targets)
    if row["targets"][:count] != list(targets):
        return False
    if row["end"] != "cap" or None not in row["seconds"][:count]:
        return True
    pending = row["seconds"].index(None)  # the target whose cap has ended the run
    return bool(row["cap"][pending] >= cap[pending])


def best_setting(rows: Sequence[Row], problem: Problem, method: str) -> Mapping[str, float]:
    """The options that reach the first target first, or else come nearest to it."""
    sign = -1 if problem.score == "accuracy" else 1

    def rank(row: Row) -> tuple[float, float]:
        values = (getattr(Point(*point), problem.score) for point in row["curve"])
        nearest = min(math.inf if value is None else sign * value for value in values)
        return seconds_to(row, problem.targets[0]), nearest

    return min((r for r in rows if r["method"] == method and r["seed"] == 0), key=rank)["options"]


def race(
    problem: Problem,
    names: Sequence[str],
    seeds: Sequence[int],
    path: pathlib.Path,
    task: tasks.Task,
    cap: Sequence[float] = (CAP,),
) -> None:
    """All runs of a problem that are not in the file yet, and those that a lower cap has ended.

    ``cap`` has one entry for each target, or one for all of them.
    """
    rows = list(records.lines(path))
    records.write_lines(path, rows)  # without a line that a kill has torn
    rows = [row for row in rows if row["problem"] == problem.task]
    about = {key: x for key, x in environment().items() if key != "command"}

    def run(
        method: str,
        options: Mapping[str, float],
        seed: int,
        targets: list[float],
        cap: Sequence[float],
    ) -> None:
        asked = {"method": method, "options": options, "seed": seed}
        same = [row for row in rows if all(row[key] == x for key, x in asked.items())]
        if any(answers(row, targets, cap) for row in same):
            return
        load = machine()["load"]  # before this run adds to it
        row = train(problem, task, method, options, seed, caps_of(rows, targets, cap))
        rows.append({**row, "cap": list(cap), "environment": {**about, "load": load}})
        records.append_line(path, rows[-1])
        print(problem.task, *asked.values(), targets, row["end"], row["seconds"], flush=True)

    grids = [GRIDS.get(name, [{}]) for name in names]
    for settings in itertools.zip_longest(*grids):  # all defaults come first
        for method, options in zip(names, settings, strict=True):
            if options is not None:
                run(method, options, 0, [problem.targets[0]], [CAP])
    cap = cap if len(cap) > 1 else list(cap) * len(problem.targets)
    for seed in seeds:
        for method in names:
            run(method, best_setting(rows, problem, method), seed, list(problem.targets), cap)


# ---- tables ------------------------------------------------------------------------------------


def summary(rows: Sequence[Row], problem: Problem, method: str, target: float) -> dict[str, Any]:
    """The best setting of a method over its seeds; a median of failures is infinite."""
    options = best_setting(rows, problem, method)
    mine = [row for row in rows if (row["method"], row["options"]) == (method, options)]
    mine = [row for row in mine if target in row["targets"]]
    # The newest of each seed, but none that its cap has ended while another went on.
    mine.sort(key=lambda row: time_given(row, target))
    by_seed = {row["seed"]: row for row in mine}.values()
    seconds = [seconds_to(row, target) for row in by_seed]
    unit = [row["gradient_seconds"] for row in by_seed]
    steps = [dict(zip(row["targets"], row["steps"], strict=True))[target] for row in by_seed]
    middle = statistics.median
    reached = middle(seconds)
    given = middle([seconds_at_least(row, target) for row in by_seed])
    return {
        "method": method,
        "setting": ", ".join(f"{key} {value:g}" for key, value in options.items()) or "default",
        "reached": f"{sum(map(math.isfinite, seconds))} of {len(seconds)}",
        "seconds": reached,
        "at_least": reached if math.isfinite(reached) else given,
        "least": min(seconds),
        "most": max(seconds),
        "steps": middle([math.inf if n is None else n for n in steps]),
        "gradients": middle([t / g for t, g in zip(seconds, unit, strict=True)]),
        "step": middle([r["seconds_per_step"] / r["gradient_seconds"] for r in by_seed]),
    }


def table(rows: Sequence[Row], problem: Problem, target: float) -> str:
    """One problem and target, ours first and the others in the order in which they were run."""
    lines = [
        "| method | best setting | reached | seconds | range | steps | gradients | a step "
        "| ours / it |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    best = {row["method"]: best_setting(rows, problem, row["method"]) for row in rows}
    asked = [(row["method"], row["options"]) for row in rows if target in row["targets"]]
    names = sorted((x for x in best if (x, best[x]) in asked), key=lambda x: x != OURS)
    found = [summary(rows, problem, method, target) for method in names]
    ours = next((x["seconds"] for x in found if x["method"] == OURS), math.nan)
    for x in found:
        cells = [x["method"], x["setting"], x["reached"], _number(x["seconds"])]
        cells += [f"{_number(x['least'])} to {_number(x['most'])}", _number(x["steps"])]
        cells += [_number(x["gradients"]), f"{x['step']:.2f}"]
        cells += [_ratio(ours, x["seconds"], x["at_least"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratio(ours: float, seconds: float, at_least: float) -> str:
    if not (math.isfinite(ours) and at_least > 0):
        return ""
    return f"{'' if seconds == at_least else '< '}{ours / at_least:.2f}"


def _number(x: float) -> str:
    return "∞" if math.isinf(x) else "" if math.isnan(x) else f"{x:.3g}" if x < 100 else f"{x:.0f}"


def report(rows: Sequence[Row]) -> str:
    """All tables."""
    parts = [
        "Medians over the seeds of the best setting of each method, and the range; ∞ where the "
        "target was not reached by the cap of the run, or the run diverged. Gradients: the "
        "seconds over those of one gradient of a batch, timed during the run. Ours / it: the "
        "ratio of the seconds; below what is written where the other was stopped first."
    ]
    for problem in PROBLEMS.values():
        mine = [row for row in rows if row["problem"] == problem.task]
        asked = {target for row in mine for target in row["targets"]}
        for target in (t for t in problem.targets if t in asked):
            title = f"## {problem.task}, batch {problem.batch}: test {problem.score} {target:g}"
            title += f", of {problem.examples} examples" if problem.examples else ""
            parts += [title, table(mine, problem, target)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problem", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", choices=methods.METHODS, default=list(GRIDS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="grids take 0")
    parser.add_argument("--targets", type=int, help="the first so many of each problem only")
    parser.add_argument(
        "--cap", type=float, nargs="+", default=[CAP], help="times the best time so far"
    )
    parser.add_argument("--data-dir", type=pathlib.Path)
    parser.add_argument("--table-only", action="store_true", help="make the tables, run nothing")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS / "time_to_target.jsonl")
    options = parser.parse_args()
    for name in () if options.table_only else options.problem:
        task, problem = tasks.load(name, options.data_dir), PROBLEMS[name]
        problem = problem._replace(targets=problem.targets[: options.targets])
        if len(options.cap) not in (1, len(problem.targets)):
            parser.error(f"--cap: one number, or one for each target of {name} {problem.targets}")
        race(problem, options.methods, options.seeds, options.output, task, options.cap)
    text = report(list(records.lines(options.output)))
    options.output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
