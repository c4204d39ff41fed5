"""Gram matrices and dense matrices of the rows of a system, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from proxlin.algebra import Shapes, Vector, zeros_like
from proxlin.solvers.system import NormalSystem, Rows, TermRows

Matrix = Float[Array, "n n"]
Tall = Float[Array, "n small"]
Products = tuple[int, int]  # how often M and M* are applied
_GRAM_BLOCKS, _LEAST_GRAM_BLOCK = 4, 128


def spaces(system: NormalSystem) -> tuple[Shapes, Shapes]:
    """Shapes of x and of M x."""
    if system.rhs is not None:
        return system.rhs, jax.eval_shape(system.forward, system.rhs)
    return jax.eval_shape(system.adjoint, system.data), system.data


def size(like: Shapes) -> int:
    """The number of entries."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like))


def unravel(like: Shapes) -> Callable[[Array], Vector]:
    """From a flat array to a vector of this space."""
    return ravel_pytree(zeros_like(like))[1]


def gram_of_products(
    system: NormalSystem, x_like: Shapes, image_like: Shapes, on_x: bool, max_elements: int
) -> Matrix:
    """M* M or M M*, a few columns at a time."""
    first, second = (system.forward, system.adjoint) if on_x else (system.adjoint, system.forward)
    small, large = (x_like, image_like) if on_x else (image_like, x_like)
    vector = unravel(small)
    at_once = max(1, max_elements // size(large))
    basis = jnp.eye(size(small), dtype=jax.tree.leaves(small)[0].dtype)
    gram = jax.lax.map(
        lambda e: ravel_pytree(second(first(vector(e))))[0],
        basis,
        batch_size=min(at_once, len(basis)),
    )
    return 0.5 * (gram + gram.T)


def matrix_of_products(system: NormalSystem, on_x: bool) -> Float[Array, "n small"]:
    """M or its adjoint, whichever has fewer columns, column by column."""
    product = system.forward if on_x else system.adjoint
    like = spaces(system)[0 if on_x else 1]
    basis = jnp.eye(size(like), dtype=jax.tree.leaves(like)[0].dtype)
    vector = unravel(like)
    return jax.vmap(lambda e: ravel_pytree(product(vector(e)))[0], out_axes=1)(basis)


class Gram(NamedTuple):
    """The Gram matrix of the smaller side of dense rows A.

    Attributes:
        matrix: its lower triangle.
        tall: A or its transpose, with as many columns; None if A does not fit in memory.
        agrees: whether A is the matrix of the products.
        products: what it took.
    """

    matrix: Matrix
    tall: Tall | None
    agrees: Bool[Array, ""]
    products: Products


def gram_of_rows(system: NormalSystem, rows: Rows, on_x: bool, max_elements: int) -> Gram:
    """A A^T or A^T A of the dense rows A, at once or from blocks of bounded size."""
    p = size(_parameters(system, rows))
    if sum(term.examples * term.per_example for term in rows.terms) * p <= max_elements:
        tall, agrees, products = matrix_of_rows(system, rows, on_x)
        return Gram(matrix=lower_gram(tall), tall=tall, agrees=agrees, products=products)
    probe = _probe(system, rows)
    blocks = _outer_in_blocks if on_x != rows.of_x else _inner_in_blocks
    gram, image = blocks(rows, max_elements // p, probe)
    agrees, products = _agreement(system, rows, probe, image)
    return Gram(matrix=gram, tall=None, agrees=agrees, products=products)


def matrix_of_rows(
    system: NormalSystem, rows: Rows, on_x: bool
) -> tuple[Tall, Bool[Array, ""], Products]:
    """The dense rows A, or their transpose; whether A is the matrix of the products; the cost."""
    transposed = on_x == rows.of_x
    f = rows.matrix().T if transposed else rows.matrix()
    # Products with the wide matrix alone: with the tall one, XLA would make a copy.
    forward = lambda x: times(f.T, x) if transposed else times(x, f.T)
    if system.preimage is None:
        probe = _probe(system, rows)
        agrees, products = _agreement(system, rows, probe, forward(probe))
    else:
        v = ravel_pytree(system.preimage)[0]
        image = times(v, f.T) if transposed else times(f.T, v)
        want = ravel_pytree(_parameters(system, rows))[0]
        # The gradient may be the small difference of large terms: its error is relative to these.
        scale = jnp.linalg.norm(want) + jnp.linalg.norm(f.T) * jnp.linalg.norm(v)
        agrees = jnp.linalg.norm(want - image) <= rows.tolerance * scale
        products = _products(rows, 0)
    return f, agrees, products


def _parameters(system: NormalSystem, rows: Rows) -> Vector | None:
    """A vector of the space that rows act on."""
    return system.data if rows.of_x else system.rhs


def _probe(system: NormalSystem, rows: Rows) -> Float[Array, " p"]:
    """A vector of parameter space: not ones or any pattern, so that nothing cancels by design."""
    like = _parameters(system, rows)
    return jnp.cos(jnp.arange(size(like), dtype=jax.tree.leaves(like)[0].dtype))


def _agreement(
    system: NormalSystem, rows: Rows, probe: Float[Array, " p"], image: Float[Array, " rows"]
) -> tuple[Bool[Array, ""], Products]:
    """Whether A times the probe is the product of the whole batch; the cost, with that of rows."""
    vector = unravel(_parameters(system, rows))
    want = ravel_pytree((system.adjoint if rows.of_x else system.forward)(vector(probe)))[0]
    scale = jnp.linalg.norm(want) + jnp.linalg.norm(image)
    agree = jnp.linalg.norm(want - image) <= rows.tolerance * scale
    return agree, _products(rows, 1)


def _products(rows: Rows, checks: int) -> Products:
    """One VJP for each row of an example gives the rows of all examples; and JVPs as checks."""
    vjps = max(term.per_example for term in rows.terms)
    return (vjps, checks) if rows.of_x else (checks, vjps)


def _inner_in_blocks(
    rows: Rows, max_rows: int, probe: Float[Array, " p"]
) -> tuple[Matrix, Float[Array, " rows"]]:
    """A A^T and A times a vector: the products of each block with each other one."""
    over_blocks = lambda fn: jnp.concatenate(
        [_over_blocks(term, max_rows, fn) for term in rows.terms]
    )
    gram = over_blocks(lambda a: over_blocks(lambda b: times(b, a.T)).T)
    return gram, over_blocks(lambda a: times(a, probe[:, None]))[:, 0]


def _outer_in_blocks(
    rows: Rows, max_rows: int, probe: Float[Array, " p"]
) -> tuple[Matrix, Float[Array, " rows"]]:
    """A^T A and A times a vector: a sum over the blocks."""
    gram, images = jnp.zeros((probe.size, probe.size), probe.dtype), []
    for term in rows.terms:
        gram, image = _add_outer_products(gram, term, max_rows, probe)
        images.append(image)
    return gram, jnp.concatenate(images)


def _blocks(term: TermRows, max_rows: int) -> Int[Array, "blocks size"]:
    """The indices of the examples of each block; in the last one, some may be too large."""
    size = min(term.examples, max(1, max_rows // term.per_example))
    return jnp.arange(-(-term.examples // size) * size).reshape(-1, size)


def _block(term: TermRows, numbers: Int[Array, " b"]) -> Float[Array, "rows p"]:
    """The rows of some examples; an index too large gives those of the last example."""
    return term.block(jnp.minimum(numbers, term.examples - 1))


def _over_blocks(
    term: TermRows, max_rows: int, fn: Callable[[Array], Array]
) -> Float[Array, "rows n"]:
    """``fn`` of all rows, a block at a time."""
    blocks = jax.lax.map(lambda i: fn(_block(term, i)), _blocks(term, max_rows))
    return blocks.reshape(-1, blocks.shape[-1])[: term.examples * term.per_example]


def _add_outer_products(
    total: Matrix, term: TermRows, max_rows: int, probe: Float[Array, " p"]
) -> tuple[Matrix, Float[Array, " rows"]]:
    """Adds A^T A of one term, a block at a time; and A times a vector."""

    def add(total: Matrix, numbers: Array) -> tuple[Matrix, Array]:
        real = jnp.repeat(numbers < term.examples, term.per_example)
        columns = term.transposed(jnp.minimum(numbers, term.examples - 1))
        columns = jnp.where(real[None], columns, 0)
        return total + lower_gram(columns.T), times(probe, columns)

    total, images = jax.lax.scan(add, total, _blocks(term, max_rows))
    return total, images.reshape(-1)[: term.examples * term.per_example]


def lower_gram(a: Float[Array, "rows n"]) -> Matrix:
    """A^T A, zero above its diagonal blocks: five eighths of the products for four blocks."""
    columns = a.T  # so that blocks, and the sums of products, run along contiguous memory
    n = len(columns)
    size = -(-n // min(_GRAM_BLOCKS, max(1, n // _LEAST_GRAM_BLOCK)))
    rows = []
    for start in range(0, n, size):
        end = min(n, start + size)
        block = times(columns[start:end], columns[:end].T)
        rows.append(jnp.pad(block, ((0, 0), (0, n - end))))
    return jnp.concatenate(rows)


def products_with(
    f: Tall, small: Shapes, large: Shapes
) -> tuple[Callable[[Vector], Vector], Callable[[Vector], Vector]]:
    """The products with a dense matrix and its transpose, on vectors."""
    flat = lambda x: ravel_pytree(x)[0]
    to_small, to_large = unravel(small), unravel(large)
    return lambda b: to_large(times(flat(b), f.T)), lambda v: to_small(times(f.T, flat(v)))


def times(a: Array, b: Array) -> Array:
    """The product of matrices, in full precision."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
