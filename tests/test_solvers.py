"""Linear solvers on dense systems: against NumPy, textbook iterates and exact arithmetic."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import cast

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin.solvers import cg
from tests import cases

DTYPES = [jnp.float32, jnp.float64]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
FORMS = ["rhs", "data", "preimage"]
SHAPES = {"tall": (9, 6), "wide": (6, 9)}  # image, x

TREES = {
    6: {"a": jnp.zeros((2, 2)), "b": jnp.zeros(2)},
    9: (jnp.zeros((2, 3)), [jnp.zeros(1), jnp.zeros((1, 2))]),
}


def matrix(shape, spectrum, seed: int = 0):
    """A random matrix with these singular values."""
    rng = np.random.default_rng(seed)
    u, _, vt = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
    return (u * spectrum) @ vt


def given(a, form: str, seed: int = 1):
    """What a system of that form is given, in float64."""
    rng = np.random.default_rng(seed)
    if form == "rhs":
        return {"rhs": rng.normal(size=a.shape[1])}
    if form == "data":
        return {"data": rng.normal(size=a.shape[0])}
    v = rng.normal(size=a.shape[1])
    return {"data": a @ v, "preimage": v}


def system_of(a, shift, vectors, trees: bool = False):
    """The NormalSystem of a matrix, on flat vectors or on pytrees."""
    a, shift = jnp.asarray(a), jnp.asarray(shift, a.dtype)
    vectors = {name: jnp.asarray(v, a.dtype) for name, v in vectors.items()}
    if not trees:
        return proxlin.NormalSystem(lambda x: a @ x, lambda y: a.T @ y, shift, **vectors)
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(a.dtype), tree)
    to_image, to_x = (ravel_pytree(cast(TREES[n]))[1] for n in a.shape)
    ravel = lambda tree: ravel_pytree(tree)[0]
    spaces = {"rhs": to_x, "data": to_image, "preimage": to_x}
    return proxlin.NormalSystem(
        lambda x: to_image(a @ ravel(x)),
        lambda y: to_x(a.T @ ravel(y)),
        shift,
        **{name: spaces[name](v) for name, v in vectors.items()},
    )


@functools.partial(jax.jit, static_argnames=("solver", "trees"))
def solve(solver, a, shift, vectors, trees=False):
    return solver.solve(system_of(a, shift, vectors, trees))


def reference(a, shift, vectors):
    """x and misfit in float64."""
    a = np.asarray(a, np.float64)
    vectors = {name: np.asarray(v, np.float64) for name, v in vectors.items()}
    source = vectors.get("data", np.zeros(a.shape[0]))
    rhs = vectors.get("rhs", a.T @ source)
    x = np.linalg.solve(shift * np.eye(a.shape[1]) + a.T @ a, rhs)
    return x, source - a @ x


def in_dtype(dtype, a, vectors):
    return a.astype(dtype), {name: v.astype(dtype) for name, v in vectors.items()}


# Solutions.


@pytest.mark.parametrize(
    ("trees", "dtype"),
    [(False, jnp.float32), (False, jnp.float64), (True, jnp.float32)],
    ids=["f32", "f64", "trees"],
)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("solver", [proxlin.CG(30), proxlin.Cholesky()], ids=str)
def test_solution_and_misfit(solver, shape, form, trees, dtype):
    a = matrix(SHAPES[shape], np.linspace(1, 2, 6))
    a, vectors = in_dtype(dtype, a, given(a, form))
    got = solve(solver, a, np.asarray(0.5, dtype), vectors, trees=trees)
    x, misfit = reference(a, 0.5, vectors)
    tolerance = 200 * float(jnp.finfo(dtype).eps)
    assert cases.relative_error(cases.flat(got.x), x) < tolerance
    assert cases.relative_error(cases.flat(got.misfit), misfit) < tolerance
    assert int(got.cost.status) == proxlin.Status.OK
    if trees:
        assert jax.tree.structure(got.x) == jax.tree.structure(TREES[a.shape[1]])
        assert jax.tree.structure(got.misfit) == jax.tree.structure(TREES[a.shape[0]])


@pytest.mark.parametrize("solver", [proxlin.CG(3), proxlin.CG(20), proxlin.Cholesky()], ids=str)
@pytest.mark.parametrize("form", ["rhs", "data"])
def test_nothing_to_solve_for(solver, form):
    a = matrix((9, 6), np.ones(6))
    size = a.shape[1] if form == "rhs" else a.shape[0]
    got = solve(solver, a, np.asarray(0.5), {form: np.zeros(size)})
    np.testing.assert_array_equal(got.x, np.zeros(6))
    np.testing.assert_array_equal(got.misfit, np.zeros(9))
    assert (int(got.cost.status), int(got.cost.steps)) == (proxlin.Status.OK, 0)


@pytest.mark.parametrize("solver", [proxlin.CG(3), proxlin.CG(20)], ids=str)
def test_a_source_that_m_does_not_see(solver):
    """The right-hand side vanishes though the source does not: a gradient without curvature."""
    a = np.zeros((9, 6))
    got = solve(solver, a, np.asarray(0.5), {"data": np.ones(9)})
    np.testing.assert_array_equal(got.x, np.zeros(6))
    np.testing.assert_array_equal(got.misfit, np.ones(9))
    assert int(got.cost.status) == proxlin.Status.OK


# Conjugate gradients.


def textbook_cg(a, shift, rhs, steps):
    """Iterates x_0, x_1, ... of Hestenes and Stiefel, and the norms of their residuals."""
    operator = shift * np.eye(len(rhs)) + a.T @ a
    x, r = np.zeros_like(rhs), rhs.copy()
    q = r.copy()
    iterates, residuals = [x], [np.linalg.norm(r)]
    for _ in range(steps):
        step = (r @ r) / (q @ operator @ q)
        x, new = x + step * q, r - step * (operator @ q)
        q = new + (new @ new) / (r @ r) * q
        r = new
        iterates.append(x)
        residuals.append(np.linalg.norm(r))
    return iterates, residuals


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("max_steps", [1, 2, 3, 7, 10, 11, 12])
def test_cg_takes_the_steps_of_the_textbook(form, max_steps):
    a = matrix((30, 25), np.geomspace(1, 5, 25))
    vectors = given(a, form)
    shift = 0.1
    got = solve(proxlin.CG(max_steps), a, np.asarray(shift), vectors)
    source = vectors.get("data", np.zeros(30))
    rhs = vectors.get("rhs", a.T @ source)
    iterates, residuals = textbook_cg(a, shift, rhs, max_steps)
    assert cases.relative_error(np.asarray(got.x), iterates[-1]) < 1e-9
    assert cases.relative_error(np.asarray(got.misfit), source - a @ iterates[-1]) < 1e-9
    np.testing.assert_allclose(got.cost.residual, residuals[-2] / residuals[0], rtol=1e-8)
    assert int(got.cost.steps) == max_steps


@each_dtype
@pytest.mark.parametrize("form", FORMS)
def test_unrolled_and_looped_steps_are_the_same(form, dtype, monkeypatch):
    a = matrix((30, 25), np.geomspace(1, 5, 25))
    a, vectors = in_dtype(dtype, a, given(a, form))
    ten_steps = lambda: jax.jit(lambda a, vectors: proxlin.CG(10).solve(system_of(a, 0.1, vectors)))
    unrolled = ten_steps()(a, vectors)
    monkeypatch.setattr(cg, "_UNROLLED_STEPS", 0)
    looped = ten_steps()(a, vectors)
    for one, other in zip(unrolled, looped, strict=True):
        tolerance = 1e3 * float(jnp.finfo(dtype).eps) * np.max(np.abs(other))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("trees", [False, True], ids=["flat", "trees"])
@pytest.mark.parametrize("form", FORMS)
def test_no_steps_are_the_solution_without_m(form, trees):
    a = matrix((9, 6), np.linspace(1, 2, 6))
    vectors = given(a, form)
    got = solve(proxlin.CG(0), a, np.asarray(0.25), vectors, trees=trees)
    want = 4 * vectors["rhs"] if form == "rhs" else np.zeros(6)
    np.testing.assert_array_equal(cases.flat(got.x), want)
    if form == "rhs":
        assert got.misfit is None  # -M x is not known, and would cost a product
    else:
        np.testing.assert_array_equal(cases.flat(got.misfit), vectors["data"])
    assert (int(got.cost.jvps), int(got.cost.vjps), int(got.cost.steps)) == (0, 0, 0)


def counted(system):
    """The system, and a dictionary that counts products with arrays (not with their shapes)."""
    calls = {"forward": 0, "adjoint": 0}

    def count(name):
        def product(x):
            calls[name] += not isinstance(jax.tree.leaves(x)[0], jax.core.Tracer)
            return getattr(system, name)(x)

        return product

    fields = {name: getattr(system, name) for name in ("shift", "rhs", "data", "preimage")}
    return proxlin.NormalSystem(count("forward"), count("adjoint"), **fields), calls


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("max_steps", [0, 1, 2, 5])
def test_cg_reports_the_products_it_took(form, max_steps):
    a = matrix((9, 6), np.linspace(1, 2, 6))
    system, calls = counted(system_of(a, 0.5, given(a, form)))
    got = proxlin.CG(max_steps).solve(system)
    reported = {"forward": int(got.cost.jvps), "adjoint": int(got.cost.vjps)}
    assert reported == calls
    # The last step applies M alone; a source takes M* once, for the right-hand side.
    last = max(max_steps - 1, 0) + (form != "rhs" and max_steps > 0)
    assert calls == {"forward": max_steps, "adjoint": last}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_cholesky_reports_the_products_it_took(shape, form):
    a = matrix(SHAPES[shape], np.linspace(1, 2, 6))
    system, calls = counted(system_of(a, 0.5, given(a, form)))
    got = proxlin.Cholesky().solve(system)
    # One product each for every column of the smaller Gram matrix, inside of a map.
    assert int(got.cost.jvps) - 6 == calls["forward"]
    assert int(got.cost.vjps) - 6 == calls["adjoint"]


# Guards.


@pytest.mark.parametrize("form", ["rhs", "data"])
@pytest.mark.parametrize("seed", range(3))
def test_cg_freezes_at_rounding_level(form, seed):
    a = matrix((40, 30), np.geomspace(0.03, 10, 30), seed)
    a, vectors = in_dtype(np.float32, a, given(a, form, seed))
    shift = np.asarray(1e-3, np.float32)
    x, _ = reference(a, float(shift), vectors)
    got = solve(proxlin.CG(200), a, shift, vectors)
    # Condition number 5e4, and the errors of a backward stable method are about this times eps.
    assert cases.relative_error(np.asarray(got.x), x) < 0.02
    later = solve(proxlin.CG(2000), a, shift, vectors)
    if form == "rhs":
        assert int(got.cost.steps) < 200
        np.testing.assert_array_equal(later.x, got.x)
    assert cases.relative_error(np.asarray(later.x), x) < 0.02
    assert int(later.cost.steps) < 1000
    # A loop ends where it freezes; unrolled steps go on and change nothing.
    assert int(later.cost.jvps) <= int(later.cost.steps) + 1


def test_unrolled_steps_after_freezing_change_nothing():
    a = matrix((9, 6), [1, 1, 1, 2, 2, 2])  # two eigenvalues: two steps
    vectors = given(a, "rhs")
    two = solve(proxlin.CG(2), a, np.asarray(0.5), vectors)
    ten = solve(proxlin.CG(10), a, np.asarray(0.5), vectors)
    np.testing.assert_allclose(ten.x, two.x, rtol=1e-12)
    assert int(ten.cost.steps) <= 4
    assert int(ten.cost.jvps) == 10
    x, _ = reference(a, 0.5, vectors)
    assert cases.relative_error(np.asarray(ten.x), x) < 1e-14


@each_dtype
@pytest.mark.parametrize("max_steps", [8, 20], ids=["unrolled", "looped"])
def test_negative_curvature_is_a_breakdown(max_steps, dtype):
    """A shift of -1 makes the system indefinite."""
    a = matrix((12, 9), np.geomspace(0.1, 10, 9))
    vectors = {"rhs": np.random.default_rng(1).normal(size=9) @ a.T @ a}
    a, vectors = in_dtype(dtype, a, vectors)
    got = solve(proxlin.CG(max_steps), a, np.asarray(-1, dtype), vectors)
    iterates, _ = textbook_cg(
        a.astype(float), -1, vectors["rhs"].astype(float), int(got.cost.steps)
    )
    assert int(got.cost.status) == proxlin.Status.BREAKDOWN
    assert 0 < int(got.cost.steps) < max_steps
    tolerance = 1e4 * float(jnp.finfo(dtype).eps)
    assert cases.relative_error(np.asarray(got.x), iterates[-1]) < tolerance
    assert cases.relative_error(np.asarray(got.misfit), -a @ np.asarray(got.x)) < tolerance


@pytest.mark.parametrize("form", ["rhs", "data"])
def test_breakdown_at_the_first_step(form):
    a = matrix((9, 6), np.full(6, 0.1))
    vectors = given(a, form)
    got = solve(proxlin.CG(3), a, np.asarray(-1.0), vectors)
    np.testing.assert_array_equal(got.x, np.zeros(6))
    np.testing.assert_array_equal(got.misfit, vectors.get("data", np.zeros(9)))
    assert (int(got.cost.status), int(got.cost.steps)) == (proxlin.Status.BREAKDOWN, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("form", ["rhs", "data"])
def test_a_product_that_is_not_finite_is_a_breakdown(form, bad):
    a = matrix((9, 6), np.linspace(1, 2, 6))
    system = system_of(a, 0.5, given(a, form))
    calls = []

    def forward(x):
        calls.extend([] if isinstance(x, jax.core.Tracer) else [None])
        return system.forward(x) * (bad if len(calls) == 3 else 1)

    broken = proxlin.NormalSystem(
        forward, system.adjoint, system.shift, rhs=system.rhs, data=system.data
    )
    got, want = proxlin.CG(5).solve(broken), proxlin.CG(2).solve(system)
    assert int(got.cost.status) == proxlin.Status.BREAKDOWN
    for field in ("x", "misfit"):
        np.testing.assert_array_equal(getattr(got, field), getattr(want, field))
    assert (got.cost.residual, got.cost.steps) == (want.cost.residual, want.cost.steps)


@pytest.mark.parametrize("shift", [1e-3, 1e-6, 1e-9, 1e-12])
def test_the_slope_stays_positive_in_float32(shift):
    """<s - M x, s> is the slope of the dual direction, tiny where the shift is."""
    steps = (2, 5, 10, 20, 60)

    @jax.jit
    def slopes(a, source):
        misfits = [proxlin.CG(n).solve(system_of(a, shift, {"data": source})) for n in steps]
        return jnp.stack([m.misfit for m in misfits])

    for seed in range(10):
        # As wide as tall: all of s can be explained, and s - M x is of the order of the shift.
        a = matrix((12, 12), np.geomspace(0.1, 10, 12), seed).astype(np.float32)
        s = np.random.default_rng(seed).normal(size=12).astype(np.float32)
        slope = np.asarray(slopes(a, s), np.float64) @ s.astype(np.float64)
        assert np.all(slope > 0), (seed, slope)


def plain_cg(a, shift, vectors, steps):
    """The textbook's last x and misfit in the arithmetic of the matrix; it stops at rounding."""
    source = vectors.get("data", np.zeros(a.shape[0], a.dtype))
    r = vectors.get("rhs", a.T @ source)
    x, q, first = np.zeros_like(r), r, r @ r
    for _ in range(steps):
        if r @ r <= (10 * np.finfo(a.dtype).eps) ** 2 * first:
            break
        aq = shift * q + a.T @ (a @ q)
        step = (r @ r) / (q @ aq)
        x, new = x + step * q, r - step * aq
        q, r = new + (new @ new) / (r @ r) * q, new
    return x, source - a @ x


@functools.partial(jax.jit, static_argnames="steps")
def cg_after(a, shift, vectors, steps):
    return [proxlin.CG(n).solve(system_of(a, shift, vectors)) for n in steps]


@each_dtype
@pytest.mark.parametrize("form", ["rhs", "data"])
def test_cg_is_as_near_as_plain_cg_at_any_gamma(form, dtype):
    """And descends after every number of steps, with a status that is true."""
    most, eps = 60, float(jnp.finfo(dtype).eps)

    @hypothesis.settings(max_examples=25)
    @hypothesis.given(st.integers(0, 10**6), st.floats(-8, 8), st.floats(0, 6))
    def check(seed, power, condition):
        a = matrix((9, 6), np.logspace(0, -condition, 6), seed)
        a, vectors = in_dtype(dtype, a, given(a, form, seed))
        shift = np.asarray(10.0**power, dtype)
        found = cg_after(a, shift, vectors, (1, 2, 3, 5, most))
        want = reference(a, float(shift), vectors)
        plain = plain_cg(a, shift, vectors, most)
        for got, best, exact in zip((found[-1].x, found[-1].misfit), plain, want, strict=True):
            error = cases.relative_error(np.asarray(got), exact)
            unit = 10 * eps * np.linalg.norm(vectors.get("data", 0.0)) / np.linalg.norm(exact)
            assert error <= 10 * max(cases.relative_error(best, exact), eps, unit)
            if found[-1].cost.status == proxlin.Status.OK and found[-1].cost.residual < 10 * eps:
                assert error < 0.1
        for one in found:
            image, given_ = (one.x, "rhs") if form == "rhs" else (one.misfit, "data")
            assert np.asarray(image, float) @ np.asarray(vectors[given_], float) > 0

    check()


# Direct solves.


def exact(a, shift, vectors):
    """x and misfit in rational arithmetic, rounded once at the end."""
    fractions = lambda v: [Fraction(float(entry)) for entry in v]
    rows, n, shift = [fractions(row) for row in a], a.shape[1], Fraction(shift)
    times = lambda v: [sum(c * x for c, x in zip(row, v, strict=True)) for row in rows]
    adjoint_times = lambda v: [
        sum(r[j] * y for r, y in zip(rows, v, strict=True)) for j in range(n)
    ]
    if "preimage" in vectors:
        source = times(fractions(vectors["preimage"]))
    else:
        source = fractions(vectors.get("data", np.zeros(len(a))))
    rhs = fractions(vectors["rhs"]) if "rhs" in vectors else adjoint_times(source)
    columns = [adjoint_times([row[j] for row in rows]) for j in range(n)]
    table = [[columns[j][i] + shift * (i == j) for j in range(n)] + [rhs[i]] for i in range(n)]
    for i in range(n):  # Gauss and Jordan; positive definite, so no pivoting
        table[i] = [entry / table[i][i] for entry in table[i]]
        for k in set(range(n)) - {i}:
            table[k] = [x - table[k][i] * y for x, y in zip(table[k], table[i], strict=True)]
    x = [row[n] for row in table]
    misfit = [s - y for s, y in zip(source, times(x), strict=True)]
    return np.array(x, np.float64), np.array(misfit, np.float64)


EPS = float(np.finfo(np.float64).eps)


@pytest.mark.parametrize("shape", [(7, 5), (5, 5), (5, 7)], ids=["tall", "square", "wide"])
@pytest.mark.parametrize("form", ["preimage", "explained", "data", "rhs", "in range"])
def test_cholesky_does_not_cancel(shape, form):
    """Shift 1e-8: the naive s - M x is wrong in its seventh digit."""
    a = matrix(shape, np.geomspace(0.3, 3, 5))
    shift = 1e-8
    if form == "explained":  # the source of the preimage, which is not told
        vectors = {"data": given(a, "preimage")["data"]}
    elif form == "in range":
        vectors = {"rhs": a.T @ given(a, "data")["data"]}
    else:
        vectors = given(a, form)
    got = solve(proxlin.Cholesky(), a, np.asarray(shift), vectors)
    x, misfit = exact(a, shift, vectors)

    bound = {"x": 1e-12, "misfit": 1e-12}
    # Where M cannot reach all of the space, rounding of what is given, even by half a unit,
    # has a part that no x explains, or that only the shift bounds; no method can do better.
    given_size = np.linalg.norm(vectors.get("data", np.zeros(1)))
    if form == "explained" and shape == (7, 5):
        bound["misfit"] = 4 * EPS * given_size / np.linalg.norm(misfit)
    if form == "in range" and shape == (5, 7):
        bound["x"] = 4 * EPS * np.linalg.norm(vectors["rhs"]) / shift / np.linalg.norm(x)
    if form == "rhs" and shape == (5, 7):
        bound["misfit"] = 4 * EPS * np.linalg.norm(a @ x / shift) / np.linalg.norm(misfit)
    assert cases.relative_error(np.asarray(got.x), x) < bound["x"]
    assert cases.relative_error(np.asarray(got.misfit), misfit) < bound["misfit"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("max_elements", [1, 30])
def test_cholesky_forms_the_gram_matrix_in_blocks(shape, form, max_elements):
    a = matrix(SHAPES[shape], np.linspace(1, 2, 6))
    vectors = given(a, form)
    got = solve(proxlin.Cholesky(max_elements=max_elements), a, np.asarray(0.5), vectors)
    want = solve(proxlin.Cholesky(), a, np.asarray(0.5), vectors)
    np.testing.assert_allclose(got.x, want.x, rtol=1e-12)
    np.testing.assert_allclose(got.misfit, want.misfit, rtol=1e-12)


dense = jax.jit(cases.dense, static_argnames=("name", "model"))
K, P = 3, 5 * 4 + 4 + 4 * 3  # of cases.problem


@functools.partial(jax.jit, static_argnames=("model", "loss", "subproblem", "solver"))
def direction(params, inputs, targets, *, loss, subproblem, solver, model=cases.network):
    fn = proxlin.value_and_direction(
        model, cases.LOSSES[loss], subproblem=cases.SUBPROBLEMS[subproblem], solver=solver
    )
    (_, info), d = fn(params, inputs, targets, gamma=100.0)
    return d, info


@pytest.mark.parametrize(
    ("loss", "dtype"),
    [("squared", jnp.float64), ("logistic", jnp.float32), ("logistic", jnp.float64)],
    ids=["squared-f64", "logistic-f32", "logistic-f64"],
)
@pytest.mark.parametrize("subproblem", cases.SUBPROBLEMS)
@pytest.mark.parametrize("m", [7, 19], ids=["mk < p", "p < mk"])
def test_rows_in_blocks(m, subproblem, loss, dtype):
    problem = cases.problem(loss, dtype, m=m)
    assert (m * K < P) == (m == 7)
    gradient, gauss_newton = dense(loss, *problem)
    want = np.linalg.solve(np.asarray(gauss_newton) + np.eye(P) / 100, np.asarray(gradient))
    tolerance = 1e4 * float(jnp.finfo(dtype).eps)
    # All at once; and two examples at a time, which divides neither 7 nor 19.
    for elements in (2**26, 2 * K * P):
        solver = proxlin.Cholesky(independent=True, max_elements=elements)
        d, info = direction(*problem, loss=loss, subproblem=subproblem, solver=solver)
        assert cases.relative_error(cases.flat(d), want) < tolerance, elements
        assert int(info.status) == proxlin.Status.OK


def normalized(params, inputs):
    """Examples influence each other, as with BatchNorm."""
    hidden = inputs @ params["w1"] + params["b1"][None]
    hidden = hidden - jnp.mean(hidden, axis=0, keepdims=True)
    hidden = hidden / jnp.sqrt(jnp.mean(hidden**2, axis=0, keepdims=True) + 1e-3)
    return jnp.tanh(hidden) @ params["w2"]


@pytest.mark.parametrize("subproblem", cases.SUBPROBLEMS)
def test_examples_that_are_not_independent(subproblem):
    problem = cases.problem("logistic", jnp.float32)
    options = {"loss": "logistic", "subproblem": subproblem, "model": normalized}
    d, info = direction(*problem, solver=proxlin.Cholesky(independent=True), **options)
    assert int(info.status) == proxlin.Status.BAD_VALUE
    np.testing.assert_array_equal(cases.flat(d), np.zeros(P))
    # The same without the promise is fine.
    d, info = direction(*problem, solver=proxlin.Cholesky(), **options)
    gradient, gauss_newton = dense("logistic", *problem, model=normalized)
    want = np.linalg.solve(np.asarray(gauss_newton) + np.eye(P) / 100, np.asarray(gradient))
    assert int(info.status) == proxlin.Status.OK
    assert cases.relative_error(cases.flat(d), want) < 1e-3


def test_examples_that_are_not_independent_outside_of_jit():
    """A status here too, no exception: what a model does is no argument that could be wrong."""
    centered = lambda w, x: x @ w - jnp.mean(x @ w, axis=0, keepdims=True)
    solver = proxlin.Cholesky(independent=True)
    fn = proxlin.value_and_direction(centered, proxlin.Squared(), solver=solver)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 2)))
    (_, info), d = fn(jnp.ones((2, 1)), x, jnp.ones((6, 1)))
    assert int(info.status) == proxlin.Status.BAD_VALUE
    np.testing.assert_array_equal(d, np.zeros((2, 1)))


# What is rejected.


@pytest.mark.parametrize("max_steps", [-1, 1.5, "2", None])
@pytest.mark.usefixtures("unchecked")
def test_cg_rejects(max_steps):
    with pytest.raises(ValueError, match=rf"CG\(max_steps={max_steps!r}\): give an integer"):
        proxlin.CG(max_steps)


def test_cholesky_rejects():
    with pytest.raises(
        ValueError, match=r"Cholesky\(max_elements=0\): give an integer of at least 1"
    ):
        proxlin.Cholesky(max_elements=0)
    system = system_of(np.eye(3), 1.0, {"rhs": np.ones(3)})
    with pytest.raises(TypeError, match=r"Cholesky\(independent=True\) needs a system with rows"):
        proxlin.Cholesky(independent=True).solve(system)


@pytest.mark.parametrize("vectors", [{}, {"rhs": np.ones(3), "data": np.ones(3)}])
def test_a_system_takes_one_right_hand_side(vectors):
    with pytest.raises(ValueError, match="takes either rhs or data"):
        system_of(np.eye(3), 1.0, vectors)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: proxlin.Cholesky(max_elements=cast(int, 2.5)),
            r"max_elements=2.5\): give an integer",
        ),
        (
            lambda: proxlin.Armijo(max_backtracks=cast(int, 2.5)),
            r"max_backtracks=2.5\): give an integer",
        ),
        (lambda: proxlin.ProximalGradient(gap=-1.0), r"gap=-1.0\): give a number >= 0"),
        (lambda: proxlin.LBFGS(tolerance=-1.0), r"tolerance=-1.0\): give a number >= 0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_numbers_out_of_their_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("unchecked")
def test_numpy_integers_are_integers():
    assert proxlin.CG(cast(int, np.int64(2))) == proxlin.CG(2)


def test_a_step_rule_without_gamma_is_told_what_it_lacks():
    class Bare(proxlin.extend.StepRule):
        step = proxlin.Fixed.step

    with pytest.raises(TypeError, match=r"has no gamma; add the field gamma: float = 1\.0"):
        proxlin.prox_linear(lambda w, x: x @ w, proxlin.Squared(), step=Bare())
