r"""The optimizers: compositions of a direction and a step rule.

Their signatures are spelled out, and no default is a function, for ``optax.inject_hyperparams``,
which does not see ``**options`` and treats functions as schedules. This is why ``subproblem=None``.
"""

from __future__ import annotations

from typing import Any

import optax

from proxlin.algebra import Number
from proxlin.batch import Size
from proxlin.direction import Oracle
from proxlin.linearize import Model
from proxlin.losses import Loss
from proxlin.metrics import Euclidean, Metric
from proxlin.objective import Sum
from proxlin.optimizer.transformation import transformation
from proxlin.regularizers import Regularizer, Zero
from proxlin.steps import Armijo, Fixed, ScalarOrSchedule, StepRule
from proxlin.subproblems import Subproblem, dual_quadratic


def prox_linear(
    model: Model | Sum,
    loss: Loss | None = None,
    *,
    step: StepRule = Armijo(beta=0.1),
    metric: Metric = Euclidean(),
    momentum: Number = 0.0,
    subproblem: Subproblem | None = None,
    solver: Any = None,
    regularizer: Regularizer = Zero(),
    curvature_size: Size | None = None,
    chunk_size: int | None = None,
    weight_decay: Number = 0.0,
    mask: Any = None,
    average: bool = False,
    state_dtype: Any = None,
    has_aux: bool = False,
    init_aux: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Prox-linear steps :math:`w - \eta\, d(\gamma)` with a step rule.

    ``update`` takes no gradient: the incoming updates are None, and the batch comes by keyword,

        ``updates, state = opt.update(None, state, params, inputs=x, targets=y)``

    with ``args=(...)`` for what the model takes besides its inputs and ``weights`` for the
    examples. It returns :math:`-\eta d`, to be added by ``optax.apply_updates``. A step is
    rejected (zero updates, ``state.rejected`` one higher, ``state.aux`` and the average unchanged)
    if anything is not finite, a value is not allowed, or the rule does not accept the step.

    To set numbers of the rule between steps, inject them into a function of them:
    ``optax.inject_hyperparams(lambda gamma: prox_linear(model, loss, step=Armijo(gamma)))(1.0)``.

    Args:
        model: ``model(params, inputs, *args) -> outputs``, or ``(outputs, aux)`` with ``has_aux``;
            or a :class:`proxlin.Sum` of terms, with tuples of inputs and targets.
        loss: a convex loss; None for a sum, whose terms have their own.
        step: a step rule. The default requires more decrease than the 1e-4 of the paper: on
            saturated losses, as with unscaled inputs, a step that realizes almost nothing of its
            slope can leave a network that no longer learns.
        metric: the metric :math:`P` of the proximity term :math:`\tfrac{1}{2 \gamma} \langle d, P d
            \rangle`: :class:`proxlin.Euclidean`, or :class:`proxlin.Diagonal` or
            :class:`proxlin.Kronecker`, which learn from the gradients of previous steps.
        momentum: :math:`\mu` of a proximity term :math:`\tfrac{1}{2 \gamma} \|d - \mu P^{-1}
            P_{\text{last}} d_{\text{last}}\|_P^2` around the last step, carried over as a covector
            if the metric has changed (SPRING if it has not). A direction then descends on the
            model together with this term; on the batch alone it may go uphill. After a step that
            was rejected on a finite gradient, the next one is without momentum. For heavy-ball
            momentum outside the subproblem use :func:`direction_as_gradient` with
            ``optax.sgd(1.0, momentum=...)``.
        subproblem: as in :func:`proxlin.value_and_direction`; None is
            :data:`proxlin.dual_quadratic`.
        solver: as in :func:`proxlin.value_and_direction`.
        regularizer: as in :func:`proxlin.value_and_direction`.
        curvature_size: as in :func:`proxlin.value_and_direction`.
        chunk_size: as in :func:`proxlin.value_and_direction`.
        weight_decay: :math:`\lambda` of :math:`\tfrac{\lambda}{2} \|w\|^2`, which is added to the
            objective. So it means the same for any gamma and metric; unlike the decay of AdamW
            it is not a factor of each step.
        mask: which parameters decay, as in ``optax.adamw``: a tree of booleans, or a function
            that makes one of the parameters; None for all.
        average: whether to keep an average of the parameters, for :func:`proxlin.eval_params`.
        state_dtype: what the metric, the momentum and the state of the rule are stored in between
            steps, such as ``jnp.bfloat16``; all computations are in the dtype of the algebra. None
            is that dtype.
        has_aux: whether the model returns ``(outputs, aux)``.
        init_aux: with ``has_aux``, the first ``state.aux``, of the structure the model returns.

    Returns:
        An Optax transformation with a :class:`proxlin.ProxLinearState`.

    Raises:
        TypeError, ValueError: for options that are not allowed.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from proxlin import Squared
        >>> opt = prox_linear(lambda w, x: x @ w, Squared())
        >>> w, x, y = jnp.zeros((2, 1)), jnp.eye(2), jnp.ones((2, 1))
        >>> state = opt.init(w)
        >>> for _ in range(20):
        ...     updates, state = opt.update(None, state, w, inputs=x, targets=y)
        ...     w = optax.apply_updates(w, updates)
        >>> bool(jnp.allclose(w, 1, atol=1e-3))
        True
    """
    if not isinstance(step, StepRule):
        raise TypeError(f"step must be a step rule such as Armijo() or Fixed(), not {step!r}")
    if not hasattr(step, "gamma"):
        raise TypeError(f"the step rule {step!r} has no gamma; add the field gamma: float = 1.0")
    oracle = Oracle(
        model=model,
        loss=loss,
        metric=metric,
        momentum=momentum,
        subproblem=subproblem or dual_quadratic,
        solver=solver,
        regularizer=regularizer,
        curvature_size=curvature_size,
        chunk_size=chunk_size,
        weight_decay=weight_decay,
        mask=mask,
        has_aux=has_aux,
    )
    return transformation(oracle, step, optax.scale(-1.0), init_aux, average, state_dtype)


def direction_as_gradient(
    model: Model | Sum,
    loss: Loss | None = None,
    optimizer: optax.GradientTransformation | None = None,
    *,
    gamma: ScalarOrSchedule = 1.0,
    subproblem: Subproblem | None = None,
    solver: Any = None,
    regularizer: Regularizer = Zero(),
    curvature_size: Size | None = None,
    chunk_size: int | None = None,
    has_aux: bool = False,
    init_aux: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""The prox-linear direction in place of the gradient, for any Optax optimizer.

    Either ``optax.chain(direction_as_gradient(model, loss), optax.adam(1e-3))``, or with the
    optimizer inside, ``direction_as_gradient(model, loss, optax.adam(1e-3))``: then a rejected
    step leaves the state of that optimizer unchanged, which a chain cannot do. Gamma can be
    injected as for :func:`spl`.

    Args:
        model: as in :func:`prox_linear`.
        loss: as in :func:`prox_linear`.
        optimizer: what to do with the direction; None returns :math:`+d`.
        gamma: the regularization, a number or an Optax schedule.
        subproblem: as in :func:`prox_linear`.
        solver: as in :func:`prox_linear`.
        regularizer: as in :func:`prox_linear`.
        curvature_size: as in :func:`prox_linear`.
        chunk_size: as in :func:`prox_linear`.
        has_aux: as in :func:`prox_linear`.
        init_aux: as in :func:`prox_linear`.

    Returns:
        An Optax transformation with a :class:`proxlin.ProxLinearState`.

    Raises:
        TypeError, ValueError: for options that are not allowed.

    Example:
        >>> import optax
        >>> from proxlin import Squared
        >>> opt = direction_as_gradient(lambda w, x: x @ w, Squared(), optax.adam(1e-3))
    """
    oracle = Oracle(
        model=model,
        loss=loss,
        subproblem=subproblem or dual_quadratic,
        solver=solver,
        regularizer=regularizer,
        curvature_size=curvature_size,
        chunk_size=chunk_size,
        has_aux=has_aux,
    )
    return transformation(oracle, Fixed(gamma), optimizer or optax.identity(), init_aux)


def spl(
    model: Model | Sum,
    loss: Loss | None = None,
    gamma: ScalarOrSchedule = 1.0,
    *,
    subproblem: Subproblem | None = None,
    solver: Any = None,
    regularizer: Regularizer = Zero(),
    curvature_size: Size | None = None,
    chunk_size: int | None = None,
    has_aux: bool = False,
    init_aux: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""The paper's stochastic prox-linear method, :math:`w - d(\gamma)`.

    :func:`prox_linear` with :class:`proxlin.Fixed`. To set gamma between steps, inject it:
    ``optax.inject_hyperparams(spl, static_args=("model", "loss"))(model, loss, gamma=1.0)``.
    Options that are functions or sizes (``subproblem``, ``curvature_size``, ``chunk_size``) cannot
    be injected, and belong in its ``static_args`` too.
    """
    return prox_linear(
        model,
        loss,
        step=Fixed(gamma=gamma),
        init_aux=init_aux,
        subproblem=subproblem,
        solver=solver,
        regularizer=regularizer,
        curvature_size=curvature_size,
        chunk_size=chunk_size,
        has_aux=has_aux,
    )


def armijo_spl(
    model: Model | Sum,
    loss: Loss | None = None,
    gamma: ScalarOrSchedule = 1.0,
    *,
    subproblem: Subproblem | None = None,
    solver: Any = None,
    regularizer: Regularizer = Zero(),
    curvature_size: Size | None = None,
    chunk_size: int | None = None,
    has_aux: bool = False,
    init_aux: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""The paper's Armijo SPL, :math:`w - \eta\, d(\gamma)` with :math:`\eta` by backtracking.

    :func:`prox_linear` with :class:`proxlin.Armijo` and the constants of the paper. Gamma can be
    injected as for :func:`spl`.
    """
    return prox_linear(
        model,
        loss,
        step=Armijo(gamma=gamma),
        init_aux=init_aux,
        subproblem=subproblem,
        solver=solver,
        regularizer=regularizer,
        curvature_size=curvature_size,
        chunk_size=chunk_size,
        has_aux=has_aux,
    )
