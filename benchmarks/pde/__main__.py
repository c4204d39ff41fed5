"""The command line: run and report."""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics

import jax

from benchmarks.pde.methods import METHODS, SCIPY, train, train_with_scipy
from benchmarks.pde.problems import PROBLEMS
from proxlin.bench.environment import environment

RESULTS = pathlib.Path(__file__).parents[1] / "results" / "pde"


def records(name):
    """The runs of a problem that have ended."""
    path = RESULTS / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def key(record):
    return record["method"], record["seed"], record["seconds"]


def run(options):
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in options.problems:
        there = {key(record) for record in records(name)}
        problem = None
        for seed in options.seeds:
            for method in options.methods:
                if (method, seed, options.seconds) in there:
                    continue
                problem = problem or PROBLEMS[name]()
                fn = train_with_scipy if method in SCIPY else train
                started = environment()  # the load before the run, and not the one it causes
                curve = fn(problem, method, seed, options.seconds)
                record = {
                    "method": method,
                    "seed": seed,
                    "seconds": options.seconds,
                    "points": [len(x) for x in problem.inputs],
                    "parameters": sum(x.size for x in jax.tree.leaves(problem.first(0))),
                    "columns": ["seconds", "steps", "objective", "relative L2 error"],
                    "curve": curve,
                    **started,
                }
                with (RESULTS / f"{name}.jsonl").open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(
                    f"{name:14s} seed {seed} {method:20s} {curve[-1][0]:7.1f} s {curve[-1][1]:7d} "
                    f"steps  error {curve[-1][3]:.1e}",
                    flush=True,
                )


def report(options):
    """A table of median errors at the end, and a figure of error against seconds."""
    found = {name: records(name) for name in PROBLEMS}
    found = {name: rows for name, rows in found.items() if rows}
    order = [*METHODS, *SCIPY]
    methods = sorted(
        {row["method"] for rows in found.values() for row in rows},
        key=lambda m: order.index(m) if m in order else len(order),
    )
    lines = [
        "| problem | points | parameters | seconds | " + " | ".join(methods) + " |",
        "|---|---:|---:|---:|" + "---:|" * len(methods),
    ]
    for name, rows in found.items():
        longest = max(row["seconds"] for row in rows)
        cells = []
        for method in methods:
            errors = [
                row["curve"][-1][3]
                for row in rows
                if row["method"] == method and row["seconds"] == longest
            ]
            cells.append(f"{statistics.median(errors):.1e}" if errors else "")
        head = [name, " + ".join(map(str, rows[0]["points"])), str(rows[0]["parameters"])]
        lines.append("| " + " | ".join([*head, f"{longest:g}", *cells]) + " |")
    (RESULTS / "table.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")
    draw(found, methods)


def draw(found, methods):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.4 * columns, 2.8 * rows), squeeze=False)
    colors = {method: f"C{n}" for n, method in enumerate(methods)}
    for ax, (name, runs) in zip(axes.flat, found.items(), strict=False):
        for one in runs:
            seconds, _, _, errors = zip(*one["curve"][1:], strict=True)
            wide = 2 if one["method"].startswith("LM") else 1
            ax.plot(seconds, errors, color=colors[one["method"]], linewidth=wide)
        ax.set(xscale="log", yscale="log", title=name)
        ax.grid(alpha=0.3)
    for ax in axes.flat[len(found) :]:
        ax.axis("off")
    figure.supxlabel("seconds")
    figure.supylabel("relative L2 error")
    lines = [plt.Line2D([], [], color=colors[m], label=m) for m in methods]
    figure.legend(handles=lines, loc="outside lower center", ncol=4, frameon=False, fontsize=8)
    figure.set_layout_engine("constrained")
    figure.savefig(RESULTS / "errors.png", dpi=150)


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pde", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run", help="runs what is not on record yet")
    command.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    choices = [*METHODS, *SCIPY]
    command.add_argument("--methods", nargs="+", choices=choices, default=choices)
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    command.add_argument("--seconds", type=float, default=60.0)
    command.set_defaults(do=run)
    commands.add_parser("report", help="the table and the figure").set_defaults(do=report)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
