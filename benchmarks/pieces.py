"""What each piece of ``auto`` is worth: the same without it, or with another in its place.

    python benchmarks/pieces.py [--task cifar10-convnet] [--steps 100] [--data-dir DATA]

Each row changes one piece, and trains for the same number of steps on the same batches: test loss
and accuracy, and the median seconds of a step over those of a gradient, timed in turn with it. Rows
are by steps, so that other work on the machine changes the last column alone. A row that has run is
written at once to ``benchmarks/results/pieces.jsonl`` and is not run again; the table is made from
the rows.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax

import proxlin
from proxlin.bench import records, tasks
from proxlin.bench.environment import environment
from proxlin.bench.train import EVALUATION_BATCH, evaluator

RESULTS = pathlib.Path(__file__).parent / "results"
BATCH = 256
AUTO: dict[str, Any] = {
    "curvature_size": 32,
    "solver": proxlin.CG(2),
    "metric": proxlin.Kronecker(),
    "momentum": 0.9,
    "step": proxlin.StochasticTrustRegion(),
}
PIECES: dict[str, dict[str, Any]] = {
    "auto": {},
    "no metric": {"metric": proxlin.Euclidean()},
    "metric of Adam": {"metric": proxlin.Diagonal()},
    "metric of Shampoo": {"metric": proxlin.Kronecker(root=4)},
    "no momentum": {"momentum": 0.0},
    "no curvature, CG(0)": {"solver": proxlin.CG(0)},
    "CG(1)": {"solver": proxlin.CG(1)},
    "CG(4)": {"solver": proxlin.CG(4)},
    "primal, CG(3)": {"subproblem": proxlin.primal_quadratic, "solver": proxlin.CG(3)},
    "curvature of 128 examples": {"curvature_size": 128},
    "curvature of 8 examples": {"curvature_size": 8},
    "gamma 0.3, model steps": {"step": proxlin.ModelStep(0.3)},
    "gamma 0.3, full steps": {"step": proxlin.Fixed(0.3)},
    "gamma by the decrease of the batch": {"step": proxlin.TrustRegion(0.3)},
    "first gamma 1e-6": {"step": proxlin.StochasticTrustRegion(1e-6)},
    "first gamma 100": {"step": proxlin.StochasticTrustRegion(100.0)},
}


def train(task: tasks.Task, options: dict[str, Any], steps: int, seed: int) -> dict[str, Any]:
    model, loss = task.network.apply, task.loss
    opt = proxlin.prox_linear(model, loss, has_aux=True, init_aux=(), **{**AUTO, **options})

    @jax.jit
    def step(params, state, inputs, targets):
        batch = {"inputs": task.dataset.prepare(inputs), "targets": targets}
        updates, state = opt.update(None, state, params, args=(state.aux,), **batch)
        return optax.apply_updates(params, updates), state

    @jax.jit
    def gradient(params, stats, inputs, targets):
        inputs = task.dataset.prepare(inputs)
        return jax.grad(lambda w: jnp.mean(loss.value(model(w, inputs, stats)[0], targets)))(params)

    params, stats = task.init(seed)
    state = opt.init(params)._replace(aux=stats)
    ratios = []
    for number, batch in zip(range(steps), batches(task, seed), strict=False):
        started = time.perf_counter()
        params, state = jax.block_until_ready(step(params, state, *batch))
        seconds = time.perf_counter() - started
        if number % 10 == 1:  # the first step compiles
            jax.block_until_ready(gradient(params, state.aux, *batch))
            started = time.perf_counter()
            jax.block_until_ready(gradient(params, state.aux, *batch))
            ratios.append(seconds / (time.perf_counter() - started))
    test = task.dataset.test.batches(EVALUATION_BATCH)
    test_loss, accuracy = evaluator(task)(params, state.aux, test)
    return {
        "loss": records.finite_or_none(test_loss),
        "accuracy": accuracy,
        "gamma": records.finite_or_none(float(state.gamma)),
        "refused": int(state.refused),
        "gradients": statistics.median(ratios),
    }


def batches(task: tasks.Task, seed: int):
    epoch = 0
    while True:
        yield from task.dataset.train.epoch(seed, epoch, BATCH)
        epoch += 1


def table(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    lines = [
        f"{first['task']}, batch {BATCH}, after {first['steps']} steps, seed {first['seed']}.\n",
        "| | test loss | test accuracy | a step, in gradients | last gamma | refused |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        found = "diverged" if row["loss"] is None else f"{row['loss']:.3f}"
        cells = [row["piece"], found, f"{100 * row['accuracy']:.1f} %", f"{row['gradients']:.2f}"]
        cells += ["" if row["gamma"] is None else f"{row['gamma']:.2g}", str(row["refused"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--task", default="cifar10-convnet")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS / "pieces.jsonl")
    options = parser.parse_args()
    task = tasks.load(options.task, options.data_dir)
    about = {key: x for key, x in environment().items() if key != "command"}
    asked = {"task": options.task, "steps": options.steps, "seed": options.seed}
    rows = list(records.lines(options.output))
    for piece, changed in PIECES.items():
        wanted = {**asked, "piece": piece}
        if any(all(row[key] == x for key, x in wanted.items()) for row in rows):
            continue
        found = train(task, changed, options.steps, options.seed)
        rows.append({**wanted, **found, "environment": about})
        records.append_line(options.output, rows[-1])
        print(piece, found, flush=True)
    mine = [row for row in rows if all(row[key] == x for key, x in asked.items())]
    options.output.with_suffix(".md").write_text(table(mine), encoding="utf-8")
    print(table(mine))


if __name__ == "__main__":
    main()
