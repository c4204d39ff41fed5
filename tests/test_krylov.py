"""Two steps of conjugate gradients at once, in a metric, are those one by one."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Array

import proxlin
from proxlin import Status
from proxlin.algebra import Image, MetricVector, plain
from proxlin.solvers.krylov import two_steps
from tests.cases import relative_error

P, ROWS = 7, 5


class Case(NamedTuple):
    """The system (shift P + A^T A) x = b, and the same in coordinates in which P is one."""

    system: proxlin.NormalSystem
    whitened: proxlin.NormalSystem
    root: Array  # P^-1 = root root^T, so that x = root z


def case(seed=0, shift=0.5, rhs=None, a=None, dtype=jnp.float64, p=P) -> Case:
    rng = np.random.default_rng(seed)
    real = lambda x: jnp.asarray(x, dtype)
    a = rng.normal(size=(ROWS, p)) if a is None else np.asarray(a)
    basis = rng.normal(size=(p, p))
    metric = basis @ basis.T + np.eye(p)
    root = np.linalg.cholesky(np.linalg.inv(metric))
    b = rng.normal(size=p) if rhs is None else rhs(a, root)
    inverse, matrix = real(root @ root.T), real(a)
    vector = lambda y: MetricVector(y, inverse @ y)
    system = proxlin.NormalSystem(
        forward=lambda d: matrix @ plain(d),
        adjoint=lambda v: vector(matrix.T @ v),
        shift=real(shift),
        rhs=vector(real(b)),
    )
    white = real(a @ root)
    whitened = proxlin.NormalSystem(
        forward=lambda z: white @ z,
        adjoint=lambda v: white.T @ v,
        shift=real(shift),
        rhs=real(root.T @ b),
    )
    return Case(system, whitened, real(root))


def compare(made, tolerance=1e-10):
    """Solutions, misfits and reports of the two; returns the one that is tested."""
    got, want = two_steps(made.system), proxlin.CG(2).solve(made.whitened)
    x = made.root @ want.x
    scale = float(jnp.linalg.norm(x)) or 1.0
    assert float(jnp.linalg.norm(got.x.vector - x)) <= tolerance * scale
    inverse = made.root @ made.root.T
    np.testing.assert_allclose(inverse @ got.x.covector, got.x.vector, atol=tolerance * scale)
    assert got.misfit is not None and want.misfit is not None
    scale = float(jnp.linalg.norm(want.misfit)) or 1.0
    np.testing.assert_allclose(got.misfit, want.misfit, atol=tolerance * scale)
    assert got.cost.steps == want.cost.steps
    assert got.cost.status == want.cost.status
    assert float(got.cost.residual) == pytest.approx(float(want.cost.residual), abs=1e-6)
    return got


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(-4, 3), st.floats(-3, 3))
def test_the_second_iterate(seed, shift, scale):
    rng = np.random.default_rng(seed)
    got = compare(case(seed, 10**shift, a=10**scale * rng.normal(size=(ROWS, P))), 1e-8)
    assert got.cost.steps == 2
    assert (got.cost.jvps, got.cost.vjps) == (2, 1)


def test_it_is_the_minimum_in_the_krylov_space():
    """Of half <x, A x> - <b, x>, over the span of b and A b; a reference without a recurrence."""
    made = case()
    white = np.asarray(jax.jacobian(made.whitened.forward)(jnp.zeros(P)))
    b = np.asarray(made.whitened.rhs)
    matrix = 0.5 * np.eye(P) + white.T @ white
    basis = np.stack([b, matrix @ b], axis=1)
    z = basis @ np.linalg.solve(basis.T @ matrix @ basis, basis.T @ b)
    got = two_steps(made.system)
    assert relative_error(np.asarray(got.x.vector), np.asarray(made.root) @ z) < 1e-12
    # The residual reported is the one before the second step, relative to the first one.
    first = b * (b @ b) / (b @ matrix @ b)
    want = np.linalg.norm(b - matrix @ first) / np.linalg.norm(b)
    assert float(got.cost.residual) == pytest.approx(want)


def test_the_solver_uses_it_in_a_metric_for_two_steps():
    made = case()
    for steps in (1, 2, 3):
        got = proxlin.CG(steps).solve(made.system)
        want = proxlin.CG(steps).solve(made.whitened)
        np.testing.assert_allclose(got.x.vector, made.root @ want.x, rtol=1e-10)
        assert got.cost.jvps == want.cost.jvps and got.cost.vjps == want.cost.vjps
    jaxpr = lambda solve: str(jax.make_jaxpr(solve)(made.system.rhs))
    replaced = lambda b: proxlin.NormalSystem(
        made.system.forward, made.system.adjoint, made.system.shift, rhs=b
    )
    assert jaxpr(lambda b: proxlin.CG(2).solve(replaced(b))) == jaxpr(
        lambda b: two_steps(replaced(b))
    )


def eigenvector(a, root):
    """b with P^-1 A^T A P^-1 b = s^2 P^-1 b."""
    white = a @ root
    return np.linalg.solve(root.T, np.linalg.svd(white)[2][0])


def kernel(a, root):
    """b whose image under A P^-1 is zero."""
    return np.linalg.solve(root.T, np.linalg.svd(a @ root)[2][-1])


@pytest.mark.parametrize("rhs", [eigenvector, kernel])
def test_one_step_is_enough_for_an_eigenvector(rhs):
    made = case(rhs=rhs)
    got = two_steps(made.system)
    want = made.root @ proxlin.CG(1).solve(made.whitened).x
    np.testing.assert_allclose(got.x.vector, want, rtol=1e-10)
    assert got.cost.status == Status.OK and got.cost.residual < 1e-7
    exact = np.linalg.solve(
        0.5 * np.linalg.inv(made.root @ made.root.T)
        + np.asarray(jax.jacobian(made.system.forward)(jnp.zeros(P))).T
        @ np.asarray(jax.jacobian(made.system.forward)(jnp.zeros(P))),
        made.system.rhs.covector,
    )
    np.testing.assert_allclose(got.x.vector, exact, rtol=1e-10)


def test_nothing_to_solve():
    got = compare(case(rhs=lambda a, root: np.zeros(P)))
    assert not np.any(got.x.vector) and got.cost.status == Status.OK
    assert got.cost.steps == 0 and got.cost.residual == 1


def test_without_a_shift_the_minimum_norm_solution_of_rank_two():
    """Of A x = y for b = A^T y: what conjugate gradients reach in as many steps as the rank."""
    a = np.random.default_rng(0).normal(size=(2, P))
    made = case(shift=0.0, a=a, rhs=lambda a, root: a.T @ np.array([1.0, -2.0]))
    got = compare(made, 1e-8)
    np.testing.assert_allclose(made.system.forward(got.x), [1.0, -2.0], rtol=1e-8)
    assert got.cost.status == Status.OK


def test_without_a_shift_and_without_curvature_it_breaks_down():
    made = case(shift=0.0, rhs=lambda a, root: np.ones(P), a=np.zeros((ROWS, P)))
    got = compare(made)
    assert not np.any(got.x.vector) and got.cost.status == Status.INEXACT


@pytest.mark.parametrize("where", ["first product", "second product", "right-hand side"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite(where, bad):
    """Never OK with a wrong answer: what is not finite shows, or the last good iterate is it."""
    made = case()
    calls = []

    def adjoint(v):
        calls.append(None)
        out = made.system.adjoint(v)
        spoil = lambda y: y.at[0].set(bad)
        return MetricVector(*map(spoil, out)) if where == "first product" else out

    def forward(d):
        out = made.system.forward(d)
        return out.at[0].set(bad) if where == "second product" and calls else out

    rhs = made.system.rhs
    if where == "right-hand side":
        rhs = MetricVector(*(y.at[0].set(bad) for y in rhs))
    got = two_steps(proxlin.NormalSystem(forward, adjoint, made.system.shift, rhs=rhs))
    first = proxlin.CG(1).solve(made.whitened)
    if np.all(np.isfinite(got.x.vector)):
        assert got.cost.status == Status.INEXACT
        good = made.root @ first.x if where != "right-hand side" else jnp.zeros(P)
        np.testing.assert_allclose(got.x.vector, good, rtol=1e-10)


def test_large_and_small_numbers_in_single_precision():
    """Squares of lengths from 1e-12 to 1e12 are far inside of the range of float32."""
    for scale in (1e-6, 1e6):
        made = case(rhs=lambda a, root, s=scale: s * np.ones(P), dtype=jnp.float32)
        unscaled = case(rhs=lambda a, root: np.ones(P))
        got = two_steps(made.system).x.vector / scale
        assert (
            relative_error(np.asarray(got), np.asarray(two_steps(unscaled.system).x.vector)) < 1e-4
        )


def test_rounding_that_may_change_the_result_is_not_ok():
    """By the condition, as one by one."""
    for shift, status in ((1e-2, Status.OK), (1e-9, Status.INEXACT)):
        made = case(shift=shift, dtype=jnp.float32)
        assert two_steps(made.system).cost.status == status
        assert proxlin.CG(2).solve(made.whitened).cost.status == status


def test_images_carry_the_change_of_the_outputs_along():
    """The second part is combined like the first, and has no part in inner products."""
    made = case()
    other = jnp.asarray(np.random.default_rng(1).normal(size=(3, P)))
    system = proxlin.NormalSystem(
        forward=lambda d: Image(made.system.forward(d), other @ plain(d)),
        adjoint=lambda v: made.system.adjoint(plain(v)),
        shift=made.system.shift,
        rhs=made.system.rhs,
    )
    got, want = two_steps(system), two_steps(made.system)
    np.testing.assert_allclose(got.x.vector, want.x.vector, rtol=1e-12)
    assert got.misfit is not None and want.misfit is not None
    np.testing.assert_allclose(got.misfit.root, want.misfit, rtol=1e-12)
    np.testing.assert_allclose(got.misfit.change, -other @ got.x.vector, rtol=1e-10)
