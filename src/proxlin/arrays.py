"""Arrays from user input: lists, memory maps, columns of tables, any NumPy dtype."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpy.typing import NDArray

# Dtypes that NumPy has and JAX lacks.
_NARROWER = {np.dtype(np.longdouble): np.float64, np.dtype(np.clongdouble): np.complex128}


def as_targets(targets: PyTree) -> PyTree[Array]:
    """Targets as JAX arrays in their own dtypes; a list of numbers is one array.

    Raises:
        TypeError, ValueError: for anything but arrays of numbers.
    """
    return jax.tree.map(lambda leaf: as_array("targets", leaf), targets, is_leaf=is_numbers)


def as_array(name: str, given: Any) -> Array:
    """An array in its own dtype, or the nearest one that JAX has.

    Raises:
        TypeError, ValueError: for anything but an array of numbers, and for integers that JAX would
            truncate.
    """
    array = _read(name, given)
    if isinstance(array, jax.Array):
        return array
    kept = jax.dtypes.canonicalize_dtype(array.dtype)
    if kept != array.dtype and kept.kind in "iu":
        _check_range(name, array, kept)
    return _converted(array, kept)


def as_floats(name: str, given: Any, dtype: Any = None) -> Float[Array, "..."]:
    """An array of floats, in the given dtype or, by default, in its own.

    Without a dtype, integers and booleans get the default one, and half precision becomes float32.

    Raises:
        TypeError, ValueError: for anything but an array of real numbers.
    """
    array = _read(name, given)
    check_real(name, array)
    return _converted(array, _float_dtype(array.dtype) if dtype is None else dtype)


def counts(dtype: Any) -> bool:
    """Whether a dtype can number classes: integers, and booleans for 0 and 1."""
    return bool(jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_))


def check_one_array(loss: object, targets: Any) -> None:
    """Raises TypeError unless the targets of a loss are one array of real numbers."""
    name = type(loss).__name__
    if not hasattr(targets, "shape"):
        raise TypeError(
            f"{name}: targets are of type {type(targets).__name__}; give one array, such as "
            "np.asarray(targets)"
        )
    check_real(f"{name}: targets", targets)


def check_real(name: str, array: Any) -> None:
    """Raises TypeError for complex numbers, whose imaginary part a cast would drop."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(
            f"{name} of dtype {array.dtype}: give real numbers; write complex ones as their real "
            "and imaginary parts"
        )


def _read(name: str, given: Any) -> Array | NDArray[Any]:
    if isinstance(given, np.ma.MaskedArray):
        raise ValueError(
            f"{name} are a masked array, and the mask would be lost; fill it with .filled(value), "
            "and give weight zero to examples that do not count"
        )
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(given)):
        return jnp.asarray(given)  # traced ones too
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise ValueError(
            f"{name} are not an array: {error}. Give rows of equal length to np.asarray({name})"
        ) from error
    number = jnp.issubdtype(array.dtype, np.number) or counts(array.dtype)
    if not number or array.dtype.kind == "m":  # timedelta64, an integer to NumPy
        raise TypeError(
            f"{name} are of type {type(given).__name__} and dtype {array.dtype}; give numbers, "
            f"such as np.asarray({name}, dtype=float), and integers for labels"
        )
    return array.astype(_NARROWER.get(array.dtype, array.dtype), copy=False)


def _check_range(name: str, array: NDArray[Any], dtype: np.dtype[Any]) -> None:
    range_ = np.iinfo(dtype)
    outside = array[(array < range_.min) | (array > range_.max)]
    if outside.size:
        raise ValueError(
            f"{name} contain {outside[0]}, which does not fit {dtype}; give floats or smaller "
            'numbers, or enable 64 bits with jax.config.update("jax_enable_x64", True)'
        )


def _converted(array: Array | NDArray[Any], dtype: Any) -> Array:
    # Numbers that are too large become infinite, and the checks of values report them.
    with np.errstate(over="ignore"):
        return jnp.asarray(array, jax.dtypes.canonicalize_dtype(dtype))


def _float_dtype(dtype: Any) -> Any:
    if not jnp.issubdtype(dtype, jnp.floating):
        return jnp.result_type(float)
    return jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype


def is_numbers(tree: PyTree) -> bool:
    """Whether this is a list of numbers, possibly nested, whose leaves are not arrays."""
    return isinstance(tree, list) and all(np.ndim(leaf) == 0 for leaf in jax.tree.leaves(tree))
