r"""
The hinge loss, which has no second derivative
==============================================

A Newton or Gauss-Newton step needs a Hessian; the subproblem of a prox-linear step does not.
:func:`proxlin.dual_convex` keeps the loss as it is, and its dual variables are zero for examples
with enough margin, as in a support vector machine.
"""

import functools

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

import proxlin

x, labels = make_moons(200, noise=0.2, random_state=0)
x = x.astype(np.float32)
keys = jax.random.split(jax.random.key(0), 2)
params = {
    "hidden": jax.random.normal(keys[0], (2, 32)),
    "bias": jnp.zeros(32),
    "out": jax.random.normal(keys[1], (32, 2)) / 6,
}


def net(params, x):
    return jnp.tanh(x @ params["hidden"] + params["bias"]) @ params["out"]


# %%
# The same method with two losses. The hinge needs a convex subproblem and a solver for it:

methods = {
    "logistic": (proxlin.Logistic(), functools.partial(proxlin.armijo_spl, gamma=3.0)),
    "hinge": (
        proxlin.Hinge(),
        functools.partial(
            proxlin.armijo_spl,
            gamma=3.0,
            subproblem=proxlin.dual_convex,
            solver=proxlin.ProximalGradient(50),
        ),
    ),
}
fitted = {
    name: proxlin.fit(
        net, loss, params, (x, labels), epochs=40, method=method, batch_size=200, report=None
    )
    for name, (loss, method) in methods.items()
}

# %%
# Where the decision lies, and which examples the gradient still depends on:

grid = np.stack(np.meshgrid(np.linspace(-2, 3, 120), np.linspace(-1.5, 2, 90)), axis=-1)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
count = {}
for axis, (name, result) in zip(axes, fitted.items(), strict=True):
    outputs = net(result.params, grid.reshape(-1, 2).astype(np.float32))
    margin = np.asarray(outputs[:, 1] - outputs[:, 0]).reshape(90, 120)
    axis.contourf(grid[..., 0], grid[..., 1], margin, 20, cmap="RdBu", vmin=-5, vmax=5)
    axis.contour(grid[..., 0], grid[..., 1], margin, [0.0], colors="k")
    slopes = np.asarray(methods[name][0].grad(net(result.params, x), labels))
    active = np.abs(slopes).max(axis=1) > 1e-3
    count[name] = int(active.sum())
    axis.scatter(*x[~active].T, c=labels[~active], cmap="RdBu", s=8)
    axis.scatter(*x[active].T, c=labels[active], cmap="RdBu", s=30, edgecolors="k")
    axis.set(title=f"{name}: {count[name]} examples with a gradient", xticks=[], yticks=[])

right = np.mean(np.argmax(net(fitted["hinge"].params, x), axis=1) == labels)
assert right > 0.95 and count["hinge"] < count["logistic"]
