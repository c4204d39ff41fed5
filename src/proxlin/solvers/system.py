r"""The one linear system of this library, and what a solver says of its solution.

Both quadratic subproblems are :math:`(\text{shift} I + M^* M) x = \text{rhs}`. A solver knows
nothing of networks or losses: it sees :math:`M` and :math:`M^*` as functions on pytrees.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

Vector: TypeAlias = PyTree[Array]


class Status(enum.IntEnum):
    """How a direction came about.

    OK: solved as asked. The inner steps asked for were made, or fewer were enough.

    INEXACT: stopped early, but descending; the step may be taken. Conjugate gradients met
    curvature that is not positive, or an iterate that does not descend, and kept the last one
    that does; or gamma is so large that rounding may have changed the direction by a tenth and
    more. ``BREAKDOWN`` is an older name of it.

    ASCENT: what was computed is not a descent direction, so that something has gone wrong on the
    way to it. Such a step is never taken.

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


class TermRows(NamedTuple):
    r"""Dense rows of :math:`B^\top J` of one term of the objective, block by block.

    Attributes:
        block: example indices ``(b,)`` -> matrix ``(b * per_example, p)``.
        examples: how many examples there are.
        per_example: rows of one example.
    """

    block: Callable[[Int[Array, " b"]], Float[Array, "rows p"]]
    examples: int
    per_example: int


class Rows(NamedTuple):
    r"""Dense rows of :math:`B^\top J`, term by term.

    Attributes:
        terms: the rows of each term, in their order in :math:`x` or :math:`M x`.
        of_x: whether rows belong to entries of :math:`x` (the dual) or of :math:`M x`.
        tolerance: how much, relatively, rounding may make these rows differ from those of
            :math:`M`; more is taken for another matrix.
    """

    terms: tuple[TermRows, ...]
    of_x: bool
    tolerance: float


@dataclasses.dataclass(frozen=True)
class NormalSystem:
    r"""The system :math:`(\text{shift} I + M^* M) x = \text{rhs}`.

    Exactly one of ``rhs`` and ``source`` is given. With a source :math:`s` the right-hand side is
    :math:`M^* s`, so that :math:`x` minimises :math:`\|M x - s\|^2 + \text{shift} \|x\|^2`.

    Attributes:
        forward: :math:`M`.
        adjoint: :math:`M^*`.
        shift: a non-negative number.
        rhs: the right-hand side, or None.
        source: :math:`s`, or None.
        preimage: some :math:`v` with :math:`M v = s`, where one is known.
        rows: makes dense rows for direct solvers, where examples are independent.
    """

    forward: Callable[[Vector], Vector]
    adjoint: Callable[[Vector], Vector]
    shift: Float[Array, ""]
    rhs: Vector | None = None
    source: Vector | None = None
    preimage: Vector | None = None
    rows: Callable[[], Rows] | None = None

    def __post_init__(self) -> None:
        if (self.rhs is None) == (self.source is None):
            raise ValueError("NormalSystem takes either rhs or source")


class Solution(NamedTuple):
    r"""An approximate solution of a :class:`NormalSystem`.

    Attributes:
        x: the solution.
        misfit: :math:`s - M x`, or :math:`-M x` where there is no source: what the products
            computed on the way give for free, and more exactly than a subtraction at the end.
        steps: inner steps that were taken; zero for a direct solver.
        residual: the last relative residual that is known, NaN for a direct solver. It is the
            one before the last step where that step was taken: the one after it would cost a
            product more.
        forwards: how often :math:`M` was applied.
        adjoints: how often :math:`M^*` was applied.
        status: a :class:`Status`.
    """

    x: Vector
    misfit: Vector
    steps: Int[Array, ""]
    residual: Float[Array, ""]
    forwards: Int[Array, ""]
    adjoints: Int[Array, ""]
    status: Int[Array, ""]


class LinearSolver(abc.ABC):
    """A solver of :class:`NormalSystem`; a frozen dataclass."""

    @abc.abstractmethod
    def solve(self, system: NormalSystem) -> Solution:
        """Solves the system, exactly or approximately."""


def count(n: int | Array) -> Int[Array, ""]:
    """A count or status, int32 whatever the precision of the rest."""
    return jnp.asarray(n).astype(jnp.int32)


def scale(factor: Any, x: Vector) -> Vector:
    """``factor * x`` on pytrees."""
    return optax.tree.scale(factor, x)


def add_scaled(x: Vector, factor: Any, y: Vector) -> Vector:
    """``x + factor * y`` on pytrees."""
    return optax.tree.add_scale(x, factor, y)


class Pair(NamedTuple):
    r"""A vector of a space with a metric :math:`P`, together with its image :math:`P x`.

    Sums and multiples of pairs are pairs, so that a solver that takes its inner products by
    :func:`dot` works in the metric and never has to apply :math:`P` itself.

    Attributes:
        covector: :math:`P x`.
        vector: :math:`x`.
    """

    covector: Vector
    vector: Vector


def dot(x: Vector, y: Vector) -> Float[Array, ""]:
    r"""The inner product of two pytrees, and :math:`\langle x, P y \rangle` of two pairs."""
    if isinstance(x, Pair):
        return optax.tree.vdot(x.covector, y.vector)
    return optax.tree.vdot(x, y)


def select(condition: Bool[Array, ""], x: Vector, y: Vector) -> Vector:
    """``x`` where the condition holds, else ``y``, whatever the other one contains."""
    return jax.tree.map(lambda a, b: jax.lax.select(condition, a, b), x, y)
