"""Steps, evaluations and digits on NIST's 27 problems, from both starts; nothing is timed."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np

import proxlin
from benchmarks.pde.records import RESULTS
from proxlin.bench.environment import environment
from tests import nist

GAMMAS = (1e-2, 1e8)  # those that least_squares tries by default
MOST = 10_000  # steps


def proxlin_(fit, starts):
    """The default call: a path from each first gamma. Counts are of both, digits of the better."""
    solve = lambda gamma: jax.jit(
        jax.vmap(lambda b: proxlin.least_squares(fit, b, gamma=gamma, max_steps=MOST))
    )
    paths = [jax.device_get(solve(gamma)(jnp.asarray(starts))) for gamma in GAMMAS]
    for number in range(len(starts)):
        own = [jax.tree.map(lambda x, n=number: x[n], path) for path in paths]
        # As least_squares chooses: the first of those that are equal up to rounding, because a sum
        # of exponentials has as many solutions as there are orders.
        least = min(one.cost for one in own if np.isfinite(one.cost))
        best = next(one for one in own if one.cost <= least * (1 + 1e-8))
        counts = (sum(int(getattr(one, name)) for one in own) for name in ("steps", "evaluations"))
        yield best.params, *counts


def scipy_lm(fit, starts):
    """MINPACK, scaled by the Jacobian, with the Jacobian of JAX."""
    import scipy.optimize

    residuals, jacobian = jax.jit(fit), jax.jit(jax.jacfwd(fit))
    tolerances = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15}
    for start in starts:
        calls = {"steps": 0, "evaluations": 0}

        def counted(fn, name, calls=calls):
            def call(b):
                calls[name] += 1
                return np.asarray(fn(b))

            return call

        try:
            found = scipy.optimize.least_squares(
                counted(residuals, "evaluations"),
                start,
                counted(jacobian, "steps"),
                method="lm",
                x_scale="jac",
                max_nfev=MOST,
                **tolerances,
            ).x
        except ValueError:  # residuals that are not finite
            found = np.full_like(start, np.nan)
        yield found, calls["steps"], calls["evaluations"]


def optimistix_lm(fit, starts):
    """Its Levenberg-Marquardt method; each step has a Jacobian and an evaluation."""
    import optimistix as optx

    solver = optx.LevenbergMarquardt(rtol=1e-12, atol=1e-12)

    @jax.jit
    def solve(b):
        options = {"max_steps": MOST, "throw": False}
        found = optx.least_squares(lambda b, _: fit(b), solver, b, **options)
        return found.value, found.stats["num_steps"]

    for start in starts:
        found, steps = solve(jnp.asarray(start))
        yield np.asarray(found), int(steps), int(steps)


METHODS = {"proxlin": proxlin_, "SciPy, lm": scipy_lm, "optimistix, LM": optimistix_lm}


def rows_of(name):
    """Two records for each method, one from each start."""
    problem, formula = nist.read(name), nist.MODELS[name]
    x, y = jnp.asarray(problem.inputs), jnp.asarray(problem.targets)
    for method, run in METHODS.items():
        found = run(lambda b: formula(b, x) - y, problem.starts)
        for start, (params, steps, evaluations) in enumerate(found, start=1):
            digits = nist.digits(np.asarray(params), problem.certified)
            counts = {"steps": steps, "evaluations": evaluations, "digits": round(digits, 1)}
            yield {"problem": name, "start": start, "method": method, **counts}


def main(options):
    """Records problem by problem, and the table."""
    path = RESULTS / "nist.jsonl"
    RESULTS.mkdir(parents=True, exist_ok=True)
    there = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {row["problem"] for row in there}
    for name in nist.MODELS:
        if name not in done:
            started = environment()
            rows = [{**row, **started} for row in rows_of(name)]
            with path.open("a") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))
            there += rows
            print(*(f"{row['method']}: {row['digits']}" for row in rows), name, flush=True)
    lines = table(there)
    (RESULTS / "nist.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


def table(rows):
    """Steps / evaluations and digits of each method, a line for each start."""
    lines = ["| problem | start | " + " | ".join(f"{name} | digits" for name in METHODS) + " |"]
    lines.append("|---|---:|" + "---:|" * 2 * len(METHODS))
    found = {(row["problem"], row["start"], row["method"]): row for row in rows}
    for problem, start in sorted({key[:2] for key in found}):
        own = [found[problem, start, method] for method in METHODS]
        cells = [f"{row['steps']} / {row['evaluations']} | {row['digits']:g}" for row in own]
        lines.append(f"| {problem} | {start} | " + " | ".join(cells) + " |")
    solved = lambda least: [
        str(sum(row["digits"] >= least for row in rows if row["method"] == method))
        for method in METHODS
    ]
    for least in (6, 8):
        cells = " | ".join(f"{n} of {len(rows) // len(METHODS)} |" for n in solved(least))
        lines.append(f"| **{least} digits or more** | | {cells}")
    return lines
