r"""
Two tasks, one network
======================

Which digit is it, and how far is it turned? Both answers come from the same hidden layer. The
objective is a :class:`proxlin.Sum` of a classification and a regression; one linear system has
the curvature of both, and each loss keeps its own.
"""

import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import scipy.ndimage
from sklearn.datasets import load_digits

import proxlin

images, labels = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
angles = rng.uniform(-60, 60, len(images))
turned = [
    scipy.ndimage.rotate(image.reshape(8, 8) / 16, angle, reshape=False, order=1).ravel()
    for image, angle in zip(images, angles, strict=True)
]
x = np.array(turned, np.float32)
y = (angles[:, None] / 60).astype(np.float32)
train, test = slice(0, 1400), slice(1400, None)


def hidden(params, x):
    return jnp.tanh(x @ params["hidden"] + params["bias"])


def digit(params, x):
    return hidden(params, x) @ params["digit"]


def angle(params, x):
    return hidden(params, x) @ params["angle"]


objective = proxlin.Sum(
    proxlin.Term(digit, proxlin.Logistic()),
    proxlin.Term(angle, proxlin.Squared(), weight=3.0),
)
keys = jax.random.split(jax.random.key(0), 3)
params = {
    "hidden": jax.random.normal(keys[0], (64, 96)) / 8,
    "bias": jnp.zeros(96),
    "digit": jax.random.normal(keys[1], (96, 10)) / 10,
    "angle": jax.random.normal(keys[2], (96, 1)) / 10,
}

# %%
# Inputs and targets are tuples with one entry for each term:

opt = proxlin.auto(objective)
state = opt.init(params)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, state, x, labels, y):
    updates, state = opt.update(None, state, params, inputs=(x, x), targets=(labels, y))
    return optax.apply_updates(params, updates), state


@jax.jit
def scores(params, x, labels, y):
    right = jnp.mean(jnp.argmax(digit(params, x), axis=-1) == labels)
    return right, 60 * jnp.sqrt(jnp.mean((angle(params, x) - y) ** 2))


history = []
for _ in range(25):
    for rows in np.split(rng.permutation(1400), 10):
        params, state = train_step(params, state, x[rows], labels[rows], y[rows])
    averaged = proxlin.eval_params(state, params)
    history.append(scores(averaged, x[test], labels[test], y[test]))
right, degrees = np.array(history).T

figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained")
axes[0].plot(right)
axes[0].set(xlabel="epoch", ylabel="test accuracy")
axes[1].plot(degrees, color="C1")
axes[1].set(xlabel="epoch", ylabel="test error, degrees", ylim=(0, None))
axes[2].plot(60 * y[test], 60 * angle(averaged, x[test]), ".", ms=3, color="C1")
axes[2].plot([-60, 60], [-60, 60], "k", lw=1)
axes[2].set(xlabel="angle", ylabel="predicted")

assert right[-1] > 0.8 and degrees[-1] < 25
