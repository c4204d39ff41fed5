"""Sparse networks on digits: test accuracy against the fraction of weights that are exactly zero.

    python examples/sparse_digits.py [--epochs 120] [--output runs/sparse-digits]

The objective is the logistic loss plus s ||weights||_1, biases left free, for several strengths s.
Prox-linear steps (Algorithm 3, the composite line search) against proximal SGD and proximal Adam:
a gradient step, then soft thresholding by stepsize times s. For Adam the threshold is the learning
rate times s, as practice has it; its metric is another one, so that it gets strengths of its own,
50 times larger. Stepsizes are the best of three on the dense problem. One seed; the record says
which.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import subprocess
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import proxlin
from proxlin.bench import models

BATCH, SEED = 128, 0
STRENGTHS = (0.0, 1e-4, 3e-4, 7e-4, 1e-3, 2e-3, 4e-3)
LOSS = proxlin.Logistic()
NETWORK = models.mlp((64,), 10, hidden=(128,))


def is_weight(path: str) -> bool:
    return path.endswith("w")


def load():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(x))
    x, y = jnp.asarray(x[order] / 16, jnp.float32), jnp.asarray(y[order], jnp.int32)
    train = 11 * BATCH
    return (x[:train], y[:train]), (x[train:], y[train:])


def regularizer(strength):
    return proxlin.L1(strength, where=is_weight) if strength else proxlin.Zero()


def prox_linear(strength):
    opt = proxlin.prox_linear(NETWORK.predict, LOSS, regularizer=regularizer(strength))

    def step(params, state, x, y):
        updates, state = opt.update(None, state, params, inputs=x, targets=y)
        return optax.apply_updates(params, updates), state

    return opt.init, step


def proximal(optimizer, rate):
    """A gradient step, then the proximity operator of rate * penalty."""

    def method(strength):
        penalty = regularizer(strength)

        def step(params, state, x, y):
            objective = lambda w: jnp.mean(LOSS.value(NETWORK.predict(w, x), y))
            updates, state = optimizer.update(jax.grad(objective)(params), state, params)
            return penalty.prox(optax.apply_updates(params, updates), rate), state

        return optimizer.init, step

    return method


def train(method, strength, epochs, data):
    (x, y), (x_test, y_test) = data
    init, step = method(strength)
    params, _ = NETWORK.init(jax.random.key(SEED))

    @jax.jit
    def epoch(carry, key):
        rows = jax.random.permutation(key, len(x)).reshape(-1, BATCH)
        return jax.lax.scan(lambda c, i: (step(*c, x[i], y[i]), None), carry, rows)[0]

    carry = (params, init(params))
    for key in jax.random.split(jax.random.key(SEED + 1), epochs):
        carry = epoch(carry, key)
    params = carry[0]
    weights = [layer["w"] for layer in params]
    zeros = sum(int(jnp.sum(w == 0)) for w in weights) / sum(w.size for w in weights)
    accuracy = float(jnp.mean(jnp.argmax(NETWORK.predict(params, x_test), axis=1) == y_test))
    return {"strength": strength, "accuracy": accuracy, "zeros": zeros}


def best_rate(name, make, rates, epochs, data):
    """The stepsize with the best accuracy on the dense problem."""
    scores = {rate: train(proximal(make(rate), rate), 0.0, epochs, data) for rate in rates}
    rate = max(scores, key=lambda r: scores[r]["accuracy"])
    print(f"{name}: stepsize {rate} of {rates}", flush=True)
    return rate


def curves(epochs, data):
    sgd = best_rate("SGD", optax.sgd, (0.1, 0.3, 1.0), epochs, data)
    adam = best_rate("Adam", optax.adam, (1e-3, 3e-3, 1e-2), epochs, data)
    methods = {
        "prox-linear (Algorithm 3)": (prox_linear, 1),
        f"proximal SGD, stepsize {sgd}": (proximal(optax.sgd(sgd), sgd), 1),
        f"proximal Adam, stepsize {adam}": (proximal(optax.adam(adam), adam), 50),
    }
    rows = {}
    for name, (method, factor) in methods.items():
        rows[name] = [train(method, factor * strength, epochs, data) for strength in STRENGTHS]
        for row in rows[name]:
            print(f"{name:32s} s={row['strength']:<7g} zeros {row['zeros']:6.1%}", end="  ")
            print(f"accuracy {row['accuracy']:.2%}", flush=True)
    return rows


def draw(rows, path, epochs):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4))
    for name, points in rows.items():
        ordered = sorted(points, key=lambda row: row["zeros"])
        axes.plot(
            [100 * row["zeros"] for row in ordered],
            [100 * row["accuracy"] for row in ordered],
            marker="o",
            label=name,
        )
    axes.set(xlabel="weights that are exactly zero (%)", ylabel="test accuracy (%)", ylim=(80, 100))
    axes.set_title(f"Digits, perceptron 64-128-10, {epochs} epochs, seed {SEED}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/sparse-digits"))
    options = parser.parse_args()
    rows = curves(options.epochs, load())
    options.output.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    record = {
        "command": f"python examples/sparse_digits.py --epochs {options.epochs}",
        "seed": SEED,
        "data": "scikit-learn digits, inputs in [0, 1], 1408 to train and 389 to test",
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {jax.devices()[0].device_kind}",
        "versions": {
            "jax": jax.__version__,
            "optax": optax.__version__,
            "python": platform.python_version(),
        },
        "curves": rows,
    }
    (options.output / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    draw(rows, options.output / "sparse-digits.png", options.epochs)


if __name__ == "__main__":
    main()
