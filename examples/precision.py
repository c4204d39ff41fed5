"""What the precision examples share: a network, derivatives, methods, the clock, record and figure.

Every method has the same problem, the same first parameters and the same seconds. Compilation and
evaluation are off the clock. Adam runs with constant rates and with a rate that falls to zero
along a cosine of the clock, L-BFGS with a short and a long memory; all of them are shown.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import shlex
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

import proxlin
from proxlin.bench import loop
from proxlin.bench.environment import environment

jax.config.update("jax_enable_x64", True)  # before any array is made
# Cholesky factorizations are OpenBLAS's, whose threads wait busily: where anything else is at work
# on the same cores, they become many times slower. The library is loaded at the first of them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@dataclasses.dataclass(frozen=True)
class Problem:
    """A sum of terms with its points, and the solution to compare with."""

    name: str
    title: str
    objective: proxlin.Sum
    inputs: tuple
    targets: tuple
    sizes: tuple[int, ...]  # of the layers
    points: jax.Array  # where the error is measured
    solution: jax.Array

    def error(self, params):
        """The relative L2 error."""
        difference = network(params, self.points) - self.solution
        return jnp.linalg.norm(difference) / jnp.linalg.norm(self.solution)

    def value(self, params):
        """The objective, for methods that want a gradient."""
        total = 0.0
        for term, x, y in zip(self.objective.terms, self.inputs, self.targets, strict=True):
            total += term.weight * jnp.mean(term.loss.value(term.model(params, x), y))
        return total


def network(params, x):
    """A tanh perceptron."""
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def first_params(sizes, seed):
    """Glorot's initialization."""
    glorot = jax.nn.initializers.glorot_normal(dtype=jnp.float64)
    keys = jax.random.split(jax.random.key(seed), len(sizes) - 1)
    return [
        {"w": glorot(key, (a, b)), "b": jnp.zeros(b)}
        for key, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def along(u, axis):
    """The derivative of a function of points along one axis: again a function of points."""
    return lambda x: jax.jvp(u, (x,), (jnp.zeros_like(x).at[:, axis].set(1),))[1]


def spread(n, low, high):
    """Points that fill a rectangle evenly: an additive recurrence of the plastic number."""
    plastic = 1.324717957244746
    unit = (0.5 + np.arange(1, n + 1)[:, None] * plastic ** -np.array([1.0, 2.0])) % 1
    return jnp.asarray(low) + jnp.asarray(unit) * (jnp.asarray(high) - jnp.asarray(low))


@dataclasses.dataclass(frozen=True)
class Method:
    """``start(params) -> state`` and ``run(state, elapsed) -> state``.

    A state is a tuple whose first entry is the parameters; ``run`` takes ``steps`` steps, and
    ``elapsed`` is the fraction of the time that is over.
    """

    start: Callable
    run: Callable
    steps: int


def levenberg_marquardt(problem):
    opt = proxlin.levenberg_marquardt(problem.objective)

    def run(state, elapsed):
        params, inner = state
        batch = {"inputs": problem.inputs, "targets": problem.targets}
        updates, inner = opt.update(None, inner, params, **batch)
        return optax.apply_updates(params, updates), inner

    return Method(lambda params: (params, opt.init(params)), run, steps=1)


def adam(problem, rate, cosine=False):
    opt = optax.inject_hyperparams(optax.adam)(learning_rate=rate)

    def run(state, elapsed):
        def step(state, _):
            params, inner = state
            updates, inner = opt.update(jax.grad(problem.value)(params), inner, params)
            return (optax.apply_updates(params, updates), inner), None

        params, inner = state
        if cosine:
            inner.hyperparams["learning_rate"] = 0.5 * rate * (1 + jnp.cos(jnp.pi * elapsed))
        return jax.lax.scan(step, (params, inner), length=100)[0]

    return Method(lambda params: (params, opt.init(params)), run, steps=100)


def lbfgs(problem, memory):
    opt = optax.lbfgs(memory_size=memory)

    def run(state, elapsed):
        def step(state, _):
            params, inner = state
            value, grad = optax.value_and_grad_from_state(problem.value)(params, state=inner)
            updates, inner = opt.update(
                grad, inner, params, value=value, grad=grad, value_fn=problem.value
            )
            return (optax.apply_updates(params, updates), inner), None

        return jax.lax.scan(step, state, length=10)[0]

    return Method(lambda params: (params, opt.init(params)), run, steps=10)


METHODS = {
    "Levenberg-Marquardt": levenberg_marquardt,
    "Adam, 0.001": functools.partial(adam, rate=1e-3),
    "Adam, 0.01": functools.partial(adam, rate=1e-2),
    "Adam, 0.01 to 0": functools.partial(adam, rate=1e-2, cosine=True),
    "L-BFGS, memory 10": functools.partial(lbfgs, memory=10),
    "L-BFGS, memory 100": functools.partial(lbfgs, memory=100),
}


def train(problem, name, seed, seconds):
    """One run: the curve of seconds, steps, objective and error."""
    method = METHODS[name](problem)
    params = first_params(problem.sizes, seed)
    state = method.start(params)
    zero = jnp.zeros(())
    run = jax.jit(method.run).lower(state, zero).compile()
    step = lambda state, fraction: (run(state, fraction), ())
    loop.compile_step(step, state, (zero,))  # the first call is slower than others
    look = jax.jit(lambda params: (problem.value(params), problem.error(params)))
    marks = [0.0, *np.geomspace(seconds / 100, seconds, 40)]
    curve, elapsed, steps = [], 0.0, 0

    def fractions():
        while True:
            yield (jnp.asarray(min(1.0, elapsed / seconds)),)

    def evaluate():
        """Adds a point to the curve; whether there is more to do."""
        value, error = (float(x) for x in look(state[0]))
        curve.append([round(elapsed, 4), steps, value, error])
        marks[:] = [mark for mark in marks if mark > elapsed]
        return bool(marks) and np.isfinite(value)

    evaluate()
    for done in loop.steps(step, state, fractions()):
        state, elapsed, steps = done.state, elapsed + done.seconds, steps + method.steps
        if elapsed >= marks[0] and not evaluate():
            break
    print(
        f"{problem.name}, seed {seed}, {name:20s} {elapsed:6.1f} s {steps:7d} steps  "
        f"relative L2 error {curve[-1][3]:.1e}",
        flush=True,
    )
    return {"method": name, "seed": seed, "curve": curve}


def draw(problem, runs, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    colors = dict(zip(METHODS, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    labeled = set()
    for run in runs:
        name = run["method"]
        seconds, _, _, errors = zip(*run["curve"][1:], strict=True)
        axes.plot(
            seconds,
            errors,
            color=colors[name],
            linewidth=2 if name == "Levenberg-Marquardt" else 1,
            label=None if name in labeled else name,
        )
        labeled.add(name)
    seeds = sorted({run["seed"] for run in runs})
    axes.set(xlabel="seconds", ylabel="relative L2 error", yscale="log")
    axes.set_title(f"{problem.title}, seeds {seeds}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main(problem: Problem, seconds: float) -> None:
    """The command line of an example."""
    parser = argparse.ArgumentParser(description=f"{problem.title}: three methods, same seconds")
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs") / problem.name)
    options = parser.parse_args()
    started = environment()  # the load before the runs, and not the one they cause
    runs = [
        train(problem, name, seed, options.seconds)
        for seed in options.seeds
        for name in options.methods
    ]
    params = jax.tree.leaves(first_params(problem.sizes, 0))
    record = {
        **started,
        "command": shlex.join(["python", f"examples/{problem.name}.py", *sys.argv[1:]]),
        "problem": problem.title,
        "points": [len(x) for x in problem.inputs],
        "weights": [term.weight for term in problem.objective.terms],
        "parameters": sum(x.size for x in params),
        "seeds": options.seeds,
        "seconds": options.seconds,
        "columns": ["seconds", "steps", "objective", "relative L2 error"],
        "runs": runs,
    }
    options.output.mkdir(parents=True, exist_ok=True)
    lines = json.dumps({**record, "runs": []}, indent=1)
    rows = ",\n  ".join(json.dumps(run) for run in runs)  # one line for each
    (options.output / "record.json").write_text(
        lines.replace('"runs": []', f'"runs": [\n  {rows}\n ]') + "\n"
    )
    draw(problem, runs, options.output / f"{problem.name}.png")
    for name in options.methods:  # a row of the table in results/README.md
        errors = [run["curve"][-1][3] for run in runs if run["method"] == name]
        print(f"| {problem.name} | {name} | {' | '.join(f'{error:.1e}' for error in errors)} |")
