r"""SOAP (Vyas et al., 2024), Adam in the eigenbasis of Shampoo, which Optax does not have."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from proxlin.bench.errors import UsageError

Matrix = Float[Array, "rows columns"]
Square = Float[Array, "n n"]


class Side(NamedTuple):
    r"""One side of a matrix: rows or columns.

    Attributes:
        moment: the average of :math:`G G^\top`, or of :math:`G^\top G`.
        basis: its eigenvectors, as they were last computed.
    """

    moment: Square
    basis: Square


class Leaf(NamedTuple):
    """What SOAP keeps for one leaf.

    Attributes:
        mean: the average of gradients.
        square: the average of their squares in the basis.
        sides: rows and columns; None for a side that is not rotated.
    """

    mean: Matrix
    square: Matrix
    sides: tuple[Side | None, Side | None]


class SOAPState(NamedTuple):
    """What SOAP carries from one step to the next: steps taken, and one entry for each leaf."""

    taken: Int[Array, ""]
    leaves: PyTree[Leaf]


def soap(
    stepsize: optax.ScalarOrSchedule,
    *,
    b1: float = 0.95,
    b2: float = 0.95,
    epsilon: float = 1e-8,
    every: int = 10,
    max_size: int = 1024,
    weight_decay: float = 0.0,
) -> optax.GradientTransformation:
    r"""SOAP: Adam in the eigenbasis of Shampoo's factors.

    .. math::
        L \leftarrow \beta_2 L + (1 - \beta_2) G G^\top, \quad
        R \leftarrow \beta_2 R + (1 - \beta_2) G^\top G, \quad
        U = Q_L \operatorname{Adam}(Q_L^\top G Q_R) Q_R^\top

    with eigenvectors :math:`Q_L` of :math:`L` and :math:`Q_R` of :math:`R`. The first step computes
    them and does not move the parameters; later, one power iteration and a QR factorization
    refresh them. A gradient is a matrix whose columns are the outputs of a layer. Vectors get
    Adam, and a side of more than ``max_size`` rows is not rotated.

    Args:
        stepsize: the learning rate, a number or a schedule.
        b1: the decay of the average of gradients.
        b2: the decay of the averages of squares and of factors.
        epsilon: what is added to the roots of squares.
        every: how many steps a basis is kept.
        max_size: the largest side that is rotated.
        weight_decay: decoupled, times the stepsize.

    Returns:
        An Optax transformation.

    Raises:
        UsageError: for numbers out of their range.
    """
    if every < 1 or not (0 <= b1 < 1 and 0 <= b2 < 1 and epsilon > 0):
        raise UsageError(
            f"soap with every={every}, b1={b1}, b2={b2}, epsilon={epsilon}: every must be at least "
            "one, b1 and b2 between 0 and 1, and epsilon positive"
        )
    return optax.chain(
        _scale_by_soap(b1, b2, epsilon, every, max_size),
        optax.add_decayed_weights(weight_decay),
        optax.scale_by_learning_rate(stepsize),
    )


def _scale_by_soap(
    b1: float, b2: float, epsilon: float, every: int, max_size: int
) -> optax.GradientTransformation:
    def init(params: PyTree[Array]) -> SOAPState:
        return SOAPState(
            taken=jnp.zeros((), jnp.int32),
            leaves=jax.tree.map(lambda w: _start(_matrix(w), w.ndim > 1, max_size), params),
        )

    def update(
        grads: PyTree[Array], state: SOAPState, params: Any = None
    ) -> tuple[PyTree[Array], SOAPState]:
        taken, first = state.taken, state.taken == 0
        fresh = first | (taken % jnp.int32(every) == 0)

        def one(g: Array, leaf: Leaf) -> tuple[Array, Leaf]:
            matrix = _matrix(g)
            leaf = _averaged(matrix, leaf, b1, b2, first)
            update = _rotate(_adam(leaf, b1, b2, epsilon, taken), leaf.sides, back=True)
            update = jnp.where(first, jnp.zeros_like(update), update)
            # As in the authors' code, the basis is refreshed after the update, for later steps.
            leaf = jax.lax.cond(fresh, lambda: _refreshed(leaf, first), lambda: leaf)
            return update.reshape(g.shape), leaf

        done = jax.tree.map(one, grads, state.leaves)
        updates, leaves = (jax.tree.map(lambda _, each, i=i: each[i], grads, done) for i in (0, 1))
        return updates, SOAPState(taken=optax.safe_increment(taken), leaves=leaves)

    return optax.GradientTransformation(init, update)


def _start(w: Matrix, rotated: bool, max_size: int) -> Leaf:
    sides = [
        Side(moment=jnp.zeros((n, n), w.dtype), basis=jnp.eye(n, dtype=w.dtype))
        if rotated and n <= max_size
        else None
        for n in w.shape
    ]
    return Leaf(mean=jnp.zeros_like(w), square=jnp.zeros_like(w), sides=(sides[0], sides[1]))


def _averaged(g: Matrix, leaf: Leaf, b1: float, b2: float, first: Array) -> Leaf:
    """The averages after a gradient; the first gradient updates the factors only."""
    rows, columns = (
        side and side._replace(moment=b2 * side.moment + (1 - b2) * outer)
        for side, outer in zip(leaf.sides, (g @ g.T, g.T @ g), strict=True)
    )
    rotated = _rotate(g, leaf.sides)
    keep = lambda old, new: jnp.where(first, old, new)
    return Leaf(
        mean=keep(leaf.mean, b1 * leaf.mean + (1 - b1) * g),
        square=keep(leaf.square, b2 * leaf.square + (1 - b2) * rotated**2),
        sides=(rows, columns),
    )


def _adam(leaf: Leaf, b1: float, b2: float, epsilon: float, taken: Array) -> Matrix:
    """Adam's update in the basis; the mean is kept outside of it, as bases change."""
    dtype = leaf.mean.dtype
    # The first step does not count.
    weight = lambda decay: 1 - jnp.asarray(decay, dtype) ** jnp.maximum(taken, 1).astype(dtype)
    mean = _rotate(leaf.mean, leaf.sides) / weight(b1)
    return mean / (jnp.sqrt(leaf.square / weight(b2)) + epsilon)


def _rotate(x: Matrix, sides: tuple[Side | None, Side | None], *, back: bool = False) -> Matrix:
    r""":math:`Q_L^\top X Q_R`, or :math:`Q_L X Q_R^\top`."""
    rows, columns = (
        None if side is None else (side.basis.T if back else side.basis) for side in sides
    )
    x = x if rows is None else rows.T @ x
    return x if columns is None else x @ columns


def _refreshed(leaf: Leaf, first: Array) -> Leaf:
    """The leaf with new bases; squares follow their eigenvectors if the order changes."""
    square, sides = leaf.square, list(leaf.sides)
    for axis, side in enumerate(leaf.sides):
        if side is None:
            continue
        order = jnp.argsort(-jnp.diagonal(side.basis.T @ side.moment @ side.basis))
        # At the first basis there are no squares yet to reorder.
        square = jnp.where(first, square, jnp.take(square, order, axis=axis))
        basis = jax.lax.cond(
            first,
            lambda side=side: jnp.linalg.eigh(side.moment)[1][:, ::-1],
            lambda side=side, order=order: jnp.linalg.qr(side.moment @ side.basis[:, order])[0],
        )
        sides[axis] = side._replace(basis=basis)
    return leaf._replace(square=square, sides=(sides[0], sides[1]))


def _matrix(x: Array) -> Matrix:
    return x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(1, -1)
