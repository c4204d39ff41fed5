"""What a step of ``auto`` costs on networks of several kinds, in gradients of the same batch.

    python benchmarks/price.py [--networks convnet ...] [--rounds 5]

A round takes twenty consecutive steps of ``auto``, one of which computes the roots of its metric,
between two sets of ten gradients; a row has the median over the rounds of the ratio of their mean
seconds. Beside it stand the seconds of the first call in those of a step of Adam, and the size of
the state of ``auto`` in copies of the parameters. The inputs are random: only shapes matter here.
Results go to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import proxlin
from proxlin.bench import models
from proxlin.bench.environment import environment
from proxlin.bench.models.network import Network, stateless

RESULTS = pathlib.Path(__file__).parent / "results"
STEPS = 20  # between two computations of the roots


class Case(NamedTuple):
    """A network with a batch for it."""

    network: Network
    loss: proxlin.Loss
    inputs: Any
    targets: Any


def images(network: Callable[..., Any], batch: int) -> Case:
    key = jax.random.key(0)
    x = jax.random.normal(key, (batch, 32, 32, 3))
    y = jax.random.randint(key, (batch,), 0, 10)
    return Case(network((32, 32, 3), 10), proxlin.Logistic(), x, y)


def perceptron(inputs: int, widths: tuple[int, ...], outputs: int, batch: int) -> Case:
    key = jax.random.key(0)
    x = jax.random.normal(key, (batch, inputs))
    y = jax.random.randint(key, (batch,), 0, outputs)
    sizes = (inputs, *widths, outputs)

    def init(key):
        return [
            {"w": jax.random.normal(key, (a, b)) / a**0.5, "b": jnp.zeros(b)}
            for a, b in itertools.pairwise(sizes)
        ]

    def forward(params, x):
        *hidden, last = params
        for layer in hidden:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x @ last["w"] + last["b"]

    return Case(stateless(init, forward), proxlin.Logistic(), x, y)


def transformer(sequences: int) -> Case:
    network = models.transformer((64, 96), 96)
    tokens = jax.random.randint(jax.random.key(0), (sequences, 65), 0, 96)
    x, y = jax.nn.one_hot(tokens[:, :-1], 96), tokens[:, 1:]
    return Case(network, proxlin.Logistic(), x, y)


def autoencoder(batch: int) -> Case:
    x = jax.random.uniform(jax.random.key(0), (batch, 28, 28, 1))
    network = models.autoencoder((28, 28, 1))
    return Case(network, proxlin.BinaryLogistic(), x, x.reshape(batch, -1))


CASES: dict[str, Callable[[], Case]] = {
    "ConvNet, batch 256": lambda: images(models.convnet, 256),
    "transformer, 2,048 tokens": lambda: transformer(32),
    "deep autoencoder, batch 500": lambda: autoencoder(500),
    "dense layers of width 1024, batch 128": lambda: perceptron(1024, (1024, 1024), 10, 128),
    "three dense layers of width 256, batch 512": lambda: perceptron(64, (256, 256, 256), 10, 512),
}


def programs(case: Case) -> tuple[Callable[..., Any], ...]:
    """A gradient, a step of Adam and a step of ``auto``, each with its first state."""
    model = case.network.predict

    def gradient(params, x, y):
        return jax.value_and_grad(lambda w: jnp.mean(case.loss.value(model(w, x), y)))(params)

    adam = optax.adam(1e-3)

    def adam_step(params, state, x, y):
        updates, state = adam.update(gradient(params, x, y)[1], state, params)
        return optax.apply_updates(params, updates), state

    opt = proxlin.auto(model, case.loss)

    def auto_step(params, state, x, y):
        updates, state = opt.update(None, state, params, inputs=x, targets=y)
        return optax.apply_updates(params, updates), state

    return gradient, (adam.init, adam_step), (opt.init, auto_step)


def first_call(fn: Callable[..., Any], *operands: Any) -> tuple[Any, float]:
    """The function compiled, and the seconds of its first call."""
    start = time.perf_counter()
    compiled = jax.jit(fn, donate_argnums=()).lower(*operands).compile()
    jax.block_until_ready(compiled(*operands))
    return compiled, time.perf_counter() - start


def measure(case: Case, rounds: int) -> dict[str, float]:
    params, _ = case.network.init(jax.random.key(1))
    batch = case.inputs, case.targets
    gradient, (adam_init, adam_step), (init, auto_step) = programs(case)
    grad, _ = first_call(gradient, params, *batch)
    _, adam_seconds = first_call(adam_step, params, adam_init(params), *batch)
    state = init(params)
    step, auto_seconds = first_call(auto_step, params, state, *batch)

    def gradients() -> float:
        start = time.perf_counter()
        for _ in range(STEPS // 2):
            jax.block_until_ready(grad(params, *batch))
        return (time.perf_counter() - start) / (STEPS // 2)

    ratios = []
    moving = params
    for _ in range(rounds):
        before = gradients()
        start = time.perf_counter()
        for _ in range(STEPS):
            moving, state = jax.block_until_ready(step(moving, state, *batch))
        seconds = (time.perf_counter() - start) / STEPS
        ratios.append(2 * seconds / (before + gradients()))
    size = lambda tree: sum(x.nbytes for x in jax.tree.leaves(tree))
    return {
        "gradients": statistics.median(ratios),
        "first_call": auto_seconds / adam_seconds,
        "copies": size(state) / size(params),
        "gradient_milliseconds": 1e3 * gradients(),
        "first_call_seconds": auto_seconds,
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | gradients a step | first call, in Adam's | state, in copies of the parameters |",
        "|---|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['network']} | {row['gradients']:.2f} | {row['first_call']:.1f} "
            f"| {row['copies']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", nargs="+", default=[""], help="parts of their names")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS / "price.json")
    options = parser.parse_args()
    about = {**environment(), "seed": 0, "data": "random"}
    rows = []
    for name, case in CASES.items():
        if any(part in name for part in options.networks):
            rows.append({"network": name, **measure(case(), options.rounds)})
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    options.output.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(table(rows) + "\n")


if __name__ == "__main__":
    main()
