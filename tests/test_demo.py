"""The demo as a newcomer runs it: in a process of its own, with JAX as it comes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from proxlin.bench import demo

PNG = b"\x89PNG\r\n\x1a\n"
NAMES = ["SPL, gamma 1", "Armijo SPL, gamma 1", "SGD 0.1", "SGD 1", "Adam 0.001", "Adam 0.01"]


def test_one_epoch(tmp_path):
    # One test for all that one run shows: starting Python and compiling takes most of the time.
    folder = tmp_path / "new" / "folder"
    options = ["--epochs", "1", "--repeats", "2", "--seed", "3", "--output", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "proxlin.bench.demo", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / "demo.json").read_text())
    check_provenance(record)
    check_training(record["methods"])
    check_table(done.stdout, record["methods"])
    assert (folder / "demo.png").read_bytes().startswith(PNG)


def check_provenance(record):
    assert record["seed"] == 3 and record["seeds"] == [3, 4] and record["epochs"] == 1
    assert record["command"].startswith("python -m proxlin.bench.demo --epochs 1")
    assert {"proxlin", "python", "jax", "optax", "scikit-learn"} <= set(record["versions"])
    assert record["machine"]["cores"] >= 1 and "commit" in record


def check_training(methods):
    assert [method["name"] for method in methods] == NAMES
    runs = [run for method in methods for run in method["runs"]]
    assert len({run["test_loss"][0] for run in runs}) == 2  # one start for each seed
    for run in runs:
        assert run["steps"] == 10 and run["seconds"][0] == 0 < run["seconds"][1]
        assert run["test_loss"][1] < run["test_loss"][0]
    for method in methods[:2]:
        assert method["median"]["test_accuracy"] > 0.5  # chance is 0.1


def check_table(stdout, methods):
    lines = [[cell.strip() for cell in line.strip(" │").split("│")] for line in stdout.splitlines()]
    rows = {cells[0]: cells[1:] for cells in lines if len(cells) == 5}
    for method in methods:
        median = method["median"]
        assert rows[method["name"]] == [
            f"{100 * median['test_accuracy']:.1f} %",
            f"{median['test_loss']:.3f}",
            f"{median['seconds']:.2f}",
            "10",
        ]


def test_a_run_that_diverged_is_shown_as_such(tmp_path):
    good = demo.Run(0, [0.0, 1.0], [2.0, 1.0], [0.1, 0.9], steps=10, shortened=0)
    bad = good._replace(test_loss=[2.0, float("nan")], test_accuracy=[0.1, 0.1])
    worse = good._replace(test_loss=[2.0, 3.0])
    assert [demo.diverged([run]) for run in (good, bad, worse)] == [False, True, True]
    results = [(method, [bad if method.name == "SGD 1" else good]) for method in demo.methods()]
    json.dumps(demo.record(results, 1, "test", None), allow_nan=False)
    demo.draw(results, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(PNG)
    assert list(demo.table(results).columns[1].cells).count("diverged") == 1


def test_missing_extras_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(SystemExit, match=r"the demo needs rich; .* 'proxlin\[bench\]'"):
        demo.main([])


def test_bad_arguments_are_refused(capsys):
    with pytest.raises(SystemExit):
        demo.main(["--epochs", "0"])
    assert "0 is not a positive number" in capsys.readouterr().err
