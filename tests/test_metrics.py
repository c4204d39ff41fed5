"""The proximity term in another metric and around the last step."""

import dataclasses
import functools
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin.algebra import MetricVector, dot
from proxlin.bench.rivals.shampoo import shampoo
from proxlin.direction import Oracle
from proxlin.metrics import inverse_roots, second_moments
from proxlin.proximity import ProximityState
from tests.cases import LOSSES, SUBPROBLEMS, dense, flat, network, problem, relative_error

METRICS = {
    "euclidean": proxlin.Euclidean(),
    "diagonal": proxlin.Diagonal(),
    "kronecker": proxlin.Kronecker(block_size=3, every=2),
    "marquardt": proxlin.Marquardt(),
}
GAMMA, MOMENTUM = 0.7, 0.8
TAKEN = jnp.asarray(3)


def learned(metric, params, seed=0):
    """The state of a metric after gradients that no direction dominates."""
    state = metric.init(params)
    for step in range(4):
        keys = iter(jax.random.split(jax.random.key(10 * seed + step), 3))
        grad = jax.tree.map(
            lambda w, keys=keys: jax.random.normal(next(keys), w.shape, w.dtype), params
        )
        if metric.of_curvature:
            grad = jax.tree.map(jnp.square, grad)
        state = metric.update(state, grad, jnp.asarray(step))
    return state


def dense_inverse(metric, state, source):
    """The inverse of the metric as a matrix."""
    vector, unravel = ravel_pytree(source)
    inverse = metric.inverse(state, source, TAKEN) or (lambda x: x)
    column = lambda e: ravel_pytree(inverse(unravel(e)))[0]
    return np.asarray(jax.vmap(column, out_axes=1)(jnp.eye(vector.size)))


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_the_inverse_is_symmetric_and_positive_definite(metric):
    params, _, _ = problem("logistic", jnp.float64)
    matrix = dense_inverse(metric, learned(metric, params), params)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    assert np.linalg.eigvalsh(matrix).min() > 0


@pytest.mark.parametrize("momentum", [0.0, MOMENTUM])
@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_the_direction_is_that_of_dense_algebra(name, subproblem, metric, momentum):
    r"""(G + P / gamma) d = grad + (mu / gamma) P d_last, and both subproblems agree on it."""
    params, inputs, targets = problem(name, jnp.float64)
    oracle = Oracle(
        network,
        LOSSES[name],
        SUBPROBLEMS[subproblem],
        proxlin.CG(60),
        metric=metric,
        momentum=momentum,
    )
    covector = jax.tree.map(lambda w: 0.1 * jnp.cos(w), params)
    state = ProximityState(learned(metric, params), covector if momentum else ())
    got = oracle.direction(params, inputs, targets, (), GAMMA, None, state, TAKEN)

    grad, gauss_newton = dense(name, params, inputs, targets)
    unravel = ravel_pytree(params)[1]
    seen = np.diagonal(gauss_newton) if metric.of_curvature else grad
    state = metric.update(state.metric, unravel(jnp.asarray(seen)), TAKEN)
    linear = grad + momentum / GAMMA * ravel_pytree(covector)[0]
    p = np.linalg.inv(dense_inverse(metric, state, unravel(linear)))
    want = np.linalg.solve(gauss_newton + p / GAMMA, linear)
    assert relative_error(flat(got.d), want) < 1e-8
    if momentum:
        assert relative_error(flat(got.next_state(jnp.ones(())).momentum), p @ want) < 1e-8
    predicted = got.with_prediction().info.predicted
    np.testing.assert_allclose(predicted, 0.5 * linear @ want, rtol=1e-7)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_subproblem_of_ones_own_finds_metric_and_momentum(metric):
    params, inputs, targets = problem("logistic", jnp.float64)
    make = functools.partial(
        Oracle, network, proxlin.Logistic(), metric=metric, momentum=MOMENTUM, solver=proxlin.CG(3)
    )
    state = ProximityState(learned(metric, params), jax.tree.map(jnp.sin, params))

    class Own(proxlin.extend.Subproblem):
        def solve(self, model, proximity, solver=None):
            return proxlin.dual_quadratic.solve(model, proximity, solver)

    got, want = (
        oracle.direction(params, inputs, targets, (), GAMMA, None, state, TAKEN).d
        for oracle in (make(subproblem=Own()), make())
    )
    np.testing.assert_array_equal(flat(got), flat(want))


def test_a_subproblem_of_ones_own_that_forgets_the_metric():
    params, inputs, targets = problem("logistic", jnp.float64)

    class Forgetful(proxlin.DualQuadratic):
        def solve(self, model, proximity, solver=None):
            return super().solve(model, dataclasses.replace(proximity, inverse=None), solver)

    opt = proxlin.prox_linear(
        network, proxlin.Logistic(), subproblem=Forgetful(), metric=proxlin.Diagonal()
    )
    with pytest.raises(TypeError, match="not in the metric Diagonal"):
        opt.update(None, opt.init(params), params, inputs=inputs, targets=targets)


def test_a_direct_solver_takes_momentum_too():
    params, inputs, targets = problem("squared", jnp.float64)
    state = ProximityState((), jax.tree.map(jnp.sin, params))
    directions = [
        Oracle(network, proxlin.Squared(), solver=solver, momentum=MOMENTUM)
        .direction(params, inputs, targets, (), 50.0, None, state)
        .d
        for solver in (proxlin.CG(80), proxlin.Cholesky(), proxlin.Cholesky(independent=True))
    ]
    for other in directions[1:]:
        assert relative_error(flat(other), flat(directions[0])) < 1e-8


def trained(optimizer, steps=5, takes_gradients=False):
    params, inputs, targets = problem("logistic", jnp.float64, m=16)
    objective = lambda w, x, y: jnp.mean(proxlin.Logistic().value(network(w, x), y))
    state = optimizer.init(params)
    for i in range(steps):
        x, y = inputs[i::2], targets[i::2]
        grad = jax.grad(objective)(params, x, y) if takes_gradients else None
        batch = {} if takes_gradients else {"inputs": x, "targets": y}
        updates, state = optimizer.update(grad, state, params, **batch)
        params = optax.apply_updates(params, updates)
    return flat(params)


def without_inner_steps(metric, stepsize):
    return proxlin.prox_linear(
        network,
        proxlin.Logistic(),
        step=proxlin.Fixed(stepsize),
        solver=proxlin.CG(0),
        metric=metric,
    )


def test_without_inner_steps_a_diagonal_metric_is_adam():
    with jax.numpy_dtype_promotion("standard"):
        want = trained(optax.adam(0.1, b1=0.0), takes_gradients=True)
    got = trained(without_inner_steps(proxlin.Diagonal(), 0.1))
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_without_inner_steps_a_kronecker_metric_is_shampoo():
    metric = proxlin.Kronecker(decay=0.9, block_size=3, every=1, root=4, epsilon=1e-6)
    got = trained(without_inner_steps(metric, 0.1))
    rival = shampoo(0.1, momentum=0.0, block_size=3, root_every=1, decay=0.9)
    np.testing.assert_allclose(got, trained(rival, takes_gradients=True), rtol=1e-10)


def test_conjugate_gradients_on_pairs_are_those_in_whitened_coordinates():
    """The metric costs no products: the same system in coordinates in which it is the identity."""
    rng = np.random.default_rng(0)
    a, root = rng.normal(size=(7, 4)), rng.normal(size=(7, 7))
    p = root @ root.T + np.eye(7)
    s = np.linalg.cholesky(np.linalg.inv(p))  # P^-1 = S S^T
    grad = jnp.asarray(rng.normal(size=7))
    vector = lambda y: MetricVector(y, np.linalg.inv(p) @ y)
    shift = jnp.asarray(0.5)
    for steps in (1, 2, 3):
        paired = proxlin.CG(steps).solve(
            proxlin.NormalSystem(
                lambda u: vector(a @ u), lambda d: a.T @ d.vector, shift, data=vector(grad)
            )
        )
        plain = proxlin.CG(steps).solve(
            proxlin.NormalSystem(
                lambda u: s.T @ a @ u, lambda z: a.T @ s @ z, shift, data=s.T @ grad
            )
        )
        np.testing.assert_allclose(paired.x, plain.x, rtol=1e-10)
        np.testing.assert_allclose(paired.misfit.vector, s @ plain.misfit, rtol=1e-10)
        np.testing.assert_allclose(
            dot(paired.misfit, paired.misfit), plain.misfit @ plain.misfit, rtol=1e-10
        )


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_momentum_that_ascends_gives_way_to_a_gradient_step(metric):
    params, inputs, targets = problem("logistic", jnp.float64)
    oracle = Oracle(network, proxlin.Logistic(), metric=metric, momentum=MOMENTUM)
    grad = ravel_pytree(params)[1](dense("logistic", params, inputs, targets)[0])
    against = ProximityState(learned(metric, params), jax.tree.map(lambda g: -100.0 * g, grad))
    direction = oracle.direction(params, inputs, targets, (), GAMMA, None, against, TAKEN)
    inverse = direction.proximity.inverse or (lambda x: x)
    np.testing.assert_allclose(flat(direction.d), GAMMA * flat(inverse(grad)), rtol=1e-9)
    assert direction.info.slope > 0


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
def test_metric_and_momentum_cost_no_products(subproblem):
    params, inputs, targets = problem("logistic", jnp.float64, m=8)
    make = functools.partial(
        proxlin.prox_linear,
        network,
        proxlin.Logistic(),
        step=proxlin.Fixed(GAMMA),
        subproblem=SUBPROBLEMS[subproblem],
        solver=proxlin.CG(3),
    )
    counts = []
    for optimizer in (make(), make(metric=proxlin.Kronecker(), momentum=MOMENTUM)):
        state = optimizer.init(params)
        _, state = optimizer.update(None, state, params, inputs=inputs, targets=targets)
        counts.append((int(state.info.jvps), int(state.info.vjps)))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("epsilon", [1e-2, 1e-6])
@pytest.mark.parametrize("root", [2, 4])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_roots_are_those_of_eigenvalues(dtype, root, epsilon):
    g = np.random.default_rng(0).normal(size=(3, 20, 6)) * np.geomspace(1, 1e-3, 6)
    moments = jnp.asarray(g @ g.swapaxes(1, 2), dtype)[None]  # of rank 6
    got = np.asarray(inverse_roots(jnp.zeros((2, 2)), (moments,), root, epsilon)[0][0])
    for one, matrix in zip(got, g @ g.swapaxes(1, 2), strict=True):
        values, vectors = np.linalg.eigh(matrix)
        shifted = np.maximum(values, 0) + epsilon * np.linalg.norm(matrix)
        want = (vectors * shifted ** (-1 / root)) @ vectors.T
        tolerance = 1e-9 if dtype == jnp.float64 else 1e-7 / epsilon
        assert np.abs(one - want).max() < tolerance * np.abs(want).max()


def test_roots_of_no_gradient_are_finite():
    for g in (jnp.zeros((4, 3)), jnp.zeros(3)):
        roots = inverse_roots(g, second_moments(g, 256), 2, 1e-4)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(roots))


def test_roots_are_kept_between_their_steps():
    metric = proxlin.Kronecker(every=3)
    grad = jnp.eye(2)
    state = metric.init(grad)
    roots = []
    for step in range(6):
        state = metric.update(state, (step + 1.0) * grad, jnp.asarray(step))
        roots.append(float(state.roots[0][0, 0, 0]))
    assert roots[0] == roots[1] == roots[2] != roots[3] == roots[4] == roots[5]


@pytest.mark.parametrize(
    "options,error,message",
    [
        (dict(metric="shampoo"), TypeError, "metric must be a Metric such as Kronecker"),
        (dict(momentum=1.0), ValueError, r"momentum=1.0: give a number in \[0, 1\)"),
        (dict(momentum=-0.1), ValueError, r"momentum=-0.1: give a number in \[0, 1\)"),
        (
            dict(metric=proxlin.Kronecker(), solver=proxlin.Cholesky()),
            TypeError,
            r"Cholesky\(.*does not take Kronecker.*use CG\(max_steps\) or MultiShiftCG",
        ),
        (
            dict(momentum=0.5, regularizer=proxlin.L1(1.0)),
            TypeError,
            r"does not go together with L1\(",
        ),
        (
            dict(momentum=0.5, subproblem=proxlin.dual_convex),
            TypeError,
            r"^dual_convex does not .*=dual_quadratic or primal",
        ),
        (dict(curvature_size=lambda m: m + 1), ValueError, "curvature_size=7 for a batch of 6"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_options(options, error, message):
    params, inputs, targets = problem("logistic", jnp.float64)
    with pytest.raises(error, match=message):
        optimizer = proxlin.prox_linear(network, proxlin.Logistic(), **options)
        optimizer.update(None, optimizer.init(params), params, inputs=inputs, targets=targets)


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda: proxlin.Kronecker(decay=1.0), "decay must lie between 0 and 1"),
        (lambda: proxlin.Diagonal(epsilon=0.0), "epsilon must be positive"),
        (lambda: proxlin.Kronecker(block_size=0), r"block_size=0\): give an integer of at least 1"),
        (
            lambda: proxlin.Kronecker(block_size=cast(int, 2.5)),
            r"block_size=2.5\): give an integer",
        ),
        (lambda: proxlin.Kronecker(every=0), r"every=0\): give an integer of at least 1"),
        (lambda: proxlin.Kronecker(root=3), r"root=3\): give 2 or 4"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_metrics(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_critical_point_is_no_trouble(momentum):
    """Nothing is replaced where there is nothing to do."""
    opt = proxlin.prox_linear(lambda w, x: x @ w, proxlin.Squared(), momentum=momentum)
    w, x, y = jnp.ones((2, 1)), jnp.eye(2), jnp.ones((2, 1))
    _, state = opt.update(None, opt.init(w), w, inputs=x, targets=y)
    assert state.info.status == proxlin.Status.OK
