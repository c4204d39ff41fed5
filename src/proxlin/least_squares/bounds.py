"""Box constraints on parameters, by projection."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from proxlin.algebra import Params, cast, cast_like, dot, plain
from proxlin.checks import require
from proxlin.direction import Direction


class Bounds(NamedTuple):
    """Lower and upper bounds, pytrees like the parameters."""

    lower: Params
    upper: Params

    def clip(self, params: Params) -> Params:
        """The nearest parameters within the bounds."""
        return jax.tree.map(jnp.clip, params, self.lower, self.upper)

    def free(self, params: Params, grad: Params) -> PyTree[Bool[Array, "..."]]:
        """Which parameters are not held by a bound that they would leave."""
        held = lambda w, g, low, high: ((w <= low) & (g > 0)) | ((w >= high) & (g < 0))
        return jax.tree.map(lambda *x: ~held(*x), params, grad, self.lower, self.upper)

    def project(self, direction: Direction) -> Direction:
        """The direction to the point within the bounds, with slope and prediction of its own."""
        params, space = direction.params, direction.proximity.space
        there = lambda displacement: self.clip(
            jax.tree.map(jnp.subtract, params, cast_like(displacement, params))
        )
        within = lambda displacement: jax.tree.map(jnp.subtract, params, there(displacement))
        d = cast(within(plain(direction.solved.d)), direction.slope.dtype)
        return dataclasses.replace(
            direction,
            slope=dot(d, direction.model.grad),
            solved=direction.solved._replace(d=space.measured(d), predicted=None, change=None),
            objective=lambda displacement: direction.objective(within(displacement)),
        )


def as_bounds(bounds: Any, params: Params) -> Bounds | None:
    """What was passed as ``bounds=``.

    Raises:
        TypeError, ValueError: for anything but a pair of bounds that fit the parameters.
    """
    if bounds is None:
        return None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise TypeError(f"bounds={bounds!r}: give a pair (lower, upper), of numbers or of pytrees")
    lower, upper = (
        _like(name, b, params) for name, b in zip(("lower", "upper"), bounds, strict=True)
    )
    _require(lower, upper, lambda a, b: a < b, "lower bounds must be less than upper ones")
    _require(lower, params, lambda a, b: a <= b, "the first guess must not lie below the bounds")
    _require(params, upper, lambda a, b: a <= b, "the first guess must not lie above the bounds")
    return Bounds(lower, upper)


def _like(name: str, bound: Any, params: Params) -> Params:
    structures = [str(jax.tree.structure(tree)) for tree in (bound, params)]
    if structures[0] != structures[1]:
        if not jax.tree_util.all_leaves([bound]) or jnp.ndim(bound) != 0:
            raise ValueError(
                f"the {name} bound has the structure {structures[0]}, and the parameters have "
                f"{structures[1]}: give one number, or a pytree like the parameters"
            )
        bound = jax.tree.map(lambda _: bound, params)
    try:
        return jax.tree.map(
            lambda b, w: jnp.broadcast_to(jnp.asarray(b, w.dtype), w.shape), bound, params
        )
    except ValueError as error:
        raise ValueError(
            f"the {name} bound does not fit the shapes of the parameters: {error}"
        ) from error


def _require(a: Params, b: Params, holds: Any, message: str) -> None:
    pairs = lambda a, b: jnp.all(
        jnp.stack([jnp.all(x) for x in jax.tree.leaves(jax.tree.map(holds, a, b))])
    )
    require(pairs, lambda *_: f"bounds: {message}", a, b)
