"""Shampoo against dense linear algebra, and what it promises."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from proxlin.bench.errors import UsageError
from proxlin.bench.rivals.shampoo import shampoo

SHAPES = {"dense": (7, 5), "bias": (5,), "kernel": (3, 3, 2, 4), "scale": ()}
EPSILON = 1e-3  # so large that float32 has the eigenvalues right


def gradients(steps, seed=0):
    rng = np.random.default_rng(seed)
    return [{name: rng.normal(size=shape) for name, shape in SHAPES.items()} for _ in range(steps)]


def singles(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def run(optimizer, grads):
    """The updates for these gradients, one after the other."""
    state = optimizer.init(singles(grads[0]))
    update, all_updates = jax.jit(optimizer.update), []
    for g in grads:
        updates, state = update(singles(g), state)
        all_updates.append(updates)
    return all_updates, state


def power(x, exponent):
    return (x + EPSILON * np.max(x)) ** exponent


def root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    shifted = np.maximum(values, 0) + EPSILON * np.linalg.norm(matrix)
    return vectors @ np.diag(shifted ** (-1 / 4)) @ vectors.T


def pieces(n, size):
    count = -(-n // size)
    length = -(-n // count)
    return [slice(i, min(i + length, n)) for i in range(0, n, length)]


def average(matrices, decay):
    """The sum, or what the moving average is without its bias."""
    if decay is None:
        return sum(matrices)
    weights = decay ** np.arange(len(matrices))[::-1]
    return sum(w * m for w, m in zip(weights, matrices, strict=True)) / weights.sum()


def preconditioned(past, known, block_size, decay):
    """The last of these gradients, with the roots of the first ``known``."""
    g = past[-1]
    if g.ndim < 2:
        return g * power(average([x * x for x in past], decay), -1 / 2)
    matrices = [x.reshape(-1, x.shape[-1]) for x in past]
    left = average([x @ x.T for x in matrices[:known]], decay)
    right = average([x.T @ x for x in matrices[:known]], decay)
    u = blocks_root(left, block_size) @ matrices[-1] @ blocks_root(right, block_size)
    return u.reshape(g.shape)


def blocks_root(matrix, block_size):
    """The root of the diagonal blocks, and nothing beside them."""
    found = np.zeros_like(matrix)
    for rows in pieces(len(matrix), block_size):
        found[rows, rows] = root(matrix[rows, rows])
    return found


def reference(grads, stepsize, momentum, block_size, root_every, decay, graft):
    velocity, updates = {name: 0.0 for name in SHAPES}, []
    for t in range(len(grads)):
        known = t // root_every * root_every + 1
        for name in SHAPES:
            past = [g[name] for g in grads[: t + 1]]
            u = preconditioned(past, known, block_size, decay)
            if graft:
                u = u * np.linalg.norm(past[-1]) / np.linalg.norm(u)
            velocity[name] = momentum * velocity[name] + u
        updates.append({name: -stepsize * v for name, v in velocity.items()})
    return updates


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 100, "root_every": 1, "decay": None, "graft": False},
        {"block_size": 3, "root_every": 1, "decay": None, "graft": False},
        {"block_size": 4, "root_every": 2, "decay": None, "graft": True},
        {"block_size": 100, "root_every": 3, "decay": 0.9, "graft": False},
    ],
)
def test_against_dense_algebra(options):
    grads = gradients(5)
    optimizer = shampoo(0.1, momentum=0.9, epsilon=EPSILON, **options)
    got, _ = run(optimizer, grads)
    want = reference(grads, 0.1, 0.9, **options)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)
    jax.tree.map(close, got, want)


def test_roots_are_kept():
    grads = gradients(4)
    states = [run(shampoo(0.1, root_every=3), grads[:n])[1][0] for n in range(1, 5)]
    same = lambda a, b: all(
        np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True)
    )
    roots = [state.roots for state in states]
    moments = [state.moments for state in states]
    assert same(roots[0], roots[1]) and same(roots[1], roots[2]) and not same(roots[2], roots[3])
    assert not same(moments[0], moments[1])
    assert [int(state.taken) for state in states] == [1, 2, 3, 4]


def test_badly_conditioned_quadratic():
    """Half the squared norm of A W B: SGD at its best stepsize is left far behind."""
    rng = np.random.default_rng(0)
    scales = np.logspace(0, -1.5, 8)
    rotate = lambda: np.linalg.qr(rng.normal(size=(8, 8)))[0]
    a, b = (jnp.asarray(rotate() @ np.diag(scales) @ rotate(), jnp.float32) for _ in range(2))
    objective = lambda w: 0.5 * jnp.sum((a @ w @ b) ** 2)
    start = jnp.asarray(rng.normal(size=(8, 8)), jnp.float32)

    def after(optimizer):
        def step(carry, _):
            w, state = carry
            updates, state = optimizer.update(jax.grad(objective)(w), state, w)
            return (optax.apply_updates(w, updates), state), None

        run = lambda w: jax.lax.scan(step, (w, optimizer.init(w)), length=200)[0][0]
        return float(objective(jax.jit(run)(start)))

    sgd = min(after(optax.sgd(rate, momentum=0.9)) for rate in (0.1, 0.3, 1.0, 2.0, 3.0, 3.5))
    best = min(after(shampoo(rate, root_every=1, graft=False)) for rate in (0.3, 1.0, 3.0, 10.0))
    assert best < 0.01 * sgd < 0.01 * float(objective(start))


def test_state_keeps_its_structure():
    optimizer = shampoo(0.1, block_size=3, decay=0.9)
    grads = gradients(2)
    state = optimizer.init(singles(grads[0]))
    _, after = run(optimizer, grads)
    describe = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
    assert describe(state) == describe(after)
    floats = {x.dtype for x in jax.tree.leaves(after) if x.ndim}
    assert floats == {np.dtype("float32")}


def test_no_gradient_no_step():
    zeros = jax.tree.map(np.zeros_like, gradients(1)[0])
    for graft in (False, True):
        updates, state = run(shampoo(0.1, graft=graft), [zeros])
        assert all((x == 0).all() for x in jax.tree.leaves(updates))
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(state))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size=0, root_every=10: both must be at least one"),
        ({"root_every": 0}, "root_every=0"),
        ({"decay": 1.0}, "decay=1.0"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UsageError, match=message):
        shampoo(0.1, **options)
