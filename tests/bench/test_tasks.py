"""The tasks by name: which networks learn from which data, what, and how it is scored."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import proxlin
from proxlin.bench import data, methods, tasks
from proxlin.bench.errors import UsageError
from proxlin.bench.evaluation import evaluator
from proxlin.bench.loop import State
from proxlin.bench.records import Config
from proxlin.bench.train import train


def test_every_data_set_has_a_network_and_every_network_data():
    names = tasks.names()
    for part in (*data.DATASETS, *tasks.NETWORKS):
        assert any(part in name for name in names)
    assert {"text-transformer", "fashion-mnist-autoencoder", "cifar10-convnet"} <= set(names)
    assert not {"text-mlp", "digits-transformer", "cifar10-autoencoder"} & set(names)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cifar10-autoencoder", "autoencoder takes digits, mnist, fashion-mnist, not cifar10"),
        ("text-mlp", "mlp takes digits, .*imagenet, not text; `proxlin tasks` lists"),
        ("digits-transformer", "transformer takes text, not digits"),
        ("text", r"a task is a data set \(digits, text, .*\), a hyphen and a network"),
    ],
)
def test_what_does_not_go_together_is_rejected(name, message):
    with pytest.raises(UsageError, match=f"there is no task '{name}'.*{message}"):
        tasks.load(name)


def test_the_autoencoder_learns_to_give_back_pixels(tmp_path):
    run = train(
        Config(
            "digits-autoencoder",
            "model-step",
            {"inner": 1},
            batch_size=32,
            max_steps=4,
            train_examples=32,
        ),
        tmp_path,
    )
    first, last = run.metrics[0], run.metrics[-1]
    assert run.meta["task"]["loss"] == "BinaryLogistic"
    assert last["test_accuracy"] is None and last["rejected"] == 0
    assert first["test_loss"] == pytest.approx(64 * np.log(2), rel=0.1)  # outputs near zero
    assert last["test_loss"] < 0.9 * first["test_loss"]


def test_the_transformer_is_scored_at_every_place():
    task = tasks.load("text-transformer")
    params, stats = task.init(0)
    loss, accuracy = evaluator(task)(State(params, stats, ()), task.dataset.test.batches(8, 12))
    ((inputs, targets),) = task.dataset.test.batches(12, 12)
    outputs = jax.jit(task.network.predict)(params, task.dataset.prepare(inputs))
    values = proxlin.Logistic().value(outputs, jnp.asarray(targets))
    assert values.shape == (12, 64)
    assert loss == pytest.approx(float(values.mean()), rel=1e-5)
    assert accuracy == pytest.approx(np.mean(np.argmax(np.asarray(outputs), axis=-1) == targets))


def test_the_transformer_learns_a_batch_of_text():
    task = tasks.load("text-transformer")
    params, stats = task.init(0)
    trainer = methods.build("armijo-spl", task, {"inner": 1})
    state = trainer.init(params, stats)
    batch = next(task.dataset.train.epoch(0, 0, 4))
    values = []
    for _ in range(4):
        state, report = trainer.step(state, *batch)
        values.append(float(report.value))
    assert values[0] == pytest.approx(np.log(96), rel=0.2)
    assert values == sorted(values, reverse=True) and values[-1] < 0.9 * values[0]
