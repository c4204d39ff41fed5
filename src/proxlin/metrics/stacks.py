r"""Leaves as matrices, and all matrices of one shape as one array.

What is computed from stacks compiles once for each shape, however many leaves have it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from optax.contrib import MuonDimensionNumbers

from proxlin.algebra import Params, Shapes

# All matrices or vectors of one shape.
Stack = Float[Array, "matrices *shape"]


@dataclasses.dataclass(frozen=True)
class View:
    """A leaf as a stack of matrices or vectors.

    Attributes:
        order: the axes of the leaf: those of the stack, of the rows and of the columns.
        sizes: their lengths.
        shape: ``(rows, columns)`` of each matrix, or the length of each vector.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, leaf: Any, axes: Any) -> View:
        """The view of a leaf with these axes."""
        rows: tuple[int, ...] = ()
        columns = tuple(range(leaf.ndim))
        if axes is not None:
            rows, columns = _numbers(leaf, axes.reduction_axis), _numbers(leaf, axes.output_axis)
            if set(rows) & set(columns) or not columns:
                raise ValueError(
                    f"{axes} of a leaf of shape {leaf.shape}: columns need an axis, and none can "
                    "be of rows and columns"
                )
        matrices = tuple(i for i in range(leaf.ndim) if i not in (*rows, *columns))
        order = (*matrices, *rows, *columns)
        length = lambda own: math.prod(leaf.shape[i] for i in own)
        return cls(
            order=order,
            sizes=tuple(leaf.shape[i] for i in order),
            shape=(length(rows), length(columns)) if rows else (length(columns),),
        )

    @property
    def matrices(self) -> int:
        """How many matrices or vectors there are; one that is empty if the leaf is empty."""
        one = math.prod(self.shape)
        return math.prod(self.sizes) // one if one else 1

    def stack(self, leaf: Array) -> Stack:
        """The leaf in this view."""
        if self.order != tuple(sorted(self.order)):
            leaf = leaf.transpose(self.order)
        return leaf.reshape(self.matrices, *self.shape)

    def leaf(self, stack: Stack) -> Array:
        """The leaf of this view."""
        leaf = stack.reshape(self.sizes)
        if self.order == tuple(sorted(self.order)):
            return leaf
        return leaf.transpose(tuple(sorted(range(leaf.ndim), key=lambda i: self.order[i])))


@dataclasses.dataclass(frozen=True)
class Stacks:
    """A tree as one array for each shape of matrices and vectors.

    Attributes:
        structure: of the tree.
        views: of its leaves.
        members: for each shape, the numbers of the leaves that have it.
    """

    structure: Any
    views: tuple[View, ...]
    members: dict[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, params: Shapes, axes: Any) -> Stacks:
        """The stacks of trees of these shapes; the axes are guessed if they are None."""
        leaves, structure = jax.tree.flatten(params)
        given = axes_of(params) if axes is None else axes(params) if callable(axes) else axes
        views = tuple(map(View.of, leaves, _spread(given, params)))
        members: dict[tuple[int, ...], tuple[int, ...]] = {}
        for i, view in enumerate(views):
            members[view.shape] = (*members.get(view.shape, ()), i)
        return cls(structure=structure, views=views, members=members)

    @property
    def shapes(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """The shape of each stack."""
        return {
            shape: (sum(self.views[i].matrices for i in own), *shape)
            for shape, own in self.members.items()
        }

    def stack(self, tree: Params) -> dict[tuple[int, ...], Array]:
        """The stack of each shape."""
        leaves = jax.tree.leaves(tree)
        own = lambda i: self.views[i].stack(leaves[i])
        return {
            shape: own(numbers[0]) if len(numbers) == 1 else jnp.concatenate([*map(own, numbers)])
            for shape, numbers in self.members.items()
        }

    def unstack(self, stacks: dict[tuple[int, ...], Array]) -> Params:
        """The tree of these stacks."""
        leaves: dict[int, Array] = {}
        for shape, numbers in self.members.items():
            ends = itertools.accumulate(self.views[i].matrices for i in numbers)
            parts = jnp.split(stacks[shape], list(ends)[:-1])
            leaves |= {i: self.views[i].leaf(x) for i, x in zip(numbers, parts, strict=True)}
        return self.structure.unflatten([leaves[i] for i in range(len(self.views))])


def axes_of(params: Shapes) -> PyTree:
    """A guess of the axes of each leaf: how it is a matrix, or several of them.

    Columns are the last axis and rows all others, as in the kernels of dense layers and
    convolutions; vectors and numbers have no factors. Where layers are stacked, as for
    ``jax.lax.scan``, the first axis counts them, and each layer has its own matrix. A part of the
    tree is taken for stacked layers if all its leaves have two axes or more, the first of the same
    length and no longer than the last, and some leaves have two, such as biases, and some more.

    Args:
        params: a tree of arrays or shapes.

    Returns:
        The same tree of ``optax.contrib.MuonDimensionNumbers``, with None for vectors.

    Example:
        >>> import jax.numpy as jnp
        >>> layers = {"kernel": jnp.zeros((12, 64, 32)), "bias": jnp.zeros((12, 32))}
        >>> axes_of({"layers": layers, "last": jnp.zeros((32, 10))})["layers"]["kernel"]
        MuonDimensionNumbers(reduction_axis=(1,), output_axis=2)
    """
    with_paths, structure = jax.tree_util.tree_flatten_with_path(params)
    below: dict[Any, list[tuple[int, ...]]] = {}
    for path, leaf in with_paths:
        for end in range(len(path)):
            below.setdefault(path[:end], []).append(leaf.shape)
    stacked = {path for path, shapes in below.items() if _are_stacked(shapes)}

    def one(path: Any, leaf: Any) -> MuonDimensionNumbers | None:
        first = int(any(path[:end] in stacked for end in range(len(path))))
        if leaf.ndim - first < 2 or 0 in leaf.shape:
            return None if not first else MuonDimensionNumbers((), tuple(range(1, leaf.ndim)))
        return MuonDimensionNumbers(tuple(range(first, leaf.ndim - 1)), leaf.ndim - 1)

    return jax.tree.unflatten(structure, [one(path, leaf) for path, leaf in with_paths])


def _are_stacked(shapes: list[tuple[int, ...]]) -> bool:
    """Whether these leaves are those of stacked layers."""
    ndims = {len(shape) for shape in shapes}
    if min(ndims) != 2 or max(ndims) == 2:
        return False
    return len({s[0] for s in shapes}) == 1 and all(0 < s[0] <= s[-1] for s in shapes)


def _spread(axes: PyTree, params: Shapes) -> list[Any]:
    """The axes of each leaf, from a tree that may be a prefix."""
    is_axes = lambda x: x is None or isinstance(x, MuonDimensionNumbers)
    found: list[Any] = []

    def spread(own: Any, part: Shapes) -> None:
        if not is_axes(own):
            raise TypeError(
                f"axes contain {own!r}; give optax.contrib.MuonDimensionNumbers, or None"
            )
        found.extend([own] * len(jax.tree.leaves(part)))

    jax.tree.map(spread, axes, params, is_leaf=is_axes)
    return found


def _numbers(leaf: Any, axes: Any) -> tuple[int, ...]:
    """Axes as non-negative numbers."""
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    if any(not -leaf.ndim <= i < leaf.ndim for i in given):
        raise ValueError(f"axes {given} of a leaf of shape {leaf.shape}: it has {leaf.ndim} axes")
    return tuple(i % leaf.ndim for i in given)
