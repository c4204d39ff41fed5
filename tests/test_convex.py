"""The convex subproblems: the losses that need them, strong duality, and what does not fit."""

from __future__ import annotations

import functools
import itertools
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin.losses.simplex import project_simplex
from tests import cases

K = 4
LOSSES = {"hinge": proxlin.Hinge(), "sparsemax": proxlin.Sparsemax()}
each_loss = pytest.mark.parametrize("name", LOSSES)

# Compilation is most of the time that these tests take, and little is computed.
jit = functools.partial(jax.jit, static_argnums=0)

labels = st.integers(0, K - 1)
seeds = st.integers(0, 2**31)


def vectors(bound: float):
    """Numbers that float32 holds exactly; subnormal ones are flushed by XLA."""
    elements = st.floats(-bound, bound, width=32, allow_subnormal=False)
    return hnp.arrays(np.float64, (K,), elements=elements)


@jit
def value(loss, f, y):
    return loss.value(f[None], y[None])[0]


@jit
def grad(loss, f, y):
    return loss.grad(f[None], y[None])[0]


@jit
def conjugate(loss, a, y):
    return loss.conjugate(a[None], y[None])[0]


@jit
def prox_conjugate(loss, z, y, sigma):
    return loss.prox_conjugate(z[None], y[None], sigma)[0]


@jax.jit
def projected(z):
    return project_simplex(z[None])[0]


def target_of(name: str, label: int, seed: int):
    """A label, or for sparsemax every other time a distribution."""
    if name == "hinge" or seed % 2:
        return jnp.asarray(label)
    return jnp.asarray(np.random.default_rng(seed).dirichlet(np.ones(K)))


def one_hot(y):
    y = np.asarray(y)
    return np.eye(K)[y] if y.ndim == 0 else y


def in_domain(y, seed: int):
    """A point of the domain of the conjugate, on its boundary every third time."""
    mu = np.random.default_rng(seed).dirichlet(np.ones(K))
    if seed % 3 == 0:
        mu[np.argmin(mu)] = 0
        mu /= mu.sum()
    return mu - one_hot(y)


def exact_projection(z) -> np.ndarray:
    """The nearest among the candidates of all supports, in rational numbers."""
    z = [Fraction(float(x)) for x in z]
    best = None
    for size in range(1, len(z) + 1):
        for support in itertools.combinations(range(len(z)), size):
            excess = (sum(z[i] for i in support) - 1) / size
            p = [z[i] - excess if i in support else Fraction(0) for i in range(len(z))]
            distance = sum((a - b) ** 2 for a, b in zip(p, z, strict=True))
            if min(p) >= 0 and (best is None or distance < best[0]):
                best = distance, p
    return np.array([float(x) for x in best[1]])


def reference_projection(z) -> np.ndarray:
    """By the root of the sum in the threshold."""
    excess = lambda tau: np.maximum(z - tau, 0).sum() - 1
    tau = scipy.optimize.brentq(excess, np.max(z) - 1 - 1e-9, np.max(z), xtol=1e-15)
    return np.maximum(z - tau, 0)


def sparsemax(f, y) -> float:
    """The definition, with the reference for the maximiser."""
    mu, y = reference_projection(f), one_hot(y)
    return f @ (mu - y) - 0.5 * (mu @ mu - y @ y)


# ---------------------------------------------------------------- the projection


@given(vectors(4.0))
def test_projection_is_the_nearest_point_of_the_simplex(z):
    np.testing.assert_allclose(projected(z), exact_projection(z), rtol=0, atol=4e-15)


@given(vectors(4.0), st.sampled_from([1e3, 1e6, 1e12, 1e100]))
def test_projection_of_large_entries_loses_no_digits(z, shift):
    z = z + shift * np.sign(z[0] + 0.5)
    got = np.asarray(projected(z))
    np.testing.assert_allclose(got, exact_projection(z), rtol=0, atol=4e-15)
    assert abs(got.sum() - 1) < 1e-14


@pytest.mark.parametrize(
    "z",
    [
        [1.0, 1.0, 1.0, 1.0],
        [0.0, 0.0, -1.0, -1.0],
        [2.0, 2.0, 1.5, 0.0],  # the third is exactly on the threshold of the first two
        [1.0, 0.0, 0.0, 0.0],  # a vertex, with the others on the threshold
        [1e300, 1e300, -1e300, 0.0],
        [0.5, 0.5, 1e-17, 0.0],
    ],
)
def test_projection_with_ties(z):
    got = np.asarray(projected(jnp.asarray(z)))
    np.testing.assert_allclose(got, exact_projection(z), rtol=0, atol=1e-15)
    for i, j in itertools.combinations(range(K), 2):
        assert z[i] != z[j] or got[i] == got[j]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_projection_in_low_precision(dtype):
    z = jnp.asarray(np.random.default_rng(0).normal(size=(50, K)), dtype)
    got = project_simplex(z)
    want = np.stack([exact_projection(row) for row in np.asarray(z, np.float64)])
    assert got.dtype == dtype
    bound = 4 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=0, atol=bound)


# ---------------------------------------------------------------- hinge and sparsemax


@given(vectors(10.0), labels, seeds)
def test_values_by_definition(f, label, seed):
    margins = [f[j] + (j != label) - f[label] for j in range(K)]
    got = value(LOSSES["hinge"], f, jnp.asarray(label))
    np.testing.assert_allclose(got, max(margins), rtol=1e-14, atol=1e-14)
    y = target_of("sparsemax", label, seed)
    got = value(LOSSES["sparsemax"], f, y)
    np.testing.assert_allclose(got, sparsemax(f, y), rtol=1e-12, atol=1e-12)


@each_loss
@given(f=vectors(10.0), label=labels, seed=seeds)
def test_fenchel_young(name, f, label, seed):
    loss, y = LOSSES[name], target_of(name, label, seed)
    a = in_domain(y, seed)
    assert value(loss, f, y) + conjugate(loss, a, y) - f @ a >= -1e-13
    g = np.asarray(grad(loss, f, y))
    at_equality = value(loss, f, y) + conjugate(loss, g, y) - f @ g
    np.testing.assert_allclose(at_equality, 0, atol=1e-13)


@given(f=vectors(5.0), other=vectors(5.0), label=labels)
def test_hinge_subgradient_supports_the_loss(f, other, label):
    loss, y = LOSSES["hinge"], jnp.asarray(label)
    below = value(loss, f, y) + grad(loss, f, y) @ (other - f)
    assert value(loss, other, y) >= below - 1e-13


@given(label=labels, seed=seeds, off=st.booleans())
def test_hinge_conjugate_is_the_value_of_its_linear_program(label, seed, off):
    """The supremum over f, with a bound t on the maximum in its place; unbounded off the domain."""
    y = np.eye(K)[label]
    a = in_domain(label, seed)
    if off:
        a = a + np.random.default_rng(seed).normal(size=K) * 0.1
    program = scipy.optimize.linprog(
        np.append(-(a + y), 1.0),
        A_ub=np.hstack([np.eye(K), -np.ones((K, 1))]),
        b_ub=y - 1,
        bounds=(None, None),
    )
    got = float(conjugate(LOSSES["hinge"], a, jnp.asarray(label)))
    if off:
        assert program.status in (2, 3, 4)  # no optimum: unbounded
        assert got == np.inf
    else:
        np.testing.assert_allclose(got, -program.fun, atol=1e-9)


@given(label=labels, seed=seeds)
def test_sparsemax_conjugate_is_the_supremum(label, seed):
    y = target_of("sparsemax", label, seed)
    a = in_domain(y, seed)
    found = scipy.optimize.minimize(
        lambda f: sparsemax(f, y) - f @ a,
        np.zeros(K),
        jac=lambda f: reference_projection(f) - one_hot(y) - a,
        method="BFGS",
        options={"gtol": 1e-9},
    )
    np.testing.assert_allclose(conjugate(LOSSES["sparsemax"], a, y), -found.fun, atol=1e-8)


@each_loss
@pytest.mark.parametrize("away", [[0.1, 0, 0, 0], [-0.2, 0.1, 0.1, 0], [0, -1e-6, 1e-6, 0]])
def test_conjugate_is_infinite_off_the_domain(name, away):
    loss, y = LOSSES[name], jnp.asarray(3)
    vertex = jnp.asarray([1.0, 0, 0, -1.0])
    assert np.isfinite(conjugate(loss, vertex, y))
    # off the hyperplane of sum zero, or in it but with a negative entry
    assert conjugate(loss, jnp.asarray(away, float), y) == np.inf


def primal_prox(name: str, y, z, sigma: float) -> np.ndarray:
    """The minimizer of the loss plus (sigma / 2) ||f - z / sigma||^2, without any conjugate."""
    y = one_hot(y)
    if name == "sparsemax":
        f = np.zeros(K)
        for _ in range(400):  # gradient steps, which contract by 1 / (1 + sigma)
            f = f - (reference_projection(f) - y + sigma * f - z) / (1 + sigma)
        return f
    free = (y + z) / sigma  # entries below the maximum t stay here, the others are cut to it
    cut = lambda t: np.minimum(free, t - 1 + y)
    balance = lambda t: sigma * np.sum(free - cut(t)) - 1
    top = np.max(free + 1 - y)
    return cut(scipy.optimize.brentq(balance, top - 1 / sigma - 1, top, xtol=1e-15))


@each_loss
@given(z=vectors(4.0), sigma=st.floats(0.1, 10), label=labels, seed=seeds)
def test_moreau(name, z, sigma, label, seed):
    loss, y = LOSSES[name], target_of(name, label, seed)
    got = np.asarray(prox_conjugate(loss, z, y, sigma))
    want = z - sigma * primal_prox(name, y, z, sigma)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-11)
    assert np.isfinite(conjugate(loss, got, y))


def away_from_kinks(f) -> bool:
    """Whether the support stays the same in a neighborhood."""
    f = np.asarray(f)
    mu = reference_projection(f)
    tau = np.max(f) - np.max(mu)
    return np.min(np.abs(f - tau)) > 1e-3


@given(f=vectors(1.5), label=labels, seed=seeds)
def test_sparsemax_derivatives_against_autodiff(f, label, seed):
    if not away_from_kinks(f):
        return
    loss, y = LOSSES["sparsemax"], target_of("sparsemax", label, seed)
    np.testing.assert_allclose(grad(loss, f, y), autodiff_grad(loss, f, y), atol=1e-13)
    # autodiff of the gradient goes through the sort, closed forms do not
    hessian = np.asarray(autodiff_hessian(loss, f, y))
    hvp, outer = curvature(loss, f, y)
    np.testing.assert_allclose(hvp, hessian, atol=1e-13)
    np.testing.assert_allclose(outer, hessian, atol=1e-13)
    size = int((reference_projection(f) > 0).sum())
    assert np.linalg.matrix_rank(hessian, tol=1e-9) == size - 1


@jit
def autodiff_grad(loss, f, y):
    return jax.grad(lambda f: loss.value(f[None], y[None])[0])(f)


@jit
def autodiff_hessian(loss, f, y):
    return jax.jacobian(lambda f: loss.grad(f[None], y[None])[0])(f)


@jit
def curvature(loss, f, y):
    """H and B B^T, column by column."""
    f, y = f[None], y[None]
    basis = jnp.eye(K)[:, None]
    factor = loss.hessian_factor(f, y)
    hvp = jax.vmap(lambda e: loss.hvp(f, y, e)[0], out_axes=-1)(basis)
    return hvp, jax.vmap(lambda e: factor.mv(factor.rmv(e))[0], out_axes=-1)(basis)


@given(f=vectors(1.5), rhs=vectors(3.0), shift=st.floats(1e-2, 10))
def test_sparsemax_shifted_solve(f, rhs, shift):
    loss, y = LOSSES["sparsemax"], jnp.asarray(0)
    f, rhs = jnp.asarray(f), jnp.asarray(rhs)
    got = loss.shifted_solve(f[None], y[None], jnp.full((1, 1), shift), rhs[None])[0]
    matrix = np.asarray(curvature(loss, f, y)[0]) + shift * np.eye(K)
    np.testing.assert_allclose(got, np.linalg.solve(matrix, rhs), rtol=1e-10, atol=1e-10)


@given(f=vectors(5.0), label=labels)
def test_hinge_takes_labels_or_one_hot_rows_but_no_soft_targets(f, label):
    loss, row = LOSSES["hinge"], jnp.eye(K)[label]
    assert value(loss, f, row) == value(loss, f, jnp.asarray(label))
    np.testing.assert_array_equal(grad(loss, f, row), grad(loss, f, jnp.asarray(label)))
    soft = row.at[label].add(-0.5).at[label - 1].add(0.5)
    outputs = jnp.stack([f, f])
    np.testing.assert_array_equal(loss.valid(outputs, jnp.stack([row, soft])), [True, False])


# ---------------------------------------------------------------- strong duality

CONVEX = {
    "squared": proxlin.Squared(),
    "logistic": proxlin.Logistic(),
    "binary": proxlin.BinaryLogistic(),
    "sparsemax": proxlin.Sparsemax(),
}
EXACT = proxlin.ProximalGradient(5000, gap=1e-13)
WAYS = {
    "primal": (proxlin.primal_convex, EXACT),
    "lbfgs": (proxlin.primal_convex, proxlin.LBFGS(300)),
    "dual": (proxlin.dual_convex, EXACT),
}
# Ones are an array too, so that one compilation serves both; None is left to other tests.
WEIGHTS = {"mean": jnp.ones(6), "weighted": jnp.asarray([1.0, 2.0, 0.5, 0.0, 3.0, 1.0])}
each_gamma = pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
each_weighting = pytest.mark.parametrize("weighting", WEIGHTS)


def problem(name: str) -> tuple[Any, Any, Any]:
    return cases.problem("logistic" if name in ("sparsemax", "hinge") else name, jnp.float64)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def direction(loss, way, regularizer, size, params, inputs, targets, gamma, weights):
    subproblem, solver = WAYS[way]
    fn = proxlin.value_and_direction(
        cases.network,
        loss,
        subproblem=subproblem,
        solver=solver,
        regularizer=regularizer,
        curvature_size=size,
    )
    return fn(params, inputs, targets, gamma=gamma, weights=weights)


def solve(name: str, way: str, gamma, weights, regularizer=proxlin.Zero(), size=None):
    loss = LOSSES.get(name) or CONVEX[name]
    return direction(loss, way, regularizer, size, *problem(name), gamma, weights)


def convex_subproblem(loss, params, inputs, targets, d, gamma, weights, regularizer=None):
    """The objective of the subproblem, from its definition."""
    outputs, change = jax.jvp(lambda w: cases.network(w, inputs), (params,), (d,))
    values = loss.value(outputs - change, targets)
    total = jnp.sum(weights * values) / jnp.sum(weights)
    total += sum(jnp.sum(x**2) for x in jax.tree.leaves(d)) / (2 * gamma)
    if regularizer is not None:
        total += regularizer.value(jax.tree.map(jnp.subtract, params, d))
    return float(total)


@each_gamma
@each_weighting
@pytest.mark.parametrize("name", CONVEX)
def test_strong_duality(name, gamma, weighting):
    weights = WEIGHTS[weighting]
    solved = {way: solve(name, way, gamma, weights) for way in WAYS}
    want = cases.flat(solved["primal"][1])
    for (value, info), d in solved.values():
        assert cases.relative_error(cases.flat(d), want) < 1e-6
        assert info.primal >= info.dual - 1e-15
        assert info.gap < 1e-12
        assert info.slope > 0
        by_hand = convex_subproblem(CONVEX[name], *problem(name), d, gamma, weights)
        np.testing.assert_allclose(info.primal, by_hand, rtol=1e-13)
        np.testing.assert_allclose(info.predicted, value - by_hand, atol=1e-13)
        np.testing.assert_allclose(info.slope, cases.flat(d) @ cases.flat(info.grad), rtol=1e-12)


def test_the_gap_bounds_the_error():
    """Few steps leave a gap, and the subproblem is no further from its minimum than that."""
    loss, problem_ = CONVEX["logistic"], problem("logistic")
    best = solve("logistic", "primal", 10.0, WEIGHTS["mean"])[0][1].primal
    for subproblem in (proxlin.primal_convex, proxlin.dual_convex):
        gaps = []
        for steps in (0, 20):
            solver = proxlin.ProximalGradient(steps)
            fn = proxlin.value_and_direction(
                cases.network, loss, subproblem=subproblem, solver=solver
            )
            (_, info), d = jax.jit(fn)(*problem_, gamma=10.0)
            error = convex_subproblem(loss, *problem_, d, 10.0, WEIGHTS["mean"]) - best
            assert -1e-13 <= error <= info.gap
            assert info.dual <= best
            gaps.append(float(info.gap))
        assert gaps[-1] < 0.1 * gaps[0]


def test_strong_duality_with_a_regularizer():
    regularizer = proxlin.L1(0.02)
    (_, primal), d_primal = solve("logistic", "primal", 3.0, None, regularizer)
    (_, dual), d_dual = solve("logistic", "dual", 3.0, None, regularizer)
    assert max(primal.gap, dual.gap) < 1e-12
    assert cases.relative_error(cases.flat(d_dual), cases.flat(d_primal)) < 1e-6
    by_hand = convex_subproblem(
        CONVEX["logistic"], *problem("logistic"), d_dual, 3.0, jnp.ones(6), regularizer
    )
    np.testing.assert_allclose(dual.primal, by_hand, rtol=1e-13)
    params = problem("logistic")[0]
    zeros = cases.flat(params) - cases.flat(d_dual) == 0
    assert 0 < zeros.sum() < zeros.size
    np.testing.assert_array_equal(zeros, cases.flat(params) - cases.flat(d_primal) == 0)


def test_strong_duality_with_curvature_from_a_part_of_the_batch():
    """The gradient is that of the whole batch, and both sides are corrected for it alike."""
    solved = {way: solve("logistic", way, 3.0, None, size=2) for way in ("primal", "dual")}
    want = cases.flat(solved["primal"][1])
    for (_, info), d in solved.values():
        assert cases.relative_error(cases.flat(d), want) < 1e-6
        assert info.gap < 1e-12
        assert info.slope > 0
    whole = cases.flat(solve("logistic", "primal", 3.0, WEIGHTS["mean"])[1])
    assert cases.relative_error(want, whole) > 1e-2


@pytest.mark.parametrize("solver", [proxlin.CG(300), proxlin.Cholesky()], ids=["cg", "cholesky"])
def test_squared_dual_is_a_linear_system(solver):
    problem_ = problem("squared")
    both = [
        proxlin.value_and_direction(
            cases.network, CONVEX["squared"], subproblem=subproblem, solver=solver
        )(*problem_, gamma=2.0, weights=WEIGHTS["weighted"])[1]
        for subproblem in (proxlin.dual_convex, proxlin.dual_quadratic)
    ]
    np.testing.assert_array_equal(*map(cases.flat, both))
    (_, info), proximal = solve("squared", "dual", 2.0, WEIGHTS["weighted"])
    assert info.gap < 1e-12
    assert cases.relative_error(cases.flat(both[0]), cases.flat(proximal)) < 1e-6


def small_hinge_problem():
    params, inputs, targets = cases.problem("logistic", jnp.float64, m=4, hidden=2, features=3)
    # Steep enough that some margins are violated and others are not.
    return jax.tree.map(lambda w: 1.5 * w, params), inputs, targets


def hinge_quadratic_program(gamma: float, weights) -> np.ndarray:
    """The direction by SLSQP: minimize over d and a bound t_i on the maximum of each example."""
    params, inputs, targets = small_hinge_problem()
    flat, unravel = ravel_pytree(params)
    outputs = np.asarray(cases.network(params, inputs))
    jacobian = np.asarray(jax.jacobian(lambda w: cases.network(unravel(w), inputs))(flat))
    m, k, p = jacobian.shape
    y = np.eye(k)[np.asarray(targets)]
    w = np.asarray(weights) / np.sum(weights)
    linear = np.append(np.einsum("n,nk,nkp->p", w, y, jacobian), w)
    # t_i >= f_ij - (J d)_ij + 1 - y_ij for all i and j
    rows = np.hstack([jacobian.reshape(m * k, p), np.repeat(np.eye(m), k, axis=0)])
    bound = (outputs + 1 - y).reshape(-1)
    quadratic = np.append(np.ones(p) / gamma, np.zeros(m))
    found = scipy.optimize.minimize(
        lambda x: linear @ x + 0.5 * x @ (quadratic * x),
        np.append(np.zeros(p), (outputs + 1 - y).max(axis=1)),
        jac=lambda x: linear + quadratic * x,
        constraints={"type": "ineq", "fun": lambda x: rows @ x - bound, "jac": lambda x: rows},
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 2000},
    )
    return found.x[:p]


@each_gamma
@each_weighting
def test_hinge_direction_solves_its_quadratic_program(gamma, weighting):
    weights = WEIGHTS[weighting][jnp.asarray([0, 1, 2, 4])]
    params, inputs, targets = small_hinge_problem()
    (_, info), d = direction(
        LOSSES["hinge"], "dual", proxlin.Zero(), None, params, inputs, targets, gamma, weights
    )
    want = hinge_quadratic_program(gamma, weights)
    assert cases.relative_error(cases.flat(d), want) < 1e-6
    assert abs(info.gap) < 1e-12
    by_hand = convex_subproblem(LOSSES["hinge"], params, inputs, targets, d, gamma, weights)
    np.testing.assert_allclose(info.primal, by_hand, rtol=1e-13)


# ---------------------------------------------------------------- what does not fit

HINGE, LOGISTIC = LOSSES["hinge"], CONVEX["logistic"]
CG, LBFGS = proxlin.CG(2), proxlin.LBFGS()
UNFIT: dict[str, Any] = {
    "hinge dual_quadratic": (
        HINGE,
        {"subproblem": proxlin.dual_quadratic},
        r"dual_quadratic needs a Hessian factor, which Hinge\(\) .*dual_convex with Proximal",
    ),
    "hinge primal_quadratic": (
        HINGE,
        {"subproblem": proxlin.primal_quadratic},
        r"primal_quadratic needs a Hessian factor, which Hinge\(\) .*subproblem=dual_convex",
    ),
    "hinge two passes": (
        HINGE,
        {"subproblem": proxlin.DualQuadratic(passes=2)},
        r"dual_quadratic needs a Hessian factor",
    ),
    "hinge primal_convex": (
        HINGE,
        {"subproblem": proxlin.primal_convex},
        r"primal_convex needs a smooth loss, which Hinge\(\) is not; use subproblem=dual_convex",
    ),
    "function dual_convex": (
        cases.LOSSES["function"],
        {"subproblem": proxlin.dual_convex},
        r"dual_convex needs a conjugate.*FromFunction\(fn, conjugate=.*subproblem=primal_convex",
    ),
    "cg primal_convex": (
        LOGISTIC,
        {"subproblem": proxlin.primal_convex, "solver": CG},
        r"CG\(max_steps=2\) cannot solve primal_convex with Logistic\(\); use Proximal.*LBFGS",
    ),
    "cg dual_convex": (
        LOGISTIC,
        {"subproblem": proxlin.dual_convex, "solver": CG},
        r"CG\(max_steps=2\) cannot solve dual_convex with Logistic\(\); use ProximalGradient\(\)$",
    ),
    "cg dual_convex squared l1": (
        CONVEX["squared"],
        {"subproblem": proxlin.dual_convex, "solver": CG, "regularizer": proxlin.L1(0.1)},
        r"CG\(max_steps=2\) cannot solve dual_convex with Squared\(\) and a regularizer",
    ),
    "lbfgs regularizer": (
        LOGISTIC,
        {"subproblem": proxlin.primal_convex, "solver": LBFGS, "regularizer": proxlin.L1(0.1)},
        r"LBFGS\(.*cannot solve primal_convex with Logistic\(\) and a regularizer; use Proximal",
    ),
    "lbfgs dual_convex": (
        LOGISTIC,
        {"subproblem": proxlin.dual_convex, "solver": LBFGS},
        r"LBFGS\(.*cannot solve dual_convex with Logistic\(\); use ProximalGradient",
    ),
    "lbfgs dual_quadratic": (
        LOGISTIC,
        {"subproblem": proxlin.dual_quadratic, "solver": LBFGS},
        r"LBFGS\(.*cannot solve dual_quadratic .*use CG\(max_steps\), Multi.*, QR\(\) or SVD\(\)",
    ),
    "proximal gradient dual_quadratic": (
        LOGISTIC,
        {"subproblem": proxlin.dual_quadratic, "solver": EXACT},
        r"ProximalGradient\(.*cannot solve dual_quadratic .*use CG\(max_steps\), Multi.* Chol",
    ),
    "cg primal_quadratic l1": (
        LOGISTIC,
        {"subproblem": proxlin.primal_quadratic, "solver": CG, "regularizer": proxlin.L1(0.1)},
        r"CG\(max_steps=2\) cannot solve primal_quadratic .*and a regularizer; use Proximal",
    ),
    "not a regularizer": (
        LOGISTIC,
        {"regularizer": 0.1},
        r"regularizer must be a Regularizer such as L1\(1e-3\), not 0.1",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
@pytest.mark.usefixtures("unchecked")
def test_what_does_not_fit_says_what_would(case):
    loss, options, message = UNFIT[case]
    with pytest.raises(TypeError, match=message):
        proxlin.value_and_direction(cases.network, loss, **options)
    with pytest.raises(TypeError, match=message):
        proxlin.prox_linear(cases.network, loss, **options)


def test_model_step_rejects_a_regularizer():
    with pytest.raises(TypeError, match=r"ModelStep\(.*does not support regularizers; use Armijo"):
        proxlin.prox_linear(
            cases.network, LOGISTIC, step=proxlin.ModelStep(), regularizer=proxlin.L1(0.1)
        )


def test_hinge_has_no_hessian_factor():
    with pytest.raises(TypeError, match="dual_convex with ProximalGradient"):
        HINGE.hessian_factor(jnp.zeros((1, 2)), jnp.zeros(1, int))


@pytest.mark.parametrize("solver", [proxlin.ProximalGradient, proxlin.LBFGS])
@pytest.mark.parametrize("steps", [-1, 2.5])
@pytest.mark.usefixtures("unchecked")
def test_solvers_reject_bad_numbers_of_steps(solver, steps):
    with pytest.raises(ValueError, match=rf"{solver.__name__}\(max_steps={steps}\)"):
        solver(steps)


def test_dual_convex_needs_a_finite_gamma():
    fn = proxlin.value_and_direction(cases.network, LOGISTIC, subproblem=proxlin.dual_convex)
    with pytest.raises(ValueError, match="use subproblem=primal_convex"):
        fn(*problem("logistic"), gamma=jnp.inf)


# ---------------------------------------------------------------- what is reported is of d


@pytest.mark.parametrize("subproblem", [proxlin.primal_convex, proxlin.primal_quadratic])
@pytest.mark.parametrize("gamma", [1.0, 10.0, 1000.0])
def test_the_value_that_is_reported_is_that_of_the_direction(subproblem, gamma):
    """After a few steps on a badly scaled problem, where the end of the prox arc is far off."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3)) * np.array([1.0, 1.0, 30.0])
    y = x @ np.array([[1.0], [-0.5], [0.1]])
    w, strength = jnp.full((3, 1), 0.1), 0.01
    fn = proxlin.value_and_direction(
        lambda w, x: x @ w,
        proxlin.Squared(),
        subproblem=subproblem,
        solver=proxlin.ProximalGradient(10),
        regularizer=proxlin.L1(strength),
    )
    (value, info), d = fn(w, x, y, gamma=gamma)
    d = np.asarray(d)
    # for the squared loss both models are the loss itself
    want = 0.5 * np.mean((x @ (w - d) - y) ** 2) + np.sum(d**2) / (2 * gamma)
    want += strength * np.sum(np.abs(w - d))
    np.testing.assert_allclose(info.primal, want, rtol=1e-10)
    np.testing.assert_allclose(info.predicted, value + info.penalty - want, rtol=1e-8)
    assert info.gap >= 0
    if info.predicted < 0:
        assert info.status == proxlin.Status.INEXACT


def test_an_infinite_gamma_in_the_primal():
    """The model itself is minimized; the error of the dual says so, and a regularizer cannot."""
    x, y = jnp.eye(3)[:, :2], jnp.array([[1.0], [2.0], [0.0]])
    problem = (lambda w, x: x @ w, proxlin.Squared())
    batch, inf = (jnp.zeros((2, 1)), x, y), jnp.inf
    fn = proxlin.value_and_direction(
        *problem, subproblem=proxlin.primal_convex, solver=proxlin.ProximalGradient(500)
    )
    (_, info), d = fn(*batch, gamma=inf)
    np.testing.assert_allclose(-d, [[1.0], [2.0]], atol=1e-6)
    assert info.status == proxlin.Status.OK and info.gap == inf  # there is no dual
    for subproblem in (proxlin.primal_convex, proxlin.primal_quadratic):
        fn = proxlin.value_and_direction(
            *problem, subproblem=subproblem, regularizer=proxlin.L1(0.1)
        )
        with pytest.raises(ValueError, match="a regularizer needs a finite gamma"):
            fn(*batch, gamma=inf)
        assert jax.jit(fn)(*batch, gamma=inf)[0][1].status == proxlin.Status.BAD_VALUE
