r"""The base class of metrics, the identity, and the metric of Adam."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from proxlin.algebra import Number, Params, Shapes, algebra_dtype, cast_like, zeros_like

Inverse = Callable[[Params], Params]


class Metric(abc.ABC):
    r"""A positive definite linear map of parameter space; a frozen dataclass with separate state.

    Attributes:
        is_identity: whether it is always the identity.
        of_curvature: whether it learns from the diagonal of the Gauss-Newton matrix
            :math:`J^\top B B^\top J` in the place of the gradient. The fields ``independent`` and
            ``max_elements``, if it has them, say how that is computed (:class:`proxlin.Cholesky`).
    """

    is_identity: ClassVar[bool] = False
    of_curvature: ClassVar[bool] = False

    @abc.abstractmethod
    def init(self, params: Shapes) -> Any:
        """The state before the first step."""

    @abc.abstractmethod
    def update(self, state: Any, grad: Params, taken: Int[Array, ""]) -> Any:
        """Learns from a gradient; ``taken`` counts those that it has learned from before."""

    def at(self, state: Any, params: Params) -> Any:
        """The state that ``inverse`` gets at these parameters; the same, unless it needs them."""
        return state

    @abc.abstractmethod
    def inverse(self, state: Any, linear_term: Params, taken: Int[Array, ""]) -> Inverse | None:
        r""":math:`P^{-1}` for a subproblem with this linear term; None for the identity."""


@dataclasses.dataclass(frozen=True)
class Euclidean(Metric):
    """The identity, as in the paper."""

    is_identity: ClassVar[bool] = True

    def init(self, params: Shapes) -> tuple[()]:
        """Nothing."""
        return ()

    def update(self, state: tuple[()], grad: Params, taken: Int[Array, ""]) -> tuple[()]:
        """Nothing."""
        return ()

    def inverse(self, state: tuple[()], linear_term: Params, taken: Int[Array, ""]) -> None:
        """The identity."""
        return None


class DiagonalMetric(Metric):
    r"""A metric :math:`P = S^2` with a diagonal :math:`S`.

    In the coordinates :math:`S d` it is the identity, so any linear solver can work in it.
    """

    @abc.abstractmethod
    def scales(self, state: Any, taken: Int[Array, ""]) -> Params:
        """The entries of :math:`S`, positive numbers."""

    def inverse(self, state: Any, linear_term: Params, taken: Int[Array, ""]) -> Inverse:
        """Divides by the scales twice, so that their squares cannot underflow."""
        scales = cast_like(self.scales(state, taken), linear_term)
        return lambda x: jax.tree.map(lambda a, s: a / s / s, x, scales)


@dataclasses.dataclass(frozen=True)
class Diagonal(DiagonalMetric):
    r"""The metric of Adam (Kingma and Ba, 2015).

    .. math:: v \leftarrow \beta v + (1 - \beta)\, \nabla h^2, \qquad
        P = \operatorname{diag}\bigl(\sqrt{\hat v} + \epsilon\bigr)

    with :math:`\hat v` corrected for its start at zero.

    Attributes:
        decay: :math:`\beta`.
        epsilon: added to the roots.

    Example:
        >>> import jax.numpy as jnp
        >>> metric = Diagonal()
        >>> grad, none = jnp.array([4.0, -1.0]), jnp.asarray(0)
        >>> state = metric.update(metric.init(grad), grad, none)
        >>> jnp.round(metric.inverse(state, grad, none)(grad), 3)
        Array([ 1., -1.], dtype=float32)
    """

    decay: Number = 0.999
    epsilon: Number = 1e-8

    def __post_init__(self) -> None:
        check(self)

    def init(self, params: Shapes) -> Params:
        """Zeros."""
        return zeros(params)

    def update(self, state: Params, grad: Params, taken: Int[Array, ""]) -> Params:
        """Averages the squares."""
        return average(state, jax.tree.map(jnp.square, cast_like(grad, state)), self.decay)

    def scales(self, state: Params, taken: Int[Array, ""]) -> Params:
        """The roots of the entries of :math:`P`."""
        roots = jax.tree.map(jnp.sqrt, unbiased(state, self.decay, taken))
        # Squares that overflow must not turn into a step of zero.
        roots = jax.tree.map(lambda r: jnp.where(jnp.isfinite(r), r, jnp.nan), roots)
        return jax.tree.map(lambda r: jnp.sqrt(r + self.epsilon), roots)


def zeros(params: Shapes) -> Params:
    """Zeros in the dtype of the algebra."""
    return zeros_like(params, algebra_dtype(params))


def average(old: PyTree[Array], new: PyTree[Array], decay: Number) -> PyTree[Array]:
    """One step of an exponential moving average."""
    return jax.tree.map(lambda a, b: decay * a + (1 - decay) * b, old, new)


def unbiased(average: PyTree[Array], decay: Number, taken: Int[Array, ""]) -> PyTree[Array]:
    """An average that started at zero, corrected for that bias."""
    weights = lambda dtype: 1 - jnp.asarray(decay, dtype) ** (taken + 1).astype(dtype)
    return jax.tree.map(lambda x: x / weights(x.dtype), average)


def check(metric: Any) -> None:
    """Raises if ``decay`` or ``epsilon`` is known and not allowed."""
    if any(isinstance(value, jax.core.Tracer) for value in (metric.decay, metric.epsilon)):
        return  # injected
    if not 0 <= metric.decay < 1 or not metric.epsilon > 0:
        raise ValueError(f"{metric}: decay must lie between 0 and 1, and epsilon must be positive")
