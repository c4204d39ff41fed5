r"""
An unknown coefficient, from data
=================================

Heat flows along a rod whose conductivity :math:`\kappa(x)` nobody knows. Its temperature obeys

.. math:: -(\kappa u')' = f \quad \text{on } [0, 1],

and was measured at 25 places. Two small networks are trained together: one is :math:`u`, the
other :math:`\log \kappa`. What is unknown in an equation is just more parameters.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import optax

import proxlin

jax.config.update("jax_enable_x64", True)


def network(params, x):
    return jnp.tanh(x @ params["hidden"] + params["bias"]) @ params["out"]


def first_params(key, width=20):
    hidden, out = jax.random.split(key)
    return {
        "hidden": 2 * jax.random.normal(hidden, (1, width)),
        "bias": jnp.linspace(-2.0, 2.0, width),
        "out": 0.1 * jax.random.normal(out, (width, 1)),
    }


# %%
# The truth, which makes the data, and which the networks never see: a weak spot near the middle.


def true_u(x):
    return jnp.sin(jnp.pi * x)


def true_kappa(x):
    return 1 - 0.7 * jnp.exp(-20 * (x - 0.45) ** 2)


def derivative(u):
    """Of a function of points: again a function of points."""
    return lambda x: jax.jvp(u, (x,), (jnp.ones_like(x),))[1]


def source(u, kappa):
    flux = lambda x: kappa(x) * derivative(u)(x)
    return lambda x: -derivative(flux)(x)


# %%
# The objective is a sum: the equation at 60 points, where both networks take part, and the
# measurements, where :math:`u` does. Both can vanish, which is where steps of Levenberg-Marquardt
# pay.


def equation(params, x):
    u = lambda x: network(params["u"], x)
    kappa = lambda x: jnp.exp(network(params["log_kappa"], x))
    return source(u, kappa)(x)


objective = proxlin.Sum(
    proxlin.Term(equation, proxlin.Squared()),
    proxlin.Term(lambda params, x: network(params["u"], x), proxlin.Squared(), weight=100.0),
)
inside = jnp.linspace(0.0, 1.0, 60)[:, None]
places = jnp.linspace(0.0, 1.0, 25)[:, None]
batch = {
    "inputs": (inside, places),
    "targets": (source(true_u, true_kappa)(inside), true_u(places)),
}

opt = proxlin.levenberg_marquardt(objective)


@jax.jit
def train(params):
    def step(carry, _):
        params, state = carry
        updates, state = opt.update(None, state, params, **batch)
        return (optax.apply_updates(params, updates), state), state.info.value

    (params, _), values = jax.lax.scan(step, (params, opt.init(params)), length=500)
    return params, values


keys = jax.random.split(jax.random.key(0))
params, values = train({"u": first_params(keys[0]), "log_kappa": first_params(keys[1])})

# %%
# Where :math:`u` is flat, near the middle, heat does not flow and the conductivity has no effect:
# there it follows from its neighborhood, because the network is smooth.

x = jnp.linspace(0.0, 1.0, 201)[:, None]
kappa = jnp.exp(network(params["log_kappa"], x))
error = jnp.linalg.norm(kappa - true_kappa(x)) / jnp.linalg.norm(true_kappa(x))
print(f"relative error of the conductivity: {error:.0e}")

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
left.plot(x, network(params["u"], x))
left.plot(places, batch["targets"][1], "ko", markersize=4)
left.set(title="temperature and data", xlabel="x")
middle.plot(x, kappa)
middle.plot(x, true_kappa(x), "k:")
middle.set(title="conductivity, found and true", xlabel="x", ylim=(0, 1.1))
right.semilogy(values)
right.set(title="objective", xlabel="step")

assert error < 1e-3
