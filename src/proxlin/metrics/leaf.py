r"""The factors of one leaf, for optimizers of one's own."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array, PyTree

from proxlin.algebra import Number
from proxlin.metrics.blocks import (
    Matrices,
    Side,
    left_moments,
    left_product,
    right_moments,
    right_product,
)
from proxlin.metrics.kronecker import root_of_diagonal
from proxlin.metrics.roots import inverse_roots_of


def second_moments(g: Array, block_size: int) -> Any:
    r"""Diagonal blocks of :math:`G G^\top` and :math:`G^\top G`; the squares of a vector."""
    if _is_vector(g):
        return g * g
    x = _matrix(g)
    left, right = _sides(x, block_size)
    return left_moments(x, left), right_moments(x, right)


def inverse_roots(g: PyTree[Array], moments: Any, root: int, epsilon: Number) -> Any:
    r""":math:`L^{-1/q}` and :math:`R^{-1/q}` for each matrix, :math:`v^{-2/q}` for each vector.

    Args:
        g: a gradient, or a tree of them.
        moments: what :func:`second_moments` makes of it.
        root: :math:`q`.
        epsilon: relative to the norm of each block, and to the largest entry of a vector.
    """
    factors: list[Array] = []
    jax.tree.map(lambda x, own: None if _is_vector(x) else factors.extend(own), g, moments)
    found = iter(inverse_roots_of(factors, root, epsilon))

    def roots(x: Array, own: Any) -> Any:
        if _is_vector(x):
            return root_of_diagonal(own.reshape(1, -1), -2 / root, epsilon).reshape(own.shape)
        return next(found), next(found)

    return jax.tree.map(roots, g, moments)


def apply_roots(x: Array, roots: Any, block_size: int) -> Array:
    """A matrix multiplied by its roots on both sides; a vector multiplied by its own."""
    if _is_vector(x):
        return x * roots
    matrix = _matrix(x)
    left, right = _sides(matrix, block_size)
    return right_product(left_product(roots[0], matrix, left), roots[1], right).reshape(x.shape)


def _is_vector(x: Array) -> bool:
    """Whether a leaf has no factors: a vector, a number, or empty."""
    return x.ndim < 2 or x.size == 0


def _matrix(x: Array) -> Matrices:
    """The columns are the last axis."""
    return x.reshape(1, -1, x.shape[-1])


def _sides(x: Matrices, block_size: int) -> list[Side]:
    return [Side.of(length, block_size) for length in x.shape[1:]]
