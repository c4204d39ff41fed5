"""Sweeps expand as written, skip what is there, go on after failures, and feed all figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from proxlin.bench import cli, figures, records, storage, sweep
from proxlin.bench.errors import Interrupted, UsageError
from proxlin.bench.watch import Watch
from tests.bench.test_train import HERE, fake
from tests.bench.toys import At


def written(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(text)
    return str(path)


def toy_sweep(tmp_path, runs):
    text = f'[smoke]\ntask = "{HERE}:task"\nbatch_size = 8\nepochs = 1\nruns = [{runs}]\n'
    return sweep.load(written(tmp_path, text), "smoke")


def run(configs, root, **more):
    lines = []
    runs = sweep.run(configs, root, watch=lambda config: Watch(), tell=lines.append, **more)
    return runs, lines


def greedy(state, inputs, targets):
    """A step for which there is no memory."""
    raise MemoryError


def test_lists_stand_for_all_combinations(tmp_path):
    configs = toy_sweep(
        tmp_path,
        '{ method = "spl", gamma = [0.1, 1], inner = [1, 2], seeds = [0, 1] },'
        '{ method = "sgd", stepsize = 0.5, batch_size = 4 }',
    )
    assert len(configs) == 9 and len({c.hash for c in configs}) == 9
    found = {(c.options["gamma"], c.options["inner"], c.seed) for c in configs[:8]}
    assert found == {(g, t, s) for g in (0.1, 1.0) for t in (1, 2) for s in (0, 1)}
    assert configs[8].batch_size == 4 and configs[8].options == {"stepsize": 0.5}


def test_a_run_that_is_written_twice_is_run_once(tmp_path):
    assert len(toy_sweep(tmp_path, '{ method = "spl" }, { method = "spl", gamma = [1, 1.0] }')) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[smoke", "cannot be read"),
        ("[small]\nruns = []", "has no scale 'smoke'; it has small"),
        ('[smoke]\nruns = [{ task = "digits-mlp" }]', "a run needs a task and a method"),
        (
            '[smoke]\nruns = [{ task = "digits-mlp", method = "sgd", gamma = 1 }]',
            "no option 'gamma'",
        ),
        ('[smoke]\nruns = [{ task = "digits-mlp", method = "sgd", epochs = 0 }]', "epochs must be"),
    ],
)
def test_a_file_that_cannot_be_used_is_rejected(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        sweep.load(written(tmp_path, text), "smoke")


def test_an_unknown_sweep_is_told_the_known_ones():
    with pytest.raises(UsageError, match="choose one of batch-size, cnn-long"):
        sweep.load("accuracy", "smoke")


def test_every_figure_has_a_sweep_at_every_scale_with_runs_that_it_shows():
    assert sweep.names() == sorted(figures.FIGURES)
    for name in sweep.names():
        for scale in sweep.SCALES:
            for config in sweep.load(name, scale):
                assert config.method in figures.FIGURES[name].methods


def test_the_grids_of_the_paper():
    values = lambda configs, method, key: {c.options[key] for c in configs if c.method == method}
    stepsize = sweep.load("stepsize", "paper")
    for method in ("sgd", "momentum", "adam", "adafactor"):
        assert values(stepsize, method, "stepsize") == {1e-4, 1e-3, 1e-2, 1e-1, 1.0}
    assert values(stepsize, "spl", "gamma") == {1e-4, 1e-3, 1e-2, 1e-1, 1.0}
    for depth in ("short", "medium", "long"):
        cnn = sweep.load(f"cnn-{depth}", "paper")
        assert {c.batch_size for c in cnn} == {64, 256, 1024}
        for method in ("spl", "armijo-spl"):
            assert values(cnn, method, "gamma") == {1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0}
            assert values(cnn, method, "inner") == {1, 2, 4, 6}
        for method in ("sgd", "momentum", "adam", "shampoo", "kfac"):
            assert values(cnn, method, "stepsize") == {1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0}
    resnet = sweep.load("resnet-imagenet", "paper")
    assert {(c.task, c.batch_size) for c in resnet} == {
        ("imagenet-resnet18", 256),
        ("imagenet-resnet34", 256),
        ("imagenet-resnet34", 1024),
    }
    assert values(resnet, "spl", "gamma") == {1e-2, 1e-1, 1.0, 10.0, 100.0}
    assert values(resnet, "spl", "inner") == {1, 2}


def test_what_is_finished_is_skipped(tmp_path):
    configs = toy_sweep(tmp_path, '{ method = "sgd", stepsize = [0.1, 0.2] }')
    runs, _ = run(configs[:1], tmp_path / "runs")
    runs, lines = run(configs, tmp_path / "runs")
    assert [r.status for r in runs] == ["finished"] * 2
    assert lines[0].endswith("already recorded") and lines[1].endswith("finished")


@pytest.mark.parametrize("isolate", [False, True])
def test_a_run_that_another_process_works_on_is_left_to_it(tmp_path, isolate):
    configs = toy_sweep(tmp_path, '{ method = "sgd", stepsize = [0.1, 0.2] }')
    folder = configs[0].folder(tmp_path / "runs")
    folder.mkdir(parents=True)
    with storage.lock(folder):
        runs, lines = run(configs, tmp_path / "runs", isolate=isolate)
    assert lines[0].endswith("another process is running it") and len(runs) == 1


def test_a_sweep_goes_on_after_failures(tmp_path, new_methods):
    new_methods("greedy", fake(greedy))
    configs = toy_sweep(
        tmp_path, '{ method = ["greedy", "kfac"] }, { method = "sgd", stepsize = [1e38, 0.1] }'
    )
    runs, lines = run(configs, tmp_path / "runs")
    assert [r.status for r in runs] == ["oom", "diverged", "finished"]
    assert "`make rivals`" in lines[1]


def proxlin_sweep(tmp_path, *more):
    place = [str(tmp_path / "own.toml"), "--out", str(tmp_path / "runs")]
    return CliRunner().invoke(cli.app, ["sweep", *place, *more])


def test_a_killed_run_is_named_and_the_same_command_resumes_it(tmp_path, monkeypatch):
    """The others are run meanwhile, and the result is that of a run that nobody killed."""
    runs = f'{{ task = ["{HERE}:killed_once", "{HERE}:task"], method = "sgd", epochs = 2 }}'
    configs = toy_sweep(tmp_path, runs)
    monkeypatch.setenv("TOY_KILLED", str(tmp_path / "killed"))
    real = sweep.command
    monkeypatch.setattr(sweep, "command", lambda c: [*real(c), "--checkpoint-seconds=0"])
    done = proxlin_sweep(tmp_path, "--isolate")
    assert done.exit_code == 1 and "1 of 2 runs have ended;" in done.stdout
    assert "killed_once sgd" in done.stderr and "killed by signal 9; continue with" in done.stderr
    killed, other = sweep.find(configs, tmp_path / "runs")
    assert (killed.status, killed.meta["signal"], other.status) == ("killed", 9, "finished")
    done = proxlin_sweep(tmp_path, "--isolate")
    assert done.exit_code == 0 and "2 of 2 runs have ended;" in done.stdout
    resumed, other = sweep.find(configs, tmp_path / "runs")
    assert resumed.status == "finished" and resumed.meta["resumed"] == 1
    assert resumed.metrics[-1]["test_loss"] == other.metrics[-1]["test_loss"]


@pytest.fixture
def dies(tmp_path, monkeypatch):
    """``dies(number, status)``: a run whose process leaves a record behind, and gets a signal."""
    configs = toy_sweep(tmp_path, '{ method = "sgd", stepsize = 0.1 }')
    folder = configs[0].folder(tmp_path / "runs")
    made, _ = run(configs, tmp_path / "elsewhere")
    real = subprocess.Popen

    def dies(number, status):
        def start(arguments):
            assert arguments[1:4] == ["-m", "proxlin.bench", "train"]
            if status:
                folder.mkdir(parents=True)
                records.write_run(folder, {**made[0].meta, "status": status})
            return real([sys.executable, "-c", f"import os; os.kill(os.getpid(), {number})"])

        monkeypatch.setattr(sweep.subprocess, "Popen", start)
        _, lines = run(configs, tmp_path / "runs", isolate=True)
        return [found.status for found in sweep.find(configs, tmp_path / "runs")], lines[0]

    return dies


@pytest.mark.parametrize(
    ("number", "left", "expected", "message"),
    [
        (signal.SIGKILL, "running", ["killed"], "killed by signal 9; continue"),
        (signal.SIGKILL, "interrupted", ["killed"], "killed by signal 9; continue"),  # resumed
        (signal.SIGSEGV, "running", ["killed"], "killed by signal 11; continue"),
        (signal.SIGKILL, None, [], "killed by signal 9; continue"),  # before there was a record
        (signal.SIGKILL, "finished", ["finished"], ": finished"),  # after it had ended
    ],
)
def test_a_process_that_was_killed_is_not_taken_for_one_out_of_memory(
    dies, monkeypatch, number, left, expected, message
):
    monkeypatch.setattr(sweep, "_oom_kills", lambda: 3)
    statuses, line = dies(number, left)
    assert statuses == expected and message in line


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGKILL, "oom"), (signal.SIGABRT, "killed")]
)
def test_a_process_that_the_kernel_killed_for_memory_is_out_of_memory(
    dies, monkeypatch, number, expected
):
    counts = iter([3, 4])
    monkeypatch.setattr(sweep, "_oom_kills", lambda: next(counts))
    statuses, line = dies(number, "running")
    assert statuses == [expected] and ("out of memory" in line) == (expected == "oom")


def test_the_kernel_counts_what_it_kills_for_memory(tmp_path):
    assert sweep._oom_kills() >= 0 and sweep._oom_kills(tmp_path / "elsewhere") == 0
    files = {"proc/self/cgroup": "4:memory:/a\n0::/b.slice/c\n", "proc/vmstat": "a 1\noom_kill 7\n"}
    own = {"sys/fs/cgroup/b.slice/c/memory.events": "oom 1\noom_kill 2\noom_group_kill 0\n"}
    for more, expected in ((files, 7), (own, 2)):
        for name, text in more.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        assert sweep._oom_kills(tmp_path) == expected


def test_a_sweep_with_runs_that_failed_has_their_exit_code(tmp_path, new_methods):
    new_methods("greedy", fake(greedy))
    toy_sweep(tmp_path, '{ method = "greedy" }, { method = "sgd", stepsize = [1e38, 0.1] }')
    for _ in range(2):  # the second time they are there already
        done = proxlin_sweep(tmp_path)
        assert done.exit_code == 4, done.stderr
        assert "3 of 3 runs have ended, 1 oom, 1 diverged;" in done.stdout


def test_training_without_memory_for_a_step_has_its_exit_code(tmp_path, new_methods):
    new_methods("greedy", fake(greedy))
    arguments = ["--task", f"{HERE}:task", "--batch-size", "8", "--method", "greedy"]
    done = CliRunner().invoke(cli.app, ["train", *arguments, "--out", str(tmp_path)])
    assert done.exit_code == 4 and done.stdout.startswith("oom: out of memory; use a smaller")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sweep_and_the_next_one_goes_on(tmp_path, number):
    configs = toy_sweep(tmp_path, '{ method = "sgd", stepsize = [0.1, 0.2], epochs = 3 }')
    stop = At(7, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Interrupted) as caught:
        sweep.run(configs, tmp_path / "runs", watch=lambda config: stop, tell=lambda line: None)
    assert caught.value.exit_code == 128 + number
    runs, _ = run(configs, tmp_path / "runs")
    assert [r.status for r in runs] == ["finished"] * 2 and runs[0].meta["resumed"] == 1


SAVES = "signal.signal(15, lambda *_: (print('saved', flush=True), sys.exit(143)))"
DIES = "signal.signal(15, signal.SIG_DFL)"  # as after a second signal


@pytest.mark.parametrize("listens, rest", [(SAVES, b"saved\n"), (DIES, b"")])
def test_a_signal_leaves_a_process_of_its_own_the_time_to_save_and_ends_the_sweep(listens, rest):
    program = f"import signal, sys, time; {listens}; print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with process:
        process.stdout.readline()  # it listens
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Interrupted) as caught:
            sweep._wait(process)
        assert caught.value.exit_code == 143 and process.stdout.read() == rest


def test_a_process_that_a_signal_has_ended_ends_the_sweep():
    program = "import os; os.kill(os.getpid(), 15)"
    with pytest.raises(Interrupted, match="signal 15"):
        sweep._wait(subprocess.Popen([sys.executable, "-c", program]))


def test_a_process_of_its_own_makes_the_same_run(tmp_path):
    configs = toy_sweep(tmp_path, '{ method = "spl", gamma = 0.3, max_steps = 3 }')
    runs, _ = run(configs, tmp_path / "runs", isolate=True)
    assert runs[0].status == "finished" and runs[0].meta["hash"] == configs[0].hash


@pytest.mark.slow
def test_all_figures_at_smoke_scale(tmp_path, monkeypatch):
    """All sweeps, then all figures and the report, as commands."""
    done = subprocess.run(
        [sys.executable, "-m", "proxlin.bench", "sweep", "all", "--scale", "smoke", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)
    assert {run["status"] for run in runs} == {"finished"}
    expected = {c.hash for name in sweep.names() for c in sweep.load(name, "smoke")}
    assert {json.loads(p.read_text())["hash"] for p in tmp_path.rglob("run.json")} == expected
    monkeypatch.chdir(tmp_path)  # the other commands in this process: each start takes seconds
    proxlin = lambda *arguments: CliRunner().invoke(cli.app, arguments)
    for name in figures.FIGURES:
        drawn = proxlin("figure", name, "--out", f"{name}.svg")
        assert drawn.exit_code == 0, drawn.stderr
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()
        assert figures.select(name, sweep.find(sweep.load(name, "smoke"), tmp_path / "runs"))
    assert proxlin("report", "runs", "--out", "page.html").exit_code == 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == len(figures.FIGURES)
