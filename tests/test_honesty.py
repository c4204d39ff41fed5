"""No silent wrong answer: what a status says is true, and what is wrong says so."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin import Status
from tests import cases, hunt, nist

linear = lambda w, x: x @ w


def least_squares(a, y, gamma):
    """The exact direction of the squared loss at zero, in float64."""
    a, y = np.asarray(a, np.float64), np.asarray(y, np.float64)
    m, p = a.shape
    return np.linalg.solve(a.T @ a / m + np.eye(p) / gamma, -a.T @ y / m)


# Conjugate gradients go on.


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("dtype", "gamma", "bound"),
    [("float64", 1e4, 1e-10), ("float64", 1e6, 1e-8), ("float32", 1e4, 5e-2)],
)
def test_dual_cg_converges_where_plain_cg_does(dtype, gamma, bound, seed):
    """Rounding bends the slope of some iterates below zero; those after them are right again."""
    rng = np.random.default_rng(seed)
    a = jnp.asarray(rng.normal(size=(15, 19)) * np.logspace(0, -2, 19), dtype)
    y = jnp.asarray(rng.normal(size=(15, 1)), dtype)
    fn = proxlin.value_and_direction(linear, proxlin.Squared(), solver=proxlin.CG(200))
    (_, info), d = fn(jnp.zeros((19, 1), dtype), a, y, gamma=gamma)
    assert info.status == Status.OK and info.slope > 0
    assert cases.relative_error(np.asarray(d), least_squares(a, y, gamma)) < bound


def test_what_rounding_has_eaten_is_not_ok():
    """Float32 and gamma 1e8: the misfit is far below the rounding of what it is the rest of."""
    rng = np.random.default_rng(0)
    a = jnp.asarray(rng.normal(size=(15, 19)) * np.logspace(0, -2, 19), jnp.float32)
    y = jnp.asarray(rng.normal(size=(15, 1)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 2, 15))
    start = jnp.asarray(rng.normal(size=(19, 2)), jnp.float32)
    for loss, params, targets, solver in (
        (proxlin.Squared(), start[:, :1], y, proxlin.CG(200)),
        (proxlin.Logistic(), start, labels, proxlin.Cholesky()),
    ):
        fn = proxlin.value_and_direction(linear, loss, solver=solver)
        (_, info), _ = fn(params, a, targets, gamma=1e8)
        assert info.status == Status.INEXACT and info.slope > 0


def test_an_ascent_direction_is_never_ok():
    """Whatever has computed it: here a subproblem of one's own, which has a sign wrong."""

    class Uphill(proxlin.DualQuadratic):
        def solve(self, model, proximity, solver=None):
            solved = super().solve(model, proximity, solver)
            return solved._replace(d=jax.tree.map(jnp.negative, solved.d))

    fn = proxlin.value_and_direction(linear, proxlin.Squared(), subproblem=Uphill())
    (_, info), d = fn(jnp.zeros((2, 1)), jnp.eye(2), jnp.ones((2, 1)))
    assert info.status == Status.ASCENT and info.slope < 0
    np.testing.assert_array_equal(d, 0)


# Direct solves.

MISCOMPILED = """
import jax, jax.numpy as jnp, numpy as np, proxlin
rng = np.random.default_rng(0)
draw = lambda *shape: jnp.asarray(rng.normal(size=shape) / 4, jnp.float32)
params = draw(20, 16), draw(16, 4)
net = lambda w, x: jnp.tanh(x @ w[0]) @ w[1]
for m in (64, 128):  # fewer outputs than parameters, and more: rows made by rows and by columns
    x, y = 4 * draw(m, 20), jnp.asarray(rng.integers(0, 4, m))
    for loss in (proxlin.Logistic(), proxlin.Sparsemax()):
        solver = proxlin.Cholesky(independent=True)
        fn = proxlin.value_and_direction(net, loss, solver=solver)
        direction = lambda w: fn(w, x, y, gamma=1e3)
        (_, plain), d = direction(params)
        (_, compiled), e = jax.jit(direction)(params)
        assert int(plain.status) == int(compiled.status) == 0, (loss, m, compiled.status)
        error = sum(jnp.sum((a - b) ** 2) for a, b in zip(d, e)) / sum(jnp.sum(a**2) for a in d)
        assert error < 1e-4, (loss, m, error, plain.slope, compiled.slope)
"""


def test_rows_are_compiled_right():
    """With the compiler as users have it: the flags of the tests leave out what goes wrong."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", MISCOMPILED],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("subproblem", cases.SUBPROBLEMS)
def test_a_factor_by_eigh_in_blocks(subproblem):
    """Equal eigenvalues have no eigenvectors of their own, and blocks got others than the batch."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape))
    params, x, y = {"w1": draw(5, 4), "b1": draw(4), "w2": draw(4, 3)}, draw(9, 5), draw(9, 1)
    y = cases.network(params, x) + y  # all outputs of an example equally far from their targets
    loss = proxlin.FromFunction(hunt.pseudo_huber)

    @jax.jit
    def directions(params):
        out = []
        for solver in (
            proxlin.Cholesky(),
            proxlin.Cholesky(independent=True, max_elements=2 * 3 * 36),
        ):
            fn = proxlin.value_and_direction(
                cases.network,
                loss,
                subproblem=cases.SUBPROBLEMS[subproblem],
                solver=solver,
            )
            (_, info), d = fn(params, x, y, gamma=1e3)
            out.append((d, info.status))
        return out

    (want, _), (got, status) = directions(params)
    assert status == Status.OK
    assert cases.relative_error(cases.flat(got), cases.flat(want)) < 1e-10


def test_rows_that_are_not_those_of_the_products():
    """The check is of what is solved: here one example of many is wrong."""
    a = np.random.default_rng(0).normal(size=(6, 4))
    for wrong in (False, True):
        block = lambda indices, wrong=wrong: jnp.asarray(
            a + wrong * 0.1 * (np.arange(6) == 3)[:, None]
        )[indices]
        system = proxlin.NormalSystem(
            lambda x: a @ x,
            lambda y: a.T @ y,
            jnp.asarray(0.5),
            rhs=jnp.ones(4),
            rows=lambda block=block: proxlin.solvers.Rows(
                (proxlin.solvers.TermRows(block, 6, 1),), of_x=False, tolerance=1e-8
            ),
        )
        got = proxlin.Cholesky(independent=True).solve(system)
        assert int(got.cost.status) == (Status.BAD_VALUE if wrong else Status.OK)


# Trust regions.


def train(opt, params, steps, **batch):
    @jax.jit
    def run(params):
        def step(carry, _):
            params, state = carry
            updates, state = opt.update(None, state, params, **batch)
            return (optax.apply_updates(params, updates), state), (state.gamma, state.info.value)

        return jax.lax.scan(step, (params, opt.init(params)), None, length=steps)

    return run(params)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_rank_deficient_jacobian_does_not_end_training(dtype):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(12, 3))
    x = jnp.asarray(np.concatenate([a, a], axis=1), dtype)  # duplicated columns
    y = jnp.asarray(np.tanh(a @ rng.normal(size=(3, 1))), dtype)
    model = lambda w, x: jnp.tanh(x @ w)
    opt = proxlin.prox_linear(
        model, proxlin.Squared(), step=proxlin.TrustRegion(), solver=proxlin.Cholesky()
    )
    (_, state), _ = train(opt, jnp.zeros((6, 1), dtype), 200, inputs=x, targets=y)
    assert float(state.info.value) < 1e3 * float(jnp.finfo(dtype).eps) ** 2
    assert state.rejected < 60


@pytest.mark.parametrize("solver", [proxlin.CG(1), proxlin.CG(2), proxlin.CG(5)])
@pytest.mark.parametrize("subproblem", cases.SUBPROBLEMS)
def test_gamma_grows_back(subproblem, solver):
    """At a gamma of 1e-6 one step of conjugate gradients is all there is to do."""
    params, x, y = cases.problem("squared", jnp.float32)
    opt = proxlin.prox_linear(
        cases.network,
        proxlin.Squared(),
        step=proxlin.TrustRegion(gamma=1e-6),
        subproblem=cases.SUBPROBLEMS[subproblem],
        solver=solver,
    )
    (_, state), _ = train(opt, params, 60, inputs=x, targets=y)
    assert state.gamma > 1e-2


class Broken(proxlin.extend.LinearSolver):
    """A solver that has no answer above some gamma."""

    def solve(self, system):
        solution = proxlin.CG(20).solve(system)
        factor = jnp.where(system.shift < 0.1, jnp.nan, 1.0)
        return solution._replace(misfit=jax.tree.map(lambda x: factor * x, solution.misfit))


@pytest.mark.parametrize("rule", [proxlin.TrustRegion, proxlin.StochasticTrustRegion])
def test_a_step_that_is_not_finite_shrinks_gamma(rule):
    params, x, y = cases.problem("squared", jnp.float64)
    opt = proxlin.prox_linear(
        cases.network, proxlin.Squared(), step=rule(gamma=1e4), solver=Broken()
    )
    (_, state), (gammas, values) = train(opt, params, 40, inputs=x, targets=y)
    assert gammas[0] < 1e4 and state.taken > 0
    assert values[-1] < 0.5 * values[0]
    # A batch that is not finite says nothing of gamma.
    _, after = opt.update(None, state, params, inputs=x.at[0, 0].set(jnp.nan), targets=y)
    assert after.gamma == state.gamma and after.info.status == Status.NON_FINITE


@pytest.mark.parametrize("name", nist.MODELS)
def test_nist(name):
    """NIST's certified parameters, to ten digits and more, from both starting points."""
    problem, formula = nist.read(name), nist.MODELS[name]
    opt = proxlin.prox_linear(
        lambda b, x: formula(b, x)[:, None],
        proxlin.Squared(),
        step=proxlin.TrustRegion(),
        solver=proxlin.Cholesky(),
    )
    x, y = jnp.asarray(problem.inputs), jnp.asarray(problem.targets)[:, None]

    def step(_, carry):
        b, state = carry
        updates, state = opt.update(None, state, b, inputs=x, targets=y)
        return optax.apply_updates(b, updates), state

    # Two have long and narrow valleys, and rounding decides how they are walked.
    steps = 10_000 if name in ("MGH10", "MGH17") else 1_500
    run = jax.jit(lambda b: jax.lax.fori_loop(0, steps, step, (b, opt.init(b))))
    for start in problem.starts:
        b, state = run(jnp.asarray(start))
        assert nist.digits(np.asarray(b), problem.certified) > 10, (start, b)
        assert state.rejected < steps // 2


# Curvature rows.


def rows_of_curvature(m, size, weights=None):
    """Which examples curvature comes from, and what they count: each has a direction of its own."""
    fn = proxlin.value_and_direction(
        lambda w, x: x * w[None, :],
        proxlin.Squared(),
        curvature_size=size,
        subproblem=proxlin.primal_quadratic,
        solver=proxlin.Cholesky(),
    )
    x = jnp.eye(m)
    (_, info), d = fn(jnp.zeros(m), x, jnp.ones((m, m)), gamma=1.0, weights=weights)
    # d = g / (1 + share of the row)
    live = np.asarray(info.grad) != 0
    return np.where(live, np.asarray(info.grad) / np.where(live, np.asarray(d), 1) - 1, 0)


@pytest.mark.parametrize(("m", "size"), [(63, 32), (255, 31), (64, 8), (10, 7)])
def test_curvature_is_from_the_whole_batch(m, size):
    shares = rows_of_curvature(m, size)
    chosen = np.flatnonzero(shares > 1e-9)
    assert len(chosen) == size
    np.testing.assert_allclose(shares, cases.part_of_batch(np.ones(m), size), atol=1e-12)
    assert np.diff(chosen).max() <= -(-m // size) and m - chosen[-1] <= -(-m // size)


@pytest.mark.parametrize("seed", range(5))
def test_curvature_is_from_rows_with_weight(seed):
    rng = np.random.default_rng(seed)
    m, size = 64, 16
    every_other = jnp.asarray((np.arange(m) % 2 == 1).astype(float))
    shares = rows_of_curvature(m, size, every_other)
    np.testing.assert_allclose(shares[1::4], 1 / size, rtol=1e-6)  # all of them with weight

    heavy = rng.uniform(size=m)
    heavy[rng.integers(m)] = 1e4  # nearly all of the objective
    shares = rows_of_curvature(m, size, jnp.asarray(heavy))
    assert shares[np.argmax(heavy)] > 0.5


# Scales.


@pytest.mark.parametrize("scale", [1e-30, 1e30, 1e37])
def test_only_the_ratio_of_weights_matters(scale):
    params, x, y = cases.problem("logistic", jnp.float32)
    weights = jnp.asarray([1, 2, 0.5, 1, 1, 3], jnp.float32)
    fn = proxlin.value_and_direction(cases.network, proxlin.Logistic())
    (want, _), d = fn(params, x, y, weights=weights)
    (value, info), got = fn(params, x, y, weights=weights * jnp.float32(scale))
    assert info.status == Status.OK
    np.testing.assert_allclose(value, want, rtol=1e-5)
    assert cases.relative_error(cases.flat(got), cases.flat(d)) < 1e-5


# Squares are in float32: above 1e18 they overflow, as everywhere else in the algebra.
@pytest.mark.parametrize("scale", [1e-12, 1e10, 1e15])
@pytest.mark.parametrize("root", [2, 4])
def test_kronecker_does_not_depend_on_the_scale_of_gradients(root, scale):
    rng = np.random.default_rng(0)
    metric = proxlin.Kronecker(root=root, every=1)
    grads = [
        {"w": jnp.asarray(rng.normal(size=(6, 4)), jnp.float32), "b": jnp.ones(3, jnp.float32) * t}
        for t in (1, 30, 0.2)
    ]

    def directions(factor):
        state = metric.init(grads[0])
        for taken, unscaled in enumerate(grads):
            grad = jax.tree.map(lambda g: factor * g, unscaled)
            state = metric.update(state, grad, jnp.asarray(taken))
            yield cases.flat(metric.inverse(state, grad, jnp.asarray(taken))(grad)) / float(factor)

    for got, want in zip(directions(jnp.float32(scale)), directions(jnp.float32(1)), strict=True):
        assert cases.relative_error(got, want) < 1e-4


def test_squares_that_overflow_are_not_a_step_of_zero():
    metric = proxlin.Diagonal()
    grad = jnp.asarray([1e20, 1.0], jnp.float32)
    state = metric.update(metric.init(grad), grad, jnp.asarray(0))
    assert not np.isfinite(metric.inverse(state, grad, jnp.asarray(0))(grad)).all()


@pytest.mark.parametrize("scale", [1e3, 1e6, 1e9])
def test_auto_does_not_diverge_on_large_targets(scale):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    net = lambda w, x: jnp.tanh(x @ w["a"]) @ w["b"]
    params = {"a": draw(6, 16) / 2.4, "b": draw(16, 1) / 4}
    x = draw(64, 6)
    y = scale * (jnp.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3])
    opt = proxlin.auto(net, proxlin.Squared())
    _, (_, values) = train(opt, params, 200, inputs=x, targets=y)
    assert np.all(np.asarray(values) < 2 * values[0]), values.max()
    assert values[-1] < values[0]


@pytest.mark.parametrize("metric", [proxlin.Diagonal(), proxlin.Kronecker()])
def test_a_metric_keeps_its_dtypes(metric):
    """Float32 parameters and float64 inputs: outputs, and so the algebra, are float64."""
    params, x, y = cases.problem("squared", jnp.float32)
    opt = proxlin.prox_linear(
        lambda w, x: cases.network(jax.tree.map(lambda a: a.astype(jnp.float64), w), x),
        proxlin.Squared(),
        metric=metric,
        momentum=0.9,
        step=proxlin.StochasticTrustRegion(),
    )
    state = opt.init(params)
    batch = {"inputs": x.astype(jnp.float64), "targets": y.astype(jnp.float64)}
    updates, after = opt.update(None, state, params, **batch)
    dtypes = lambda tree: [leaf.dtype for leaf in jax.tree.leaves(tree)]
    assert dtypes(after) == dtypes(state) and dtypes(updates) == dtypes(params)
    assert after.taken == 1 and after.info.slope > 0


def test_auto_with_empty_leaves():
    params, x, y = cases.problem("squared", jnp.float32)
    model = lambda w, x: cases.network(w["net"], x) + jnp.sum(w["none"])
    opt = proxlin.auto(model, proxlin.Squared())
    whole = {"net": params, "none": jnp.zeros((0, 3), jnp.float32)}
    without = proxlin.auto(cases.network, proxlin.Squared())
    (got, _), _ = train(opt, whole, 10, inputs=x, targets=y)
    (want, _), _ = train(without, params, 10, inputs=x, targets=y)
    assert cases.relative_error(cases.flat(got["net"]), cases.flat(want)) < 1e-4


@pytest.mark.parametrize("sigma", [1e-14, 1e-10, 1e-8, 1e-7, 1e-5])
@pytest.mark.parametrize("loss", [proxlin.Logistic(), proxlin.BinaryLogistic()], ids=str)
def test_prox_conjugate_stays_in_its_domain(loss, sigma):
    rng = np.random.default_rng(0)
    z = jnp.asarray(3 * rng.normal(size=(20, 4)), jnp.float32)
    y = jax.nn.one_hot(jnp.asarray(rng.integers(0, 4, 20)), 4, dtype=jnp.float32)
    a = jax.jit(loss.prox_conjugate)(z, y, jnp.asarray(sigma, jnp.float32))
    assert np.isfinite(loss.conjugate(a, y)).all()
    # For a stepsize of nothing it is the projection onto the domain.
    box = isinstance(loss, proxlin.BinaryLogistic)
    projection = jnp.clip(z + y, 0, 1) if box else proxlin.losses.simplex.project_simplex(z + y)
    np.testing.assert_allclose(a + y, projection, atol=30 * sigma + 3e-5)


def test_dual_convex_does_not_end_above_its_start():
    """Steps of 1e-8 and less, where the conjugate's operator used to leave its domain."""
    params, x, y = cases.problem("logistic", jnp.float32)
    fn = proxlin.value_and_direction(
        cases.network,
        proxlin.Logistic(),
        subproblem=proxlin.dual_convex,
        solver=proxlin.ProximalGradient(30),
    )
    (value, info), _ = fn(params, x * 1e4, y, gamma=1e6)
    assert info.status != Status.OK or info.primal <= value * (1 + 1e-5)


def test_tokens_of_weight_zero_may_hold_anything():
    params, _, _ = cases.problem("squared", jnp.float64)
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(3, 4, 5))), jnp.asarray(rng.normal(size=(3, 4, 3)))
    weights = jnp.ones((3, 4)).at[0, 1].set(0).at[2].set(0)
    fn = proxlin.value_and_direction(cases.network, proxlin.Squared())
    (want, _), d = fn(params, x, y, weights=weights)
    bad = x.at[0, 1, 2].set(jnp.nan).at[2].set(jnp.inf)
    (value, info), got = fn(params, bad, y.at[0, 1].set(jnp.nan), weights=weights)
    assert info.status == Status.OK
    np.testing.assert_allclose(value, want, rtol=1e-12)
    assert cases.relative_error(cases.flat(got), cases.flat(d)) < 1e-12


# Convex subproblems, and metrics.


@settings(max_examples=12)
@given(
    st.sampled_from(["logistic", "sparsemax", "binary"]),
    st.sampled_from([proxlin.dual_convex, proxlin.primal_convex]),
    st.sampled_from([3, 400]),
    st.floats(-3, 3),
    st.integers(0, 10**6),
)
def test_the_gap_bounds_the_error_of_convex_subproblems(name, subproblem, steps, power, seed):
    """r is 1/gamma strongly convex, so that |d - d*|^2 <= 2 gamma (value - minimum)."""
    gamma, loss = 10**power, hunt.LOSSES[name]
    rng = np.random.default_rng(seed)
    a, w0 = rng.normal(size=(6, 3)), rng.normal(size=(3, 2))
    labels = rng.integers(0, 2, 6)
    y = jnp.asarray(np.eye(2)[labels]) if name == "binary" else jnp.asarray(labels)
    weights = rng.uniform(size=6) * (rng.uniform(size=6) < 0.8) + 1e-3
    fn = proxlin.value_and_direction(
        linear, loss, subproblem=subproblem, solver=proxlin.ProximalGradient(steps)
    )
    (_, info), d = fn(jnp.asarray(w0), jnp.asarray(a), y, gamma=gamma, weights=jnp.asarray(weights))

    @jax.jit
    def value_and_grad(flat):
        def value(flat):
            step = flat.reshape(3, 2)
            losses = loss.value(jnp.asarray(a @ w0) - jnp.asarray(a) @ step, y)
            return jnp.dot(jnp.asarray(weights / weights.sum()), losses) + jnp.sum(flat**2) / (
                2 * gamma
            )

        return jax.value_and_grad(value)(flat)

    fun = lambda flat: [np.asarray(part, float) for part in value_and_grad(jnp.asarray(flat))]
    found = scipy.optimize.minimize(
        lambda flat: (float(fun(flat)[0]), fun(flat)[1]),
        np.zeros(6),
        jac=True,
        method="BFGS",
        options={"gtol": 1e-11, "maxiter": 2000},
    )
    slack = 1e-7 * (1 + abs(found.fun))  # of the reference
    assert info.primal >= found.fun - slack and info.dual <= found.fun + slack
    assert info.primal - found.fun <= info.gap + slack
    assert np.sum((cases.flat(d) - found.x) ** 2) <= 2 * gamma * (float(info.gap) + 2 * slack)
    if steps == 400 and info.status == Status.OK:
        assert info.gap <= 1e-3 * (1 + abs(found.fun))


def test_a_gap_that_was_not_reached_is_not_ok():
    params, x, y = cases.problem("logistic", jnp.float64)
    for steps, want in ((10, Status.INEXACT), (3000, Status.OK)):
        fn = proxlin.value_and_direction(
            cases.network,
            proxlin.Logistic(),
            subproblem=proxlin.dual_convex,
            solver=proxlin.ProximalGradient(steps, gap=1e-9),
        )
        (_, info), _ = fn(params, x, y, gamma=10.0)
        assert info.status == want and (info.gap <= 1e-9) == (want == Status.OK)


@pytest.mark.parametrize("metric", [proxlin.Diagonal(), proxlin.Kronecker(every=1)], ids=str)
@pytest.mark.parametrize("subproblem", cases.SUBPROBLEMS)
def test_momentum_in_a_metric_that_changes(metric, subproblem):
    """The minimizer with |d - mu P^-1 P_last d_last|_P^2 / (2 gamma), as the docs have it."""
    oracle = proxlin.direction.Oracle(
        cases.network,
        proxlin.Logistic(),
        subproblem=cases.SUBPROBLEMS[subproblem],
        solver=proxlin.CG(200),
        metric=metric,
        momentum=0.5,
    )
    params, x, y = cases.problem("logistic", jnp.float64)
    other, x_next, y_next = cases.problem("logistic", jnp.float64, seed=1)
    first = oracle.direction(params, x, y, (), 0.5, None, oracle.init(params))
    state = first.next_state(jnp.asarray(0.7), jnp.asarray(True))
    second = oracle.direction(other, x_next, y_next, (), 2.0, None, state)

    unravel = ravel_pytree(params)[1]

    def inverse(state, params, source, taken):
        here = metric.at(state, params)
        apply = metric.inverse(here, unravel(source), jnp.asarray(taken))
        return np.stack([cases.flat(apply(unravel(e))) for e in jnp.eye(source.size)], axis=1)

    g_last, _ = cases.dense("logistic", params, x, y)
    g, curvature = cases.dense("logistic", other, x_next, y_next)
    p_last = np.linalg.inv(inverse(first.state.metric, params, g_last, 0))
    source = np.asarray(g) + 0.5 / 2.0 * p_last @ (0.7 * cases.flat(first.d))
    p = np.linalg.inv(inverse(second.state.metric, other, jnp.asarray(source), 1))
    want = np.linalg.solve(np.asarray(curvature) + p / 2.0, source)
    assert second.info.status == Status.OK
    assert cases.relative_error(cases.flat(second.d), want) < 1e-6
    # In the present metric alone it would be another one.
    other_source = np.asarray(g) + 0.5 / 2.0 * p @ (0.7 * cases.flat(first.d))
    assert cases.relative_error(other_source, source) > 1e-3


# Everything else.


@settings(max_examples=4)
@given(st.randoms(use_true_random=False).map(hunt.draw_config), st.integers(0, 2**31 - 1))
def test_hunt(config, seed):
    """A few cases of what ``python -m tests.hunt`` draws by the thousand."""
    for case in range(seed, seed + (5 if config.jit else 1)):
        assert hunt.failure(config, case) is None, case


def test_the_hunt_finds_what_is_wrong(monkeypatch):
    """The same cases, with directions that are one percent off."""
    result = importlib.import_module("proxlin.direction.result")
    honest = result.cast_like
    off = lambda tree, like: jax.tree.map(lambda x: 1.01 * x, honest(tree, like))
    monkeypatch.setattr(result, "cast_like", off)
    hunt.compiled.cache_clear()
    wrong = [case for case in hunt.hunt(12, seed=6, per_config=4) if case[2]]
    hunt.compiled.cache_clear()
    assert len(wrong) > 6


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 1], ids=["gradient", "no gradient"])
@pytest.mark.parametrize("part", ["vector", "covector"])
def test_one_entry_that_is_not_finite(bad, where, part):
    """In the direction or its image under the metric, also where the gradient is zero."""

    class Broken(proxlin.extend.Subproblem):
        def solve(self, model, proximity, solver=None):
            solved = proxlin.dual_quadratic.solve(model, proximity, solver)
            d = solved.d._replace(**{part: getattr(solved.d, part).at[where].set(bad)})
            return solved._replace(d=d)

    opt = proxlin.prox_linear(
        lambda w, x: x @ w,
        proxlin.Squared(),
        step=proxlin.Fixed(),
        subproblem=Broken(),
        metric=proxlin.Diagonal(),
        # which keeps the covector for later
        momentum=0.5 if part == "covector" else 0.0,
    )
    w, x, y = jnp.ones((2, 1)), jnp.array([[1.0, 0.0]]), jnp.zeros((1, 1))
    updates, state = jax.jit(opt.update)(None, opt.init(w), w, inputs=x, targets=y)
    assert state.info.status == Status.NON_FINITE
    assert int(state.rejected) == 1 and not np.any(updates)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(state.proximity.momentum))
