r"""
A curve fit with bounds and error bars
======================================

Two peaks on a background, in noisy data. :func:`proxlin.least_squares` takes a first guess, bounds
and a function of residuals, decides itself when to stop, and returns the covariance of
the parameters.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.flatten_util import ravel_pytree

import proxlin

jax.config.update("jax_enable_x64", True)

rng = np.random.default_rng(0)
x = np.linspace(0, 10, 120)
truth = {"height": [2.0, 0.8], "place": [4.0, 5.6], "width": [0.7, 0.5], "level": 0.3}


def curve(params, x):
    peaks = params["height"] * jnp.exp(
        -0.5 * ((x[:, None] - params["place"]) / params["width"]) ** 2
    )
    return params["level"] + jnp.sum(peaks, axis=1)


noise = 0.12
y = curve(jax.tree.map(np.asarray, truth, is_leaf=lambda v: isinstance(v, list)), x)
y = y + noise * rng.normal(size=x.shape)

# %%
# A rough first guess, and a box: heights and the level are not negative, both peaks are in view,
# and none is wider than 2.

first = {
    "height": jnp.ones(2),
    "place": jnp.array([3.0, 7.0]),
    "width": jnp.ones(2),
    "level": jnp.zeros(()),
}
lower = {"height": 0.0, "place": 0.0, "width": 0.1, "level": 0.0}
upper = {"height": 5.0, "place": 10.0, "width": 2.0, "level": 1.0}
as_tree = lambda bound: {name: jnp.full_like(first[name], bound[name]) for name in first}

result = proxlin.least_squares(
    lambda w: curve(w, x) - y, first, bounds=(as_tree(lower), as_tree(upper))
)
print(result.message)
deviation = ravel_pytree(first)[1](jnp.sqrt(jnp.diag(result.covariance)))
for name in first:
    print(f"{name:7}", np.round(result.params[name], 3), "+-", np.round(deviation[name], 3))

# %%
# The covariance, through the derivative of the curve, is a band around the fit:

flat, unravel = ravel_pytree(result.params)
j = jax.jacobian(lambda w: curve(unravel(w), x))(flat)
band = 2 * np.sqrt(np.sum((j @ result.covariance) * j, axis=1))
fit = curve(result.params, x)

figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
axis.plot(x, y, ".", color="C1", label="data")
axis.plot(x, curve(first, x), ":", color="0.5", label="first guess")
axis.plot(x, fit, label="fit, two deviations")
axis.fill_between(x, fit - band, fit + band, alpha=0.3, lw=0)
axis.set(xlabel="x")
axis.legend()

assert bool(result.converged)
assert np.all(np.abs(np.sort(result.params["place"]) - truth["place"]) < 0.2)
