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
from proxlin.metrics.roots import inverse_roots_of
from proxlin.proximity import ProximityState
from tests.cases import LOSSES, SUBPROBLEMS, dense, flat, network, problem, relative_error

METRICS = {
    "euclidean": proxlin.Euclidean(),
    "diagonal": proxlin.Diagonal(),
    "kronecker": proxlin.Kronecker(block_size=3, every=2),
    "marquardt": proxlin.Marquardt(),
}
GAMMA, MOMENTUM = 0.7, 0.8
SEEN = 4  # gradients that a metric has learned from before the direction


def learned(metric, params, seed=0):
    """The state of a metric after gradients that no direction dominates."""
    state = metric.init(params)
    for step in range(SEEN):
        keys = iter(jax.random.split(jax.random.key(10 * seed + step), 3))
        grad = jax.tree.map(
            lambda w, keys=keys: jax.random.normal(next(keys), w.shape, w.dtype), params
        )
        if metric.of_curvature:
            grad = jax.tree.map(jnp.square, grad)
        state = metric.update(state, grad, jnp.asarray(step))
    return state


def state_of(metric, params, momentum=()):
    """The state of the proximity term after these gradients."""
    seen = () if metric.is_identity else jnp.asarray(SEEN, jnp.int32)
    return ProximityState(learned(metric, params), momentum, seen)


def dense_inverse(metric, state, source, params=None):
    """The inverse of the metric as a matrix, after one gradient more."""
    vector, unravel = ravel_pytree(source)
    here = metric.at(state, params) if params is not None else state
    inverse = metric.inverse(here, source, jnp.asarray(SEEN)) or (lambda x: x)
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
    state = state_of(metric, params, covector if momentum else ())
    got = oracle.direction(params, inputs, targets, (), GAMMA, None, state)

    grad, gauss_newton = dense(name, params, inputs, targets)
    unravel = ravel_pytree(params)[1]
    seen = np.diagonal(gauss_newton) if metric.of_curvature else grad
    state = metric.update(state.metric, unravel(jnp.asarray(seen)), jnp.asarray(SEEN))
    linear = grad + momentum / GAMMA * ravel_pytree(covector)[0]
    p = np.linalg.inv(dense_inverse(metric, state, unravel(linear), params))
    want = np.linalg.solve(gauss_newton + p / GAMMA, linear)
    assert relative_error(flat(got.d), want) < 1e-8
    if momentum:
        after = got.next_state(jnp.asarray(0.5), jnp.asarray(True))
        assert relative_error(flat(after.momentum), 0.5 * p @ want) < 1e-8
    predicted = got.with_prediction().info.predicted
    np.testing.assert_allclose(predicted, 0.5 * linear @ want, rtol=1e-7)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_subproblem_of_ones_own_finds_metric_and_momentum(metric):
    params, inputs, targets = problem("logistic", jnp.float64)
    make = functools.partial(
        Oracle, network, proxlin.Logistic(), metric=metric, momentum=MOMENTUM, solver=proxlin.CG(3)
    )
    state = state_of(metric, params, jax.tree.map(jnp.sin, params))

    class Own(proxlin.extend.Subproblem):
        def solve(self, model, proximity, solver=None):
            return proxlin.dual_quadratic.solve(model, proximity, solver)

    got, want = (
        oracle.direction(params, inputs, targets, (), GAMMA, None, state).d
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


def trained(optimizer, steps=5, takes_gradients=False, model=network, params=None):
    first, inputs, targets = problem("logistic", jnp.float64, m=16)
    params = first if params is None else params
    objective = lambda w, x, y: jnp.mean(proxlin.Logistic().value(model(w, x), y))
    state = optimizer.init(params)
    for i in range(steps):
        x, y = inputs[i::2], targets[i::2]
        grad = jax.grad(objective)(params, x, y) if takes_gradients else None
        batch = {} if takes_gradients else {"inputs": x, "targets": y}
        updates, state = optimizer.update(grad, state, params, **batch)
        params = optax.apply_updates(params, updates)
    return flat(params)


def without_inner_steps(metric, stepsize, model=network):
    return proxlin.prox_linear(
        model,
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
    """For one matrix: how long the steps of several ones are is up to their sizes."""
    _, inputs, _ = problem("logistic", jnp.float64, m=16)
    model = lambda w, x: x @ w
    params = jnp.sin(jnp.arange(float(inputs.shape[1] * 4))).reshape(-1, 4)
    metric = proxlin.Kronecker(decay=0.9, block_size=3, every=1, root=4, epsilon=1e-6)
    got = trained(without_inner_steps(metric, 0.1, model), model=model, params=params)
    rival = shampoo(0.1, momentum=0.0, block_size=3, root_every=1, decay=0.9)
    want = trained(rival, takes_gradients=True, model=model, params=params)
    np.testing.assert_allclose(got, want, rtol=1e-10)


def steps_of_leaves(metric, params, grads):
    """P^-1 of the last gradient, after all of them."""
    state = metric.init(params)
    for taken, grad in enumerate(grads):
        state = metric.update(state, grad, jnp.asarray(taken))
    return metric.inverse(metric.at(state, params), grads[-1], jnp.asarray(len(grads) - 1))(
        grads[-1]
    )


def drawn(shapes, seed):
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}


def test_a_metric_in_units_of_the_parameters():
    r"""The lengths of the parts are kappa rms(W) / rms(G) |S|, and the whole keeps its length."""
    shapes = {"kernel": (2, 3, 4), "bias": (4,), "one": ()}
    params = drawn(shapes, 0) | {"bias": jnp.zeros(4)}
    grads = [drawn(shapes, seed) for seed in (1, 2)]
    metric = proxlin.Kronecker(decay=0.9, every=1, epsilon=1e-12)
    steps = steps_of_leaves(metric, params, grads)
    rms = lambda x: np.sqrt(np.mean(np.square(x)))
    sizes = {"kernel": rms(params["kernel"]), "bias": 0.1, "one": abs(float(params["one"]))}
    of_grads = {
        name: np.sqrt(0.9 * 0.1 * rms(grads[0][name]) ** 2 + 0.1 * rms(grads[1][name]) ** 2)
        for name in shapes
    }
    length = lambda x: np.linalg.norm(np.ravel(x))
    kappas = [
        length(steps[name]) * of_grads[name] / sizes[name] / length(grads[1][name])
        for name in shapes
    ]
    np.testing.assert_allclose(kappas, kappas[0], rtol=1e-6)
    assert length(flat(steps)) == pytest.approx(length(flat(grads[1])), rel=1e-6)


def test_the_balance_of_leaves_does_not_depend_on_their_units():
    shapes, units = {"a": (6, 4), "b": (4, 3)}, {"a": 16.0, "b": 0.25}
    params, grads = drawn(shapes, 0), [drawn(shapes, seed) for seed in (1, 2)]
    metric = proxlin.Kronecker(every=1)
    want = steps_of_leaves(metric, params, grads)
    measured = lambda tree, power: {name: x * units[name] ** power for name, x in tree.items()}
    got = measured(
        steps_of_leaves(metric, measured(params, -1), [measured(g, 1) for g in grads]), 1
    )
    ratio = {name: got[name] / want[name] for name in shapes}
    np.testing.assert_allclose(flat(ratio), flat(ratio)[0], rtol=1e-9)


def test_a_gradient_of_rounding_alone_does_not_move_its_leaf():
    """As that of a bias before BatchNorm, which would else be measured by its own noise."""
    shapes = {"kernel": (8, 8), "bias": (8,)}
    grads = [g | {"bias": 1e-9 * g["bias"]} for g in (drawn(shapes, seed) for seed in (1, 2))]
    params = drawn(shapes, 0)
    steps = steps_of_leaves(proxlin.Kronecker(every=1), params, grads)
    of_kernel, of_bias = (
        np.linalg.norm(steps[k]) / np.linalg.norm(params[k]) for k in ("kernel", "bias")
    )
    assert of_bias < 1e-4 * of_kernel


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


def uphill(metric, params, inputs, targets):
    """A last step against the gradient, so long that momentum leads uphill on this batch."""
    grad = ravel_pytree(params)[1](dense("logistic", params, inputs, targets)[0])
    return state_of(metric, params, jax.tree.map(lambda g: -100.0 * g, grad))


@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_momentum_may_lead_uphill_on_a_batch(metric, subproblem):
    """The direction descends on the objective with the pull of the last step; a rule may take it.

    One that compares values does not: it rejects the step, and the next one is without momentum.
    """
    params, inputs, targets = problem("logistic", jnp.float64)
    batch = {"inputs": inputs, "targets": targets}
    make = functools.partial(
        proxlin.prox_linear,
        network,
        proxlin.Logistic(),
        subproblem=SUBPROBLEMS[subproblem],
        metric=metric,
    )
    against = uphill(metric, params, inputs, targets)
    for rule in (proxlin.Fixed(GAMMA), proxlin.Armijo(GAMMA)):
        opt, plain = make(step=rule, momentum=MOMENTUM), make(step=rule)
        state = opt.init(params)._replace(proximity=against)
        updates, after = opt.update(None, state, params, **batch)
        assert after.info.status == proxlin.Status.OK and after.info.slope < 0
        grad, _ = dense("logistic", params, inputs, targets)
        if isinstance(rule, proxlin.Fixed):
            assert int(after.taken) == 1
            assert flat(updates) @ np.asarray(grad) == pytest.approx(-float(after.info.slope))
            # The pull of the last step, and all of it, is what makes the slope positive.
            pull = MOMENTUM / GAMMA * flat(against.momentum)
            assert -flat(updates) @ (np.asarray(grad) + pull) > 0
            continue
        assert not flat(updates).any() and int(after.rejected) == 1
        assert not flat(after.proximity.momentum).any()
        updates, state = opt.update(None, after, params, **batch)
        without = after._replace(proximity=after.proximity._replace(momentum=()))
        want, _ = plain.update(None, without, params, **batch)
        assert int(state.taken) == 1 and state.info.slope > 0
        np.testing.assert_allclose(flat(updates), flat(want), rtol=1e-12)
        assert flat(state.proximity.momentum).any()


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_direction_against_the_gradient_and_the_last_step_ascends(metric):
    """It is rejected, and the momentum that may be to blame is dropped, unless the batch is."""
    params, inputs, targets = problem("logistic", jnp.float64)

    class Backwards(proxlin.DualQuadratic):
        def solve(self, model, proximity, solver=None):
            solved = super().solve(model, proximity, solver)
            return solved._replace(d=jax.tree.map(jnp.negative, solved.d))

    opt = proxlin.prox_linear(
        network,
        proxlin.Logistic(),
        step=proxlin.Fixed(GAMMA),
        subproblem=Backwards(),
        metric=metric,
        momentum=MOMENTUM,
    )
    against = uphill(metric, params, inputs, targets)
    state = opt.init(params)._replace(proximity=against)
    updates, after = opt.update(None, state, params, inputs=inputs, targets=targets)
    assert after.info.status == proxlin.Status.ASCENT and after.info.slope > 0
    assert not flat(updates).any() and int(after.rejected) == 1
    assert not flat(after.proximity.momentum).any()
    bad = inputs.at[0, 0].set(jnp.nan)
    _, after = opt.update(None, state, params, inputs=bad, targets=targets)
    assert after.info.status == proxlin.Status.NON_FINITE
    np.testing.assert_array_equal(flat(after.proximity.momentum), flat(against.momentum))


@pytest.mark.parametrize("metric", [METRICS["diagonal"], METRICS["kronecker"]], ids=str)
def test_the_metric_learns_from_every_sound_gradient(metric):
    """Also from that of a rejected step, but not from a batch that is not finite."""
    params, inputs, targets = problem("logistic", jnp.float64)

    class Never(proxlin.Fixed):
        def step(self, direction, steps, state=()):
            return super().step(direction, steps, state)._replace(accepted=jnp.asarray(False))

    opt = proxlin.prox_linear(
        network, proxlin.Logistic(), step=Never(), metric=metric, momentum=MOMENTUM
    )
    covector = jax.tree.map(jnp.sin, params)
    state = opt.init(params)._replace(proximity=state_of(metric, params, covector))
    grad = ravel_pytree(params)[1](dense("logistic", params, inputs, targets)[0])
    for seen in (SEEN, SEEN + 1):
        want = metric.update(state.proximity.metric, grad, jnp.asarray(seen))
        _, state = opt.update(None, state, params, inputs=inputs, targets=targets)
        assert int(state.proximity.seen) == seen + 1 and int(state.taken) == 0
        np.testing.assert_allclose(flat(state.proximity.metric), flat(want), rtol=1e-9)
        assert not flat(state.proximity.momentum).any()  # it may be to blame
    bad = inputs.at[0, 0].set(jnp.nan)
    _, after = opt.update(None, state, params, inputs=bad, targets=targets)
    assert after.info.status == proxlin.Status.NON_FINITE
    for a, b in zip(*map(jax.tree.leaves, (after.proximity, state.proximity)), strict=True):
        np.testing.assert_array_equal(a, b)


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


def root_by_eigenvalues(matrix, root, epsilon):
    values, vectors = np.linalg.eigh(matrix)
    shifted = np.maximum(values, 0) + epsilon * np.linalg.norm(matrix)
    return (vectors * shifted ** (-1 / root)) @ vectors.T


@pytest.mark.parametrize("epsilon", [1e-2, 1e-6])
@pytest.mark.parametrize("root", [2, 4])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_roots_are_those_of_eigenvalues(dtype, root, epsilon):
    g = np.random.default_rng(0).normal(size=(3, 20, 6)) * np.geomspace(1, 1e-3, 6)
    moments = g @ g.swapaxes(1, 2)  # of rank 6
    (got,) = inverse_roots_of([jnp.asarray(moments, dtype)], root, epsilon)
    for one, matrix in zip(np.asarray(got), moments, strict=True):
        want = root_by_eigenvalues(matrix, root, epsilon)
        tolerance = 1e-9 if dtype == jnp.float64 else 1e-7 / epsilon
        assert np.abs(one - want).max() < tolerance * np.abs(want).max()


@pytest.mark.parametrize("root", [2, 4])
def test_roots_of_matrices_that_share_a_loop(root):
    """Of sizes that round to the same power of two and of others, of any scale, and of zero."""
    rng = np.random.default_rng(1)
    stacks = []
    for number, n, scale in [(2, 5, 1.0), (1, 8, 1e-6), (3, 7, 1e6), (1, 1, 3.0), (2, 17, 1.0)]:
        g = rng.normal(size=(number, n, n + 2))
        stacks.append(scale * g @ g.swapaxes(1, 2))
    stacks.append(np.zeros((1, 6, 6)))
    found = inverse_roots_of([jnp.asarray(stack) for stack in stacks], root, 1e-4)
    for got, stack in zip(found[:-1], stacks[:-1], strict=True):
        for one, matrix in zip(np.asarray(got), stack, strict=True):
            want = root_by_eigenvalues(matrix, root, 1e-4)
            np.testing.assert_allclose(one, want, atol=1e-9 * np.abs(want).max())
    np.testing.assert_allclose(found[-1][0], 1e-4 ** (-1 / root) * np.eye(6), rtol=1e-9)


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
        roots.append(float(state.roots["2x2"][0][0, 0, 0]))
    assert roots[0] == roots[1] == roots[2] != roots[3] == roots[4] == roots[5]


def test_moments_are_averaged_five_times_between_roots():
    """With the decay of as many steps, and corrected for their start at zero."""
    metric = proxlin.Kronecker(decay=0.9, every=10, epsilon=1e-4)
    rng = np.random.default_rng(0)
    grads = [jnp.asarray(rng.normal(size=(3, 2))) for _ in range(11)]
    state = metric.init(grads[0])
    mean = np.zeros((3, 3))
    for step, grad in enumerate(grads):
        before = state
        state = metric.update(state, grad, jnp.asarray(step))
        if step % 2 == 0:
            mean = 0.9**2 * mean + (1 - 0.9**2) * np.asarray(grad @ grad.T)
            np.testing.assert_allclose(state.moments["3x2"][0][0], mean, rtol=1e-12)
        else:
            np.testing.assert_array_equal(flat(state), flat(before))
    unbiased = mean / (1 - 0.9 ** (2 * 6))
    want = root_by_eigenvalues(unbiased, 2, 1e-4)
    np.testing.assert_allclose(state.roots["3x2"][0][0], want, rtol=1e-8)


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
