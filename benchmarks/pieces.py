"""What each piece of ``auto`` is worth: the same without it, or with another in its place.

    python benchmarks/pieces.py [--task cifar10-convnet] [--steps 100] [--data-dir DATA]

Each row changes one piece, and trains for the same number of steps on the same batches: test loss
and accuracy, and the mean seconds of a step over the median of those of a gradient, timed in turn
with it. Rows are by steps, so that other work on the machine changes that column alone. A row that
has run is written at once to ``benchmarks/results/pieces.jsonl`` and is not run again; the table is
made from the rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import optax
from time_to_target import gradient_seconds

import proxlin
from proxlin.bench import loop, methods, records, tasks
from proxlin.bench.environment import environment
from proxlin.bench.evaluation import EVALUATION_BATCH, evaluator
from proxlin.extend import ConvexModel, Proximity, Subproblem, Subsolution, add_scaled, plain

RESULTS = pathlib.Path(__file__).parent / "results"
BATCH = 256
AUTO: dict[str, Any] = {
    "curvature_size": 32,
    "solver": proxlin.CG(2),
    "metric": proxlin.Kronecker(),
    "momentum": 0.9,
    "step": proxlin.StochasticTrustRegion(),
}


@dataclasses.dataclass(frozen=True)
class WarmStarted(Subproblem):
    r"""Martens' warm start: from :math:`\mu d_{\text{last}}`, but with proximity to zero.

    The momentum :math:`s = \tfrac{\mu}{\gamma} P d_{\text{last}}` of the proximity term gives the
    start; what is solved is the system of the way from there to the direction.
    """

    def solve(self, model: ConvexModel, proximity: Proximity, solver: Any = None) -> Subsolution:
        """Solves it in the primal."""
        momentum = proximity.momentum
        start = proximity.conjugate_grad(proximity.precondition(momentum))
        factors = model.factors()
        curved = model.vjp(factors.mv(factors.rmv(model.jvp(plain(start)))))
        rest = add_scaled(add_scaled(model.grad, -1, momentum), -1, curved)
        solved = proxlin.primal_quadratic.solve(
            dataclasses.replace(model, grad=rest),
            dataclasses.replace(proximity, momentum=None),
            solver,
        )
        return solved._replace(d=add_scaled(start, 1, solved.d), predicted=None)


@dataclasses.dataclass(frozen=True)
class SampledLabels(proxlin.Logistic):
    r"""Labels :math:`y_j \sim \mathrm{softmax}(f)` in the place of all classes.

    :math:`E[(e_y - s)(e_y - s)^\top] = H`, so that the columns :math:`(e_{y_j} - s) / \sqrt{c}` for
    :math:`j \le c` are an unbiased factor: the dual has :math:`m c` variables, not :math:`m k`.
    """

    labels: int = 1

    def hessian_factor(self, outputs: Any, targets: Any) -> proxlin.Factor:
        """The same labels whenever the outputs are the same, as they are within a step."""
        bits = jnp.sum(outputs).astype(jnp.float32).view(jnp.uint32)
        shape = (self.labels, *outputs.shape[:-1])
        drawn = jax.random.categorical(jax.random.key(bits), outputs, shape=shape)
        one_hot = jax.nn.one_hot(drawn, outputs.shape[-1], dtype=outputs.dtype)
        b = (one_hot - jax.nn.softmax(outputs)[None]) / self.labels**0.5
        return proxlin.Factor(
            mv=lambda u: jnp.einsum("c...k,...c->...k", b, u),
            rmv=lambda v: jnp.einsum("c...k,...k->...c", b, v),
        )


PIECES: dict[str, dict[str, Any]] = {
    "auto": {},
    "no metric": {"metric": proxlin.Euclidean()},
    "metric of Adam": {"metric": proxlin.Diagonal()},
    "metric of Shampoo": {"metric": proxlin.Kronecker(root=4)},
    "no momentum": {"momentum": 0.0},
    "no curvature, CG(0)": {"solver": proxlin.CG(0)},
    "curvature at every other step": {"every": 2},
    "curvature at every fourth step": {"every": 4},
    "CG(1)": {"solver": proxlin.CG(1)},
    "CG(4)": {"solver": proxlin.CG(4)},
    "primal, CG(3)": {"subproblem": proxlin.primal_quadratic, "solver": proxlin.CG(3)},
    "primal, CG(3) from the last step": {"subproblem": WarmStarted(), "solver": proxlin.CG(3)},
    "curvature of 128 examples": {"curvature_size": 128},
    "curvature of 8 examples": {"curvature_size": 8},
    "1 sampled label": {"loss": SampledLabels(labels=1)},
    "4 sampled labels": {"loss": SampledLabels(labels=4)},
    "gamma 0.3, model steps": {"step": proxlin.ModelStep(0.3)},
    "gamma 0.3, full steps": {"step": proxlin.Fixed(0.3)},
    "gamma by the decrease of the batch": {"step": proxlin.TrustRegion(0.3)},
    "gamma for the lowest point of lines": {"step": proxlin.StochasticTrustRegion(target=0.0)},
    "first gamma 1e-6": {"step": proxlin.StochasticTrustRegion(1e-6)},
    "first gamma 100": {"step": proxlin.StochasticTrustRegion(100.0)},
}


def train(task: tasks.Task, options: dict[str, Any], steps: int, seed: int) -> dict[str, Any]:
    """Trains with these pieces in the place of auto's; steps without curvature are ``CG(0)``."""
    options = {**AUTO, **options}
    every = options.pop("every", 1)
    trainer = methods.trainer_of(task, optimizer(task, options))
    rest = trainer
    if every > 1:
        rest = methods.trainer_of(task, optimizer(task, {**options, "solver": proxlin.CG(0)}))
    turns = itertools.cycle([trainer.step, *[rest.step] * (every - 1)])

    def step(state, *batch):
        return next(turns)(state, *batch)

    state = trainer.init(*task.init(seed))
    seconds, units, rejected = [], [], 0
    for number, done in enumerate(loop.steps(step, state, batches(task, seed, steps))):
        state = done.state
        seconds.append(done.seconds)
        rejected += int(done.report.rejected)
        if number % 10 == 0:
            units.append(gradient_seconds(task, state, next(batches(task, seed, 1))))
    test_loss, accuracy = evaluator(task)(state, task.dataset.test.batches(EVALUATION_BATCH))
    return {
        "loss": records.finite_or_none(test_loss),
        "accuracy": accuracy,
        "gamma": records.finite_or_none(float(state.method.gamma)),
        "rejected": rejected,
        # without the steps and the gradient that compiled
        "gradients": statistics.mean(seconds[every:]) / statistics.median(units[1:]),
    }


def optimizer(task: tasks.Task, options: dict[str, Any]) -> optax.GradientTransformationExtraArgs:
    options = {"loss": task.loss, **options}
    return proxlin.prox_linear(task.network.apply, has_aux=True, init_aux=(), **options)


def batches(task: tasks.Task, seed: int, steps: int):
    """The batches of so many steps, epoch after epoch."""
    epochs = (task.dataset.train.epoch(seed, epoch, BATCH) for epoch in itertools.count())
    return itertools.islice(itertools.chain.from_iterable(epochs), steps)


def table(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    lines = [
        f"{first['task']}, batch {BATCH}, after {first['steps']} steps, seed {first['seed']}.\n",
        "| | test loss | test accuracy | a step, in gradients | last gamma | rejected |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        found = "diverged" if row["loss"] is None else f"{row['loss']:.3f}"
        cells = [row["piece"], found, f"{100 * row['accuracy']:.1f} %", f"{row['gradients']:.2f}"]
        cells += ["" if row["gamma"] is None else f"{row['gamma']:.2g}", str(row["rejected"])]
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
