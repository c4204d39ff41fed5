"""What a checker has found: the identities that do not hold, and by how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Findings:
    """Collects what does not hold, each identity once, with its first failure.

    Args:
        tolerance: by how much numbers may differ, relative to one plus the largest.
    """

    def __init__(self, tolerance: float):
        self.tolerance = tolerance
        self.wrong: dict[str, str] = {}

    def note(self, what: str, how: str) -> None:
        """Notes that an identity does not hold."""
        self.wrong.setdefault(what, how)

    def near(self, what: str, got: Any, want: Any) -> None:
        """Notes a failure unless two pytrees are equal up to the tolerance."""
        if kind(got, dtypes=False) != kind(want, dtypes=False):
            self.note(what, f"{kind(got)} where {kind(want)} is due")
            return
        leaves = lambda tree: [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
        pairs = list(zip(leaves(got), leaves(want), strict=True))
        scale = 1 + max((np.max(np.abs(b), initial=0) for _, b in pairs), default=0.0)
        with np.errstate(invalid="ignore"):  # infinity minus itself
            errors = [np.max(np.abs(a - b), initial=0) for a, b in pairs]
        error = np.max(errors, initial=0) / scale  # not Python's max, which overlooks NaN
        if not error <= self.tolerance:
            self.note(what, f"off by {error:.1e} (relative), {self.tolerance:.1e} allowed")

    def least(self, what: str, slack: Any, scale: float = 0.0) -> None:
        """Notes a failure unless all numbers are at least zero, up to the tolerance."""
        worst = float(np.min(np.asarray(slack, np.float64)))
        if not worst >= -self.tolerance * (1 + abs(scale)):
            self.note(what, f"violated by {-worst:.1e}")

    def positive(self, what: str, number: Any) -> None:
        """Notes a failure unless a number is positive and finite."""
        if not 0 < float(number) < float("inf"):
            self.note(what, f"it is {float(number):.1e}")

    def same_kind(self, what: str, got: Any, want: Any) -> bool:
        """Notes a failure unless structures, shapes and dtypes are the same."""
        same = kind(got) == kind(want)
        if not same:
            self.note(what, f"{kind(got)} where {kind(want)} is due")
        return same

    def conclude(self, piece: Any, name: str) -> None:
        """Raises ValueError if anything was noted."""
        if self.wrong:
            lines = "\n- ".join(f"{what}: {how}" for what, how in self.wrong.items())
            raise ValueError(f"{piece} breaks what a {name} must hold:\n- {lines}")


def kind(tree: Any, *, dtypes: bool = True) -> str:
    """Structure, shapes and dtypes of a pytree, in words."""
    return str(
        jax.tree.map(lambda x: f"{jnp.result_type(x) if dtypes else ''}{list(jnp.shape(x))}", tree)
    ).replace("'", "")


def counted(fn: Callable[[Any], Any], calls: Counter[str], name: str) -> Callable[[Any], Any]:
    """The same function, whose calls are counted as they are made, not as they are traced.

    ``jax.effects_barrier`` waits for the last one.
    """

    def tally(_: Any) -> None:
        calls[name] += 1

    def call(x: Any) -> Any:
        # With an argument, so that one call for many vectors at once counts for all of them.
        jax.debug.callback(tally, jax.tree.leaves(x)[0])
        return fn(x)

    return call


def tolerance_of(dtype: Any) -> float:
    """Ten times the root of the rounding error: loose for sums, tight for mistakes."""
    return 10 * float(jnp.finfo(dtype).eps) ** 0.5
