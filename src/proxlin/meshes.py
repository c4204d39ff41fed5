r"""Meshes of devices: where arrays are, and models on explicit axes.

XLA divides the computations of this library by itself, for which mesh axes have to be automatic.
Those of ``jax.make_mesh`` are explicit by default, and then they still are for the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.shard_alike import shard_alike
from jax.sharding import Mesh, NamedSharding, PartitionSpec, auto_axes
from jaxtyping import Array, PyTree


def mesh_of(tree: PyTree) -> Mesh | None:
    """The mesh that the arrays of a tree lie on; None if there is none, or it is not known."""
    for leaf in jax.tree.leaves(tree):
        sharding = None if isinstance(leaf, jax.core.Tracer) else getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            return sharding.mesh
    return None


def replicated(x: Array, mesh: Mesh | None) -> Array:
    """An array on every device of a mesh, unless it is on several already."""
    if mesh is None or isinstance(x, jax.core.Tracer) or isinstance(x.sharding, NamedSharding):
        return x
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec()))


def spread(shape: tuple[int, ...], params: PyTree) -> NamedSharding | None:
    """Where a stack goes: divided over as many devices as parameters are, if its length allows.

    None if the parameters lie on no mesh.
    """
    mesh = mesh_of(params)
    if mesh is None:
        return None
    specs = [x.sharding.spec for x in jax.tree.leaves(params)]
    used = {name for spec in specs for names in spec for name in _names(names)}
    axes = tuple(name for name in mesh.axis_names if name in used)
    return NamedSharding(mesh, _fit(PartitionSpec(axes or None), shape, mesh))


def zeros_spread_like(params: PyTree, shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros of a stack, see :func:`spread`."""
    return jnp.zeros(shape, dtype, device=spread(shape, params))


def gathered(stack: Array) -> Array:
    """A stack of which every device has all."""
    return _divided(stack, *[None] * stack.ndim)


def undivided(stack: Array) -> Array:
    """A stack whose matrices lie on one device each, so that no product of theirs is divided."""
    return _divided(stack, PartitionSpec.UNCONSTRAINED, *[None] * (stack.ndim - 1))


def _divided(x: Array, *spec: Any) -> Array:
    """An array divided in this way, where the axes of its mesh are automatic."""
    mesh = jax.typeof(x).sharding.mesh
    if mesh.empty or set(mesh.auto_axes) != set(mesh.axis_names):
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))


def kept_in_place(new: PyTree, old: PyTree) -> PyTree:
    """Arrays divided over devices as others of the same structure and shapes are."""
    return jax.tree.map(lambda a, b: shard_alike(a, b)[0] if jnp.ndim(a) else a, new, old)


def is_explicit(tree: PyTree) -> bool:
    """Whether arrays lie on a mesh with explicit axes."""
    return _explicit_mesh(tree) is not None


def automatically(fn: Callable[..., Any], given: tuple[Any, ...], like: Any) -> Any:
    """``fn(*given)`` with all mesh axes automatic inside.

    Args:
        fn: a function of trees of arrays, and of anything else.
        given: its arguments.
        like: a tree like the result, whose arrays tell how those of the result are divided, if axes
            are explicit; None for parts of it that every device has.
    """
    mesh = _explicit_mesh(given)
    if mesh is None:
        return fn(*given)
    call, arrays = _of_arrays(fn, given)
    where = lambda x: NamedSharding(mesh, PartitionSpec() if x is None else _spec(x))
    shardings = jax.tree.map(where, like, is_leaf=lambda x: x is None)
    return auto_axes(call, axes=mesh.explicit_axes, out_sharding=shardings)(*arrays)


def with_explicit_axes(model: Callable[..., Any], *given: Any) -> Callable[..., Any]:
    """The model, called with all axes automatic, sees its arguments divided as the given ones are.

    Axes that no longer divide evenly, since only a part of a batch is there, are not divided.
    """
    mesh = _explicit_mesh(given)
    specs = [_spec(x) for x in jax.tree.leaves(given) if _is_array(x)]

    def explicit(*arguments: Any) -> Any:
        call, arrays = _of_arrays(model, arguments)
        fit = tuple(_fit(spec, x.shape, mesh) for spec, x in zip(specs, arrays, strict=True))
        return jax.sharding.explicit_axes(call, axes=mesh.explicit_axes, in_sharding=fit)(*arrays)

    return explicit


def _explicit_mesh(tree: PyTree) -> Any:
    """The abstract mesh with explicit axes that arrays lie on, if there is one."""
    for leaf in jax.tree.leaves(tree):
        if _is_array(leaf) and jax.typeof(leaf).sharding.mesh.explicit_axes:
            return jax.typeof(leaf).sharding.mesh
    return None


def _of_arrays(
    fn: Callable[..., Any], given: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Array, ...]]:
    """The function of the arrays among its arguments alone, and these."""
    leaves, structure = jax.tree.flatten(given)
    numbers = [i for i, leaf in enumerate(leaves) if _is_array(leaf)]

    def call(*arrays: Array) -> Any:
        own = dict(zip(numbers, arrays, strict=True))
        return fn(*jax.tree.unflatten(structure, [own.get(i, x) for i, x in enumerate(leaves)]))

    return call, tuple(leaves[i] for i in numbers)


def _is_array(x: Any) -> bool:
    return isinstance(x, jax.Array)


def _spec(x: Any) -> PartitionSpec:
    return jax.typeof(x).sharding.spec


def _fit(spec: PartitionSpec, shape: tuple[int, ...], mesh: Any) -> PartitionSpec:
    """The spec without the axes that do not divide this shape."""
    ways = lambda names: math.prod(mesh.shape[name] for name in _names(names))
    kept = zip(spec, shape, strict=False)
    return PartitionSpec(*(names if size % ways(names) == 0 else None for names, size in kept))


def _names(entry: Any) -> tuple[str, ...]:
    """The mesh axes in one entry of a spec."""
    return entry if isinstance(entry, tuple) else () if entry is None else (entry,)
