"""The optimizer with nothing to tune."""

from __future__ import annotations

from typing import Any

import optax

from proxlin.algebra import Number
from proxlin.batch import Share
from proxlin.linearize import Model
from proxlin.losses import Loss
from proxlin.metrics import Kronecker
from proxlin.objective import Sum
from proxlin.optimizer.methods import prox_linear
from proxlin.steps import StochasticTrustRegion
from proxlin.subproblems import primal_quadratic


def auto(
    model: Model | Sum,
    loss: Loss | None = None,
    *,
    steps: int | None = None,
    weight_decay: Number = 0.0,
    mask: Any = None,
    chunk_size: int | None = None,
    state_dtype: Any = None,
    has_aux: bool = False,
    init_aux: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Prox-linear steps with nothing to tune.

    :func:`prox_linear` on the quadratic primal, with

    - curvature from an eighth of the outputs of the batch, at least 32, and two conjugate-gradient
      steps;
    - the proximity term in a metric that is learned from gradients and measures each layer in units
      of its own size, :class:`proxlin.Kronecker`, and around 0.9 times the last step;
    - gamma and the stepsize by :class:`proxlin.StochasticTrustRegion`: gamma starts small, grows
      until curvature or the next batch shows that steps are long enough, and adapts from then on;
    - an average of the parameters to evaluate with, :func:`proxlin.eval_params`.

    There is no learning rate, nor any other number to inject. Each piece is an option of
    :func:`prox_linear`.

    Args:
        model: as in :func:`prox_linear`.
        loss: as in :func:`prox_linear`; it needs a Hessian factor.
        steps: the number of steps of the training, if it is known: steps then shrink to nothing
            over the second half of it.
        weight_decay: as in :func:`prox_linear`.
        mask: as in :func:`prox_linear`.
        chunk_size: as in :func:`proxlin.value_and_direction`.
        state_dtype: as in :func:`prox_linear`; ``jnp.bfloat16`` spares a copy of the parameters.
        has_aux: whether the model returns ``(outputs, aux)``.
        init_aux: as in :func:`prox_linear`.

    Returns:
        An Optax transformation with a :class:`proxlin.ProxLinearState`.

    Raises:
        TypeError, ValueError: as :func:`prox_linear`.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from proxlin import Logistic
        >>> opt = auto(lambda w, x: x @ w, Logistic())
        >>> w, x, y = jnp.zeros((2, 2)), jnp.eye(2), jnp.array([0, 1])
        >>> state = opt.init(w)
        >>> for _ in range(30):
        ...     updates, state = opt.update(None, state, w, inputs=x, targets=y)
        ...     w = optax.apply_updates(w, updates)
        >>> bool(state.info.value < 0.1)
        True
    """
    return prox_linear(
        model,
        loss,
        step=StochasticTrustRegion(steps=steps),
        metric=Kronecker(),
        momentum=0.9,
        subproblem=primal_quadratic,
        curvature_size=Share(1 / 8, least=32),
        chunk_size=chunk_size,
        weight_decay=weight_decay,
        mask=mask,
        average=True,
        state_dtype=state_dtype,
        has_aux=has_aux,
        init_aux=init_aux,
    )
