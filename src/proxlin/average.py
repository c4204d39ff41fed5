r"""The average of the parameters over training, which is better than the last ones at any time.

.. math:: \bar w_{t+1} = \bar w_t + \tfrac{9}{t + 9} (w_t - \bar w_t)

gives the parameters at step :math:`i` a weight of about :math:`i^8` (Shamir and Zhang, 2013): the
average looks back over the last ninth of training, whatever its length.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from proxlin.algebra import Params, Scalar, Shapes, algebra_dtype, zeros_like

_POWER = 9


def first_average(params: Shapes) -> Params:
    """The average before the first step; in float32 for narrower parameters."""
    return jax.tree.map(lambda w: zeros_like(w, algebra_dtype(w)), params)


def weight_in_average(taken: Int[Array, ""]) -> Scalar:
    """The weight of the parameters that this many steps led to; one for the first ones."""
    return _POWER / (taken.astype(jnp.result_type(float)) + _POWER)


def averaged(average: Params, params: Params, taken: Int[Array, ""]) -> Params:
    """The average with the parameters that this many steps led to."""
    weight = weight_in_average(taken)
    return jax.tree.map(
        lambda a, w: a + weight.astype(a.dtype) * (w.astype(a.dtype) - a), average, params
    )
