"""SOAP against dense linear algebra, and what it promises."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from proxlin.bench.errors import UsageError
from proxlin.bench.rivals.soap import soap

# Square ones: one gradient says nothing of a part of the longer side, whose basis is arbitrary.
SHAPES = {"dense": (5, 5), "bias": (5,), "kernel": (2, 1, 3, 6), "scale": ()}
OPTIONS: dict[str, Any] = {"b1": 0.9, "b2": 0.8, "epsilon": 1e-8}


def gradients(steps, shapes=SHAPES):
    rng = np.random.default_rng(0)
    return [{name: rng.normal(size=shape) for name, shape in shapes.items()} for _ in range(steps)]


def run(optimizer, grads):
    """The updates for these gradients, one after the other."""
    state = optimizer.init(jax.tree.map(jnp.asarray, grads[0]))
    update, found = jax.jit(optimizer.update), []
    for g in grads:
        updates, state = update(jax.tree.map(jnp.asarray, g), state, g)
        found.append(updates)
    return found, state


def adam(grads, b1, b2, epsilon):
    """Adam on all gradients but the first, which makes no step."""
    mean = square = 0.0
    updates = [np.zeros_like(grads[0])]
    for t, g in enumerate(grads[1:], start=1):
        mean, square = b1 * mean + (1 - b1) * g, b2 * square + (1 - b2) * g**2
        updates.append(mean / (1 - b1**t) / (np.sqrt(square / (1 - b2**t)) + epsilon))
    return updates


def reference(grads, every, max_size, b1, b2, epsilon):
    """SOAP of one matrix as its paper has it, without any trick."""
    matrices = [g.reshape(-1, g.shape[-1]) for g in grads]
    shape = matrices[0].shape
    turned = [n <= max_size for n in shape]
    moments = [np.zeros((n, n)) for n in shape]
    bases = [np.eye(n) for n in shape]
    mean, square, updates = np.zeros(shape), np.zeros(shape), []
    for t, g in enumerate(matrices):
        for side, outer in enumerate((g @ g.T, g.T @ g)):
            moments[side] = b2 * moments[side] + (1 - b2) * outer
        if t == 0:
            updates.append(np.zeros(shape))
        else:
            left, right = bases
            mean = b1 * mean + (1 - b1) * g
            square = b2 * square + (1 - b2) * (left.T @ g @ right) ** 2
            inner = (left.T @ mean @ right) / (1 - b1**t)
            inner /= np.sqrt(square / (1 - b2**t)) + epsilon
            updates.append(left @ inner @ right.T)
        for side in (0, 1):
            if not turned[side] or t % every:
                continue
            if t == 0:
                bases[side] = np.linalg.eigh(moments[side])[1][:, ::-1]
                continue
            basis = bases[side]
            order = np.argsort(-np.diag(basis.T @ moments[side] @ basis))
            square = np.take(square, order, axis=side)
            bases[side] = np.linalg.qr(moments[side] @ basis[:, order])[0]
    return [u.reshape(grads[0].shape) for u in updates]


@pytest.mark.parametrize(("every", "max_size"), [(1, 100), (3, 100), (2, 5), (2, 1)])
@pytest.mark.parametrize("long", [False, True])
def test_against_dense_algebra(every, max_size, long):
    shapes = {"tall": (7, 5), "wide": (4, 7)} if long else SHAPES
    max_size = min(max_size, 6) if long else max_size  # so that long sides are not rotated
    grads = gradients(7, shapes)
    updates, _ = run(soap(0.1, every=every, max_size=max_size, **OPTIONS), grads)
    for name, shape in shapes.items():
        mine = [g[name] for g in grads]
        if len(shape) > 1:
            want = reference(mine, every, max_size, **OPTIONS)
        else:
            want = adam(mine, **OPTIONS)
        got = [u[name] for u in updates]
        np.testing.assert_allclose(got, -0.1 * np.asarray(want), rtol=1e-7, atol=1e-10)


def test_without_rotation_it_is_adam():
    """Where no side is rotated, that of Optax from the second gradient on."""
    grads = gradients(5)
    updates, _ = run(soap(0.1, max_size=0, **OPTIONS), grads)
    want, _ = run(optax.adam(0.1, b1=0.9, b2=0.8), grads[1:])
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-7)
    jax.tree.map(close, updates[1:], want)


def test_it_does_not_mind_how_layers_are_rotated():
    """With all of both sides, as long as the basis is exact: rotated gradients, rotated steps."""
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (4, 4))
    grads = [rng.normal(size=(4, 4)) for _ in range(2)]
    plain, _ = run(soap(0.1, **OPTIONS), grads)
    turned, _ = run(soap(0.1, **OPTIONS), [left @ g @ right for g in grads])
    np.testing.assert_allclose(turned[1], left @ plain[1] @ right, rtol=1e-6, atol=1e-9)


def test_badly_conditioned_quadratic():
    """Half the squared norm of A W B: Adam at its best stepsize is far behind."""
    rng = np.random.default_rng(0)
    scales = np.logspace(0, -1.5, 8)
    rotate = lambda: np.linalg.qr(rng.normal(size=(8, 8)))[0]
    a, b = (jnp.asarray(rotate() @ np.diag(scales) @ rotate()) for _ in range(2))
    objective = lambda w: 0.5 * jnp.sum((a @ w @ b) ** 2)
    start = jnp.asarray(rng.normal(size=(8, 8)))

    def after(make, rate):
        optimizer = make(optax.cosine_decay_schedule(rate, 200))

        def step(carry, _):
            w, state = carry
            updates, state = optimizer.update(jax.grad(objective)(w), state, w)
            return (optax.apply_updates(w, updates), state), None

        done = jax.jit(lambda w: jax.lax.scan(step, (w, optimizer.init(w)), length=200)[0][0])
        return float(objective(done(start)))

    rates = (0.01, 0.03, 0.1, 0.3, 1.0)
    best = min(after(lambda s: soap(s, every=1), rate) for rate in rates)
    adams = min(after(optax.adam, rate) for rate in rates)
    assert best < 0.1 * adams < 0.1 * float(objective(start))


def test_weights_decay_by_themselves():
    w = {"dense": jnp.ones((3, 2))}
    optimizer = soap(0.1, weight_decay=0.5)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, w), optimizer.init(w), w)
    np.testing.assert_allclose(updates["dense"], -0.05)


@pytest.mark.parametrize("options", [{"every": 0}, {"b1": 1.0}, {"b2": -0.1}, {"epsilon": 0.0}])
def test_bad_options(options):
    (name,) = options
    with pytest.raises(UsageError, match=f"{name}={options[name]}"):
        soap(0.1, **options)
