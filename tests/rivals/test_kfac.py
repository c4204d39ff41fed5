"""The adapter to kfac-jax, in the environment of `make rivals`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import kfac_jax
import numpy as np
import pytest

import proxlin
from proxlin.bench import methods, models, tasks
from proxlin.bench.errors import UsageError
from proxlin.bench.rivals.kfac import kfac

IMAGE = (8, 8, 1)
LOSS = proxlin.Logistic()


def batch_of(m=32, seed=0):
    """Images of three classes, each with a bright quarter of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, m)
    x = 0.5 * rng.normal(size=(m, *IMAGE))
    for i, label in enumerate(labels):
        x[i, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 1
    return jnp.asarray(x, jnp.float32), jnp.asarray(labels, jnp.int32)


def run(optimizer, params, state, steps):
    values = []
    for seed in steps:
        params, stats, state, info = optimizer.step(params, (), state, *batch_of(seed=seed))
        values.append(float(info["value"]))
        assert stats == ()
    return params, state, values


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_it_learns_and_resumes(name):
    network = getattr(models, name)(IMAGE, 3)
    params, stats = network.init(jax.random.key(0))
    optimizer = kfac(network, LOSS, IMAGE, 0.01)
    state = optimizer.init(params, stats)
    before = leaves((params, state))

    straight, end, values = run(optimizer, params, state, range(12))
    inputs, targets = batch_of(seed=0)
    first = jnp.mean(LOSS.value(network.predict(params, inputs), targets))
    assert values[0] == pytest.approx(float(first), rel=1e-5)
    assert values[-1] < 0.5 * values[0]
    # what was passed in is alive and as it was
    for a, b in zip(before, leaves((params, state)), strict=True):
        np.testing.assert_array_equal(a, b)

    # stopped in the middle, saved as arrays, and taken up again by another process
    half, middle, _ = run(optimizer, params, state, range(7))
    saved = leaves(middle)
    again = kfac(network, LOSS, IMAGE, 0.01)
    fresh = again.init(params, stats)
    assert [(x.shape, x.dtype) for x in leaves(fresh)] == [(x.shape, x.dtype) for x in saved]
    middle = jax.tree.unflatten(jax.tree.structure(fresh), [jnp.asarray(x) for x in saved])
    resumed, last, _ = run(again, half, middle, range(7, 12))
    for a, b in zip(leaves((straight, end)), leaves((resumed, last)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_parameter_has_a_kronecker_factored_block():
    network = models.convnet(IMAGE, 3)
    params, stats = network.init(jax.random.key(0))
    optimizer = kfac(network, LOSS, IMAGE, 0.01)
    optimizer.init(params, stats)
    blocks = optimizer.optimizer._estimator.blocks
    assert len(blocks) == 4
    assert all(isinstance(block, kfac_jax.KroneckerFactored) for block in blocks)


def test_curvature_of_convolutions_is_that_of_kfac_jax():
    network = models.convnet(IMAGE, 3)
    params, stats = network.init(jax.random.key(0))
    optimizer = kfac(network, LOSS, IMAGE, 0.01)
    optimizer.init(params, stats)
    # the second convolution: with many channels, their order matters
    ours = optimizer.optimizer._estimator.blocks[1]
    inputs = jax.random.normal(jax.random.key(1), (6, 4, 4, 32))
    want = kfac_jax.Conv2DTwoKroneckerFactored.compute_inputs_stats(ours, inputs)
    assert type(ours) is not kfac_jax.Conv2DTwoKroneckerFactored
    assert want.shape == (9 * 32 + 1, 9 * 32 + 1)
    np.testing.assert_allclose(ours.compute_inputs_stats(inputs), want, rtol=1e-4, atol=1e-5)


def test_labels_must_be_integers():
    network = models.linear(IMAGE, 3)
    params, stats = network.init(jax.random.key(0))
    optimizer = kfac(network, LOSS, IMAGE, 0.01)
    state = optimizer.init(params, stats)
    inputs, targets = batch_of()
    with pytest.raises(UsageError, match="targets of dtype float32: it takes integer labels"):
        optimizer.step(params, (), state, inputs, targets.astype(jnp.float32))


def test_a_step_that_is_not_finite_is_rejected():
    task = tasks.load("digits-mlp")
    trainer = methods.build("kfac", task, {"stepsize": 1e-3})
    params, stats = task.init(0)
    state = trainer.init(params, stats)
    inputs, targets = next(task.dataset.train.epoch(0, 0, 32))
    broken = np.where(np.arange(32)[:, None, None, None] == 5, np.nan, inputs).astype(np.float32)
    kept, report = trainer.step(state, broken, targets)
    assert report.rejected and not report.finite
    for new, old in zip(leaves(kept.params), leaves(params), strict=True):
        np.testing.assert_array_equal(new, old)
    moved, report = trainer.step(kept, inputs, targets)
    assert not report.rejected
    assert any(np.any(a != b) for a, b in zip(leaves(moved.params), leaves(params), strict=True))
