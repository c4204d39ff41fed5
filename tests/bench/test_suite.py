"""The suite of workloads: schedules, grids, targets, records and averages."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import proxlin
from benchmarks.suite import __main__ as command_line
from benchmarks.suite import cost, figures, report, results, running, scores, training, workloads
from benchmarks.suite.data import augmented
from benchmarks.suite.rivals import (
    METHODS,
    Method,
    decays,
    either,
    matrices,
    rates,
    warm_up_cosine,
)
from benchmarks.suite.workloads import DEVELOPMENT, HELD_OUT, WORKLOADS, Spec, Workload
from proxlin.bench import data, models
from proxlin.bench.errors import UsageError
from proxlin.bench.loop import State
from proxlin.bench.tasks import Task, accuracy
from tests.bench.toys import toy

BUDGET = 20
DRAWN = np.random.default_rng(0)
IMAGES = DRAWN.integers(0, 256, (24, 8, 8, 1), np.uint8)


@pytest.fixture
def tiny(monkeypatch):
    """A workload that takes milliseconds, in place of `convnet`."""
    spec = Spec("toy", lambda data_dir: toy(), 8, BUDGET, "accuracy")
    monkeypatch.setattr(workloads, "WORKLOADS", {"convnet": spec})
    monkeypatch.setattr(running, "WORKLOADS", {"convnet": spec})
    workloads.load.cache_clear()
    yield workloads.load("convnet")
    workloads.load.cache_clear()


def residual(batch=4):
    """A network with BatchNorm on random images."""
    labels = np.arange(len(IMAGES), dtype=np.int32) % 3
    split = data.datasets.Arrays(IMAGES, labels)
    dataset = data.Dataset(
        "made-up", "", 3, (8, 8, 1), split, split, "", lambda x: x / jnp.float32(255)
    )
    network = models.resnet((8, 8, 1), 3, blocks=(1,), width=4)
    task = Task("made-up", network, proxlin.Logistic(), dataset, accuracy)
    return Workload("made-up", task, batch, BUDGET, "accuracy", augmented=True)


def row(points, method="adamw", seed=0, setting=None, steps=BUDGET, status="finished"):
    """A run with the given (step, accuracy)."""
    return {
        "method": method,
        "setting": dict(METHODS[method].start) if setting is None else setting,
        "seed": seed,
        "steps": steps,
        "status": status,
        "curve": [[step, value, None, None] for step, value in points],
    }


# ---- workloads ---------------------------------------------------------------------------------


def test_the_workloads_are_split_in_two_halves():
    assert {*DEVELOPMENT, *HELD_OUT} == {*WORKLOADS}
    assert len(DEVELOPMENT) == len(HELD_OUT) == 4


def test_batches_are_a_function_of_seed_and_step():
    workload = residual(batch=10)  # two batches in an epoch
    first = list(itertools.islice(workload.batches(seed=1), 7))
    for start in (0, 1, 2, 5):
        again = next(workload.batches(seed=1, start=start))
        jax.tree.map(np.testing.assert_array_equal, again, first[start])
    other = next(workload.batches(seed=2))
    assert not np.array_equal(other[0], first[0][0])


def test_augmentation_is_a_function_of_seed_and_step():
    same = [augmented(IMAGES, seed=3, step=5) for _ in range(2)]
    np.testing.assert_array_equal(same[0], same[1])
    assert not np.array_equal(same[0], augmented(IMAGES, seed=3, step=6))
    assert not np.array_equal(same[0], augmented(IMAGES, seed=4, step=5))


def test_augmentation_shifts_and_mirrors():
    image = IMAGES[:1]
    padded = np.pad(image[0], [(4, 4), (4, 4), (0, 0)])
    windows = [padded[i : i + 8, j : j + 8] for i in range(9) for j in range(9)]
    expected = {w.tobytes() for window in windows for w in (window, window[:, ::-1])}
    found = {augmented(image, seed=0, step=step)[0].tobytes() for step in range(200)}
    assert found <= expected
    assert len(found) > 80


# ---- rivals ------------------------------------------------------------------------------------


def test_rates_warm_up_and_end_at_zero():
    schedule = warm_up_cosine(0.1, 200)
    found = np.array([schedule(step) for step in range(201)])
    assert found.argmax() == 10
    np.testing.assert_allclose(found[10], 0.1, rtol=1e-6)
    np.testing.assert_allclose(found[105], 0.05, rtol=1e-2)
    assert found[0] > 0
    assert found[200] == pytest.approx(0, abs=1e-9)
    assert np.all(np.diff(found[:11]) > 0)
    assert np.all(np.diff(found[10:]) < 0)


@pytest.mark.parametrize("value", [1e-4, 3e-3, 0.1, 1.0, 30.0])
def test_each_rate_is_the_neighbor_of_its_neighbors(value):
    below, above = rates(value)
    assert below < value < above
    assert rates(below)[1] == rates(above)[0] == value


def test_decays_have_no_upper_end():
    assert decays(0.0) == (0.1,)
    assert decays(0.1) == (0.0, 1.0)
    assert decays(1.0) == (0.1, 10.0)
    assert [either(0.0), either(1.0)] == [(1.0,), (0.0,)]


@pytest.mark.parametrize("name", [name for name in METHODS if name != "kfac"])
def test_every_method_trains(name):
    method, workload = METHODS[name], Workload("toy", toy(), 8, BUDGET, "accuracy")
    trainer = method.make(workload.task, BUDGET, **method.start)
    done = training.run(workload, trainer, 0, BUDGET, method.evaluated)
    assert done.status == "finished"
    assert done.curve[-1].step == BUDGET
    assert done.curve[-1].loss < done.curve[0].loss


def test_muon_takes_kernels_as_matrices_and_leaves_embeddings_to_adam():
    params = {"w": jnp.ones((3, 3, 2, 4)), "b": jnp.ones(4), "tables": {"a": jnp.ones((5, 4))}}
    found = matrices(params)
    assert found["b"] is None
    assert found["tables"]["a"] is None
    assert found["w"] == optax.contrib.MuonDimensionNumbers((0, 1, 2), 3)


# ---- grids -------------------------------------------------------------------------------------


def tuned(value_of, start, grid):
    """The best setting, and all that were run."""
    rows = []

    def run(setting):
        assert setting not in [row["setting"] for row in rows]
        rows.append(row([(0, 0.1), (BUDGET, value_of(**setting))], setting=setting))

    method = Method(METHODS["adamw"].make, start, grid)
    return running.tune(method, "accuracy", lambda: rows, run), [x["setting"] for x in rows]


def test_a_grid_grows_until_the_best_setting_is_inside():
    best, run = tuned(lambda rate: -abs(math.log(rate / 30)), {"rate": 0.1}, {"rate": rates})
    assert best == {"rate": 30.0}
    assert {"rate": 10.0} in run
    assert {"rate": 100.0} in run
    assert {"rate": 0.01} not in run


def test_a_grid_of_two_options_has_all_neighbors_of_the_best():
    value = lambda rate, weight_decay: -(math.log10(rate) ** 2) - (weight_decay - 1) ** 2
    grid = {"rate": rates, "weight_decay": decays}
    best, run = tuned(value, {"rate": 0.1, "weight_decay": 0.0}, grid)
    assert best == {"rate": 1.0, "weight_decay": 1.0}
    for rate, decay in ((0.3, 1.0), (3.0, 1.0), (1.0, 0.1), (1.0, 10.0)):
        assert {"rate": rate, "weight_decay": decay} in run


def test_where_all_settings_diverge_the_rate_falls():
    best, run = tuned(lambda rate: None if rate > 0.01 else rate, {"rate": 0.1}, {"rate": rates})
    assert best == {"rate": 0.01}
    assert {"rate": 0.003} in run


# ---- targets and speed-ups ---------------------------------------------------------------------


def test_steps_to_a_target_are_interpolated():
    curve = scores.curve(row([(0, 0.0), (10, 0.4), (20, 0.8)]), "accuracy")
    assert scores.steps_to(0.6, curve) == pytest.approx(15)
    assert scores.steps_to(0.0, curve) == 0
    assert scores.steps_to(0.81, curve) == math.inf


def test_losses_are_scores_with_a_sign():
    run = {**row([]), "curve": [[0, None, 2.0, None], [20, None, 1.0, 0.9]]}
    assert scores.steps_to(-1.5, scores.curve(run, "loss")) == pytest.approx(10)


def test_a_diverged_run_reaches_nothing_after_it():
    lost = row([(0, 0.1), (10, 0.5)], status="diverged")
    assert scores.final(lost, "accuracy") == -math.inf
    fine = row([(0, 0.1), (10, 0.5), (20, 0.9)], seed=1)
    curve = scores.mean([lost, fine], "accuracy")
    assert curve.scores == [pytest.approx(0.1), pytest.approx(0.5), -math.inf]
    assert scores.steps_to(0.6, curve) == math.inf


def made_up(seeds=2, **ours):
    """Runs of a baseline that ends at 0.8, and of ours; a step of ours costs 1.5 of it."""
    rows = [row([(0, 0.1), (10, 0.5), (20, 0.8 + s / 10)], seed=s) for s in range(-1, 2)]
    rows = [{**each, "seed": each["seed"] + 1} for each in rows]
    for seed in range(seeds):
        rows.append(row([(0, 0.1), (8, 0.9), (20, 0.9)], "auto", seed))
        rows.append(row([(0, 0.1), (20, 0.5)], "dowg", seed))
    costs = {"adamw": {"gradients": 1.0}, "auto": {"gradients": 1.5}, "dowg": {"gradients": 1.0}}
    return results.summary(rows, "accuracy", BUDGET, costs)


def test_speed_ups_are_budgets_over_what_is_needed():
    found = made_up()
    assert found.target == pytest.approx(0.8)
    assert results.speed_up(found, "adamw", "steps") == pytest.approx(1)
    assert found.results["auto"].steps == pytest.approx(7)
    assert results.speed_up(found, "auto", "steps") == pytest.approx(20 / 7)
    assert results.speed_up(found, "auto", "gradients") == pytest.approx(20 / 10.5)
    assert results.speed_up(found, "dowg", "steps") == 0  # a miss
    assert math.isnan(results.speed_up(found, "muon", "steps"))  # not run


def test_without_a_baseline_nothing_is_known():
    found = results.summary([row([(0, 0.1), (20, 0.5)], "dowg")], "accuracy", BUDGET, {})
    assert math.isnan(found.target)
    assert math.isnan(results.speed_up(found, "dowg", "steps"))


def test_the_report_says_what_is_not_finished():
    rows = [
        row([(0, 0.1), (20, value)], "shampoo", setting={"rate": rate})
        for rate, value in ((0.1, 0.5), (0.03, 0.4), (0.3, 0.4))
    ]
    for known, open_grid in ((rows[:2], True), (rows, False)):
        found = results.summary(known, "accuracy", BUDGET, {})
        assert found.results["shampoo"].open_grid == open_grid
        text = report.incomplete(dict.fromkeys(WORKLOADS, found))
        assert ("grid not finished" in text) == open_grid
        assert "fewer than 3 seeds" in text


def test_geometric_means():
    assert scores.geometric_mean([2.0, 8.0]) == pytest.approx(4)
    assert scores.geometric_mean([2.0, 0.0]) == 0
    assert math.isnan(scores.geometric_mean([]))


def test_runs_planned_for_the_same_gradients_come_first():
    short = [row([(0, 0.1), (10, 0.95)], "auto", seed, steps=10) for seed in (0, 1)]
    long = row([(0, 0.1), (10, 0.5), (20, 0.9)], "auto")
    assert results.same_gradients([*short, long], [long], "accuracy", 10.2) == [0.95, 0.95]
    assert results.same_gradients([*short, long], [long], "accuracy", 20.0) == [0.9]
    assert results.same_gradients([long], [long], "accuracy", 15.0) == [pytest.approx(0.7)]
    assert results.same_gradients([long], [long], "accuracy", 30.0) == [0.9]


def test_more_expensive_steps_are_planned_to_be_fewer(tmp_path):
    costs = {"adamw": {"gradients": 1.0}, "soap": {"gradients": 2.0}}
    (tmp_path / cost.FILE).write_text(json.dumps({"charlm": costs}))
    assert cost.planned("charlm", "soap", tmp_path) == round(WORKLOADS["charlm"].steps / 2)
    with pytest.raises(UsageError, match="suite cost"):
        cost.planned("charlm", "muon", tmp_path)


def test_the_best_of_a_profile_has_the_factor_one():
    factors = figures.profile({"convnet": made_up()}, "steps")
    assert factors["auto"] == [1]
    assert factors["adamw"] == [pytest.approx(20 / 7)]
    assert factors["dowg"] == [math.inf]


def test_the_report_shows_what_is_missing(tmp_path):
    text = report.write(tmp_path)
    assert text == (tmp_path / "README.md").read_text()
    assert (tmp_path / "curves.svg").exists()
    summaries = {**results.summarize(tmp_path), "convnet": made_up()}
    lines = report.speed_ups(summaries, "steps").splitlines()
    assert "| auto | · | · | · | 2.86 | · |" in "\n".join(lines)
    assert "miss" in "\n".join(lines)


# ---- records -----------------------------------------------------------------------------------


def test_recorded_runs_are_skipped(tiny, tmp_path, monkeypatch):
    runs, outcome = [], running._outcome

    def counted(workload, asked):
        runs.append(asked["seed"])
        return outcome(workload, asked)

    monkeypatch.setattr(running, "_outcome", counted)
    running.run_seeds("convnet", "adamw", [0, 1], tmp_path)
    running.run_seeds("convnet", "adamw", [0, 1, 2], tmp_path)
    assert runs == [0, 1, 2]
    rows = running.Records("convnet", tmp_path).rows()
    assert [row["seed"] for row in rows] == [0, 1, 2]
    assert rows[0]["curve"][-1][0] == BUDGET


@pytest.mark.parametrize("command", ["tune", "run", "cost", "report"])
def test_every_command_runs_in_a_folder_of_choice(command, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "ROUNDS", 1)
    monkeypatch.setattr(report, "write", str)
    chosen = ["--workloads", "convnet", "--methods", "shampoo", "--seeds", "0"]
    monkeypatch.setattr("sys.argv", ["suite", command, *chosen, "--folder", str(tmp_path)])
    command_line.main()
    written = {"tune": "convnet.jsonl", "run": "convnet.jsonl", "cost": cost.FILE}
    assert command == "report" or (tmp_path / written[command]).exists()


def test_a_torn_line_is_run_again(tiny, tmp_path):
    running.run_seeds("convnet", "dowg", [0, 1], tmp_path)
    path = tmp_path / "convnet.jsonl"
    path.write_text(path.read_text()[:-40])
    running.run_seeds("convnet", "dowg", [0, 1], tmp_path)
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [0, 1]


def test_what_another_process_runs_is_left_to_it(tiny, tmp_path):
    recorded = running.Records("convnet", tmp_path)
    key = running._key({"method": "dowg", "setting": {}, "seed": 0, "steps": BUDGET})
    with running._claimed(tiny.name, key):
        assert running.run_once(tiny, "dowg", {}, 0, BUDGET, recorded) is None
    assert recorded.rows() == []


def test_runs_can_be_forgotten(tiny, tmp_path):
    recorded = running.Records("convnet", tmp_path)
    for method in ("dowg", "prodigy"):
        running.run_seeds("convnet", method, [0], tmp_path)
    recorded.forget(["dowg"])
    assert [row["method"] for row in recorded.rows()] == ["prodigy"]


def test_a_run_ends_where_numbers_are_not_finite():
    workload = Workload("toy", toy(bad_rows=range(30)), 8, BUDGET, "accuracy")
    trainer = METHODS["momentum"].make(workload.task, BUDGET, rate=0.1, nesterov=1.0)
    done = training.run(workload, trainer, 0, BUDGET)
    assert done.status == "diverged"
    assert done.curve[-1].step < BUDGET


def test_costs_are_ratios_to_a_gradient(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "ROUNDS", 1)
    cost.measure_on("convnet", ["momentum"], tmp_path)
    found = cost.read(tmp_path)["convnet"]
    assert [*found] == ["momentum"]
    assert found["momentum"]["gradients"] > 0
    assert 1 <= found["momentum"]["state"] < 2  # the momentum, and the number of steps


# ---- averages ----------------------------------------------------------------------------------


def test_averaged_parameters_get_statistics_of_their_own():
    task = residual().task
    params, stats = task.init(0)
    other, _ = task.init(1)
    found = training.averaged(
        residual(), State(params, stats, other), lambda method, params: method
    )
    jax.tree.map(np.testing.assert_array_equal, found.params, other)

    # The first layer sees the images alone: dense moments of its outputs.
    outputs = models.layers.convolve(other["stem"]["w"], jnp.asarray(IMAGES) / jnp.float32(255))
    mean, variance = outputs.mean(axis=(0, 1, 2)), outputs.var(axis=(0, 1, 2))
    np.testing.assert_allclose(found.stats["stem"]["mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.stats["stem"]["variance"], variance, rtol=1e-4, atol=1e-6)


def test_networks_without_statistics_need_none():
    task = toy()
    params, stats = task.init(0)
    workload = dataclasses.replace(residual(), task=task)
    state = State(params, stats, ())
    found = training.averaged(workload, state, lambda method, params: params + 1)
    np.testing.assert_array_equal(found.params, params + 1)
    assert found.stats == ()


def test_schedule_free_is_evaluated_with_its_average():
    method, task = METHODS["schedule-free"], toy()
    trainer = method.make(task, BUDGET)
    state = trainer.init(*task.init(0))
    for batch in task.dataset.train.epoch(0, 0, 8):
        state, _ = trainer.step(state, *batch)
    found = method.evaluated(state.method, state.params)
    assert not np.allclose(found, state.params)
