"""What to evaluate with: the average of the parameters."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import PyTree

from proxlin.algebra import cast_like
from proxlin.average import averaged
from proxlin.optimizer.contract import placed
from proxlin.optimizer.transformation import ProxLinearState


def eval_params(state: Any, params: PyTree) -> PyTree:
    r"""The parameters to evaluate with: their average over training, if the method keeps one.

    The average is better than the last parameters at any time, without a schedule. It contains
    every point that a step has left, and ``params``; points after rejected steps count once.

    Networks with BatchNorm need statistics that belong to the average: run the model on a few
    batches in training mode with it, see the guide to training.

    Args:
        state: the state of a prox-linear method, also inside of ``optax.chain`` and its like.
        params: the current parameters.

    Returns:
        The average in the dtypes of ``params``; ``params`` if the method keeps no average.

    Raises:
        TypeError: if there is no state of a prox-linear method, or that of other parameters.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from proxlin import Squared, auto
        >>> opt = auto(lambda w, x: x @ w, Squared())
        >>> w, x, y = jnp.zeros((2, 1)), jnp.eye(2), jnp.ones((2, 1))
        >>> state = opt.init(w)
        >>> for _ in range(40):
        ...     updates, state = opt.update(None, state, w, inputs=x, targets=y)
        ...     w = optax.apply_updates(w, updates)
        >>> bool(jnp.allclose(eval_params(state, w), 1, atol=0.1))
        True
    """
    found = method_state(state, "eval_params")
    if not jax.tree.leaves(found.average):
        return params
    average = placed(found.average, params)
    if average is None:
        raise TypeError(
            "eval_params: the average in the state has other leaves or shapes than params; pass "
            "the parameters that belong to this state"
        )
    (taken,) = jax.tree.leaves(found.taken)
    return cast_like(averaged(average, params, taken), params)


def method_state(state: Any, caller: str) -> ProxLinearState:
    """The state of the one prox-linear method in an Optax state."""
    ours = lambda x: isinstance(x, ProxLinearState)
    found = [x for x in jax.tree.leaves(state, is_leaf=ours) if ours(x)]
    if len(found) != 1:
        raise TypeError(
            f"{caller} needs the state of one prox-linear method, and found {len(found)} in a "
            f"{type(state).__name__}; pass what update returned"
        )
    return found[0]
