"""The command line: run, plan, nist and report."""

from __future__ import annotations

import argparse
import collections

from benchmarks.pde import nist
from benchmarks.pde.problems import PROBLEMS
from benchmarks.pde.records import all_methods, carry_out, missing
from benchmarks.pde.report import report


def asked(options):
    return missing(options.problems, options.methods, options.seeds, options.seconds)


def run(options):
    for one in asked(options):
        carry_out(one)
    report(options)


def plan(options):
    """How long what is missing takes, without compilation."""
    minutes = collections.Counter()
    for one in asked(options):
        minutes[one.method] += one.seconds / 60
    for method, own in minutes.items():
        print(f"{method:20s} {own:6.1f} min")
    print(f"{'all':20s} {sum(minutes.values()):6.1f} min")


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pde", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for do, words in (
        (run, "runs what is not on record yet, then reports"),
        (plan, "says how long that takes"),
    ):
        command = commands.add_parser(do.__name__, help=words)
        command.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
        choices = all_methods()
        command.add_argument("--methods", nargs="+", choices=choices, default=choices)
        command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
        command.add_argument("--seconds", type=float, help="60 or 120 by default, as the problem")
        command.set_defaults(do=do)
    words = "steps and evaluations on NIST's problems, beside SciPy and optimistix"
    command = commands.add_parser("nist", help=words)
    command.set_defaults(do=nist.main)
    words = "the table and the figure of what is on record"
    commands.add_parser("report", help=words).set_defaults(do=report)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
