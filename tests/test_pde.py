"""The benchmark of partial differential equations: its points, derivatives, rivals and records."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import proxlin
from benchmarks.pde import nist, records, report
from benchmarks.pde.methods import METHODS, train
from benchmarks.pde.networks import first_params, laplacian, perceptron
from benchmarks.pde.problems import PROBLEMS, boundary, poisson, spread


@pytest.fixture(autouse=True)
def as_in_scripts():
    """Benchmarks broadcast as NumPy does."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("axes", [(0,), (0, 1), (1, 2, 3), (0, 1, 2, 3)])
def test_the_laplacian_is_the_trace_of_the_hessian(axes):
    dim = max(axes) + 1
    params, x = first_params((dim, 8, 1), 0), jnp.asarray(spread(5, (0.0,) * dim, (1.0,) * dim))
    u = lambda x: perceptron(params, x)
    hessian = jax.vmap(jax.hessian(lambda x: u(x[None])[0, 0]))(x)
    want = sum(hessian[:, axis, axis] for axis in axes)
    np.testing.assert_allclose(laplacian(u, axes)(x)[:, 0], want, atol=1e-14)


@pytest.mark.parametrize("gather", [0.0, 0.5])
def test_points_on_the_boundary_leave_no_gap(gather):
    x = boundary(120, (0.0, 0.0), (1.0, 1.0), (0, 1), gather)
    for axis in (0, 1):
        for side in (0.0, 1.0):
            along = np.sort(x[x[:, axis] == side, 1 - axis])
            assert len(along) == 30
            assert np.max(np.diff(np.concatenate([[0.0], along, [1.0]]))) < 0.1


def test_points_that_gather_are_denser_at_the_boundary():
    even, gathered = (spread(500, (0.0,), (1.0,), gather) for gather in (0.0, 0.5))
    near = lambda x: np.mean(np.minimum(x, 1 - x) < 0.05)
    assert near(gathered) > 1.5 * near(even)


def test_points_are_chosen_where_residuals_are_large():
    made = small()
    equation = lambda params, x: params * jnp.where(x[:, :1] < 0.25, 9.0, 1.0)  # three as a mean
    made = dataclasses.replace(
        made,
        objective=proxlin.Sum(proxlin.Term(equation, proxlin.Squared())),
        inputs=(jnp.zeros((400, 2)),),
        candidates=jnp.asarray(spread(4000, (0.0, 0.0), (1.0, 1.0))),
    )
    x = np.asarray(made.chosen(jnp.ones(()), jax.random.key(0)))
    assert x.shape == (400, 2) and len(np.unique(x, axis=0)) == 400
    # Weights of four and of four thirds, on a quarter and three quarters of the candidates.
    assert abs(np.mean(x[:, 0] < 0.25) - 0.5) < 0.08


def small():
    solution = lambda x: jnp.prod(jnp.sin(jnp.pi * x), axis=1)
    made = poisson(2, 30, 12, solution, lambda x: 2 * jnp.pi**2 * solution(x))
    return dataclasses.replace(made, first=lambda seed: first_params((2, 6, 1), seed))


def test_the_residuals_are_those_of_the_objective():
    problem = small()
    params = problem.first(0)
    half = 0.5 * jnp.sum(problem.residuals(params) ** 2)
    np.testing.assert_allclose(half, problem.value(params), rtol=1e-12)
    fn = proxlin.value_and_direction(problem.objective)
    (value, _), _ = fn(params, problem.inputs, problem.targets)
    np.testing.assert_allclose(value, problem.value(params), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_lowers_the_objective(name):
    curve = train(small(), name, seed=0, seconds=0.5)
    assert curve[0][:2] == [0.0, 0] and curve[-1][1] > 0
    assert curve[-1][2] < curve[0][2]


def test_what_is_on_record_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    all_ = records.missing(PROBLEMS, records.all_methods(), (0, 1, 2), None)
    single = [run for run in all_ if run.method == records.SINGLE]
    assert {(run.problem, run.seconds) for run in single} == {("poisson2d", 10.0)}
    assert [run.method for run in all_[:30]] == ["LM"] * 30  # the most important part first
    row = {"method": "LM", "seconds": 60.0, "points": [900, 120], "parameters": 257}
    for seed, error in ((0, 1e-9), (2, 3e-9)):
        curve = [[0.0, 0, 1.0, 1.0], [60.0, 9, 0.1, error]]
        with (tmp_path / "poisson2d.jsonl").open("a") as file:
            file.write(json.dumps({**row, "seed": seed, "curve": curve}) + "\n")
    left = records.missing(["poisson2d"], ["LM"], (0, 1, 2), None)
    assert [(run.seed, run.seconds) for run in left] == [(1, 60.0)]
    report.report(None)
    assert (
        "| poisson2d | 900 + 120 | 257 | 60 | 2.0e-09 (2) |" in (tmp_path / "table.md").read_text()
    )
    assert (tmp_path / "errors.png").stat().st_size > 0


def test_the_table_of_nist_counts_those_that_are_solved():
    row = {"problem": "Rat42", "steps": 5, "evaluations": 7}
    rows = [
        {**row, "method": method, "start": start, "digits": digits}
        for method in nist.METHODS
        for start, digits in ((1, 10.5), (2, 6.9))
    ]
    lines = nist.table(rows)
    assert lines[2].startswith("| Rat42 | 1 | 5 / 7 | 10.5 |")
    assert lines[-2].count("2 of 2") == 3 and lines[-1].count("1 of 2") == 3
