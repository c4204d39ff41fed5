"""What a prox-linear direction or step costs, in gradients of the same batch.

    python benchmarks/directions.py [--batches 64 256 1024] [--repeats 20]

The paper's ConvNet on inputs of CIFAR-10's shape. All methods are compiled first and then timed in
turn, round by round, in one process; a row gives the median over the rounds of the ratio of a
method's seconds to those of one jitted gradient in the same round. The seconds to compile and the
temporary memory that XLA reports stand beside it. ``auto`` computes the roots of its metric at each
twentieth step, so that its mean cost is that of nineteen steps without and one with. Results go to
``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import optax

import proxlin
from proxlin.bench import models
from proxlin.bench.environment import environment

LOSS = proxlin.Logistic()
CONVNET = models.convnet((32, 32, 3), 10)
RESULTS = pathlib.Path(__file__).parent / "results"
WITHOUT_ROOTS, WITH_ROOTS = "auto step, roots kept", "auto step, roots computed"


def gradient(params, x, y):
    return jax.value_and_grad(lambda w: LOSS.value(CONVNET.predict(w, x), y).mean())(params)


def direction(**options) -> Callable[..., Any]:
    fn = proxlin.value_and_direction(CONVNET.predict, LOSS, **options)
    return lambda params, x, y: fn(params, x, y, gamma=1.0)


def step(rule, **options) -> Callable[..., Any]:
    opt = proxlin.prox_linear(CONVNET.predict, LOSS, step=rule, **options)

    def one(params, x, y):
        updates, state = opt.update(None, opt.init(params), params, inputs=x, targets=y)
        return optax.apply_updates(params, updates), state

    return one


def auto_step(params, x, y, state):
    opt = proxlin.auto(CONVNET.predict, LOSS)
    updates, state = opt.update(None, state, params, inputs=x, targets=y)
    return optax.apply_updates(params, updates), state


def textbook(steps: int) -> Callable[..., Any]:
    """The dual as a textbook has it: library CG, a fresh jvp and vjp for each product."""

    def one(params, x, y):
        f = lambda w: CONVNET.predict(w, x)
        c = 1.0 / len(x)
        outputs = f(params)
        b = LOSS.hessian_factor(outputs, y)
        vjp = lambda v: jax.vjp(f, params)[1](v)[0]
        jvp = lambda u: jax.jvp(f, (params,), (u,))[1]
        g = LOSS.grad(outputs, y)
        product = lambda u: u / c + b.rmv(jvp(vjp(b.mv(u))))
        u, _ = jax.scipy.sparse.linalg.cg(product, b.rmv(jvp(vjp(g))), maxiter=steps)
        return jax.tree.map(lambda z: c * z, vjp(g - b.mv(u)))

    return one


def methods(params, x, y) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Functions and what they are called with: a batch, and for ``auto`` the state of a step."""
    primal, cg = proxlin.primal_quadratic, proxlin.CG
    opt = proxlin.auto(CONVNET.predict, LOSS)
    # Not auto_step, whose compilation is to be timed.
    _, state = jax.jit(opt.update)(None, opt.init(params), params, inputs=x, targets=y)
    of_batch = {
        "gradient": gradient,
        **{f"dual, {t} CG steps": direction(solver=cg(t)) for t in (1, 2, 4)},
        **{f"primal, {t} CG steps": direction(subproblem=primal, solver=cg(t)) for t in (2, 3, 5)},
        "dual, 2 CG steps, curvature_size=32": direction(curvature_size=32),
        "Armijo step": step(proxlin.Armijo()),
        "ModelStep step": step(proxlin.ModelStep()),
        "TrustRegion step": step(proxlin.TrustRegion()),
        "ModelStep step, curvature_size=32": step(proxlin.ModelStep(), curvature_size=32),
        "textbook dual, 2 CG steps": textbook(2),
    }
    return {
        **{name: (fn, (params, x, y)) for name, fn in of_batch.items()},
        WITHOUT_ROOTS: (auto_step, (params, x, y, state)),
        WITH_ROOTS: (auto_step, (params, x, y, state._replace(taken=0 * state.taken))),
    }


def compiled(fn: Callable[..., Any], operands: tuple[Any, ...]) -> tuple[Any, float, int]:
    start = time.perf_counter()
    executable = jax.jit(fn).lower(*operands).compile()
    seconds = time.perf_counter() - start
    return executable, seconds, executable.memory_analysis().temp_size_in_bytes


def seconds_of(executable: Any, operands: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(executable(*operands))
    return time.perf_counter() - start


def measure(batch: int, repeats: int, slow_repeats: int) -> list[dict[str, Any]]:
    key = jax.random.key(0)
    x = jax.random.normal(key, (batch, 32, 32, 3))
    y = jax.random.randint(key, (batch,), 0, 10)
    params, _ = CONVNET.init(key)
    found = methods(params, x, y)
    programs = {name: compiled(*call) for name, call in found.items()}
    executable, _, memory = programs[WITH_ROOTS]  # the same program, from the cache
    programs[WITH_ROOTS] = executable, programs[WITHOUT_ROOTS][1], memory
    times: dict[str, list[float]] = {name: [] for name in programs}
    for name, (executable, _, _) in programs.items():
        if not name.startswith("textbook"):
            seconds_of(executable, found[name][1])  # warm up
    for repeat in range(repeats):
        for name, (executable, _, _) in programs.items():
            if not name.startswith("textbook") or repeat < slow_repeats:
                times[name].append(seconds_of(executable, found[name][1]))
    base = times["gradient"]
    rows = [
        {
            "method": name,
            "batch": batch,
            "gradients": statistics.median(t / g for t, g in zip(times[name], base, strict=False)),
            "milliseconds": 1e3 * statistics.median(times[name]),
            "rounds": len(times[name]),
            "compile_seconds": compile_seconds,
            "memory": memory / programs["gradient"][2],
            "memory_megabytes": memory / 2**20,
        }
        for name, (_, compile_seconds, memory) in programs.items()
    ]
    return [*rows, mean_of_auto({row["method"]: row for row in rows})]


def mean_of_auto(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Steps that keep the roots of the metric, and now and then one that computes them."""
    kept, anew = rows[WITHOUT_ROOTS], rows[WITH_ROOTS]
    share = 1 / proxlin.Kronecker().every
    mix = lambda key: (1 - share) * kept[key] + share * anew[key]
    mean = {key: mix(key) for key in ("gradients", "milliseconds")}
    return {**kept, "method": "auto, mean of its steps", **mean}


def table(rows: list[dict[str, Any]]) -> str:
    batches = sorted({row["batch"] for row in rows})
    head = "| | " + " | ".join(f"batch {b}" for b in batches) + " | memory | compile |"
    lines = [head, "|---" * (len(batches) + 3) + "|"]
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = {row["batch"]: row for row in rows if row["method"] == name}
        cells = [f"{mine[b]['gradients']:.2f}" if b in mine else "" for b in batches]
        middle = mine[256 if 256 in mine else batches[-1]]
        compiling = middle["compile_seconds"]
        cells += [f"{middle['memory']:.2f}", "" if compiling is None else f"{compiling:.1f} s"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def earlier(path: pathlib.Path, batches: list[int]) -> list[dict[str, Any]]:
    """What was measured of other batches, to be kept; each has an environment of its own."""
    record = json.loads(path.read_text()) if path.exists() else []
    return [part for part in record if part["batch"] not in batches]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--slow-repeats", type=int, default=3, help="rounds of the textbook method")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS / "directions.json")
    options = parser.parse_args()
    parts = earlier(options.output, options.batches)
    for batch in options.batches:
        about = {**environment(), "seed": 0, "data": "normal inputs of CIFAR-10's shape"}
        rows = measure(batch, options.repeats, options.slow_repeats)
        parts.append({"batch": batch, "environment": about, "rows": rows})
        parts.sort(key=lambda part: part["batch"])
        options.output.parent.mkdir(exist_ok=True)
        options.output.write_text(json.dumps(parts, indent=1) + "\n")
        numbers = table([row for part in parts for row in part["rows"]])
        text = f"Gradients of the same batch; memory and compile time at batch 256.\n\n{numbers}"
        options.output.with_suffix(".md").write_text(text + "\n")
        print(text, flush=True)


if __name__ == "__main__":
    main()
