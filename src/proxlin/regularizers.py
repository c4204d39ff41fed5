r"""Convex regularizers on the parameters: a value and a proximity operator."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from proxlin.linearize import Params, algebra_dtype, check_params

Leaf = Float[Array, "..."]
Where = Callable[[str], bool]


class Regularizer(abc.ABC):
    r"""A convex function :math:`\rho` of the parameters, a sum over the leaves it applies to.

    A subclass is a frozen dataclass that says what it is on one array; ``where(path)`` picks the
    leaves by their path, such as ``"layer/kernel"``. The parameters of the other leaves are free.
    """

    where: Where | None

    @abc.abstractmethod
    def leaf_value(self, leaf: Leaf) -> Float[Array, ""]:
        r""":math:`\rho` of one array."""

    @abc.abstractmethod
    def leaf_prox(self, leaf: Leaf, stepsize: Float[Array, ""]) -> Leaf:
        r""":math:`\operatorname{argmin}_w \rho(w) + \tfrac{1}{2 t} \|w - z\|^2` of one array."""

    @property
    def modulus(self) -> float:
        r"""Some :math:`\lambda` for which :math:`\rho - \tfrac\lambda2 \|w\|^2` is convex."""
        return 0.0

    def value(self, params: Params) -> Float[Array, ""]:
        r""":math:`\rho(w)`."""
        dtype = algebra_dtype(params)
        values = [
            self.leaf_value(leaf.astype(dtype)) if self._applies(path) else jnp.zeros((), dtype)
            for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        ]
        return jnp.sum(jnp.stack(values))

    def prox(self, params: Params, stepsize: float | Float[Array, ""]) -> Params:
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

    def _applies(self, path: Any) -> bool:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return self.where is None or self.where(name)


@dataclasses.dataclass(frozen=True)
class Zero(Regularizer):
    r"""No regularizer, :math:`\rho = 0`: Algorithm 3 is then Algorithm 2, to the bit."""

    where: Where | None = None

    def leaf_value(self, leaf: Leaf) -> Float[Array, ""]:
        """Zero."""
        return jnp.zeros((), leaf.dtype)

    def leaf_prox(self, leaf: Leaf, stepsize: Float[Array, ""]) -> Leaf:
        """The point itself."""
        return leaf


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

    strength: float
    where: Where | None = None

    def __post_init__(self) -> None:
        _check_strength(self, "strength")

    def leaf_value(self, leaf: Leaf) -> Float[Array, ""]:
        """The sum of absolute values."""
        return self.strength * jnp.sum(jnp.abs(leaf))

    def leaf_prox(self, leaf: Leaf, stepsize: Float[Array, ""]) -> Leaf:
        """Soft thresholding."""
        return soft_threshold(leaf, self.strength * stepsize)


@dataclasses.dataclass(frozen=True)
class SquaredL2(Regularizer):
    r"""The ridge :math:`\rho(w) = \tfrac{s}{2} \|w\|^2`, part of the objective.

    Attributes:
        strength: :math:`s`, positive.
        where: which leaves, by their path; all when None.
    """

    strength: float
    where: Where | None = None

    def __post_init__(self) -> None:
        _check_strength(self, "strength")

    @property
    def modulus(self) -> float:
        """The strength, where it applies to all leaves."""
        return self.strength if self.where is None else 0.0

    def leaf_value(self, leaf: Leaf) -> Float[Array, ""]:
        """Half the sum of squares."""
        return 0.5 * self.strength * jnp.sum(leaf**2)

    def leaf_prox(self, leaf: Leaf, stepsize: Float[Array, ""]) -> Leaf:
        """Shrinking."""
        return leaf / (1 + self.strength * stepsize)


@dataclasses.dataclass(frozen=True)
class ElasticNet(Regularizer):
    r"""The elastic net :math:`\rho(w) = l_1 \|w\|_1 + \tfrac{l_2}{2} \|w\|^2`.

    Attributes:
        l1: strength of the absolute values, positive.
        l2: strength of the squares, positive.
        where: which leaves, by their path; all when None.
    """

    l1: float
    l2: float
    where: Where | None = None

    def __post_init__(self) -> None:
        _check_strength(self, "l1", "l2")

    @property
    def modulus(self) -> float:
        """``l2``, where it applies to all leaves."""
        return self.l2 if self.where is None else 0.0

    def leaf_value(self, leaf: Leaf) -> Float[Array, ""]:
        """Both sums."""
        return self.l1 * jnp.sum(jnp.abs(leaf)) + 0.5 * self.l2 * jnp.sum(leaf**2)

    def leaf_prox(self, leaf: Leaf, stepsize: Float[Array, ""]) -> Leaf:
        """Soft thresholding, then shrinking."""
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

    strength: float
    axis: int = -1
    where: Where | None = None

    def __post_init__(self) -> None:
        _check_strength(self, "strength")

    def leaf_value(self, leaf: Leaf) -> Float[Array, ""]:
        """The sum of the norms of the groups."""
        return self.strength * jnp.sum(jnp.sqrt(self._squares(leaf)))

    def leaf_prox(self, leaf: Leaf, stepsize: Float[Array, ""]) -> Leaf:
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


def soft_threshold(x: Leaf, threshold: Float[Array, ""]) -> Leaf:
    """Towards zero by the threshold, and to exactly zero within it."""
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - threshold, 0)


def _check_strength(regularizer: Regularizer, *names: str) -> None:
    for name in names:
        value = getattr(regularizer, name)
        if not isinstance(value, jax.core.Tracer) and not value > 0:
            raise ValueError(
                f"{type(regularizer).__name__}({name}={value!r}): give a positive number, or use "
                "Zero()"
            )


def check_regularizer(
    regularizer: Regularizer, params: Params, *, tolerance: float | None = None
) -> None:
    r"""Tests a regularizer against the identities that the library relies on.

    Around the parameters that are given: the value is one number, finite there, and convex, even
    after :math:`\tfrac\lambda2 \|w\|^2` is taken away for the modulus :math:`\lambda`; the
    proximity operator keeps structure, shapes and dtypes, and :math:`p =
    \operatorname{prox}_{t \rho}(z)` satisfies :math:`(z - p) / t \in \partial \rho(p)`. Points
    where the value is infinite, off a constraint, are welcome.

    Args:
        regularizer: the regularizer.
        params: a pytree of parameters at which the value is finite.
        tolerance: relative; the root of the rounding error when None.

    Raises:
        ValueError: that names every identity that does not hold, and by how much.

    Example:
        >>> import jax.numpy as jnp
        >>> check_regularizer(L1(0.1), {"w": jnp.array([1.0, -0.2])})
    """
    check_params(params)
    # Where prox is used: half precision would look like an error of it.
    params = jax.tree.map(jnp.asarray, params)
    dtype = algebra_dtype(params)
    params = jax.tree.map(lambda w: w.astype(dtype), params)
    tolerance = 10 * float(jnp.finfo(dtype).eps) ** 0.5 if tolerance is None else tolerance
    rng = np.random.default_rng(0)
    near = lambda tree, size: jax.tree.map(
        lambda w: w + jnp.asarray(size * rng.normal(size=w.shape), w.dtype), tree
    )
    wrong: dict[str, float] = {}

    def least(what: str, slack: Any, scale: Any) -> None:
        if not float(slack) >= -tolerance * (1 + abs(float(scale))):
            wrong[what] = max(wrong.get(what, 0.0), -float(slack))

    square = lambda w: float(optax.tree.vdot(w, w))
    value = regularizer.value(params)
    if jnp.shape(value) != () or not bool(jnp.isfinite(value)):
        raise ValueError(f"{regularizer}: value must be one finite number, not {value}")
    kind = lambda tree: jax.tree.map(lambda w: f"{w.dtype}{w.shape}", tree)
    if kind(regularizer.prox(params, 1.0)) != kind(params):
        raise ValueError(f"{regularizer}: prox changes structure, shapes or dtypes")
    for _ in range(5):
        a, b = near(params, 1.0), near(params, 1.0)
        inside = regularizer.prox(a, 1.0), regularizer.prox(b, 1.0)
        for x, y in ((a, b), inside):
            half = 0.5 * (regularizer.value(x) + regularizer.value(y))
            if half == jnp.inf:  # not both within the constraint: nothing to hold
                continue
            middle = jax.tree.map(lambda x, y: 0.5 * (x + y), x, y)
            spread = 0.125 * regularizer.modulus * square(optax.tree.sub(x, y))
            least("convexity, with the modulus", half - regularizer.value(middle) - spread, half)
    for stepsize in (0.1, 1.0, 10.0):
        z = near(params, 1.0)
        p = regularizer.prox(z, stepsize)
        pulled, at = optax.tree.sub(z, p), regularizer.value(p)
        others = [near(p, size) for size in (1e-2, 1e-1, 1.0) for _ in range(5)]
        # Off a constraint anything holds; these points are within it, if the prox is.
        others += [regularizer.prox(other, stepsize) for other in others]
        others += [optax.tree.scale(size, p) for size in (0.0, 0.9, 1.1)]
        for other in (*others, z, params):
            rise = float(optax.tree.vdot(pulled, optax.tree.sub(other, p))) / stepsize
            slack = regularizer.value(other) - at - rise
            least(f"prox for stepsize {stepsize}", slack, abs(rise) + abs(float(at)))
    if wrong:
        all_wrong = "\n- ".join(f"{what}: violated by {by:.1e}" for what, by in wrong.items())
        raise ValueError(f"{regularizer} breaks what a regularizer must hold:\n- {all_wrong}")
