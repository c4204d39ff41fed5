"""What a step of ``levenberg_marquardt`` costs beside the Jacobian, the Gram matrix and the factor.

    OPENBLAS_NUM_THREADS=1 python benchmarks/lm_step.py [--rounds 40] [--quick]

The problem is 2-d Poisson with a tanh network 2-64-1: 257 parameters, 900 points inside and 120 on
the boundary, in double precision; and networks of other widths on other numbers of points. The
three pieces are the rows of the Jacobian of all terms, the smaller Gram matrix of them, and its
Cholesky factorization, each compiled alone. All four are timed in turn, and medians are compared.
The table is written to ``benchmarks/results/lm_step.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor

import proxlin
from proxlin.bench.environment import environment

jax.config.update("jax_enable_x64", True)

RESULTS = pathlib.Path(__file__).parent / "results"
SIZES = ((64, 900, 120), (250, 900, 120), (64, 3000, 400), (16, 3000, 400), (750, 270, 30))


def network(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"] + params["c"]


def equation(params, x):
    """The negative Laplacian."""

    def second(axis):
        e = jnp.zeros_like(x).at[:, axis].set(1)
        along = lambda x: jax.jvp(lambda x: network(params, x), (x,), (e,))[1]
        return jax.jvp(along, (x,), (e,))[1]

    return -second(0) - second(1)


def problem(width, inside, edge):
    """The objective, parameters, inputs and targets."""
    rng = np.random.default_rng(0)
    params = {
        "w": rng.normal(size=(2, width)),
        "b": rng.uniform(-1, 1, width),
        "v": rng.normal(size=(width, 1)) / width**0.5,
        "c": np.zeros(1),
    }
    x = rng.random((inside, 2))
    t = rng.random((edge, 2))
    t[np.arange(edge), rng.integers(0, 2, edge)] = rng.integers(0, 2, edge)
    f = 2 * np.pi**2 * np.prod(np.sin(np.pi * x), axis=1, keepdims=True)
    objective = proxlin.Sum(
        proxlin.Term(equation, proxlin.Squared()),
        proxlin.Term(network, proxlin.Squared(), weight=100.0),
    )
    arrays = jax.tree.map(jnp.asarray, (params, (x, t), (f, np.zeros((edge, 1)))))
    return objective, *arrays


def pieces(width, inside, edge):
    """Functions without arguments to time: the step, and the three pieces."""
    objective, params, inputs, targets = problem(width, inside, edge)
    opt = proxlin.levenberg_marquardt(objective)
    state = opt.init(params)
    update = jax.jit(opt.update)

    @jax.jit
    def jacobian(params):
        rows = []
        for term, x in zip(objective.terms, inputs, strict=True):
            lin = proxlin.linearize(term.model, params, x)
            rows.append(lin.rows(jnp.arange(len(x))).reshape(len(x), -1))
        return jnp.concatenate(rows)

    a = jacobian(params)
    gram = jax.jit(lambda a: a.T @ a if a.shape[1] <= a.shape[0] else a @ a.T)
    matrix = gram(a) + jnp.eye(min(a.shape))
    factor = jax.jit(lambda m: cho_factor(m, lower=True)[0])
    timed = {
        "step": lambda: update(None, state, params, inputs=inputs, targets=targets),
        "Jacobian": lambda: jacobian(params),
        "Gram matrix": lambda: gram(a),
        "factorization": lambda: factor(matrix),
    }
    return a.shape, timed


def measure(timed, rounds):
    """Milliseconds of each, medians of interleaved rounds."""
    for fn in timed.values():
        jax.block_until_ready(fn())
    found = {name: [] for name in timed}
    for _ in range(rounds):
        for name, fn in timed.items():
            start = time.perf_counter()
            jax.block_until_ready(fn())
            found[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(own) for name, own in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="the first size, and write nothing")
    options = parser.parse_args()
    head = "| residuals | parameters | step, ms | Jacobian | Gram matrix | factorization | ratio |"
    lines, records = [head, "|" + "---:|" * 7], []
    print(*lines, sep="\n")
    for size in SIZES[:1] if options.quick else SIZES:
        (n, p), timed = pieces(*size)
        ms = measure(timed, options.rounds)
        ratio = ms["step"] / sum(own for name, own in ms.items() if name != "step")
        cells = [f"{n:,}", f"{p:,}", *(f"{own:.2f}" for own in ms.values()), f"{ratio:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
        records.append({"residuals": n, "parameters": p, "ms": ms, "ratio": ratio})
        print(lines[-1], flush=True)
    if not options.quick:
        RESULTS.mkdir(exist_ok=True)
        record = {**environment(), "rounds": options.rounds, "sizes": records}
        (RESULTS / "lm_step.json").write_text(json.dumps(record, indent=1) + "\n")
        (RESULTS / "lm_step.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
