"""The command line of the suite: data, tune, run, cost and report."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Mapping

import benchmarks.suite
from benchmarks.suite import cost, fetch, report, running
from benchmarks.suite.rivals import METHODS, OPTIONAL, TUNED
from benchmarks.suite.workloads import WORKLOADS
from proxlin.bench.errors import BenchError, UsageError


def data(options: argparse.Namespace) -> None:
    for name in fetch.ORIGINS:
        folder = fetch.fetch(name)
        print(name, "is there" if folder is None else f"-> {folder}", flush=True)


def tune(options: argparse.Namespace) -> None:
    for method in (name for name in options.methods if name in TUNED):
        for workload in options.workloads:
            with_message(
                lambda w=workload, m=method: print(w, m, running.tune_on(w, m, options.folder)),
                method,
            )


def run(options: argparse.Namespace) -> None:
    if options.again:
        for workload in options.workloads:
            running.Records(workload, options.folder).forget(options.methods)
    for method in options.methods:
        for workload in options.workloads:
            with_message(lambda w=workload, m=method: run_one(w, m, options), method)


def run_one(workload: str, method: str, options: argparse.Namespace) -> None:
    steps = None
    if options.same_gradients:
        if not METHODS[method].scheduled:
            return  # it goes the same way in a longer run
        steps = cost.planned(workload, method, options.folder)
    running.run_seeds(workload, method, options.seeds, options.folder, steps)


def with_message(work: Callable[[], None], method: str) -> None:
    """Does it, or says why it cannot be done: some methods do not run on all workloads."""
    try:
        work()
    except UsageError as error:
        print(f"{method}: {error}", file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> None:
    for workload in options.workloads:
        cost.measure_on(workload, options.methods, options.folder)
        print(
            workload,
            {m: x["gradients"] for m, x in cost.read(options.folder)[workload].items()},
            flush=True,
        )


def write(options: argparse.Namespace) -> None:
    print(report.write(options.folder))


COMMANDS: Mapping[str, Callable[[argparse.Namespace], None]] = {
    "data": data,
    "tune": tune,
    "run": run,
    "cost": measure,
    "report": write,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.suite",
        description=benchmarks.suite.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS)
    usual = [name for name in METHODS if name not in OPTIONAL]
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=usual)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--again",
        action="store_true",
        help="`run` first drops all that is recorded of these methods",
    )
    parser.add_argument(
        "--folder", type=pathlib.Path, default=running.RESULTS, help="of the records"
    )
    parser.add_argument(
        "--same-gradients",
        action="store_true",
        help="`run` plans as many steps as cost the gradients of AdamW's budget",
    )
    options = parser.parse_args()
    try:
        COMMANDS[options.command](options)
    except BenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
