r"""
A step rule of one's own
========================

How far to go along a direction is decided by a step rule, an object that is easy to replace. This
one takes Polyak's stepsize, at which the linearized objective would reach zero, for networks that
can fit all examples.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import proxlin
from proxlin import extend, testing


@dataclasses.dataclass(frozen=True)
class Polyak(extend.StepRule):
    """The value over the slope, at most one."""

    gamma: float = 1.0
    composite: ClassVar[bool] = False  # it knows no regularizer

    def step(self, direction, steps, state=()):
        steep = direction.slope > 0
        eta = jnp.where(steep, direction.value / jnp.where(steep, direction.slope, 1), 1)
        eta = jnp.clip(eta, 0, 1)
        return extend.Step(
            eta=eta,
            displacement=direction.displacement(eta),
            accepted=eta > 0,
            gamma=direction.gamma,
            info=direction.info,
            evaluations=extend.count(0),
        )


# %%
# A checker tries it where things go wrong, at a minimum and on a bad batch, and counts its costs:

testing.check_step_rule(Polyak())

# %%
# A regression without noise, with a gamma that is much too large for full steps:

rng = np.random.default_rng(0)
x = rng.normal(size=(256, 2)).astype(np.float32)
y = np.sin(2 * x[:, :1]) * x[:, 1:]
params = {
    "hidden": jnp.asarray(rng.normal(size=(2, 32)), jnp.float32),
    "bias": jnp.zeros(32, jnp.float32),
    "out": jnp.asarray(0.1 * rng.normal(size=(32, 1)), jnp.float32),
}


def net(params, x):
    return jnp.tanh(x @ params["hidden"] + params["bias"]) @ params["out"]


rules = {
    "Polyak": Polyak(gamma=100.0),
    "full steps": proxlin.Fixed(gamma=100.0),
    "Armijo": proxlin.Armijo(gamma=100.0),
}
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
last = {}
for name, rule in rules.items():
    opt = proxlin.prox_linear(net, proxlin.Squared(), step=rule, solver=proxlin.CG(10))
    w, state, update = params, opt.init(params), jax.jit(opt.update)
    values, etas = [], []
    for _ in range(150):
        updates, state = update(None, state, w, inputs=x, targets=y)
        w = optax.apply_updates(w, updates)
        values.append(float(state.info.value))
        etas.append(float(state.eta))
    last[name] = values[-1]
    left.semilogy(values, label=name)
    right.plot(etas, ".", ms=3, label=name)
left.set(xlabel="step", ylabel="objective")
right.set(xlabel="step", ylabel="stepsize", ylim=(0, 1.05))
left.legend()

assert last["Polyak"] < 1e-2
