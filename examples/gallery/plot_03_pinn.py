r"""
A differential equation, solved by a network
============================================

A pendulum with friction, :math:`u'' + 0.3\, u' + \sin u = 0`, from :math:`u(0) = 2.5` and at
rest. The objective is a :class:`proxlin.Sum`: the equation at points in time, and what is known at
the start. Exact steps in double precision, :func:`proxlin.levenberg_marquardt`, solve it.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
import scipy.integrate

import proxlin

jax.config.update("jax_enable_x64", True)

rng = np.random.default_rng(0)
params = {
    "slope": jnp.asarray(rng.normal(size=30)),
    "shift": jnp.asarray(rng.uniform(-6, 6, size=30)),
    "out": jnp.asarray(0.3 * rng.normal(size=(30, 1))),
}


def u(params, t):
    return jnp.tanh(t * params["slope"] + params["shift"]) @ params["out"]


def along(u):
    """The derivative of a function of time."""
    return lambda t: jax.jvp(u, (t,), (jnp.ones_like(t),))[1]


def equation(params, t):
    own = lambda t: u(params, t)
    return along(along(own))(t) + 0.3 * along(own)(t) + jnp.sin(own(t))


def start(params, t):
    own = lambda t: u(params, t)
    return jnp.concatenate([own(t), along(own)(t)], axis=1)


# %%
# Two terms, with their points and targets in tuples:

times = np.linspace(0, 10, 120)[:, None]
objective = proxlin.Sum(
    proxlin.Term(equation, proxlin.Squared()),
    proxlin.Term(start, proxlin.Squared(), weight=10.0),
)
batch = {
    "inputs": (times, np.zeros((1, 1))),
    "targets": (np.zeros_like(times), np.array([[2.5, 0.0]])),
}

# %%
# Without inner tuning, and against SciPy's solution at a tolerance of 1e-12:

opt = proxlin.levenberg_marquardt(objective)
state, update = opt.init(params), jax.jit(opt.update, donate_argnums=1)
values = []
for _ in range(400):
    updates, state = update(None, state, params, **batch)
    params = optax.apply_updates(params, updates)
    values.append(float(state.info.value))

grid = np.linspace(0, 10, 400)
truth = scipy.integrate.solve_ivp(
    lambda t, y: (y[1], -0.3 * y[1] - np.sin(y[0])),
    (0, 10),
    (2.5, 0.0),
    t_eval=grid,
    rtol=1e-12,
    atol=1e-12,
).y[0]
found = np.asarray(u(params, grid[:, None]))[:, 0]
error = np.max(np.abs(found - truth))
print(f"largest error {error:.1e}")

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot(grid, truth, "k", lw=1, label="SciPy")
left.plot(grid, found, "--", label="network")
left.set(xlabel="time", ylabel="angle")
left.legend()
right.semilogy(values)
right.set(xlabel="step", ylabel="objective")

assert error < 1e-4
