"""Losses on the probability simplex with fewer than two derivatives: hinge and sparsemax."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from proxlin.losses.base import Factor, Outputs, OutputsLike, PerExample, per_example
from proxlin.losses.logistic import (
    ClassLoss,
    Targets,
    as_distribution,
    is_labels,
    simplex_indicator,
)


def project_simplex(z: Outputs) -> Outputs:
    r"""The nearest point of the probability simplex, :math:`\max(z - \tau, 0)`, for each example.

    Example:
        >>> import jax.numpy as jnp
        >>> project_simplex(jnp.array([[1.0, 0.5, -3.0]]))
        Array([[0.75, 0.25, 0.  ]], dtype=float32)
    """
    # Not optax.projections.projection_simplex: it divides floats by integers, which strict dtype
    # promotion forbids, and sums before it centers, which loses digits for large outputs.
    z = z - jnp.max(z, axis=-1, keepdims=True)
    descending = -jnp.sort(-z, axis=-1)
    sizes = jnp.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    sizes = jnp.broadcast_to(sizes, z.shape)
    excess = (jnp.cumsum(descending, axis=-1) - 1) / sizes
    size = jnp.sum(descending > excess, axis=-1, keepdims=True)
    return jnp.maximum(z - jnp.take_along_axis(excess, size - 1, axis=-1), 0)


@dataclasses.dataclass(frozen=True)
class Hinge(ClassLoss):
    r"""The multiclass hinge loss of Crammer and Singer.

    .. math:: \ell(f) = \max_j (f_j + 1 - y_j) - \langle f, y \rangle, \qquad
        \ell^*(\alpha) = \langle \alpha, y \rangle \text{ for } \alpha + y \text{ in the simplex}

    It has no useful second derivative, so only the convex subproblems accept it.
    Targets are integer labels ``(*n,)`` or one-hot rows ``(*n, k)``.

    Example:
        >>> import jax.numpy as jnp
        >>> Hinge().value(jnp.array([[2.0, 0.5]]), jnp.array([1]))
        Array([2.5], dtype=float32)
    """

    differentiable: ClassVar[bool] = False
    twice_differentiable: ClassVar[bool] = False

    def valid(self, outputs: OutputsLike, targets: Targets) -> Bool[Array, "*n"]:
        """Labels lie in 0..k-1, rows are one-hot."""
        valid = super().valid(outputs, targets)
        if is_labels(outputs, targets):
            return valid
        y = targets.astype(outputs.dtype)
        return valid & jnp.all((y == 0) | (y == 1), axis=-1)

    def allowed(self, outputs: OutputsLike) -> str:
        """Labels in 0..k-1, or one-hot rows."""
        return f"labels 0..{outputs.shape[-1] - 1}, or one-hot rows"

    def value(self, outputs: Outputs, targets: Targets) -> PerExample:
        r""":math:`\max_j (f_j + 1 - y_j) - \langle f, y \rangle`."""
        y = as_distribution(outputs, targets)
        return jnp.max(outputs + 1 - y, axis=-1) - jnp.sum(outputs * y, axis=-1)

    def grad(self, outputs: Outputs, targets: Targets) -> Outputs:
        r"""A subgradient: :math:`e_j - y` for the first :math:`j` that attains the maximum."""
        y = as_distribution(outputs, targets)
        most = jnp.argmax(outputs + 1 - y, axis=-1)
        return jax.nn.one_hot(most, outputs.shape[-1], dtype=outputs.dtype) - y

    def hessian_factor(self, outputs: Outputs, targets: Targets) -> Factor:
        """Raises: there is none."""
        raise TypeError(
            "Hinge has no Hessian factor, which the quadratic subproblems need; use "
            "subproblem=dual_convex with ProximalGradient()"
        )

    def conjugate(self, duals: Outputs, targets: Targets) -> PerExample:
        r""":math:`\langle \alpha, y \rangle` for :math:`\alpha + y` in the simplex."""
        y = as_distribution(duals, targets)
        return jnp.sum(duals * y, axis=-1) + simplex_indicator(duals + y)

    def prox_conjugate(
        self, z: Outputs, targets: Targets, stepsize: float | Float[Array, "..."]
    ) -> Outputs:
        r""":math:`P(z + y - \sigma y) - y` for the projection :math:`P` onto the simplex."""
        y = as_distribution(z, targets)
        return project_simplex(z + y - per_example(stepsize, z) * y) - y


@dataclasses.dataclass(frozen=True)
class Sparsemax(ClassLoss):
    r"""The sparsemax loss, whose predictions are projections onto the simplex.

    .. math:: \ell(f) = \max_{\mu \in \triangle} \langle f, \mu - y \rangle
        - \tfrac12 (\|\mu\|^2 - \|y\|^2), \qquad
        \ell^*(\alpha) = \tfrac12 (\|\alpha + y\|^2 - \|y\|^2)
        \text{ for } \alpha + y \in \triangle

    With :math:`\mu = P(f)`: :math:`\nabla \ell = \mu - y`, and the Hessian is the centering
    :math:`I - 1 1^\top / |S|` on the support :math:`S` of :math:`\mu`, a projector and so its own
    factor. Targets are integer labels ``(*n,)`` or distributions ``(*n, k)``.

    Example:
        >>> import jax.numpy as jnp
        >>> Sparsemax().grad(jnp.array([[3.0, 0.0]]), jnp.array([1]))
        Array([[ 1., -1.]], dtype=float32)
    """

    def value(self, outputs: Outputs, targets: Targets) -> PerExample:
        r""":math:`\langle f, \mu - y \rangle - \tfrac12 (\|\mu\|^2 - \|y\|^2)`."""
        y = as_distribution(outputs, targets)
        mu = project_simplex(outputs)
        # (mu - y)(f - (mu + y)/2): a difference of squares that does not cancel
        return jnp.sum((mu - y) * (outputs - 0.5 * (mu + y)), axis=-1)

    def grad(self, outputs: Outputs, targets: Targets) -> Outputs:
        r""":math:`P(f) - y`."""
        return project_simplex(outputs) - as_distribution(outputs, targets)

    def hvp(self, outputs: Outputs, targets: Targets, v: Outputs) -> Outputs:
        """Centering on the support."""
        return _center(outputs, v)

    def hessian_factor(self, outputs: Outputs, targets: Targets) -> Factor:
        """Centering on the support, which is its own factor."""
        center = lambda v: _center(outputs, v)
        return Factor(mv=center, rmv=center)

    def shifted_solve(
        self, outputs: Outputs, targets: Targets, shift: Float[Array, "*n 1"], rhs: Outputs
    ) -> Outputs:
        """A projector plus a multiple of the identity."""
        within = _center(outputs, rhs)
        return within / (1 + shift) + (rhs - within) / shift

    def conjugate(self, duals: Outputs, targets: Targets) -> PerExample:
        r""":math:`\tfrac12 (\|\alpha + y\|^2 - \|y\|^2)` for :math:`\alpha + y` in the simplex."""
        y = as_distribution(duals, targets)
        return jnp.sum(duals * (0.5 * duals + y), axis=-1) + simplex_indicator(duals + y)

    def prox_conjugate(
        self, z: Outputs, targets: Targets, stepsize: float | Float[Array, "..."]
    ) -> Outputs:
        r""":math:`P((z + y) / (1 + \sigma)) - y`."""
        y = as_distribution(z, targets)
        return project_simplex((z + y) / (1 + per_example(stepsize, z))) - y


def _center(outputs: Outputs, v: Outputs) -> Outputs:
    """Subtracts from v its mean over the support of the projected outputs; zero off the support."""
    support = (project_simplex(outputs) > 0).astype(v.dtype)
    size = jnp.sum(support, axis=-1, keepdims=True)
    return support * (v - jnp.sum(support * v, axis=-1, keepdims=True) / size)
