r"""Inverse roots of many positive semidefinite matrices, by products alone."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from proxlin.algebra import Number, count
from proxlin.meshes import undivided

Stack = Float[Array, "matrices n n"]

# The quintic of Muon (Jordan et al., 2024) multiplies small singular values by 3.44 at each step.
_FAST = (3.4445, -4.7750, 2.0315)
# That of Newton and Schulz converges: an error e becomes about 2.5 e^3.
_LAST = (15 / 8, -10 / 8, 3 / 8)
_LAST_STEPS = 20  # five are usually enough


def inverse_roots_of(matrices: list[Array], root: int, epsilon: Number) -> list[Array]:
    r""":math:`(A / \|A\| + \epsilon I)^{-1/q} \|A\|^{-1/q}` for stacks of matrices of any sizes.

    All matrices whose sizes round to the same power of two are padded to it and share one loop, so
    that the time to compile grows with the number of these sizes, not with that of the matrices.

    Args:
        matrices: stacks of symmetric positive semidefinite matrices, ``(..., n, n)``.
        root: :math:`q`, 2 or 4.
        epsilon: relative to the Frobenius norm of each matrix; at least rounding.
    """
    groups: dict[tuple[int, str], list[int]] = {}
    for i, stack in enumerate(matrices):
        size = 1 << (stack.shape[-1] - 1).bit_length()
        groups.setdefault((size, str(stack.dtype)), []).append(i)
    found: dict[int, Array] = {}
    for (size, _), members in groups.items():
        padded = [_pad(matrices[i], size) for i in members]
        roots = _inverse_root(undivided(jnp.concatenate(padded)), root, epsilon)
        ends = list(itertools.accumulate(len(stack) for stack in padded))
        for i, own in zip(members, jnp.split(roots, ends[:-1]), strict=True):
            n = matrices[i].shape[-1]
            found[i] = own[:, :n, :n].reshape(matrices[i].shape)
    return [found[i] for i in range(len(matrices))]


def _pad(stack: Array, size: int) -> Stack:
    n = stack.shape[-1]
    return jnp.pad(stack.reshape(-1, n, n), [(0, 0), (0, size - n), (0, size - n)])


def _inverse_root(matrices: Stack, root: int, epsilon: Number) -> Stack:
    """The same for matrices of one size."""
    dtype = matrices.dtype
    # Below rounding, eigenvalues of zero may come out negative, and the iteration diverges.
    epsilon = jnp.maximum(jnp.asarray(epsilon, dtype), 10 * jnp.finfo(dtype).eps)
    # Divided by the largest entry first: moments are squares, and squares of them might overflow.
    largest = jnp.max(jnp.abs(matrices), axis=(-2, -1), keepdims=True)
    largest = jnp.where(largest > 0, largest, 1)
    norm = largest * jnp.linalg.norm(matrices / largest, axis=(-2, -1), keepdims=True)
    norm = jnp.where(norm > 0, norm, 1)
    shifted = matrices / norm + epsilon * _identity(matrices)
    result = _inverse_sqrt(shifted, epsilon)
    if root == 4:
        result = _inverse_sqrt(shifted @ result, epsilon**0.5)  # of the root
    return result * norm ** (-1 / root)


def _inverse_sqrt(matrices: Stack, least: Float[Array, ""]) -> Stack:
    r""":math:`A^{-1/2}` for eigenvalues from ``least`` to about one.

    .. math:: T = a I + b M + c M^2, \quad X \leftarrow X T, \quad M \leftarrow T^2 M

    keeps :math:`X^2 A = M` and drives :math:`M` to the identity; the square root of an eigenvalue
    :math:`\sigma^2` of :math:`M` goes to :math:`a \sigma + b \sigma^3 + c \sigma^5`.
    """
    # Products only, no eigh: on CPUs two batched eigh at once deadlock if XLA has two threads, and
    # OpenBLAS's threads compete with XLA's (https://github.com/jax-ml/jax/issues/39292).
    dtype = matrices.dtype
    identity = _identity(matrices)
    scale = 1 + least  # an upper bound of all eigenvalues
    fast_steps = count(jnp.ceil(-0.5 * jnp.log(least) / jnp.log(_FAST[0])))

    def improve(state: tuple[Stack, Stack, Array]) -> tuple[Stack, Stack, Array]:
        x, m, steps = state
        fast = steps < fast_steps
        a, b, c = (
            jnp.where(fast, quick, last).astype(dtype)
            for quick, last in zip(_FAST, _LAST, strict=True)
        )
        t = a * identity + b * m + c * (m @ m)
        return x @ t, t @ (t @ m), steps + 1

    far = lambda m: jnp.max(jnp.abs(m - identity)) > 10 * jnp.finfo(dtype).eps
    x, _, _ = jax.lax.while_loop(
        lambda s: (s[2] < fast_steps) | (far(s[1]) & (s[2] < fast_steps + _LAST_STEPS)),
        improve,
        (identity, matrices / scale, count(0)),
    )
    return x * scale**-0.5


def _identity(like: Stack) -> Stack:
    return jnp.broadcast_to(jnp.eye(like.shape[-1], dtype=like.dtype), like.shape)
