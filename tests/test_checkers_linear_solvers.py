"""check_linear_solver accepts all linear solvers of the library, and names broken ones."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import proxlin
from proxlin.extend import LinearSolver, add_scaled, count, plain, scale
from proxlin.testing import check_linear_solver
from tests import cases

pytestmark = pytest.mark.usefixtures("quick_compilation")


SOLVERS = [
    *map(proxlin.CG, (0, 1, 2, 8, 11)),
    *map(proxlin.MultiShiftCG, (0, 1, 2, 8)),
    proxlin.Cholesky(),
    proxlin.QR(),
    proxlin.QR(independent=True),
    proxlin.SVD(),
    proxlin.SVD(independent=True),
    proxlin.Cholesky(max_elements=7),
    proxlin.Cholesky(independent=True),
    proxlin.Cholesky(independent=True, max_elements=5),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_linear_solvers_of_the_library_pass(solver):
    check_linear_solver(solver)


@pytest.mark.parametrize("solver", [proxlin.CG(0), proxlin.CG(2)], ids=repr)
def test_what_the_primal_predicts_is_the_decrease_of_its_model(solver):
    """Also after no steps, where no product has told the curvature along the direction."""
    params, inputs, targets = cases.problem("logistic", jnp.float64)
    rule = proxlin.TrustRegion(gamma=0.7)
    opt = proxlin.prox_linear(
        cases.network,
        proxlin.Logistic(),
        step=rule,
        subproblem=proxlin.primal_quadratic,
        solver=solver,
    )
    updates, state = opt.update(None, opt.init(params), params, inputs=inputs, targets=targets)
    grad, gauss_newton = cases.dense("logistic", params, inputs, targets)
    d = -cases.flat(updates)
    want = d @ grad - 0.5 * d @ (gauss_newton @ d + d / 0.7)
    assert state.rejected == 0
    np.testing.assert_allclose(state.info.predicted, want, rtol=1e-9)


@dataclasses.dataclass(frozen=True)
class Wrapped(LinearSolver):
    """Conjugate gradients to the end; what is broken is done to the solution."""

    takes_metric: ClassVar[bool] = True

    def solve(self, system):
        return self.break_(system, proxlin.CG(8).solve(system))

    def break_(self, system, solution):
        return solution


class Half(Wrapped):
    def break_(self, system, solution):
        half = scale(0.5, solution.x)
        misfit = scale(-1, system.forward(half))
        misfit = misfit if system.data is None else add_scaled(system.data, 1, misfit)
        return solution._replace(x=half, misfit=misfit, cost=solution.cost.plus(jvps=1))


class Uphill(Wrapped):
    def break_(self, system, solution):
        return solution._replace(
            x=scale(-1, solution.x),
            misfit=scale(-1, solution.misfit),
            cost=solution.cost._replace(residual=jnp.ones(())),
        )


class SignOfMisfit(Wrapped):
    def break_(self, system, solution):
        return solution._replace(misfit=scale(-1, solution.misfit))


class NoMisfit(Wrapped):
    def break_(self, system, solution):
        return solution._replace(misfit=None)


class Forgets(Wrapped):
    def break_(self, system, solution):
        system.forward(solution.x)
        return solution


class ForgetsAdjoint(Wrapped):
    def break_(self, system, solution):
        system.adjoint(solution.misfit)
        return solution


class BadStatus(Wrapped):
    def break_(self, system, solution):
        return solution._replace(cost=solution.cost._replace(status=count(17)))


class NegativeSteps(Wrapped):
    def break_(self, system, solution):
        return solution._replace(cost=solution.cost._replace(steps=count(-1)))


class Flattened(Wrapped):
    def break_(self, system, solution):
        return solution._replace(x=ravel_pytree(solution.x)[0])


class DividesByZero(Wrapped):
    def break_(self, system, solution):
        length = jnp.linalg.norm(ravel_pytree(solution.x)[0])
        return solution._replace(x=scale(length, scale(1 / length, solution.x)))


class OtherUnderJit(Wrapped):
    def break_(self, system, solution):
        traced = isinstance(ravel_pytree(solution.x)[0], jax.core.Tracer)
        return solution._replace(x=scale(1.0 if traced else 1.1, solution.x))


class NoMetric(Wrapped):
    """One step of steepest descent, by inner products of leaves: right without a metric."""

    def solve(self, system):
        dot = lambda x, y: jnp.vdot(ravel_pytree(plain(x))[0], ravel_pytree(plain(y))[0])
        b = system.adjoint(system.data) if system.rhs is None else system.rhs
        image = system.forward(b)
        length = dot(b, b)
        step = length / jnp.where(length > 0, system.shift * length + dot(image, image), 1)
        misfit = scale(-step, image)
        misfit = misfit if system.data is None else add_scaled(system.data, 1, misfit)
        cost = proxlin.Cost(
            steps=count(1),
            residual=jnp.ones(()),
            jvps=count(1),
            vjps=count(system.rhs is None),
            status=count(proxlin.Status.OK),
        )
        return proxlin.extend.Solution(scale(step, b), misfit, cost)


BROKEN = [
    (Half(), "(shift + M* M) x = rhs: off by"),
    (Uphill(), "decrease of the quadratic objective: violated by"),
    (Uphill(), "descent, <x, rhs> > 0: it is -"),
    (SignOfMisfit(), "misfit = data - M x: off by"),
    (SignOfMisfit(), "descent, <misfit, data> > 0: it is -"),
    (NoMisfit(), "misfit = data - M x: None, although there were products to make it of"),
    (Forgets(), "cost.jvps: 8 where forward was called 9 times"),
    (ForgetsAdjoint(), "cost.vjps: 7 where adjoint was called 8 times"),
    (BadStatus(), "cost.status: 17"),
    (NegativeSteps(), "cost.steps: -1"),
    (Flattened(), "structure, shapes and dtypes of x: float64[5] where"),
    (DividesByZero(), "x = 0 for a right-hand side of zero: off by nan"),
    (OtherUnderJit(), "x under jit: off by"),
    (NoMetric(), "x in a metric, with P x: off by"),
    (NoMetric(), "misfit in a metric: off by"),
    (NoMetric(), "x in a metric: off by"),
    (NoMetric(), "misfit in a metric, with P of it: off by"),
]


@pytest.mark.parametrize(("solver", "what"), BROKEN, ids=lambda x: type(x).__name__)
def test_a_broken_solver_is_named(solver, what):
    with pytest.raises(ValueError) as error:
        check_linear_solver(solver)
    assert f"- {what}" in str(error.value)


def test_a_misfit_is_due_where_there_are_data():
    class NoMisfitOfData(proxlin.CG):
        def solve(self, system):
            return super().solve(system)._replace(misfit=None)

    with pytest.raises(ValueError, match="None, although there are data"):
        check_linear_solver(NoMisfitOfData(0))


def test_the_metric_is_left_out_where_it_is_not_taken():
    class Plain(NoMetric):
        takes_metric: ClassVar[bool] = False

    check_linear_solver(Plain())
