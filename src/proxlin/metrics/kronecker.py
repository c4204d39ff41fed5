r"""A metric in Kronecker factors, like those of Shampoo and KFAC."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from proxlin.algebra import Number, Params, Shapes, zeros_like
from proxlin.checks import check_integer
from proxlin.metrics.base import Inverse, Metric, average, check, unbiased, zeros
from proxlin.metrics.roots import inverse_roots_of

Matrix = Float[Array, "rows columns"]
# How many gradients are averaged between two computations of the roots, if there are as many:
# their second moments cost as much as a product with the metric.
_MOMENTS_A_ROOT = 5
# The least size of a leaf, relative to that of weights that keep the variance of their inputs.
_LEAST_SIZE = 0.1


class KroneckerState(NamedTuple):
    r"""The state of :class:`Kronecker`.

    Attributes:
        moments: for each matrix, averages of the blocks of :math:`G G^\top` and :math:`G^\top G`;
            for each vector, the average of its squares.
        roots: the inverse roots of the moments when they were last computed.
        sizes: the size of each leaf of the parameters, for one step; not kept.
    """

    moments: PyTree[Array]
    roots: PyTree[Array]
    sizes: PyTree[Array] = ()


@dataclasses.dataclass(frozen=True)
class Kronecker(Metric):
    r"""Second moments of the gradient, in Kronecker factors and in units of the parameters.

    .. math:: L \leftarrow \beta L + (1 - \beta)\, G G^\top, \quad
        R \leftarrow \beta R + (1 - \beta)\, G^\top G, \quad
        P^{-1} X = c\, L^{-1/q} X R^{-1/q}

    If gradients are :math:`A^{1/2} Z B^{1/2}` with uncorrelated entries of :math:`Z`, then
    :math:`L` and :math:`R` are multiples of :math:`A` and :math:`B`. With :math:`q = 2` the metric
    is then the root of the second moment, as in Adam, but in the right basis; with :math:`q = 4` it
    is the fourth root, as in Shampoo (Gupta, Koren and Singer, 2018).

    A gradient :math:`G` is a matrix with one column for each output of a layer; the kernel of a
    convolution has one row for each pixel and input. :math:`L` and :math:`R` consist of diagonal
    blocks of nearly equal size; vectors, such as biases, have the diagonal alone.

    The factor :math:`c` of each leaf :math:`W` balances it with the others: its part :math:`S` of
    the linear term of the subproblem gets the length

    .. math:: \|P^{-1} S\| = \kappa \, \frac{\operatorname{rms}(W)}{\operatorname{rms}(G)} \|S\|

    where :math:`\operatorname{rms}(G)` is that of the averages. If a leaf is measured in other
    units, :math:`W = a W'`, its gradient becomes :math:`a` times as large and its step :math:`a`
    times as small: training does not depend on the units of weights, nor on those of the inputs of
    a layer. :math:`\kappa` gives the whole term the length it had before, so gamma has the same
    scale as without a metric.

    A leaf that starts at zero has no size yet. Each is given at least a tenth of
    :math:`1 / \sqrt{n}`, where :math:`n` is the number of its rows: weights of that size keep the
    variance of their inputs.

    Attributes:
        decay: :math:`\beta`.
        block_size: the largest number of rows of a block.
        every: the roots are computed once in this many steps.
        root: :math:`q`, 2 or 4.
        epsilon: added to the diagonals of :math:`L` and :math:`R`, relative to their norms; at
            least rounding.

    Example:
        >>> import jax.numpy as jnp
        >>> metric = Kronecker(root=4, epsilon=1e-6)
        >>> grad, none = jnp.array([[4.0, 0.0], [0.0, 1.0]]), jnp.asarray(0)
        >>> state = metric.update(metric.init(grad), grad, none)
        >>> u = metric.inverse(state, grad, none)(grad)  # as long as the gradient, and orthogonal
        >>> jnp.round(u / u[0, 0], 3)
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """

    decay: Number = 0.95
    block_size: int = 128
    every: int = 20
    root: int = 2
    epsilon: Number = 1e-4

    def __post_init__(self) -> None:
        check(self)
        check_integer(self, "block_size", least=1)
        check_integer(self, "every", least=1)
        if self.root not in (2, 4):
            raise ValueError(f"Kronecker(root={self.root!r}): give 2 or 4")

    def init(self, params: Shapes) -> KroneckerState:
        """Zeros; the first step replaces the roots."""
        of_all = lambda tree: jax.tree.map(lambda w: second_moments(w, self.block_size), tree)
        moments = zeros_like(jax.eval_shape(of_all, jax.eval_shape(zeros, params)))
        return KroneckerState(moments=moments, roots=moments)

    def update(self, state: KroneckerState, grad: Params, taken: Int[Array, ""]) -> KroneckerState:
        """Averages the moments every few steps, and computes their roots once in ``every``."""
        pause = max(1, self.every // _MOMENTS_A_ROOT)
        decay = self.decay**pause

        def averaged() -> PyTree[Array]:
            def one(g: Array, old: Any) -> Any:
                new = second_moments(g.astype(jax.tree.leaves(old)[0].dtype), self.block_size)
                return average(old, new, decay)

            return jax.tree.map(one, grad, state.moments)

        moments = jax.lax.cond(taken % pause == 0, averaged, lambda: state.moments)

        def roots() -> PyTree[Array]:
            mean = unbiased(moments, decay, taken // pause)
            return inverse_roots(grad, mean, self.root, self.epsilon)

        latest = jax.lax.cond(taken % self.every == 0, roots, lambda: state.roots)
        return KroneckerState(moments=moments, roots=latest)

    def at(self, state: KroneckerState, params: Params) -> KroneckerState:
        """The state with the sizes of the parameters."""
        return state._replace(sizes=jax.tree.map(_size, params))

    def inverse(self, state: KroneckerState, linear_term: Params, taken: Int[Array, ""]) -> Inverse:
        """Multiplies by the roots on both sides."""
        roots = jax.tree.map(
            lambda x, own: jax.tree.map(lambda r: r.astype(x.dtype), own), linear_term, state.roots
        )
        apply = lambda x, own: apply_roots(x, own, self.block_size)
        lengths = jax.tree.map(lambda x, own: _ratio(x, apply(x, own)), linear_term, roots)
        if jax.tree.leaves(state.sizes):
            units = self._units(linear_term, state)
            lengths = jax.tree.map(jnp.multiply, lengths, units)
        return lambda x: jax.tree.map(lambda a, r, c: c * apply(a, r), x, roots, lengths)

    def _units(self, linear_term: Params, state: KroneckerState) -> PyTree[Array]:
        """The length of the preconditioned linear term over that of the term, for each leaf."""
        spread = lambda x, own: _rms(x, own).astype(x.dtype)
        grads = jax.tree.map(spread, linear_term, state.moments)
        # The gradient with respect to the logarithm of a size; below epsilon it may be rounding.
        relative = jax.tree.map(jnp.multiply, grads, state.sizes)
        largest = jnp.max(jnp.stack(jax.tree.leaves(relative)))
        least = self.epsilon * _or_one(largest)
        units = jax.tree.map(lambda size, r: size * (size / (r + least)), state.sizes, relative)
        norms = jax.tree.map(lambda x: jnp.sqrt(jnp.vdot(x, x)), linear_term)
        before = optax.tree.norm(norms)
        after = optax.tree.norm(jax.tree.map(jnp.multiply, norms, units))
        kappa = jnp.where(after > 0, before / _or_one(after), 1)
        return jax.tree.map(lambda unit: kappa * unit, units)


def second_moments(g: Array, block_size: int) -> Any:
    r"""Diagonal blocks of :math:`G G^\top` and :math:`G^\top G`; the squares of a vector."""
    if _is_vector(g):
        return g * g
    matrix = _matrix(g)
    rows = _rows(matrix, block_size)
    columns = _columns(matrix, block_size)
    size = columns[0].shape[1]
    pad = lambda c: jnp.pad(c.T @ c, [(0, size - c.shape[1])] * 2)
    return rows @ rows.swapaxes(1, 2), jnp.stack([pad(c) for c in columns])


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
            return (own + epsilon * _or_one(_largest(own))) ** (-2 / root)
        return next(found), next(found)

    return jax.tree.map(roots, g, moments)


def apply_roots(x: Array, roots: Any, block_size: int) -> Array:
    """A matrix multiplied by its roots on both sides; a vector multiplied by its own."""
    if _is_vector(x):
        return x * roots
    left, right = roots
    matrix = _matrix(x)
    product = (left @ _rows(matrix, block_size)).reshape(-1, matrix.shape[1])[: len(matrix)]
    pairs = zip(_columns(product, block_size), right, strict=True)
    columns = [c @ r[: c.shape[1], : c.shape[1]] for c, r in pairs]
    return jnp.concatenate(columns, axis=1).reshape(x.shape)


def _size(w: Array) -> Float[Array, ""]:
    """The root mean square of a leaf, at least a tenth of what keeps the variance of its inputs."""
    rows = 1 if _is_vector(w) else len(_matrix(w))
    return jnp.maximum(jnp.sqrt(jnp.sum(w * w) / max(w.size, 1)), _LEAST_SIZE / math.sqrt(rows))


def _rms(x: Array, moments: Any) -> Float[Array, ""]:
    """The root mean square of the gradients of a leaf, from the averages of their moments."""
    squares = moments if _is_vector(x) else jnp.trace(moments[0], axis1=1, axis2=2)
    return jnp.sqrt(jnp.sum(squares)) / math.sqrt(max(x.size, 1))


def _or_one(x: Array) -> Array:
    """One where there has been no gradient yet: any finite root will do."""
    return jnp.where(x > 0, x, jnp.ones_like(x))


def _is_vector(x: Array) -> bool:
    """Whether a leaf has no factors: a vector, a number, or empty."""
    return x.ndim < 2 or x.size == 0


def _largest(x: Array) -> Float[Array, ""]:
    return jnp.max(jnp.abs(x), initial=0)


def _ratio(x: Array, y: Array) -> Float[Array, ""]:
    """The length of x over that of y, or one if y vanishes."""
    squares = jnp.vdot(x, x), jnp.vdot(y, y)
    return jnp.where(squares[1] > 0, jnp.sqrt(squares[0]) / jnp.sqrt(_or_one(squares[1])), 1)


def _matrix(x: Array) -> Matrix:
    return x.reshape(-1, x.shape[-1])


def _rows(matrix: Matrix, block_size: int) -> Float[Array, "blocks n columns"]:
    """The rows in blocks of equal size, padded with zeros."""
    rows, columns = matrix.shape
    blocks, size = _blocks(rows, block_size)
    return jnp.pad(matrix, [(0, blocks * size - rows), (0, 0)]).reshape(blocks, size, columns)


def _columns(matrix: Matrix, block_size: int) -> list[Float[Array, "rows _"]]:
    """The columns in blocks of equal size, but for the last one."""
    # Not one stack of blocks: transposing the whole matrix costs as much as a product.
    blocks, size = _blocks(matrix.shape[1], block_size)
    return [matrix[:, i * size : (i + 1) * size] for i in range(blocks)]


def _blocks(length: int, block_size: int) -> tuple[int, int]:
    """How many blocks, and their size."""
    blocks = -(-length // block_size)
    return blocks, -(-length // blocks)
