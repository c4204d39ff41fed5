"""Whether a change costs speed: directions and steps of two checkouts, side by side.

    git worktree add ../before main~1
    python benchmarks/versions.py ../before [--batch 256] [--repeats 20]

Both versions are loaded into one process, and the functions of ``directions.py`` are compiled with
each. They are timed in turn, round by round; a row gives the median over the rounds of the ratio of
the seconds of this checkout to those of the other, the same for the seconds to compile (each
compiled afresh, in turn), and the ratio of the temporary memory that XLA reports. Results go to
``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import pathlib
import statistics
import sys
from types import ModuleType
from typing import Any

import jax

HERE = pathlib.Path(__file__).resolve().parent
ROWS = (
    "gradient",
    "dual, 2 CG steps",
    "primal, 3 CG steps",
    "dual, 2 CG steps, curvature_size=32",
    "Armijo step",
    "TrustRegion step",
    "auto step, roots kept",
    "auto step, roots computed",
)


def load(checkout: pathlib.Path) -> ModuleType:
    """``directions.py`` of this checkout, with the library of another one."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "proxlin"]:
        del sys.modules[name]
    sys.path.insert(0, str(checkout / "src"))
    try:
        spec = importlib.util.spec_from_file_location("directions", HERE / "directions.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found = pathlib.Path(sys.modules["proxlin"].__file__).resolve()
        if checkout.resolve() not in found.parents:
            raise SystemExit(f"{checkout} is not a checkout of proxlin: found {found}")
        # What is imported late must come from this checkout too.
        about = importlib.import_module("proxlin.bench.environment").environment()
        # The record has the commits of both; where the other lies is nobody's business.
        module.about = {**about, "command": "python benchmarks/versions.py OTHER_CHECKOUT"}
    finally:
        sys.path.pop(0)
    return module


def measure(
    versions: list[ModuleType], batch: int, repeats: int, compilations: int
) -> list[dict[str, Any]]:
    """One row for each function."""
    key = jax.random.key(0)
    x = jax.random.normal(key, (batch, 32, 32, 3))
    y = jax.random.randint(key, (batch,), 0, 10)
    params, _ = versions[0].CONVNET.init(key)
    rows = []
    calls = [version.methods(params, x, y) for version in versions]
    for name in ROWS:
        compiled: list[list[Any]] = [[], []]
        for _ in range(compilations):
            for found, version, own in zip(compiled, versions, calls, strict=True):
                jax.clear_caches()
                found.append(version.compiled(*own[name]))
        times: list[list[float]] = [[], []]
        for repeat in range(repeats + 1):
            for found, seconds, version, own in zip(compiled, times, versions, calls, strict=True):
                taken = version.seconds_of(found[0][0], own[name][1])
                if repeat:  # the first warms up
                    seconds.append(taken)
        ratio = lambda pairs: statistics.median(new / old for new, old in zip(*pairs, strict=True))
        rows.append(
            {
                "method": name,
                "batch": batch,
                "seconds": ratio(times),
                "compile_seconds": ratio([[c[1] for c in found] for found in compiled]),
                "memory": compiled[0][0][2] / compiled[1][0][2],
                "rounds": repeats,
                "compilations": compilations,
            }
        )
        print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, Any]], commits: list[str]) -> str:
    lines = [
        f"{commits[0]} over {commits[1]}, batch {rows[0]['batch']}: medians of "
        f"{rows[0]['rounds']} interleaved rounds and {rows[0]['compilations']} compilations.",
        "",
        "| | seconds | compile | memory |",
        "|---|---:|---:|---:|",
    ]
    for row in rows:
        numbers = (row[key] for key in ("seconds", "compile_seconds", "memory"))
        lines.append(f"| {row['method']} | " + " | ".join(f"{x:.3f}" for x in numbers) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("other", type=pathlib.Path, help="the checkout to compare with")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compilations", type=int, default=3)
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "results" / "versions.json")
    options = parser.parse_args()
    versions = [load(HERE.parent), load(options.other)]
    environments = [version.about for version in versions]
    rows = measure(versions, options.batch, options.repeats, options.compilations)
    record = {"environments": environments, "rows": rows}
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    text = table(rows, [about["commit"] for about in environments])
    options.output.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
