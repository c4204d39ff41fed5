"""The network in bounded memory: chunk by chunk, each linearized again for every product."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from proxlin.algebra import Params, algebra_dtype

# inputs -> params -> (outputs, aux)
On: TypeAlias = Callable[[PyTree], Callable[[Params], tuple[Array, Any]]]

# Convolutions inside a loop are many times slower than outside on XLA:CPU
# (https://github.com/jax-ml/jax/issues/12868), so short loops over chunks are unrolled.
_UNROLLED_CHUNKS = 8


# A chunk is as small as this part of what is allowed, if devices then have as many rows of it each.
_LEAST_SHARE = 1 / 3


@dataclasses.dataclass(frozen=True)
class Chunks:
    """A batch in chunks that are linearized one at a time and then dropped.

    A chunk has every ``count``-th example: on a sharded batch, a part of the rows of each device.
    """

    inputs: PyTree  # leaves (size, count, ...)
    m: int
    count: int
    size: int

    @classmethod
    def of(cls, inputs: PyTree, size: int) -> Chunks:
        """Splits a batch into chunks of this size, or somewhat smaller ones."""
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"chunk_size={size!r}: give a positive integer, or None")
        m = jax.tree.leaves(inputs)[0].shape[0]
        count = _count(m, size)
        chunks = cls(inputs=inputs, m=m, count=count, size=-(-m // count))
        # Padding repeats the first example: an input that the network has to handle anyway.
        split = jax.tree.map(lambda x: chunks._split(x, x[:1]), inputs)
        return dataclasses.replace(chunks, inputs=split)

    def outputs(self, on: On, params: Params) -> Array:
        """The outputs of the whole batch."""
        return self._join(self._scan(lambda w, x: (w, on(x)(w)[0]), params, self.inputs)[1])

    def jvp(self, on: On, params: Params, u: Params) -> Array:
        r""":math:`J u`."""

        def body(c: tuple[Params, Params], x: PyTree) -> tuple[Any, Array]:
            return c, jax.jvp(lambda w: on(x)(w)[0], (c[0],), (c[1],))[1]

        return self._join(self._scan(body, (params, u), self.inputs)[1])

    def vjp(self, on: On, params: Params, v: Array) -> Params:
        r""":math:`J^* v`."""

        def body(c: tuple[Params, Params], x: tuple[PyTree, Array]) -> tuple[Any, None]:
            (part,) = jax.vjp(lambda w: on(x[0])(w)[0], c[0])[1](x[1])
            return (c[0], jax.tree.map(lambda a, b: a + b.astype(a.dtype), c[1], part)), None

        # The sum over chunks is kept in the dtype of the algebra, as one over the batch would be.
        zero = jax.tree.map(lambda w: jnp.zeros(w.shape, algebra_dtype(params)), params)
        xs = (self.inputs, self._split(v, jnp.zeros_like(v[:1])))
        return self._scan(body, (params, zero), xs)[0][1]

    def _scan(self, body: Callable[..., Any], carry: Any, xs: Any) -> Any:
        # To XLA, the index of the next chunk seems to depend on the result of the last one, and at
        # first on the vector of the product. So chunks run one after the other, and XLA cannot
        # share, and so store, the forward pass of a chunk between products. XLA:CPU would drop an
        # optimization_barrier before it eliminates common subexpressions.
        def step(state: tuple[Any, Array], i: Array) -> tuple[Any, Any]:
            carry, zero = state
            pick = lambda x: jax.lax.dynamic_index_in_dim(x, i + zero, axis=1, keepdims=False)
            carry, y = body(carry, jax.tree.map(pick, xs))
            return (carry, _hidden_zero((carry, y))), y

        (carry, _), ys = jax.lax.scan(
            step,
            (carry, _hidden_zero((carry, xs))),
            jnp.arange(self.count, dtype=jnp.int32),
            unroll=self.count if self.count <= _UNROLLED_CHUNKS else 1,
        )
        return carry, ys

    def _split(self, x: Array, pad: Array) -> Array:
        missing = self.count * self.size - self.m
        if missing:
            x = jnp.concatenate([x, jnp.broadcast_to(pad, (missing, *x.shape[1:]))])
        return x.reshape(self.size, self.count, *x.shape[1:])

    def _join(self, x: Array) -> Array:
        return x.swapaxes(0, 1).reshape(self.count * self.size, *x.shape[2:])[: self.m]


def _count(m: int, size: int) -> int:
    """How many chunks: of equal size if possible, one that many devices can share."""
    least = -(-m // size)
    counts = [n for n in range(least, min(m, int(least / _LEAST_SHARE)) + 1) if m % n == 0]
    power_of_two = lambda n: (m // n) & -(m // n)
    return max(counts, key=lambda n: (power_of_two(n), -n), default=least)


def _hidden_zero(tree: PyTree) -> Int[Array, ""]:
    """Zero, but no compiler can know that before it has the leaves."""
    firsts = [jnp.ravel(x)[0] for x in jax.tree.leaves(tree) if x.size]
    never = [jnp.isnan(x) & (x > 0) for x in firsts if jnp.issubdtype(x.dtype, jnp.floating)]
    return functools.reduce(jnp.logical_or, never).astype(jnp.int32)
