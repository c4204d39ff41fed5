r"""
Regression that knows what it does not know
===========================================

The Gauss-Newton matrix that gives the steps also says how certain the result is. Laplace's
approximation takes the parameters for normally distributed around the minimum, with covariance
:math:`(J^\top J / \sigma^2 + \lambda I)^{-1}`. Through the linearized network this becomes an
uncertainty of each prediction.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import proxlin

rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-3, -0.8, 40), rng.uniform(1, 2.2, 25)])[:, None]
x = x.astype(np.float32)
sigma = 0.1
y = (np.sin(2 * x) + sigma * rng.normal(size=x.shape)).astype(np.float32)


def net(params, x):
    return jnp.tanh(x * params["slope"] + params["shift"]) @ params["out"]


params = {
    "slope": jnp.asarray(rng.normal(size=20), jnp.float32),
    "shift": jnp.asarray(2 * rng.normal(size=20), jnp.float32),
    "out": jnp.asarray(0.3 * rng.normal(size=(20, 1)), jnp.float32),
}

# %%
# Training with exact steps. The weight decay is the prior: in units of the mean squared error,
# :math:`\lambda \sigma^2 / m`.

prior = 1.0  # lambda
opt = proxlin.prox_linear(
    net,
    proxlin.Squared(),
    step=proxlin.TrustRegion(),
    solver=proxlin.Cholesky(),
    weight_decay=prior * sigma**2 / len(x),
)
state, update = opt.init(params), jax.jit(opt.update)
for _ in range(200):
    updates, state = update(None, state, params, inputs=x, targets=y)
    params = optax.apply_updates(params, updates)
print(proxlin.explain(state))

# %%
# The Jacobian of the outputs, from the linearization that training uses, and the covariance:


def jacobian(params, points):
    lin = proxlin.linearize(net, params, points)
    return np.asarray(lin.rows(np.arange(len(points))), np.float64)[:, 0, :]


j = jacobian(params, x)
precision = j.T @ j / sigma**2 + prior * np.eye(j.shape[1])
grid = np.linspace(-4, 4, 200, dtype=np.float32)[:, None]
j_grid = jacobian(params, grid)
variance = np.sum(j_grid * np.linalg.solve(precision, j_grid.T).T, axis=1)
mean, deviation = np.asarray(net(params, grid))[:, 0], np.sqrt(variance + sigma**2)

figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
for k in (1, 2):
    band = mean - k * deviation, mean + k * deviation
    axis.fill_between(grid[:, 0], *band, color="C0", alpha=0.2, lw=0)
axis.plot(grid, mean, label="prediction, one and two deviations")
axis.plot(grid, np.sin(2 * grid), "k--", lw=1, label="truth")
axis.plot(x, y, ".", color="C1", label="data")
axis.set(xlabel="x", ylim=(-3, 3))
axis.legend(loc="lower left")

# Certain where there are data, and not where there are none.
assert ravel_pytree(params)[0].size == j.shape[1]
assert deviation[0] > 3 * np.median(deviation[(grid[:, 0] > -2.5) & (grid[:, 0] < -1)])
