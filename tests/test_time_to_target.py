"""The benchmark of time to target: what is run, when a run ends, and what the tables say."""

from __future__ import annotations

import json
import math

import jax
import pytest

from benchmarks import time_to_target as bench
from benchmarks.time_to_target import Point, Problem
from proxlin.bench import loop, records, tasks
from proxlin.bench.evaluation import evaluator
from proxlin.bench.loop import State

ACCURACY = Problem("digits-mlp", 128, (0.5, 0.8), every=5)
LOSS = Problem("digits-mlp", 128, (2.0, 1.0), score="loss")


def line(method="adam", seconds=(1.0, 2.0), seed=0, options=None, best=0.9, **more):
    """A finished run."""
    return {
        "problem": "digits-mlp",
        "method": method,
        "options": options or {},
        "seed": seed,
        "targets": [0.5, 0.8][: len(seconds)],
        "seconds": list(seconds),
        "steps": [None if s is None else int(10 * s) for s in seconds],
        "seconds_per_step": 0.1,
        "gradient_seconds": 0.05,
        "end": "diverged" if None in seconds else "reached",
        "curve": [[0, 0.0, 2.0, 0.1], [5, 1.0, 1.0, best]],
        "cap": [1.5] * len(seconds),
        **more,
    }


# ---- when a run ends ---------------------------------------------------------------------------


def curve(*accuracies):
    return [Point(5 * i, float(i), 1.0, x) for i, x in enumerate(accuracies)]


def losses(*values):
    return [Point(5 * i, float(i), x, 0.1) for i, x in enumerate(values)]


@pytest.mark.parametrize(
    ("points", "seconds", "in_a_row", "finite", "end"),
    [
        (curve(0.1), 2.9, 0, True, ""),
        (curve(0.1), 3.1, 0, True, "cap"),  # of the first target
        (curve(0.1, 0.6), 3.1, 0, True, ""),  # the second one has more time
        (curve(0.1, 0.6), 9.1, 0, True, "cap"),
        (curve(0.1, 0.6, 0.4, 0.8), 99.0, 0, True, "reached"),
        (curve(0.1, 0.9), 1.0, 0, True, "reached"),  # both at once
        (curve(0.1), 1.0, 4, False, ""),
        (curve(0.1), 1.0, 5, False, "diverged"),
        (curve(0.1), 1.0, 5, True, ""),  # no step was found, but all is finite
        (curve(0.1), 1.0, 20, True, "stalled"),
        ([Point(0, 0.0, None, 0.1)], 0.0, 0, True, "diverged"),
        (losses(2.3, 1.9, *[2.29] * 9), 1.0, 0, True, ""),
        (losses(2.3, 1.9, *[2.29] * 10), 1.0, 0, True, "diverged"),  # at chance, and stays there
        (losses(2.4, 1.9, *[math.log(10)] * 10), 1.0, 0, True, "diverged"),
        (losses(2.3, 1.9, *[2.18] * 10), 1.0, 0, True, ""),
        (losses(*[2.3] * 10), 1.0, 0, True, ""),  # a slow start
    ],
)
def test_a_run_ends_when_it_must(points, seconds, in_a_row, finite, end):
    caps = {0.5: 3.0, 0.8: 9.0}
    trouble = loop.trouble(finite, in_a_row)
    assert bench.verdict(ACCURACY, points, caps, seconds, trouble) == end


def test_a_target_is_reached_at_the_first_evaluation_there():
    points = curve(0.1, 0.5, 0.4, 0.9)
    assert ACCURACY.first_at(points, 0.5) == points[1]
    assert ACCURACY.first_at(points, 0.8) == points[3]
    assert ACCURACY.first_at(points, 0.95) is None
    losses = [Point(0, 0.0, 3.0, None), Point(5, 1.0, None, None), Point(9, 2.0, 1.5, None)]
    assert LOSS.first_at(losses, 2.0) == losses[2]
    assert LOSS.first_at(losses, 1.0) is None


def test_the_cap_is_that_of_the_best_run_so_far_to_each_target():
    assert bench.caps_of([], [0.5], [1.5]) == {0.5: math.inf}
    rows = [line(seconds=(4.0, None)), line(seconds=(2.0,)), line(seconds=(6.0, 8.0))]
    assert bench.caps_of(rows, [0.5, 0.8], [1.5, 2.0]) == {0.5: 3.0, 0.8: 16.0}


# ---- which setting is best ---------------------------------------------------------------------


def test_the_best_setting_reaches_the_first_target_first_on_the_first_seed():
    rows = [
        line(seconds=(5.0,), options={"stepsize": 1}),
        line(seconds=(3.0,), options={"stepsize": 2}),
        line(seconds=(None,), options={"stepsize": 3}, best=1.0),
        line(seconds=(1.0,), options={"stepsize": 1}, seed=1),
        line("sgd", seconds=(1.0,), options={"stepsize": 4}),
    ]
    assert bench.best_setting(rows, ACCURACY, "adam") == {"stepsize": 2}


def test_if_none_reaches_it_the_best_setting_comes_nearest():
    rows = [
        line(seconds=(None,), options={"stepsize": 1}, best=0.3),
        line(seconds=(None,), options={"stepsize": 2}, best=0.4),
        line(seconds=(None,), options={"stepsize": 3}, curve=[[0, 0.0, None, None]]),
    ]
    assert bench.best_setting(rows, ACCURACY, "adam") == {"stepsize": 2}


@pytest.mark.parametrize(
    ("seconds", "end", "targets", "cap", "answer"),
    [
        ((1.0, 2.0), "reached", [0.5, 0.8], [9.0, 9.0], True),
        ((1.0, 2.0), "reached", [0.5], [9.0], True),  # on the way to the second
        ((1.0, None), "cap", [0.5], [9.0], True),
        ((1.0, None), "cap", [0.5, 0.8], [1.5, 9.0], False),  # it has more time now
        ((1.0, None), "cap", [0.5, 0.8], [9.0, 1.5], True),  # but not for what it has missed
        ((None, None), "cap", [0.5, 0.8], [1.5, 9.0], True),
        ((None, None), "cap", [0.5], [9.0], False),
        ((None, None), "diverged", [0.5], [9.0], True),
        ((1.0,), "reached", [0.5, 0.8], [1.5, 1.5], False),  # it was not asked for the second
    ],
)
def test_a_run_is_not_run_again_for_what_it_has_answered(seconds, end, targets, cap, answer):
    assert bench.answers(line(seconds=seconds, end=end), targets, cap) == answer


# ---- tables ------------------------------------------------------------------------------------


def cells(text, method):
    (row,) = [x for x in text.splitlines() if x.startswith(f"| {method} |")]
    return [cell.strip() for cell in row.strip("|").split("|")]


def stopped_after(seconds):
    return {"end": "cap", "curve": [[0, 0.0, 2.0, 0.1], [5, seconds, 1.0, 0.4]]}


def test_failures_count_as_infinite():
    rows = [
        *(line("auto", (s, None), i) for i, s in enumerate([2.0, 3.0, 9.0])),
        *(line("adam", (s, 9.0), i) for i, s in enumerate([4.0, None, 6.0])),
        *(line("sgd", (s, 9.0), i) for i, s in enumerate([1.0, None, None])),
    ]
    first = bench.table(rows, ACCURACY, 0.5)
    assert cells(first, "auto")[2:] == ["3 of 3", "3", "2 to 9", "30", "60", "2.00", "1.00"]
    assert cells(first, "adam")[2:] == ["2 of 3", "6", "4 to ∞", "60", "120", "2.00", "0.50"]
    assert cells(first, "sgd")[2:] == ["1 of 3", "∞", "1 to ∞", "∞", "∞", "2.00", "0.00"]
    second = bench.table(rows, ACCURACY, 0.8)
    assert cells(second, "auto")[2:4] == ["0 of 3", "∞"]
    assert cells(second, "adam")[2:4] == ["3 of 3", "9"]
    assert cells(second, "adam")[-1] == ""


def test_ours_comes_first():
    text = bench.table([line("sgd"), line("adam"), line("auto")], ACCURACY, 0.5)
    first = [row.split("|")[1].strip() for row in text.splitlines()[2:]]
    assert first == ["auto", "sgd", "adam"]


def test_a_rival_that_was_stopped_bounds_the_ratio():
    rows = [
        *(line("auto", (3.0, 5.0), seed) for seed in range(3)),
        *(line("adam", (None, None), i, **stopped_after(s)) for i, s in enumerate([4.0, 6.0, 8.0])),
        *(line("sgd", (s, None), i, **stopped_after(8.0)) for i, s in enumerate([5.0, None, None])),
        *(line("muon", (s, None), i, **stopped_after(5.0)) for i, s in enumerate([5.0, 6.0, None])),
    ]
    assert cells(bench.table(rows, ACCURACY, 0.5), "adam")[3::5] == ["∞", "< 0.50"]
    assert cells(bench.table(rows, ACCURACY, 0.5), "sgd")[3::5] == ["∞", "< 0.38"]
    assert cells(bench.table(rows, ACCURACY, 0.8), "sgd")[3::5] == ["∞", "< 0.62"]
    # One failure of three is infinite, and leaves a median that needs no bound.
    assert cells(bench.table(rows, ACCURACY, 0.5), "muon")[3::5] == ["6", "0.50"]


def test_who_was_not_asked_for_a_target_is_not_in_its_table():
    rows = [
        line("auto"),
        line("adam", (1.0,)),
        line("sgd", (3.0, 4.0), options={"stepsize": 1}),
        line("sgd", (2.0,), options={"stepsize": 2}),  # the best setting
    ]
    text = bench.table(rows, ACCURACY, 0.8)
    assert cells(text, "auto") and "adam" not in text and "sgd" not in text


def test_a_run_to_all_targets_replaces_that_of_the_grid():
    rows = [line("auto", (2.0,)), line("auto", (3.0, 5.0))]
    text = bench.table(rows, ACCURACY, 0.5)
    assert cells(text, "auto")[2:5] == ["1 of 1", "3", "3 to 3"]


def test_a_run_that_a_lower_cap_has_ended_does_not_replace_another():
    rows = [line("auto", (2.0,)), line("auto", (None, None), end="cap")]
    assert cells(bench.table(rows, ACCURACY, 0.5), "auto")[2:4] == ["1 of 1", "2"]
    assert cells(bench.table(rows, ACCURACY, 0.8), "auto")[2:4] == ["0 of 1", "∞"]


def test_of_two_runs_that_were_stopped_the_longer_one_counts():
    rows = [line("auto"), *(line("adam", (None, None), **stopped_after(s)) for s in (8.0, 4.0))]
    assert cells(bench.table(rows, ACCURACY, 0.8), "adam")[-1] == "< 0.25"


# ---- all of it ---------------------------------------------------------------------------------


@pytest.fixture
def rows_file(tmp_path):
    return tmp_path / "rows.jsonl"


@pytest.fixture
def raced(rows_file, monkeypatch):
    """A small race: two settings of Adam, of which one is hopeless, and one of ours."""
    settings = [{"stepsize": 1e-2}, {"stepsize": 1e-9}]
    monkeypatch.setattr(bench, "GRIDS", {"adam": settings})
    task = tasks.load("digits-mlp")
    patient = ACCURACY._replace(epochs=10_000)  # time is up before, however slow the machine

    def race(seeds):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            bench.race(patient, ["model-step", "adam"], seeds, rows_file, task)
        return [json.loads(x) for x in rows_file.read_text().splitlines()]

    return race


def test_a_race(raced, rows_file):
    rows = raced(seeds=[0, 1])
    asked = [(r["method"], r["options"].get("stepsize"), r["seed"], r["targets"]) for r in rows]
    assert asked == [
        ("model-step", None, 0, [0.5]),
        ("adam", 1e-2, 0, [0.5]),
        ("adam", 1e-9, 0, [0.5]),
        ("model-step", None, 0, [0.5, 0.8]),
        ("adam", 1e-2, 0, [0.5, 0.8]),
        ("model-step", None, 1, [0.5, 0.8]),
        ("adam", 1e-2, 1, [0.5, 0.8]),
    ]
    hopeless = rows[2]
    assert (hopeless["end"], hopeless["seconds"], hopeless["steps"]) == ("cap", [None], [None])
    assert rows[0]["end"] == "reached"
    for row in rows:
        points = [Point(*point) for point in row["curve"]]
        reached = [ACCURACY.first_at(points, t) for t in row["targets"]]
        assert row["seconds"] == [p and p.seconds for p in reached]
        assert row["steps"] == [p and p.step for p in reached]
        assert [p.step for p in points] == list(range(0, 5 * len(points), 5))
        assert row["environment"]["cores"] and row["gradient_seconds"] > 0
    same = lambda row: [point[::2] for point in row["curve"]]  # steps and losses, not seconds
    assert all(a == b for a, b in zip(same(rows[0]), same(rows[3]), strict=False))

    # What is there is not run again, and a line that a kill has torn is.
    whole = rows_file.read_text()
    rows_file.write_text(whole[:-20])
    again = raced(seeds=[0, 1])
    assert again[:-1] == rows[:-1] and same(again[-1])[0] == same(rows[-1])[0]
    assert len(raced(seeds=[0, 1])) == len(rows)


def test_a_run_gives_up_after_its_epochs():
    task = tasks.load("digits-mlp")
    problem = ACCURACY._replace(epochs=1)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        row = bench.train(problem, task, "adam", {"stepsize": 1e-9}, 0, {0.5: math.inf})
    assert (row["end"], row["seconds"]) == ("epochs", [None])
    assert [point.step for point in row["curve"]] == [0, 5, 10]


def test_a_problem_may_look_at_the_first_test_examples_only():
    task = tasks.load("digits-mlp")
    problem = ACCURACY._replace(epochs=1, every=100, examples=7)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        row = bench.train(problem, task, "adam", {"stepsize": 1e-9}, 0, {0.5: math.inf})
        found = evaluator(task)(State(*task.init(0), ()), task.dataset.test.batches(7, 7))
    (point,) = row["curve"]
    assert (point.loss, point.accuracy) == pytest.approx(found)


# ---- what is on record -------------------------------------------------------------------------


def test_the_tables_on_record_are_those_of_the_rows_and_stand_in_the_results():
    text = (bench.RESULTS / "time_to_target.md").read_text(encoding="utf-8")
    assert bench.report(list(records.lines(bench.RESULTS / "time_to_target.jsonl"))) == text
    page = bench.RESULTS.parents[1] / "results" / "time_to_target.md"
    _, *tables = text.split("## ")
    for title, table in (part.split("\n\n", 1) for part in tables):
        assert f"**{title}**\n\n{table.strip()}\n\n" in page.read_text(encoding="utf-8")


def test_the_medians_of_the_guide_are_on_record():
    methods = ["auto", "muon", "adam", "momentum"]
    tables = (bench.RESULTS / "time_to_target.md").read_text(encoding="utf-8").split("## ")[1:]
    recorded = [[cells(table, method)[3] for method in methods] for table in tables]
    guide = bench.RESULTS.parents[1] / "docs" / "how-to" / "when.md"
    _, table = guide.read_text(encoding="utf-8").split("| | `auto` | Muon | Adam | momentum |\n")
    rows = [row.strip("|").split("|")[1:] for row in table.split("\n\n")[0].splitlines()[1:]]
    assert rows
    for row in rows:
        assert [cell.strip() for cell in row] in recorded
