r"""
A transformer that learns to write
==================================

One layer of attention, and text that comes with Python: the help pages on its own language. A
sequence model returns ``(batch, length, characters)``; each position has a loss of its own.
"""

import functools
import pydoc_data.topics

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import proxlin

text = "".join(pydoc_data.topics.topics.values())[:200_000]
alphabet = sorted(set(text))
codes = np.array([alphabet.index(c) for c in text], np.int32)
length, width, k = 32, 64, len(alphabet)


def attention(p, h):
    q, key, v = jnp.split(h @ p["qkv"], 3, axis=-1)
    scores = q @ key.swapaxes(-1, -2) / jnp.sqrt(width)
    past = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jnp.where(past, scores, -1e9)) @ v @ p["mix"]


def normalized(h):
    return h / jnp.sqrt(jnp.mean(h**2, axis=-1, keepdims=True) + 1e-6)


def model(p, tokens):
    h = p["embed"][tokens] + p["place"][: tokens.shape[1]]
    h = h + attention(p, normalized(h))
    h = h + jax.nn.gelu(normalized(h) @ p["up"]) @ p["down"]
    return normalized(h) @ p["out"]


def first_params(key):
    shapes = {
        "embed": (k, width),
        "place": (length, width),
        "qkv": (width, 3 * width),
        "mix": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
        "out": (width, k),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(own, shape)
        * (0.1 if name in ("embed", "place") else shape[0] ** -0.5)
        for own, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


# %%
# 200 steps of 32 pieces of text. The targets are the same characters, one place further.

opt = proxlin.auto(model, proxlin.Logistic())
params = first_params(jax.random.key(0))
state = opt.init(params)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(params, state, pieces):
    updates, state = opt.update(None, state, params, inputs=pieces[:, :-1], targets=pieces[:, 1:])
    return optax.apply_updates(params, updates), state


rng, values = np.random.default_rng(0), []
for _ in range(200):
    starts = rng.integers(0, len(codes) - length - 1, 32)
    pieces = codes[starts[:, None] + np.arange(length + 1)]
    params, state = train_step(params, state, pieces)
    values.append(float(state.info.value))
averaged = proxlin.eval_params(state, params)

# %%
# What it writes, character by character:


@jax.jit
def following(params, window, key):
    return jax.random.categorical(key, 1.3 * model(params, window[None])[0, -1])


written = list(codes[:length])
for key in jax.random.split(jax.random.key(1), 240):
    written.append(int(following(averaged, np.array(written[-length:]), key)))
print("".join(alphabet[i] for i in written[length:]))

figure, axis = plt.subplots(figsize=(8, 3), layout="constrained")
axis.plot(values)
axis.axhline(np.log(k), color="k", lw=1, ls="--", label=f"guessing one of {k}")
axis.set(xlabel="step", ylabel="loss of the batch, nats a character")
axis.legend()

assert np.mean(values[-20:]) < 0.7 * values[0]
