"""Gram matrices and dense matrices of the rows of a system, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from proxlin.algebra import Shapes, Vector, zeros_like
from proxlin.solvers.system import NormalSystem, Rows, TermRows

Matrix = Float[Array, "n n"]
Products = tuple[int, int]  # how often M and M* are applied
_GRAM_BLOCKS, _LEAST_GRAM_BLOCK = 4, 32


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


def gram_of_rows(
    system: NormalSystem, rows: Rows, on_x: bool, max_elements: int
) -> tuple[Matrix, Bool[Array, ""], Products]:
    """A A^T or A^T A of the dense rows A; whether A is the matrix of the products; the cost."""
    probe = _probe(system, rows)
    gram, image = _gram_and_product(rows, on_x, max_elements, probe)
    agree, products = _agreement(system, rows, probe, image)
    return gram, agree, products


def matrix_of_rows(
    system: NormalSystem, rows: Rows
) -> tuple[Float[Array, "rows p"], Bool[Array, ""], Products]:
    """The dense rows A; whether A is the matrix of the products; the cost."""
    matrix, probe = rows.matrix(), _probe(system, rows)
    agree, products = _agreement(system, rows, probe, times(matrix, probe))
    return matrix, agree, products


def _probe(system: NormalSystem, rows: Rows) -> Float[Array, " p"]:
    """A vector of parameter space: not ones or any pattern, so that nothing cancels by design."""
    like = system.data if rows.of_x else system.rhs
    return jnp.cos(jnp.arange(size(like), dtype=jax.tree.leaves(like)[0].dtype))


def _agreement(
    system: NormalSystem, rows: Rows, probe: Float[Array, " p"], image: Float[Array, " rows"]
) -> tuple[Bool[Array, ""], Products]:
    """Whether A times the probe is the product of the whole batch; the cost, with that of the rows.

    One VJP for each row of an example gives the rows of all examples.
    """
    like = system.data if rows.of_x else system.rhs
    product = (system.adjoint if rows.of_x else system.forward)(unravel(like)(probe))
    want = ravel_pytree(product)[0]
    scale = jnp.linalg.norm(want) + jnp.linalg.norm(image)
    agree = jnp.linalg.norm(want - image) <= rows.tolerance * scale
    vjps = max(term.per_example for term in rows.terms)
    return agree, ((vjps, 1) if rows.of_x else (1, vjps))


def _gram_and_product(
    rows: Rows, on_x: bool, max_elements: int, probe: Float[Array, " p"]
) -> tuple[Matrix, Float[Array, " rows"]]:
    """The lower triangle of A A^T or A^T A, and A times a vector, from blocks of bounded size."""
    p, terms = probe.size, rows.terms
    if sum(term.examples * term.per_example for term in terms) * p <= max_elements:
        a = rows.matrix()
        return lower_gram(a.T if on_x == rows.of_x else a), times(a, probe)
    if on_x != rows.of_x:
        gram, images = jnp.zeros((p, p), probe.dtype), []
        for term in terms:
            gram, image = _add_outer_products(gram, term, max_elements // p, probe)
            images.append(image)
        return gram, jnp.concatenate(images)
    over_blocks = lambda fn: jnp.concatenate(
        [_over_blocks(term, max_elements // p, fn) for term in terms]
    )
    gram = over_blocks(lambda a: over_blocks(lambda b: times(b, a.T)).T)
    return gram, over_blocks(lambda a: times(a, probe[:, None]))[:, 0]


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
        a = jnp.where(real[:, None], _block(term, numbers), 0)
        return total + times(a.T, a), times(a, probe)

    total, images = jax.lax.scan(add, total, _blocks(term, max_rows))
    return total, images.reshape(-1)[: term.examples * term.per_example]


def lower_gram(a: Float[Array, "rows n"]) -> Matrix:
    """A^T A, zero above its diagonal blocks: five eighths of the products for four blocks."""
    n = a.shape[1]
    size = -(-n // _GRAM_BLOCKS)
    if size < _LEAST_GRAM_BLOCK:
        return times(a.T, a)
    rows = []
    for start in range(0, n, size):
        end = min(n, start + size)
        block = times(a[:, start:end].T, a[:, :end])
        rows.append(jnp.pad(block, ((0, 0), (0, n - end))))
    return jnp.concatenate(rows)


def times(a: Array, b: Array) -> Array:
    """The product of matrices, in full precision."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
