r"""Second moments of stacks of matrices, and products with their roots, block by block.

Each side of a matrix is divided into blocks of nearly equal size; a side that is too long keeps the
diagonal alone. The blocks of all matrices are one array ``(blocks, n, n)``, those of one matrix
after those of another; diagonals are ``(matrices, n)``.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Float

Matrices = Float[Array, "matrices rows columns"]
Blocks = Float[Array, "blocks n n"]
Diagonal = Float[Array, "matrices n"]
Factor = Blocks | Diagonal


@dataclasses.dataclass(frozen=True)
class Side:
    """How one side of matrices is divided.

    Attributes:
        length: of the side.
        blocks: how many.
        size: of each, but for the last one.
        diagonal: whether only the diagonal is kept, because the side is too long.
    """

    length: int
    blocks: int
    size: int
    diagonal: bool = False

    @classmethod
    def of(cls, length: int, block_size: int, longest: int | None = None) -> Side:
        """Blocks of nearly equal size."""
        if longest is not None and length > longest:
            return cls(length=length, blocks=length, size=1, diagonal=True)
        blocks = -(-length // block_size)
        return cls(length=length, blocks=blocks, size=-(-length // blocks))


def left_moments(x: Matrices, side: Side) -> Factor:
    r"""The blocks of :math:`G G^\top`."""
    if side.diagonal:
        return jnp.sum(x * x, axis=2)
    rows = _in_rows(x, side)
    return (rows @ rows.swapaxes(2, 3)).reshape(-1, side.size, side.size)


def right_moments(x: Matrices, side: Side) -> Factor:
    r"""The blocks of :math:`G^\top G`."""
    if side.diagonal:
        return jnp.sum(x * x, axis=1)
    pad = lambda r: jnp.pad(r, [(0, 0), *[(0, side.size - r.shape[-1])] * 2])
    blocks = jnp.stack([pad(c.swapaxes(1, 2) @ c) for c in _in_columns(x, side)], axis=1)
    return blocks.reshape(-1, side.size, side.size)


def left_product(root: Factor, x: Matrices, side: Side) -> Matrices:
    """The blocks of a root times the rows."""
    if side.diagonal:
        return root[:, :, None] * x
    product = _of_each(root, side) @ _in_rows(x, side)
    return product.reshape(x.shape[0], -1, x.shape[2])[:, : side.length]


def right_product(x: Matrices, root: Factor, side: Side) -> Matrices:
    """The columns times the blocks of a root."""
    if side.diagonal:
        return x * root[:, None, :]
    blocks = _of_each(root, side)
    products = [
        c @ blocks[:, i, : c.shape[2], : c.shape[2]] for i, c in enumerate(_in_columns(x, side))
    ]
    return jnp.concatenate(products, axis=2)


def _of_each(blocks: Blocks, side: Side) -> Float[Array, "matrices own n n"]:
    """The blocks of each matrix."""
    return blocks.reshape(-1, side.blocks, side.size, side.size)


def _in_rows(x: Matrices, side: Side) -> Float[Array, "matrices own n columns"]:
    """The rows in blocks of equal size, padded with zeros."""
    padding = side.blocks * side.size - side.length
    padded = jnp.pad(x, [(0, 0), (0, padding), (0, 0)]) if padding else x
    return padded.reshape(x.shape[0], side.blocks, side.size, x.shape[2])


def _in_columns(x: Matrices, side: Side) -> list[Float[Array, "matrices rows _"]]:
    """The columns in blocks of equal size, but for the last one."""
    # Not one stack of blocks: transposing the whole matrix costs as much as a product.
    return [x[:, :, i * side.size : (i + 1) * side.size] for i in range(side.blocks)]
