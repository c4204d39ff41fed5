r"""Convex regularizers on the parameters: a value and a proximity operator."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from proxlin.algebra import Number, Params, Scalar, add_scaled, algebra_dtype

Leaf = Float[Array, "..."]
Where = Callable[[str], bool]


class Regularizer(abc.ABC):
    r"""A convex function :math:`\rho` of the parameters, a sum over the leaves it applies to.

    A subclass is a frozen dataclass that defines it on one array; ``where(path)`` picks the leaves
    by their path, such as ``"layer/kernel"``. Other leaves are not regularized.

    Attributes:
        where: which leaves, by their path; all when None.
        is_zero: whether it is zero everywhere, so that subproblems stay smooth.
    """

    where: Where | None
    is_zero: ClassVar[bool] = False

    @abc.abstractmethod
    def leaf_value(self, leaf: Leaf) -> Scalar:
        r""":math:`\rho` of one array."""

    @abc.abstractmethod
    def leaf_prox(self, leaf: Leaf, stepsize: Scalar) -> Leaf:
        r""":math:`\operatorname{argmin}_w \rho(w) + \tfrac{1}{2 t} \|w - z\|^2` of one array."""

    @property
    def modulus(self) -> Number:
        r"""Some :math:`\lambda` for which :math:`\rho - \tfrac\lambda2 \|w\|^2` is convex."""
        return 0.0

    def value(self, params: Params) -> Scalar:
        r""":math:`\rho(w)`."""
        dtype = algebra_dtype(params)
        values = [
            self.leaf_value(leaf.astype(dtype)) if self._applies(path) else jnp.zeros((), dtype)
            for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        ]
        return jnp.sum(jnp.stack(values))

    def prox(self, params: Params, stepsize: Number) -> Params:
        r"""The proximity operator :math:`\operatorname{prox}_{t \rho}`, leaf by leaf.

        .. math:: \operatorname{argmin}_w \rho(w) + \tfrac{1}{2 t} \|w - z\|^2
        """
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: (
                self.leaf_prox(leaf, jnp.asarray(stepsize, leaf.dtype))
                if self._applies(path)
                else leaf
            ),
            params,
        )

    def prox_displacement(self, params: Params, d: Params, stepsize: Scalar) -> Params:
        r""":math:`w - \operatorname{prox}_{t \rho}(w - d)`: a step :math:`d`, then the prox."""
        return add_scaled(params, -1, self.prox(add_scaled(params, -1, d), stepsize))

    def _applies(self, path: Any) -> bool:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return self.where is None or self.where(name)


@dataclasses.dataclass(frozen=True)
class Zero(Regularizer):
    r"""No regularizer, :math:`\rho = 0`: Algorithm 3 is then exactly Algorithm 2."""

    where: Where | None = None
    is_zero: ClassVar[bool] = True

    def leaf_value(self, leaf: Leaf) -> Scalar:
        """Zero."""
        return jnp.zeros((), leaf.dtype)

    def leaf_prox(self, leaf: Leaf, stepsize: Scalar) -> Leaf:
        """The point itself."""
        return leaf

    def value(self, params: Params) -> Scalar:
        """Zero."""
        return jnp.zeros((), algebra_dtype(params))

    def prox_displacement(self, params: Params, d: Params, stepsize: Scalar) -> Params:
        """The step itself, without the rounding of a difference."""
        return d


@dataclasses.dataclass(frozen=True)
class L1(Regularizer):
    r"""The sparsity-inducing :math:`\rho(w) = s \|w\|_1`; its prox is soft thresholding.

    Attributes:
        strength: :math:`s`, positive.
        where: which leaves, by their path; all when None.

    Example:
        >>> import jax.numpy as jnp
        >>> L1(1.0).prox(jnp.array([3.0, -0.5, -2.0]), 1.0)
        Array([ 2., -0., -1.], dtype=float32)
    """

    strength: Number
    where: Where | None = None

    def __post_init__(self) -> None:
        _check_strength(self, "strength")

    def leaf_value(self, leaf: Leaf) -> Scalar:
        """The sum of absolute values."""
        return self.strength * jnp.sum(jnp.abs(leaf))

    def leaf_prox(self, leaf: Leaf, stepsize: Scalar) -> Leaf:
        """Soft thresholding."""
        return soft_threshold(leaf, self.strength * stepsize)


@dataclasses.dataclass(frozen=True)
class SquaredL2(Regularizer):
    r"""The ridge :math:`\rho(w) = \tfrac{s}{2} \|w\|^2`, part of the objective.

    Attributes:
        strength: :math:`s`, positive.
        where: which leaves, by their path; all when None.
    """

    strength: Number
    where: Where | None = None

    def __post_init__(self) -> None:
        _check_strength(self, "strength")

    @property
    def modulus(self) -> Number:
        """The strength, if it applies to all leaves."""
        return self.strength if self.where is None else 0.0

    def leaf_value(self, leaf: Leaf) -> Scalar:
        """Half the sum of squares."""
        return 0.5 * self.strength * jnp.sum(leaf**2)

    def leaf_prox(self, leaf: Leaf, stepsize: Scalar) -> Leaf:
        """Scaling toward zero."""
        return leaf / (1 + self.strength * stepsize)


@dataclasses.dataclass(frozen=True)
class ElasticNet(Regularizer):
    r"""The elastic net :math:`\rho(w) = l_1 \|w\|_1 + \tfrac{l_2}{2} \|w\|^2`.

    Attributes:
        l1: strength of the absolute values, positive.
        l2: strength of the squares, positive.
        where: which leaves, by their path; all when None.
    """

    l1: Number
    l2: Number
    where: Where | None = None

    def __post_init__(self) -> None:
        _check_strength(self, "l1", "l2")

    @property
    def modulus(self) -> Number:
        """``l2``, if it applies to all leaves."""
        return self.l2 if self.where is None else 0.0

    def leaf_value(self, leaf: Leaf) -> Scalar:
        """Both sums."""
        return self.l1 * jnp.sum(jnp.abs(leaf)) + 0.5 * self.l2 * jnp.sum(leaf**2)

    def leaf_prox(self, leaf: Leaf, stepsize: Scalar) -> Leaf:
        """Soft thresholding, then scaling toward zero."""
        return soft_threshold(leaf, self.l1 * stepsize) / (1 + self.l2 * stepsize)


@dataclasses.dataclass(frozen=True)
class GroupL2(Regularizer):
    r"""The group lasso :math:`\rho(w) = s \sum_g \|w_g\|_2`, which sets whole groups to zero.

    A group is one slice along ``axis``: for a kernel of shape ``(inputs, outputs)`` and
    ``axis=-1``, all weights into one output.

    Attributes:
        strength: :math:`s`, positive.
        axis: the axis that numbers the groups.
        where: which leaves, by their path; all when None.
    """

    strength: Number
    axis: int = -1
    where: Where | None = None

    def __post_init__(self) -> None:
        _check_strength(self, "strength")

    def leaf_value(self, leaf: Leaf) -> Scalar:
        """The sum of the norms of the groups."""
        return self.strength * jnp.sum(jnp.sqrt(self._squares(leaf)))

    def leaf_prox(self, leaf: Leaf, stepsize: Scalar) -> Leaf:
        """Soft thresholding of the norms."""
        norms = jnp.sqrt(self._squares(leaf))
        threshold = self.strength * stepsize
        kept = norms > threshold
        return leaf * jnp.where(kept, 1 - threshold / jnp.where(kept, norms, 1), 0)

    def _squares(self, leaf: Leaf) -> Leaf:
        if not -leaf.ndim <= self.axis < leaf.ndim:
            raise ValueError(
                f"{self}: an array of shape {leaf.shape} has no axis {self.axis}; choose other "
                "leaves with `where`"
            )
        others = tuple(i for i in range(leaf.ndim) if i != self.axis % leaf.ndim)
        return jnp.sum(leaf**2, axis=others, keepdims=True)


def soft_threshold(x: Leaf, threshold: Scalar) -> Leaf:
    """Moves entries toward zero by the threshold; those within it become exactly zero."""
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - threshold, 0)


def _check_strength(regularizer: Regularizer, *names: str) -> None:
    for name in names:
        value = getattr(regularizer, name)
        if not isinstance(value, jax.core.Tracer) and not value > 0:
            raise ValueError(
                f"{type(regularizer).__name__}({name}={value!r}): give a positive number, or use "
                "Zero()"
            )
