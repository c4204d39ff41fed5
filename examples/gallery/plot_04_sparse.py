r"""
A network that looks at few pixels
==================================

:class:`proxlin.GroupL2` makes whole rows of the first layer exactly zero: those pixels need not be
measured. It is part of the subproblem, :func:`proxlin.dual_convex` with
:class:`proxlin.ProximalGradient`, and of the line search, so zeros are exact.
"""

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


hidden, out = jax.random.split(jax.random.key(0))
first = {
    "hidden": jax.random.normal(hidden, (64, 32)) / 8,
    "bias": jnp.zeros(32),
    "out": jax.random.normal(out, (32, 10)) / 6,
}

# %%
# A group is a row of ``hidden``, all weights of a pixel. Three strengths:


def fit(strength, epochs=12):
    opt = proxlin.armijo_spl(
        net,
        proxlin.Logistic(),
        gamma=3.0,
        regularizer=proxlin.GroupL2(strength, axis=0, where=lambda path: path == "hidden"),
    )
    params, state, update = first, opt.init(first), jax.jit(opt.update)
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        for rows in np.split(rng.permutation(1400), 7):
            x, y = train[0][rows], train[1][rows]
            updates, state = update(None, state, params, inputs=x, targets=y)
            params = optax.apply_updates(params, updates)
    right = np.mean(np.argmax(net(params, test[0]), axis=-1) == test[1])
    return np.linalg.norm(params["hidden"], axis=1), right


strengths = (1e-3, 1e-2, 3e-2)
results = [fit(strength) for strength in strengths]

figure, axes = plt.subplots(1, 4, figsize=(8, 2.5), layout="constrained")
axes[0].imshow(train[0].mean(axis=0).reshape(8, 8), cmap="gray_r")
axes[0].set_title("mean digit")
for axis, strength, (norms, right) in zip(axes[1:], strengths, results, strict=True):
    axis.imshow(np.where(norms > 0, norms, np.nan).reshape(8, 8), cmap="viridis")
    axis.set_title(f"{np.sum(norms > 0)} pixels, {right:.0%} right\nstrength {strength:g}")
for axis in axes:
    axis.set(xticks=[], yticks=[])

# %%
# White pixels have no weight at all.

used = [int(np.sum(norms > 0)) for norms, _ in results]
assert used[0] > used[1] > used[2] > 0
