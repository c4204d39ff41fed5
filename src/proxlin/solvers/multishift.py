"""Conjugate gradients for all shifts at once."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from proxlin.algebra import Scalar, Vector, add_scaled, count, dot, scale
from proxlin.solvers.cg import without_products
from proxlin.solvers.krylov import rounding_status
from proxlin.solvers.system import Cost, LinearSolver, NormalSystem, Solution


@dataclasses.dataclass(frozen=True)
class MultiShiftCG(LinearSolver):
    r"""The iterates of :class:`CG`, from products that do not depend on the shift.

    The Krylov space of :math:`\text{shift} I + M^* M` is that of :math:`M^* M`. Lanczos' method
    builds an orthonormal basis :math:`V` of it, in which :math:`M^* M` is a small tridiagonal
    matrix :math:`T`, and

    .. math:: x = V y, \qquad (\text{shift} I + T)\, y = \|\text{rhs}\| e_1

    is the iterate of conjugate gradients for any shift. The products with the network are the same
    for all shifts, so ``jax.vmap`` over gamma computes a grid of directions with the products of
    one. It stores ``max_steps`` vectors of parameters and lacks the guards of :class:`CG` against
    rounding over many steps: use it for a few.

    Attributes:
        max_steps: the number of steps, from 0 to 10.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from proxlin import Squared, value_and_direction
        >>> fn = value_and_direction(lambda w, x: x @ w, Squared(), solver=MultiShiftCG(2))
        >>> w, x, y = jnp.zeros((2, 1)), jnp.diag(jnp.array([1.0, 3.0])), jnp.ones((2, 1))
        >>> grid = jnp.array([0.1, 1.0, 10.0])
        >>> jax.vmap(lambda gamma: fn(w, x, y, gamma=gamma)[1])(grid).shape
        (3, 2, 1)
    """

    max_steps: int = 2
    takes_metric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.max_steps, numbers.Integral) or not 0 <= self.max_steps <= 10:
            raise ValueError(
                f"MultiShiftCG(max_steps={self.max_steps!r}): give an integer from 0 to 10; for "
                "more steps use CG"
            )

    def solve(self, system: NormalSystem) -> Solution:
        """Builds the basis, and solves the small system for the shift."""
        if self.max_steps == 0:
            return without_products(system)
        basis = _lanczos(system, self.max_steps)
        y = _tridiagonal(basis, system.shift, self.max_steps)
        before = _tridiagonal(basis, system.shift, self.max_steps - 1)
        unsolved = basis.off_diagonal[-1] * jnp.abs(before[-1]) if before else basis.length
        vanishes = basis.length == 0
        image = _combine(basis.images, y)
        misfit = scale(-1, image)
        if system.data is not None:
            misfit = add_scaled(system.data, -1, image)
        diagonal = jnp.stack(basis.diagonal)
        return Solution(
            x=_combine(basis.vectors, y),
            misfit=misfit,
            cost=Cost(
                steps=count(self.max_steps),
                residual=unsolved / jnp.where(vanishes, 1, basis.length),
                jvps=count(self.max_steps),
                vjps=count(self.max_steps - (0 if system.data is not None else 1)),
                status=rounding_status(system, jnp.max(diagonal), jnp.min(diagonal), misfit),
            ),
        )


class _Basis(NamedTuple):
    r"""An orthonormal basis of the Krylov space.

    ``vectors`` are :math:`V`, ``images`` :math:`M V`, ``diagonal`` and ``off_diagonal`` those of
    :math:`V^* M^* M V`; the last entry of the latter couples the last vector to those before it.
    ``length`` is that of the right-hand side.
    """

    vectors: Sequence[Vector]
    images: Sequence[Vector]
    diagonal: Sequence[Scalar]
    off_diagonal: Sequence[Scalar]
    length: Scalar


def _lanczos(system: NormalSystem, steps: int) -> _Basis:
    rhs = system.adjoint(system.data) if system.rhs is None else system.rhs
    length = jnp.sqrt(dot(rhs, rhs))
    vectors, images = [_unit(rhs, length)], []
    diagonal: list[Scalar] = []
    off_diagonal: list[Scalar] = []
    for step in range(steps):
        images.append(system.forward(vectors[-1]))
        diagonal.append(dot(images[-1], images[-1]))
        if step == steps - 1:
            break
        following = add_scaled(system.adjoint(images[-1]), -diagonal[-1], vectors[-1])
        if off_diagonal:
            following = add_scaled(following, -off_diagonal[-1], vectors[-2])
        norm = jnp.sqrt(dot(following, following))
        # A remainder at rounding level is noise: the space is exhausted.
        norm = jnp.where(norm > 10 * jnp.finfo(norm.dtype).eps * diagonal[-1], norm, 0)
        off_diagonal.append(norm)
        vectors.append(_unit(following, norm))
    return _Basis(
        vectors=vectors,
        images=images,
        diagonal=diagonal,
        off_diagonal=off_diagonal,
        length=length,
    )


def _unit(x: Vector, length: Scalar) -> Vector:
    """The vector scaled to length one, or zero if its length is zero."""
    factor = jnp.where(length > 0, 1 / jnp.where(length > 0, length, 1), 0)
    return jax.tree.map(lambda leaf: jnp.where(factor > 0, factor * leaf, 0), x)


def _tridiagonal(basis: _Basis, shift: Scalar, steps: int) -> list[Scalar]:
    """The solution of the small system of the first steps, by elimination without pivoting."""
    pivots: list[Scalar] = []
    rights: list[Scalar] = []
    for i in range(steps):
        pivot, right = basis.diagonal[i] + shift, basis.length if i == 0 else 0 * basis.length
        if i > 0:
            factor = basis.off_diagonal[i - 1] / pivots[-1]
            pivot = pivot - factor * basis.off_diagonal[i - 1]
            right = right - factor * rights[-1]
        pivots.append(pivot)
        rights.append(right)
    y: list[Scalar] = []
    for i in reversed(range(steps)):
        above = basis.off_diagonal[i] * y[0] if y else 0 * basis.length
        y.insert(0, (rights[i] - above) / pivots[i])
    return y


def _combine(vectors: Sequence[Vector], y: Sequence[Scalar]) -> Vector:
    total = scale(y[0], vectors[0])
    for vector, factor in zip(vectors[1:], y[1:], strict=True):
        total = add_scaled(total, factor, vector)
    return total
