"""The squared loss."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from proxlin.arrays import check_one_array
from proxlin.losses.base import (
    Factor,
    Loss,
    Outputs,
    OutputsLike,
    PerExample,
    TargetRows,
    per_example,
)


@dataclasses.dataclass(frozen=True)
class Squared(Loss):
    r"""The squared loss :math:`\ell(f) = \tfrac12 \|f - y\|^2`, summed over the last axis.

    :math:`\nabla \ell = f - y`, :math:`H = B = I`,
    :math:`\ell^*(\alpha) = \tfrac12 \|\alpha\|^2 + \langle \alpha, y \rangle`.

    Example:
        >>> import jax.numpy as jnp
        >>> Squared().value(jnp.array([[3.0, 1.0]]), jnp.zeros((1, 2)))
        Array([5.], dtype=float32)
    """

    quadratic: ClassVar[bool] = True
    nonnegative: ClassVar[bool] = True

    def check(self, outputs: OutputsLike, targets: Any) -> None:
        """Targets have the shape of the outputs."""
        check_one_array(self, targets)
        if targets.shape != outputs.shape:
            raise ValueError(
                f"Squared: targets of shape {targets.shape} for outputs of shape "
                f"{outputs.shape}; the shapes must be equal, nothing is broadcast"
            )

    def valid(self, outputs: OutputsLike, targets: TargetRows) -> Bool[Array, "*n"]:
        """Targets are finite."""
        return jnp.all(jnp.isfinite(targets.astype(outputs.dtype)), axis=-1)

    def allowed(self, outputs: OutputsLike) -> str:
        """Finite targets."""
        return "finite numbers"

    def value(self, outputs: Outputs, targets: TargetRows) -> PerExample:
        r""":math:`\tfrac12 \|f - y\|^2`."""
        return 0.5 * jnp.sum(self.grad(outputs, targets) ** 2, axis=-1)

    def grad(self, outputs: Outputs, targets: TargetRows) -> Outputs:
        """The residual :math:`f - y`."""
        return outputs - targets.astype(outputs.dtype)

    def hvp(self, outputs: Outputs, targets: TargetRows, v: Outputs) -> Outputs:
        """The vector itself."""
        return v

    def hessian_factor(self, outputs: Outputs, targets: TargetRows) -> Factor:
        """The identity."""
        return Factor(mv=lambda x: x, rmv=lambda x: x, preimage=self.grad(outputs, targets))

    def shifted_solve(
        self, outputs: Outputs, targets: TargetRows, shift: Float[Array, "*n 1"], rhs: Outputs
    ) -> Outputs:
        r""":math:`\text{rhs} / (1 + \text{shift})`."""
        return rhs / (1 + shift)

    def conjugate(self, duals: Outputs, targets: TargetRows) -> PerExample:
        r""":math:`\tfrac12 \|\alpha\|^2 + \langle \alpha, y \rangle`."""
        return jnp.sum(duals * (0.5 * duals + targets.astype(duals.dtype)), axis=-1)

    def prox_conjugate(
        self, z: Outputs, targets: TargetRows, stepsize: float | Float[Array, "..."]
    ) -> Outputs:
        r""":math:`(z - \sigma y) / (1 + \sigma)`."""
        sigma = per_example(stepsize, z)
        return (z - sigma * targets.astype(z.dtype)) / (1 + sigma)
