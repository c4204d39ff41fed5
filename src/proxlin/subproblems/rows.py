r"""Dense rows of :math:`B^\top J`, for direct solvers and for metrics made of them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from proxlin.algebra import Params
from proxlin.linearize import Linearization
from proxlin.losses import Factor
from proxlin.objective import TermOutputs
from proxlin.solvers import Rows, TermRows

_ELEMENTS_AT_ONCE = 2**26


def rows_of(lin: Linearization, factor: Factor) -> TermRows:
    r"""The rows of :math:`B^\top J` of one term, each from its example alone."""
    # J^T of the columns of B. These are computed for all examples at once, because a factor by
    # eigh is not unique. Not B^T of the rows of J, which XLA:CPU of jaxlib 0.10.2 miscompiles
    # (a vmap over the last axis of v - sum(s * v), in float32 under jit).
    outputs = lin.outputs
    column = lambda e: factor.mv(jnp.broadcast_to(e, outputs.shape))
    b = jax.vmap(column, out_axes=-1)(jnp.eye(outputs.shape[-1], dtype=outputs.dtype))

    def rows(indices: Int[Array, " b"]) -> Float[Array, "rows p"]:
        rows = lin.rows(indices, b[indices])
        return rows.reshape(-1, rows.shape[-1])

    return TermRows(
        block=rows,
        examples=outputs.shape[0],
        per_example=outputs[0].size,
        columns=lambda indices: lin.rows(indices, b[indices], transposed=True),
    )


def rows_of_products(
    forward: Callable[[Params], TermOutputs],
    adjoint: Callable[[TermOutputs], Params],
    params: Params,
    outputs: TermOutputs,
) -> Float[Array, "n p"]:
    r"""The matrix of :math:`B^\top J`, by columns or by rows, whichever are fewer."""
    (w, to_params), (f, to_outputs) = ravel_pytree(params), ravel_pytree(outputs)
    if w.size <= f.size:
        return _products(lambda e: forward(to_params(e)), w, f.size).T
    return _products(lambda e: adjoint(to_outputs(e)), f, w.size)


def _products(
    product: Callable[[Array], Params | TermOutputs], like: Array, length: int
) -> Float[Array, "n length"]:
    """The product with each vector of the standard basis, as many at once as memory bounds."""
    basis = jnp.eye(like.size, dtype=like.dtype)
    flat = lambda e: ravel_pytree(product(e))[0]
    at_once = max(1, _ELEMENTS_AT_ONCE // length)
    if at_once >= like.size:
        return jax.vmap(flat)(basis)
    return jax.lax.map(flat, basis, batch_size=at_once)


def column_squares(rows: Rows, p: int, max_elements: int) -> Float[Array, " p"]:
    """The squared norm of each column, a block of rows at a time if they are many."""
    if sum(term.examples * term.per_example for term in rows.terms) * p <= max_elements:
        a = rows.matrix()  # along the side that runs through contiguous memory
        return jnp.sum(a.T**2, axis=1) if a.shape[0] >= p else jnp.sum(a**2, axis=0)
    totals = []
    for term in rows.terms:
        size = min(term.examples, max(1, max_elements // (p * term.per_example)))
        numbers = jnp.arange(-(-term.examples // size) * size).reshape(-1, size)

        def of_block(numbers: Int[Array, " b"], term: TermRows = term) -> Float[Array, " p"]:
            a = term.block(jnp.minimum(numbers, term.examples - 1)) ** 2
            real = jnp.repeat(numbers < term.examples, term.per_example)
            return jnp.sum(jnp.where(real[:, None], a, 0), axis=0)

        totals.append(jnp.sum(jax.lax.map(of_block, numbers), axis=0))
    return jnp.sum(jnp.stack(totals), axis=0)
