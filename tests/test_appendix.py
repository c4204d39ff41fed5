"""What the analysis and the appendix of the paper prove, on numbers."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import proxlin
from proxlin.proximity import Proximity
from proxlin.solvers import LinearSolver
from tests import cases

seeds = st.integers(0, 2**31)


# ---------------------------------------------------------------- conjugates of quadratics

SINGULAR = {
    "logistic": (proxlin.Logistic(), jnp.asarray([1])),
    "sparsemax": (proxlin.Sparsemax(), jnp.asarray([1])),
    "function": (proxlin.FromFunction(cases.softmax_cross_entropy), jnp.asarray([1])),
}


@pytest.mark.parametrize("name", SINGULAR)
@given(seed=seeds)
def test_conjugate_of_a_singular_quadratic(name, seed):
    """Half <v, A^+ v> on the range, which is half ||u||^2 for the least u with B u = v."""
    rng = np.random.default_rng(seed)
    loss, y = SINGULAR[name]
    hessian, b = matrices(loss, y, jnp.asarray(rng.normal(size=(1, 4))))
    hessian, b = np.asarray(hessian), np.asarray(b)
    pseudo_inverse = np.linalg.pinv(hessian, rcond=1e-9)
    on_null = np.eye(4) - hessian @ pseudo_inverse
    quadratic = lambda w, v: v @ w - 0.5 * w @ hessian @ w

    u = rng.normal(size=4)
    v = b @ u
    # rounding of a vanishing eigenvalue, under the root of the generic factor
    np.testing.assert_allclose(on_null @ v, 0, atol=1e-7)
    v = v - on_null @ v  # or else the supremum is infinite
    closed = 0.5 * v @ pseudo_inverse @ v
    found = scipy.optimize.minimize(
        lambda w: -quadratic(w, v), np.zeros(4), jac=lambda w: hessian @ w - v, tol=1e-9
    )
    np.testing.assert_allclose(-found.fun, closed, atol=1e-8)
    least = np.linalg.lstsq(b, v, rcond=1e-6)[0]
    np.testing.assert_allclose(0.5 * least @ least, closed, rtol=1e-6, atol=1e-9)
    assert closed <= 0.5 * u @ u + 1e-7

    off = v + rng.normal() * np.ones(4)  # a constant is in the null space of all three
    away = on_null @ off
    assert away @ away > 0
    for t in (1.0, 1e3, 1e6):  # unbounded along the null space, at the rate of the proof
        gained = quadratic(t * away, off)
        np.testing.assert_allclose(gained, t * away @ away, rtol=1e-6, atol=1e-6)


@functools.partial(jax.jit, static_argnums=0)
def matrices(loss, y, f):
    factor = loss.hessian_factor(f, y)
    columns = jax.vmap(lambda e: factor.mv(e)[0], out_axes=-1)
    return loss.hessian(f, y)[0], columns(jnp.eye(4)[:, None])


# ---------------------------------------------------------------- the bound on r*

REGULARIZERS = {
    "zero": proxlin.Zero(),
    "l1": proxlin.L1(0.4),
    "ridge": proxlin.SquaredL2(0.4),
    "elastic": proxlin.ElasticNet(0.4, 0.3),
    "group": proxlin.GroupL2(0.4),
}
each_regularizer = pytest.mark.parametrize("name", REGULARIZERS)
SHAPE = (3, 2)
numbers = st.floats(-3, 3, width=32, allow_subnormal=False)
points = hnp.arrays(np.float64, SHAPE, elements=numbers)
gammas = st.sampled_from([0.25, 1.0, 8.0])


@functools.partial(jax.jit, static_argnums=0)
def proximity_at(name, gamma, w, u, d):
    r = Proximity(gamma, w, REGULARIZERS[name])
    return r.conjugate(u), r.conjugate_grad(u), r.value(d), r.strength


@functools.partial(jax.jit, static_argnums=0)
def slope_of_conjugate(name, gamma, w, u):
    r = Proximity(gamma, w, REGULARIZERS[name])
    step = 1e-6
    basis = jnp.eye(u.size).reshape(-1, *u.shape)
    ends = [jax.vmap(lambda e, s=s: r.conjugate(u + s * e))(basis) for s in (step, -step)]
    differences = ((ends[0] - ends[1]) / (2 * step)).reshape(u.shape)
    return differences, jax.grad(r.conjugate)(u)


@each_regularizer
@given(w=points, u=points, v=points, gamma=gammas)
def test_quadratic_bound_on_the_conjugate(name, w, u, v, gamma):
    at_u, slope, value, mu = proximity_at(name, gamma, w, u, v)
    at_v, _, _, _ = proximity_at(name, gamma, w, v, v)
    assert mu == 1 / gamma + REGULARIZERS[name].modulus
    bound = at_u + np.sum(slope * (v - u)) + np.sum((u - v) ** 2) / (2 * mu)
    scale = 1e-12 * (1 + abs(bound))
    assert at_v <= bound + scale
    if name in ("zero", "ridge"):  # squares are their own bound
        np.testing.assert_allclose(at_v, bound, rtol=1e-12, atol=1e-12)
    assert at_v >= at_u + np.sum(slope * (v - u)) - scale  # convex
    # Fenchel-Young, v in the place of any direction
    assert at_u >= np.sum(u * v) - value - scale


@each_regularizer
@given(w=points, u=points, gamma=gammas)
def test_gradient_of_the_conjugate(name, w, u, gamma):
    want = proximity_at(name, gamma, w, u, u)[1]
    differences, automatic = slope_of_conjugate(name, gamma, w, u)
    np.testing.assert_allclose(differences, want, atol=2e-5)
    if name != "group":  # whose norms autodiff cannot differentiate at zero
        np.testing.assert_allclose(automatic, want, atol=1e-12)


# ---------------------------------------------------------------- conditioning


class Spy(LinearSolver):
    """Keeps the system it is given."""

    def solve(self, system):
        self.system = system
        return proxlin.CG(1).solve(system)


@functools.cache
def systems(gamma: float):
    """The systems of both subproblems, with more parameters than outputs, and the Jacobian."""
    params, inputs, targets = cases.problem("squared", jnp.float64, m=3)
    seen = {}
    for name, subproblem in cases.SUBPROBLEMS.items():
        spy = Spy()
        fn = proxlin.value_and_direction(
            cases.network, proxlin.Squared(), subproblem=subproblem, solver=spy
        )
        fn(params, inputs, targets, gamma=gamma)
        seen[name] = spy.system
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    jacobian = jax.jacobian(lambda w: cases.network(unravel(w), inputs))(flat)
    return seen["primal"], seen["dual"], np.asarray(jacobian).reshape(-1, flat.size)


def matrix_of(system) -> tuple[np.ndarray, np.ndarray]:
    """shift I + M* M and the right-hand side, dense."""
    rhs = system.rhs if system.rhs is not None else system.adjoint(system.data)
    flat, unravel = jax.flatten_util.ravel_pytree(rhs)

    def product(e):
        x = unravel(e)
        image = jax.flatten_util.ravel_pytree(system.adjoint(system.forward(x)))[0]
        return image + system.shift * e

    return np.asarray(jax.vmap(product)(jnp.eye(flat.size))), np.asarray(flat)


@pytest.mark.parametrize("gamma", [20.0])
def test_condition_numbers(gamma):
    m = 3
    primal, dual, jacobian = systems(gamma)
    outputs, p = jacobian.shape
    assert p > outputs
    squares = np.linalg.svd(jacobian, compute_uv=False) ** 2
    largest, smallest = squares[0], squares[-1]
    kappa_primal = 1 + gamma * largest / m
    kappa_dual = (largest + m / gamma) / (smallest + m / gamma)
    for system, kappa, size in ((primal, kappa_primal, p), (dual, kappa_dual, outputs)):
        matrix = matrix_of(system)[0]
        assert len(matrix) == size
        eigenvalues = np.linalg.eigvalsh(matrix)
        np.testing.assert_allclose(eigenvalues[-1] / eigenvalues[0], kappa, rtol=1e-9)
    assert kappa_dual < kappa_primal
    # with the shift as printed it would be another number
    printed = (largest + gamma / m) / (smallest + gamma / m)
    assert abs(printed - kappa_dual) > 1e-3 * kappa_dual


@pytest.mark.parametrize("gamma", [20.0])
@pytest.mark.parametrize("which", [0, 1], ids=["primal", "dual"])
def test_conjugate_gradients_converge_at_the_rate_of_the_condition_number(which, gamma):
    system = systems(gamma)[which]
    matrix, rhs = matrix_of(system)
    solution = np.linalg.solve(matrix, rhs)
    norm = lambda x: float(np.sqrt(x @ matrix @ x))
    eigenvalues = np.linalg.eigvalsh(matrix)
    root = np.sqrt(eigenvalues[-1] / eigenvalues[0])
    rate = (root - 1) / (root + 1)
    errors = []
    for steps in range(1, 8):
        x = cases.flat(proxlin.CG(steps).solve(system).x)
        errors.append(norm(x - solution))
        assert errors[-1] <= 2 * rate**steps * norm(solution) * (1 + 1e-9)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.5 * errors[0]


# ---------------------------------------------------------------- critical points

SUBPROBLEMS = cases.SUBPROBLEMS | {
    "dual_convex": proxlin.dual_convex,
    "primal_convex": proxlin.primal_convex,
}


@functools.cache
def compiled(name, subproblem, solver):
    return jax.jit(
        proxlin.value_and_direction(
            cases.network,
            cases.LOSSES[name],
            subproblem=SUBPROBLEMS[subproblem],
            solver=solver,
        )
    )


@pytest.mark.parametrize("gamma", [0.1, 100.0])
@pytest.mark.parametrize("subproblem", SUBPROBLEMS)
@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_the_direction_vanishes_at_a_minimum(name, subproblem, gamma):
    params, inputs, _ = cases.problem(name, jnp.float64)
    outputs = cases.network(params, inputs)
    # targets that no outputs could fit better
    targets = outputs if name == "squared" else jax.nn.softmax(outputs)
    solver = proxlin.ProximalGradient(5) if "convex" in subproblem else None
    (_, info), d = compiled(name, subproblem, solver)(params, inputs, targets, gamma=gamma)
    np.testing.assert_allclose(cases.flat(info.grad), 0, atol=1e-15)
    np.testing.assert_allclose(cases.flat(d), 0, atol=1e-15 * max(gamma, 1))


@pytest.mark.parametrize("subproblem", cases.SUBPROBLEMS)
def test_the_direction_vanishes_at_a_saddle(subproblem):
    """A zero direction means a critical point, not a minimum."""
    params, inputs, targets = cases.problem("squared", jnp.float64)
    params = jax.tree.map(jnp.zeros_like, params)
    (value, info), d = compiled("squared", subproblem, None)(params, inputs, targets, gamma=10.0)
    assert np.all(cases.flat(d) == 0)
    assert np.all(cases.flat(info.grad) == 0)
    # constant units that output the mean of the targets do better
    better = params | {
        "b1": jnp.ones_like(params["b1"]),
        "w2": jnp.broadcast_to(targets.mean(axis=0) / (4 * np.tanh(1)), params["w2"].shape),
    }
    assert jnp.mean(proxlin.Squared().value(cases.network(better, inputs), targets)) < value


@pytest.mark.parametrize("name", ["squared", "logistic"])
@pytest.mark.parametrize("gamma", [0.1, 100.0])
def test_the_direction_vanishes_at_critical_points_only(name, gamma):
    """It is the gradient, divided by at most 1 / gamma plus the largest curvature."""
    problem = cases.problem(name, jnp.float64)
    gradient, gauss_newton = (np.asarray(a) for a in cases.dense(name, *problem))
    largest = np.linalg.eigvalsh(gauss_newton)[-1]
    d = cases.flat(compiled(name, "dual", proxlin.Cholesky())(*problem, gamma=gamma)[1])
    least = np.linalg.norm(gradient) / (1 / gamma + largest)
    assert least > 1e-4
    assert np.linalg.norm(d) >= least
    assert np.linalg.norm(d) <= gamma * np.linalg.norm(gradient)


# ---------------------------------------------------------------- approximation error

READOUT = np.array([1.0, -0.7, 0.5, 0.9])
FEATURES = 3
TANH_CURVATURE = 4 / (3 * np.sqrt(3))  # the maximum of |tanh''|


def unit(w, inputs):
    """One output, linear in tanh units whose readout is fixed, so that constants are global."""
    return jnp.tanh(inputs @ w[:-1] + w[-1:]) @ jnp.asarray(READOUT)[:, None]


def pseudo_huber(f, y):
    return jnp.sum(jnp.sqrt(1 + (f - y) ** 2) - 1)


# With the Lipschitz constants of the loss and of its derivative.
SMOOTH = {
    "logistic": (proxlin.BinaryLogistic(), 1.0, 0.25),
    "huber": (proxlin.FromFunction(pseudo_huber), 1.0, 1.0),
}


@functools.partial(jax.jit, static_argnums=0)
def errors(name, w, u, x, y):
    """The errors at w + u of the partial and of the full linearization, for each example."""
    loss = SMOOTH[name][0]
    lin = proxlin.linearize(unit, w, x)
    change = lin.jvp(u)
    truth = loss.value(unit(w + u, x), y)
    partial = loss.value(lin.outputs + change, y)
    slope = jnp.sum(loss.grad(lin.outputs, y) * change, axis=-1)
    full = loss.value(lin.outputs, y) + slope
    return jnp.abs(truth - partial), jnp.abs(truth - full)


def constants(x) -> tuple[np.ndarray, np.ndarray]:
    """Global bounds, proven and not sampled: the Hessian is block diagonal, a_j tanh'' z z^T.

    So L_f = max |a_j| max |tanh''| ||z||^2 and C_f = ||a|| ||z|| for the inputs z = (x, 1).
    """
    square = np.sum(x**2, axis=-1) + 1
    return np.abs(READOUT).max() * TANH_CURVATURE * square, np.linalg.norm(READOUT) * np.sqrt(
        square
    )


def sample(seed: int):
    rng = np.random.default_rng(seed)
    w, u = rng.normal(size=(2, FEATURES + 1, len(READOUT)))
    return w, u, rng.normal(size=(5, FEATURES)), rng.uniform(size=(5, 1))


@pytest.mark.parametrize("name", SMOOTH)
@given(seed=seeds, size=st.sampled_from([1e-3, 0.1, 1.0, 10.0]))
def test_error_bounds_of_the_linearizations(name, seed, size):
    w, u, x, y = sample(seed)
    u = size * u
    curvature, slope = constants(x)
    _, c, ell = SMOOTH[name]
    partial, full = (np.asarray(e) for e in errors(name, w, u, x, y))
    square = np.sum(u**2)
    rounding = 1e-14 * (1 + size)
    assert np.all(partial <= c * curvature / 2 * square + rounding)
    assert np.all(full <= (c * curvature + slope**2 * ell) / 2 * square + rounding)


@pytest.mark.parametrize("name", SMOOTH)
def test_constants_of_the_bounds_hold(name):
    """The constants themselves, at sampled points: none is exceeded, none is far too large."""
    _, c, ell = SMOOTH[name]
    loss = SMOOTH[name][0]
    f = np.linspace(-20, 20, 2001)[:, None]
    y = np.full_like(f, 0.3)
    slopes = np.abs(np.asarray(loss.grad(jnp.asarray(f), jnp.asarray(y))))
    bends = np.asarray(loss.hessian(jnp.asarray(f), jnp.asarray(y)))
    assert 0.5 * c < slopes.max() <= c
    assert 0.9 * ell < bends.max() <= ell + 1e-12
    largest = np.zeros(2)
    single = lambda w, x: unit(w.reshape(FEATURES + 1, -1), x[None])[0, 0]
    each = lambda derivative: jax.jit(jax.vmap(derivative(single), (None, 0)))
    hessian, gradient = each(jax.hessian), each(jax.grad)
    for seed in range(20):
        w, _, x, _ = sample(seed)
        at = jnp.asarray(w.ravel()), jnp.asarray(x)
        found = np.linalg.norm(hessian(*at), 2, axis=(1, 2)), np.linalg.norm(gradient(*at), axis=1)
        shares = np.array([np.max(a / b) for a, b in zip(found, constants(x), strict=True)])
        largest = np.maximum(largest, shares)
    assert np.all(largest <= 1 + 1e-12)
    assert np.all(largest > 0.7)


@pytest.mark.parametrize("name", SMOOTH)
def test_ratio_of_the_errors_on_random_directions(name):
    """The partial linearization has the better bound; the better error it has near a fit.

    Away from one, where the slope of the loss is as large as its constant, both share the error
    of the network, and neither is better for all directions.
    """
    near, far = [], []
    for seed in range(100):
        w, u, x, y = sample(seed)
        f = np.asarray(unit(w, x))
        sigmoid = 1 / (1 + np.exp(-f))
        nearly, hardly = {
            "logistic": (sigmoid + 0.02 * (0.5 - sigmoid), np.round(y)),
            "huber": (f + 0.01, f + 2),
        }[name]
        for ratios, targets in ((near, nearly), (far, hardly)):
            partial, full = (np.asarray(e) for e in errors(name, w, 0.1 * u, x, targets))
            ratios.append(partial / full)
    near, far = np.concatenate(near), np.concatenate(far)
    assert np.median(near) < 0.5
    assert np.mean(near < 1) > 0.7
    assert 0.05 < np.mean(far > 1) < 0.95
