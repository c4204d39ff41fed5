"""Networks that gradient methods handle badly: sparse ones, and losses that are not smooth."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

import proxlin
from proxlin.bench import models

BATCH = 128
NETWORK = models.mlp((64,), 10, hidden=(128,))


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = jnp.asarray(x[order] / 16, jnp.float32), jnp.asarray(y[order])
    train = 11 * BATCH
    return (x[:train], y[:train]), (x[train:], y[train:])


def train(opt, digits, epochs, network=NETWORK):
    """Parameters and test accuracy after some epochs, in one compiled program."""
    (x, y), (x_test, y_test) = digits
    params, _ = network.init(jax.random.key(0))

    def step(carry, rows):
        params, state = carry
        updates, state = opt.update(None, state, params, inputs=x[rows], targets=y[rows])
        return (optax.apply_updates(params, updates), state), None

    def epoch(carry, key):
        rows = jax.random.permutation(key, len(x)).reshape(-1, BATCH)
        return jax.lax.scan(step, carry, rows)[0], None

    keys = jax.random.split(jax.random.key(1), epochs)
    (params, state), _ = jax.jit(lambda c: jax.lax.scan(epoch, c, keys))((params, opt.init(params)))
    accuracy = jnp.mean(jnp.argmax(network.predict(params, x_test), axis=1) == y_test)
    return params, state, float(accuracy)


def test_sparse_network(digits):
    """At 80 % or more exact zeros among the weights, within 1 % of the dense network."""
    dense = proxlin.prox_linear(NETWORK.predict, proxlin.Logistic())
    sparse = proxlin.prox_linear(
        NETWORK.predict,
        proxlin.Logistic(),
        regularizer=proxlin.L1(1e-3, where=lambda path: path.endswith("w")),
    )
    _, _, dense_accuracy = train(dense, digits, 60)
    params, state, accuracy = train(sparse, digits, 120)
    weights = np.concatenate([np.ravel(layer["w"]) for layer in params])
    sparsity = np.mean(weights == 0)
    assert sparsity >= 0.8
    assert accuracy >= dense_accuracy - 0.01
    # biases are not regularized, and so not zero
    assert all(np.all(layer["b"] != 0) for layer in params)
    # the state reports the penalty of the step before the last update
    assert np.isclose(float(state.info.penalty), 1e-3 * np.abs(weights).sum(), rtol=0.02)


@pytest.mark.parametrize("loss", [proxlin.Hinge(), proxlin.Sparsemax()], ids=repr)
def test_losses_that_are_not_smooth(digits, loss):
    network = models.mlp((64,), 10)
    opt = proxlin.prox_linear(
        network.predict, loss, subproblem=proxlin.dual_convex, solver=proxlin.ProximalGradient(20)
    )
    _, state, accuracy = train(opt, digits, 8, network)
    assert accuracy >= 0.95
    assert float(state.info.gap) >= -1e-6
