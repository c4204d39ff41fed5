r"""Parameter space with a metric, and the coordinates that linear solvers work in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from proxlin.algebra import MetricVector, Params, Vector, plain
from proxlin.metrics.base import Inverse


@dataclasses.dataclass(frozen=True)
class Space:
    r"""Parameter space with the metric :math:`P`.

    A solver sees a covector :math:`y` as the vector :math:`P^{-1} y` together with :math:`y`
    itself. If the metric is diagonal, :math:`P = S^2`, it sees coordinates instead: a direction
    :math:`d` is :math:`S d`, a covector :math:`S^{-1} y`, and the metric is the identity.

    Attributes:
        inverse: :math:`P^{-1}`; None for the identity.
        scales: the entries of :math:`S`, if the metric is diagonal; else None.
    """

    inverse: Inverse | None = None
    scales: Params | None = None

    def precondition(self, y: Params) -> Vector:
        r""":math:`P^{-1} y`, together with :math:`y`."""
        return y if self.inverse is None else MetricVector(y, self.inverse(y))

    def inner(self, y: Params) -> Vector:
        """A covector as solvers see it."""
        scales = self._coordinates
        return self.precondition(y) if scales is None else _map(lambda a, s: a / s, y, scales)

    def outer(self, x: Vector) -> Params:
        """The displacement of parameters that a solver's vector stands for."""
        scales = self._coordinates
        return plain(x) if scales is None else _map(lambda a, s: a / s, plain(x), scales)

    def direction(self, x: Vector) -> Vector:
        """The same, together with its image under the metric."""
        scales = self._coordinates
        if scales is None:
            return x
        return MetricVector(_map(lambda a, s: a * s, plain(x), scales), self.outer(x))

    def measured(self, d: Params) -> Vector:
        """A displacement together with its image, in a diagonal metric or without one."""
        scales = self._coordinates
        return d if scales is None else self.direction(_map(lambda a, s: a * s, d, scales))

    def divide_rows(self, a: Float[Array, "n p"]) -> Float[Array, "n p"]:
        """Dense rows as solvers see them, which act on their vectors."""
        scales = self._coordinates
        return a if scales is None else a / ravel_pytree(scales)[0][None]

    @property
    def _coordinates(self) -> Params | None:
        return None if self.inverse is None else self.scales


def _map(fn: Callable[[Array, Array], Array], x: Params, scales: Params) -> Params:
    return jax.tree.map(fn, x, scales)
