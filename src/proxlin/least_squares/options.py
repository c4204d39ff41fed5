"""What ``least_squares`` is given, checked before any work is done."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from proxlin.steps import TrustRegion


def rule_of(gammas: tuple[float, ...], acceleration: float | None) -> TrustRegion:
    """The rule of :func:`proxlin.levenberg_marquardt`; it checks the numbers."""
    rules = [
        TrustRegion(gamma=g, grow=3.0, nielsen=True, acceleration=acceleration) for g in gammas
    ]
    if not rules:
        raise ValueError("gamma=(): give at least one positive number")
    return rules[0]


def positive(name: str, value: Any, kind: type) -> Any:
    """The value, if it is a positive number of its kind."""
    allowed = (int, np.integer) if kind is int else (int, float, np.floating)
    if not isinstance(value, allowed) or not value > 0:
        what = "a positive integer" if kind is int else "a positive number, or None"
        raise ValueError(f"{name}={value!r}: give {what}")
    return value


def check_residuals(shapes: PyTree[jax.ShapeDtypeStruct]) -> None:
    """Raises unless residuals are real floating-point arrays, and there is one."""
    leaves = jax.tree.leaves(shapes)
    if sum(leaf.size for leaf in leaves) == 0:
        raise ValueError("residuals returned nothing: give at least one residual")
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"residuals of dtype {leaf.dtype}: return real floating-point arrays, and complex "
                "numbers as their real and imaginary parts"
            )
