"""Four ways to the Laplacian of a network, and what the rows of its Jacobian cost.

    python benchmarks/laplacians.py [--rounds 15]

Second derivatives forward over forward, batched over the axes or one after the other; Taylor mode
(``jax.experimental.jet``); forward over reverse; and the forward Laplacian of folx. Each on 1,000
points in double precision, compiled: its values, and the gradient by the parameters at each point,
which are the rows of a Jacobian. Operations and bytes are those that XLA counts. Times are of the
processor, medians of interleaved rounds, and relative to the first way. The table is written to
``benchmarks/results/laplacians.md``.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time

import folx
import jax
import jax.numpy as jnp
from jax.experimental import jet

from proxlin.bench.environment import environment

jax.config.update("jax_enable_x64", True)

RESULTS = pathlib.Path(__file__).parent / "results"
SIZES = ((2, 64, 1), (10, 64, 1), (10, 64, 64, 64, 1))


def network(params, x):
    """One point to one number."""
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    return (x @ params[-1][0] + params[-1][1])[0]


def first_params(sizes):
    keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [(jax.random.normal(key, (a, b)) / a**0.5, jnp.zeros(b)) for key, a, b in pairs]


def second(u, x, e):
    return jax.jvp(lambda x: jax.jvp(u, (x,), (e,))[1], (x,), (e,))[1]


def batched(u, x):
    return jnp.sum(jax.vmap(lambda e: second(u, x, e))(jnp.eye(len(x))))


def one_by_one(u, x):
    return sum(second(u, x, e) for e in jnp.eye(len(x)))


def taylor(u, x):
    along = lambda e: jet.jet(u, (x,), ((e, jnp.zeros_like(x)),))[1][1]
    return jnp.sum(jax.vmap(along)(jnp.eye(len(x))))


def over_reverse(u, x):
    own = lambda e: e @ jax.jvp(jax.grad(u), (x,), (e,))[1]
    return sum(own(e) for e in jnp.eye(len(x)))


def forward_laplacian(u, x):
    return folx.ForwardLaplacianOperator(0)(u)(x)[0]


WAYS = {
    "batched over the axes": batched,
    "one axis after the other": one_by_one,
    "jet": taylor,
    "forward over reverse": over_reverse,
    "folx": forward_laplacian,
}


def compiled(way, params, points):
    """Values and rows."""
    value = lambda params, x: way(lambda x: network(params, x), x)
    for fn in (value, jax.grad(value)):
        yield jax.jit(jax.vmap(fn, (None, 0))).lower(params, points).compile()


def measure(programs, params, points, rounds):
    """Seconds of the processor, medians of interleaved rounds."""
    found = {name: [] for name in programs}
    for round_ in range(rounds + 1):
        for name, program in programs.items():
            start = time.process_time()
            jax.block_until_ready(program(params, points))
            if round_:  # the first one warms up
                found[name].append(time.process_time() - start)
    return {name: statistics.median(own) for name, own in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    head = ("network", "way", "values: Mflop", "MB", "time", "rows: Mflop", "MB", "time")
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * 6]
    records, started = [], environment()
    for sizes in SIZES:
        params = first_params(sizes)
        points = jax.random.uniform(jax.random.key(1), (1000, sizes[0]))
        programs = {
            (name, what): program
            for name, way in WAYS.items()
            for what, program in zip(("values", "rows"), compiled(way, params, points), strict=True)
        }
        seconds = measure(programs, params, points, options.rounds)
        for name in WAYS:
            cells = []
            for what in ("values", "rows"):
                count = programs[name, what].cost_analysis()
                own = {
                    "Mflop": count["flops"] / 1e6,
                    "MB": count["bytes accessed"] / 1e6,
                    "time": seconds[name, what] / seconds["batched over the axes", what],
                }
                cells += [f"{own['Mflop']:.1f}", f"{own['MB']:.1f}", f"{own['time']:.2f}"]
                records.append({"sizes": sizes, "way": name, "what": what, **own})
            lines.append(f"| {'-'.join(map(str, sizes))} | {name} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    record = {**started, "rounds": options.rounds, "results": records}
    (RESULTS / "laplacians.json").write_text(json.dumps(record, indent=1) + "\n")
    (RESULTS / "laplacians.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
