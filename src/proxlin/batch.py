"""A mini-batch: examples, targets and weights, checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from proxlin.arrays import as_floats, as_targets, is_numbers
from proxlin.checks import check_integer, require
from proxlin.losses import Loss


@dataclasses.dataclass(frozen=True)
class Share:
    """A share of a batch, counted in outputs: those of all places of all its examples.

    Whole examples are taken, as few as have that many outputs; an output is a vector of length k.

    Attributes:
        fraction: of the outputs of the batch.
        least: the least number of outputs, if the batch has as many.

    Example:
        >>> share = Share(1 / 8, least=32)
        >>> share.examples(256, 1), share.examples(100, 1), share.examples(16, 128)
        (32, 32, 2)
    """

    fraction: float = 1 / 8
    least: int = 32

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"{self}: fraction must lie between 0 and 1")
        check_integer(self, "least", least=1)

    def examples(self, m: int, places: int) -> int:
        """The number of examples, of ``m`` with outputs at so many places each.

        It is rounded up, by a quarter at most, to a multiple of a power of two that divides ``m``:
        as many devices have as many of them each.
        """
        wanted = max(self.least, math.floor(self.fraction * m * places))
        size = min(m, -(-wanted // places))
        shared = 1
        while m % (2 * shared) == 0 and 8 * shared <= size:
            shared *= 2
        return -(-size // shared) * shared


# A number of examples, a function that computes it from the size of the batch, or a share of it.
Size: TypeAlias = int | Callable[[int], int] | Share


class Batch(NamedTuple):
    r"""A mini-batch.

    Attributes:
        inputs: what the model takes; rows of weight zero hold a copy of another row.
        targets: what the loss takes, with the same copies.
        weights: :math:`\omega`, one for each example; they sum to the weight of the batch's term
            of the objective, by default one.
        good: whether all values are allowed.
        weighted: whether weights were passed, so that they may differ.
    """

    inputs: PyTree
    targets: PyTree
    weights: Float[Array, "*n"]
    good: Bool[Array, ""]
    weighted: bool = False

    @property
    def dtype(self) -> Any:
        """The dtype of the algebra."""
        return self.weights.dtype

    def scaled(self, factor: float) -> Batch:
        """The same, with all weights multiplied by ``factor``."""
        return self if factor == 1 else self._replace(weights=factor * self.weights)

    def part(self, size: int) -> Batch:
        """``size`` examples, one from each of as many stretches of the batch.

        The example of largest weight represents its stretch: examples of weight zero are never
        chosen, and those that make up much of the objective always are. On a sharded batch, each
        device keeps its own rows if each has whole stretches.
        """
        stretches = _Stretches(len(self.weights), size)
        if not self.weighted:
            rows = lambda x: stretches.of(jnp.asarray(x))[:, 0]
            inputs, targets = jax.tree.map(rows, (self.inputs, self.targets))
            lengths = stretches.inside.sum(axis=1).reshape(-1, *(1,) * (self.weights.ndim - 1))
            each = jnp.asarray(lengths / self.weights.size, self.dtype)
            weights = jnp.broadcast_to(each, (size, *self.weights.shape[1:]))
            return self._replace(inputs=inputs, targets=targets, weights=weights)
        sums = jnp.sum(self.weights.reshape(len(self.weights), -1), axis=1)
        weights = jnp.where(stretches.inside, stretches.of(sums), 0)
        heaviest = jnp.argmax(weights, axis=1)[:, None]
        chosen = jnp.arange(weights.shape[1])[None, :] == heaviest
        rows = lambda x: _pick(stretches.of(jnp.asarray(x)), chosen)
        inputs, targets, own = jax.tree.map(rows, (self.inputs, self.targets, self.weights))
        largest = jnp.max(weights, axis=1)
        counts = jnp.sum(weights, axis=1) / jnp.where(largest > 0, largest, 1)
        own = own * counts.reshape(-1, *(1,) * (own.ndim - 1))
        return self._replace(inputs=inputs, targets=targets, weights=_normalized(own))


class _Stretches:
    """As many stretches of a batch as wanted, of lengths that differ by one at most.

    They repeat after every ``m / gcd(m, size)`` examples. So rows are taken from such groups, with
    the same indices in each: an index into the whole batch would gather it, if it is sharded.
    """

    def __init__(self, m: int, size: int):
        self.m, self.size, self.groups = m, size, math.gcd(m, size)
        first = np.arange(size // self.groups + 1) * m // size
        members = first[:-1, None] + np.arange(-(-m // size))[None, :]
        self.members = np.minimum(members, m // self.groups - 1)
        self.inside = np.tile(members < first[1:, None], (self.groups, 1))

    def of(self, x: Array) -> Array:
        """The rows of each stretch; where one is shorter, it ends with a row of the next."""
        grouped = x.reshape(self.groups, self.m // self.groups, *x.shape[1:])
        if self.members.size < self.m // self.groups or self.m % self.size:
            grouped = grouped[:, self.members.ravel()]
        return grouped.reshape(self.size, -1, *x.shape[1:])


def make_batch(
    loss: Loss,
    outputs: Array | jax.ShapeDtypeStruct,
    inputs: PyTree,
    targets: PyTree,
    weights: Any,
) -> Batch:
    """Checks targets and weights against the shape of the outputs and makes a batch of them.

    Rows of weight zero are replaced by a copy of the first row of positive weight, already in the
    inputs, because zero times NaN is NaN in every later product.
    """
    targets = as_targets(targets)
    if weights is not None:
        weights = as_floats("weights", weights, outputs.dtype)
    check_examples(inputs, outputs, weights)
    loss.check(outputs, targets)
    examples = outputs.shape[:-1]
    n = np.prod(examples)
    if weights is None:
        good = require(
            lambda y: loss.valid(outputs, y), lambda y: _bad_target(loss, outputs, y), targets
        )
        weights = jnp.full(examples, 1 / n, outputs.dtype)
        return Batch(inputs=inputs, targets=targets, weights=weights, good=good)
    good = _good_weights(weights)
    weights = weights.reshape(weights.shape + (1,) * (len(examples) - weights.ndim))
    weights = jnp.broadcast_to(weights, examples)
    good &= require(
        lambda y, w: loss.valid(outputs, y) | (w == 0),
        lambda y, w: _bad_target(loss, outputs, y, w),
        targets,
        weights,
    )
    inputs = _cover(inputs, jnp.any(weights.reshape(examples[0], -1) > 0, axis=1))
    inputs = _silence(inputs, weights == 0)
    targets = _cover(targets, weights > 0)
    return Batch(
        inputs=inputs, targets=targets, weights=_normalized(weights), good=good, weighted=True
    )


def check_inputs(inputs: PyTree, *, example_axis: bool) -> None:
    """Raises for an empty batch and, if one is needed, a missing or ragged example axis."""
    for leaf in jax.tree.leaves(inputs):
        try:
            jax.typeof(leaf)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"inputs contain {type(leaf).__name__} of dtype {getattr(leaf, 'dtype', None)}, "
                "which JAX does not accept; give arrays, such as np.asarray(inputs, np.float32)"
            ) from error
    if jax.tree.leaves(inputs) and is_numbers(inputs):
        raise TypeError(
            "inputs are a list of numbers; give one array, such as np.asarray(inputs, np.float32)"
        )
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(inputs)]
    if any(shape[:1] == (0,) for shape in shapes):
        raise ValueError("empty batch: inputs have no examples")
    if example_axis and len({shape[:1] for shape in shapes}) != 1:
        raise ValueError(
            f"inputs have leaves of shapes {shapes}; weights, curvature_size and chunk_size need "
            "the example axis first in each leaf. Pass what is not per example in `args`"
        )
    if example_axis and shapes[0] == ():
        raise ValueError("inputs have no example axis; weights and sizes need one")


def check_examples(inputs: PyTree, outputs: Any, weights: Any) -> None:
    """Raises unless weights fit the outputs and the inputs."""
    if weights is None:
        return
    examples, shape = outputs.shape[:-1], np.shape(weights)
    if not shape or shape != examples[: len(shape)]:
        raise ValueError(
            f"weights of shape {shape} for outputs of shape {outputs.shape}: give {examples[:1]}"
            + (f" or {examples}" if len(examples) > 1 else "")
        )
    for leaf in jax.tree.leaves(inputs):
        if np.shape(leaf)[0] != shape[0]:
            raise ValueError(
                f"weights for {shape[0]} examples, inputs of shape {np.shape(leaf)}: mismatched "
                "batch sizes"
            )


def _good_weights(weights: Any) -> Bool[Array, ""]:
    good = require(
        lambda w: (w >= 0) & jnp.isfinite(w),
        lambda w: f"weights must be finite and non-negative; the smallest is {np.min(w)}",
        jnp.asarray(weights),
    )
    return good & require(
        lambda w: jnp.any(w > 0),
        lambda w: "all weights are zero: no example counts; skip this batch",
        jnp.asarray(weights),
    )


def _bad_target(loss: Loss, outputs: Any, targets: PyTree, weights: Any = 1) -> str:
    bad = np.argwhere(~np.asarray(loss.valid(outputs, targets) | (weights == 0)))[0]
    index = tuple(int(i) for i in bad)
    value = jax.tree.map(lambda y: np.asarray(y)[index], targets)
    return (
        f"{type(loss).__name__}: targets{list(index)} is {value}; allowed are "
        f"{loss.allowed(outputs)}"
    )


def _normalized(weights: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Weights that sum to one; divided by the largest first, because their sum might overflow."""
    largest = jnp.max(weights)
    weights = weights / jnp.where(largest > 0, largest, 1)
    total = jnp.sum(weights)
    return weights / jnp.where(total > 0, total, 1)


def _pick(stretches: Array, chosen: Bool[Array, "size width"]) -> Array:
    """The chosen row of each stretch, as a sum: indexing would gather a sharded batch."""
    along = chosen.reshape(*chosen.shape, *(1,) * (stretches.ndim - 2))
    if jnp.issubdtype(stretches.dtype, jnp.number):
        return jnp.sum(jnp.where(along, stretches, 0), axis=1, dtype=stretches.dtype)
    return jax.vmap(lambda rows, i: rows[i])(stretches, jnp.argmax(chosen, axis=1))


def _cover(tree: PyTree, keep: Bool[Array, "*n"]) -> PyTree:
    """Replaces rows that are not kept by the first one that is."""
    flat = keep.reshape(-1)
    # A minimum and not an argmax: on a sharded batch it is one small all-reduce.
    first = jnp.min(jnp.where(flat, jnp.arange(flat.size), flat.size - 1))

    def cover(x: Array) -> Array:
        rows = x.reshape(flat.size, *x.shape[keep.ndim :])
        along = lambda mask: mask.reshape(-1, *(1,) * (rows.ndim - 1))
        if jnp.issubdtype(x.dtype, jnp.number):
            # rows[first] as a sum: indexing would gather a sharded batch on every device.
            chosen = jnp.where(along(jnp.arange(flat.size) == first), rows, 0)
            row = jnp.sum(chosen, axis=0, dtype=x.dtype, keepdims=True)
        else:
            row = rows[first][None]
        return jnp.where(along(flat), rows, row).reshape(x.shape)

    return jax.tree.map(lambda x: cover(jnp.asarray(x)), tree)


def _silence(inputs: PyTree, ignored: Bool[Array, "*n"]) -> PyTree:
    """Replaces non-finite numbers by zeros at the ignored places of a sequence.

    Finite ones stay: outputs at one place may depend on its neighbors.
    """
    if ignored.ndim < 2:
        return inputs

    def silence(x: Any) -> Any:
        if jnp.shape(x)[: ignored.ndim] != ignored.shape:
            return x
        if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
            return x
        x = jnp.asarray(x)
        here = ignored.reshape(*ignored.shape, *(1,) * (x.ndim - ignored.ndim))
        return jnp.where(here & ~jnp.isfinite(x), 0, x)

    return jax.tree.map(silence, inputs)
