"""Each method trains, and those that are the same mathematics are the same."""

from __future__ import annotations

import inspect
import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

import proxlin
from proxlin.bench import methods, tasks
from proxlin.bench.display import Bar, pace
from proxlin.bench.loop import Report
from proxlin.bench.progress import Progress
from proxlin.bench.records import Config
from proxlin.bench.train import train
from tests.bench.test_train import HERE, config, final_state
from tests.bench.toys import BATCH, STEPS

WITHOUT_RIVALS = [name for name in methods.METHODS if name != "kfac"]


@pytest.mark.parametrize("method", WITHOUT_RIVALS)
def test_every_method_trains(tmp_path, method):
    # On all examples at once: what a trust region learns of batches of eight is of little use.
    whole = Config(**{**config(method, epochs=10).as_dict(), "batch_size": BATCH * STEPS})
    run = train(whole, tmp_path)
    first, last = run.metrics[0], run.metrics[-1]
    assert run.status == "finished" and last["train_loss"] < first["train_loss"]
    assert last["vjps"] >= 10 and last["rejected"] < 10
    if method in ("spl", "armijo-spl", "model-step") or method.startswith("spl-"):
        assert last["gamma"] == 1.0 and last["jvps"] >= 2 * 10
    elif method in ("auto", "trust-region"):
        assert last["gamma"] > 0 and last["jvps"] >= 2 * 10
    else:
        assert last["gamma"] is None and last["jvps"] == 0


def first_step(method, **options):
    """Parameters before and after one step on the first batch."""
    task = tasks.load(f"{HERE}:task")
    params, stats = task.init(0)
    trainer = methods.build(method, task, options)
    x, y = next(task.dataset.train.epoch(0, 0, BATCH))
    (new, *_), _ = trainer.step(trainer.init(params, stats), x, y)
    return task, params, new, (x, y)


@pytest.mark.parametrize("options", [{}, {"subproblem": "primal"}, {"curvature_size": 4}])
def test_spl_is_the_direction_of_the_library(options):
    task, params, new, batch = first_step("spl", gamma=0.7, inner=3, **options)
    chosen = {**options, "subproblem": methods.SUBPROBLEMS[options.get("subproblem", "dual")]}
    fn = proxlin.value_and_direction(
        task.network.predict, task.loss, solver=proxlin.CG(3), **chosen
    )
    _, d = fn(params, *batch, gamma=0.7)
    np.testing.assert_allclose(params - new, d, rtol=1e-4, atol=1e-6)


def test_sgd_of_stepsize_one_on_directions_is_spl():
    _, _, one, _ = first_step("spl", gamma=0.3)
    _, _, other, _ = first_step("spl-sgd", gamma=0.3, stepsize=1.0)
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_adam_is_that_of_optax():
    task, params, new, (x, y) = first_step("adam", stepsize=0.05)
    grad = jax.grad(lambda w: task.loss.value(task.network.predict(w, x), y).mean())(params)
    adam = optax.adam(0.05)
    updates, _ = adam.update(grad, adam.init(params))
    np.testing.assert_allclose(new, params + updates, rtol=1e-6)


def test_statistics_are_kept(tmp_path):
    """A network with BatchNorm: evaluation uses what training has averaged."""
    asked = Config(
        "digits-resnet-tiny", "spl", {"inner": 1}, batch_size=32, max_steps=2, train_examples=32
    )
    run = train(asked, tmp_path)
    state = final_state(run)
    task = tasks.load("digits-resnet-tiny")
    _, start = task.init(0)
    moved = [
        np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (state.stats, start)), strict=True)
    ]
    assert all(moved)
    inputs = task.dataset.prepare(task.dataset.test.inputs)
    outputs = task.network.predict(state.params, inputs, state.stats)
    loss = float(task.loss.value(outputs, task.dataset.test.targets).mean())
    assert run.metrics[-1]["test_loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("method", ["auto", "adam", "lbfgs"])
def test_a_step_gives_its_memory_to_the_next(method):
    task = tasks.load(f"{HERE}:task")
    batch = next(task.dataset.train.epoch(0, 0, BATCH))
    params, stats = task.init(0)
    trainer = methods.build(method, task, {})
    first = trainer.init(params, stats)
    state, _ = trainer.step(first, *batch)
    assert first.params.is_deleted()
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((params, state)))
    trainer.step(state, *batch)


def test_each_method_says_what_it_is():
    for name, method in methods.METHODS.items():
        assert inspect.getdoc(method), name
        assert all(
            option.default is not option.empty for option in methods.options_of(name).values()
        )


def test_the_bar_shows_steps_and_the_newest_loss(tmp_path):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    run = train(config("sgd"), tmp_path, watch=Bar(console, "a run"))
    shown = screen.getvalue()
    assert "a run" in shown and "20/20" in shown and "left" in shown
    assert f"test loss {run.metrics[-1]['test_loss']:.4g}" in shown
    words = " ".join(shown.split())  # a window of 80 columns cuts nothing off
    assert "20 of 20 steps accepted" in words and "steps/s" in words and "…" not in words


def test_lines_where_there_is_no_terminal(tmp_path):
    screen = io.StringIO()
    train(config("sgd"), tmp_path, watch=Bar(Console(file=screen, width=200), "a run"))
    compiling, *lines = screen.getvalue().splitlines()
    assert compiling == "a run: compiling"
    assert len(lines) == 5 and lines[-1].startswith("a run: epoch 4.00")
    assert "batch loss 0." in lines[1] and "5 of 5 steps accepted" in lines[1]
    assert "steps/s" in lines[1] and lines[1].endswith("s left")


def test_the_pace_is_that_of_all_steps_and_counts_those_accepted():
    steps = Progress(step=40, seconds=80.0, rejected=3)
    report = Report(*(8 * [jnp.float32(0.25)]))
    assert pace(steps, report) == (
        "batch loss 0.25, gamma 0.25, 37 of 40 steps accepted, 0.5 steps/s"
    )
    assert "gamma" not in pace(steps, report._replace(gamma=jnp.float32(np.nan)))
