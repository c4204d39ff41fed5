"""Direct solves through the smaller of the two Gram matrices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, Int

from proxlin.solvers.system import (
    LinearSolver,
    NormalSystem,
    Rows,
    Solution,
    Status,
    TermRows,
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

    Beside what Jacobian products of the batch need, memory is bounded by
    :math:`4 \min(m k, p)^2 + 4\, \text{max\_elements}` numbers: the matrix, its symmetric and
    shifted copies and its factor, and the blocks of which it is made.

    Attributes:
        independent: take the rows of the Jacobian example by example instead of by products with
            the whole batch, which costs about m times less. Only for models in which no example
            influences another; this is checked on the first and the last example.
        max_elements: how many elements a block of the Jacobian has at most; at least one example
            at a time. Blocks are computed anew for each product with another block.

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
    """A A^T or A^T A for the dense rows A of all terms, from blocks of bounded size."""
    like = jax.eval_shape(rows.terms[0].block, jnp.zeros(1, int))
    p = like.shape[1]
    if on_x != rows.of_x:
        gram = jnp.zeros((p, p), like.dtype)
        for term in rows.terms:
            gram = _add_outer_products(gram, term, max_elements // p)
        return gram
    if sum(term.examples * term.per_example for term in rows.terms) * p <= max_elements:
        a = jnp.concatenate([term.block(jnp.arange(term.examples)) for term in rows.terms])
        return _times(a, a.T)
    strip = lambda a: (
        jnp.concatenate(
            [_over_blocks(term, max_elements // p, lambda b: _times(b, a.T)) for term in rows.terms]
        ).T
    )
    return jnp.concatenate([_over_blocks(term, max_elements // p, strip) for term in rows.terms])


def _blocks(term: TermRows, max_rows: int) -> Int[Array, "blocks size"]:
    """Numbers of the examples of each block; those of the last may be too large."""
    size = min(term.examples, max(1, max_rows // term.per_example))
    return jnp.arange(-(-term.examples // size) * size).reshape(-1, size)


def _block(term: TermRows, numbers: Int[Array, " b"]) -> Float[Array, "rows p"]:
    """Rows of some examples, those of the last one in the place of numbers too large."""
    return term.block(jnp.minimum(numbers, term.examples - 1))


def _over_blocks(
    term: TermRows, max_rows: int, fn: Callable[[Array], Array]
) -> Float[Array, "rows n"]:
    """``fn`` of all rows, some of them at a time."""
    blocks = jax.lax.map(lambda i: fn(_block(term, i)), _blocks(term, max_rows))
    return blocks.reshape(-1, blocks.shape[-1])[: term.examples * term.per_example]


def _add_outer_products(total: Matrix, term: TermRows, max_rows: int) -> Matrix:
    """Adds A^T A of one term, some rows at a time."""

    def add(total: Matrix, numbers: Array) -> tuple[Matrix, None]:
        real = jnp.repeat(numbers < term.examples, term.per_example)
        a = jnp.where(real[:, None], _block(term, numbers), 0)
        return total + _times(a.T, a), None

    return jax.lax.scan(add, total, _blocks(term, max_rows))[0]


def _products_of_rows(rows: Rows) -> Products:
    """As many VJPs as an example has rows give those of all examples; checking them costs two."""
    vjps = max(term.per_example for term in rows.terms) + 2 * len(rows.terms)
    return (vjps, 0) if rows.of_x else (0, vjps)


def _times(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
