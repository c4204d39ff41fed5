"""The logistic losses: one label among k classes, and k independent yes-or-no labels."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from proxlin.arrays import check_one_array, counts
from proxlin.losses.base import Factor, Labels, Loss, Outputs, OutputsLike, PerExample, TargetRows

Targets = Labels | TargetRows


def is_labels(outputs: OutputsLike, targets: Any) -> bool:
    """Whether targets are labels, one for each example: integers, or booleans for 0 and 1."""
    return jnp.shape(targets) == outputs.shape[:-1] and counts(jnp.result_type(targets))


def wide(labels: Labels) -> Integer[Array, "*n"]:
    """Labels as integers of 32 bits or more: in 8 bits, class 256 would be class 0."""
    labels = jnp.asarray(labels)
    return labels.astype(jnp.int32) if labels.dtype.itemsize < 4 else labels


def as_distribution(outputs: Outputs, targets: Targets) -> Outputs:
    """Labels as one-hot vectors; distributions, scaled to sum to one despite rounding.

    Rows of zeros, such as padding, stay zero.
    """
    if is_labels(outputs, targets):
        return jax.nn.one_hot(wide(targets), outputs.shape[-1], dtype=outputs.dtype)
    y = jnp.asarray(targets, outputs.dtype)
    total = jnp.sum(y, axis=-1, keepdims=True)
    return y / jnp.where(total > 0, total, 1)


def simplex_indicator(mu: Outputs) -> PerExample:
    """Zero on the probability simplex, up to rounding, and infinity elsewhere."""
    tolerance = 32 * jnp.finfo(mu.dtype).eps * mu.shape[-1]
    inside = (jnp.min(mu, axis=-1) >= -tolerance) & (jnp.abs(jnp.sum(mu, axis=-1) - 1) <= tolerance)
    return jnp.where(inside, 0, jnp.inf).astype(mu.dtype)


class ClassLoss(Loss):
    """A loss whose targets are integer labels ``(*n,)`` or distributions ``(*n, k)``."""

    nonnegative: ClassVar[bool] = True

    def check(self, outputs: OutputsLike, targets: Any) -> None:
        """Targets are integer labels or have the shape of the outputs; there are classes."""
        check_one_array(self, targets)
        if outputs.shape[-1] == 1:
            raise ValueError(
                f"{type(self).__name__}: outputs of shape {outputs.shape} have one class, and the "
                "loss does not depend on them; for a yes-or-no label use BinaryLogistic() with "
                f"targets 0.0 or 1.0 of shape {outputs.shape}, or return two outputs"
            )
        if not is_labels(outputs, targets) and targets.shape != outputs.shape:
            cast = "; cast labels with .astype(int)" if targets.shape == outputs.shape[:-1] else ""
            raise ValueError(
                f"{type(self).__name__}: targets of shape {targets.shape} and dtype "
                f"{targets.dtype} for outputs of shape {outputs.shape}; give integer labels of "
                f"shape {outputs.shape[:-1]} or distributions of shape {outputs.shape}{cast}"
            )

    def valid(self, outputs: OutputsLike, targets: Targets) -> Bool[Array, "*n"]:
        """Labels lie in 0..k-1, distributions in the simplex."""
        if is_labels(outputs, targets):
            labels = wide(targets)
            return (labels >= 0) & (labels < outputs.shape[-1])
        y = targets.astype(outputs.dtype)
        rounding = 1e-3  # distributions often come from float16 or from text
        return jnp.all(y >= 0, axis=-1) & (jnp.abs(jnp.sum(y, axis=-1) - 1) <= rounding)

    def allowed(self, outputs: OutputsLike) -> str:
        """Labels in 0..k-1, or distributions."""
        return f"labels 0..{outputs.shape[-1] - 1}, or non-negative rows that sum to one"


@dataclasses.dataclass(frozen=True)
class Logistic(ClassLoss):
    r"""The multiclass logistic loss :math:`\ell(f) = \mathrm{LSE}(f) - \langle f, y \rangle`.

    With :math:`s = \mathrm{softmax}(f)` and :math:`r = \sqrt s`: :math:`\nabla \ell = s - y`,
    :math:`H = \mathrm{diag}(s) - s s^\top = B B^\top` for :math:`B = \mathrm{diag}(r) (I - r
    r^\top)`, which is the preconditioner :math:`D^{1/2}` of the paper without its division, and
    :math:`\ell^*(\alpha) = \langle \mu, \log \mu \rangle` for :math:`\mu = \alpha + y` in the
    simplex. Targets are integer labels ``(*n,)`` or distributions ``(*n, k)``.

    Example:
        >>> import jax.numpy as jnp
        >>> Logistic().grad(jnp.zeros((1, 2)), jnp.array([0]))
        Array([[-0.5,  0.5]], dtype=float32)
    """

    def value(self, outputs: Outputs, targets: Targets) -> PerExample:
        r""":math:`\mathrm{LSE}(f) - \langle f, y \rangle`."""
        y = as_distribution(outputs, targets)
        return -jnp.sum(y * jax.nn.log_softmax(outputs), axis=-1)

    def grad(self, outputs: Outputs, targets: Targets) -> Outputs:
        r""":math:`\mathrm{softmax}(f) - y`."""
        return jax.nn.softmax(outputs) - as_distribution(outputs, targets)

    def hvp(self, outputs: Outputs, targets: Targets, v: Outputs) -> Outputs:
        r""":math:`s \odot v - \langle s, v \rangle s`."""
        s = jax.nn.softmax(outputs)
        return s * (v - jnp.sum(s * v, axis=-1, keepdims=True))

    def hessian_factor(self, outputs: Outputs, targets: Targets) -> Factor:
        r""":math:`B v = r \odot v - s \langle r, v \rangle`, no division by :math:`s`."""
        s = jax.nn.softmax(outputs)
        r = jnp.sqrt(s)
        return Factor(
            mv=lambda v: r * v - s * jnp.sum(r * v, axis=-1, keepdims=True),
            rmv=lambda v: r * (v - jnp.sum(s * v, axis=-1, keepdims=True)),
        )

    def shifted_solve(
        self, outputs: Outputs, targets: Targets, shift: Float[Array, "*n 1"], rhs: Outputs
    ) -> Outputs:
        r"""Diagonal plus rank one, by the Sherman-Morrison formula."""
        s = jax.nn.softmax(outputs)
        a = rhs / (s + shift)
        b = s / (s + shift)
        # 1 - <s, b> = shift * sum(b) without cancellation, because the s sum to one
        return a + b * jnp.sum(s * a, axis=-1, keepdims=True) / (
            shift * jnp.sum(b, axis=-1, keepdims=True)
        )

    def conjugate(self, duals: Outputs, targets: Targets) -> PerExample:
        r""":math:`\langle \mu, \log \mu \rangle` for :math:`\mu = \alpha + y` in the simplex."""
        mu = duals + as_distribution(duals, targets)
        return jnp.sum(_entropy(mu), axis=-1) + simplex_indicator(mu)


@dataclasses.dataclass(frozen=True)
class BinaryLogistic(Loss):
    r"""k independent logistic losses, :math:`\ell(f) = \sum_j \log(1 + e^{f_j}) - y_j f_j`.

    With :math:`s = 1 / (1 + e^{-f})`: :math:`\nabla \ell = s - y`,
    :math:`B = \mathrm{diag}(\sqrt{s (1 - s)})`, and with :math:`\mu = \alpha + y`,
    :math:`\ell^*(\alpha) = \sum_j \mu_j \log \mu_j + (1 - \mu_j) \log (1 - \mu_j)`.
    Targets have the shape of the outputs and lie in [0, 1].

    Example:
        >>> import jax.numpy as jnp
        >>> BinaryLogistic().grad(jnp.zeros((1, 2)), jnp.array([[0.0, 1.0]]))
        Array([[ 0.5, -0.5]], dtype=float32)
    """

    nonnegative: ClassVar[bool] = True

    def check(self, outputs: OutputsLike, targets: Any) -> None:
        """Targets have the shape of the outputs."""
        check_one_array(self, targets)
        if targets.shape != outputs.shape:
            raise ValueError(
                f"BinaryLogistic: targets of shape {targets.shape} for outputs of shape "
                f"{outputs.shape}; the shapes must be equal, nothing is broadcast"
            )

    def valid(self, outputs: OutputsLike, targets: TargetRows) -> Bool[Array, "*n"]:
        """Targets lie in [0, 1]."""
        y = targets.astype(outputs.dtype)
        return jnp.all((y >= 0) & (y <= 1), axis=-1)

    def allowed(self, outputs: OutputsLike) -> str:
        """Numbers in [0, 1]."""
        return "numbers in [0, 1]"

    def value(self, outputs: Outputs, targets: TargetRows) -> PerExample:
        r""":math:`\sum_j \log(1 + e^{f_j}) - y_j f_j`."""
        y = targets.astype(outputs.dtype)
        return jnp.sum(jax.nn.softplus(outputs) - y * outputs, axis=-1)

    def grad(self, outputs: Outputs, targets: TargetRows) -> Outputs:
        r""":math:`s - y`."""
        return jax.nn.sigmoid(outputs) - targets.astype(outputs.dtype)

    def hvp(self, outputs: Outputs, targets: TargetRows, v: Outputs) -> Outputs:
        r""":math:`s (1 - s) \odot v`."""
        return _variance(outputs) * v

    def hessian_factor(self, outputs: Outputs, targets: TargetRows) -> Factor:
        r""":math:`\mathrm{diag}(\sqrt{s (1 - s)})`."""
        b = jnp.sqrt(_variance(outputs))
        return Factor(mv=lambda v: b * v, rmv=lambda v: b * v)

    def shifted_solve(
        self, outputs: Outputs, targets: TargetRows, shift: Float[Array, "*n 1"], rhs: Outputs
    ) -> Outputs:
        """Diagonal."""
        return rhs / (_variance(outputs) + shift)

    def conjugate(self, duals: Outputs, targets: TargetRows) -> PerExample:
        r""":math:`\sum_j \mu_j \log \mu_j + (1 - \mu_j) \log (1 - \mu_j)`."""
        mu = duals + targets.astype(duals.dtype)
        tolerance = 32 * jnp.finfo(mu.dtype).eps
        inside = jnp.all((mu >= -tolerance) & (mu <= 1 + tolerance), axis=-1)
        return jnp.where(inside, jnp.sum(_entropy(mu) + _entropy(1 - mu), axis=-1), jnp.inf)


def _variance(outputs: Outputs) -> Outputs:
    # s (1 - s); computing 1 - s would cancel for large outputs
    return jax.nn.sigmoid(outputs) * jax.nn.sigmoid(-outputs)


def _entropy(mu: Outputs) -> Outputs:
    """mu log mu; zero at zero and, because of rounding, below it."""
    positive = mu > 0
    return jnp.where(positive, mu * jnp.log(jnp.where(positive, mu, 1)), 0)
