r"""The proximity term, which keeps a direction short.

.. math:: r(d) = \tfrac{1}{2 \gamma} \|d - \mu P^{-1} P_{\text{last}} d_{\text{last}}\|_P^2
    + \rho(w - d)

Gamma, the metric :math:`P`, the momentum :math:`\mu` and the regularizer :math:`\rho` appear in
this file, and nowhere else in a formula. If the metric does not change, momentum is that of SPRING
(Goldshlager et al., 2024); if it does, the last step is carried over as a covector.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from proxlin.algebra import (
    Params,
    Scalar,
    Vector,
    add_scaled,
    cast_like,
    covector,
    dot,
    plain,
    scale,
)
from proxlin.checks import require
from proxlin.metrics import DiagonalMetric, Inverse, Metric, Space
from proxlin.proximity.state import ProximityState, has_momentum
from proxlin.regularizers import Regularizer


@dataclasses.dataclass(frozen=True)
class Proximity:
    r"""The strongly convex :math:`r(d)` at parameters :math:`w`, up to a constant.

    .. math:: r(d) = \tfrac{1}{2 \gamma} \|d\|_P^2 - \langle s, d \rangle + \rho(w - d), \qquad
        s = \tfrac{\mu}{\gamma} P_{\text{last}} d_{\text{last}}

    Attributes:
        gamma: the regularization.
        params: :math:`w`, in the dtype of the algebra.
        regularizer: :math:`\rho`.
        inverse: :math:`P^{-1}`; None for the identity.
        scales: :math:`S`, if the metric is diagonal, :math:`P = S^2`; else None.
        last: :math:`P_{\text{last}} d_{\text{last}}`; None without momentum.
        last_weight: :math:`\mu / \gamma`.

    With a metric or momentum there is no regularizer: its prox would have to be in the metric.
    """

    gamma: Scalar
    params: Params
    regularizer: Regularizer
    inverse: Inverse | None = None
    scales: Params | None = None
    last: Params | None = None
    last_weight: Scalar | float = 0.0

    @classmethod
    def of(
        cls,
        params: Params,
        grad: Params,
        gamma: Scalar,
        regularizer: Regularizer,
        metric: Metric,
        momentum: Any,
        state: ProximityState,
    ) -> Proximity:
        r"""The term for one step.

        Args:
            params: the parameters, in the dtype of the algebra.
            grad: the gradient of the objective there.
            gamma: the regularization.
            regularizer: :math:`\rho`.
            metric: :math:`P`.
            momentum: :math:`\mu`.
            state: the state, whose metric has learned from the gradient.
        """
        last, weight = None, jnp.zeros_like(gamma)
        if has_momentum(momentum):
            last = cast_like(state.momentum, grad)
            weight = jnp.asarray(momentum, gamma.dtype) / gamma
        inverse = scales = None
        if not metric.is_identity:
            term = _linear_term(grad, last, weight)
            here = metric.at(state.metric, params)
            inverse = metric.inverse(here, term, state.seen - 1)
        if isinstance(metric, DiagonalMetric):
            scales = cast_like(metric.scales(state.metric, state.seen - 1), grad)
        return cls(
            gamma=gamma,
            params=params,
            regularizer=regularizer,
            inverse=inverse,
            scales=scales,
            last=last,
            last_weight=weight,
        )

    @property
    def momentum(self) -> Params | None:
        r""":math:`s`, the momentum of the linear term; None without momentum."""
        return None if self.last is None else scale(self.last_weight, self.last)

    @property
    def has_momentum(self) -> bool:
        """Whether the term leans on the last step."""
        return self.last is not None

    @property
    def smooth(self) -> bool:
        """Whether there is no regularizer, so the subproblem is smooth."""
        return self.regularizer.is_zero

    @property
    def strength(self) -> Scalar:
        r""":math:`1 / \gamma + \lambda`, the modulus of strong convexity of :math:`r`."""
        return 1 / self.gamma + self.regularizer.modulus

    def with_finite_gamma(self, message: str) -> tuple[Proximity, Bool[Array, ""]]:
        """The term with a finite gamma, which duals need, and whether that is the given one.

        Args:
            message: why, and what to use for an infinite one.

        Raises:
            ValueError: for an infinite gamma, if it is known. Under ``jit`` the caller reports it,
                and a finite number keeps the result from being non-finite.
        """
        finite = require(jnp.isfinite, lambda g: f"gamma={g}: {message}", self.gamma)
        gamma = jnp.where(finite, self.gamma, jnp.ones_like(self.gamma))
        return dataclasses.replace(self, gamma=gamma), finite

    def linear_term(self, grad: Params) -> Params:
        r""":math:`\nabla h + s`, the linear term of a subproblem with a model of this gradient."""
        return _linear_term(grad, self.last, self.last_weight)

    @property
    def space(self) -> Space:
        """Parameter space with the metric."""
        return Space(self.inverse, self.scales)

    def precondition(self, y: Params) -> Vector:
        r""":math:`P^{-1} y`, a vector of the space with the metric."""
        return self.space.precondition(y)

    def square(self, d: Vector) -> Scalar:
        r""":math:`\|d\|_P^2 / \gamma`."""
        return dot(d, d) / self.gamma

    def slope_along(self, d: Vector, grad: Params) -> Callable[[Scalar], Scalar]:
        r"""The derivative of :math:`r(\eta d)` in :math:`\eta`, without a regularizer."""
        square = self.square(d)
        if self.last is None:
            return lambda eta: eta * square
        # The slope of the linear term is known from :meth:`kept_slope`, that of the gradient, too.
        momentum = dot(plain(d), self.linear_term(grad)) - dot(plain(d), grad)
        return lambda eta: eta * square - momentum

    def value(self, d: Vector) -> Scalar:
        r""":math:`r(d)`."""
        square = dot(d, d) / (2 * self.gamma)
        if self.last is not None:
            square = square - self.last_weight * dot(self.last, plain(d))
        return square + self.regularizer.value(add_scaled(self.params, -1, plain(d)))

    @property
    def penalty(self) -> Scalar:
        r""":math:`\rho(w)`."""
        return self.regularizer.value(self.params).astype(self.gamma.dtype)

    def penalty_decrease(self, d: Vector) -> Scalar:
        r""":math:`\rho(w) - \rho(w - d)`."""
        after = self.regularizer.value(add_scaled(self.params, -1, plain(d)))
        return self.penalty - after

    def grad(self, d: Params) -> Params:
        r""":math:`\nabla r(d) = d / \gamma`, if there is no regularizer, metric or momentum."""
        return scale(1 / self.gamma, d)

    def conjugate(self, u: Params) -> Scalar:
        r""":math:`r^*(u) = \sup_d \langle u, d \rangle - r(d)`, if there is no momentum."""
        d = self.conjugate_grad(u)
        return jnp.where(jnp.isinf(self.gamma), jnp.inf, dot(u, d) - self.value(d))

    def conjugate_grad(self, u: Vector) -> Vector:
        r""":math:`\nabla r^*(u - s)`, the direction for :math:`u = J^* \alpha + s`."""
        return self.arc(jnp.ones_like(self.gamma), u)

    def arc(self, eta: Scalar, u: Vector) -> Vector:
        r""":math:`w - \operatorname{prox}_{\eta \gamma \rho}(w - \eta \gamma u)`.

        In a metric, :math:`u` is a :class:`proxlin.extend.MetricVector`.
        """
        step = eta * self.gamma
        return self.regularizer.prox_displacement(self.params, scale(step, u), step)

    def prox(self, x: Params, stepsize: Scalar) -> Params:
        r""":math:`\operatorname{argmin}_d r(d) + \tfrac{1}{2 t} \|d - x\|^2`."""
        shrink = 1 / (1 + stepsize / self.gamma)  # gamma may be infinite
        return self.regularizer.prox_displacement(self.params, scale(shrink, x), shrink * stepsize)

    def predicted(self, d: Vector, grad: Params, curvature: Scalar) -> Scalar:
        r"""The decrease that the quadratic model and the regularizer promise.

        .. math:: \langle d, \nabla h + s \rangle - \tfrac12 \langle d, (G + P / \gamma) d \rangle
            + \rho(w) - \rho(w - d)

        Args:
            d: a direction.
            grad: :math:`\nabla h`.
            curvature: :math:`\langle d, G d \rangle`.
        """
        slope = dot(plain(d), self.linear_term(grad))
        return slope - 0.5 * (curvature + self.square(d)) + self.penalty_decrease(d)

    def kept_slope(self, d: Vector, grad: Params) -> Scalar:
        r"""The slope of ``d``, relative to that of the gradient step :math:`\gamma P^{-1} y`.

        :math:`\langle d, y \rangle / (\gamma \langle y, P^{-1} y \rangle)` for the linear term
        :math:`y`: one if curvature has no effect, and less the more effect it has.
        """
        # The subproblem was solved with this term: its product with P^-1 is there already.
        term = self.precondition(self.linear_term(grad))
        whole = self.gamma * dot(term, term)
        vanishes = whole == 0
        kept = dot(plain(d), covector(term)) / jnp.where(vanishes, 1, whole)
        return jnp.where(vanishes, 1, kept)

    def descends(self, d: Vector, grad: Params) -> Bool[Array, ""]:
        """Whether the objective does not rise along d, linearized except for its regularizer.

        With momentum, the pull of the last step counts as part of the objective: a direction may
        go uphill on a batch whose gradient is mostly noise.
        """
        slope = dot(plain(d), self.linear_term(grad))
        # Near a minimum the two terms cancel, up to the rounding of the regularizer.
        rounding = 10 * jnp.finfo(slope.dtype).eps * (jnp.abs(self.penalty) + jnp.abs(slope))
        return slope + self.penalty_decrease(d) >= (0 if self.smooth else -rounding)


def _linear_term(grad: Params, last: Params | None, weight: Scalar | float) -> Params:
    return grad if last is None else add_scaled(grad, weight, last)
