"""Runs that were asked for, and those that have ended: one line of JSON each, a file a problem."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import jax

from benchmarks.pde.methods import METHODS, SCIPY, train, train_with_scipy
from benchmarks.pde.problems import PROBLEMS
from proxlin.bench.environment import environment

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "pde"
SECONDS = {"poisson2d": 60.0, "heat1d": 60.0}  # 120 elsewhere
SINGLE = "LM, float32"  # only where it has a mark to reach, and in ten seconds


@dataclasses.dataclass(frozen=True)
class Run:
    problem: str
    method: str
    seed: int
    seconds: float


def records(name):
    """The runs of a problem that have ended."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def missing(problems, methods, seeds, seconds):
    """What is asked for and not on record: method by method, those that matter most first."""
    found = []
    for method in methods:
        for name in problems:
            if method == SINGLE and name != "poisson2d":
                continue
            limit = seconds or (10.0 if method == SINGLE else SECONDS.get(name, 120.0))
            there = {(row["method"], row["seed"], row["seconds"]) for row in records(name)}
            runs = (Run(name, method, seed, limit) for seed in seeds)
            found += [run for run in runs if (method, run.seed, limit) not in there]
    return found


def carry_out(run):
    """Trains, and writes the record as soon as it has ended."""
    problem = PROBLEMS[run.problem]()
    started = environment()  # the load before the run, and not the one it causes
    fn = train_with_scipy if run.method in SCIPY else train
    curve = fn(problem, run.method, run.seed, run.seconds)
    record = {
        "method": run.method,
        "seed": run.seed,
        "seconds": run.seconds,
        "points": [len(x) for x in problem.inputs],
        "parameters": sum(x.size for x in jax.tree.leaves(problem.first(0))),
        "columns": ["seconds", "steps", "objective", "relative L2 error"],
        "curve": curve,
        **started,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / f"{run.problem}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    seconds, steps, _, error = curve[-1]
    print(
        f"{run.problem:14s} {run.method:20s} seed {run.seed} {seconds:7.1f} s {steps:7d} steps  "
        f"error {error:.1e}",
        flush=True,
    )


def all_methods():
    """Their names, in the order in which they run."""
    return [*METHODS, *SCIPY]
