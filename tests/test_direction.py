"""Directions against dense references: (G + I / gamma) d = grad, solved in float64."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import proxlin
from tests import cases
from tests.cases import LOSSES, SUBPROBLEMS, flat, network, problem, relative_error, targets_of

dense = jax.jit(cases.dense, static_argnames=("name", "model"))

SOLVERS = {
    "cg": proxlin.CG(300),
    "cholesky": proxlin.Cholesky(),
    "rows": proxlin.Cholesky(independent=True),
}
# Both direct solvers see the curvature of a loss by autodiff in the same way: one of them will do.
COMBINATIONS = [
    (name, solver)
    for name in LOSSES
    for solver in SOLVERS
    if solver != "cholesky" or not isinstance(LOSSES[name], proxlin.FromFunction)
]
GAMMAS = (1e-3, 1e-1, 1.0, 1e1, 1e2)
M = 6


@functools.cache
def direction_of(name, subproblem, solver, **options):
    """One compilation for all gammas and weights."""
    return jax.jit(
        proxlin.value_and_direction(
            network,
            LOSSES[name],
            subproblem=SUBPROBLEMS[subproblem],
            solver=SOLVERS[solver],
            **options,
        )
    )


def solve(g, curvature, gamma):
    return np.linalg.solve(np.asarray(curvature) + np.eye(len(g)) / gamma, np.asarray(g))


def tolerance(dtype, curvature, gamma):
    """Rounding, amplified by the condition number of the system."""
    largest = np.linalg.eigvalsh(np.asarray(curvature))[-1]
    return 100 * np.finfo(dtype).eps * (1 + gamma * largest)


def weights_of(kind, dtype, m=M):
    if kind == "uniform":
        return jnp.ones(m, dtype)
    weights = np.random.default_rng(7).uniform(0.2, 3.0, m)
    if kind == "zeros":
        weights[[0, 3]] = 0
    return jnp.asarray(weights, dtype)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("name,solver", COMBINATIONS)
def test_equals_dense_solve(name, solver, subproblem, dtype):
    params, inputs, targets = problem(name, dtype, M)
    fn = direction_of(name, subproblem, solver)
    for kind in ("uniform", "positive", "zeros"):
        weights = weights_of(kind, dtype)
        g, curvature = dense(name, params, inputs, targets, weights)
        for gamma in GAMMAS:
            (_, info), d = fn(params, inputs, targets, gamma=gamma, weights=weights)
            assert info.status == proxlin.Status.OK
            assert {x.dtype for x in jax.tree.leaves(d)} == {jnp.dtype(dtype)}
            error = relative_error(flat(d), solve(g, curvature, gamma))
            assert error <= tolerance(dtype, curvature, gamma), (kind, gamma)


@pytest.mark.parametrize(
    "name,subproblem,solver",
    [
        ("squared", "dual", "cholesky"),
        ("logistic", "dual", "cg"),
        ("binary", "primal", "cg"),
        ("function", "primal", "cholesky"),
        ("singular", "dual", "rows"),
    ],
)
def test_no_weights_are_equal_weights(name, subproblem, solver):
    params, inputs, targets = problem(name, jnp.float64, M)
    fn = direction_of(name, subproblem, solver)
    g, curvature = dense(name, params, inputs, targets)
    for gamma in GAMMAS:
        (value, info), d = fn(params, inputs, targets, gamma=gamma)
        error = relative_error(flat(d), solve(g, curvature, gamma))
        assert error <= tolerance(jnp.float64, curvature, gamma)
        mean = jnp.mean(LOSSES[name].value(network(params, inputs), targets))
        np.testing.assert_allclose(value, mean, rtol=1e-14)
        np.testing.assert_allclose(flat(info.grad), g, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("max_steps", [1, 3])
def test_autodiff_of_the_loss_equals_closed_forms(subproblem, max_steps):
    # The factors differ by an orthogonal matrix, which conjugate gradients do not see.
    params, inputs, targets = problem("logistic", jnp.float64, M)
    got, want = (
        jax.jit(
            proxlin.value_and_direction(
                network,
                LOSSES[name],
                subproblem=SUBPROBLEMS[subproblem],
                solver=proxlin.CG(max_steps),
            )
        )(params, inputs, targets, gamma=3.0, weights=weights_of("zeros", jnp.float64))
        for name in ("function", "logistic")
    )
    np.testing.assert_allclose(got[0][0], want[0][0], rtol=1e-13)
    assert relative_error(flat(got[1]), flat(want[1])) <= 1e-10


def sequence_problem(name, shape):
    params, _, _ = problem(name, jnp.float64)
    rng = np.random.default_rng(3)
    inputs = jnp.asarray(rng.normal(size=(*shape, 5)))
    return params, inputs, targets_of(name, shape, jnp.float64, 3)


@pytest.mark.parametrize(
    "name,subproblem,solver",
    [
        ("squared", "dual", "cg"),
        ("logistic", "primal", "rows"),
        ("logistic", "dual", "rows"),
        ("singular", "primal", "cg"),
    ],
)
def test_sequences(name, subproblem, solver):
    m, t = 4, 3
    params, inputs, targets = sequence_problem(name, (m, t))
    fn = direction_of(name, subproblem, solver)
    rng = np.random.default_rng(5)
    per_row = jnp.asarray([1.0, 0.0, 2.0, 0.5])
    per_token = rng.uniform(0.1, 1.0, (m, t))
    per_token[[0, 2, 2], [1, 0, 2]] = 0
    spread = jnp.broadcast_to(per_row[:, None], (m, t))
    for weights, want in ((per_row, spread), (jnp.asarray(per_token),) * 2):
        g, curvature = dense(name, params, inputs, targets, want)
        (_, info), d = fn(params, inputs, targets, gamma=2.0, weights=weights)
        assert relative_error(flat(d), solve(g, curvature, 2.0)) <= 1e-11
        np.testing.assert_allclose(flat(info.grad), g, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("name", LOSSES)
def test_report(name, subproblem):
    """Value and gradient are those of jax.value_and_grad, slope and prediction their formulas."""
    dtype = jnp.float32
    params, inputs, targets = problem(name, dtype, M)
    weights = weights_of("zeros", dtype)
    share = weights / jnp.sum(weights)
    fn = jax.jit(
        proxlin.value_and_direction(network, LOSSES[name], subproblem=SUBPROBLEMS[subproblem])
    )
    _, curvature = dense(name, params, inputs, targets, weights)

    def objective(w):
        return jnp.sum(share * LOSSES[name].value(network(w, inputs), targets))

    want_value, want_grad = jax.jit(jax.value_and_grad(objective))(params)
    eps = np.finfo(dtype).eps
    for gamma in (1e-2, 1.0, 30.0):
        (value, info), d = fn(params, inputs, targets, gamma=gamma, weights=weights)
        d, g = flat(d), flat(info.grad)
        np.testing.assert_allclose(value, want_value, rtol=20 * eps)
        assert relative_error(g, flat(want_grad)) <= 50 * eps
        np.testing.assert_allclose(info.slope, d @ g, rtol=50 * eps)
        if subproblem == "dual":
            assert np.isnan(info.predicted)  # it would cost a product
            continue
        quadratic = d @ np.asarray(curvature) @ d + d @ d / gamma
        scale = abs(d @ g) + quadratic
        assert abs(float(info.predicted) - (d @ g - quadratic / 2)) <= 50 * eps * scale


@pytest.mark.parametrize(
    "subproblem,solver", [("dual", "cg"), ("primal", "cg"), ("dual", "cholesky")]
)
def test_all_examples_for_curvature(subproblem, solver):
    params, inputs, targets = problem("squared", jnp.float32, M)
    want = direction_of("squared", subproblem, solver)(params, inputs, targets)
    got = direction_of("squared", subproblem, solver, curvature_size=M)(params, inputs, targets)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "name,size,subproblem,solver",
    [
        ("logistic", 3, "dual", "cg"),
        ("logistic", 3, "primal", "cg"),
        ("logistic", 3, "dual", "rows"),
        ("squared", 2, "dual", "cholesky"),
        ("squared", 4, "dual", "cg"),
        ("squared", 4, "primal", "rows"),
    ],
)
def test_curvature_of_some_examples(name, size, subproblem, solver):
    m = 9
    params, inputs, targets = problem(name, jnp.float64, m)
    fn = direction_of(name, subproblem, solver, curvature_size=size)
    weights = np.random.default_rng(1).uniform(0.2, 2.0, m)
    weights[m // size] = 0  # among the rows that curvature would come from otherwise
    for w in (None, jnp.asarray(weights)):
        g, _ = dense(name, params, inputs, targets, w)
        part = cases.part_of_batch(np.ones(m) if w is None else weights, size)
        _, curvature = dense(name, params, inputs, targets, jnp.asarray(part))
        for gamma in (1e-2, 1.0, 1e2):
            (_, info), d = fn(params, inputs, targets, gamma=gamma, weights=w)
            error = relative_error(flat(d), solve(g, curvature, gamma))
            assert error <= tolerance(jnp.float64, curvature, gamma)
            np.testing.assert_allclose(flat(info.grad), g, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    "subproblem,chunk_size", [("dual", 1), ("dual", 4), ("primal", 4), ("primal", 50)]
)
def test_chunks_change_nothing(subproblem, chunk_size):
    params, inputs, targets = problem("logistic", jnp.float64, M)
    make = functools.partial(
        proxlin.value_and_direction,
        network,
        LOSSES["logistic"],
        subproblem=SUBPROBLEMS[subproblem],
    )
    arguments = dict(gamma=2.0, weights=weights_of("zeros", jnp.float64))
    (value, info), d = jax.jit(make())(params, inputs, targets, **arguments)
    (value_, info_), d_ = jax.jit(make(chunk_size=chunk_size))(params, inputs, targets, **arguments)
    np.testing.assert_allclose(value_, value, rtol=1e-14)
    assert relative_error(flat(d_), flat(d)) <= 1e-12
    assert relative_error(flat(info_.grad), flat(info.grad)) <= 1e-12
    assert (info_.jvps, info_.vjps) == (info.jvps, info.vjps)


def test_chunks_of_some_examples():
    params, inputs, targets = problem("logistic", jnp.float64, 9)
    _, want = direction_of("logistic", "dual", "cg", curvature_size=4)(params, inputs, targets)
    fn = direction_of("logistic", "dual", "cg", curvature_size=4, chunk_size=3)
    assert relative_error(flat(fn(params, inputs, targets)[1]), flat(want)) <= 1e-12


def test_arguments_and_statistics():
    """What is not per example reaches the model, and what it returns beside outputs comes back."""
    params, inputs, targets = problem("squared", jnp.float64, M)
    stats = {"mean": jnp.arange(5.0), "count": jnp.asarray(3)}

    def model(w, x, stats, scale):
        new = {"mean": stats["mean"] + jnp.mean(x, axis=0), "count": stats["count"] + 1}
        return scale * network(w, x - stats["mean"][None, :]), new

    fn = jax.jit(
        proxlin.value_and_direction(model, proxlin.Squared(), solver=SOLVERS["cg"], has_aux=True)
    )
    (_, info), d = fn(params, inputs, targets, stats, 0.5, gamma=2.0)
    np.testing.assert_allclose(info.aux["mean"], stats["mean"] + jnp.mean(inputs, axis=0))
    assert info.aux["count"] == 4
    g, curvature = dense(
        "squared", params, inputs, targets, model=lambda w, x: model(w, x, stats, 0.5)[0]
    )
    assert relative_error(flat(d), solve(g, curvature, 2.0)) <= 1e-11


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("name,solver", COMBINATIONS)
def test_rows_of_weight_zero_may_hold_anything(name, solver, subproblem):
    params, inputs, targets = problem(name, jnp.float64, M)
    weights = weights_of("zeros", jnp.float64)
    gone, kept = np.flatnonzero(weights == 0), np.flatnonzero(weights)
    bad_target = 77 if jnp.issubdtype(targets.dtype, jnp.integer) else jnp.nan
    broken = inputs.at[gone[0]].set(jnp.nan).at[gone[1], 0].set(jnp.inf)
    fn = direction_of(name, subproblem, solver)
    (value, info), d = fn(
        params, broken, targets.at[gone].set(bad_target), gamma=2.0, weights=weights
    )
    assert info.status == proxlin.Status.OK
    # The reference never sees the rows.
    inputs, targets, weights = inputs[kept], targets[kept], weights[kept]
    g, curvature = dense(name, params, inputs, targets, weights)
    losses = LOSSES[name].value(network(params, inputs), targets)
    np.testing.assert_allclose(value, jnp.vdot(weights, losses) / jnp.sum(weights), rtol=1e-13)
    assert relative_error(flat(info.grad), g) <= 1e-12
    assert relative_error(flat(d), solve(g, curvature, 2.0)) <= 1e-11


@pytest.mark.parametrize("loss", [proxlin.Squared(), proxlin.Logistic()])
def test_distributions_and_bfloat16(loss):
    """Parameters of mixed dtypes: the algebra is in float32, the direction in their dtypes."""
    params, inputs, targets = problem("squared", jnp.float32, M)
    if isinstance(loss, proxlin.Logistic):
        targets = jax.nn.softmax(targets)
    params["b1"] = params["b1"].astype(jnp.bfloat16)

    def mixed(w, x):
        return network({**w, "b1": w["b1"].astype(x.dtype)}, x)

    fn = jax.jit(proxlin.value_and_direction(mixed, loss, solver=SOLVERS["cg"]))
    _, d = fn(params, inputs, targets, gamma=1.0)
    assert d["b1"].dtype == jnp.bfloat16 and d["w1"].dtype == jnp.float32
    wide = jax.tree.map(lambda x: x.astype(jnp.float64), params)
    _, want = jax.jit(proxlin.value_and_direction(network, loss, solver=SOLVERS["cholesky"]))(
        wide, inputs.astype(jnp.float64), targets.astype(jnp.float64), gamma=1.0
    )
    eps = float(jnp.finfo(jnp.bfloat16).eps)
    assert relative_error(flat(d["b1"]), flat(want["b1"])) <= 2 * eps
    for leaf in ("w1", "w2"):
        # Products with J round the entries of b1 to bfloat16.
        assert relative_error(flat(d[leaf]), flat(want[leaf])) <= 2 * eps


def test_nested_parameters_keep_their_structure():
    params, inputs, targets = problem("squared", jnp.float64, M)
    nested = [(params["w1"], {"b": params["b1"]}), params["w2"]]

    def model(w, x):
        return network({"w1": w[0][0], "b1": w[0][1]["b"], "w2": w[1]}, x)

    fn = jax.jit(proxlin.value_and_direction(model, proxlin.Squared()))
    (_, info), d = fn(nested, inputs, targets)
    _, want = jax.jit(proxlin.value_and_direction(network, proxlin.Squared()))(
        params, inputs, targets
    )
    assert jax.tree.structure(d) == jax.tree.structure(nested)
    assert jax.tree.structure(info.grad) == jax.tree.structure(nested)
    np.testing.assert_allclose(d[0][1]["b"], want["b1"], rtol=1e-12)
    np.testing.assert_allclose(d[1], want["w2"], rtol=1e-12)


def test_inputs_may_be_a_pytree():
    """Leaves of any dtype, with rows of weight zero in each."""
    params, inputs, targets = problem("logistic", jnp.float64, M)
    weights = weights_of("zeros", jnp.float64)
    keep = jnp.asarray([False, True, True, False, True, False])
    number = jnp.arange(M, dtype=jnp.uint8)
    parts = {"left": inputs[:, :2].at[0].set(jnp.nan), "right": (inputs[:, 2:], keep), "n": number}

    def model(w, x):
        right, keep = x["right"]
        scale = jnp.where(keep, 1.0, 0.5) + x["n"].astype(right.dtype)
        return network(w, scale[:, None] * jnp.concatenate([x["left"], right], axis=1))

    options: dict[str, Any] = dict(curvature_size=3, chunk_size=2)
    fn = jax.jit(proxlin.value_and_direction(model, proxlin.Logistic(), **options))
    plain = jax.jit(proxlin.value_and_direction(network, proxlin.Logistic(), **options))
    (_, info), d = fn(params, parts, targets, weights=weights)
    scale = jnp.where(keep, 1.0, 0.5) + number.astype(jnp.float64)
    _, want = plain(params, scale[:, None] * inputs, targets, weights=weights)
    assert info.status == proxlin.Status.OK
    assert relative_error(flat(d), flat(want)) <= 1e-12


def test_vmap_over_gamma_is_a_loop_over_gamma():
    params, inputs, targets = problem("squared", jnp.float64, M)
    fn = proxlin.value_and_direction(network, proxlin.Squared(), solver=SOLVERS["cg"])
    at = lambda gamma: ravel_pytree(fn(params, inputs, targets, gamma=gamma)[1])[0]
    loop = jax.jit(at)
    for got, gamma in zip(jax.jit(jax.vmap(at))(jnp.asarray(GAMMAS)), GAMMAS, strict=True):
        assert relative_error(got, loop(gamma)) <= 1e-11
