r"""Vectors: pytrees of arrays of one dtype, with an inner product, possibly that of a metric.

A network's parameters, its outputs and everything computed from them are pytrees. This file has
the few operations on them that the library needs.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

Params: TypeAlias = PyTree[Array]
Vector: TypeAlias = PyTree[Array]
Scalar: TypeAlias = Float[Array, ""]
# A number that a user sets: an array, maybe traced, where Optax injects it.
Number: TypeAlias = float | Array
# A vector, or what ``jax.eval_shape`` tells of one.
Shapes: TypeAlias = PyTree[Array | jax.ShapeDtypeStruct]


class MetricVector(NamedTuple):
    r"""A vector of a space with a metric :math:`P`, together with its image :math:`P x`.

    Sums and multiples of such pairs are pairs, so a solver whose inner products all go through
    :func:`dot` works in the metric and never applies :math:`P` itself.

    Attributes:
        covector: :math:`P x`.
        vector: :math:`x`.
    """

    covector: Params
    vector: Params


class Image(NamedTuple):
    r"""A product :math:`B^\top J d`, together with the change :math:`J d` of the outputs.

    Its inner product is that of the first part. A solver that combines such images has the change
    of the outputs along its solution, without a product.

    Attributes:
        root: :math:`B^\top J d`.
        change: :math:`J d`.
    """

    root: Any
    change: Any


def plain(x: Vector) -> Params:
    """The vector itself, without its image under a metric or the change of the outputs."""
    if isinstance(x, Image):
        return x.root
    return x.vector if isinstance(x, MetricVector) else x


def covector(x: Vector) -> Params:
    r""":math:`P x`, which is :math:`x` without a metric."""
    return x.covector if isinstance(x, MetricVector) else plain(x)


def scale(factor: Any, x: Vector) -> Vector:
    """``factor * x``."""
    return optax.tree.scale(factor, x)


def add_scaled(x: Vector, factor: Any, y: Vector) -> Vector:
    """``x + factor * y``."""
    return optax.tree.add_scale(x, factor, y)


def dot(x: Vector, y: Vector) -> Scalar:
    r"""The inner product: :math:`\langle x, P y \rangle` in a metric :math:`P`."""
    pairs = list(zip(jax.tree.leaves(covector(x)), jax.tree.leaves(plain(y)), strict=True))
    vectors = [pair for pair in pairs if pair[0].ndim < 2]
    # Not of flat arrays: to make them, XLA would gather a matrix whose columns are divided. And not
    # by a dot, which XLA:CPU takes apart into four loops where a sum of products is one.
    products = [jnp.sum(a * b) for a, b in pairs if a.ndim >= 2]
    if vectors:
        # Most leaves of a network are small vectors. Joined, they compile to one product.
        a, b = (jnp.concatenate([jnp.ravel(v) for v in own]) for own in zip(*vectors, strict=True))
        products.append(jnp.vdot(a, b))
    return functools.reduce(jnp.add, products)


def select(condition: Bool[Array, ""], x: Vector, y: Vector) -> Vector:
    """``x`` if the condition holds, else ``y``, even if the other one is not finite."""
    return jax.tree.map(lambda a, b: jax.lax.select(condition, a, b), x, y)


def zeros_like(x: Shapes, dtype: Any = None) -> Vector:
    """Zeros in these shapes, in their dtypes or another, divided over devices as they are."""

    def zeros(leaf: Array | jax.ShapeDtypeStruct) -> Array:
        own = leaf.dtype if dtype is None else dtype
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jnp.zeros(leaf.shape, own, device=leaf.sharding)
        return jnp.zeros_like(leaf, own)

    return jax.tree.map(zeros, x)


def all_finite(x: Vector) -> Bool[Array, ""]:
    """Whether every entry is finite, and small enough to be squared in the dtype of the algebra."""
    wide = cast(x, algebra_dtype(x))
    return jnp.isfinite(dot(wide, wide))


def algebra_dtype(*trees: PyTree) -> Any:
    """The one dtype of all vectors: the widest in the trees, and at least float32."""
    dtypes = {jnp.dtype(x.dtype) for x in jax.tree.leaves(trees)} | {jnp.dtype(jnp.float32)}
    return max(dtypes, key=lambda dtype: jnp.finfo(dtype).bits)


def cast(x: Vector, dtype: Any) -> Vector:
    """A vector in one dtype."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), x)


def cast_like(x: Vector, like: Vector) -> Vector:
    """A vector in the dtypes of another."""
    return jax.tree.map(lambda leaf, w: leaf.astype(w.dtype), x, like)


def stored(x: Any, dtype: Any) -> Any:
    """A state with its arrays in this dtype, but for numbers and integers; None changes nothing."""
    if dtype is None:
        return x
    wide = lambda leaf: jnp.ndim(leaf) > 0 and jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if wide(leaf) else leaf, x)


def count(n: int | Array) -> Int[Array, ""]:
    """A count or status as int32, whatever the precision elsewhere."""
    return jnp.asarray(n).astype(jnp.int32)
