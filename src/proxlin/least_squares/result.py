r"""What ``least_squares`` returns."""

from __future__ import annotations

import enum
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from proxlin.algebra import Params, Scalar


class Ending(enum.IntEnum):
    """Why ``least_squares`` has ended.

    GRADIENT: no column of the Jacobian has an angle with the residuals that differs from a right
    one, up to ``gtol``; or the residuals are zero.

    STEP: steps are shorter than ``xtol`` allows, or no longer step decreases the cost.

    DECREASE: the cost cannot decrease by more than ``ftol``, or than rounding.

    MAX_STEPS: ``max_steps`` were taken.

    NON_FINITE: residuals or their derivatives are not finite at the first parameters.

    STALLED: no usable step was found, though the residuals are finite: their derivatives may be
    wrong.
    """

    RUNNING = 0
    GRADIENT = 1
    STEP = 2
    DECREASE = 3
    MAX_STEPS = 4
    NON_FINITE = 5
    STALLED = 6


_WORDS = {
    Ending.RUNNING: "still running",
    Ending.GRADIENT: "converged: the gradient is zero, up to gtol",
    Ending.STEP: "converged: steps are shorter than xtol allows",
    Ending.DECREASE: "converged: the cost decreases no more, up to ftol or rounding",
    Ending.MAX_STEPS: "not converged: max_steps reached; go on from params, or allow more",
    Ending.NON_FINITE: "failed: residuals or derivatives are not finite at the first parameters",
    Ending.STALLED: "failed: no usable step was found; look for derivatives that are wrong",
}


class History(NamedTuple):
    """Every step, those that were rejected among them; NaN after the last one.

    Attributes:
        cost: before the step.
        gradient: the largest cosine between the residuals and a column of the Jacobian.
        gamma: the regularization.
        length: of the step, in the metric, relative to the parameters.
        accepted: one if it was taken, else zero.
    """

    cost: Float[Array, "*n steps"]
    gradient: Float[Array, "*n steps"]
    gamma: Float[Array, "*n steps"]
    length: Float[Array, "*n steps"]
    accepted: Float[Array, "*n steps"]


class LeastSquaresResult(NamedTuple):
    r"""The result of :func:`proxlin.least_squares`; a pytree of arrays.

    Attributes:
        params: the parameters.
        status: an :class:`proxlin.least_squares.Ending`; :attr:`message` says it in words.
        cost: :math:`\tfrac12 \|r\|^2`.
        residuals: :math:`r` at the parameters.
        gradient: :math:`J^\top r`; zero where a bound is active.
        covariance: :math:`\hat\sigma^2 (J^\top J)^{-1}` with :math:`\hat\sigma^2 = \|r\|^2 / (N -
            p)`, in the order of ``jax.flatten_util.ravel_pytree``. Infinite for parameters that
            the data do not determine; zero where a bound is active.
        steps: steps tried, each with a Jacobian.
        rejected: how many of them were rejected.
        evaluations: evaluations of the residuals alone.
        history: every step.
    """

    params: Params
    status: Int[Array, "*n"]
    cost: Float[Array, "*n"]
    residuals: PyTree[Array]
    gradient: Params
    covariance: Float[Array, "*n p p"]
    steps: Int[Array, "*n"]
    rejected: Int[Array, "*n"]
    evaluations: Int[Array, "*n"]
    history: History

    @property
    def converged(self) -> Bool[Array, "*n"]:
        """Whether a stopping rule has ended it."""
        return (self.status >= Ending.GRADIENT) & (self.status <= Ending.DECREASE)

    @property
    def message(self) -> str | list[str]:
        """The status in words; a list of them for several problems."""
        words = [_WORDS[Ending(int(status))] for status in np.ravel(np.asarray(self.status))]
        return words if np.ndim(self.status) else words[0]


def covariance(
    a: Float[Array, "n p"], square: Scalar, free: Bool[Array, " p"]
) -> Float[Array, "p p"]:
    r"""The covariance of the free parameters, from columns of length one.

    Args:
        a: the Jacobian, up to a factor.
        square: the squared norm of the residuals, up to the square of the same factor.
        free: which parameters count.
    """
    n, p = a.shape
    eps = jnp.finfo(a.dtype).eps
    degrees = n - jnp.sum(free.astype(a.dtype))
    lengths = jnp.sqrt(jnp.sum(a**2, axis=0))
    unit = jnp.where(lengths > 0, lengths, 1)
    padded = jnp.concatenate([a / unit[None], jnp.zeros((max(0, p - n), p), a.dtype)])
    _, sigma, vt = jnp.linalg.svd(jnp.linalg.qr(padded, mode="r"))
    known = sigma > (n + p) * eps * jnp.maximum(sigma[0], eps)
    root = jnp.where(known, 1 / jnp.where(known, sigma, 1), 0)[:, None] * vt / unit[None]
    # What lies in the null space by more than rounding is not determined.
    lost = jnp.sum(jnp.where(known[:, None], 0, vt**2), axis=0) > eps
    unknown = (lost & free) | (degrees <= 0)
    variance = square / jnp.maximum(degrees, 1)
    matrix = variance * jnp.matmul(root.T, root, precision="highest")
    matrix = jnp.where(unknown[:, None] | unknown[None], jnp.inf, matrix)
    return jnp.where(free[:, None] & free[None], matrix, 0)
