"""The last step in words, and a warning if it was rejected."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np

from proxlin.optimizer.evaluation import method_state
from proxlin.optimizer.transformation import ProxLinearState
from proxlin.solvers import Status
from proxlin.steps.stochastic_trust_region import SlopeState

_WHY = {
    Status.BAD_VALUE: (
        "A value is not allowed: a label outside 0..k-1, another target that the loss does not "
        "allow, a weight that is negative, weights that are all zero, gamma that is not positive, "
        "or examples that depend on each other where independent=True says that they do not. Make "
        "the same call of update without jit: it raises an error that names the value."
    ),
    Status.ASCENT: (
        "What the solver returned is not a descent direction. Use a smaller gamma or float64; in a "
        "loss, subproblem or solver of your own, look for a wrong sign (proxlin.check_loss)."
    ),
}
_INEXACT = (
    "The direction is not exactly the one requested (INEXACT). That is harmless if it is rare; if "
    "not, use a smaller gamma, float64 or another solver."
)
_FLAT = (
    "The gradient of the batch is zero. Check that the outputs depend on the parameters, that "
    "units are not dead or saturated, and that the loss is not at its minimum already."
)


class _Numbers(NamedTuple):
    """What the explanation reads from a state."""

    taken: Any
    rejected: Any
    gamma: Any
    eta: Any
    value: Any
    slope: Any
    status: Any
    shrink: Any


def explain(state: Any) -> str:
    r"""What the last step did, in words; if it was rejected, why, and what to do.

    A rejected step changes no parameters and raises no error under ``jit``. Call this outside of
    ``jit`` if the loss does not move, or :func:`warn_if_rejected` inside of it.

    Args:
        state: the state of a prox-linear method, also inside of ``optax.chain`` and its like.

    Returns:
        A few sentences.

    Raises:
        TypeError: if there is no state of a prox-linear method, under ``jit``, or for a batch of
            states.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from proxlin import Logistic, auto
        >>> opt = auto(lambda w, x: x @ w, Logistic())
        >>> w, x, labels = jnp.zeros((2, 3)), jnp.eye(2), jnp.array([2, 3])
        >>> _, state = jax.jit(opt.update)(None, opt.init(w), w, inputs=x, targets=labels)
        >>> print(explain(state))
        The last step was rejected (BAD_VALUE); parameters, aux and the average are unchanged. ...
    """
    numbers = _numbers(method_state(state, "explain"))
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(numbers)):
        raise TypeError(
            "explain reads numbers, which are not known under jit: call it on the state that the "
            "compiled function returns, or warn_if_rejected(state) inside"
        )
    if any(np.ndim(x) for x in jax.tree.leaves(numbers)):
        raise TypeError(
            "explain takes one state, and this is a batch of them: pick one, such as "
            "jax.tree.map(lambda x: x[0], state)"
        )
    return _text(jax.device_get(numbers))


def warn_if_rejected(state: Any) -> None:
    r"""Warns if the last step was rejected, and says why; works under ``jit``.

    Call it in the training step, on the state that ``update`` returned. It costs a transfer of some
    numbers to the host at each step.

    Args:
        state: as in :func:`explain`.

    Raises:
        TypeError: if there is no state of a prox-linear method.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from proxlin import Squared, auto
        >>> opt = auto(lambda w, x: x @ w, Squared())
        >>> @jax.jit
        ... def train_step(params, state, x, y):
        ...     updates, state = opt.update(None, state, params, inputs=x, targets=y)
        ...     warn_if_rejected(state)
        ...     return params + updates, state
    """
    jax.debug.callback(_warn, _numbers(method_state(state, "warn_if_rejected")))


def _numbers(own: ProxLinearState) -> _Numbers:
    """The numbers, also out of the boxes that some libraries put them in."""
    given = {
        "taken": own.taken,
        "rejected": own.rejected,
        "gamma": own.gamma,
        "eta": own.eta,
        "value": own.info.value,
        "slope": own.info.slope,
        "status": own.info.cost.status,
        "shrink": own.rule.last.shrink if isinstance(own.rule, SlopeState) else 1.0,
    }
    return _Numbers(**{name: jax.tree.leaves(x)[0] for name, x in given.items()})


def _warn(numbers: _Numbers) -> None:
    if _was_rejected(numbers):
        warnings.warn(f"A step was rejected. {_reason(numbers)}", RuntimeWarning, stacklevel=2)


def _was_rejected(numbers: _Numbers) -> bool:
    """Whether the last step was; a stepsize of zero is also that of the end of a known length."""
    return bool(numbers.rejected > 0 and numbers.eta == 0 and numbers.shrink > 0)


def _text(numbers: _Numbers) -> str:
    taken, rejected = int(numbers.taken), int(numbers.rejected)
    if not taken and not rejected:
        return "No step yet: this is the state that init returned."
    so_far = f"{taken} taken and {rejected} rejected so far; gamma is {float(numbers.gamma):.3g}."
    if _was_rejected(numbers):
        status = Status(int(numbers.status)).name
        return (
            f"The last step was rejected ({status}); parameters, aux and the average are "
            f"unchanged. {_reason(numbers)} Steps: {so_far}"
        )
    if numbers.shrink == 0:
        return (
            "The last step had no length: the number of steps that the method was told is over. "
            f"Give a larger one, or none. Steps: {so_far}"
        )
    more = f" {_INEXACT}" if numbers.status == Status.INEXACT else ""
    more += f" {_FLAT}" if numbers.slope == 0 else ""
    return (
        f"The last step was taken, with stepsize {float(numbers.eta):.3g}; before it the loss of "
        f"its batch was {float(numbers.value):.4g}.{more} Steps: {so_far}"
    )


def _reason(numbers: _Numbers) -> str:
    """Why a step was rejected, and what to do."""
    status = Status(int(numbers.status))
    if status in _WHY:
        return _WHY[status]
    if not math.isfinite(numbers.value):
        return (
            f"The loss of the batch is {float(numbers.value)}: look for numbers that are not "
            "finite in the inputs, targets and args of this batch, then for an overflow in the "
            'model (jax.config.update("jax_debug_nans", True) finds it).'
        )
    if status == Status.NON_FINITE:
        return (
            "The loss is finite, but its gradient or the direction is not. If a smaller gamma or "
            "scaled inputs do not help, look in the model for roots, norms and divisions at zero, "
            "whose derivatives are not finite."
        )
    if numbers.slope == 0:
        return _FLAT
    return (
        "The direction is fine, but the step rule found no stepsize that lowers the loss of the "
        "batch as it requires. If that happens now and then, it is nothing; at every step it is "
        "rounding near a minimum, a gamma that is too large, or a model that is random beyond the "
        "key in args."
    )
