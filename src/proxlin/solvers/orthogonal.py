r"""Direct solves by orthogonal factorizations, which do not square the condition number."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from proxlin.algebra import Scalar, Shapes, Vector, count
from proxlin.solvers.direct import DirectSolver, Factorization, Factorized
from proxlin.solvers.rows import (
    Products,
    matrix_of_products,
    matrix_of_rows,
    products_with,
    spaces,
    times,
    unravel,
)
from proxlin.solvers.system import NormalSystem, Status

Tall = Float[Array, "n small"]
Square = Float[Array, "small small"]


@dataclasses.dataclass(frozen=True)
class QR(DirectSolver):
    r"""Solves the system exactly by a QR factorization of its matrix.

    With :math:`F = M` or :math:`M^*`, whichever has fewer columns,

    .. math:: \begin{pmatrix} F \\ \sqrt{\text{shift}}\, I \end{pmatrix} = Q R, \qquad
        R^\top R = F^\top F + \text{shift}\, I

    so that the condition number is that of :math:`F` and not its square, as in the Gram matrix of
    :class:`Cholesky`. Where a preimage of the gradient is known, as for :class:`proxlin.Squared`,
    the solution of a least-squares problem, it is refined once. Use it in single precision, and
    where parameters are nearly redundant; in double precision :class:`Cholesky` costs about half.

    A shift below the square of rounding is raised to it, and the status is INEXACT. The whole
    matrix is kept in memory.

    Attributes:
        independent: compute the rows of the Jacobian example by example, as in
            :class:`Cholesky`; else by as many products as :math:`F` has columns.

    Example:
        >>> import jax.numpy as jnp
        >>> a = jnp.array([[1.0, 2.0], [0.0, 1.0]])
        >>> system = NormalSystem(lambda x: a @ x, lambda y: a.T @ y, jnp.asarray(1.0),
        ...                       rhs=jnp.array([1.0, 0.0]))
        >>> x = QR().solve(system).x
        >>> bool(jnp.allclose(x + a.T @ (a @ x), system.rhs, atol=1e-6))
        True
    """

    independent: bool = False

    def factorize(self, system: NormalSystem, on_x: bool) -> Factorized:
        """Forms the matrix and factorizes it together with the root of the shift."""
        f, forming, status = _tall(self, system, on_x)
        columns = jnp.sqrt(jnp.max(jnp.sum(f**2, axis=0)))
        shift = jnp.maximum(system.shift, (_rounding(f) * columns) ** 2)
        shift = jnp.where(shift > 0, shift, 1)  # a matrix of zeros
        damping = jnp.sqrt(shift) * jnp.eye(f.shape[1], dtype=f.dtype)
        r = jnp.linalg.qr(jnp.concatenate([f, damping]), mode="r")
        return Factorized(
            factors=_Triangular(f, *_spaces(system, on_x), r=r, shift=shift),
            shift=shift,
            exact=jnp.asarray(True),
            status=status,
            forming=forming,
        )


@dataclasses.dataclass(frozen=True)
class SVD(DirectSolver):
    r"""Solves the system exactly by the singular values of its matrix.

    With :math:`F = U \Sigma V^\top` the solution is :math:`V (\Sigma^2 + \text{shift}\, I)^{-1}
    V^\top F^\top v`. The condition number is not squared, and singular values below rounding count
    as zero, so without a shift the solution is the shortest one. The factorization does not depend
    on gamma: ``jax.vmap`` over a grid of gammas makes one. It costs several times as much as
    :class:`QR`.

    Attributes:
        independent: as in :class:`QR`.

    Example:
        >>> import jax.numpy as jnp
        >>> a = jnp.array([[1.0, 1.0], [1.0, 1.0]])
        >>> system = NormalSystem(lambda x: a @ x, lambda y: a.T @ y, jnp.asarray(0.0),
        ...                       rhs=jnp.array([2.0, 2.0]))
        >>> jnp.round(SVD().solve(system).x, 3)
        Array([0.5, 0.5], dtype=float32)
    """

    independent: bool = False

    def factorize(self, system: NormalSystem, on_x: bool) -> Factorized:
        """Forms the matrix and factorizes it."""
        f, forming, status = _tall(self, system, on_x)
        u, sigma, vt = jnp.linalg.svd(f, full_matrices=False)
        sigma = jnp.where(sigma > _rounding(f) * sigma[0], sigma, 0)
        return Factorized(
            factors=_Singular(
                f, *_spaces(system, on_x), u=u, sigma=sigma, vt=vt, shift=system.shift
            ),
            shift=system.shift,
            exact=(system.shift > 0) | jnp.all(sigma > 0),
            status=status,
            forming=forming,
        )


class _OnArrays(Factorization):
    """A factorization that works on flat arrays."""

    refines: ClassVar[bool] = True

    def __init__(self, f: Tall, small: Shapes, large: Shapes):
        self.small, self.large = unravel(small), unravel(large)
        self.products = products_with(f, small, large)

    def forward(self, b: Vector) -> Vector:
        return self.products[0](b)

    def adjoint(self, v: Vector) -> Vector:
        return self.products[1](v)


class _Triangular(_OnArrays):
    """From R of the matrix and the root of the shift."""

    def __init__(self, f: Tall, small: Shapes, large: Shapes, r: Square, shift: Scalar):
        super().__init__(f, small, large)
        self.f, self.r, self.shift = f, r, shift

    def normal(self, b: Vector) -> Vector:
        return self.small(self._solve(_flat(b)))

    def fit(self, v: Vector) -> Vector:
        """Refined once, with the residual of the least-squares problem."""
        v = _flat(v)
        y = self._solve(times(self.f.T, v))
        rest = times(self.f.T, v - times(self.f, y)) - self.shift * y
        return self.small(y + self._solve(rest))

    def spread(self, b: Vector) -> Vector:
        return self.large(times(self.f, self._solve(_flat(b))))

    def rest(self, b: Vector) -> Vector:
        """With cancellation, and refined once."""
        b = _flat(b)
        x = self._reduced(b)
        explained = times(self.f, times(self.f.T, x)) + self.shift * x
        return self.large(x + self._reduced(b - explained))

    def _reduced(self, b: Array) -> Array:
        return (b - times(self.f, self._solve(times(self.f.T, b)))) / self.shift

    def _solve(self, b: Array) -> Array:
        return solve_triangular(self.r, solve_triangular(self.r, b, trans=1))


class _Singular(_OnArrays):
    """From the singular values."""

    def __init__(
        self,
        f: Tall,
        small: Shapes,
        large: Shapes,
        u: Tall,
        sigma: Array,
        vt: Array,
        shift: Array,
    ):
        super().__init__(f, small, large)
        self.u, self.sigma, self.vt, self.shift = u, sigma, vt, shift
        square = sigma**2 + shift
        self.inverse = jnp.where(square > 0, 1 / jnp.where(square > 0, square, 1), 0)

    def normal(self, b: Vector) -> Vector:
        return self.small(times(self.vt.T, self.inverse * times(self.vt, _flat(b))))

    def fit(self, v: Vector) -> Vector:
        inner = self.sigma * self.inverse * times(self.u.T, _flat(v))
        return self.small(times(self.vt.T, inner))

    def spread(self, b: Vector) -> Vector:
        inner = self.sigma * self.inverse * times(self.vt, _flat(b))
        return self.large(times(self.u, inner))

    def rest(self, b: Vector) -> Vector:
        b = _flat(b)
        inner = times(self.u.T, b)
        outside = b - times(self.u, inner)
        outside = jnp.where(self.shift > 0, outside / jnp.where(self.shift > 0, self.shift, 1), 0)
        return self.large(outside + times(self.u, self.inverse * inner))


def _tall(solver: QR | SVD, system: NormalSystem, on_x: bool) -> tuple[Tall, Products, Array]:
    """The matrix with as many columns as the smaller side has entries; its cost and status."""
    ok = count(Status.OK)
    if solver.independent:
        if system.rows is None:
            name = type(solver).__name__
            raise TypeError(f"{name}(independent=True) needs a system with rows")
        f, agrees, forming = matrix_of_rows(system, system.rows(), on_x)
        return f, forming, jnp.where(agrees, ok, count(Status.BAD_VALUE))
    if system.whole is not None:
        rows = system.whole()
        a = rows.matrix()
        forming = (a.shape[1], 0) if (a.shape[1] <= a.shape[0]) != rows.of_x else (0, a.shape[0])
        return (a.T if on_x == rows.of_x else a), forming, ok
    f = matrix_of_products(system, on_x)
    return f, ((f.shape[1], 0) if on_x else (0, f.shape[1])), ok


def _spaces(system: NormalSystem, on_x: bool) -> tuple[Shapes, Shapes]:
    """The smaller and the larger side."""
    x_like, image_like = spaces(system)
    return (x_like, image_like) if on_x else (image_like, x_like)


def _rounding(f: Tall) -> float:
    """The relative error of a factorization."""
    return (f.shape[1] + 10) * float(jnp.finfo(f.dtype).eps)


def _flat(x: Vector) -> Array:
    return ravel_pytree(x)[0]
