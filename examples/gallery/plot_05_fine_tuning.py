r"""
Fine-tuning: the last layer, adapters, or everything
====================================================

A network that reads upright digits learns to read rotated ones, from 200 images. What is
trained is ``params``; what is not comes to the model through ``args``, and costs nothing in the
subproblem. Low-rank adapters (LoRA) add a product of two thin matrices to a layer.
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
turned = np.rot90(images.reshape(-1, 8, 8), axes=(1, 2)).reshape(-1, 64).copy()
few, test = (turned[:200], labels[:200]), (turned[1000:], labels[1000:])


def net(params, x):
    return jnp.tanh(x @ params["hidden"] + params["bias"]) @ params["out"]


def fit(model, params, x, y, steps, args=(), batch=100):
    opt = proxlin.auto(model, proxlin.Logistic())
    state, update = opt.init(params), jax.jit(opt.update)
    rng, scores = np.random.default_rng(0), []
    for step in range(steps):
        rows = rng.choice(len(x), batch, replace=False)
        updates, state = update(None, state, params, inputs=x[rows], targets=y[rows], args=args)
        params = optax.apply_updates(params, updates)
        if step % 5 == 4:
            averaged = proxlin.eval_params(state, params)
            outputs = model(averaged, test[0], *args)
            scores.append(np.mean(np.argmax(outputs, axis=-1) == test[1]))
    return averaged, scores


# %%
# Before: upright digits.

hidden, out = jax.random.split(jax.random.key(0))
first = {
    "hidden": jax.random.normal(hidden, (64, 64)) / 8,
    "bias": jnp.zeros(64),
    "out": jax.random.normal(out, (64, 10)) / 8,
}
trained, _ = fit(net, first, images[:1000], labels[:1000], 100)

# %%
# Three ways to fine-tune. Each has a model of its own, with what is frozen as an argument:


def last_layer(params, x, frozen):
    return net({**frozen, **params}, x)


def adapted(adapters, x, frozen):
    change = adapters["down"] @ adapters["up"]
    return net({**frozen, "hidden": frozen["hidden"] + change, "out": adapters["out"]}, x)


adapters = {
    "down": jax.random.normal(jax.random.key(1), (64, 4)) / 8,
    "up": jnp.zeros((4, 64)),
    "out": trained["out"],
}
ways = {
    "everything": (net, trained, ()),
    "last layer": (last_layer, {"out": trained["out"]}, (trained,)),
    "adapters of rank 4": (adapted, adapters, (trained,)),
}
scores = {
    name: fit(model, params, *few, 60, args)[1] for name, (model, params, args) in ways.items()
}

figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
for name, (_, params, _) in ways.items():
    size = sum(w.size for w in jax.tree.leaves(params))
    axis.plot(range(5, 61, 5), scores[name], label=f"{name}: {size} parameters")
before = np.mean(np.argmax(net(trained, test[0]), axis=-1) == test[1])
axis.axhline(before, color="k", lw=1, ls="--", label="before")
axis.set(xlabel="step", ylabel="test accuracy, rotated digits")
axis.legend()

assert min(score[-1] for score in scores.values()) > before + 0.3
