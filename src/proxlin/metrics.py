r"""Metrics of the proximity term, learnt from the gradients of the steps before.

In a metric :math:`P` a prox-linear direction minimises the model of the objective plus
:math:`\tfrac{1}{2 \gamma} \langle d, P d \rangle`. Without inner steps it is :math:`\gamma P^{-1}
\nabla h`: the step of Adam or of Shampoo, if :math:`P` is theirs.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from proxlin.linearize import Params, algebra_dtype
from proxlin.solvers.system import count

Matrix = Float[Array, "rows columns"]
Blocks = Float[Array, "blocks n columns"]
Inverse = Callable[[Params], Params]
_NEWTON_STEPS = 40  # each makes small eigenvalues more than twice as large


class Metric(abc.ABC):
    """A positive definite linear map of parameter space; a frozen dataclass, its state apart."""

    @abc.abstractmethod
    def init(self, params: Params) -> Any:
        """The state before the first step."""

    @abc.abstractmethod
    def update(self, state: Any, grad: Params, taken: Int[Array, ""]) -> Any:
        """Learns from the gradient of a step; ``taken`` counts the steps before it."""

    @abc.abstractmethod
    def inverse(self, state: Any, source: Params, taken: Int[Array, ""]) -> Inverse | None:
        r""":math:`P^{-1}` for the step whose linear term is ``source``; None for the identity."""


@dataclasses.dataclass(frozen=True)
class Euclidean(Metric):
    """The identity, as in the paper."""

    def init(self, params: Params) -> tuple[()]:
        """Nothing."""
        return ()

    def update(self, state: tuple[()], grad: Params, taken: Int[Array, ""]) -> tuple[()]:
        """Nothing."""
        return ()

    def inverse(self, state: tuple[()], source: Params, taken: Int[Array, ""]) -> None:
        """The identity."""
        return None


@dataclasses.dataclass(frozen=True)
class Diagonal(Metric):
    r"""The metric of Adam (Kingma and Ba, 2015).

    .. math:: v \leftarrow \beta v + (1 - \beta)\, \nabla h^2, \qquad
        P = \operatorname{diag}\bigl(\sqrt{\hat v} + \epsilon\bigr)

    with :math:`\hat v` corrected for its start at zero.

    Attributes:
        decay: :math:`\beta`.
        epsilon: what is added to the roots.

    Example:
        >>> import jax.numpy as jnp
        >>> metric = Diagonal()
        >>> grad, none = jnp.array([4.0, -1.0]), jnp.asarray(0)
        >>> state = metric.update(metric.init(grad), grad, none)
        >>> jnp.round(metric.inverse(state, grad, none)(grad), 3)
        Array([ 1., -1.], dtype=float32)
    """

    decay: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check(self)

    def init(self, params: Params) -> Params:
        """Zeros."""
        return _zeros(params)

    def update(self, state: Params, grad: Params, taken: Int[Array, ""]) -> Params:
        """Averages the squares."""
        return _average(state, jax.tree.map(jnp.square, grad), self.decay)

    def inverse(self, state: Params, source: Params, taken: Int[Array, ""]) -> Inverse:
        """Divides by the roots."""
        unbiased = _unbiased(state, self.decay, taken)
        return lambda x: jax.tree.map(
            lambda a, v: a / (jnp.sqrt(v) + self.epsilon).astype(a.dtype), x, unbiased
        )


class KroneckerState(NamedTuple):
    r"""What :class:`Kronecker` has learnt.

    Attributes:
        moments: for each matrix, the averages of the blocks of :math:`G G^\top` and of those of
            :math:`G^\top G`; for each vector, those of its squares.
        roots: the inverse roots of the former and of the latter, as they were last computed.
    """

    moments: PyTree[Array]
    roots: PyTree[Array]


@dataclasses.dataclass(frozen=True)
class Kronecker(Metric):
    r"""Second moments of the gradient, in Kronecker factors and at the scale of the gradient.

    .. math:: L \leftarrow \beta L + (1 - \beta)\, G G^\top, \quad
        R \leftarrow \beta R + (1 - \beta)\, G^\top G, \quad
        P^{-1} X = c\, L^{-1/q} X R^{-1/q}

    With :math:`q = 2` the product of the factors stands for the second moment itself, as in
    natural gradients and KFAC; :math:`q = 4` stands for its root and is Shampoo (Gupta, Koren and
    Singer, 2018).

    A gradient :math:`G` is a matrix whose columns are the outputs of a layer: kernels of
    convolutions have as many rows as pixels times inputs. Of :math:`L` and :math:`R` diagonal
    blocks are kept, as equal in size as can be; of vectors, such as biases, the diagonal alone. The
    factor :math:`c` of each leaf makes the preconditioned linear term of the subproblem as long as
    it was before, so that gamma has the scale it has without a metric.

    Attributes:
        decay: :math:`\beta`.
        block_size: the most rows of a block.
        every: how many steps the roots are kept.
        root: :math:`q`, 2 or 4.
        epsilon: what is added to the diagonals of :math:`L` and :math:`R`, relative to their norms.

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

    decay: float = 0.95
    block_size: int = 128
    every: int = 20
    root: int = 2
    epsilon: float = 1e-4

    def __post_init__(self) -> None:
        _check(self)
        if self.block_size < 1 or self.every < 1 or self.root not in (2, 4):
            raise ValueError(
                f"{self}: block_size and every must be at least 1, and root must be 2 or 4"
            )

    def init(self, params: Params) -> KroneckerState:
        """Zeros; the first step replaces the roots."""
        zeros = jax.tree.map(lambda w: second_moments(w, self.block_size), _zeros(params))
        return KroneckerState(zeros, zeros)

    def update(self, state: KroneckerState, grad: Params, taken: Int[Array, ""]) -> KroneckerState:
        """Averages the moments, and computes their roots at every so many steps."""
        new = jax.tree.map(lambda g: second_moments(g, self.block_size), grad)
        moments = _average(state.moments, new, self.decay)

        def roots() -> PyTree[Array]:
            return jax.tree.map(
                lambda g, s: inverse_roots(g, s, self.root, self.epsilon),
                grad,
                _unbiased(moments, self.decay, taken),
            )

        keep = lambda: state.roots
        return KroneckerState(moments, jax.lax.cond(taken % self.every == 0, roots, keep))

    def inverse(self, state: KroneckerState, source: Params, taken: Int[Array, ""]) -> Inverse:
        """Multiplies by the roots from both sides."""
        apply = lambda x, roots: precondition(x, roots, self.block_size)
        lengths = jax.tree.map(lambda x, r: _ratio(x, apply(x, r)), source, state.roots)
        return lambda x: jax.tree.map(lambda a, r, c: c * apply(a, r), x, state.roots, lengths)


def second_moments(g: Array, block_size: int) -> Any:
    r"""Diagonal blocks of :math:`G G^\top` and :math:`G^\top G`; the squares of a vector."""
    if g.ndim < 2:
        return g * g
    matrix = _matrix(g)
    blocks = _split(matrix, block_size), _split(matrix.T, block_size)
    return tuple(x @ x.swapaxes(-1, -2) for x in blocks)


def inverse_roots(g: Array, moments: Any, root: int, epsilon: float) -> Any:
    r""":math:`L^{-1/q}` and :math:`R^{-1/q}` for a matrix, :math:`v^{-2/q}` for a vector."""
    if g.ndim < 2:
        largest = _or_one(jnp.max(moments, initial=0))
        return (moments + epsilon * largest) ** (-2 / root)
    return tuple(_inverse_root(s, root, epsilon) for s in moments)


def precondition(x: Array, roots: Any, block_size: int) -> Array:
    """A matrix times its roots from both sides; a vector times its own."""
    if x.ndim < 2:
        return x * roots
    left, right = roots

    def times(root: Blocks, matrix: Matrix) -> Matrix:
        product = root @ _split(matrix, block_size)
        return product.reshape(-1, matrix.shape[1])[: matrix.shape[0]]

    return times(right, times(left, _matrix(x)).T).T.reshape(x.shape)


def _inverse_root(
    matrices: Float[Array, "*blocks n n"], root: int, epsilon: float
) -> Float[Array, "*blocks n n"]:
    r""":math:`(A / \|A\| + \epsilon I)^{-1/q} \|A\|^{-1/q}` by Newton's iteration.

    .. math:: T = \tfrac{1}{q} \bigl((q + 1) I - M\bigr), \quad X \leftarrow X T, \quad
        M \leftarrow T^q M

    keeps :math:`X^q A = M` up to a constant and drives :math:`M` to the identity.
    """
    # Products only, and no eigh: on CPUs two batched eigh at once wait for each other forever when
    # XLA has two threads, and OpenBLAS's own threads get in the way of XLA's
    # (https://github.com/jax-ml/jax/issues/39292).
    dtype = matrices.dtype
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
    """One where there was no gradient yet: any finite root will do."""
    return jnp.where(x > 0, x, jnp.ones_like(x))


def _ratio(x: Array, y: Array) -> Float[Array, ""]:
    """The length of x over that of y, one where y vanishes."""
    length = jnp.linalg.norm(y.ravel())
    vanishes = length == 0
    return jnp.where(vanishes, 1, jnp.linalg.norm(x.ravel()) / jnp.where(vanishes, 1, length))


def _matrix(x: Array) -> Matrix:
    return x.reshape(-1, x.shape[-1])


def _split(matrix: Matrix, block_size: int) -> Blocks:
    """The rows in blocks of equal size, with zeros where they reach beyond the matrix."""
    rows = matrix.shape[0]
    blocks = -(-rows // block_size)
    size = -(-rows // blocks)
    padded = jnp.pad(matrix, [(0, blocks * size - rows), (0, 0)])
    return padded.reshape(blocks, size, -1)


def _zeros(params: Params) -> Params:
    dtype = algebra_dtype(params)
    return jax.tree.map(lambda w: jnp.zeros(w.shape, dtype), params)


def _average(old: PyTree[Array], new: PyTree[Array], decay: float) -> PyTree[Array]:
    return jax.tree.map(lambda a, b: decay * a + (1 - decay) * b, old, new)


def _unbiased(average: PyTree[Array], decay: float, taken: Int[Array, ""]) -> PyTree[Array]:
    """An average that started at zero, divided by the weights it has gathered."""
    weights = lambda dtype: 1 - jnp.asarray(decay, dtype) ** (taken + 1).astype(dtype)
    return jax.tree.map(lambda x: x / weights(x.dtype), average)


def _check(metric: Any) -> None:
    if not 0 <= metric.decay < 1 or not metric.epsilon > 0:
        raise ValueError(f"{metric}: decay must lie between 0 and 1, and epsilon must be positive")
