r"""
A classifier, and Adam beside it
================================

Handwritten digits, a small network, and two optimizers in the same loop: Adam at its usual rate and
at ten times that, and :func:`proxlin.auto`, which has none.
"""

import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits

import proxlin

images, labels = load_digits(return_X_y=True)
images = images.astype(np.float32) / 16
train, test = (images[:1400], labels[:1400]), (images[1400:], labels[1400:])


def net(params, x):
    return jnp.tanh(x @ params["hidden"] + params["bias"]) @ params["out"]


def first_params():
    hidden, out = jax.random.split(jax.random.key(0))
    return {
        "hidden": jax.random.normal(hidden, (64, 64)) / 8,
        "bias": jnp.zeros(64),
        "out": jax.random.normal(out, (64, 10)) / 8,
    }


# %%
# The two steps. Adam wants the gradient of a loss, ``auto`` the batch:

auto = proxlin.auto(net, proxlin.Logistic())


def loss(params, x, y):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(net(params, x), y))


def adam_step_of(adam):
    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def adam_step(params, state, x, y):
        updates, state = adam.update(jax.grad(loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    return adam_step


@functools.partial(jax.jit, donate_argnums=(0, 1))
def auto_step(params, state, x, y):
    updates, state = auto.update(None, state, params, inputs=x, targets=y)
    return optax.apply_updates(params, updates), state


# %%
# The same loop for both. ``auto`` is evaluated with the average of its parameters.


def accuracy(params):
    return np.mean(np.argmax(net(params, test[0]), axis=-1) == test[1])


def run(step, params, state, epochs=15):
    rng, losses, accuracies = np.random.default_rng(0), [], []
    for _ in range(epochs):
        for rows in np.split(rng.permutation(1400), 10):
            params, state = step(params, state, train[0][rows], train[1][rows])
        averaged = proxlin.eval_params(state, params) if step is auto_step else params
        losses.append(loss(averaged, *train))
        accuracies.append(accuracy(averaged))
    return averaged, losses, accuracies


curves = {}
for rate in (1e-3, 1e-2):
    adam, params = optax.adam(rate), first_params()
    curves[f"Adam, rate {rate:g}"] = run(adam_step_of(adam), params, adam.init(params))
params = first_params()
curves["auto"] = run(auto_step, params, auto.init(params))

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for name, (_, losses, accuracies) in curves.items():
    left.semilogy(range(1, 16), losses, label=name)
    right.plot(range(1, 16), accuracies, label=name)
left.set(xlabel="epoch", ylabel="training loss", xticks=range(1, 16, 2))
right.set(xlabel="epoch", ylabel="test accuracy", ylim=(0.7, 1), xticks=range(1, 16, 2))
left.legend()

# %%
# The digits that ``auto`` reads wrongly, each with what it takes them for:

params = curves["auto"][0]
guesses = np.argmax(net(params, test[0]), axis=-1)
wrong = np.flatnonzero(guesses != test[1])[:8]
figure, axes = plt.subplots(1, len(wrong), figsize=(8, 1.4), layout="constrained")
for axis, i in zip(axes, wrong, strict=True):
    axis.imshow(test[0][i].reshape(8, 8), cmap="gray_r")
    axis.set(xticks=[], yticks=[], title=f"{test[1][i]} as {guesses[i]}")

assert accuracy(params) > 0.9
