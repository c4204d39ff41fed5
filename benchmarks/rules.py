"""Step rules and subproblems on small and on hard settings: test accuracy on digits.

    python benchmarks/rules.py [--epochs 20] [--seeds 3]

The perceptron of the demo, batch 128. Three settings: inputs scaled to [0, 1] with gamma 1, the
same with gamma 100, where few dual steps are fragile, and inputs left at 0 to 16, where the first
outputs saturate the loss. A cell gives the range over the seeds. Results go to
``benchmarks/results``; these are the tables of ``docs/how-to/choosing.md``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import pathlib
from typing import Any

import proxlin
from proxlin.bench import loop, methods, models, tasks
from proxlin.bench.data import Dataset, load
from proxlin.bench.environment import environment
from proxlin.bench.evaluation import EVALUATION_BATCH, evaluator

BATCH = 128
LOSS = proxlin.Logistic()
NETWORK = models.mlp((8, 8, 1), 10)
RESULTS = pathlib.Path(__file__).parent / "results"
SETTINGS = {
    "gamma 1": (1, 1.0),
    "gamma 100": (1, 100.0),
    "inputs unscaled": (16, 1.0),
}  # scale, gamma
SUBPROBLEMS = {
    "dual, CG(2)": {},
    "dual, CG(10)": {"solver": proxlin.CG(10)},
    "primal, CG(3)": {"subproblem": proxlin.primal_quadratic, "solver": proxlin.CG(3)},
}


def rules(gamma: float) -> dict[str, Any]:
    return {
        "Fixed": proxlin.Fixed(gamma),
        "Armijo(beta=1e-4)": proxlin.Armijo(gamma),
        "Armijo(beta=0.1)": proxlin.Armijo(gamma, beta=0.1),
        "ModelStep": proxlin.ModelStep(gamma),
        "TrustRegion": proxlin.TrustRegion(gamma),
    }


def train(
    rule: Any, options: dict[str, Any], data: Dataset, scale: float, epochs: int, seeds: int
) -> list:
    scaled = dataclasses.replace(data, prepare=lambda inputs: scale * data.prepare(inputs))
    task = tasks.Task("digits-mlp", NETWORK, LOSS, scaled)
    trainer = methods.trainer_of(
        task,
        proxlin.prox_linear(NETWORK.apply, LOSS, step=rule, has_aux=True, init_aux=(), **options),
    )
    runs = []
    for seed in range(seeds):
        state = trainer.init(*task.init(seed))
        batches = (data.train.epoch(seed, epoch, BATCH) for epoch in range(epochs))
        for done in loop.steps(trainer.step, state, itertools.chain.from_iterable(batches)):
            state = done.state
        loss, accuracy = evaluator(task)(state, data.test.batches(EVALUATION_BATCH))
        rejected, taken = int(state.method.rejected), int(state.method.taken)
        runs.append({"loss": loss, "accuracy": accuracy, "rejected": rejected, "taken": taken})
    return runs


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| subproblem, solver | step rule | " + " | ".join(SETTINGS) + " |"]
    lines.append("|---|---|" + "---:|" * len(SETTINGS))
    for name, rule in dict.fromkeys((row["subproblem"], row["rule"]) for row in rows):
        mine = [row for row in rows if (row["subproblem"], row["rule"]) == (name, rule)]
        cells = []
        for row in mine:
            values = [100 * run["accuracy"] for run in row["runs"]]
            cells.append(f"{min(values):.0f} to {max(values):.0f} %")
        lines.append(f"| {name} | {rule} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS / "rules.json")
    options = parser.parse_args()
    data = load("digits")
    about = environment()  # before training: the files may change while it runs
    rows = []
    for name, extra in SUBPROBLEMS.items():
        for rule_name in rules(1.0):
            for setting, (scale, gamma) in SETTINGS.items():
                rule = rules(gamma)[rule_name]
                runs = train(rule, extra, data, scale, options.epochs, options.seeds)
                rows.append(
                    {"subproblem": name, "rule": rule_name, "setting": setting, "runs": runs}
                )
                print(name, rule_name, setting, [f"{r['accuracy']:.3f}" for r in runs], flush=True)
    record = {
        "epochs": options.epochs,
        "seeds": list(range(options.seeds)),
        "environment": about,
        "rows": rows,
    }
    options.output.parent.mkdir(exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(table(rows) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
