"""Step rules and subproblems on small and on hard settings: test accuracy on digits.

    python benchmarks/rules.py [--epochs 20] [--seeds 3]

The perceptron of the demo, batch 128. Three settings: inputs scaled to [0, 1] with gamma 1, the
same with gamma 100, where few dual steps are fragile, and inputs left at 0 to 16, where the first
outputs saturate the loss. A cell gives the range over the seeds. Results go to
``benchmarks/results``; these are the tables of ``docs/how-to/choosing.md``.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import optax

import proxlin
from proxlin.bench import models
from proxlin.bench.data import Dataset, load
from proxlin.bench.environment import environment

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
    opt = proxlin.prox_linear(NETWORK.predict, LOSS, step=rule, **options)

    @jax.jit
    def step(params, state, inputs, targets):
        inputs = scale * data.prepare(inputs)
        updates, state = opt.update(None, state, params, inputs=inputs, targets=targets)
        return optax.apply_updates(params, updates), state

    runs = []
    for seed in range(seeds):
        params, _ = NETWORK.init(jax.random.key(seed))
        state = opt.init(params)
        for epoch in range(epochs):
            for inputs, targets in data.train.epoch(seed, epoch, BATCH):
                params, state = step(params, state, inputs, targets)
        ((inputs, targets),) = data.test.batches(len(data.test))
        outputs = NETWORK.predict(params, scale * data.prepare(inputs))
        loss = float(jnp.mean(LOSS.value(outputs, jnp.asarray(targets))))
        accuracy = float(jnp.mean(jnp.argmax(outputs, axis=-1) == targets))
        refused, taken = int(state.refused), int(state.taken)
        runs.append({"loss": loss, "accuracy": accuracy, "refused": refused, "taken": taken})
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
