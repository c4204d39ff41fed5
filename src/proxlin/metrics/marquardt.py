r"""The metric of Marquardt: the diagonal of the Gauss-Newton matrix."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from proxlin.algebra import Params, Shapes, cast_like
from proxlin.checks import check_integer
from proxlin.metrics.base import DiagonalMetric, zeros


@dataclasses.dataclass(frozen=True)
class Marquardt(DiagonalMetric):
    r"""The metric of Marquardt (1963), with the memory of Moré (1978).

    .. math:: P = \operatorname{diag}(s_1^2, \dots, s_p^2), \qquad
        s_j \leftarrow \max\bigl(s_j, \|B^\top J e_j\|\bigr)

    Each entry is that of the diagonal of the Gauss-Newton matrix :math:`J^\top B B^\top J`, the
    largest seen so far. Directions do not change if parameters are measured in other units, and
    :math:`\gamma` has none: the damping :math:`1 / \gamma` is relative to the diagonal. A parameter
    without influence so far has the largest scale of all.

    The metric is made of the Jacobian, once for each step; a direct solver uses the same one.

    Attributes:
        independent: compute the Jacobian example by example, as in :class:`proxlin.Cholesky`;
            else by products with the whole batch, as many as there are outputs or parameters,
            whichever are fewer.
        max_elements: the largest number of elements in a block of the Jacobian, if examples are
            independent.

    Example:
        >>> import jax.numpy as jnp
        >>> from proxlin import Cholesky, Squared, prox_linear
        >>> opt = prox_linear(lambda w, x: x @ w, Squared(), metric=Marquardt(), solver=Cholesky())
        >>> w, x, y = jnp.zeros((2, 1)), jnp.diag(jnp.array([1.0, 1e4])), jnp.array([[1.0], [1e4]])
        >>> updates, state = opt.update(None, opt.init(w), w, inputs=x, targets=y)
        >>> jnp.round(updates, 3).ravel()  # half the way, since gamma is one
        Array([0.5, 0.5], dtype=float32)
    """

    independent: bool = False
    max_elements: int = 2**26
    of_curvature: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_integer(self, "max_elements", least=1)

    def init(self, params: Shapes) -> Params:
        """Zeros."""
        return zeros(params)

    def update(self, state: Params, grad: Params, taken: Int[Array, ""]) -> Params:
        """Keeps the larger roots; ``grad`` is the diagonal of the Gauss-Newton matrix."""
        # The norm of a column that is not finite: of a step that is rejected, like its state.
        larger = lambda s, square: jnp.maximum(s, jnp.sqrt(square))
        return jax.tree.map(larger, state, cast_like(grad, state))

    def scales(self, state: Params, taken: Int[Array, ""]) -> Params:
        """The roots; the largest one where there is none yet."""
        largest = jnp.max(jnp.stack([jnp.max(s, initial=0) for s in jax.tree.leaves(state)]))
        largest = jnp.where(largest == 0, 1, largest)
        # Below rounding of the rounding there is nothing to scale, and squares would underflow.
        least = jnp.finfo(largest.dtype).eps ** 2 * largest
        used = lambda s: jnp.where(s == 0, largest, jnp.maximum(s, least))
        return jax.tree.map(used, state)
