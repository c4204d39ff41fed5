r"""The one linear system of this library, and what a solver returns.

Both quadratic subproblems are :math:`(\text{shift} I + M^* M) x = \text{rhs}`. A solver knows
nothing about networks or losses: it sees :math:`M` and :math:`M^*` as functions on pytrees.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from proxlin.algebra import Scalar, Vector, count
from proxlin.deprecation import deprecated_fields

# Solves a system again, with another preimage.
Again = Callable[[Vector], Vector]


class Status(enum.IntEnum):
    """How the computation of a direction ended.

    OK: solved as requested, in the given number of inner steps or fewer.

    INEXACT: a descent direction, but not the one requested; the step may be taken. Conjugate
    gradients met non-positive curvature, or an iterate that does not descend, and returned the last
    one that does; or a convex solver did not reach its tolerance; or gamma is so large that
    rounding may have changed the direction by a tenth or more, or a matrix is singular to rounding.
    ``BREAKDOWN`` is an older name.

    ASCENT: the result is not a descent direction, so something has gone wrong. Such a step is never
    taken.

    NON_FINITE: the value, the gradient or the direction is not finite. Such a step is never taken.

    BAD_VALUE: a value that is not allowed (gamma, a label, the weights, examples that are not
    independent) was found under ``jit``, where it cannot raise. Such a step is never taken.
    """

    OK = 0
    NON_FINITE = 1
    INEXACT = 2
    BREAKDOWN = 2
    BAD_VALUE = 3
    ASCENT = 4


class Cost(NamedTuple):
    r"""The cost of a solver, a subproblem or a whole direction, and how it ended.

    Attributes:
        steps: inner steps; zero for a direct solver.
        residual: the last known relative residual, NaN for a direct solver. It usually is the one
            before the last step: the one after it would cost one more product.
        jvps: products with the Jacobian; for a solver, with :math:`M`.
        vjps: products with its adjoint; for a solver, with :math:`M^*`.
        status: a :class:`Status`.
    """

    steps: Int[Array, ""]
    residual: Scalar
    jvps: Int[Array, ""]
    vjps: Int[Array, ""]
    status: Int[Array, ""]

    @property
    def transposed(self) -> Cost:
        """The same, with products of the operator and its adjoint exchanged."""
        return self._replace(jvps=self.vjps, vjps=self.jvps)

    @property
    def usable(self) -> Bool[Array, ""]:
        """Whether the result may be used: OK or INEXACT."""
        return (self.status == Status.OK) | (self.status == Status.INEXACT)

    def after(self, before: Cost) -> Cost:
        """The cost of two solves, one after the other; OK if both are."""
        return Cost(
            steps=before.steps + self.steps,
            residual=self.residual,
            jvps=before.jvps + self.jvps,
            vjps=before.vjps + self.vjps,
            status=jnp.where(self.status == Status.OK, before.status, self.status),
        )

    def plus(self, *, jvps: int | Array = 0, vjps: int | Array = 0) -> Cost:
        """The same, plus these products."""
        return self._replace(jvps=self.jvps + jvps, vjps=self.vjps + vjps)

    def with_status(self, status: Status, *, where: Bool[Array, ""]) -> Cost:
        """The same, with another status if the condition holds."""
        return self._replace(status=jnp.where(where, count(status), self.status))


class TermRows(NamedTuple):
    r"""Dense rows of :math:`B^\top J` of one term of the objective, block by block.

    Attributes:
        block: example indices ``(b,)`` -> matrix ``(b * per_example, p)``.
        examples: how many examples there are.
        per_example: rows of one example.
        columns: example indices -> the transposed matrix ``(p, b * per_example)``, made column by
            column; None if that is not cheaper than to transpose.
    """

    block: Callable[[Int[Array, " b"]], Float[Array, "rows p"]]
    examples: int
    per_example: int
    columns: Callable[[Int[Array, " b"]], Float[Array, "p rows"]] | None = None

    def transposed(self, numbers: Int[Array, " b"]) -> Float[Array, "p rows"]:
        """The rows of these examples as columns."""
        return self.block(numbers).T if self.columns is None else self.columns(numbers)


class Rows(NamedTuple):
    r"""Dense rows of :math:`B^\top J`, term by term.

    Attributes:
        terms: the rows of each term, in their order in :math:`x` or :math:`M x`.
        of_x: whether rows belong to entries of :math:`x` (the dual) or of :math:`M x`.
        tolerance: by how much, relatively, rounding may make these rows differ from those of
            :math:`M`; a larger difference means another matrix.
        dense: all of them as one matrix, if it is computed only once; None if it is not kept.
    """

    terms: tuple[TermRows, ...]
    of_x: bool
    tolerance: float
    dense: Callable[[], Float[Array, "n p"]] | None = None

    def matrix(self) -> Float[Array, "n p"]:
        """All rows as one matrix."""
        if self.dense is not None:
            return self.dense()
        return matrix_of_terms(self.terms)


def matrix_of_terms(
    terms: tuple[TermRows, ...], *, transposed: bool = False
) -> Float[Array, "n p"]:
    """All rows as one matrix, made by rows or by columns."""
    if transposed:
        columns = [term.transposed(jnp.arange(term.examples)) for term in terms]
        return jnp.concatenate(columns, axis=1).T
    return jnp.concatenate([term.block(jnp.arange(term.examples)) for term in terms])


@deprecated_fields({"source": "data"}, removal="0.2")
@dataclasses.dataclass(frozen=True)
class NormalSystem:
    r"""The system :math:`(\text{shift} I + M^* M) x = \text{rhs}`.

    Exactly one of ``rhs`` and ``data`` is given. With data :math:`s` the right-hand side is
    :math:`M^* s`, so that :math:`x` minimizes :math:`\|M x - s\|^2 + \text{shift} \|x\|^2`.

    Attributes:
        forward: :math:`M`.
        adjoint: :math:`M^*`.
        shift: a non-negative number.
        rhs: the right-hand side, or None.
        data: :math:`s`, or None.
        preimage: some :math:`v` with :math:`M v = s`, or with :math:`M^* v = \text{rhs}`, if one is
            known.
        rows: makes dense rows for direct solvers, if examples are independent.
        whole: makes the same rows by products with the whole batch.
    """

    forward: Callable[[Vector], Vector]
    adjoint: Callable[[Vector], Vector]
    shift: Scalar
    rhs: Vector | None = None
    data: Vector | None = None
    preimage: Vector | None = None
    rows: Callable[[], Rows] | None = None
    whole: Callable[[], Rows] | None = None

    def __post_init__(self) -> None:
        if (self.rhs is None) == (self.data is None):
            raise ValueError("NormalSystem takes either rhs or data")


@deprecated_fields(
    {
        "steps": "cost.steps",
        "residual": "cost.residual",
        "forwards": "cost.jvps",
        "adjoints": "cost.vjps",
        "status": "cost.status",
    },
    removal="0.2",
)
class Solution(NamedTuple):
    r"""An approximate solution of a :class:`NormalSystem`.

    Attributes:
        x: the solution.
        misfit: :math:`s - M x`, or :math:`-M x` without data. The solver's own products give it for
            free, and more accurately than a subtraction at the end. None without data if no
            product was made.
        cost: steps, products with :math:`M` (``jvps``) and :math:`M^*` (``vjps``), and how the
            solver ended.
    """

    x: Vector
    misfit: Vector | None
    cost: Cost


class LinearSolver(abc.ABC):
    """A solver of :class:`NormalSystem`; a frozen dataclass.

    Attributes:
        takes_metric: whether all its inner products go through :func:`proxlin.extend.dot` and all
            its vectors are sums and multiples of others, so that it also works in a metric.
    """

    takes_metric: ClassVar[bool] = False

    @abc.abstractmethod
    def solve(self, system: NormalSystem) -> Solution:
        """Solves the system, exactly or approximately."""

    def solve_and_keep(self, system: NormalSystem) -> tuple[Solution, Again]:
        r"""The solution, and a function that solves the system again with another preimage.

        From :math:`v` it computes :math:`x` for the right-hand side :math:`M^* v` if the system has
        a right-hand side, or the misfit for the data :math:`M v` if it has data. A direct solver
        has the factorization; here the system is solved once more.
        """

        def again(v: Vector) -> Vector:
            if system.rhs is not None:
                other = dataclasses.replace(system, rhs=system.adjoint(v), preimage=v)
                return self.solve(other).x
            other = dataclasses.replace(system, data=system.forward(v), preimage=v)
            return self.solve(other).misfit

        return self.solve(system), again
