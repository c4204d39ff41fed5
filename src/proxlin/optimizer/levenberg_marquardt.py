r"""``levenberg_marquardt``: exact steps to many digits."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import optax

from proxlin.algebra import Number
from proxlin.linearize import Model
from proxlin.losses import Loss, Squared
from proxlin.metrics import Marquardt
from proxlin.objective import Sum
from proxlin.optimizer.methods import prox_linear
from proxlin.solvers import QR, Cholesky, NormalSystem
from proxlin.solvers.direct import DirectSolver, Factorized
from proxlin.steps import TrustRegion
from proxlin.subproblems import primal_quadratic


def levenberg_marquardt(
    model: Model | Sum,
    loss: Loss | None = None,
    *,
    gamma: Number = 1.0,
    acceleration: Number | None = 0.75,
    solver: Any = None,
    independent: bool = True,
    has_aux: bool = False,
    init_aux: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""The Levenberg-Marquardt method for networks, with geodesic acceleration.

    .. math:: (J^\top H J + D / \gamma)\, d = \nabla h, \qquad w \leftarrow w - d - e

    For residuals that can vanish, as in physics-informed networks, regression without noise and
    curve fits: there it reaches many digits, where first-order methods stop at a few. It is
    :func:`prox_linear` with

    - the subproblem solved exactly, by the smaller of the two Gram matrices in double precision,
      and by :class:`proxlin.QR` in single precision;
    - :class:`proxlin.Marquardt`'s metric :math:`D`, the diagonal of the Gauss-Newton matrix;
    - the correction :math:`e` of second order, and gamma as in Nielsen's rule:
      :class:`proxlin.TrustRegion` with ``nielsen`` and ``acceleration``.

    The loss need not be squared: :math:`H` is its Hessian. Keep the same examples at all steps, or
    change them rarely, and use double precision (``jax.config.update("jax_enable_x64", True)``).
    For a function of parameters alone, :func:`proxlin.least_squares` also decides when to stop.

    Args:
        model: as in :func:`prox_linear`.
        loss: a convex loss with a Hessian; None is :class:`proxlin.Squared`, or the losses of a
            sum.
        gamma: the first gamma, relative to the curvature of the batch; it adapts.
        acceleration: the largest length of :math:`e` relative to that of :math:`d`; None for steps
            without it.
        solver: another linear solver, such as ``CG(100)`` where no matrix fits in memory.
        independent: whether examples do not influence each other, as in all networks without
            BatchNorm; each row of the Jacobian then comes from one example. This is checked, and a
            step that fails the check is rejected.
        has_aux: whether the model returns ``(outputs, aux)``.
        init_aux: as in :func:`prox_linear`.

    Returns:
        An Optax transformation with a :class:`proxlin.ProxLinearState`.

    Raises:
        TypeError, ValueError: as :func:`prox_linear`.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> model = lambda w, x: jnp.exp(-w["rate"] * x) * w["height"]
        >>> x = jnp.linspace(0.0, 1.0, 9)[:, None]
        >>> y = 3.0 * jnp.exp(-2.0 * x)
        >>> opt = levenberg_marquardt(model)
        >>> w = {"rate": jnp.asarray(0.5), "height": jnp.asarray(1.0)}
        >>> state, update = opt.init(w), jax.jit(opt.update)
        >>> for _ in range(15):
        ...     updates, state = update(None, state, w, inputs=x, targets=y)
        ...     w = optax.apply_updates(w, updates)
        >>> f"{w['rate']:.4f} {w['height']:.4f}"
        '2.0000 3.0000'
    """
    if loss is None and not isinstance(model, Sum):
        loss = Squared()
    return prox_linear(
        model,
        loss,
        step=TrustRegion(gamma=gamma, grow=3.0, nielsen=True, acceleration=acceleration),
        metric=Marquardt(independent=independent),
        subproblem=primal_quadratic,  # its solution comes with J d, which the rule asks for twice
        solver=Direct(independent=independent) if solver is None else solver,
        has_aux=has_aux,
        init_aux=init_aux,
    )


@dataclasses.dataclass(frozen=True)
class Direct(DirectSolver):
    """Cholesky in double precision, QR in single precision, where its accuracy is needed.

    Attributes:
        independent: as in :class:`proxlin.Cholesky`.
    """

    independent: bool = True

    def factorize(self, system: NormalSystem, on_x: bool) -> Factorized:
        """Factorizes as its precision demands."""
        double = jnp.finfo(system.shift.dtype).bits >= 64
        kind: Any = Cholesky if double and self.independent else QR
        return kind(independent=self.independent).factorize(system, on_x)
