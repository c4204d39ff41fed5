r"""A metric in Kronecker factors, like those of Shampoo and KFAC."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from proxlin.algebra import Number, Params, Shapes, algebra_dtype, cast
from proxlin.checks import check_integer
from proxlin.meshes import gathered, zeros_spread_like
from proxlin.metrics import halves
from proxlin.metrics.base import Inverse, Metric, average, check, unbiased
from proxlin.metrics.blocks import (
    Diagonal,
    Side,
    left_moments,
    left_product,
    right_moments,
    right_product,
)
from proxlin.metrics.roots import inverse_roots_of
from proxlin.metrics.stacks import Stack, Stacks

# The factors of both sides of matrices, and the one of vectors.
Sides = tuple[Array, ...]
Factors = dict[str, Sides]
# A stack, or one number for each of its matrices, for each shape.
Stacked = dict[str, Array]
PerMatrix = Float[Array, " matrices"]
# How many gradients are averaged between two computations of the roots, if there are as many:
# their second moments cost as much as a product with the metric.
_MOMENTS_A_ROOT = 5
# The least size of a matrix, relative to that of weights that keep the variance of their inputs.
_LEAST_SIZE = 0.1


class KroneckerState(NamedTuple):
    r"""The state of :class:`Kronecker`.

    Attributes:
        factors: for each shape of matrices, such as ``"64x32"``, one array for :math:`L` and one
            for :math:`R`; for each length of vectors, one for the squares. Each holds the averages
            of the moments and the inverse roots of when they were last computed: one half of each,
            since both are symmetric.
        sizes: the sizes of the matrices and vectors of the parameters, for one step; not kept.
    """

    factors: Factors | Array
    sizes: Any = ()

    @property
    def moments(self) -> Factors:
        """The averages of the moments."""
        return jax.tree.map(halves.first, self.factors)

    @property
    def roots(self) -> Factors:
        """Their inverse roots."""
        return jax.tree.map(halves.second, self.factors)


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
    convolution has one row for each pixel and input. Layers that are stacked in one leaf, as for
    ``jax.lax.scan``, have a matrix each, and so can attention heads and experts (``axes``).
    :math:`L` and :math:`R` consist of diagonal blocks of nearly equal size. Vectors, such as
    biases, have the diagonal alone, and so has a side that is too long, such as a vocabulary.

    The factor :math:`c` of each matrix :math:`W` balances it with the others: its part :math:`S` of
    the linear term of the subproblem gets the length

    .. math:: \|P^{-1} S\| = \kappa \, \frac{\operatorname{rms}(W)}{\operatorname{rms}(G)} \|S\|

    where :math:`\operatorname{rms}(G)` is that of the averages. If a matrix is measured in other
    units, :math:`W = a W'`, its gradient becomes :math:`a` times as large and its step :math:`a`
    times as small: training does not depend on the units of weights, nor on those of the inputs of
    a layer. :math:`\kappa` gives the whole term the length it had before, so gamma has the same
    scale as without a metric.

    A matrix that starts at zero has no size yet. Each is given at least a tenth of
    :math:`1 / \sqrt{n}`, where :math:`n` is the number of its rows: weights of that size keep the
    variance of their inputs.

    Attributes:
        decay: :math:`\beta`.
        block_size: the largest number of rows of a block.
        every: the roots are computed once in this many steps.
        root: :math:`q`, 2 or 4.
        epsilon: added to the diagonals of :math:`L` and :math:`R`, relative to their norms; at
            least rounding.
        longest: the longest side of a matrix that has blocks.
        axes: which axes of a leaf are rows and columns of matrices; all others count matrices. For
            each leaf, or for a part of the tree, an ``optax.contrib.MuonDimensionNumbers``, or None
            for one vector; or a function that makes such a tree of the parameters. If this is None,
            :func:`proxlin.extend.axes_of` guesses.

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
    longest: int = 8192
    axes: Any = None

    def __post_init__(self) -> None:
        check(self)
        check_integer(self, "block_size", least=1)
        check_integer(self, "every", least=1)
        check_integer(self, "longest", least=1)
        if self.root not in (2, 4):
            raise ValueError(f"Kronecker(root={self.root!r}): give 2 or 4")

    def init(self, params: Shapes) -> KroneckerState:
        """Zeros; the first step replaces the roots."""
        if not jax.tree.leaves(params):  # the placeholder of optax.tree.map_params
            return KroneckerState(factors=jnp.zeros(()))
        dtype = algebra_dtype(params)
        spread = functools.partial(zeros_spread_like, params)
        factors = {}
        for shape, stack in Stacks.of(params, self.axes).shapes.items():
            own = jax.eval_shape(self._moments, jax.ShapeDtypeStruct(stack, dtype))
            factors[_name(shape)] = tuple(spread(halves.shape_of(x.shape), dtype) for x in own)
        return KroneckerState(factors=factors)

    def update(self, state: KroneckerState, grad: Params, taken: Int[Array, ""]) -> KroneckerState:
        """Averages the moments every few steps, and computes their roots once in ``every``."""
        pause = max(1, self.every // _MOMENTS_A_ROOT)
        decay = self.decay**pause

        def averaged() -> KroneckerState:
            dtype = jax.tree.leaves(state)[0].dtype
            stacks = Stacks.of(grad, self.axes).stack(cast(grad, dtype))
            new = {_name(shape): self._moments(g) for shape, g in stacks.items()}
            moments = average(state.moments, new, decay)
            return KroneckerState(jax.tree.map(halves.with_first, state.factors, moments))

        learned = jax.lax.cond(taken % pause == 0, averaged, lambda: state)

        def with_roots() -> KroneckerState:
            roots = self._inverse_roots(unbiased(learned.moments, decay, taken // pause))
            return KroneckerState(jax.tree.map(halves.with_second, learned.factors, roots))

        return jax.lax.cond(taken % self.every == 0, with_roots, lambda: learned)

    def at(self, state: KroneckerState, params: Params) -> KroneckerState:
        """The state with the sizes of the parameters."""
        stacked = Stacks.of(params, self.axes).stack(params)
        return state._replace(sizes={_name(shape): _size(w) for shape, w in stacked.items()})

    def inverse(self, state: KroneckerState, linear_term: Params, taken: Int[Array, ""]) -> Inverse:
        """Multiplies by the roots on both sides."""
        stacks = Stacks.of(linear_term, self.axes)
        dtype = jax.tree.leaves(linear_term)[0].dtype
        # Gathered as they are applied, since rows and columns of leaves may be divided instead.
        roots = cast(jax.tree.map(gathered, state.roots), dtype)
        apply = lambda shape, x: self._apply(x, roots[_name(shape)])
        stacked = stacks.stack(linear_term)
        lengths = {shape: _ratio(x, apply(shape, x)) for shape, x in stacked.items()}
        if state.sizes:
            units = self._units({_name(shape): x for shape, x in stacked.items()}, state)
            lengths = {shape: units[_name(shape)] * ratio for shape, ratio in lengths.items()}
        wide = lambda c, y: c.reshape(-1, *(1,) * (y.ndim - 1))

        def product(x: Params) -> Params:
            return stacks.unstack(
                {
                    shape: wide(lengths[shape], y) * apply(shape, y)
                    for shape, y in stacks.stack(x).items()
                }
            )

        return product

    def _units(self, linear_term: Stacked, state: KroneckerState) -> Stacked:
        """The length of the preconditioned linear term over that of the term, for each matrix."""
        spread = lambda name, x: _rms(x, state.factors[name][0]).astype(x.dtype)
        grads = {name: spread(name, x) for name, x in linear_term.items()}
        # The gradient with respect to the logarithm of a size; below epsilon it may be rounding.
        relative = jax.tree.map(jnp.multiply, grads, state.sizes)
        largest = jnp.max(jnp.concatenate(jax.tree.leaves(relative)))
        least = self.epsilon * _or_one(largest)
        units = jax.tree.map(lambda size, r: size * (size / (r + least)), state.sizes, relative)
        norms = jax.tree.map(lambda x: jnp.sqrt(_squares(x)), linear_term)
        before = optax.tree.norm(norms)
        after = optax.tree.norm(jax.tree.map(jnp.multiply, norms, units))
        kappa = jnp.where(after > 0, before / _or_one(after), 1)
        return jax.tree.map(lambda unit: kappa * unit, units)

    def _sides(self, shape: tuple[int, ...]) -> list[Side]:
        return [Side.of(length, self.block_size, self.longest) for length in shape]

    def _moments(self, g: Stack) -> Sides:
        r""":math:`G G^\top` and :math:`G^\top G`; the squares of vectors."""
        if g.ndim == 2:
            return (g * g,)
        left, right = self._sides(g.shape[1:])
        return left_moments(g, left), right_moments(g, right)

    def _inverse_roots(self, moments: Factors) -> Factors:
        r""":math:`L^{-1/q}` and :math:`R^{-1/q}`; :math:`v^{-2/q}` of vectors."""
        leaves, structure = jax.tree.flatten(moments)
        blocks = iter(inverse_roots_of([x for x in leaves if x.ndim > 2], self.root, self.epsilon))
        powers = [-2 / self.root / len(own) for own in moments.values() for _ in own]
        roots = [
            next(blocks) if x.ndim > 2 else root_of_diagonal(x, power, self.epsilon)
            for x, power in zip(leaves, powers, strict=True)
        ]
        return jax.tree.unflatten(structure, roots)

    def _apply(self, x: Stack, roots: Sides) -> Stack:
        """Products with the roots on both sides."""
        if x.ndim == 2:
            return x * roots[0]
        left, right = self._sides(x.shape[1:])
        return right_product(left_product(roots[0], x, left), roots[1], right)


def root_of_diagonal(moments: Diagonal, power: float, epsilon: Number) -> Diagonal:
    """A power of a diagonal, with epsilon relative to its largest entry."""
    largest = jnp.max(moments, axis=1, keepdims=True, initial=0)
    return (moments + epsilon * _or_one(largest)) ** power


def _or_one(x: Array) -> Array:
    """One where there has been no gradient yet: any finite root will do."""
    return jnp.where(x > 0, x, jnp.ones_like(x))


def _size(w: Stack) -> PerMatrix:
    """Root mean squares, at least a tenth of what keeps the variance of the inputs."""
    rows = w.shape[1] if w.ndim == 3 else 1
    rms = jnp.sqrt(_squares(w) / max(math.prod(w.shape[1:]), 1))
    return jnp.maximum(rms, _LEAST_SIZE / math.sqrt(max(rows, 1)))


def _rms(x: Stack, factor: Array) -> PerMatrix:
    """Root mean squares of the gradients, from the averages of their moments."""
    traces = halves.trace_of_first(factor).reshape(len(x), -1)
    return jnp.sqrt(jnp.sum(traces, axis=1) / max(math.prod(x.shape[1:]), 1))


def _ratio(x: Stack, y: Stack) -> PerMatrix:
    """The length of each x over that of its y, or one if y vanishes."""
    squares = _squares(x), _squares(y)
    return jnp.where(squares[1] > 0, jnp.sqrt(squares[0]) / jnp.sqrt(_or_one(squares[1])), 1)


def _squares(x: Stack) -> PerMatrix:
    """The square of each length."""
    return jnp.sum(x * x, axis=tuple(range(1, x.ndim)))


def _name(shape: tuple[int, ...]) -> str:
    """The key of a shape."""
    return "x".join(map(str, shape))
