r"""Two symmetric matrices in the memory of one and a column, or two diagonals side by side.

.. math:: \begin{pmatrix} a_{11} & b_{11} & b_{12} \\ a_{21} & a_{22} & b_{22} \end{pmatrix}

holds the lower half of :math:`A` and the upper half of :math:`B`, both with their diagonals.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from proxlin.metrics.blocks import Factor

# (blocks, n, n + 1), or (matrices, 2 n) for diagonals.
Halves = Float[Array, "stack ..."]


def shape_of(factor: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in which two factors of a shape are kept."""
    return (*factor[:-1], 2 * factor[-1] if len(factor) == 2 else factor[-1] + 1)


def first(halves: Halves) -> Factor:
    """The first matrix."""
    if halves.ndim == 2:
        return halves[:, : halves.shape[1] // 2]
    half = halves[..., :-1]
    return jnp.where(_is_lower(halves)[..., :-1], half, half.swapaxes(-1, -2))


def trace_of_first(halves: Halves) -> Float[Array, " stack"]:
    """The trace of each block of the first matrix, or of each diagonal."""
    if halves.ndim == 2:
        return jnp.sum(first(halves), axis=1)
    return jnp.trace(halves, axis1=1, axis2=2)


def second(halves: Halves) -> Factor:
    """The second matrix."""
    if halves.ndim == 2:
        return halves[:, halves.shape[1] // 2 :]
    half = halves[..., 1:]
    return jnp.where(_is_lower(halves)[..., 1:], half.swapaxes(-1, -2), half)


def with_first(halves: Halves, factor: Factor) -> Halves:
    """The same with another first matrix."""
    if halves.ndim == 2:
        return jnp.concatenate([factor, second(halves)], axis=1)
    return jnp.where(_is_lower(halves), _widened(factor, 0), halves)


def with_second(halves: Halves, factor: Factor) -> Halves:
    """The same with another second matrix."""
    if halves.ndim == 2:
        return jnp.concatenate([first(halves), factor], axis=1)
    # Both halves of a computed root differ by rounding: their mean is closer to it than either.
    mean = 0.5 * (factor + factor.swapaxes(-1, -2))
    return jnp.where(_is_lower(halves), halves, _widened(mean, 1))


def _is_lower(like: Halves) -> Bool[Array, "blocks n wide"]:
    """Where the half of the first matrix is."""
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, like.shape, i) for i in (1, 2))
    return rows >= columns


def _widened(factor: Factor, before: int) -> Halves:
    """A matrix with one more column, the first or the last."""
    return jnp.pad(factor, [(0, 0), (0, 0), (before, 1 - before)])
