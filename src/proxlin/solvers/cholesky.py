"""Direct solves with the smaller of the two Gram matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool

from proxlin.algebra import Scalar, Shapes, Vector, add_scaled, count, scale
from proxlin.checks import check_integer
from proxlin.solvers.direct import DirectSolver, Factorization, Factorized
from proxlin.solvers.rows import (
    Matrix,
    gram_of_products,
    gram_of_rows,
    products_with,
    spaces,
    unravel,
)
from proxlin.solvers.system import NormalSystem, Status


@dataclasses.dataclass(frozen=True)
class Cholesky(DirectSolver):
    r"""Solves the system exactly by a Cholesky factorization of its small Gram matrix.

    It forms the smaller of :math:`M^* M` and :math:`M M^*`, of size :math:`\min(m k, p)`; the
    solution of the other system follows by the Woodbury formula. The misfit :math:`s - M x` of the
    dual would cancel for large gamma: with a preimage :math:`M v = s` it is computed as
    :math:`\text{shift} M (\text{shift} I + M^* M)^{-1} v`, else it is refined once; and so for
    :math:`x` if the smaller matrix is :math:`M M^*`.

    A matrix that is singular to rounding is factorized with rounding added to its diagonal. A shift
    that would be lost in a difference is raised to rounding level, which gives the result of a
    smaller gamma. In both cases the status is INEXACT.

    Where the rows of independent examples fit into ``max_elements`` numbers, they also give all
    other products, and are checked against the gradient of the whole batch if a preimage is known.

    Besides what Jacobian products of the batch need, memory is bounded by
    :math:`4 \min(m k, p)^2 + 4\, \text{max\_elements}` numbers: the matrix, its symmetric and
    shifted copies and its factor, and the blocks it is made of.

    Attributes:
        independent: compute the rows of the Jacobian example by example instead of by products
            with the whole batch, about m times cheaper. Only for models in which no example
            influences another; this is checked.
        max_elements: the largest number of elements in a block of the Jacobian; at least one
            example at a time. Blocks are computed again for each product with another block.

    Example:
        >>> import jax.numpy as jnp
        >>> a = jnp.array([[1.0, 2.0], [0.0, 1.0]])
        >>> system = NormalSystem(lambda x: a @ x, lambda y: a.T @ y, jnp.asarray(1.0),
        ...                       rhs=jnp.array([1.0, 0.0]))
        >>> x = Cholesky().solve(system).x
        >>> bool(jnp.allclose(x + a.T @ (a @ x), system.rhs, atol=1e-6))
        True
    """

    independent: bool = False
    max_elements: int = 2**26

    def __post_init__(self) -> None:
        check_integer(self, "max_elements", least=1)

    def factorize(self, system: NormalSystem, on_x: bool) -> Factorized:
        """Forms the smaller Gram matrix and factorizes it."""
        x_like, image_like = spaces(system)
        status, tall = count(Status.OK), None
        if self.independent:
            if system.rows is None:
                raise TypeError("Cholesky(independent=True) needs a system with rows")
            gram, tall, agrees, forming = gram_of_rows(
                system, system.rows(), on_x, self.max_elements
            )
            status = jnp.where(agrees, status, count(Status.BAD_VALUE))
        else:
            gram = gram_of_products(system, x_like, image_like, on_x, self.max_elements)
            forming = (gram.shape[0], gram.shape[0])
        shift = _least_shift(system, gram) if _cancels(system, on_x) else system.shift
        small, large = (x_like, image_like) if on_x else (image_like, x_like)
        inverse, singular = _inverse(gram, shift, small)
        products = (system.forward, system.adjoint) if on_x else (system.adjoint, system.forward)
        if tall is not None:  # it is there: products with the network cost more
            products = products_with(tall, small, large)
        return Factorized(
            factors=_Factors(*products, shift=shift, normal=inverse),
            shift=shift,
            exact=~singular,
            status=status,
            forming=forming,
        )


class _Factors(Factorization):
    """From the inverse of the shifted Gram matrix."""

    def __init__(
        self,
        forward: Callable[[Vector], Vector],
        adjoint: Callable[[Vector], Vector],
        shift: Scalar,
        normal: Callable[[Vector], Vector],
    ):
        self.of_small, self.of_large, self.shift, self.inverse = forward, adjoint, shift, normal

    def forward(self, b: Vector) -> Vector:
        return self.of_small(b)

    def adjoint(self, v: Vector) -> Vector:
        return self.of_large(v)

    def normal(self, b: Vector) -> Vector:
        return self.inverse(b)

    def fit(self, v: Vector) -> Vector:
        return self.inverse(self.adjoint(v))

    def spread(self, b: Vector) -> Vector:
        return self.forward(self.inverse(b))

    def rest(self, b: Vector) -> Vector:
        """With cancellation, and refined once."""
        x = self._reduced(b)
        explained = add_scaled(self.forward(self.adjoint(x)), self.shift, x)
        return add_scaled(x, 1, self._reduced(add_scaled(b, -1, explained)))

    def _reduced(self, b: Vector) -> Vector:
        inner = self.forward(self.inverse(self.adjoint(b)))
        return scale(1 / self.shift, add_scaled(b, -1, inner))


def _cancels(system: NormalSystem, on_x: bool) -> bool:
    """Whether mapping back from the Gram matrix takes a difference and divides by the shift."""
    return system.preimage is None and on_x == (system.rhs is None)


def _rounding(gram: Matrix) -> float:
    """The relative change of the diagonal from forming and factorizing the matrix."""
    return (gram.shape[0] + 10) * float(jnp.finfo(gram.dtype).eps)


def _least_shift(system: NormalSystem, gram: Matrix) -> Scalar:
    """The shift, or that of a smaller gamma if a difference divided by it would be noise."""
    return jnp.maximum(system.shift, _rounding(gram) * jnp.max(jnp.diagonal(gram)))


def _inverse(
    gram: Matrix, shift: Scalar, like: Shapes
) -> tuple[Callable[[Vector], Vector], Bool[Array, ""]]:
    """The inverse of the shifted matrix, and whether that is singular to rounding.

    If so, rounding is added to its diagonal, because a pivot may be negative otherwise; entry by
    entry, because the factorization does not depend on the scale of rows.
    """
    matrix = gram + shift * jnp.eye(gram.shape[0], dtype=gram.dtype)
    diagonal = _rounding(gram) * jnp.diagonal(matrix)
    plain = cho_factor(matrix, lower=True)[0]
    singular = ~jnp.all(jnp.diagonal(plain) ** 2 > diagonal)
    factor = jax.lax.cond(
        singular, lambda: cho_factor(matrix + jnp.diag(diagonal), lower=True)[0], lambda: plain
    )
    vector = unravel(like)
    return lambda b: vector(cho_solve((factor, True), ravel_pytree(b)[0])), singular
