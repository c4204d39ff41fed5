r"""A metric in Kronecker factors, like those of Shampoo and KFAC."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from proxlin.algebra import Number, Params, Shapes, count
from proxlin.checks import check_integer
from proxlin.metrics.base import Inverse, Metric, check, unbiased, zeros

Matrix = Float[Array, "rows columns"]
Blocks = Float[Array, "blocks n columns"]
_NEWTON_STEPS = 60  # each more than doubles small eigenvalues


class KroneckerState(NamedTuple):
    r"""The state of :class:`Kronecker`.

    Attributes:
        moments: for each matrix, averages of the blocks of :math:`G G^\top` and :math:`G^\top G`;
            for each vector, the average of its squares; in units of ``scales`` squared.
        roots: the inverse roots of the moments when they were last computed.
        scales: for each leaf, the size of its gradients, so that no square overflows. Constant
            factors of the roots do not matter.
    """

    moments: PyTree[Array]
    roots: PyTree[Array]
    scales: PyTree[Array]


@dataclasses.dataclass(frozen=True)
class Kronecker(Metric):
    r"""Second moments of the gradient, in Kronecker factors and at the scale of the gradient.

    .. math:: L \leftarrow \beta L + (1 - \beta)\, G G^\top, \quad
        R \leftarrow \beta R + (1 - \beta)\, G^\top G, \quad
        P^{-1} X = c\, L^{-1/q} X R^{-1/q}

    With :math:`q = 2` the product of the factors approximates the second moment itself, as in
    natural gradients and KFAC; with :math:`q = 4` it approximates its root, as in Shampoo (Gupta,
    Koren and Singer, 2018).

    A gradient :math:`G` is a matrix with one column for each output of a layer; the kernel of a
    convolution has one row for each pixel and input. :math:`L` and :math:`R` consist of diagonal
    blocks of nearly equal size; vectors, such as biases, have the diagonal alone. The factor
    :math:`c` of each leaf gives the preconditioned linear term of the subproblem the length it had
    before, so gamma has the same scale as without a metric.

    Attributes:
        decay: :math:`\beta`.
        block_size: the largest number of rows of a block.
        every: the roots are computed once in this many steps.
        root: :math:`q`, 2 or 4.
        epsilon: added to the diagonals of :math:`L` and :math:`R`, relative to their norms; at
            least rounding.

    Example:
        >>> import jax.numpy as jnp
        >>> metric = Kronecker(root=4, epsilon=1e-6)
        >>> grad, none = jnp.array([[4.0, 0.0], [0.0, 1.0]]), jnp.asarray(0)
        >>> state = metric.update(metric.init(grad), grad, none)
        >>> u = metric.inverse(state, grad, none)(grad)  # as long as the gradient, and orthogonal
        >>> jnp.round(u / u[0, 0], 3)
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """

    decay: Number = 0.95
    block_size: int = 128
    every: int = 20
    root: int = 2
    epsilon: Number = 1e-4

    def __post_init__(self) -> None:
        check(self)
        check_integer(self, "block_size", least=1)
        check_integer(self, "every", least=1)
        if self.root not in (2, 4):
            raise ValueError(f"Kronecker(root={self.root!r}): give 2 or 4")

    def init(self, params: Shapes) -> KroneckerState:
        """Zeros; the first step replaces the roots."""
        start = zeros(params)
        moments = jax.tree.map(lambda w: second_moments(w, self.block_size), start)
        scales = jax.tree.map(_largest, start)
        return KroneckerState(moments=moments, roots=moments, scales=scales)

    def update(self, state: KroneckerState, grad: Params, taken: Int[Array, ""]) -> KroneckerState:
        """Averages the moments, and computes their roots once in ``every`` steps."""
        grad = jax.tree.map(lambda g, s: g.astype(s.dtype), grad, state.scales)
        decayed = lambda s, g: jnp.maximum(_largest(g), self.decay**0.5 * s)
        scales = jax.tree.map(decayed, state.scales, grad)

        def average(g: Array, old: Any, before: Array, after: Array) -> Any:
            after = _or_one(after)
            new = second_moments(g / after, self.block_size)
            fade = self.decay * (before / after) ** 2
            return jax.tree.map(lambda a, b: fade * a + (1 - self.decay) * b, old, new)

        moments = jax.tree.map(average, grad, state.moments, state.scales, scales)

        def roots() -> PyTree[Array]:
            return jax.tree.map(
                lambda g, s: inverse_roots(g, s, self.root, self.epsilon),
                grad,
                unbiased(moments, self.decay, taken),
            )

        latest = jax.lax.cond(taken % self.every == 0, roots, lambda: state.roots)
        return KroneckerState(moments=moments, roots=latest, scales=scales)

    def inverse(self, state: KroneckerState, linear_term: Params, taken: Int[Array, ""]) -> Inverse:
        """Multiplies by the roots on both sides."""
        roots = jax.tree.map(
            lambda x, own: jax.tree.map(lambda r: r.astype(x.dtype), own), linear_term, state.roots
        )
        apply = lambda x, own: apply_roots(x, own, self.block_size)
        lengths = jax.tree.map(lambda x, own: _ratio(x, apply(x, own)), linear_term, roots)
        return lambda x: jax.tree.map(lambda a, r, c: c * apply(a, r), x, roots, lengths)


def second_moments(g: Array, block_size: int) -> Any:
    r"""Diagonal blocks of :math:`G G^\top` and :math:`G^\top G`; the squares of a vector."""
    if _is_vector(g):
        return g * g
    matrix = _matrix(g)
    blocks = _split(matrix, block_size), _split(matrix.T, block_size)
    return tuple(x @ x.swapaxes(-1, -2) for x in blocks)


def inverse_roots(g: Array, moments: Any, root: int, epsilon: Number) -> Any:
    r""":math:`L^{-1/q}` and :math:`R^{-1/q}` for a matrix, :math:`v^{-2/q}` for a vector."""
    if _is_vector(g):
        return (moments + epsilon * _or_one(_largest(moments))) ** (-2 / root)
    return tuple(_inverse_root(s, root, epsilon) for s in moments)


def apply_roots(x: Array, roots: Any, block_size: int) -> Array:
    """A matrix multiplied by its roots on both sides; a vector multiplied by its own."""
    if _is_vector(x):
        return x * roots
    left, right = roots

    def times(root: Float[Array, "blocks n n"], matrix: Matrix) -> Matrix:
        product = root @ _split(matrix, block_size)
        return product.reshape(-1, matrix.shape[1])[: matrix.shape[0]]

    return times(right, times(left, _matrix(x)).T).T.reshape(x.shape)


def _inverse_root(
    matrices: Float[Array, "*blocks n n"], root: int, epsilon: Number
) -> Float[Array, "*blocks n n"]:
    r""":math:`(A / \|A\| + \epsilon I)^{-1/q} \|A\|^{-1/q}` by Newton's iteration.

    .. math:: T = \tfrac{1}{q} \bigl((q + 1) I - M\bigr), \quad X \leftarrow X T, \quad
        M \leftarrow T^q M

    keeps :math:`X^q A = M` up to a constant and drives :math:`M` to the identity. An epsilon
    below rounding is raised to it: eigenvalues of zero may come out negative, and then it diverges.
    """
    # Products only, no eigh: on CPUs two batched eigh at once deadlock if XLA has two threads, and
    # OpenBLAS's threads compete with XLA's (https://github.com/jax-ml/jax/issues/39292).
    dtype = matrices.dtype
    epsilon = jnp.maximum(jnp.asarray(epsilon, dtype), 10 * jnp.finfo(dtype).eps)
    identity = jnp.broadcast_to(jnp.eye(matrices.shape[-1], dtype=dtype), matrices.shape)
    norm = _or_one(jnp.linalg.norm(matrices, axis=(-2, -1), keepdims=True))
    start = (root + 1) / (2 * (1 + epsilon))

    def newton(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        x, m, steps = state
        t = ((root + 1) * identity - m) / root
        square = t @ t
        return x @ t, (square if root == 2 else square @ square) @ m, steps + 1

    far = lambda m: jnp.max(jnp.abs(m - identity)) > 10 * jnp.finfo(dtype).eps
    x, _, _ = jax.lax.while_loop(
        lambda state: far(state[1]) & (state[2] < _NEWTON_STEPS),
        newton,
        (start ** (1 / root) * identity, start * (matrices / norm + epsilon * identity), count(0)),
    )
    return x * norm ** (-1 / root)


def _or_one(x: Array) -> Array:
    """One where there has been no gradient yet: any finite root will do."""
    return jnp.where(x > 0, x, jnp.ones_like(x))


def _is_vector(x: Array) -> bool:
    """Whether a leaf has no factors: a vector, a number, or empty."""
    return x.ndim < 2 or x.size == 0


def _largest(x: Array) -> Float[Array, ""]:
    return jnp.max(jnp.abs(x), initial=0)


def _ratio(x: Array, y: Array) -> Float[Array, ""]:
    """The length of x over that of y, or one if y vanishes, without squares that overflow."""
    scale = _largest(y)
    vanishes = scale == 0
    scale = jnp.where(vanishes, 1, scale)
    length = jnp.linalg.norm((y / scale).ravel())
    return jnp.where(
        vanishes, 1, jnp.linalg.norm((x / scale).ravel()) / jnp.where(vanishes, 1, length)
    )


def _matrix(x: Array) -> Matrix:
    return x.reshape(-1, x.shape[-1])


def _split(matrix: Matrix, block_size: int) -> Blocks:
    """The rows in blocks of equal size, padded with zeros."""
    rows = matrix.shape[0]
    blocks = -(-rows // block_size)
    size = -(-rows // blocks)
    padded = jnp.pad(matrix, [(0, blocks * size - rows), (0, 0)])
    return padded.reshape(blocks, size, -1)
