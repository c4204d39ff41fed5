"""Training that meets what training meets: wrong labels, bad batches, unscaled inputs."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

import proxlin
from tests.cases import flat

LOSS = proxlin.Logistic()
FEATURES, HIDDEN, CLASSES, BATCH = 64, 32, 10, 64
UNINFORMED = np.log(CLASSES)  # the loss of a network that knows nothing


def network(params, inputs):
    hidden = jnp.tanh(inputs @ params["w1"] + params["b1"][None])
    return hidden @ params["w2"] + params["b2"][None]


def start(seed=0):
    rng = np.random.default_rng(seed)
    real = lambda x: jnp.asarray(x, jnp.float32)
    return {
        "w1": real(rng.normal(size=(FEATURES, HIDDEN)) / np.sqrt(FEATURES)),
        "b1": real(np.zeros(HIDDEN)),
        "w2": real(rng.normal(size=(HIDDEN, CLASSES)) / np.sqrt(HIDDEN)),
        "b2": real(np.zeros(CLASSES)),
    }


@functools.cache
def digits():
    """1,600 images to train on, with their labels, and the others to test."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32), y[order]
    return (x[:1600], y[:1600]), (x[1600:], y[1600:])


def batches(x, y, steps, seed=0):
    """Epochs in random order, as arrays of shape (steps, batch, ...)."""
    rng = np.random.default_rng(seed)
    order = [rng.permutation(len(x)).reshape(-1, BATCH) for _ in range(-(-steps * BATCH // len(x)))]
    rows = np.concatenate(order)[:steps]
    return x[rows], y[rows]


class Run(NamedTuple):
    params: Any
    state: Any
    losses: np.ndarray  # of each batch, before its step
    gammas: np.ndarray

    @property
    def evaluated(self):
        return proxlin.eval_params(self.state, self.params)


@functools.cache
def compiled(model, options):
    opt = proxlin.auto(model, LOSS, **dict(options))

    @jax.jit
    def run(params, state, x, y):
        def step(carry, batch):
            params, state = carry
            updates, state = opt.update(None, state, params, inputs=batch[0], targets=batch[1])
            return (optax.apply_updates(params, updates), state), (state.info.value, state.gamma)

        return jax.lax.scan(step, (params, state), (x, y))

    return opt, run


def train(x, y, params=None, state=None, model=network, **options):
    opt, run = compiled(model, tuple(options.items()))
    params = start() if params is None else params
    state = opt.init(params) if state is None else state
    (params, state), (losses, gammas) = run(params, state, jnp.asarray(x), jnp.asarray(y))
    assert np.isfinite(flat(params)).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state.rule, state.proximity)))
    return Run(params, state, np.asarray(losses), np.asarray(gammas))


def accuracy(params, x, y, model=network):
    return float(jnp.mean(jnp.argmax(model(params, jnp.asarray(x)), axis=1) == jnp.asarray(y)))


def mean_loss(params, x, y, model=network):
    return float(jnp.mean(LOSS.value(model(params, jnp.asarray(x)), jnp.asarray(y))))


@pytest.mark.parametrize("seed", range(2))
def test_half_of_the_labels_are_random(seed):
    """What can be known is 55 % of one class: its entropy is 1.9, the rest is noise."""
    (x, y), test = digits()
    rng = np.random.default_rng(seed)
    noisy = np.where(rng.uniform(size=len(y)) < 0.5, rng.integers(0, CLASSES, len(y)), y)
    early = train(*batches(x, noisy, 100, seed))
    assert accuracy(early.evaluated, *test) > 0.8
    run = train(*batches(x, noisy, 500, seed))
    share = np.array([0.55] + [0.05] * 9)
    entropy = -np.sum(share * np.log(share))
    assert run.losses[-25:].mean() < entropy  # of the noise, a part is learned by heart
    assert run.losses.max() < 2 * run.losses[0]
    assert mean_loss(run.evaluated, x, noisy) < entropy


def test_batches_that_are_not_finite_do_no_harm():
    """As if they had not been: every fifth batch has a row of NaN, or a label that is none."""
    (x, y), test = digits()
    x, y = batches(x, y, 250)
    bad_x, bad_y = x.copy(), y.copy()
    bad_x[::10, 3] = np.nan
    bad_y[5::10, 3] = CLASSES
    got = train(bad_x, bad_y)
    good = np.arange(250) % 5 != 0
    want = train(x[good], y[good])
    assert int(got.state.rejected) == 50 + int(want.state.rejected)
    np.testing.assert_allclose(got.losses[good], want.losses, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(flat(got.params), flat(want.params), atol=1e-3)
    assert accuracy(got.evaluated, *test) > 0.9


def test_labels_that_change_their_meaning_are_learned_anew():
    (x, y), (x_test, y_test) = digits()
    first = train(*batches(x, y, 250))
    renamed = np.random.default_rng(1).permutation(CLASSES)
    assert np.all(renamed != np.arange(CLASSES)) or np.mean(renamed[y] != y) > 0.7
    params, state = first.params, first.state
    second = train(*batches(x, renamed[y], 250, seed=1), params=params, state=state)
    surprise = second.losses[0]
    assert surprise > 2 * UNINFORMED
    assert second.losses.max() < 2 * surprise
    assert second.losses[-25:].mean() < 0.3
    assert accuracy(second.params, x_test, renamed[y_test]) > 0.85


def test_inputs_that_are_not_scaled():
    """Bytes instead of fractions saturate the hidden layer."""
    (x, y), _ = digits()
    run = train(*batches(255 * x, y, 300))
    assert run.losses.max() < 2 * run.losses[0]
    assert run.losses[-25:].mean() < 0.5 * UNINFORMED


def test_a_layer_without_gradient_stays_where_it_is():
    """It is a direction like any other for the metric, and must not spoil the others."""

    def model(params, inputs):
        return network(params["used"], inputs) + 0 * jnp.sum(params["unused"])

    (x, y), _ = digits()
    x, y = batches(x, y, 200)
    unused = jnp.full((16, 8), 0.5, jnp.float32)
    run = train(x, y, {"used": start(), "unused": unused}, model=model)
    np.testing.assert_array_equal(run.params["unused"], unused)
    want = train(x, y)
    assert run.losses[-25:].mean() < 0.3
    np.testing.assert_allclose(run.losses[:20], want.losses[:20], rtol=1e-3)


def test_a_dead_layer_does_not_stop_the_others():
    """All hidden units saturated: no gradient below them, and the last layer still learns."""
    (x, y), _ = digits()
    params = start()
    params["b1"] = jnp.where(jnp.arange(HIDDEN) % 2 == 0, 50.0, -50.0).astype(jnp.float32)
    x, y = batches(x, y, 150)
    run = train(x, y, params)
    np.testing.assert_array_equal(run.params["w1"], params["w1"])
    # The frequencies of the classes are all that is left to learn.
    assert run.losses[-25:].mean() < 1.05 * UNINFORMED
    assert run.losses.max() < 2 * run.losses[0]
