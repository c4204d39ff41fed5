r"""Shampoo (Gupta, Koren and Singer, 2018), which Optax does not have.

Our own version, because optax-shampoo, the package on PyPI, calls functions that JAX has removed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree

from proxlin.bench.errors import UsageError
from proxlin.extend import apply_roots, inverse_roots, second_moments


class ShampooState(NamedTuple):
    """What Shampoo carries from one step to the next.

    Attributes:
        taken: steps taken so far.
        moments: for each matrix, the blocks of :math:`L` and :math:`R`; for each vector, its
            squares.
        roots: for each matrix, :math:`L^{-1/4}` and :math:`R^{-1/4}` as they were last computed.
            Those of vectors are cheap and recomputed at each step.
    """

    taken: Int[Array, ""]
    moments: PyTree[Array]
    roots: PyTree[Array]


def shampoo(
    stepsize: float,
    *,
    momentum: float = 0.9,
    block_size: int = 256,
    root_every: int = 10,
    decay: float | None = None,
    epsilon: float = 1e-6,
    graft: bool = True,
) -> optax.GradientTransformation:
    r"""Shampoo: gradients preconditioned from both sides.

    .. math::
        L \leftarrow L + G G^\top, \quad R \leftarrow R + G^\top G, \quad
        U = L^{-1/4} G R^{-1/4}

    for each gradient :math:`G` as a matrix, whose columns are the outputs of a layer: kernels of
    convolutions have as many rows as pixels times inputs. Only diagonal blocks of :math:`L` and
    :math:`R` are kept. Vectors, such as biases, get AdaGrad: their :math:`L^{-1/2}` with :math:`L`
    reduced to its diagonal.

    Args:
        stepsize: the step along the preconditioned gradients.
        momentum: of the heavy ball.
        block_size: the maximum number of rows of a block.
        root_every: how many steps the roots are kept.
        decay: of an exponential moving average instead of the sums; None for sums.
        epsilon: what is added to :math:`L` and :math:`R`, relative to their norms.
        graft: whether :math:`U` gets the norm of :math:`G`, so that stepsizes are those of SGD.

    Returns:
        An Optax transformation.

    Raises:
        UsageError: for sizes below one, or numbers out of their range.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> scales = jnp.array([[1.0, 1e-2], [1e-1, 1e-3]])
        >>> opt = shampoo(0.05, momentum=0.0, graft=False)
        >>> w = jnp.ones((2, 2))
        >>> state = opt.init(w)
        >>> updates, state = opt.update(scales * w, state)
        >>> updates.shape, bool(jnp.vdot(updates, scales * w) < 0)
        ((2, 2), True)
    """
    if block_size < 1 or root_every < 1:
        raise UsageError(
            f"shampoo with block_size={block_size}, root_every={root_every}: both must be at least "
            "one; the defaults are 256 and 10"
        )
    if (decay is not None and not 0 < decay < 1) or not epsilon > 0:
        raise UsageError(
            f"shampoo with decay={decay}, epsilon={epsilon}: decay must lie between 0 and 1, or be "
            "None for sums, and epsilon must be positive"
        )
    return optax.chain(
        _scale_by_shampoo(block_size, root_every, decay, epsilon, graft),
        optax.trace(momentum),
        optax.scale_by_learning_rate(stepsize),
    )


def _scale_by_shampoo(
    block_size: int, root_every: int, decay: float | None, epsilon: float, graft: bool
) -> optax.GradientTransformation:
    def init(params: PyTree[Array]) -> ShampooState:
        moments = jax.tree.map(lambda w: second_moments(jnp.zeros_like(w), block_size), params)
        # The first step replaces the roots.
        return ShampooState(jnp.zeros((), jnp.int32), moments, moments)

    def update(
        grads: PyTree[Array], state: ShampooState, params: Any = None
    ) -> tuple[PyTree[Array], ShampooState]:
        new = jax.tree.map(lambda g: second_moments(g, block_size), grads)
        taken = optax.safe_increment(state.taken)
        if decay is None:
            moments = mean = jax.tree.map(jnp.add, state.moments, new)
        else:
            moments = optax.tree.update_moment(new, state.moments, decay, order=1)
            total = 1 - jnp.float32(decay) ** taken.astype(jnp.float32)  # of all weights so far
            mean = jax.tree.map(lambda s: s / total.astype(s.dtype), moments)
        roots = jax.lax.cond(
            state.taken % jnp.int32(root_every) == 0,
            lambda: jax.tree.map(lambda g, s: inverse_roots(g, s, 4, epsilon), grads, mean),
            lambda: state.roots,
        )

        def preconditioned(g: Array, moments: Any, roots: Any) -> Array:
            now = roots if g.ndim > 1 else inverse_roots(g, moments, 4, epsilon)
            u = apply_roots(g, now, block_size)
            return _with_norm_of(g, u) if graft else u

        updates = jax.tree.map(preconditioned, grads, mean, roots)
        return updates, ShampooState(taken, moments, roots)

    return optax.GradientTransformation(init, update)


def _with_norm_of(g: Array, u: Array) -> Array:
    norm = jnp.linalg.norm(u.ravel())
    return u * (jnp.linalg.norm(g.ravel()) / jnp.where(norm > 0, norm, 1))
