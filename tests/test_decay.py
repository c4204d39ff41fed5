"""Weight decay is a part of the objective."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import proxlin
from proxlin.direction import Oracle
from tests.cases import LOSSES, SUBPROBLEMS, dense, flat, network, problem, relative_error

RATE, GAMMA = 0.3, 0.7
MASK = {"w1": True, "b1": False, "w2": True}
MASKS = {
    "none": None,
    "tree": MASK,
    "function": lambda params: {name: name != "b1" for name in params},
}


def matrices(name, *batch):
    """The gradient and the Gauss-Newton matrix of the loss alone."""
    return map(np.asarray, dense(name, *batch))


def of_mask(mask, params):
    """Zeros and ones in the order of the flat parameters."""
    decays = MASK if mask is not None else dict.fromkeys(params, True)
    return flat({name: jnp.full(w.shape, float(decays[name])) for name, w in params.items()})


def direction(name, subproblem, mask, batch, **options):
    oracle = Oracle(
        network, LOSSES[name], SUBPROBLEMS[subproblem], weight_decay=RATE, mask=mask, **options
    )
    return oracle.direction(*batch, (), GAMMA, None)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_that_of_the_sum(name, subproblem, mask):
    """And the subproblem has it in its linear term, not its curvature."""
    batch = params, _, _ = problem(name, jnp.float64)
    decays = of_mask(mask, params)
    found = direction(name, subproblem, mask, batch, solver=proxlin.CG(80))
    grad, gauss_newton = matrices(name, *batch)
    want = grad + RATE * decays * flat(params)
    np.testing.assert_allclose(flat(found.info.grad), want, rtol=1e-10, atol=1e-13)
    d = np.linalg.solve(gauss_newton + np.eye(len(want)) / GAMMA, want)
    assert relative_error(flat(found.d), d) < 1e-9
    assert float(found.info.slope) == pytest.approx(d @ want, rel=1e-9)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_values_are_those_of_the_sum(mask):
    """The loss alone is reported as the value, as a regularizer is; rules see both."""
    batch = params, x, y = problem("logistic", jnp.float64)
    decays = of_mask(mask, params)
    found = direction("logistic", "primal", mask, batch)
    loss = lambda w: float(jnp.mean(LOSSES["logistic"].value(network(w, x), y)))
    penalty = lambda w: 0.5 * RATE * float(decays @ flat(w) ** 2)
    assert float(found.value) == pytest.approx(loss(params))
    assert float(found.info.penalty) == pytest.approx(penalty(params))
    assert float(found.total) == pytest.approx(loss(params) + penalty(params))
    moved = jax.tree.map(lambda w, d: w - d, params, found.d)
    assert float(found.objective(found.d)) == pytest.approx(loss(moved) + penalty(moved))


@pytest.mark.parametrize("curvature_size", [None, 2])
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_curvature_along_the_direction_is_that_of_the_sum(mask, subproblem, curvature_size):
    """So the convex model along d is the objective itself, where the network is linear."""
    batch = params, x, y = problem("logistic", jnp.float64)
    decays = of_mask(mask, params)
    found = direction("logistic", subproblem, mask, batch, curvature_size=curvature_size)
    d, rows = flat(found.solved.d), slice(None, None, 6 // (curvature_size or 6))
    grad, _ = matrices("logistic", *batch)
    own, gauss_newton = matrices("logistic", params, x[rows], y[rows])
    of_decay = RATE * decays @ d**2
    _, change = found.change()
    curvature = found.model.curvature(found.solved.d, change)
    assert float(curvature) == pytest.approx(d @ gauss_newton @ d + of_decay)

    push = lambda d: jax.jvp(lambda w: network(w, x[rows]), (params,), (d,))
    outputs, images = push(found.d)
    losses = lambda eta: float(jnp.mean(LOSSES["logistic"].value(outputs - eta * images, y[rows])))
    missing = (grad - own) @ d  # of the slope, in the examples of curvature
    slope = found.model.slope_along(found.solved.d, change)
    decrease = lambda eta: eta * (RATE * decays * flat(params)) @ d - 0.5 * eta**2 * of_decay
    for eta in (0.0, 0.3, 1.0):
        step = 1e-5
        ends = [losses(e) - e * missing - decrease(e) for e in (eta - step, eta + step)]
        want = (ends[1] - ends[0]) / (2 * step)
        assert float(slope(jnp.asarray(eta))) == pytest.approx(want, rel=1e-6, abs=1e-9)
    total = losses(1.0) - missing - decrease(1.0)
    assert float(found.model.value_along(found.solved.d, change)) == pytest.approx(total)


def test_the_prediction_is_that_of_the_quadratic_model():
    batch = params, _, _ = problem("squared", jnp.float64)
    grad, gauss_newton = matrices("squared", *batch)
    grad = grad + RATE * flat(params)
    whole = gauss_newton + (RATE + 1 / GAMMA) * np.eye(len(grad))
    for subproblem in SUBPROBLEMS:
        found = direction("squared", subproblem, None, batch, solver=proxlin.CG(3))
        d = flat(found.solved.d)
        predicted = found.with_prediction().predicted
        assert float(predicted) == pytest.approx(d @ grad - 0.5 * d @ whole @ d)


METRICS = {
    "euclidean": proxlin.Euclidean(),
    "diagonal": proxlin.Diagonal(),
    "kronecker": proxlin.Kronecker(every=1),
}


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_the_minimum_depends_neither_on_gamma_nor_on_the_metric(metric):
    """That of ridge regression, with its own rate for each parameter."""
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(20, 4))), jnp.asarray(rng.normal(size=(20, 1)))
    mask = {"w": True, "b": False}
    a = np.concatenate([x, np.ones((20, 1))], axis=1)
    decay = RATE * np.diag([1, 1, 1, 1, 0.0])
    want = np.linalg.solve(a.T @ a / 20 + decay, a.T @ np.asarray(y) / 20).ravel()
    for gamma in (0.1, 10.0):
        opt = proxlin.prox_linear(
            lambda p, x: x @ p["w"] + p["b"][None],
            proxlin.Squared(),
            step=proxlin.Armijo(gamma),
            metric=metric,
            solver=proxlin.CG(5),
            weight_decay=RATE,
            mask=mask,
        )

        @jax.jit
        def run(params, opt=opt):
            def step(_, carry):
                params, state = carry
                updates, state = opt.update(None, state, params, inputs=x, targets=y)
                return optax.apply_updates(params, updates), state

            return jax.lax.fori_loop(0, 600, step, (params, opt.init(params)))[0]

        got = run({"w": jnp.ones((4, 1)), "b": jnp.ones(1)})
        np.testing.assert_allclose(np.append(got["w"], got["b"]), want, rtol=1e-6)


def test_no_decay_is_no_decay():
    batch = problem("logistic", jnp.float64)
    oracle = Oracle(network, proxlin.Logistic())
    assert oracle.objective.decay is None
    want = oracle.direction(*batch, (), GAMMA, None)
    zero = dataclasses.replace(oracle, weight_decay=jnp.zeros(()))  # as when it is injected
    got = zero.direction(*batch, (), GAMMA, None)
    assert zero.objective.decay is not None
    np.testing.assert_allclose(flat(got.d), flat(want.d), rtol=1e-12)


def test_the_rate_may_be_injected():
    params, x, y = problem("logistic", jnp.float64)
    make = lambda weight_decay: proxlin.auto(network, LOSSES["logistic"], weight_decay=weight_decay)
    opt = optax.inject_hyperparams(make)(0.0)
    for rate in (0.0, RATE):
        state = opt.init(params)
        state.hyperparams["weight_decay"] = jnp.asarray(rate)
        got, _ = jax.jit(opt.update)(None, state, params, inputs=x, targets=y)
        plain = make(rate)
        want, _ = plain.update(None, plain.init(params), params, inputs=x, targets=y)
        np.testing.assert_allclose(flat(got), flat(want), rtol=1e-8)


@pytest.mark.parametrize(
    "options,error,message",
    [
        (dict(weight_decay=-0.1), ValueError, "weight_decay=-0.1: give a non-negative number"),
        (dict(weight_decay=np.inf), ValueError, "weight_decay=inf: give a non-negative number"),
        (dict(weight_decay=np.nan), ValueError, "weight_decay=nan: give a non-negative number"),
        (
            dict(weight_decay=0.1, subproblem=proxlin.dual_convex),
            TypeError,
            r"weight_decay=0.1 with .*use regularizer=SquaredL2\(strength\)",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_rates(options, error, message):
    with pytest.raises(error, match=message):
        proxlin.prox_linear(network, LOSSES["logistic"], **options)
