r"""The linear case: stochastic dual coordinate ascent, a block of examples at a time.

With :math:`f_i(W) = W x_i` the Jacobian does not depend on the parameters. The dual of

.. math:: \min_W \tfrac1n \sum_i \ell_i(W x_i) + \tfrac{\lambda}{2} \|W\|^2

has one variable :math:`a_i \in R^k` for each example, with :math:`W = -c \sum_i a_i x_i^\top` and
:math:`c = 1 / (\lambda n)`, and a step solves the dual subproblem of a block exactly, at :math:`W`
without the block's own contribution.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from proxlin.algebra import dot
from proxlin.arrays import as_array, as_floats, counts
from proxlin.checks import require
from proxlin.losses import Loss
from proxlin.solvers import CompositeProblem, ProximalGradient

Weights = Float[Array, "k d"]
Duals = Float[Array, "n k"]


class SDCAInfo(NamedTuple):
    """The report of :func:`sdca`.

    Attributes:
        primal: the objective after each epoch.
        dual: the dual objective after each epoch, a lower bound of the minimum.
        gap: their difference, which bounds the error of the objective.
        duals: the final dual variables.
    """

    primal: Float[Array, " epochs"]
    dual: Float[Array, " epochs"]
    gap: Float[Array, " epochs"]
    duals: Duals


def sdca(
    features: Any,
    targets: Any,
    loss: Loss,
    *,
    strength: float,
    epochs: int,
    key: Array,
    block_size: int = 1,
    outputs: int | None = None,
) -> tuple[Weights, SDCAInfo]:
    r"""Trains a linear model :math:`x \mapsto W x` by dual coordinate ascent.

    For one example the step is :math:`a_i = \operatorname{prox}_{\sigma \ell_i^*}(\sigma f_i)` with
    :math:`\sigma = 1 / (c \|x_i\|^2)`, in closed form for the squared, hinge and sparsemax losses
    and by Newton's method for the logistic ones; for larger blocks

    .. math:: \min_a \sum_i \ell_i^*(a_i) - \langle a_i, f_i \rangle
        + \tfrac{c}{2} \langle a, K a \rangle, \qquad K_{ij} = \langle x_i, x_j \rangle

    is solved by accelerated proximal gradient.

    Args:
        features: ``(n, d)``, a NumPy or JAX array or a SciPy sparse matrix. Integers and booleans
            are cast to the default floating-point dtype, half precision to float32.
        targets: what the loss takes for ``n`` examples.
        loss: a loss with a conjugate.
        strength: :math:`\lambda`, positive.
        epochs: passes over the data.
        key: a random key, for the order of the examples.
        block_size: how many examples to optimize jointly.
        outputs: :math:`k`; taken from the targets if None.

    Returns:
        The weights ``(k, d)``, and values, bounds and gaps after each epoch.

    Raises:
        TypeError: for a loss without a conjugate, or data that are not real numbers.
        ValueError: for data that do not fit or are not finite, or options that are not positive.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from proxlin import Squared
        >>> x = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> w, info = sdca(x, x, Squared(), strength=0.5, epochs=20, key=jax.random.key(0))
        >>> bool(jnp.allclose(w, 0.5 * jnp.eye(2), atol=1e-3))
        True
    """
    rows, targets = _rows(features), as_array("targets", targets)
    n = rows.count
    k = _count_outputs(targets, n) if outputs is None else outputs
    like = jax.ShapeDtypeStruct((n, k), rows.dtype)
    _check(loss, like, targets, strength, epochs, block_size)
    strength = float(strength)  # a NumPy number would bring its own precision
    c = 1 / (strength * n)

    def epoch(duals: Duals, key: Array) -> tuple[Duals, tuple[Array, Array]]:
        order = jax.random.permutation(key, n)
        # The last block is padded with index n, which stands for an empty row.
        order = jnp.concatenate([order, jnp.full(-n % block_size, n, order.dtype)])

        def visit(state: tuple[Weights, Duals], block: Int[Array, " b"]) -> tuple[Any, None]:
            return _block_step(rows, targets, loss, c, *state, block), None

        state = (-c * rows.transposed_times(duals), duals)
        _, duals = jax.lax.scan(visit, state, order.reshape(-1, block_size))[0]
        return duals, _values(rows, targets, loss, strength, duals)

    start = loss.grad(jnp.zeros((n, k), rows.dtype), targets)
    run = jax.jit(lambda duals, keys: jax.lax.scan(epoch, duals, keys))
    duals, (primal, dual) = run(start, jax.random.split(key, epochs))
    info = SDCAInfo(primal=primal, dual=dual, gap=primal - dual, duals=duals)
    return -c * rows.transposed_times(duals), info


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Feature rows: all entries, or those that are not zero with their columns, padded."""

    values: Float[Array, "n width"]
    columns: Int[Array, "n width"] | None
    features: int

    @property
    def count(self) -> int:
        return self.values.shape[0]

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def dense(self, block: Int[Array, " b"]) -> Float[Array, "b d"]:
        """Some rows; an index beyond the last one gives zeros."""
        values = self.values.at[block].get(mode="fill", fill_value=0)
        if self.columns is None:
            return values
        columns = self.columns.at[block].get(mode="clip")
        empty = jnp.zeros((len(block), self.features), self.dtype)
        return empty.at[jnp.arange(len(block))[:, None], columns].add(values)

    def times(self, weights: Weights) -> Duals:
        """X W^T."""
        if self.columns is None:
            return self.values @ weights.T
        one = lambda row: row[0] @ weights.T[row[1]]
        return jax.lax.map(one, (self.values, self.columns), batch_size=256)

    def transposed_times(self, duals: Duals) -> Weights:
        """A^T X."""
        if self.columns is None:
            return duals.T @ self.values
        empty = jnp.zeros((self.features, duals.shape[1]), self.dtype)

        def add(total: Array, row: tuple[Array, Array, Array]) -> tuple[Array, None]:
            values, columns, dual = row
            return total.at[columns].add(values[:, None] * dual[None, :]), None

        return jax.lax.scan(add, empty, (self.values, self.columns, duals))[0].T


def _block_step(
    rows: _Rows,
    targets: Array,
    loss: Loss,
    c: float,
    weights: Weights,
    duals: Duals,
    block: Int[Array, " b"],
) -> tuple[Weights, Duals]:
    """Optimizes the dual variables of a block, with all others fixed."""
    x = rows.dense(block)
    y = targets.at[block].get(mode="clip")
    old = duals.at[block].get(mode="fill", fill_value=0)
    kernel = x @ x.T
    outputs = x @ weights.T + c * kernel @ old
    solve = _one_example if len(block) == 1 else _many_examples
    new = solve(loss, y, outputs, c * kernel, old)
    return weights - c * (new - old).T @ x, duals.at[block].set(new, mode="drop")


def _one_example(loss: Loss, y: Array, outputs: Duals, kernel: Array, old: Duals) -> Duals:
    curvature = kernel[0, 0]
    sigma = 1 / jnp.where(curvature > 0, curvature, 1)
    new = loss.prox_conjugate(sigma * outputs, y, sigma)
    return jnp.where(curvature > 0, new, loss.grad(outputs, y))  # x = 0: nothing couples


def _many_examples(loss: Loss, y: Array, outputs: Duals, kernel: Array, old: Duals) -> Duals:
    eigenvalues, u = jnp.linalg.eigh(kernel)
    root = (u * jnp.sqrt(jnp.maximum(eigenvalues, 0))[None, :]) @ u.T
    unknown = jnp.zeros((), old.dtype)
    problem = CompositeProblem(
        apply=lambda a: root @ a,
        adjoint=lambda v: root @ v,
        smooth_grad=lambda v: v,
        prox=lambda a, t: loss.prox_conjugate(a + t * outputs, y, t),
        inner=dot,
        image_inner=dot,
        start=old,
        start_image=root @ old,
        bounds=lambda a, v: (unknown, unknown),
    )
    return ProximalGradient(max_steps=200).solve(problem).x


def _values(
    rows: _Rows, targets: Array, loss: Loss, strength: float, duals: Duals
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Primal and dual objective, given the dual variables."""
    weights = -1 / (strength * rows.count) * rows.transposed_times(duals)
    ridge = 0.5 * strength * jnp.sum(weights**2)
    primal = jnp.mean(loss.value(rows.times(weights), targets)) + ridge
    return primal, -jnp.mean(loss.conjugate(duals, targets)) - ridge


def _rows(features: Any) -> _Rows:
    if hasattr(features, "tocsr"):
        rows = _sparse_rows(features)
    else:
        values = as_floats("features", features)
        _check_shape(values.shape)
        rows = _Rows(values=values, columns=None, features=values.shape[1])
    require(
        lambda x: jnp.isfinite(jnp.sum(x**2, axis=1)),
        lambda x: (
            f"features contain numbers that are not finite, or whose squares are not, in {x.dtype};"
            " leave out or fill in such examples, and scale numbers that are too large"
        ),
        rows.values,
    )
    return rows


def _sparse_rows(features: Any) -> _Rows:
    _check_shape(features.shape)
    matrix = features.tocsr()
    if not matrix.has_canonical_format:
        # Before the cast, because the sum of two booleans is one; on a copy, not on the input.
        matrix = matrix.copy()
        matrix.sum_duplicates()
    n, d = matrix.shape
    data = np.asarray(as_floats("features", matrix.data))
    lengths = np.diff(matrix.indptr)
    width = max(1, int(lengths.max()))
    present = np.arange(width)[None, :] < lengths[:, None]
    entries = np.zeros((n, width), data.dtype)
    columns = np.zeros((n, width), np.int32)
    entries[present], columns[present] = data, matrix.indices
    return _Rows(values=jnp.asarray(entries), columns=jnp.asarray(columns), features=d)


def _check_shape(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or 0 in shape:
        raise ValueError(
            f"features must be a matrix (n, d) with at least one entry, not of shape {shape}"
        )
    if shape[1] > np.iinfo(np.int32).max:
        raise ValueError(
            f"features of shape {shape}: columns are numbered in 32 bits; leave out or hash columns"
        )


def _count_outputs(targets: Array, n: int) -> int:
    shape = targets.shape
    if len(shape) == 2:
        return shape[1]
    if shape == (n,) and counts(targets.dtype):
        return max(1, int(np.max(np.asarray(targets))) + 1)
    raise ValueError(
        f"targets of shape {shape} and dtype {targets.dtype} for {n} examples: give integer labels "
        f"({n},), with .astype(int), or rows ({n}, k), with targets[:, None] if k is one; or pass "
        "the number of `outputs`"
    )


def _check(
    loss: Loss, like: Any, targets: Array, strength: float, epochs: int, block_size: int
) -> None:
    if not isinstance(loss, Loss) or not loss.has_conjugate:
        raise TypeError(
            f"sdca works in the dual and needs a loss with a conjugate, which {loss} does not have"
        )
    if not 0 < strength < np.inf:
        raise ValueError(f"strength={strength}: give a positive number")
    for name, value in (("epochs", epochs), ("block_size", block_size), ("outputs", like.shape[1])):
        if not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name}={value}: give a positive integer")
    loss.check(like, targets)
    require(
        lambda y: loss.valid(like, y),
        lambda y: f"some targets are not allowed; {type(loss).__name__} takes {loss.allowed(like)}",
        targets,
    )
