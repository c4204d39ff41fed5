"""What a step of ``levenberg_marquardt`` costs: beside its parts, in operations and in bytes.

    OPENBLAS_NUM_THREADS=1 python benchmarks/lm_step.py [--rounds 40] [--quick]

The problem is 2-d Poisson with a tanh network 2-64-1: 257 parameters, 900 points inside and 120 on
the boundary, in double precision; and networks of other widths on other numbers of points.

The first table is of times. The three parts are written as anyone would: the rows of the
Jacobian of all terms by ``jax.vmap`` of ``jax.vjp``, the smaller Gram matrix of them as one
product, and its Cholesky factorization, each compiled alone. All four are timed in turn, and only
ratios of medians are kept. The table has those of the processor time of all threads, which other
work on the machine changes little; the record has those by the clock, too.

The second table is by the compiler: what XLA counts in the compiled step, with the operations of
LAPACK, which it does not see, added by their formulas. Nothing is run for it. Both go to
``benchmarks/results/lm_step.md``.
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
TIMED = ((64, 900, 120), (250, 900, 120), (64, 3000, 400), (16, 3000, 400), (750, 270, 30))
COUNTED = ((300, 301), (300, 3001), (1000, 1001), (3000, 301), (3000, 3001), (10_000, 1001))
COUNTED += ((1000, 10_001), (10_000, 10_001))


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
    """Functions without arguments to time: the step, and its three parts."""
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
    """Seconds of each by the wall and by the processor, medians of interleaved rounds."""
    for fn in timed.values():
        jax.block_until_ready(fn())
    wall, processor = ({name: [] for name in timed} for _ in range(2))
    for _ in range(rounds):
        for name, fn in timed.items():
            start = time.perf_counter(), time.process_time()
            jax.block_until_ready(fn())
            wall[name].append(time.perf_counter() - start[0])
            processor[name].append(time.process_time() - start[1])
    middle = lambda found: {name: statistics.median(own) for name, own in found.items()}
    return middle(wall), middle(processor)


def counted(n, p):
    """Operations and bytes of a compiled step with n residuals and p parameters."""
    edge = n // 10
    objective, params, inputs, targets = problem(p // 4, n - edge, edge)
    opt = proxlin.levenberg_marquardt(objective)
    batch = {"inputs": inputs, "targets": targets}
    compiled = jax.jit(opt.update).lower(None, opt.init(params), params, **batch).compile()
    small = min(n, p)
    lapack = small**3 / 3 + 4 * small**2  # a factor, and two solutions with it
    return {
        "residuals": n,
        "parameters": p,
        "operations": compiled.cost_analysis()["flops"] + lapack,
        "transcendental": compiled.cost_analysis()["transcendentals"],
        "bytes": compiled.memory_analysis().temp_size_in_bytes,
    }


def timed(sizes, rounds):
    """Shares of the sum of the three parts, by the wall and by the processor."""
    records = []
    for size in sizes:
        (n, p), functions = pieces(*size)
        wall, processor = (relative(own) for own in measure(functions, rounds))
        records.append({"residuals": n, "parameters": p, "wall": wall, "processor": processor})
        print(*table_of_shares(records[-1:])[2:], flush=True)
    return records


def table_of_shares(records):
    """By the processor."""
    parts = "Jacobian | Gram matrix | factorization"
    lines = [f"| residuals | parameters | {parts} | step |", "|" + "---:|" * 6]
    for row in records:
        cells = [f"{row['residuals']:,}", f"{row['parameters']:,}"]
        cells += [f"{own:.2f}" for own in row["processor"].values()]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def relative(found):
    """Relative to the sum of the three parts; the step last."""
    whole = sum(own for name, own in found.items() if name != "step")
    order = [name for name in found if name != "step"] + ["step"]
    return {name: found[name] / whole for name in order}


def table_of_counts(records):
    """Operations and bytes."""
    head = "| residuals | parameters | Gflop | tanh, million | memory, MB | Gflop beside N p n |"
    lines = [head, "|" + "---:|" * 6]
    for row in records:
        n, p, gflop = row["residuals"], row["parameters"], row["operations"] / 1e9
        cells = [f"{n:,}", f"{p:,}", f"{gflop:.3g}", f"{row['transcendental'] / 1e6:.2g}"]
        cells += [f"{row['bytes'] / 1e6:,.0f}", f"{gflop / (1e-9 * n * p * min(n, p)):.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def write(record):
    """The record, and both tables."""
    (RESULTS / "lm_step.json").write_text(json.dumps(record, indent=1) + "\n")
    text = ["Processor time, relative to the sum of the three parts:", ""]
    text += [*table_of_shares(record["timed"]), ""]
    text += ["Of the compiled program; n is the smaller of N residuals and p parameters:", ""]
    text += table_of_counts(record["counted"])
    (RESULTS / "lm_step.md").write_text("\n".join(text) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="the first size, and write nothing")
    options = parser.parse_args()
    started = environment()
    shares = timed(TIMED[:1] if options.quick else TIMED, options.rounds)
    if not options.quick:
        counts = [counted(*size) for size in COUNTED]
        write({**started, "rounds": options.rounds, "timed": shares, "counted": counts})


if __name__ == "__main__":
    main()
