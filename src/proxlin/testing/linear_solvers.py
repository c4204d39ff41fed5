"""A checker for linear solvers of your own."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from proxlin.algebra import MetricVector, Vector, plain
from proxlin.solvers import Cost, LinearSolver, NormalSystem, Rows, Solution, Status, TermRows
from proxlin.testing.findings import Findings, counted, tolerance_of

Matrix = Float[np.ndarray, "rows columns"]
Flat = Float[np.ndarray, " n"]
Linear = Callable[[Vector], Vector]

_SHIFT = 0.5


def check_linear_solver(solver: LinearSolver, *, tolerance: float | None = None) -> None:
    r"""Tests a linear solver against the identities that the library relies on.

    On small systems :math:`(\text{shift} I + M^* M) x = b` with a right-hand side :math:`b`, or
    with data :math:`s` and :math:`b = M^* s`, whose vectors are pytrees:

    - :math:`x` solves the system, unless the solver reports a residual that says otherwise;
    - steps decrease :math:`\tfrac12 \langle x, (\text{shift} I + M^* M) x \rangle - \langle b, x
      \rangle`;
    - the direction descends, :math:`\langle x, b \rangle > 0` in the primal and :math:`\langle s -
      M x, s \rangle > 0` in the dual;
    - the misfit is :math:`s - M x`, or :math:`-M x` without data;
    - the cost counts the products that were made, and the status is OK or INEXACT;
    - a right-hand side of zero gives zero, and ``jit`` changes nothing;
    - with ``takes_metric``, the answer in a metric :math:`P = L L^\top` is that of the system in
      the coordinates :math:`L^\top x`.

    Dense rows count as one product with the whole batch.

    Args:
        solver: the solver.
        tolerance: relative; ten times the root of the rounding error when None.

    Raises:
        ValueError: that names every identity that does not hold, and by how much.

    Example:
        >>> from proxlin import CG
        >>> check_linear_solver(CG(2))
    """
    check = _Check(solver, tolerance)
    for form in ("rhs", "data", "preimage"):
        check.solves(_Dense.draw(form, wide=False))
        check.solves(_Dense.draw(form, wide=True))
        check.compiles(_Dense.draw(form, wide=True))
    if solver.takes_metric:
        check.in_a_metric(_Dense.draw("rhs", wide=True))
        check.in_a_metric(_Dense.draw("data", wide=True))
    check.conclude(solver, "linear solver")


class _Check(Findings):
    def __init__(self, solver: LinearSolver, tolerance: float | None):
        self.solver = solver
        super().__init__(tolerance_of(_dtype()) if tolerance is None else tolerance)

    def solves(self, dense: _Dense) -> None:
        calls: Counter[str] = Counter()
        solution = self.solver.solve(dense.system(calls, dense.given))
        jax.effects_barrier()  # until the last product is counted
        self.cost(solution.cost, calls)
        if not self.same_kind(
            "structure, shapes and dtypes of x", solution.x, dense.x(dense.rhs(dense.given))
        ):
            return
        self.misfit(dense, solution)
        self.quality(dense, solution)
        zero = self.solver.solve(dense.system(Counter(), 0 * dense.given))
        self.near("x = 0 for a right-hand side of zero", zero.x, dense.x(0 * _flat(zero.x)))

    def compiles(self, dense: _Dense) -> None:
        solve = lambda: self.solver.solve(dense.system(Counter(), dense.given))
        self.near("x under jit", jax.jit(solve)().x, solve().x)

    def misfit(self, dense: _Dense, solution: Solution) -> None:
        what = "misfit = data - M x"
        if solution.misfit is not None:
            misfit = dense.data(dense.given) - dense.matrix @ _flat(solution.x)
            self.near(what, solution.misfit, dense.image(misfit))
        elif dense.form != "rhs":
            self.note(what, "None, although there are data")
        elif int(solution.cost.jvps) > 0:
            self.note(what, "None, although there were products to make it of")

    def quality(self, dense: _Dense, solution: Solution) -> None:
        x, rhs, cost = _flat(solution.x), dense.rhs(dense.given), solution.cost
        solved = not float(cost.residual) > self.tolerance  # NaN for a direct solver
        if solved:
            self.near("(shift + M* M) x = rhs", dense.normal @ x, rhs)
        if solved or int(cost.steps) > 0:
            self.least("decrease of the quadratic objective", x @ (rhs - 0.5 * dense.normal @ x))
        if dense.form == "rhs":
            self.positive("descent, <x, rhs> > 0", x @ rhs)
        elif solution.misfit is not None:
            slope = _flat(solution.misfit) @ dense.data(dense.given)
            self.positive("descent, <misfit, data> > 0", slope)

    def cost(self, cost: Cost, calls: Counter[str]) -> None:
        for field, name in (("jvps", "forward"), ("vjps", "adjoint")):
            told = int(getattr(cost, field))
            if told != calls[name]:
                self.note(f"cost.{field}", f"{told} where {name} was called {calls[name]} times")
        if int(cost.status) not in (Status.OK, Status.INEXACT):
            self.note("cost.status", f"{int(cost.status)} for a system that can be solved")
        if int(cost.steps) < 0:
            self.note("cost.steps", f"{int(cost.steps)}")

    def in_a_metric(self, dense: _Dense) -> None:
        """Compares with the same system in coordinates in which the metric is the identity."""
        root = np.linalg.cholesky(_positive_definite(dense.parameters))
        other = dense.in_coordinates(root)
        here = self.solver.solve(dense.in_metric(root))
        there = self.solver.solve(other.system(Counter(), other.given))
        pair = lambda flat: MetricVector(
            _parameters(root @ flat), _parameters(np.linalg.solve(root.T, flat))
        )
        if dense.form == "rhs":
            self.near("x in a metric, with P x", here.x, pair(_flat(there.x)))
            self.near("misfit in a metric", here.misfit, there.misfit)
        else:
            self.near("x in a metric", here.x, there.x)
            if there.misfit is not None:
                misfit = pair(_flat(there.misfit))
                self.near("misfit in a metric, with P of it", here.misfit, misfit)


@dataclasses.dataclass(frozen=True)
class _Dense:
    """A system with its matrix."""

    matrix: Matrix
    given: Flat  # the right-hand side, the data, or their preimage
    form: str  # which of these

    @classmethod
    def draw(cls, form: str, *, wide: bool) -> _Dense:
        rng = np.random.default_rng(0)
        matrix = rng.normal(size=(5, 8) if wide else (8, 5)) / 2
        length = matrix.shape[0 if form == "data" else 1]
        return cls(matrix=matrix, given=rng.normal(size=(length,)), form=form)

    def data(self, given: Any) -> Any:
        """The data; zero where there are none."""
        if self.form == "rhs":
            return np.zeros(len(self.matrix))
        return given if self.form == "data" else self.matrix @ given

    def rhs(self, given: Any) -> Any:
        """The right-hand side."""
        return given if self.form == "rhs" else self.matrix.T @ self.data(given)

    @property
    def normal(self) -> Matrix:
        return _SHIFT * np.eye(self.matrix.shape[1]) + self.matrix.T @ self.matrix

    @property
    def parameters(self) -> int:
        """How many there are: they are x in the primal, and M x in the dual."""
        return self.matrix.shape[1 if self.form == "rhs" else 0]

    def x(self, flat: Any) -> Vector:
        """A vector of the space of x."""
        return _parameters(flat) if self.form == "rhs" else _outputs(flat)

    def image(self, flat: Any) -> Vector:
        """A vector of the space of M x."""
        return _outputs(flat) if self.form == "rhs" else _parameters(flat)

    def system(self, calls: Counter[str], given: Any) -> NormalSystem:
        """The system as a solver gets it, and counts of the products it makes."""
        dual = self.form != "rhs"

        def rows() -> Rows:
            calls["forward" if dual else "adjoint"] += 1
            dense = jnp.asarray(self.matrix.T if dual else self.matrix, _dtype())
            term = TermRows(
                block=lambda numbers: dense[numbers], examples=len(dense), per_example=1
            )
            return Rows(terms=(term,), of_x=dual, tolerance=tolerance_of(_dtype()))

        return NormalSystem(
            forward=counted(_times(self.matrix, self.image), calls, "forward"),
            adjoint=counted(_times(self.matrix.T, self.x), calls, "adjoint"),
            shift=jnp.asarray(_SHIFT, _dtype()),
            rhs=None if dual else self.x(self.rhs(given)),
            data=self.image(self.data(given)) if dual else None,
            preimage=self.x(given) if self.form == "preimage" else None,
            rows=rows,
        )

    def in_metric(self, root: Matrix) -> NormalSystem:
        """The same with the metric L L^T of parameter space."""
        inverse = _times(np.linalg.inv(root @ root.T), _parameters)
        pair = lambda y: MetricVector(y, inverse(y))
        here = dataclasses.replace(self.system(Counter(), self.given), rows=None)
        if self.form == "rhs":
            adjoint = lambda v: pair(here.adjoint(v))
            return dataclasses.replace(here, adjoint=adjoint, rhs=pair(here.rhs))
        forward = lambda u: pair(here.forward(u))
        return dataclasses.replace(here, forward=forward, data=pair(here.data))

    def in_coordinates(self, root: Matrix) -> _Dense:
        """The same in the coordinates L^T d of parameter space."""
        given = np.linalg.solve(root, self.given)
        if self.form == "rhs":
            return dataclasses.replace(
                self, matrix=np.linalg.solve(root, self.matrix.T).T, given=given
            )
        return dataclasses.replace(self, matrix=np.linalg.solve(root, self.matrix), given=given)


def _dtype() -> Any:
    return jnp.result_type(float)


def _flat(x: Vector) -> Flat:
    return np.asarray(ravel_pytree(x)[0], np.float64)


def _parameters(flat: Any) -> Vector:
    """Parameters are a pytree of any structure."""
    flat = jnp.asarray(flat, _dtype())
    return {"b": flat[:1], "w": flat[1:].reshape(2, -1)} if len(flat) % 2 else {"w": flat}


def _outputs(flat: Any) -> Vector:
    """Outputs are one array for each term of the objective."""
    flat = jnp.asarray(flat, _dtype())
    return flat[:2].reshape(2, 1), flat[2:].reshape(1, -1)


def _times(matrix: Matrix, space: Callable[[Array], Vector]) -> Linear:
    product = lambda x: jnp.asarray(matrix, _dtype()) @ ravel_pytree(plain(x))[0]
    return lambda x: space(product(x))


def _positive_definite(n: int) -> Matrix:
    root = np.random.default_rng(1).normal(size=(n, n)) / n**0.5
    return np.eye(n) + root @ root.T
