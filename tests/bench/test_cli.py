"""The commands: what they print, what they reject, and with which exit code."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import proxlin
from proxlin import bench
from proxlin.bench import cli, methods
from tests.bench.test_train import HERE

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def command(tmp_path, monkeypatch):
    """``proxlin``, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(cli.app, [str(a) for a in arguments])


def test_help_names_all_commands(command):
    text = command("--help").stdout
    for name in ("tasks", "methods", "train", "sweep", "figure", "report", "data", "demo"):
        assert f" {name} " in text


def test_help_is_as_it_was_written(command):
    """Without the gaps and types that markup leaves behind."""
    text = " ".join(command("sweep", "--help").stdout.split())
    assert "One process per run; the default, except at scale smoke." in text
    assert "One of smoke, digits, small, paper." in text
    text = " ".join(command("train", "--help").stdout.split())
    assert "<bool>" not in text and "--resume Go on from the last checkpoint" in text
    text = " ".join(command("figure", "--help").stdout.split())
    assert "drop-in, Figures 1 and 7;" in text and "cnn-long, Figure 11." in text


def test_version(command):
    assert command("--version").stdout.strip() == proxlin.__version__


def test_lists_for_scripts(command):
    assert "cifar10-convnet" in json.loads(command("tasks", "--json").stdout)
    found = json.loads(command("methods", "--json").stdout)
    assert found["spl"] == {
        "gamma": 1.0,
        "inner": 2,
        "subproblem": "dual",
        "curvature_size": None,
    }
    assert set(found) == set(methods.METHODS)


def test_training_is_told_and_recorded(command):
    done = command("train", "--task", f"{HERE}:task", "--batch-size", 8, "--epochs", 2, "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["status"] == "finished" and told["last"]["step"] == 10
    record = json.loads((pathlib.Path(told["folder"]) / "run.json").read_text())
    assert record["config"]["method"] == "auto" and record["config"]["options"] == {}


def test_the_example_of_an_own_task(command):
    task = pathlib.Path(__file__).parent.parent.parent / "examples" / "own_task.py"
    common = ["--task", f"{task}:wave", "--batch-size", "64", "--epochs", "20", "--json"]
    losses = {}
    for method in ("armijo-spl", "adam"):
        done = command("train", *common, "--method", method)
        assert done.exit_code == 0, done.stderr
        losses[method] = json.loads(done.stdout)["last"]["test_loss"]
    assert losses["armijo-spl"] < losses["adam"]  # at the default stepsize of Adam, 0.001


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--method", "newton"], 2, "there is no method 'newton'"),
        (["--method", "spl", "-o", "gamma=0"], 2, "gamma of method 'spl' must be positive, got 0"),
        (
            ["--method", "spl", "-o", "curvature_size=200", "--batch-size", "100"],
            2,
            "curvature_size=200 for a batch of 100 examples",
        ),
        (["--option", "gamma"], 2, "--option takes name=value"),
        (["--task", "mnist-mlp", "--data-dir", "nowhere"], 3, "proxlin data fetch mnist"),
        (
            ["--out", f"{HERE}/runs", "--task", f"{HERE}:task", "--batch-size", "8"],
            5,
            "toys.py is a file; name a folder",
        ),
        (
            ["--task", f"{HERE}:all_bad", "--batch-size", "8", "--method", "sgd"],
            4,
            "diverged",
        ),
    ],
)
def test_errors_have_their_exit_codes_and_no_traceback(command, arguments, code, message):
    done = command("train", "--epochs", "1", *arguments)
    text = " ".join((done.stdout + done.stderr).split())
    assert done.exit_code == code and message in text
    assert "Traceback" not in text


def test_an_unknown_option_is_a_usage_error(command):
    assert command("train", "--gama", "1").exit_code == 2


def test_a_figure_without_runs_says_how_to_get_them(command):
    done = command("figure", "comparison")
    assert done.exit_code == 2
    assert "proxlin sweep comparison --scale smoke --out runs" in " ".join(done.stderr.split())


def test_a_report_without_runs(command):
    done = command("report", "runs")
    assert done.exit_code == 2 and "there are no runs in runs" in done.stderr


def test_a_sweep_can_be_listed(command):
    listed = json.loads(command("sweep", "primal-vs-dual", "--list", "--json").stdout)
    assert [run["options"]["subproblem"] for run in listed] == ["dual", "primal"]


def test_data_that_is_damaged_is_named(command, tmp_path):
    folder = tmp_path / "cifar10"
    folder.mkdir()
    (folder / "test_batch.bin").write_bytes(b"short")
    done = command("data", "verify", folder)
    assert done.exit_code == 3 and "truncated" in done.stdout and "test_batch.bin" in done.stdout


def test_imagenet_cannot_be_fetched(command):
    done = command("data", "fetch", "imagenet")
    assert done.exit_code == 3 and "image-net.org" in done.stderr


def test_the_bench_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    for name in [name for name in sys.modules if name.startswith("proxlin.bench.cli")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(bench, "cli")
    with pytest.raises(SystemExit, match=r"the bench needs typer; .* 'proxlin\[bench\]'"):
        bench.main()


def test_demo(tmp_path):
    """As a newcomer runs it: in a process of its own, with JAX as it comes."""
    command = [sys.executable, "-m", "proxlin.bench", "demo", "--epochs", "1", "--seeds", "2"]
    done = subprocess.run(
        [*command, "--out", "new/folder"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "new" / "folder"
    runs = json.loads((folder / "demo.json").read_text())
    assert (folder / "demo.png").read_bytes().startswith(PNG)
    assert len(runs) == 14 and {run["status"] for run in runs} == {"finished"}
    assert runs[0]["environment"]["command"] == "proxlin demo --epochs 1 --seeds 2 --out new/folder"
    starts = {run["metrics"][0]["test_loss"] for run in runs}
    assert len(starts) == 2  # one start for each seed, the same for all methods
    for run in runs:
        assert run["metrics"][-1]["test_loss"] < run["metrics"][0]["test_loss"]
        assert run["metrics"][-1]["step"] == 10
    rows = [line for line in done.stdout.splitlines() if "Adam" in line]
    best = max(r["metrics"][-1]["test_accuracy"] for r in runs if r["config"]["method"] == "adam")
    assert len(rows) == 2 and best > 0.1
