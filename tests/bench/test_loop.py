"""The one loop: its clock, its end, and that nothing else in the project trains by itself."""

from __future__ import annotations

import ast
import itertools
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from proxlin.bench import loop, methods, records, tasks
from proxlin.bench.errors import StorageError
from proxlin.bench.status import RunStatus

ROOT = pathlib.Path(__file__).parent.parent.parent


def add(total, number):
    return total + number, {"before": total}


def test_steps_follow_the_batches():
    found = list(loop.steps(add, jnp.asarray(0), [(1,), (2,), (3,)]))
    assert [int(done.state) for done in found] == [1, 3, 6]
    assert [int(done.report["before"]) for done in found] == [0, 1, 3]
    assert all(isinstance(done.report["before"], np.ndarray | np.generic) for done in found)


def test_no_batch_is_asked_for_before_its_step():
    asked = []

    def batches():
        for number in itertools.count():
            asked.append(number)
            yield (number,)

    running = loop.steps(add, 0, batches())
    next(running), next(running)
    assert asked == [0, 1]


def test_the_clock_has_batches_and_steps_and_nothing_between(monkeypatch):
    """By a clock that moves only where something is done."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def spend(seconds):
        now[0] += seconds

    def batches():
        for _ in range(3):
            spend(2.0)  # reading
            yield ()

    def step(state):
        spend(5.0)
        return state, ()

    seconds = []
    for done in loop.steps(step, 0, batches()):
        seconds.append(done.seconds)
        spend(100.0)  # evaluating
    assert seconds == [7.0, 7.0, 7.0]


def test_compiling_leaves_the_state_alive():
    step = jax.jit(lambda state, x: (state + x, ()), donate_argnums=0)
    state = jnp.ones(3)
    assert loop.compile_step(step, state, (1.0,)) > 0
    np.testing.assert_array_equal(state, 1)


@pytest.mark.parametrize(
    ("finite", "in_a_row", "status"),
    [
        (True, 19, None),
        (True, 20, RunStatus.STALLED),
        (False, 4, None),
        (False, 5, RunStatus.DIVERGED),
    ],
)
def test_trouble(finite, in_a_row, status):
    assert loop.trouble(finite, in_a_row) is status


def test_statuses_and_exit_codes():
    codes = {status.value: status.exit_code for status in RunStatus}
    assert {status for status, code in codes.items() if code == 0} == {"finished", "budget"}
    assert {status for status, code in codes.items() if code == 4} == {"diverged", "stalled", "oom"}
    assert {status for status in RunStatus if status.ended} == {
        status for status in RunStatus if status.exit_code != 1
    }


def test_the_exit_code_of_an_interrupted_run_has_its_signal(tmp_path):
    for status in RunStatus:
        run = records.Run(tmp_path, {"status": status, "signal": 15}, [])
        assert run.exit_code == (143 if status is RunStatus.INTERRUPTED else status.exit_code)


def test_a_record_of_no_known_status_is_broken(tmp_path):
    meta = {key: {} for key in ("config", "hash", "task", "environment")}
    records.write_run(tmp_path, {**meta, "status": RunStatus.BUDGET})
    assert records.load_run(tmp_path).status is RunStatus.BUDGET
    records.write_run(tmp_path, {**meta, "status": "asleep"})
    with pytest.raises(StorageError, match="not a record"):
        records.load_run(tmp_path)


def test_statistics_are_stored_once():
    """Of all leaves of a state, those of BatchNorm are there once, before and after a step."""
    task = tasks.load("digits-resnet-tiny")
    trainer = methods.build("spl", task, {})
    params, stats = task.init(0)
    state = jax.eval_shape(trainer.init, params, stats)
    x, y = next(task.dataset.train.epoch(0, 0, 8))
    after, _ = jax.eval_shape(trainer.step, state, x, y)
    assert jax.tree.leaves(stats) and jax.tree.leaves(state.method.aux) == []
    assert jax.tree.leaves(after.method.aux) == []
    shapes = lambda tree: [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]
    assert shapes(after.stats) == shapes(stats) and shapes(after) == shapes(state)


def calls(path):
    """The names of all functions that a file calls."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2]


@pytest.mark.parametrize(
    "path",
    [
        "src/proxlin/bench/train.py",
        "benchmarks/time_to_target.py",
        "benchmarks/pieces.py",
        "benchmarks/rules.py",
        "examples/precision.py",
    ],
)
def test_what_trains_goes_through_the_loop(path):
    assert "steps" in set(calls(ROOT / path)), path
