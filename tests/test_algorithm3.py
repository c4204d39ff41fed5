"""Algorithm 3: prox-linear steps on a loss plus a regularizer of the parameters."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.linear_model import ElasticNet, Lasso

import proxlin
from proxlin.direction import Oracle
from proxlin.regularizers import Regularizer
from tests import cases

ALPHA = 0.3
L1 = proxlin.L1(ALPHA)
STEPS = {"fixed": proxlin.Fixed, "armijo": proxlin.Armijo, "trust": proxlin.TrustRegion}
zeros = lambda grad: jax.tree.map(jnp.zeros_like, grad)
biased = proxlin.DualQuadratic(anchor=zeros)  # as the paper has it


def linear(w, inputs):
    return inputs @ w


def regression(n: int = 30, p: int = 8):
    """Parameters, inputs and targets; the true coefficients are sparse."""
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(n, p))
    truth = np.where(np.arange(p) % 2, 0, 2.0) * rng.choice([-1, 1], p)
    targets = inputs @ truth + 0.5 * rng.normal(size=n)
    start = rng.normal(size=(p, 1))
    return jnp.asarray(start), jnp.asarray(inputs), jnp.asarray(targets[:, None])


def soft(z, t):
    return np.sign(z) * np.maximum(np.abs(z) - t, 0)


@functools.cache
def compiled(model, loss, **options):
    return jax.jit(proxlin.value_and_direction(model, loss, **options))


def direction(loss, regularizer, gamma, problem, model=cases.network, **options):
    return compiled(model, loss, regularizer=regularizer, **options)(*problem, gamma=gamma)


# ---------------------------------------------------------------- the special cases


@dataclasses.dataclass(frozen=True)
class Nothing(Regularizer):
    """Zero that is not known to be zero, so that Algorithm 3 is run in full."""

    where: None = None

    def leaf_value(self, leaf):
        return jnp.zeros((), leaf.dtype)

    def leaf_prox(self, leaf, stepsize):
        return leaf


@pytest.mark.parametrize("subproblem", cases.SUBPROBLEMS)
def test_zero_is_algorithm_2_to_the_bit(subproblem):
    problem = cases.problem("logistic", jnp.float64)
    options: dict[str, Any] = {"subproblem": cases.SUBPROBLEMS[subproblem]}
    default = jax.jit(proxlin.value_and_direction(cases.network, proxlin.Logistic(), **options))
    want = default(*problem, gamma=3.0)
    got = direction(proxlin.Logistic(), proxlin.Zero(), 3.0, problem, **options)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert want[0][1].penalty == 0


@pytest.mark.parametrize("solver", [proxlin.CG(3), proxlin.Cholesky()], ids=["cg", "cholesky"])
def test_algorithm_3_without_a_regularizer_is_algorithm_2(solver):
    problem = cases.problem("logistic", jnp.float64)
    got, want = (
        direction(proxlin.Logistic(), regularizer, 3.0, problem, solver=solver)
        for regularizer in (Nothing(), proxlin.Zero())
    )
    assert cases.relative_error(cases.flat(got[1]), cases.flat(want[1])) < 1e-12
    assert (got[0][1].jvps, got[0][1].vjps) == (want[0][1].jvps, want[0][1].vjps)


@pytest.mark.parametrize("rule", STEPS)
def test_steps_with_zero_are_those_without_a_regularizer(rule):
    params, inputs, targets = cases.problem("logistic", jnp.float64)

    def step(**options):
        rule_ = STEPS[rule](8.0)
        opt = proxlin.prox_linear(cases.network, proxlin.Logistic(), step=rule_, **options)
        update = lambda w: opt.update(None, opt.init(w), w, inputs=inputs, targets=targets)
        return jax.jit(update)(params)

    got, want = step(regularizer=proxlin.Zero()), step()
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert np.linalg.norm(cases.flat(got[0])) > 1e-3


@pytest.mark.parametrize("gamma", [0.5, 5.0])
def test_without_inner_steps_it_is_the_proximal_gradient_step(gamma):
    problem = cases.problem("logistic", jnp.float64)
    small = proxlin.L1(0.02)
    (_, info), d = direction(proxlin.Logistic(), small, gamma, problem, solver=proxlin.CG(0))
    w, grad = cases.flat(problem[0]), cases.flat(info.grad)
    want = w - soft(w - gamma * grad, gamma * 0.02)
    np.testing.assert_allclose(cases.flat(d), want, rtol=1e-13, atol=1e-15)
    assert (info.jvps, info.vjps) == (0, 1)
    np.testing.assert_allclose(info.penalty, 0.02 * np.abs(w).sum(), rtol=1e-14)


# ---------------------------------------------------------------- fixed points


def lasso_minimizer():
    """The minimizer of the Lasso to rounding: the support of sklearn, then a linear system."""
    _, x, y = (np.asarray(a) for a in regression())
    found = Lasso(ALPHA, fit_intercept=False, tol=1e-10, max_iter=10**5).fit(x, y[:, 0]).coef_
    on = found != 0
    signs, n = np.sign(found[on]), len(x)
    w = np.zeros_like(found)
    w[on] = np.linalg.solve(x[:, on].T @ x[:, on], x[:, on].T @ y[:, 0] - n * ALPHA * signs)
    slope = x.T @ (x @ w - y[:, 0]) / n
    assert np.all(np.sign(w[on]) == signs)
    assert np.all(np.abs(slope[~on]) < ALPHA)
    assert 0 < on.sum() < len(on)
    return w[:, None]


@pytest.mark.parametrize("gamma", [1.0, 3.0])
def test_the_minimizer_is_a_fixed_point_for_the_gradient_as_anchor_only(gamma):
    _, x, y = regression()
    w = jnp.asarray(lasso_minimizer())
    for solver in (proxlin.CG(2), proxlin.Cholesky()):
        run = functools.partial(
            direction, proxlin.Squared(), L1, gamma, (w, x, y), linear, solver=solver
        )
        assert np.linalg.norm(run()[1]) < 1e-13
        # the anchor of the paper moves away from the minimizer, and not by rounding
        assert np.linalg.norm(run(subproblem=biased)[1]) > 0.01


def test_fixed_points_of_the_exact_subproblems():
    _, x, y = regression()
    w = jnp.asarray(lasso_minimizer())
    for subproblem in (proxlin.primal_quadratic, proxlin.dual_convex):
        (_, info), d = direction(
            proxlin.Squared(), L1, 3.0, (w, x, y), linear, subproblem=subproblem
        )
        assert np.linalg.norm(d) < 1e-12
        assert abs(info.gap) < 1e-13


# ---------------------------------------------------------------- the exact subproblem


@pytest.mark.parametrize("gamma", [0.3, 10.0])
@pytest.mark.parametrize(
    "subproblem, solver",
    [
        (proxlin.dual_quadratic, proxlin.Cholesky()),
        (biased, proxlin.Cholesky()),
        (proxlin.primal_quadratic, proxlin.ProximalGradient(5000, gap=1e-15)),
        (proxlin.dual_convex, proxlin.ProximalGradient(5000, gap=1e-15)),
    ],
    ids=["dual", "zeros", "primal", "convex"],
)
def test_ridge_is_a_ridge_of_the_loss(subproblem, solver, gamma):
    """The bound of Algorithm 3 is exact for squares, wherever its anchor is."""
    problem = cases.problem("squared", jnp.float64)
    strength = 0.4
    gradient, gauss_newton = cases.dense("squared", *problem)
    w = cases.flat(problem[0])
    matrix = np.asarray(gauss_newton) + (1 / gamma + strength) * np.eye(w.size)
    want = np.linalg.solve(matrix, np.asarray(gradient) + strength * w)
    (_, info), d = direction(
        proxlin.Squared(),
        proxlin.SquaredL2(strength),
        gamma,
        problem,
        subproblem=subproblem,
        solver=solver,
    )
    assert cases.relative_error(cases.flat(d), want) < 1e-7
    np.testing.assert_allclose(info.penalty, 0.5 * strength * w @ w, rtol=1e-13)


def test_passes_approach_the_exact_subproblem():
    w, x, y = regression()
    run = functools.partial(direction, proxlin.Squared(), L1, 1.0, (w, x, y), linear)
    (_, info), exact = run(
        subproblem=proxlin.primal_quadratic, solver=proxlin.ProximalGradient(5000, gap=1e-13)
    )
    assert info.gap < 1e-12

    # One pass after the other, each anchored where the last one ended.
    def chained(u, _):
        subproblem = proxlin.DualQuadratic(anchor=lambda grad: u)
        oracle = Oracle(linear, proxlin.Squared(), subproblem, proxlin.Cholesky(), L1)
        solved = oracle.direction(w, x, y, (), 1.0, None)
        return solved.solved.dual_image, solved.d

    ends = jax.jit(lambda u: jax.lax.scan(chained, u, length=200)[1])(info.grad)
    errors = [cases.relative_error(cases.flat(d), cases.flat(exact)) for d in ends]
    assert errors[0] > 1e-3  # one pass is an approximation
    assert errors[3] < 0.5 * errors[0]
    assert errors[-1] < 1e-6
    # and this is what `passes` does
    third = run(subproblem=proxlin.DualQuadratic(passes=3), solver=proxlin.Cholesky())[1]
    np.testing.assert_allclose(third, ends[2], rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- scikit-learn

L2 = 0.1
SKLEARN = {
    "lasso": (L1, Lasso(ALPHA, fit_intercept=False, tol=1e-14, max_iter=10**6)),
    "elastic": (
        proxlin.ElasticNet(ALPHA, L2),
        ElasticNet(
            ALPHA + L2,
            l1_ratio=ALPHA / (ALPHA + L2),
            fit_intercept=False,
            tol=1e-14,
            max_iter=10**6,
        ),
    ),
}


@functools.partial(jax.jit, static_argnums=(0, 1))
def train(regularizer, rule, gamma, start, inputs, targets):
    opt = proxlin.prox_linear(
        linear, proxlin.Squared(), step=STEPS[rule](gamma), regularizer=regularizer
    )

    def step(carry, _):
        w, state = carry
        updates, state = opt.update(None, state, w, inputs=inputs, targets=targets)
        return (optax.apply_updates(w, updates), state), state.info.value + state.info.penalty

    (w, _), totals = jax.lax.scan(step, (start, opt.init(start)), length=700)
    return w, totals


@pytest.mark.parametrize(
    "rule, gamma", [("fixed", 0.1), ("fixed", 1.0), ("armijo", 10.0), ("armijo", 100.0)]
)
@pytest.mark.parametrize("name", SKLEARN)
def test_full_batch_steps_reach_scikit_learn(name, rule, gamma):
    regularizer, reference = SKLEARN[name]
    problem = regression()
    _, x, y = (np.asarray(a) for a in problem)
    want = reference.fit(x, y[:, 0]).coef_
    w, totals = train(regularizer, rule, jnp.asarray(gamma), *problem)
    assert cases.relative_error(np.asarray(w)[:, 0], want) < 1e-6
    np.testing.assert_array_equal(np.asarray(w)[:, 0] == 0, want == 0)
    if rule == "armijo":  # the objective that the search tests is h + rho
        assert np.all(np.diff(totals) <= 1e-13)


# ---------------------------------------------------------------- the search on the prox arc

SMALL = proxlin.L1(0.05)


def oracle(solver=proxlin.CG(2), loss=None):
    return Oracle(cases.network, loss or proxlin.Logistic(), solver=solver, regularizer=SMALL)


def composite(params, inputs, targets) -> float:
    value = jnp.mean(proxlin.Logistic().value(cases.network(params, inputs), targets))
    return float(value) + 0.05 * np.abs(cases.flat(params)).sum()


def trial(params, pull, gamma, eta):
    """The point of the prox arc, by hand."""
    return jax.tree.map(
        lambda w, u: jnp.asarray(soft(np.asarray(w - eta * gamma * u), eta * gamma * 0.05)),
        params,
        pull,
    )


def promised(params, after, grad) -> float:
    way = cases.flat(params) - cases.flat(after)
    before, then = (0.05 * np.abs(cases.flat(w)).sum() for w in (params, after))
    return float(cases.flat(grad) @ way + before - then)


def test_armijo_takes_the_first_point_of_the_arc_that_passes():
    problem = cases.problem("logistic", jnp.float64)
    params, inputs, targets = problem
    gamma = 200.0
    rule = proxlin.Armijo(gamma, beta=0.3)
    opt = proxlin.prox_linear(
        cases.network, proxlin.Logistic(), step=rule, regularizer=SMALL, solver=proxlin.CG(2)
    )

    @jax.jit
    def run(params):
        d = oracle().direction(params, inputs, targets, (), gamma, None)
        updates, state = opt.update(None, opt.init(params), params, inputs=inputs, targets=targets)
        return d.solved.dual_image, d.info.grad, updates, state

    pull, grad, updates, state = run(params)
    start = composite(*problem)
    etas = [rule.shrink**i for i in range(int(state.info.evaluations))]
    assert len(etas) > 2  # a search worth the name
    passed = []
    for eta in etas:
        after = trial(params, pull, gamma, eta)
        promise = promised(params, after, grad)
        enough = composite(after, inputs, targets) <= start - rule.beta * promise
        passed.append(bool(enough and promise > 0))
    assert passed == [False] * (len(etas) - 1) + [True]
    np.testing.assert_allclose(state.eta, etas[-1], rtol=1e-14)
    new = cases.flat(optax.apply_updates(params, updates))
    np.testing.assert_allclose(new, cases.flat(after), atol=1e-13)
    np.testing.assert_array_equal(new == 0, cases.flat(after) == 0)
    assert 0 < np.sum(new == 0) < new.size
    np.testing.assert_allclose(state.info.penalty, 0.05 * np.abs(cases.flat(params)).sum())


@pytest.mark.parametrize(
    "rule, dtype", [("fixed", jnp.float32), ("armijo", jnp.bfloat16), ("trust", jnp.float32)]
)
def test_zeros_are_exact_after_apply_updates(rule, dtype):
    params, inputs, targets = cases.problem("logistic", dtype)
    strong = proxlin.L1(1.0)  # at most a handful of weights survive this
    opt = proxlin.prox_linear(
        cases.network, proxlin.Logistic(), step=STEPS[rule](0.5), regularizer=strong
    )
    update = jax.jit(lambda w: opt.update(None, opt.init(w), w, inputs=inputs, targets=targets)[0])
    new = optax.apply_updates(params, update(params))
    assert all(w.dtype == dtype for w in jax.tree.leaves(new))
    small = np.abs(cases.flat(params)) < 0.2
    assert small.sum() > 5
    assert np.all(cases.flat(new)[small] == 0)


def test_search_falls_back_to_the_arc_of_the_gradient():
    """A dual variable that points uphill is not followed at any stepsize."""
    problem = cases.problem("logistic", jnp.float64)
    params, inputs, targets = problem
    gamma, backtracks = 0.5, 5
    rule = proxlin.Armijo(gamma, max_backtracks=backtracks)

    @jax.jit
    def run(params):
        good = oracle().direction(params, inputs, targets, (), gamma, None)
        uphill = jax.tree.map(lambda g, w: -3 * g - 2 * w, good.model.grad, params)
        step = rule.step(
            dataclasses.replace(good, solved=good.solved._replace(dual_image=uphill)),
            jnp.asarray(0),
        )
        return uphill, good.info.grad, step.eta, step.displacement, step.accepted, step.evaluations

    uphill, grad, eta, displacement, accepted, evaluations = run(params)
    assert promised(params, trial(params, uphill, gamma, 1.0), grad) < 0
    assert accepted
    assert eta == 1
    assert evaluations == backtracks + 2
    after = trial(params, grad, gamma, 1.0)
    np.testing.assert_allclose(
        cases.flat(params) - cases.flat(displacement), cases.flat(after), atol=1e-14
    )
    assert composite(after, inputs, targets) < composite(*problem)


def test_search_rejects_when_the_gradient_fails_too():
    """With a single trial and a gamma that overshoots, nothing passes and nothing moves."""
    params, inputs, targets = cases.problem("logistic", jnp.float64)
    opt = proxlin.prox_linear(
        cases.network,
        proxlin.Logistic(),
        step=proxlin.Armijo(1e3, max_backtracks=0, beta=0.99),
        regularizer=proxlin.L1(1e-6),
        solver=proxlin.CG(1),
    )
    updates, state = jax.jit(
        lambda w: opt.update(None, opt.init(w), w, inputs=inputs, targets=targets)
    )(params)
    assert state.rejected == 1
    assert state.info.evaluations == 2
    assert state.eta == 0
    assert np.all(cases.flat(updates) == 0)


# ---------------------------------------------------------------- the trust region


def test_trust_region_compares_the_regularized_objective_with_its_model():
    """Thresholds on either side of the ratio by hand tell what the ratio is."""
    problem = cases.problem("logistic", jnp.float64)
    params, inputs, targets = problem
    gamma = 8.0
    fn = jax.jit(proxlin.value_and_direction(cases.network, proxlin.Logistic(), regularizer=SMALL))
    d = fn(*problem, gamma=gamma)[1]
    after = jax.tree.map(jnp.subtract, params, d)
    gradient, gauss_newton = (np.asarray(a) for a in cases.dense("logistic", *problem))
    way = cases.flat(d)
    model = way @ gradient - 0.5 * way @ (gauss_newton @ way + way / gamma)
    penalties = [0.05 * np.abs(cases.flat(w)).sum() for w in (params, after)]
    predicted = model + penalties[0] - penalties[1]
    decrease = composite(*problem) - composite(after, inputs, targets)
    ratio = decrease / predicted
    assert 0.05 < ratio < 0.99
    # without the regularizer on either side the ratio would be another one
    plain = decrease - penalties[0] + penalties[1]
    others = [plain / model, plain / predicted, decrease / model]
    assert min(abs(other - ratio) for other in others) > 1e-3

    def following(low):
        rule = proxlin.TrustRegion(gamma, low=low, high=0.999)
        opt = proxlin.prox_linear(cases.network, proxlin.Logistic(), step=rule, regularizer=SMALL)
        return jax.jit(lambda w: opt.update(None, opt.init(w), w, inputs=inputs, targets=targets))(
            params
        )[1]

    kept, shrunk = following(ratio - 1e-9), following(ratio + 1e-9)
    assert (kept.gamma, shrunk.gamma) == (gamma, gamma / 2)
    np.testing.assert_allclose(kept.info.predicted, predicted, rtol=1e-10)


def test_passes_add_up_and_the_worst_status_counts():
    """Each pass has its steps and products; one that is INEXACT makes all of it so."""
    _, x, y = regression()
    w = jnp.zeros((x.shape[1], y.shape[1]))
    report = lambda passes, gamma: proxlin.value_and_direction(
        linear, proxlin.Squared(), subproblem=proxlin.DualQuadratic(passes=passes), regularizer=L1
    )(w, x, y, gamma=gamma)[0][1]
    one, three = report(1, 1.0), report(3, 1.0)
    assert (int(one.steps), int(three.steps)) == (2, 6)
    assert (int(one.jvps), int(three.jvps)) == (2, 6)
    assert int(one.vjps) - 1 == 2 and int(three.vjps) - 1 == 6  # but for that of the gradient
    Cost, Status = proxlin.Cost, proxlin.Status
    numbers = {"steps": 1, "residual": 0.5, "jvps": 2, "vjps": 3}
    cost = lambda status: Cost(**jax.tree.map(jnp.asarray, {**numbers, "status": int(status)}))
    for first, second in ((Status.OK, Status.INEXACT), (Status.INEXACT, Status.OK)):
        both = cost(second).after(cost(first))
        assert (both.steps, both.jvps, both.vjps, int(both.status)) == (2, 4, 6, Status.INEXACT)
