"""The table of errors, and the figure of error by seconds."""

from __future__ import annotations

import statistics

from benchmarks.pde.problems import PROBLEMS
from benchmarks.pde.records import RESULTS, SINGLE, all_methods, records


def report(options):
    """A table of median errors at the end, and a figure of error against seconds."""
    found = {name: records(name) for name in PROBLEMS}
    found = {name: rows for name, rows in found.items() if rows}
    if not found:
        raise SystemExit(f"nothing in {RESULTS} yet: python -m benchmarks.pde run")
    order = all_methods()
    methods = sorted(
        {row["method"] for rows in found.values() for row in rows},
        key=lambda m: order.index(m) if m in order else len(order),
    )
    lines = table(found, methods)
    (RESULTS / "table.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")
    draw(found, methods)


def table(found, methods):
    """Medians over seeds, each method after its longest runs; seeds in parentheses if not three."""
    lines = [
        "| problem | points | parameters | seconds | " + " | ".join(methods) + " |",
        "|---|---:|---:|---:|" + "---:|" * len(methods),
    ]
    for name, rows in found.items():
        cells = [cell([row for row in rows if row["method"] == method]) for method in methods]
        longest = max(row["seconds"] for row in rows)
        head = [name, " + ".join(map(str, rows[0]["points"])), str(rows[0]["parameters"])]
        lines.append("| " + " | ".join([*head, f"{longest:g}", *cells]) + " |")
    if SINGLE in methods:
        lines += ["", f"{SINGLE} has ten seconds."]
    return lines


def cell(rows):
    if not rows:
        return ""
    longest = max(row["seconds"] for row in rows)
    errors = [row["curve"][-1][3] for row in rows if row["seconds"] == longest]
    seeds = "" if len(errors) == 3 else f" ({len(errors)})"
    return f"{statistics.median(errors):.1e}{seeds}"


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
