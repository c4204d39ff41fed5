"""Checks of values: an error if they are concrete, a flag under ``jit``."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


def check_integer(owner: Any, name: str, *, least: int) -> None:
    """Raises ValueError unless an attribute is an integer that is large enough."""
    value = getattr(owner, name)
    if not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(
            f"{type(owner).__name__}({name}={value!r}): give an integer of at least {least}"
        )


def check_number(owner: str, value: Any, allowed: str) -> None:
    """Raises TypeError unless a value is a real number, or an array, maybe traced.

    Args:
        owner: what the value was given for, such as ``Armijo(beta=...)``.
        value: what was given.
        allowed: what to give.
    """
    if isinstance(value, numbers.Real) or hasattr(value, "dtype"):
        return
    adapts = "; proxlin.auto(model, loss) chooses gamma itself" if value == "auto" else ""
    raise TypeError(f"{owner}: give {allowed}, not {value!r}{adapts}")


def require(
    predicate: Callable[..., Bool[Array, "..."]], message: Callable[..., str], *values: Any
) -> Bool[Array, ""]:
    """Whether a predicate holds everywhere; raises if it is known not to.

    Args:
        predicate: values -> booleans.
        message: values -> what was given, what is allowed, what to do.
        *values: pytrees of arrays or numbers, concrete or traced.

    Returns:
        One boolean, for the status of a direction.

    Raises:
        ValueError: if all values are concrete and the predicate does not hold.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values)):
        return jnp.all(predicate(*values))
    with jax.ensure_compile_time_eval():
        holds = bool(jnp.all(predicate(*values)))
        if not holds:
            raise ValueError(message(*values))
    return jnp.asarray(holds)
