"""A run that is killed again and again ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from proxlin.bench import records
from proxlin.bench.records import Config
from proxlin.bench.start import with_defaults
from tests.bench.test_train import assert_same_run, damage

TIMEOUT = 300


def digits(steps):
    asked = Config("digits-mlp", "armijo-spl", epochs=steps / 10, evals_per_epoch=2)
    return with_defaults(asked)


def start(asked, out):
    command = [
        *(sys.executable, "-m", "proxlin.bench", "train"),
        *("--task", asked.task, "--method", asked.method, "--epochs", str(asked.epochs)),
        *("--evals-per-epoch", "2", "--checkpoint-seconds", "0.5", "--out", str(out), "--resume"),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def last_step(folder):
    """How far a run has come, by the last whole line of its metrics; it may be writing another."""
    try:
        *_, line, _ = (folder / "metrics.jsonl").read_bytes().split(b"\n")
    except (FileNotFoundError, ValueError):  # no file, or no line
        return 0
    return json.loads(line)["step"]


def kill_at(process, folder, step):
    """Kills the process once it has evaluated at a step, or whenever it ends."""
    end = time.monotonic() + TIMEOUT
    while process.poll() is None and last_step(folder) < step:
        assert time.monotonic() < end, "the run does not get on"
        time.sleep(0.01)
    process.kill()
    output, _ = process.communicate()
    assert process.returncode in (-signal.SIGKILL, 0), output


def run_to_the_end(asked, out):
    process = start(asked, out)
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, output
    return records.load_run(asked.folder(out))


def chaos(tmp_path: pathlib.Path, steps: int, kills: int):
    asked = digits(steps)
    straight = run_to_the_end(asked, tmp_path / "straight")
    random_step = random.Random(0)
    folder = asked.folder(tmp_path / "chaos")
    points = sorted(random_step.sample(range(1, steps), kills))
    for number, step in enumerate(points):
        kill_at(start(asked, tmp_path / "chaos"), folder, step)
        if number == kills // 2:
            newest = max((folder / "checkpoints").glob("*.json"))
            damage(newest.with_suffix(""))
        if number == kills - 1:
            os.truncate(folder / "metrics.jsonl", (folder / "metrics.jsonl").stat().st_size - 5)
    survived = run_to_the_end(asked, tmp_path / "chaos")
    assert survived.status == "finished" and survived.meta["resumed"] >= 1
    assert_same_run(straight, survived)
    return survived


def test_killed_twice(tmp_path):
    chaos(tmp_path, steps=1500, kills=2)


@pytest.mark.slow
def test_killed_twenty_times(tmp_path):
    survived = chaos(tmp_path, steps=12_000, kills=20)
    assert survived.meta["resumed"] >= 10
