"""Marquardt's metric, orthogonal solvers and geodesic acceleration, each against dense algebra."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin.direction import Oracle
from proxlin.extend import plain
from proxlin.optimizer.levenberg_marquardt import Direct
from proxlin.solvers.rows import lower_gram
from tests.cases import LOSSES, SUBPROBLEMS, dense, flat, network, problem, relative_error

GAMMA = 3.0
SOLVERS = {
    "cg": proxlin.CG(200),
    "cholesky": proxlin.Cholesky(),
    "cholesky, rows": proxlin.Cholesky(independent=True),
    "qr": proxlin.QR(),
    "qr, rows": proxlin.QR(independent=True),
    "svd": proxlin.SVD(),
    "svd, rows": proxlin.SVD(independent=True),
    "direct": Direct(),
}


def direction(name, params, inputs, targets, gamma=GAMMA, **options):
    oracle = Oracle(network, LOSSES[name], **options)
    return oracle.direction(params, inputs, targets, (), gamma, None, oracle.init(params))


@pytest.mark.parametrize("m", [3, 30])
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_the_direction_is_that_of_dense_algebra(name, subproblem, solver, m):
    """On the smaller of the two sides, whichever that is."""
    batch = problem(name, jnp.float64, m=m)
    options = {"solver": solver, "metric": proxlin.Marquardt()}
    got = direction(name, *batch, subproblem=SUBPROBLEMS[subproblem], **options)
    grad, gauss_newton = (np.asarray(x) for x in dense(name, *batch))
    p = np.diag(np.diagonal(gauss_newton))
    want = np.linalg.solve(gauss_newton + p / GAMMA, grad)
    assert relative_error(flat(got.d), want) < 1e-8
    assert relative_error(flat(got.solved.d.covector), p @ want) < 1e-8


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("metric", [proxlin.Euclidean(), proxlin.Marquardt()], ids=repr)
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_the_acceleration_is_that_of_dense_algebra(name, subproblem, metric, solver):
    params, x, y = problem(name, jnp.float64)
    options = {"subproblem": SUBPROBLEMS[subproblem], "solver": solver, "metric": metric}
    found = direction(name, params, x, y, **options)
    after, correction = found.acceleration()
    assert int(after.cost.jvps) <= int(found.cost.jvps) + 1

    w, unravel = ravel_pytree(params)
    f = lambda w: network(unravel(w), x)
    d, j = ravel_pytree(found.d)[0], jax.jacobian(f)(w)
    bend = f(w - d) - f(w) + jnp.einsum("nkp,p->nk", j, d)
    single = lambda f, y: LOSSES[name].value(f[None], y[None])[0]
    h = jax.vmap(jax.hessian(single))(f(w), y) / len(x)
    gauss_newton = jnp.einsum("nkp,nkl,nlq->pq", j, h, j)
    p = jnp.eye(len(w)) if metric.is_identity else jnp.diag(jnp.diagonal(gauss_newton))
    rhs = jnp.einsum("nkp,nkl,nl->p", j, h, bend)
    want = jnp.linalg.solve(gauss_newton + p / GAMMA, rhs)
    assert relative_error(flat(plain(correction)), want) < 1e-6


def test_half_the_second_derivative_is_what_bends_a_short_path():
    params, x, y = problem("squared", jnp.float64)
    found = direction("squared", params, x, y, gamma=1e-4, solver=proxlin.Cholesky())
    along = lambda t: network(jax.tree.map(lambda w, d: w - t * d, params, found.d), x)
    second = jax.jvp(lambda t: jax.jvp(along, (t,), (1.0,))[1], (0.0,), (1.0,))[1]
    bend = found.outputs_at(found.d)[0] - along(0.0) + found.change()[1][0]
    np.testing.assert_allclose(bend, 0.5 * second, rtol=1e-2, atol=1e-12)


def test_acceleration_needs_a_linear_system():
    batch = problem("squared", jnp.float64)
    opt = proxlin.prox_linear(
        network,
        proxlin.Squared(),
        step=proxlin.TrustRegion(acceleration=0.75),
        subproblem=proxlin.primal_convex,
    )
    with pytest.raises(TypeError, match="acceleration needs a linear system"):
        opt.update(None, opt.init(batch[0]), batch[0], inputs=batch[1], targets=batch[2])


# ---- the metric ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["squared", "logistic"])
@pytest.mark.parametrize(
    "metric",
    [
        proxlin.Marquardt(),
        proxlin.Marquardt(independent=True),
        proxlin.Marquardt(independent=True, max_elements=100),
        proxlin.Marquardt(max_elements=1),
    ],
    ids=repr,
)
def test_entries_are_those_of_the_diagonal_and_the_largest_so_far(name, metric):
    batches = [problem(name, jnp.float64, seed=seed) for seed in (0, 1)]
    oracle = Oracle(network, LOSSES[name], metric=metric, solver=proxlin.CG(3))
    state, largest = oracle.init(batches[0][0]), 0.0
    for batch in batches:
        state = oracle.direction(*batch, (), GAMMA, None, state).state
        largest = np.maximum(largest, np.diagonal(dense(name, *batch)[1]))
        np.testing.assert_allclose(flat(state.metric) ** 2, largest, rtol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_a_parameter_without_influence_does_not_move(solver):
    model = lambda w, x: x * w["used"][None] + 0 * w["idle"][None]
    x, y = jnp.arange(1.0, 5.0)[:, None], jnp.ones((4, 1))
    opt = proxlin.levenberg_marquardt(model, solver=solver)
    w = {"used": jnp.zeros(1), "idle": jnp.full(1, 5.0)}
    updates, state = opt.update(None, opt.init(w), w, inputs=x, targets=y)
    assert updates["idle"][0] == 0 and updates["used"][0] > 0 and int(state.rejected) == 0


@settings(max_examples=8)
@given(st.lists(st.integers(-6, 6), min_size=6, max_size=6), st.sampled_from(["cholesky", "qr"]))
def test_units_of_parameters_change_nothing(powers, solver):
    params, x, y = problem("squared", jnp.float64, m=8, hidden=1, features=2)
    units = ravel_pytree(params)[1](jnp.asarray(10.0 ** np.array(powers)))
    scaled = jax.tree.map(jnp.divide, params, units)
    model = lambda w, x: network(jax.tree.map(jnp.multiply, w, units), x)
    options: dict[str, Any] = {"metric": proxlin.Marquardt(), "solver": SOLVERS[solver]}
    oracle = Oracle(model, proxlin.Squared(), **options)
    got = oracle.direction(scaled, x, y, (), GAMMA, None, oracle.init(scaled)).d
    want = direction("squared", params, x, y, **options).d
    np.testing.assert_allclose(flat(jax.tree.map(jnp.multiply, got, units)), flat(want), rtol=1e-6)


# ---- solvers ------------------------------------------------------------------------------------


def ill_conditioned(dtype, condition=1e4):
    """A linear model whose solution is known, and singular values that span a range."""
    rng = np.random.default_rng(0)
    u, v = (np.linalg.qr(rng.normal(size=shape))[0] for shape in ((40, 8), (8, 8)))
    a = u @ np.diag(np.geomspace(1, 1 / condition, 8)) @ v.T
    solution = rng.normal(size=(8, 1))
    return jnp.asarray(a, dtype), jnp.asarray(a @ solution, dtype), solution


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("kind", [proxlin.QR, proxlin.SVD])
def test_the_condition_number_is_not_squared(kind, subproblem):
    a, y, solution = ill_conditioned(jnp.float32)

    def error(solver):
        fn = proxlin.value_and_direction(
            lambda w, x: x @ w, proxlin.Squared(), subproblem=SUBPROBLEMS[subproblem], solver=solver
        )
        _, d = fn(jnp.zeros((8, 1), jnp.float32), a, y, gamma=1e13)
        return relative_error(-flat(d), solution[:, 0])

    assert error(kind()) < 1e-2
    assert error(proxlin.Cholesky()) > 0.1


def test_a_grid_of_gammas_makes_one_factorization():
    params, x, y = problem("squared", jnp.float64)
    fn = proxlin.value_and_direction(network, proxlin.Squared(), solver=proxlin.SVD())
    grid = jnp.geomspace(1e-2, 1e4, 7)
    together = jax.vmap(lambda g: fn(params, x, y, gamma=g)[1])
    got = together(grid)
    want = [flat(fn(params, x, y, gamma=g)[1]) for g in grid]
    for n, row in enumerate(want):
        assert relative_error(flat(jax.tree.map(lambda leaf: leaf[n], got)), row) < 1e-9  # noqa: B023
    # No factorization in the compiled program has an axis of gammas.
    text = str(jax.make_jaxpr(together)(grid))
    assert text.count("= svd[") == 1 and "f64[7,18,18]" not in text


def test_singular_values_of_zero_give_the_shortest_solution():
    x = jnp.ones((4, 2))
    fn = proxlin.value_and_direction(
        lambda w, x: x @ w,
        proxlin.Squared(),
        subproblem=proxlin.primal_quadratic,
        solver=proxlin.SVD(),
    )
    (_, info), d = fn(jnp.zeros((2, 1)), x, jnp.ones((4, 1)), gamma=jnp.inf)
    np.testing.assert_allclose(-d, 0.5, rtol=1e-12)
    assert int(info.status) == proxlin.Status.INEXACT


@pytest.mark.parametrize("kind", [proxlin.QR, proxlin.SVD])
def test_rows_that_are_not_those_of_the_batch_are_noticed(kind):
    params, x, y = problem("squared", jnp.float64)
    centered = lambda w, x: network(w, x - jnp.mean(x, axis=0, keepdims=True))
    opt = proxlin.prox_linear(centered, proxlin.Squared(), solver=kind(independent=True))
    _, state = jax.jit(opt.update)(None, opt.init(params), params, inputs=x, targets=y)
    assert int(state.info.status) == proxlin.Status.BAD_VALUE and int(state.rejected) == 1
    with pytest.raises(TypeError, match=r"independent=True\) needs a system with rows"):
        kind(independent=True).solve(
            proxlin.NormalSystem(lambda x: x, lambda x: x, jnp.ones(()), rhs=jnp.ones(2))
        )


# ---- the optimizer ------------------------------------------------------------------------------


def run(opt, params, steps, **batch):
    def step(carry, _):
        params, state = carry
        updates, state = opt.update(None, state, params, **batch)
        return (optax.apply_updates(params, updates), state), state.info.value

    return jax.jit(lambda p: jax.lax.scan(step, (p, opt.init(p)), length=steps))(params)


def teacher(dtype=jnp.float64):
    """A problem whose residuals can vanish: the outputs of a smaller network."""
    params, x, _ = problem("squared", dtype, m=30, hidden=12)
    return params, x, network(problem("squared", dtype, seed=5)[0], x)


@pytest.mark.parametrize("independent", [True, False])
def test_residuals_vanish(independent):
    params, x, y = teacher()
    opt = proxlin.levenberg_marquardt(network, independent=independent)
    (_, state), values = run(opt, params, 150, inputs=x, targets=y)
    assert values[-1] < 1e-25 and int(state.rejected) < 75
    # Rounding at the minimum does not drive gamma away.
    assert 1e-3 < float(state.gamma) < 1e29


def test_residuals_vanish_in_single_precision():
    params, x, y = teacher(jnp.float32)
    (_, state), values = run(proxlin.levenberg_marquardt(network), params, 150, inputs=x, targets=y)
    assert values[-1] < 1e-11 and 1e-3 < float(state.gamma) < 1e29


def test_acceleration_and_scaling_save_steps():
    params, x, y = teacher()
    steps = {}
    for name, opt in {
        "both": proxlin.levenberg_marquardt(network),
        "straight": proxlin.levenberg_marquardt(network, acceleration=None),
        "neither": proxlin.prox_linear(
            network, proxlin.Squared(), step=proxlin.TrustRegion(), solver=proxlin.Cholesky()
        ),
    }.items():
        values = run(opt, params, 400, inputs=x, targets=y)[1]
        steps[name] = int(jnp.argmax(values < 1e-20)) or 400
    assert steps["both"] < 0.7 * steps["neither"] and steps["both"] < steps["straight"]


def test_jit_changes_nothing():
    params, x, y = problem("logistic", jnp.float64)
    opt = proxlin.levenberg_marquardt(network, proxlin.Logistic())
    plain_updates, _ = opt.update(None, opt.init(params), params, inputs=x, targets=y)
    updates, _ = jax.jit(opt.update)(None, opt.init(params), params, inputs=x, targets=y)
    assert relative_error(flat(updates), flat(plain_updates)) < 1e-10


@pytest.mark.parametrize("name", ["logistic", "binary", "function"])
def test_losses_that_are_not_squared(name):
    _, x, y = problem(name, jnp.float64, m=40, features=3)
    # Overlapping classes, so that there is a minimum.
    x = jnp.concatenate([x, x])
    y = jnp.concatenate([y, jnp.roll(y, 1, axis=0)])
    model = lambda w, x: x @ w + 0.1 * jnp.sin(x @ w)
    opt = proxlin.levenberg_marquardt(model, LOSSES[name])
    (w, state), values = run(
        opt, 0.1 * jnp.cos(jnp.arange(9.0)).reshape(3, 3), 100, inputs=x, targets=y
    )
    grad, _ = dense(name, w, x, y, model=model)
    assert np.linalg.norm(grad) < 1e-7 and values[-1] < values[0]
    assert 1e-3 < float(state.gamma) < 1e29


def test_a_step_makes_no_products_but_the_gradient_and_the_rows():
    params, x, y = teacher()
    opt = proxlin.levenberg_marquardt(network)
    _, state = jax.jit(opt.update)(None, opt.init(params), params, inputs=x, targets=y)
    info = state.info
    assert (int(info.jvps), int(info.vjps)) == (0, 1 + 3) and int(info.evaluations) == 2


@pytest.mark.parametrize("kind", [proxlin.Cholesky, proxlin.QR])
def test_the_gradient_of_the_batch_shows_whether_rows_are_its_own(kind):
    """Also in the first step of a model whose examples influence each other only later."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(9, 3)))
    shared = lambda w, x: x @ w[:3] + w[3:] * jnp.mean(jnp.sin(x), axis=0, keepdims=True)[:, :1]
    opt = proxlin.levenberg_marquardt(shared, solver=kind(independent=True))
    w = jnp.ones((4, 1)).at[3].set(0)
    _, state = opt.update(None, opt.init(w), w, inputs=x, targets=jnp.zeros((9, 1)))
    assert int(state.info.status) == proxlin.Status.BAD_VALUE and int(state.rejected) == 1


def test_a_sum_of_terms():
    params, x, y = teacher()
    slope = lambda w, x: jax.jvp(lambda x: network(w, x), (x,), (jnp.ones_like(x),))[1]
    objective = proxlin.Sum(
        proxlin.Term(network, proxlin.Squared()), proxlin.Term(slope, proxlin.Squared(), weight=0.1)
    )
    goal = slope(problem("squared", jnp.float64, seed=5)[0], x)
    opt = proxlin.levenberg_marquardt(objective)
    _, values = run(opt, params, 150, inputs=(x, x), targets=(y, goal))
    assert values[-1] < 1e-18


def test_conjugate_gradients_in_place_of_a_matrix():
    params, x, y = teacher()
    opt = proxlin.levenberg_marquardt(network, solver=proxlin.CG(60))
    assert run(opt, params, 100, inputs=x, targets=y)[1][-1] < 1e-6


# ---- the rule -----------------------------------------------------------------------------------


@functools.cache
def steps_of_rule():
    """gamma -> the direction and what Nielsen's rule decides, compiled once."""
    batch = problem("squared", jnp.float64)
    rule = proxlin.TrustRegion(nielsen=True, grow=3.0)
    oracle = Oracle(network, proxlin.Squared(), solver=proxlin.Cholesky())

    @jax.jit
    def fn(gamma, state):
        found = oracle.direction(*batch, (), gamma, None)
        step = rule.step(found, jnp.asarray(0), state)
        decrease = found.total - found.objective(step.displacement)
        promised = found.slope - 0.5 * found.model.curvature(found.d, found.change()[1])
        return step.gamma, step.accepted, step.state, step.rejected_state, decrease / promised

    return fn


@pytest.mark.parametrize("gamma", [0.3, 3.0, 30.0, 300.0, 3e3, 3e4, 3e6])
def test_gamma_follows_the_rule_of_nielsen(gamma):
    following, accepted, state, rejected_state, ratio = steps_of_rule()(gamma, jnp.asarray(0.125))
    assert float(state) == 0.5 and float(rejected_state) == 0.0625
    if accepted:
        want = 1 / max(1 / 3, 1 - (2 * min(float(ratio), 1) - 1) ** 3)
        assert ratio > 0
    else:
        want = 0.125
    assert float(following) == pytest.approx(gamma * want, rel=1e-9)


def test_rejections_shrink_gamma_faster_and_faster():
    model = lambda w, x: jnp.where(w[None] == 1, 1.0, jnp.nan) + w[None] * x
    opt = proxlin.prox_linear(
        model, proxlin.Squared(), step=proxlin.TrustRegion(nielsen=True), solver=proxlin.Cholesky()
    )
    w, x = jnp.ones(1), jnp.ones((3, 1))
    state, gammas = opt.init(w), []
    for _ in range(4):
        _, state = opt.update(None, state, w, inputs=x, targets=x)
        gammas.append(float(state.gamma))
    assert gammas == [2.0**-1, 2.0**-3, 2.0**-6, 2.0**-10] and int(state.rejected) == 4


@pytest.mark.parametrize("options", [{"acceleration": 0.0}, {"acceleration": -1.0}])
def test_bad_options(options):
    with pytest.raises(ValueError, match=r"acceleration=.*give a positive number"):
        proxlin.levenberg_marquardt(network, **options)


def test_a_model_is_needed_and_a_sum_has_losses():
    term = proxlin.Term(network, proxlin.Squared())
    with pytest.raises(TypeError, match="a Sum has the losses of its terms"):
        proxlin.levenberg_marquardt(proxlin.Sum(term), proxlin.Squared())


@pytest.mark.parametrize("n", [5, 255, 257, 390, 521])
def test_the_lower_triangle_of_a_gram_matrix(n):
    a = jnp.asarray(np.random.default_rng(0).normal(size=(40, n)))
    got = np.tril(lower_gram(a))
    np.testing.assert_allclose(got, np.tril(a.T @ a), atol=1e-12)
