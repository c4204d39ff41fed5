"""A task that takes milliseconds, and a watch that does something at a step."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal

import jax
import jax.numpy as jnp
import numpy as np

import proxlin
from proxlin.bench import data, tasks
from proxlin.bench.watch import Watch

BATCH = 8
STEPS = 5  # in an epoch


def toy(bad_rows=()):
    """Three classes in two dimensions, with rows of NaN where asked for."""
    rng = np.random.default_rng(0)
    labels = np.arange(BATCH * STEPS, dtype=np.int32) % 3
    inputs = (rng.normal(size=(len(labels), 2)) + 2 * np.eye(3)[labels][:, :2]).astype(np.float32)
    inputs[list(bad_rows)] = np.nan
    good = np.isfinite(inputs).all(axis=1)
    return tasks.own(
        "toy",
        init=lambda key: 0.1 * jax.random.normal(key, (2, 3), jnp.float32),
        model=lambda w, x: x @ w,
        loss=proxlin.Logistic(),
        train=(inputs, labels),
        test=(inputs[good], labels[good]),
        score=tasks.accuracy,
    )


task = toy()


def one_bad_row():
    return toy([7])


def all_bad():
    return toy(range(0, BATCH * STEPS, 2))


class Killed(data.Arrays):
    """The first process that comes to the second epoch is killed; a file remembers it."""

    def epoch(self, seed, epoch, batch_size, start=0):
        memory = pathlib.Path(os.environ["TOY_KILLED"])
        if epoch == 1 and not memory.exists():
            memory.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().epoch(seed, epoch, batch_size, start)


def killed_once():
    train = Killed(task.dataset.train.inputs, task.dataset.train.targets)
    return dataclasses.replace(task, dataset=dataclasses.replace(task.dataset, train=train))


class Told(Watch):
    """Remembers what it is told."""

    def __init__(self):
        self.lines = []

    def told(self, message):
        self.lines.append(message)


class At(Watch):
    """Calls a function after a step."""

    def __init__(self, step, action):
        self._at, self._action = step, action

    def stepped(self, progress, report):
        if progress.step == self._at:
            self._action()
