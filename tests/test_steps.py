"""Step rules against searches and ratios computed by hand."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize_scalar

import proxlin
from proxlin.direction import Oracle
from tests.cases import LOSSES, SUBPROBLEMS, dense, flat, network, problem, relative_error

EPS = float(np.finfo(np.float64).eps)


@functools.cache
def direction(name="logistic", gamma=1.0, **options):
    """A direction of the little network with all that a step rule may ask about it."""
    oracle = Oracle(network, LOSSES[name], **options)
    return oracle.direction(*problem(name, jnp.float64), (), gamma, None)


def never(*_):
    raise AssertionError("this must not be called")


def decide(rule, found):
    return rule.step(found, jnp.asarray(0))


@functools.cache
def decisions(name, rules, **options):
    """batch, gamma -> the direction and what several rules make of it, compiled as one."""
    oracle = Oracle(network, LOSSES[name], **options)

    @jax.jit
    def fn(batch, gamma):
        found = oracle.direction(*batch, args=(), gamma=gamma, weights=None)
        return found.d, found.info, [decide(rule, found) for rule in rules]

    return fn


@functools.cache
def direction_of(name):
    return jax.jit(proxlin.value_and_direction(network, LOSSES[name]))


dense_of = functools.cache(lambda name: jax.jit(lambda batch: dense(name, *batch)))


@functools.cache
def _objective(name):
    return jax.jit(lambda w, x, y: jnp.mean(LOSSES[name].value(network(w, x), y)))


def objective(name, params, inputs, targets):
    return float(_objective(name)(params, inputs, targets))


def moved(params, d, eta):
    return jax.tree.map(lambda w, x: w - eta * x, params, d)


def synthetic(value, slope, predicted, trial, residual=0.1):
    """A direction whose numbers are chosen freely; every trial point has the value ``trial``."""
    found = direction()
    real = lambda x: jnp.asarray(x, jnp.result_type(value))
    cost = found.cost._replace(residual=real(residual))
    return dataclasses.replace(
        found,
        value=real(value),
        slope=real(slope),
        solved=found.solved._replace(predicted=real(predicted), cost=cost),
        objective=lambda displacement: real(trial),
    )


# Fixed ------------------------------------------------------------------------------------------


def test_fixed_schedules_count_the_steps_taken():
    params, x, y = problem("logistic", jnp.float64)
    gamma = optax.linear_schedule(0.5, 0.1, 2)
    eta = optax.linear_schedule(0.25, 1.0, 3)
    opt = proxlin.prox_linear(network, proxlin.Logistic(), step=proxlin.Fixed(gamma, eta))
    fn = direction_of("logistic")
    update = jax.jit(opt.update)
    state = opt.init(params)
    bad = x.at[0, 0].set(jnp.nan)
    # The rejected second step must not advance the schedules.
    for t, inputs in [(0, x), (1, bad), (1, x), (2, x)]:
        updates, state = update(None, state, params, inputs=inputs, targets=y)
        if inputs is bad:
            assert float(state.eta) == 0
            continue
        _, d = fn(params, x, y, gamma=float(gamma(t)))
        assert float(state.gamma) == pytest.approx(float(gamma(t)))
        assert float(state.eta) == pytest.approx(float(eta(t)))
        np.testing.assert_allclose(flat(updates), -float(eta(t)) * flat(d), rtol=1e-6)
        params = optax.apply_updates(params, updates)


def test_fixed_scales_the_direction_and_evaluates_nothing():
    found = dataclasses.replace(direction(), objective=never)
    step = decide(proxlin.Fixed(1.0, eta=0.3), found)
    assert float(step.eta) == pytest.approx(0.3)
    assert bool(step.accepted)
    assert int(step.evaluations) == 0
    assert float(step.gamma) == 1.0


@pytest.mark.parametrize("rule", [proxlin.Armijo, proxlin.ModelStep])
def test_gamma_of_searches_follows_a_schedule(rule):
    params, x, y = problem("squared", jnp.float64)
    schedule = optax.exponential_decay(2.0, 1, 0.5)
    opt = proxlin.prox_linear(network, proxlin.Squared(), step=rule(schedule))
    fn = direction_of("squared")
    update = jax.jit(opt.update)
    state = opt.init(params)
    assert float(state.gamma) == 2.0
    for gamma in (2.0, 1.0, 0.5):
        _, d = fn(params, x, y, gamma=gamma)
        updates, state = update(None, state, params, inputs=x, targets=y)
        assert float(state.gamma) == pytest.approx(gamma)
        np.testing.assert_allclose(flat(updates), -float(state.eta) * flat(d), rtol=1e-12)
        params = optax.apply_updates(params, updates)


# Armijo -----------------------------------------------------------------------------------------


def backtrack(h, value, slope, rule):
    """The textbook loop, in Python floats."""
    eta = rule.max_eta
    for trials in range(1, rule.max_backtracks + 2):
        if h(eta) <= value - rule.beta * eta * slope + 4 * EPS * abs(value):
            return eta, trials
        eta *= rule.shrink
    return 0.0, trials


ARMIJO = {
    "paper": proxlin.Armijo(),
    "default": proxlin.Armijo(beta=0.1),
    "strict": proxlin.Armijo(beta=0.6, shrink=0.5),
    "long": proxlin.Armijo(beta=0.1, max_eta=8.0),
}
SEARCHES = (*ARMIJO.values(), proxlin.ModelStep())


@pytest.mark.parametrize("name", LOSSES)
def test_armijo_takes_the_first_stepsize_that_passes(name):
    params, x, y = batch = problem(name, jnp.float64)
    gradient = np.asarray(dense_of(name)(batch)[0])
    backtracked = 0
    for gamma in (0.1, 10.0, 1000.0):
        d, info, (*steps, _) = decisions(name, SEARCHES, solver=proxlin.CG(1))(batch, gamma)
        slope = float(flat(d) @ gradient)
        assert float(info.slope) == pytest.approx(slope, rel=1e-9)
        h = functools.cache(lambda eta, d=d: objective(name, moved(params, d, eta), x, y))
        for rule, step in zip(ARMIJO.values(), steps, strict=True):
            eta, trials = backtrack(h, h(0.0), slope, rule)
            assert bool(step.accepted) == (eta > 0)
            assert int(step.evaluations) == trials
            if eta > 0:
                assert float(step.eta) == pytest.approx(eta, rel=1e-12)
            backtracked += 0 < eta < rule.max_eta
    assert backtracked >= 3  # otherwise max_eta would be compared with itself


@pytest.mark.parametrize(("excess", "passes"), [(0.7, True), (1.5, False)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_armijo_allows_for_rounding(dtype, excess, passes):
    value = np.asarray(0.75, dtype)
    rounding = synthetic(value, 1e-30, 0.0, value).rounding
    assert 4 * np.finfo(dtype).eps * value < rounding < 100 * np.finfo(dtype).eps
    found = synthetic(value, 1e-30, 0.0, value + dtype(excess) * np.asarray(rounding))
    step = decide(proxlin.Armijo(max_backtracks=3), found)
    assert bool(step.accepted) is passes
    assert int(step.evaluations) == (1 if passes else 4)


@jax.custom_jvp
def uphill(w):
    return w


@uphill.defjvp
def _(primals, tangents):
    return primals[0], -tangents[0]  # the wrong sign: every promised descent is an ascent


@pytest.mark.parametrize("max_backtracks", [0, 1, 7])
def test_armijo_gives_up_after_bounded_backtracks(max_backtracks):
    model = lambda w, x: x @ uphill(w)
    x, y = jnp.eye(3), jnp.ones((3, 2))
    params = jnp.full((3, 2), 0.25)
    rule = proxlin.Armijo(max_backtracks=max_backtracks)
    opt = proxlin.prox_linear(model, proxlin.Squared(), step=rule)
    updates, state = jax.jit(opt.update)(None, opt.init(params), params, inputs=x, targets=y)
    assert float(state.info.slope) > 0
    assert int(state.info.evaluations) == max_backtracks + 1
    assert int(state.rejected) == 1
    assert int(state.taken) == 0
    assert float(state.eta) == 0
    np.testing.assert_array_equal(updates, 0)


def test_armijo_rejects_a_direction_of_ascent():
    # Not even where the objective happens to fall: the slope says that no small step will do.
    step = decide(proxlin.Armijo(), synthetic(1.0, slope=-0.5, predicted=0.0, trial=0.5))
    assert not bool(step.accepted)


def test_armijo_sees_the_same_dropout_at_all_trial_points():
    params, x, y = problem("logistic", jnp.float64, m=16, hidden=12)

    def model(w, inputs, key):
        hidden = jnp.tanh(inputs @ w["w1"] + w["b1"][None])
        keep = jax.random.bernoulli(key, 0.5, hidden.shape)
        return jnp.where(keep, hidden, 0) @ w["w2"]

    rule = proxlin.Armijo(gamma=300.0, beta=0.3)
    opt = proxlin.prox_linear(model, proxlin.Logistic(), step=rule, solver=proxlin.CG(1))
    fn = jax.jit(proxlin.value_and_direction(model, proxlin.Logistic(), solver=proxlin.CG(1)))
    update = jax.jit(opt.update)
    at = jax.jit(lambda w, key: jnp.mean(proxlin.Logistic().value(model(w, x, key), y)))
    etas, strange = [], []
    for seed in range(4):
        key = jax.random.key(seed)
        (value, info), d = fn(params, x, y, key, gamma=300.0)
        along = lambda key, d=d: lambda t: float(at(moved(params, d, t), key))
        eta, trials = backtrack(along(key), float(value), float(info.slope), rule)
        other = jax.random.key(100 + seed)
        strange.append(backtrack(along(other), float(value), float(info.slope), rule)[0])
        _, state = update(None, opt.init(params), params, inputs=x, targets=y, args=(key,))
        assert float(state.eta) == pytest.approx(eta, rel=1e-12)
        assert int(state.info.evaluations) == trials
        etas.append(eta)
    # The test can tell keys apart: with others at the trial points other stepsizes are found.
    assert etas != strange


@pytest.mark.parametrize("max_eta", [0.5, 1.0])
def test_armijo_starts_anew_at_every_step(max_eta):
    # f = w^3 at w = 1/10: the linear model overshoots far; at w = 2 it is good.
    model = lambda w, x: (w**3 * x)[:, None]
    rule = proxlin.Armijo(gamma=1e4, max_eta=max_eta)
    opt = proxlin.prox_linear(model, proxlin.Squared(), step=rule, solver=proxlin.CG(1))
    x, y = jnp.ones(1), jnp.full((1, 1), 8.0)
    hard, easy = jnp.asarray([0.1]), jnp.asarray([2.1])
    update = jax.jit(opt.update)
    _, state = update(None, opt.init(hard), hard, inputs=x, targets=y)
    assert 0 < float(state.eta) < 0.1
    _, state = update(None, state, easy, inputs=x, targets=y)
    assert float(state.eta) == max_eta


def test_armijo_backtracks_from_trial_points_that_are_not_finite():
    # The full step leads from w = 1 to about w = -2, where the logarithm is NaN.
    model = lambda w, x: jnp.log(w * x)[:, None]
    x, y, w = jnp.ones(1), jnp.full((1, 1), -3.0), jnp.ones(1)
    rule = proxlin.Armijo(gamma=1e6)
    opt = proxlin.prox_linear(model, proxlin.Squared(), step=rule, solver=proxlin.Cholesky())
    updates, state = jax.jit(opt.update)(None, opt.init(w), w, inputs=x, targets=y)
    h = lambda eta: 0.5 * (np.log(1 - 3 * eta) + 3) ** 2 if eta < 1 / 3 else np.nan
    eta, trials = backtrack(h, 4.5, 9.0, rule)
    assert trials > 4
    assert float(state.eta) == pytest.approx(eta)
    assert int(state.rejected) == 0
    assert float(updates[0]) == pytest.approx(-3 * eta, rel=1e-5)


RULES = {
    "fixed": proxlin.Fixed(),
    "armijo": proxlin.Armijo(),
    "model": proxlin.ModelStep(),
    "trust": proxlin.TrustRegion(),
}


@pytest.mark.parametrize("subproblem", SUBPROBLEMS.values(), ids=SUBPROBLEMS.keys())
@pytest.mark.parametrize("solver", [proxlin.CG(2), proxlin.Cholesky()], ids=["cg", "cholesky"])
def test_a_critical_point_is_accepted_at_once(solver, subproblem):
    params, x, _ = problem("squared", jnp.float64)
    batch = params, x, network(params, x)
    fn = decisions("squared", tuple(RULES.values()), solver=solver, subproblem=subproblem)
    d, _, steps = fn(batch, 3.0)
    assert float(np.max(np.abs(flat(d)))) < 1e-14
    for step in steps:
        assert bool(step.accepted)
        assert float(step.eta) == 1
        assert int(step.evaluations) <= 1
    if isinstance(solver, proxlin.CG):
        assert float(steps[-1].gamma) == 3.0  # nothing was learned about gamma


# ModelStep --------------------------------------------------------------------------------------


mean_loss = jax.jit(lambda loss, f, y: jnp.mean(loss.value(f, y)), static_argnums=0)


def best_on_model(loss, outputs, change, targets, proximity, missing=0.0):
    """argmin over [0, 1] of the convex model along a direction, by SciPy."""

    def phi(eta):
        return (
            float(mean_loss(loss, outputs - eta * change, targets))
            + 0.5 * eta**2 * proximity
            - eta * missing
        )

    found = minimize_scalar(phi, bounds=(0, 1), method="bounded", options={"xatol": 1e-10})
    # The bounded method never looks at the ends themselves.
    return 1.0 if phi(1.0) <= found.fun else float(found.x)


@pytest.mark.parametrize("name", LOSSES)
def test_model_step_minimizes_the_convex_model_along_the_direction(name):
    params, x, y = batch = problem(name, jnp.float64)
    push = jax.jit(lambda d: jax.jvp(lambda w: network(w, x), (params,), (d,)))
    shorter = 0
    for gamma in (0.1, 10.0, 1000.0):
        d, _, (*_, step) = decisions(name, SEARCHES, solver=proxlin.CG(1))(batch, gamma)
        proximity = float(flat(d) @ flat(d)) / gamma
        outputs, change = push(d)
        eta = best_on_model(LOSSES[name], outputs, change, y, proximity)
        assert bool(step.accepted)
        assert float(step.eta) == pytest.approx(eta, rel=1.1e-3)
        shorter += eta < 0.99
    assert shorter >= 1  # not only full steps


@pytest.mark.parametrize("rule", [proxlin.ModelStep(100.0), proxlin.StochasticTrustRegion(1e-3)])
@pytest.mark.parametrize("solver", [proxlin.CG(1), proxlin.CG(3), proxlin.Cholesky()])
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_model_step_costs_one_jvp_at_most_and_no_forward_pass(subproblem, solver, rule):
    """None on the primal, where conjugate gradients combine the products they have made anyway."""
    found = direction(gamma=float(rule.gamma), subproblem=SUBPROBLEMS[subproblem], solver=solver)
    calls = []
    (lin,) = found.model.linearizations

    def counted(u):
        calls.append(u)
        return lin.jvp(u)

    spied = dataclasses.replace(lin, jvp=counted, vjp=never)
    model = dataclasses.replace(found.model, linearizations=(spied,))
    # What is not evaluated the second rule still traces.
    traced = isinstance(rule, proxlin.StochasticTrustRegion)
    objective = (lambda displacement: jnp.zeros(())) if traced else never
    found = dataclasses.replace(found, model=model, objective=objective)
    step = rule.step(found, jnp.asarray(0), rule.init(found.params))
    free = subproblem == "primal" and isinstance(solver, proxlin.CG)
    assert len(calls) == (0 if free else 1)
    assert int(step.info.jvps) == int(found.info.jvps) + len(calls)
    assert int(step.info.vjps) == int(found.info.vjps)
    assert int(step.evaluations) == 0


@pytest.mark.parametrize("curvature_size", [None, 3])
@pytest.mark.parametrize("metric", [proxlin.Euclidean(), proxlin.Diagonal()], ids=str)
@pytest.mark.parametrize("steps", [1, 2, 4, 12])
def test_the_change_of_the_outputs_that_is_free_is_that_of_the_direction(
    steps, metric, curvature_size
):
    params, x, _ = batch = problem("logistic", jnp.float64)
    oracle = Oracle(
        network,
        proxlin.Logistic(),
        proxlin.primal_quadratic,
        proxlin.CG(steps),
        metric=metric,
        curvature_size=curvature_size,
    )
    found = oracle.direction(*batch, (), 10.0, None, oracle.init(params))
    same, (change,) = found.change()
    assert int(same.cost.jvps) == int(found.cost.jvps) <= steps
    rows = x[:: 6 // (curvature_size or 6)]
    _, want = jax.jvp(lambda w: network(w, rows), (params,), (found.d,))
    np.testing.assert_allclose(change, want, rtol=1e-9, atol=1e-12)


def test_model_step_corrects_the_slope_of_a_part_of_the_batch():
    name = "logistic"
    m, part = 12, 4
    params, x, y = batch = problem(name, jnp.float64, m=m)
    rows = slice(None, None, m // part)
    push = jax.jit(lambda d: jax.jvp(lambda w: network(w, x[rows]), (params,), (d,)))
    gradient = np.asarray(dense_of(name)(batch)[0])
    fn = decisions(name, (proxlin.ModelStep(),), curvature_size=part)
    for gamma in (1.0, 30.0, 1000.0):
        d, _, (step,) = fn(batch, gamma)
        outputs, change = push(d)
        slope = float(flat(d) @ gradient)
        own = float(jnp.sum(change * LOSSES[name].grad(outputs, y[rows]))) / part
        assert abs(slope - own) > 0.01 * slope  # the correction matters
        proximity = float(flat(d) @ flat(d)) / gamma
        eta = best_on_model(LOSSES[name], outputs, change, y[rows], proximity, slope - own)
        assert float(step.eta) == pytest.approx(eta, rel=1.1e-3)


def test_model_step_sees_what_the_quadratic_model_does_not():
    # Saturated and wrong: the Hessian vanishes, so that d = gamma * gradient overshoots by far.
    model = lambda w, x: x @ w
    x, y, w = jnp.eye(1), jnp.asarray([0]), jnp.asarray([[-40.0, 40.0]])
    oracle = Oracle(model, proxlin.Logistic())
    found = oracle.direction(w, x, y, (), 1e6, None)
    step = decide(proxlin.ModelStep(1e6), found)
    outputs, change = jax.jvp(lambda v: model(v, x), (w,), (found.d,))
    proximity = float(flat(found.d) @ flat(found.d)) / 1e6
    eta = best_on_model(proxlin.Logistic(), outputs, change, y, proximity)
    assert float(step.eta) < 1e-3
    assert float(step.eta) == pytest.approx(eta, rel=1.1e-3)


# TrustRegion ------------------------------------------------------------------------------------


def ratio_by_hand(name, d, batch, gamma):
    params, x, y = batch
    gradient, gauss_newton = (np.asarray(a) for a in dense_of(name)(batch))
    v = flat(d)
    predicted = gradient @ v - 0.5 * (v @ gauss_newton @ v + v @ v / gamma)
    decrease = objective(name, params, x, y) - objective(name, moved(params, d, 1.0), x, y)
    return decrease / predicted, predicted


def exact_direction(name, batch, gamma):
    gradient, gauss_newton = (np.asarray(a) for a in dense_of(name)(batch))
    d = np.linalg.solve(gauss_newton + np.eye(len(gradient)) / gamma, gradient)
    return ravel_pytree(batch[0])[1](jnp.asarray(d))


@pytest.mark.parametrize("subproblem", SUBPROBLEMS.values(), ids=SUBPROBLEMS.keys())
@pytest.mark.parametrize(("name", "seed"), [("squared", 0), ("logistic", 2)])
def test_trust_region_ratio_is_the_one_of_dense_matrices(name, seed, subproblem):
    gamma, batch = 100.0, problem(name, jnp.float64, seed=seed)
    ratio, predicted = ratio_by_hand(name, exact_direction(name, batch, gamma), batch, gamma)
    assert 0.1 < ratio < 0.9  # so that two thresholds can enclose it
    below, above = ratio - 1e-6, ratio + 1e-6
    outcomes = {
        proxlin.TrustRegion(low=below / 2, high=above): 1.0,  # between the thresholds
        proxlin.TrustRegion(low=below, high=above): 1.0,
        proxlin.TrustRegion(low=above, high=above): 0.5,
        proxlin.TrustRegion(low=below / 2, high=below): 2.0,
    }
    fn = decisions(name, tuple(outcomes), subproblem=subproblem, solver=proxlin.Cholesky())
    for step, factor in zip(fn(batch, gamma)[2], outcomes.values(), strict=True):
        assert bool(step.accepted)
        assert float(step.eta) == 1
        assert float(step.gamma) == pytest.approx(factor * gamma)
        assert float(step.info.predicted) == pytest.approx(predicted, rel=1e-7)
        assert int(step.evaluations) == 1


@pytest.mark.parametrize("subproblem", SUBPROBLEMS.values(), ids=SUBPROBLEMS.keys())
def test_trust_region_prediction_holds_for_truncated_solves(subproblem):
    batch = problem("logistic", jnp.float64)
    rules = (proxlin.TrustRegion(),)
    fn = decisions("logistic", rules, solver=proxlin.CG(3), subproblem=subproblem)
    for gamma in (0.1, 30.0, 1000.0):
        d, info, (step,) = fn(batch, gamma)
        ratio, predicted = ratio_by_hand("logistic", d, batch, gamma)
        assert float(step.info.predicted) == pytest.approx(predicted, rel=1e-9)
        assert bool(step.accepted) == (ratio > 0 and predicted >= 0)
        # The primal has the curvature from its last product already; the dual pays one JVP.
        extra = 0 if subproblem is proxlin.primal_quadratic else 1
        assert int(step.info.jvps) == int(info.jvps) + extra


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({}, 2.0),
        ({"grow": 5.0}, 5.0),
        ({"grow": 5.0, "max_gamma": 1.5}, 1.5),
        ({"grow": 1.0}, 1.0),
    ],
)
def test_trust_region_grows_and_clips(options, factor):
    found = synthetic(1.0, slope=1.0, predicted=0.5, trial=0.5)
    assert float(decide(proxlin.TrustRegion(**options), found).gamma) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("options", "factor"),
    [({}, 0.5), ({"shrink": 0.1}, 0.1), ({"shrink": 0.1, "min_gamma": 0.4}, 0.4)],
)
@pytest.mark.parametrize("trial", [0.99, 1.5, np.nan, np.inf])
def test_trust_region_shrinks_and_clips(trial, options, factor):
    found = synthetic(1.0, slope=1.0, predicted=0.5, trial=trial)
    step = decide(proxlin.TrustRegion(**options), found)
    assert float(step.gamma) == pytest.approx(factor)
    assert bool(step.accepted) is (trial == 0.99)  # a small decrease is a decrease


def test_trust_region_rejects_a_direction_that_raises_its_own_model():
    # The model promises an increase; the luck of a decrease does not count.
    found = synthetic(1.0, slope=1.0, predicted=-1.0, trial=0.1)
    step = decide(proxlin.TrustRegion(), found)
    assert not bool(step.accepted)
    assert float(step.gamma) == 0.5


@pytest.mark.parametrize(
    ("residual", "predicted", "kept", "grows"),
    [
        (0.49, 0.5, 0.4, True),
        (0.51, 0.5, 0.4, False),  # much of the subproblem unsolved
        (0.51, 0.5, 0.6, True),  # but no solution has much more slope
        (np.nan, 0.5, 0.4, True),  # a direct solver has no residual
        (0.1, 0.255, 0.4, True),
        (0.1, 0.245, 0.4, False),  # less than half of the decrease of an exact solution
    ],
)
def test_trust_region_does_not_grow_on_truncated_solves(residual, predicted, kept, grows):
    # A decrease as large as the slope is more than any of these models promises.
    found = synthetic(1.0, slope=1.0, predicted=predicted, trial=0.0, residual=residual)
    shorter = jax.tree.map(lambda x: kept / found.kept_slope * x, found.solved.d)
    found = dataclasses.replace(found, solved=found.solved._replace(d=shorter))
    step = decide(proxlin.TrustRegion(), found)
    assert bool(step.accepted)
    assert float(step.gamma) == (2.0 if grows else 1.0)


def test_trust_region_growth_waits_for_enough_inner_steps():
    batch = problem("squared", jnp.float64)
    gamma = 3.0
    for steps, grows in ((1, False), (40, True)):
        fn = decisions("squared", (proxlin.TrustRegion(),), solver=proxlin.CG(steps))
        d, info, (step,) = fn(batch, gamma)
        ratio, predicted = ratio_by_hand("squared", d, batch, gamma)
        assert ratio > 0.75  # only the solve keeps gamma from growing
        solved = info.residual <= 0.5 and predicted >= 0.25 * float(info.slope)
        assert bool(solved) is grows
        assert float(step.gamma) == (2 * gamma if grows else gamma)


def test_trust_region_rejects_an_increase_and_keeps_the_parameters():
    # The full step from w = 1/10 to about w = 266 raises the objective enormously.
    model = lambda w, x: (w**3 * x)[:, None]
    opt = proxlin.prox_linear(
        model,
        proxlin.Squared(),
        step=proxlin.TrustRegion(gamma=1e4),
        solver=proxlin.Cholesky(),
    )
    x, y, w = jnp.ones(1), jnp.full((1, 1), 8.0), jnp.asarray([0.1])
    update = jax.jit(opt.update)
    state = opt.init(w)
    for rejections in (1, 2, 3):
        updates, state = update(None, state, w, inputs=x, targets=y)
        np.testing.assert_array_equal(updates, 0)
        assert int(state.rejected) == rejections
        assert float(state.gamma) == 1e4 / 2**rejections
        assert float(state.eta) == 0
    # Smaller and smaller gammas lead to a step that is taken at last.
    for _ in range(60):
        updates, state = update(None, state, w, inputs=x, targets=y)
        if int(state.taken):
            break
    assert int(state.taken) == 1
    before, after = (float((z[0] ** 3 - 8) ** 2) for z in (w, w + updates))
    assert after < before


def test_trust_region_keeps_gamma_on_a_batch_that_is_not_finite():
    params, x, y = problem("squared", jnp.float64)
    opt = proxlin.prox_linear(network, proxlin.Squared(), step=proxlin.TrustRegion(3.0))
    bad = x.at[0].set(jnp.nan)
    _, state = jax.jit(opt.update)(None, opt.init(params), params, inputs=bad, targets=y)
    assert float(state.gamma) == 3.0
    assert int(state.rejected) == 1
    assert int(state.info.status) == proxlin.Status.NON_FINITE


def test_trust_region_carries_gamma_from_step_to_step():
    params, x, y = problem("logistic", jnp.float64)
    opt = proxlin.prox_linear(
        network, proxlin.Logistic(), step=proxlin.TrustRegion(0.5), solver=proxlin.Cholesky()
    )
    update = jax.jit(opt.update)
    state = opt.init(params)
    gammas = []
    for _ in range(4):
        gamma = float(state.gamma)
        gammas.append(gamma)
        d = exact_direction("logistic", (params, x, y), gamma)
        updates, state = update(None, state, params, inputs=x, targets=y)
        assert relative_error(flat(updates), -flat(d)) < 1e-9
        params = optax.apply_updates(params, updates)
    assert gammas == [0.5, 1.0, 2.0, 4.0]


# Arguments --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: proxlin.Fixed(gamma=0.0), r"Fixed\(gamma=0.0\): give a positive number"),
        (lambda: proxlin.Fixed(eta=-1.0), r"Fixed\(eta=-1.0\): give a positive number"),
        (lambda: proxlin.Fixed(gamma=float("nan")), r"Fixed\(gamma=nan\): give a positive"),
        (lambda: proxlin.Fixed(gamma=jnp.ones(2)), r"Fixed\(gamma=.*: give a positive number"),
        (lambda: proxlin.Armijo(gamma=-1.0), r"Armijo\(gamma=-1.0\): give a positive number"),
        (lambda: proxlin.Armijo(max_eta=0.0), r"Armijo\(max_eta=0.0\): give a positive number"),
        (lambda: proxlin.Armijo(beta=1.0), r"Armijo\(beta=1.0\): give a number between 0 and 1"),
        (lambda: proxlin.Armijo(beta=0.0), r"Armijo\(beta=0.0\): give a number between 0 and 1"),
        (lambda: proxlin.Armijo(shrink=1.5), r"Armijo\(shrink=1.5\): give a number between"),
        (lambda: proxlin.Armijo(max_backtracks=-1), r"max_backtracks=-1\): give an integer"),
        (lambda: proxlin.ModelStep(gamma=0), r"ModelStep\(gamma=0\): give a positive number"),
        (lambda: proxlin.TrustRegion(gamma=0.0), r"TrustRegion\(gamma=0.0\): give a positive"),
        (lambda: proxlin.TrustRegion(low=0.8), r"needs low <= high"),
        (lambda: proxlin.TrustRegion(high=1.0), r"TrustRegion\(high=1.0\): give a number between"),
        (lambda: proxlin.TrustRegion(shrink=2.0), r"TrustRegion\(shrink=2.0\): give a number"),
        (lambda: proxlin.TrustRegion(grow=0.5), r"grow >= 1"),
        (lambda: proxlin.TrustRegion(min_gamma=2.0, max_gamma=1.0), r"min_gamma <= max_gamma"),
        (lambda: proxlin.TrustRegion(max_residual=0.0), r"max_residual=0.0\): give a positive"),
    ],
)
def test_arguments_that_cannot_be_used(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("unchecked")
def test_trust_region_takes_no_schedule():
    with pytest.raises(TypeError, match="give a first number, not a schedule"):
        proxlin.TrustRegion(gamma=optax.constant_schedule(1.0))


@pytest.mark.usefixtures("unchecked")
def test_a_step_must_be_a_rule():
    with pytest.raises(TypeError, match="step must be a step rule such as"):
        proxlin.prox_linear(network, proxlin.Squared(), step=0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_rules_are_values(rule):
    # Equal settings are one static argument, so that jit compiles once for them.
    again = type(rule)()
    assert rule == again
    assert hash(rule) == hash(again)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.gamma = 2.0
