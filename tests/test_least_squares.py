"""least_squares against NIST, SciPy and dense formulas, and where it must not get stuck."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin.least_squares import Ending
from tests import nist

EPS = float(np.finfo(np.float64).eps)


@functools.cache
def nist_results(name):
    """The results from both starts, by one vmap."""
    problem, formula = nist.read(name), nist.MODELS[name]
    x, y = jnp.asarray(problem.inputs), jnp.asarray(problem.targets)
    fit = lambda b: proxlin.least_squares(lambda b, x, y: formula(b, x) - y, b, x, y)
    return jax.jit(jax.vmap(fit))(jnp.asarray(problem.starts))


@pytest.mark.parametrize("name", nist.MODELS)
def test_nist(name):
    result = nist_results(name)
    assert bool(jnp.all(result.converged)), result.message
    for b in result.params:
        found = nist.digits(np.asarray(b), nist.read(name).certified)
        assert found >= 8, found


# The certified standard deviations of NIST.
DEVIATIONS = {
    "Misra1a": [2.7070075241e00, 7.2668688436e-06],
    "Rat43": [1.6302297817e01, 2.0828735829e00, 1.9566123451e-01, 6.8761936385e-01],
    "MGH09": [1.1435312227e-02, 1.9633220911e-01, 8.0842031232e-02, 9.0025542308e-02],
}


@pytest.mark.parametrize("name", DEVIATIONS)
def test_the_covariance_is_that_of_nist(name):
    deviations = jnp.sqrt(jnp.diagonal(nist_results(name).covariance, axis1=1, axis2=2))
    np.testing.assert_allclose(deviations, [DEVIATIONS[name]] * 2, rtol=1e-6)


def decay(w, x, y):
    """Two exponentials, as a pytree of parameters and of residuals."""
    found = w["height"][0] * jnp.exp(-w["rate"][0] * x) + w["height"][1] * jnp.exp(
        -w["rate"][1] * x
    )
    return {"first": (found - y)[:5], "rest": (found - y)[5:]}


X = jnp.linspace(0.0, 3.0, 20)
FIRST = {"height": jnp.array([1.0, 2.0]), "rate": jnp.array([0.5, 2.0])}


def noisy(seed):
    rng = np.random.default_rng(seed)
    heights, rates = rng.uniform(1, 3, 2), np.array([0.4, 2.5]) * rng.uniform(0.8, 1.2, 2)
    return jnp.asarray(np.exp(-np.outer(X, rates)) @ heights + 0.01 * rng.normal(size=len(X)))


def test_the_result_is_that_of_dense_algebra():
    result = proxlin.least_squares(decay, FIRST, X, noisy(0))
    flat, unravel = ravel_pytree(result.params)
    fn = lambda w: ravel_pytree(decay(unravel(w), X, noisy(0)))[0]
    r, jacobian = fn(flat), jax.jacobian(fn)(flat)
    np.testing.assert_allclose(result.cost, 0.5 * r @ r, rtol=1e-12)
    np.testing.assert_allclose(ravel_pytree(result.gradient)[0], jacobian.T @ r, atol=1e-10)
    assert jax.tree.structure(result.residuals) == jax.tree.structure({"first": 0, "rest": 0})
    want = (r @ r) / (len(r) - len(flat)) * jnp.linalg.inv(jacobian.T @ jacobian)
    np.testing.assert_allclose(result.covariance, want, rtol=1e-6)
    assert int(result.steps) == int(jnp.sum(~jnp.isnan(result.history.cost)))
    assert result.evaluations == 2 * result.steps
    costs = np.asarray(result.history.cost[: int(result.steps)])
    assert np.all(np.diff(costs) <= 1e-12 * costs[0])


def test_jit_changes_nothing():
    solve = lambda y: proxlin.least_squares(decay, FIRST, X, y)
    plain, compiled = solve(noisy(0)), jax.jit(solve)(noisy(0))
    np.testing.assert_allclose(
        ravel_pytree(plain.params)[0], ravel_pytree(compiled.params)[0], rtol=1e-8
    )
    assert plain.message == compiled.message


def test_vmap_over_a_hundred_problems_is_a_loop():
    targets = jnp.stack([noisy(seed) for seed in range(100)])
    solve = jax.jit(lambda y: proxlin.least_squares(decay, FIRST, X, y))
    together = jax.jit(jax.vmap(solve))(targets)
    alone = [solve(y) for y in targets]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(r.params for r in alone))
    assert bool(jnp.all(together.converged)) and len(together.message) == 100
    for got, want in zip(jax.tree.leaves(together.params), jax.tree.leaves(stacked), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-7)
    np.testing.assert_allclose(together.cost, [r.cost for r in alone], rtol=1e-10)


# ---- hard problems ------------------------------------------------------------------------------


@st.composite
def degenerate(draw):
    """A curved problem with columns of any scale, some of them repeated or without influence."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n, p = draw(st.integers(2, 12)), draw(st.integers(1, 5))
    a = rng.normal(size=(n, p))
    scales = 10.0 ** np.array(draw(st.lists(st.integers(-6, 6), min_size=p, max_size=p)))
    a = np.concatenate([a, a[:, : draw(st.integers(0, p))]], axis=1)  # repeated columns
    scales = np.concatenate([scales, scales[: a.shape[1] - p]])
    if draw(st.booleans()):
        a[:, draw(st.integers(0, a.shape[1] - 1))] = 0
    a = np.concatenate([a, a[: draw(st.integers(0, n))]])  # repeated rows
    start = draw(st.sampled_from([0.0, 1.0]))
    return a * scales, scales, start, draw(st.sampled_from([0.0, 0.1])), rng.normal(size=len(a))


@settings(max_examples=12)
@given(degenerate())
def test_it_converges_or_says_why(problem):
    a, scales, start, noise, errors = problem
    p = a.shape[1]
    first = start / scales
    fn = lambda w: jnp.sinh(0.5 * (jnp.asarray(a) @ w)) - noise * jnp.asarray(errors)
    result = proxlin.least_squares(fn, jnp.asarray(first), gamma=1.0)
    assert result.converged, result.message
    assert result.rejected < 100
    # Where the gradient vanishes relative to the columns, or nothing is left to gain.
    least = 0.5 * np.sum(np.linalg.lstsq(a / scales, 2 * np.arcsinh(noise * errors))[1])
    assert result.cost <= 0.5 * float(jnp.sum(fn(jnp.asarray(first)) ** 2)) + 1e-12
    if noise == 0:
        assert result.cost < 1e-12
    assert np.isfinite(least) and result.covariance.shape == (p, p)


def test_zero_residuals_at_the_start():
    result = proxlin.least_squares(lambda w: w - 1, jnp.ones(3))
    assert result.status == Ending.GRADIENT and result.steps == 1 and result.cost == 0
    np.testing.assert_array_equal(result.params, jnp.ones(3))


def test_a_parameter_without_influence_stays_and_is_not_determined():
    fn = lambda w: w["used"] ** 2 - jnp.arange(1.0, 6.0)
    result = proxlin.least_squares(fn, {"idle": jnp.asarray(7.0), "used": jnp.asarray(1.0)})
    assert result.converged and result.params["idle"] == 7
    np.testing.assert_allclose(result.params["used"], 3**0.5, rtol=1e-8)
    assert jnp.isinf(result.covariance[0, 0]) and jnp.isfinite(result.covariance[1, 1])


def test_units_of_parameters_do_not_matter():
    units = {"height": jnp.array([1e6, 1e-6]), "rate": jnp.array([1e-6, 1e6])}
    rescaled = lambda w, x, y: decay(jax.tree.map(jnp.multiply, w, units), x, y)
    first = jax.tree.map(jnp.divide, FIRST, units)
    got = proxlin.least_squares(rescaled, first, X, noisy(1))
    want = proxlin.least_squares(decay, FIRST, X, noisy(1))
    assert abs(int(got.steps) - int(want.steps)) <= 2
    for a, u, b in zip(*map(jax.tree.leaves, (got.params, units, want.params)), strict=True):
        np.testing.assert_allclose(a * u, b, rtol=1e-6)


def test_single_precision():
    first = jax.tree.map(lambda w: w.astype(jnp.float32), FIRST)
    x, y = X.astype(jnp.float32), noisy(2).astype(jnp.float32)
    solve = lambda w: proxlin.least_squares(decay, w, x, y)
    result, compiled = solve(first), jax.jit(solve)(first)
    want = proxlin.least_squares(decay, FIRST, X, noisy(2))
    for got in (result, compiled):
        assert got.converged and got.params["rate"].dtype == jnp.float32
        np.testing.assert_allclose(got.cost, want.cost, rtol=1e-4)


def test_what_cannot_work_says_so():
    result = proxlin.least_squares(lambda w: jnp.log(-w), jnp.ones(2))
    assert result.status == Ending.NON_FINITE and "not finite" in result.message
    result = proxlin.least_squares(decay, FIRST, X, noisy(0), max_steps=3)
    assert result.status == Ending.MAX_STEPS and "max_steps" in result.message
    assert result.history.cost.shape == (3,)


# ---- bounds -------------------------------------------------------------------------------------


def bounded_cases():
    rng = np.random.default_rng(0)
    a, y = rng.normal(size=(12, 4)), rng.normal(size=12)
    yield "linear", lambda w: a @ w - y, np.zeros(4), (-0.2, 0.2)
    rosenbrock = lambda w: jnp.stack([10 * (w[1] - w[0] ** 2), 1 - w[0]])
    yield (
        "rosenbrock",
        rosenbrock,
        np.array([-1.0, 0.5]),
        (np.array([-2.0, -2.0]), np.array([0.5, 2.0])),
    )
    yield "rosenbrock, not active", rosenbrock, np.array([-1.2, 1.0]), (-3.0, 3.0)
    x, targets = np.asarray(X), np.asarray(noisy(3))
    curve = lambda w: w[0] * jnp.exp(-w[1] * x) + w[2] - targets
    yield (
        "curve",
        curve,
        np.array([1.0, 1.0, 0.5]),
        (np.array([0.0, 0.0, 0.2]), np.array([9.0, 1.0, 9.0])),
    )
    yield "one side", curve, np.array([1.0, 1.0, 0.5]), (0.25, np.inf)


@pytest.mark.parametrize(
    ("fn", "first", "bounds"), [c[1:] for c in bounded_cases()], ids=[c[0] for c in bounded_cases()]
)
def test_bounds_are_those_of_scipy(fn, first, bounds):
    result = proxlin.least_squares(fn, jnp.asarray(first), bounds=bounds)
    options = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-15}
    want = scipy.optimize.least_squares(
        lambda w: np.asarray(fn(w)), first, bounds=bounds, method="trf", **options
    )
    assert result.converged, result.message
    assert np.all(result.params >= bounds[0]) and np.all(result.params <= bounds[1])
    np.testing.assert_allclose(result.cost, want.cost, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(result.params, want.x, rtol=1e-4, atol=1e-4)


@settings(max_examples=8)
@given(st.integers(0, 10**6))
def test_linear_problems_in_a_box(seed):
    rng = np.random.default_rng(seed)
    a, y = rng.normal(size=(8, 4)), rng.normal(size=8)
    low, high = -rng.uniform(0, 0.5, 4), rng.uniform(0.01, 0.5, 4)
    result = proxlin.least_squares(
        lambda w: jnp.asarray(a) @ w - y, jnp.zeros(4), bounds=(low, high), gamma=1.0
    )
    want = scipy.optimize.lsq_linear(a, y, (low, high), method="bvls", tol=1e-14)
    assert result.converged, result.message
    np.testing.assert_allclose(result.params, want.x, atol=1e-6)
    held = np.asarray((result.params <= low) | (result.params >= high))
    np.testing.assert_array_equal(np.diagonal(result.covariance) == 0, held)


def test_bounds_as_pytrees():
    upper = {"height": jnp.inf * jnp.ones(2), "rate": jnp.array([0.3, jnp.inf])}
    first = {**FIRST, "rate": jnp.array([0.2, 2.0])}
    result = proxlin.least_squares(decay, first, X, noisy(0), bounds=(0.0, upper))
    assert result.converged and result.params["rate"][0] == 0.3


# ---- bad input ----------------------------------------------------------------------------------

SOME = lambda w: w - 1.0

NUMBER: Any = 1.0

BAD = [
    (lambda: proxlin.least_squares(NUMBER, jnp.ones(2)), TypeError, "residuals must be a function"),
    (lambda: proxlin.least_squares(SOME, jnp.ones(2, int)), TypeError, "floating-point"),
    (
        lambda: proxlin.least_squares(lambda w: w[:0], jnp.ones(2)),
        ValueError,
        "at least one residual",
    ),
    (
        lambda: proxlin.least_squares(lambda w: w > 0, jnp.ones(2)),
        TypeError,
        "residuals of dtype bool",
    ),
    (
        lambda: proxlin.least_squares(SOME, jnp.ones(2), max_steps=0),
        ValueError,
        "max_steps=0: give a positive integer",
    ),
    (
        lambda: proxlin.least_squares(SOME, jnp.ones(2), gtol=-1.0),
        ValueError,
        "gtol=-1.0: give a positive",
    ),
    (
        lambda: proxlin.least_squares(SOME, jnp.ones(2), gamma=0.0),
        ValueError,
        r"gamma=0.0\): give a positive",
    ),
    (
        lambda: proxlin.least_squares(SOME, jnp.ones(2), gamma=()),
        ValueError,
        "at least one positive",
    ),
    (
        lambda: proxlin.least_squares(SOME, jnp.ones(2), acceleration=-1.0),
        ValueError,
        "acceleration=-1.0",
    ),
    (
        lambda: proxlin.least_squares(SOME, jnp.ones(2), bounds=3.0),
        TypeError,
        r"give a pair \(lower, upper\)",
    ),
    (
        lambda: proxlin.least_squares(SOME, jnp.ones(2), bounds=(1.0, 0.0)),
        ValueError,
        "lower bounds must be less",
    ),
    (
        lambda: proxlin.least_squares(SOME, jnp.ones(2), bounds=(2.0, 3.0)),
        ValueError,
        "must not lie below",
    ),
    (
        lambda: proxlin.least_squares(SOME, jnp.ones(2), bounds=(-1.0, 0.0)),
        ValueError,
        "must not lie above",
    ),
    (
        lambda: proxlin.least_squares(SOME, jnp.ones(2), bounds=(jnp.zeros(3), 2.0)),
        ValueError,
        "does not fit the shapes",
    ),
    (
        lambda: proxlin.least_squares(SOME, jnp.ones(2), bounds=({"a": 0.0}, 2.0)),
        ValueError,
        "has the structure",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[m for _, _, m in BAD])
@pytest.mark.usefixtures("unchecked")
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
