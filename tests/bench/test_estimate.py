"""How long runs take: what is counted, and where the numbers come from."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from proxlin.bench import cli, estimate, records
from proxlin.bench.start import with_defaults
from tests.bench.made_up import run
from tests.bench.test_train import config


@pytest.fixture
def gradient(monkeypatch):
    """A gradient takes a millisecond for each example."""
    monkeypatch.setattr(estimate, "_gradient", lambda task, batch_size: 1e-3)


def test_steps_and_evaluations_are_counted(tmp_path, gradient):
    # 5 epochs of 5 steps on 8 examples, a gradient each; 6 evaluations of 40 + 40 examples
    seconds = estimate.seconds(with_defaults(config("sgd", epochs=5)), tmp_path)
    assert seconds == pytest.approx(5.0 + 25 * 8e-3 + 6 * 80e-3 / 3)
    four = estimate.seconds(with_defaults(config("spl", epochs=5)), tmp_path)
    assert four == pytest.approx(5.0 + 4 * 25 * 8e-3 + 6 * 80e-3 / 3)


def test_records_say_how_long_a_step_takes(tmp_path, gradient):
    """Those of the same task and method, with any options and seed."""
    asked = with_defaults(config("sgd", "task", epochs=5))
    unlike = run("adam", task=asked.task, batch_size=asked.batch_size, version=asked.version)
    alike = run(
        "sgd",
        {"stepsize": 0.7},
        task=asked.task,
        batch_size=asked.batch_size,
        seed=3,
        version="an older one",
        seconds=30.0,  # for 10 steps
    )
    for made in (unlike, alike):
        folder = tmp_path / made.folder.relative_to("runs")
        folder.mkdir(parents=True)
        records.write_run(folder, made.meta)
    seconds = estimate.seconds(asked, tmp_path)
    assert seconds == pytest.approx(1.25 + 25 * 3.0 + 6 * 80 * 3.0 / 8 / 3)


def test_a_gradient_is_timed(tmp_path):
    seconds = estimate.seconds(with_defaults(config("sgd", epochs=1)), tmp_path)
    assert seconds is not None and seconds > 5.0


def test_a_list_says_what_is_left(tmp_path, gradient, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = lambda *more: (
        CliRunner().invoke(cli.app, ["sweep", "stepsize", "--list", *more]).stdout
    )
    *each, total = listed().splitlines()
    assert len(each) == 10 and all(": about " in line for line in each)
    assert total.startswith("in all about ") and "to a factor of two or three" in total
    lines = listed("--scale", "small", "--data-dir", "nowhere").splitlines()
    assert len(lines) == 11 and all(line.endswith(": its data is missing") for line in lines)
