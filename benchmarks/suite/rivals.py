"""The methods that are compared, and the grids that rivals are tuned on.

Tuned rivals warm up over the first twentieth of their steps and follow a cosine to zero at the
last one. The others run at their defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

import proxlin
from benchmarks.suite import training
from proxlin.bench.errors import UsageError
from proxlin.bench.loop import Trainer
from proxlin.bench.methods import trainer_of
from proxlin.bench.rivals import kfac, shampoo, soap
from proxlin.bench.tasks import Task

Setting = Mapping[str, float]
Neighbors = Callable[[float], Sequence[float]]

WARM_UP = 0.05  # of all steps


def warm_up_cosine(peak: float, steps: int) -> optax.Schedule:
    """A linear warm-up over a twentieth of the steps, then a cosine to zero after the last one."""
    warm = max(1, round(WARM_UP * steps))
    return optax.warmup_cosine_decay_schedule(peak / warm, peak, warm, steps, 0.0)


# ---- grids -------------------------------------------------------------------------------------


def rates(rate: float) -> tuple[float, float]:
    """The next rates below and above, out of 0.001, 0.003, 0.01 and so on without end.

    >>> rates(0.003)
    (0.001, 0.01)
    """
    at = round(2 * math.log10(rate))
    below, above = (float(f"{3 if k % 2 else 1}e{k // 2}") for k in (at - 1, at + 1))
    return below, above


def decays(decay: float) -> tuple[float, ...]:
    """The next weight decays below and above, out of 0, 0.1, 1, 10 and so on.

    >>> decays(0.1)
    (0.0, 1.0)
    """
    if decay == 0:
        return (0.1,)
    below = decay / 10
    return (below if below > 0.05 else 0.0, 10 * decay)


def either(value: float) -> tuple[float]:
    """The other one of no (0) and yes (1)."""
    return (1 - value,)


# ---- methods -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A method that runs on any workload.

    Attributes:
        make: ``make(task, steps, **setting) -> trainer`` for a training of so many steps.
        start: the setting in the middle of the grid; empty for what is not tuned.
        grid: the values next to a value, for each option.
        evaluated: ``evaluated(state, params)``: the parameters to evaluate with; None for the last.
        scheduled: whether the number of steps matters.
    """

    make: Callable[..., Trainer]
    start: Setting = field(default_factory=dict)
    grid: Mapping[str, Neighbors] = field(default_factory=dict)
    evaluated: Callable[[Any, Any], Any] | None = None
    scheduled: bool = True

    def neighbors(self, setting: Setting) -> list[Setting]:
        """The settings that differ from one in a single option, by one step of the grid."""
        return [
            {**setting, name: value}
            for name, beside in self.grid.items()
            for value in beside(setting[name])
        ]


def _tuned(optimizer: Callable[..., Any], rate: float, **more: tuple[float, Neighbors]) -> Method:
    """An Optax optimizer whose first argument is the schedule, with further tuned options."""

    def make(task: Task, steps: int, *, rate: float, **options: float) -> Trainer:
        return training.gradient_trainer(task, optimizer(warm_up_cosine(rate, steps), **options))

    start = {"rate": rate, **{name: value for name, (value, _) in more.items()}}
    grid = {"rate": rates, **{name: beside for name, (_, beside) in more.items()}}
    return Method(make, start, grid)


def _untuned(
    optimizer: Callable[[], Any], evaluated: Callable[[Any, Any], Any] | None = None
) -> Method:
    """An Optax optimizer at its defaults."""
    make = lambda task, steps: training.gradient_trainer(task, optimizer())
    return Method(make, evaluated=evaluated, scheduled=False)


def _momentum(schedule: optax.Schedule, nesterov: float) -> optax.GradientTransformation:
    return optax.sgd(schedule, momentum=0.9, nesterov=bool(nesterov))


def _muon(schedule: optax.Schedule, weight_decay: float) -> optax.GradientTransformation:
    """Muon for dense layers and convolutions, Adam for the rest, on a common scale (Liu, 2025)."""
    return optax.contrib.muon(
        schedule,
        weight_decay=weight_decay,
        adam_weight_decay=weight_decay,
        muon_weight_dimension_numbers=matrices,
        consistent_rms=0.2,
    )


def matrices(params: Any) -> Any:
    """How leaves are matrices, with outputs last; None for vectors and embeddings."""

    def one(path: Any, w: Any) -> Any:
        if w.ndim < 2 or any(name in jax.tree_util.keystr(path) for name in EMBEDDINGS):
            return None
        rows = tuple(range(w.ndim - 1))
        return optax.contrib.MuonDimensionNumbers(reduction_axis=rows, output_axis=w.ndim - 1)

    return jax.tree_util.tree_map_with_path(one, params)


EMBEDDINGS = ("tables", "embedding", "places")


def _kfac(task: Task, steps: int, *, rate: float, damping: float) -> Trainer:
    """KFAC with momentum 0.9, where kfac-jax can run it; needs the environment of `make rivals`."""
    if task.name not in KFAC_TAKES:
        raise UsageError(f"kfac-jax takes {' and '.join(KFAC_TAKES)} only, not {task.name}")
    inner = kfac.kfac(task.network, task.loss, task.dataset.shape, stepsize=1.0, damping=damping)
    schedule, prepare = warm_up_cosine(rate, steps), jax.jit(task.dataset.prepare)

    def step(params: Any, stats: Any, state: Any, inputs: Any, targets: Any) -> Any:
        now = replace(inner, stepsize=schedule(state.step_counter))
        *new, info = now.step(params, stats, state, prepare(inputs), jnp.asarray(targets))
        return (*new, info["value"])

    return training.trainer(inner.init, step, compiled=False)


KFAC_TAKES = ("convnet", "vit")


def _auto(task: Task, steps: int, *, known: bool = False) -> Trainer:
    options = {"steps": steps} if known else {}
    model, loss = task.network.apply, task.loss
    return trainer_of(task, proxlin.auto(model, loss, has_aux=True, init_aux=(), **options))


DECAY = {"weight_decay": (0.1, decays)}

METHODS: Mapping[str, Method] = {
    "auto": Method(_auto, scheduled=False),
    "auto-steps": Method(lambda task, steps: _auto(task, steps, known=True)),
    "adamw": _tuned(optax.adamw, 1e-3, **DECAY),
    "muon": _tuned(_muon, 3e-3, **DECAY),
    "soap": _tuned(soap.soap, 3e-3, **DECAY),
    "nadamw": _tuned(optax.nadamw, 1e-3, **DECAY),
    "momentum": _tuned(_momentum, 0.03, nesterov=(1.0, either)),
    "shampoo": _tuned(shampoo.shampoo, 0.1),
    "kfac": Method(_kfac, {"rate": 0.01, "damping": 0.01}, {"rate": rates, "damping": rates}),
    "schedule-free": _untuned(
        optax.contrib.schedule_free_adamw, optax.contrib.schedule_free_eval_params
    ),
    "prodigy": _untuned(optax.contrib.prodigy),
    "d-adaptation": _untuned(optax.contrib.dadapt_adamw),
    "momo-adam": _untuned(optax.contrib.momo_adam),
    "dowg": _untuned(optax.contrib.dowg),
}
OURS = ("auto", "auto-steps")
TUNED = tuple(name for name, method in METHODS.items() if method.grid)
OPTIONAL = ("kfac",)  # needs another environment
