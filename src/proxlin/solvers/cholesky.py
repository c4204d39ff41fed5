"""Direct solves through the smaller of the two Gram matrices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float

from proxlin.solvers.system import (
    LinearSolver,
    NormalSystem,
    Rows,
    Solution,
    Status,
    Vector,
    add_scaled,
    count,
    scale,
)

Matrix = Float[Array, "n n"]
Products = tuple[int, int]  # how often M and M* are applied


@dataclasses.dataclass(frozen=True)
class Cholesky(LinearSolver):
    r"""Solves the system exactly by a Cholesky factorisation of its small Gram matrix.

    Of :math:`M^* M` and :math:`M M^*` the smaller is formed, of size :math:`\min(m k, p)`; the
    solution of the other system follows by the formula of Woodbury. The misfit :math:`s - M x` of
    the dual would cancel for large gamma: with a preimage :math:`M v = s` it is computed as
    :math:`\text{shift} M (\text{shift} I + M^* M)^{-1} v`, else it is refined once.

    Attributes:
        independent: take the rows of the Jacobian example by example instead of by products with
            the whole batch, which costs about m times less. Only for models in which no example
            influences another; this is checked on the first and the last example.
        max_elements: about how many elements of the Jacobian to hold at once beside the Gram
            matrix; it is formed in blocks of that size.

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
        if self.max_elements < 1:
            raise ValueError(f"Cholesky(max_elements={self.max_elements}): give at least 1")

    def solve(self, system: NormalSystem) -> Solution:
        """Forms the smaller Gram matrix, factorises it and maps back."""
        x_like, image_like = _spaces(system)
        on_x = _size(x_like) <= _size(image_like)
        status = count(Status.OK)
        if self.independent:
            if system.rows is None:
                raise TypeError("Cholesky(independent=True) needs a system with rows")
            status = jnp.where(system.rows.agree(), status, count(Status.BAD_VALUE))
            gram = _gram_of_rows(system.rows, on_x, self.max_elements)
            forming = _products_of_rows(system.rows)
        else:
            gram = _gram_of_products(system, x_like, image_like, on_x, self.max_elements)
            forming = (gram.shape[0], gram.shape[0])
        inverse = _inverse(gram, system.shift, x_like if on_x else image_like)
        x, misfit, mapping = (_map_back_on_x if on_x else _map_back_on_image)(system, inverse)
        return Solution(
            x=x,
            misfit=misfit,
            steps=count(0),
            residual=jnp.full_like(system.shift, jnp.nan),
            forwards=count(forming[0] + mapping[0]),
            adjoints=count(forming[1] + mapping[1]),
            status=status,
        )


def _spaces(system: NormalSystem) -> tuple[Vector, Vector]:
    """Shapes of x and of M x."""
    if system.rhs is not None:
        return system.rhs, jax.eval_shape(system.forward, system.rhs)
    return jax.eval_shape(system.adjoint, system.source), system.source


def _size(like: Vector) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like))


def _unravel(like: Vector) -> Callable[[Array], Vector]:
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    return ravel_pytree(zeros)[1]


def _inverse(gram: Matrix, shift: Array, like: Vector) -> Callable[[Vector], Vector]:
    factor = cho_factor(gram + shift * jnp.eye(gram.shape[0], dtype=gram.dtype), lower=True)
    unravel = _unravel(like)
    return lambda b: unravel(cho_solve(factor, ravel_pytree(b)[0]))


def _map_back_on_x(
    system: NormalSystem, inverse: Callable[[Vector], Vector]
) -> tuple[Vector, Vector, Products]:
    """From the inverse of shift I + M* M."""
    if system.rhs is not None:
        x = inverse(system.rhs)
        return x, scale(-1, system.forward(x)), (1, 0)
    if system.preimage is not None:
        z = scale(system.shift, inverse(system.preimage))
        return add_scaled(system.preimage, -1, z), system.forward(z), (1, 0)

    def reduced(s: Vector) -> tuple[Vector, Vector]:
        """x and s - M x = shift (shift I + M M*)^-1 s, with cancellation."""
        x = inverse(system.adjoint(s))
        return x, add_scaled(s, -1, system.forward(x))

    x, misfit = reduced(system.source)
    explained = add_scaled(misfit, 1 / system.shift, system.forward(system.adjoint(misfit)))
    misfit = add_scaled(misfit, 1, reduced(add_scaled(system.source, -1, explained))[1])
    return x, misfit, (3, 3)


def _map_back_on_image(
    system: NormalSystem, inverse: Callable[[Vector], Vector]
) -> tuple[Vector, Vector, Products]:
    """From the inverse of shift I + M M*."""
    if system.rhs is None:
        y = inverse(system.source)
        return system.adjoint(y), scale(system.shift, y), (0, 1)

    def reduced(b: Vector) -> Vector:
        """(shift I + M* M)^-1 b, with cancellation."""
        inner = system.adjoint(inverse(system.forward(b)))
        return scale(1 / system.shift, add_scaled(b, -1, inner))

    x = reduced(system.rhs)
    explained = add_scaled(system.adjoint(system.forward(x)), system.shift, x)
    x = add_scaled(x, 1, reduced(add_scaled(system.rhs, -1, explained)))
    return x, scale(-1, system.forward(x)), (4, 3)


def _gram_of_products(
    system: NormalSystem, x_like: Vector, image_like: Vector, on_x: bool, max_elements: int
) -> Matrix:
    """M* M or M M*, column by column, some columns at a time."""
    first, second = (system.forward, system.adjoint) if on_x else (system.adjoint, system.forward)
    small, large = (x_like, image_like) if on_x else (image_like, x_like)
    unravel = _unravel(small)
    at_once = max(1, max_elements // _size(large))
    basis = jnp.eye(_size(small), dtype=jax.tree.leaves(small)[0].dtype)
    gram = jax.lax.map(
        lambda e: ravel_pytree(second(first(unravel(e))))[0],
        basis,
        batch_size=min(at_once, len(basis)),
    )
    return 0.5 * (gram + gram.T)


def _gram_of_rows(rows: Rows, on_x: bool, max_elements: int) -> Matrix:
    """A A^T or A^T A for the dense rows A, from blocks of bounded size."""
    p = jax.eval_shape(rows.block, jnp.zeros(1, int)).shape[1]
    size = min(rows.examples, max(1, max_elements // (rows.per_example * p)))
    blocks = -(-rows.examples // size)
    # The last block is filled up with the last example, whose copies are cut off again.
    numbers = jnp.arange(blocks * size).reshape(blocks, size)
    indices = jnp.minimum(numbers, rows.examples - 1)
    if on_x == rows.of_x:
        n = rows.examples * rows.per_example

        if blocks == 1:
            a = rows.block(indices[0])
            return _times(a, a.T)

        def strip(i: Array) -> Float[Array, "block n"]:
            a = rows.block(i)
            products = jax.lax.map(lambda j: _times(a, rows.block(j).T), indices)
            return jnp.swapaxes(products, 0, 1).reshape(a.shape[0], -1)

        side = blocks * size * rows.per_example
        return jax.lax.map(strip, indices).reshape(side, side)[:n, :n]

    def add(total: Matrix, block: tuple[Array, Array]) -> tuple[Matrix, None]:
        i, number = block
        real = jnp.repeat(number < rows.examples, rows.per_example)
        a = jnp.where(real[:, None], rows.block(i), 0)
        return total + _times(a.T, a), None

    zero = jnp.zeros((p, p), jax.eval_shape(rows.block, jnp.zeros(1, int)).dtype)
    return jax.lax.scan(add, zero, (indices, numbers))[0]


def _products_of_rows(rows: Rows) -> Products:
    """All rows of all examples cost as many VJPs as one example has rows; checking them, two."""
    vjps = rows.per_example + 2
    return (vjps, 0) if rows.of_x else (0, vjps)


def _times(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
