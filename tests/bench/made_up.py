"""Runs that nobody ran: exact curves, with the fields of a record."""

from __future__ import annotations

import itertools
import json
import pathlib

from proxlin.bench import figures, methods
from proxlin.bench.records import Config, Run

ENVIRONMENT = {
    "proxlin": "0.1.0",
    "python": "3.11.2",
    "jax": "0.10.2",
    "commit": "abc1234",
    "device": "cpu",
    "devices": 1,
    "cpu": "a processor",
    "cores": 2,
    "system": "Linux",
    "load": 0.5,
    "date": "2026-01-02",
    "command": "proxlin sweep smoke",
}


def run(
    method,
    options=None,
    *,
    accuracy=0.9,
    losses=(2.0, 1.0, 0.5),
    status="finished",
    seconds=1.0,
    step_per_epoch=10,
    environment=None,
    **config,
):
    """A run with these training losses, whose accuracy rises evenly from 10 % to ``accuracy``."""
    options = methods.complete(method, options or {})
    config = Config(**{"task": "digits-mlp", "method": method, "options": options, **config})
    last = len(losses) - 1
    metrics = [
        {
            "epoch": float(epoch),
            "step": step_per_epoch * epoch,
            "seconds": seconds * epoch,
            "train_loss": loss,
            "train_accuracy": None if accuracy is None else accuracy,
            "test_loss": None if loss is None else 1.1 * loss,
            "test_accuracy": None
            if accuracy is None
            else 0.1 + (accuracy - 0.1) * epoch / max(last, 1),
            "jvps": 40 * epoch,
            "vjps": 60 * epoch,
            "eta": None,
            "gamma": None,
            "residual": None,
            "rejected": 0,
        }
        for epoch, loss in enumerate(losses)
    ]
    dataset = config.task.split("-")[0]
    meta = {
        "format": 1,
        "config": json.loads(json.dumps(config.as_dict())),
        "hash": config.hash,
        "status": status,
        "message": "",
        "task": {
            "dataset": dataset,
            "description": f"{dataset} to try things on",
            "sha256": "0" * 64,
            "loss": "Logistic",
            "parameters": 4810,
            "train": 1347,
            "test": 450,
        },
        "environment": {**ENVIRONMENT, **(environment or {})},
        "compile_seconds": 1.25,
        "seconds": seconds * last,
        "steps": step_per_epoch * last,
        "resumed": 0,
    }
    return Run(config.folder(pathlib.Path("runs")), meta, metrics)


def runs_of(name):
    """Runs for all panels and curves of a figure of the paper, with two settings and two seeds."""
    spec = figures.FIGURES[name]
    tasks = ("digits-resnet18", "digits-resnet34") if "task" in spec.panel_by else ("digits-mlp",)
    varied = "batch_size" in (*spec.panel_by, *spec.curve_by) and len(tasks) == 1
    batches = (64, 256) if varied else (128,)
    settings = [(method, o) for method in spec.methods for o in _options(spec, method)]
    return [
        run(
            method,
            options,
            accuracy=0.9 + 0.01 * (number % 7),
            task=task,
            batch_size=batch,
            seed=seed,
            epochs=2,
        )
        for number, (method, options) in enumerate(settings)
        for task, batch, seed in itertools.product(tasks, batches, (0, 1))
    ]


def _options(spec, method):
    """Options to choose from, or those that tell the curves of the figure apart."""
    if "inner" in spec.curve_by:
        return [{"inner": 1}, {"inner": 4}]
    if "subproblem" in spec.curve_by:
        return [{"subproblem": "primal"}, {}]
    if method in ("spl", "armijo-spl", "model-step", "trust-region"):
        return [{"gamma": 0.1}, {}]
    if method == "auto":
        return [{}]
    if method == "lbfgs":
        return [{"memory": 5}, {}]
    return [{"stepsize": 0.1}, {"stepsize": 0.01}]
