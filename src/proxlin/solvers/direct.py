r"""What direct solvers share: a factorization on the smaller side, and the way back from it.

With :math:`F = M` or :math:`F = M^*`, whichever has fewer columns, a factorization gives four
products with inverses, and the solution of every :class:`NormalSystem` is one or two of them.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool

from proxlin.algebra import Scalar, Vector, add_scaled, count, scale
from proxlin.solvers.rows import Products, size, spaces
from proxlin.solvers.system import Again, Cost, LinearSolver, NormalSystem, Solution, Status


class Counted:
    """A function that counts its calls; solvers of this kind call it outside of loops.

    The same vector once more costs nothing.
    """

    def __init__(self, fn: Callable[[Vector], Vector]):
        self.fn, self.calls = fn, 0
        self.found: list[tuple[Vector, Vector]] = []

    def __call__(self, x: Vector) -> Vector:
        """The function."""
        for known, image in self.found:
            if known is x:
                return image
        self.calls += 1
        image = self.fn(x)
        self.found.append((x, image))
        return image


class Factorization(abc.ABC):
    r"""Products with inverses for :math:`F`, whose columns are the smaller side.

    Attributes:
        refines: whether :meth:`fit` is more accurate than :meth:`normal` of :math:`F^* v`.
    """

    refines: ClassVar[bool] = False

    @abc.abstractmethod
    def normal(self, b: Vector) -> Vector:
        r""":math:`(\text{shift} I + F^* F)^{-1} b`."""

    @abc.abstractmethod
    def fit(self, v: Vector) -> Vector:
        r""":math:`(\text{shift} I + F^* F)^{-1} F^* v`."""

    @abc.abstractmethod
    def spread(self, b: Vector) -> Vector:
        r""":math:`F (\text{shift} I + F^* F)^{-1} b`."""

    @abc.abstractmethod
    def rest(self, b: Vector) -> Vector:
        r""":math:`(\text{shift} I + F F^*)^{-1} b`."""

    @abc.abstractmethod
    def forward(self, b: Vector) -> Vector:
        """:math:`F b`."""

    @abc.abstractmethod
    def adjoint(self, v: Vector) -> Vector:
        """:math:`F^* v`."""


@dataclasses.dataclass(frozen=True)
class Factorized:
    """A factorization of a system, and how it went.

    Attributes:
        factors: the factorization.
        shift: the shift that was used, if rounding demands a larger one.
        exact: whether it is that of the system.
        status: another status than OK, if anything else is wrong.
        forming: products that were made to form the matrix.
    """

    factors: Factorization
    shift: Scalar
    exact: Bool[Array, ""]
    status: Array
    forming: Products


class DirectSolver(LinearSolver):
    """A solver that factorizes a matrix on the smaller side."""

    @abc.abstractmethod
    def factorize(self, system: NormalSystem, on_x: bool) -> Factorized:
        """Factorizes on the side of x, or on that of M x."""

    def solve(self, system: NormalSystem) -> Solution:
        """Forms and factorizes the matrix, and maps back."""
        return self.solve_and_keep(system)[0]

    def solve_and_keep(self, system: NormalSystem) -> tuple[Solution, Again]:
        """The same, and a function that uses the factorization again."""
        x_like, image_like = spaces(system)
        on_x = size(x_like) <= size(image_like)
        forward, adjoint = Counted(system.forward), Counted(system.adjoint)
        counted = dataclasses.replace(system, forward=forward, adjoint=adjoint)
        found = self.factorize(counted, on_x)
        forward.calls, adjoint.calls = found.forming  # whatever it took to form the matrix
        map_back = _on_x if on_x else _on_image
        x, misfit, again = map_back(counted, found.factors, found.shift)
        exact = found.exact & (found.shift == system.shift)
        failed = found.status != Status.OK
        cost = Cost(
            steps=count(0),
            residual=jnp.full_like(system.shift, jnp.nan),
            jvps=count(forward.calls),
            vjps=count(adjoint.calls),
            status=jnp.where(exact | failed, found.status, count(Status.INEXACT)),
        )
        return Solution(x=x, misfit=misfit, cost=cost), again


Mapped = tuple[Vector, Vector, Again]


def _on_x(system: NormalSystem, factors: Factorization, shift: Scalar) -> Mapped:
    """The solution, the misfit and the next solutions, from a factorization of shift I + M* M."""
    v = system.preimage
    if system.rhs is not None:
        x = factors.fit(v) if v is not None and factors.refines else factors.normal(system.rhs)
        return x, scale(-1, factors.forward(x)), factors.fit
    # A direction is the misfit over the shift of the system, not over a larger one.
    again = lambda v: scale(system.shift, factors.spread(v))
    if v is not None:
        return add_scaled(v, -1, scale(shift, factors.normal(v))), again(v), again
    return factors.fit(system.data), scale(system.shift, factors.rest(system.data)), again


def _on_image(system: NormalSystem, factors: Factorization, shift: Scalar) -> Mapped:
    """The same from a factorization of shift I + M M*."""
    v = system.preimage
    if system.rhs is not None:
        x = factors.rest(system.rhs) if v is None else factors.spread(v)
        return x, scale(-1, factors.adjoint(x)), factors.spread
    y = factors.fit(v) if v is not None and factors.refines else factors.normal(system.data)
    again = lambda v: scale(system.shift, factors.fit(v))
    return factors.forward(y), scale(system.shift, y), again
