"""The tables of docs/how-to/choosing.md say what the subproblems say of themselves.

``python -m tests.test_choosing`` prints the tables as they should be.
"""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import jax.numpy as jnp
import pytest

import proxlin

PAGE = pathlib.Path(__file__).parent.parent / "docs/how-to/choosing.md"


def fn(f, y):
    return jnp.sum((f - y) ** 4)


SUBPROBLEMS = ("dual_quadratic", "primal_quadratic", "dual_convex", "primal_convex")
LOSSES = {
    "{class}`proxlin.Squared`": proxlin.Squared(),
    "{class}`proxlin.Logistic`": proxlin.Logistic(),
    "{class}`proxlin.BinaryLogistic`": proxlin.BinaryLogistic(),
    "{class}`proxlin.Sparsemax`": proxlin.Sparsemax(),
    "{class}`proxlin.Hinge`": proxlin.Hinge(),
    "{class}`proxlin.FromFunction`": proxlin.FromFunction(fn),
    "the same with `conjugate`": proxlin.FromFunction(fn, conjugate=fn),
}
SOLVERS = {
    "CG": proxlin.CG(),
    "MultiShiftCG": proxlin.MultiShiftCG(),
    "Cholesky": proxlin.Cholesky(),
    "QR": proxlin.QR(),
    "SVD": proxlin.SVD(),
    "ProximalGradient": proxlin.ProximalGradient(),
    "LBFGS": proxlin.LBFGS(),
}
# What a subproblem is asked to take beside the loss.
SETTINGS: dict[str, dict[str, Any]] = {
    "solvers": {},
    "with a regularizer": {"regularizer": proxlin.L1(0.1)},
    "in a diagonal metric": {"metric": proxlin.Diagonal()},
    "in any metric": {"metric": proxlin.Kronecker()},
    "with momentum": {"momentum": 0.9},
}


def takes(subproblem, loss, solver=None, **setting):
    """Whether a subproblem takes all this, as it says itself."""
    options = {
        "regularizer": proxlin.Zero(),
        "metric": proxlin.Euclidean(),
        "momentum": 0.0,
        **setting,
    }
    try:
        getattr(proxlin, subproblem).check((loss,), solver, **options)
    except TypeError:
        return False
    return True


def row(*cells):
    return "| " + " | ".join(cells) + " |"


def losses_table():
    """Which subproblem takes which loss."""
    yield row("loss", *(f"{{data}}`proxlin.{name}`" for name in SUBPROBLEMS))
    yield "|" + "---|" * (1 + len(SUBPROBLEMS))
    for label, loss in LOSSES.items():
        yield row(label, *("yes" if takes(name, loss) else "no" for name in SUBPROBLEMS))


def solvers_of(name, loss):
    """For each setting, the solvers that serve; ``-`` for none."""
    for setting in SETTINGS.values():
        served = [f"`{key}`" for key, own in SOLVERS.items() if takes(name, loss, own, **setting)]
        yield ", ".join(served) or "-"


def solvers_table():
    """Which solvers serve a subproblem, in each setting, for the losses that it takes."""
    yield row("subproblem", *SETTINGS)
    yield "|" + "---|" * (1 + len(SETTINGS))
    for name in SUBPROBLEMS:
        cells = {
            label: tuple(solvers_of(name, loss))
            for label, loss in LOSSES.items()
            if takes(name, loss)
        }
        # Losses with the same row share it; the fewer go by their names.
        rows = sorted(set(cells.values()), key=list(cells.values()).count, reverse=True)
        for n, own in enumerate(rows):
            labels = [label for label, other in cells.items() if other == own]
            where = f", {', '.join(labels)}" if n else ""
            yield row(f"{{data}}`proxlin.{name}`{where}", *own)


@pytest.mark.parametrize("table", [losses_table, solvers_table])
def test_the_table_is_what_the_subproblems_say(table):
    assert "\n\n" + "\n".join(table()) + "\n\n" in PAGE.read_text(encoding="utf-8")


def test_every_loss_and_solver_of_the_library_is_in_the_tables():
    kinds: dict[type, dict[str, Any]] = {
        proxlin.Loss: LOSSES,
        proxlin.extend.LinearSolver: SOLVERS,
        proxlin.extend.CompositeSolver: SOLVERS,
        proxlin.extend.SmoothSolver: SOLVERS,
    }
    public = [thing for thing in vars(proxlin).values() if isinstance(thing, type)]
    for base, listed in kinds.items():
        missing = {kind for kind in public if issubclass(kind, base)} - {base}
        assert missing <= {type(piece) for piece in listed.values()}
    found = {name for name, x in vars(proxlin).items() if isinstance(x, proxlin.extend.Subproblem)}
    assert found == set(SUBPROBLEMS)


X, PARAMS = jnp.ones((2, 3), jnp.float32) / 3, jnp.zeros((3, 3), jnp.float32)
COMBINATIONS = list(itertools.product(SUBPROBLEMS, SETTINGS))


@pytest.mark.parametrize(("name", "setting"), COMBINATIONS)
def test_what_the_table_offers_gives_a_direction(name, setting):
    """Every solver of a cell is run: what is not rejected must also work."""
    loss = proxlin.Squared() if name.endswith("quadratic") else proxlin.Logistic()
    targets = X if name.endswith("quadratic") else jnp.array([0, 2])
    served = [own for own in SOLVERS.values() if takes(name, loss, own, **SETTINGS[setting])]
    for solver in served:
        opt = proxlin.prox_linear(
            lambda w, x: x @ w,
            loss,
            subproblem=getattr(proxlin, name),
            solver=solver,
            **SETTINGS[setting],
        )
        _, state = opt.update(None, opt.init(PARAMS), PARAMS, inputs=X, targets=targets)
        assert int(state.rejected) == 0 and float(state.info.slope) > 0, solver


if __name__ == "__main__":
    print(*losses_table(), "", *solvers_table(), sep="\n")
