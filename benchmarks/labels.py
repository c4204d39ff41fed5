"""What sampled labels can save of a step of ``auto`` with many classes.

    python benchmarks/labels.py [--classes 10 100 1000 10000] [--repeats 20]

The paper's ConvNet with k outputs on inputs of CIFAR-10's shape, batch 256: a step with all labels
in the curvature, with 4 sampled ones, and with no curvature at all, which is more than any sampling
can save. Timed in turn, round by round, as in ``directions.py``; a row gives medians over rounds of
the ratio to one jitted gradient. Results go to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
from typing import Any

import jax
import optax
from directions import compiled, seconds_of
from pieces import AUTO, SampledLabels

import proxlin
from proxlin.bench import models
from proxlin.bench.environment import environment

RESULTS = pathlib.Path(__file__).parent / "results"
BATCH = 256
VARIANTS: dict[str, dict[str, Any]] = {
    "all labels": {"loss": proxlin.Logistic()},
    "4 sampled labels": {"loss": SampledLabels(labels=4)},
    "no curvature": {"loss": proxlin.Logistic(), "solver": proxlin.CG(0)},
}


def second_step(network: models.Network, options: dict[str, Any], *batch: Any) -> Any:
    """A step that keeps the roots of the metric, and what it is called with."""
    opt = proxlin.prox_linear(network.predict, **{**AUTO, **options})

    @jax.jit
    def step(params, x, y, state):
        updates, state = opt.update(None, state, params, inputs=x, targets=y)
        return optax.apply_updates(params, updates), state

    return step, (*batch, step(*batch, opt.init(batch[0]))[1])


def measure(classes: int, repeats: int) -> dict[str, Any]:
    network = models.convnet((32, 32, 3), classes)
    key = jax.random.key(0)
    x = jax.random.normal(key, (BATCH, 32, 32, 3))
    y = jax.random.randint(key, (BATCH,), 0, classes)
    params, _ = network.init(key)

    def gradient(params, x, y):
        loss = proxlin.Logistic()
        return jax.value_and_grad(lambda w: loss.value(network.predict(w, x), y).mean())(params)

    calls = {
        name: second_step(network, options, params, x, y) for name, options in VARIANTS.items()
    }
    calls["gradient"] = gradient, (params, x, y)
    programs = {name: compiled(*call)[0] for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for repeat in range(repeats + 1):
        for name, program in programs.items():
            seconds = seconds_of(program, calls[name][1])
            if repeat:  # the first round warms up
                times[name].append(seconds)
    ratios = {
        name: statistics.median(t / g for t, g in zip(times[name], times["gradient"], strict=True))
        for name in VARIANTS
    }
    return {"classes": classes, "gradient_seconds": statistics.median(times["gradient"]), **ratios}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"A step in gradients, ConvNet, batch {BATCH}, curvature of {AUTO['curvature_size']}.\n",
        "| classes | " + " | ".join(VARIANTS) + " |",
        "|---:" * (len(VARIANTS) + 1) + "|",
    ]
    for row in rows:
        cells = [str(row["classes"]), *(f"{row[name]:.2f}" for name in VARIANTS)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000, 10000])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS / "labels.json")
    options = parser.parse_args()
    about = {key: x for key, x in environment().items() if key != "command"}
    about |= {"seed": 0, "data": "normal inputs of CIFAR-10's shape"}
    rows = [measure(classes, options.repeats) for classes in options.classes]
    record = {"environment": about, "repeats": options.repeats, "rows": rows}
    options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    options.output.with_suffix(".md").write_text(table(rows), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
