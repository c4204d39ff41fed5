"""A task of one's own for the bench, compared from the command line.

proxlin train --task examples/own_task.py:wave --method armijo-spl --epochs 100 --batch-size 64
proxlin train --task examples/own_task.py:wave --method adam --epochs 100 --batch-size 64
proxlin sweep examples/own_sweep.toml
proxlin figure examples/own_sweep.toml
"""

import jax
import numpy as np

import proxlin
from proxlin.bench.tasks import own

x = np.linspace(-1, 1, 512, dtype=np.float32)[:, None]
y = np.sin(5 * x) * np.exp(-x)


def init(key):
    first, second = jax.random.split(key)
    return {"w": 3 * jax.random.normal(first, (2, 32)), "v": jax.random.normal(second, (32, 1)) / 6}


def model(params, x):
    w, b = params["w"]
    return jax.numpy.tanh(x * w + b) @ params["v"]


wave = own(
    "wave",
    init=init,
    model=model,
    loss=proxlin.Squared(),
    train=(x[::2], y[::2]),
    test=(x[1::2], y[1::2]),
)
