"""Weight decay, as a part of the objective."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from proxlin.algebra import Number, Params, Scalar, dot


@dataclasses.dataclass(frozen=True)
class Decay:
    r"""Weight decay, :math:`\tfrac{\lambda}{2} \|w\|^2` as part of the objective.

    Its meaning does not depend on gamma, the metric or the length of steps: they change how fast
    the minimum is reached, not where it is. Its gradient and its curvature along the direction are
    exact; the subproblem leaves its curvature out, which is small beside the proximity term.

    Attributes:
        rate: :math:`\lambda`.
        mask: which leaves decay: a tree of booleans, a prefix of that of the parameters, or a
            function that makes one of the parameters; None for all.
    """

    rate: Number
    mask: Any = None

    def apply(self, x: Params, params: Params) -> Params:
        r""":math:`\lambda x` where parameters decay, zero elsewhere."""
        mask = self.mask(params) if callable(self.mask) else self.mask
        whole = jax.tree.map(lambda leaf: jnp.asarray(self.rate, leaf.dtype) * leaf, x)
        if mask is None:
            return whole
        choose = lambda decays, own: own if decays else optax.tree.zeros_like(own)
        return jax.tree.map(choose, mask, whole)

    def value(self, params: Params) -> Scalar:
        r""":math:`\tfrac{\lambda}{2} \|w\|^2`."""
        return 0.5 * dot(params, self.apply(params, params))
