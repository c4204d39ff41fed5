"""The precision examples run from end to end, for a moment, and leave a record and a figure."""

from __future__ import annotations

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


def run(name, output, *options):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--output", str(output), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (output / f"{name}.png").stat().st_size > 0
    return json.loads((output / "record.json").read_text())


@pytest.mark.parametrize("name", ["poisson", "burgers"])
def test_error_falls(name, tmp_path):
    record = run(
        name, tmp_path, "--seconds", "2", "--seeds", "1", "--methods", "Levenberg-Marquardt"
    )
    ((first, *_, last),) = [run["curve"] for run in record["runs"]]
    assert first[:2] == [0.0, 0] and last[0] >= 2
    assert last[2] < first[2]
    assert record["command"].startswith(f"python examples/{name}.py")
    assert sum(record["points"]) < record["parameters"]


def test_all_methods_at_the_same_seconds(tmp_path):
    record = run("function_fit", tmp_path, "--seconds", "1", "--seeds", "0")
    assert len({run["method"] for run in record["runs"]}) == 6
    for run_ in record["runs"]:
        first, *_, last = run_["curve"]
        assert last[0] >= 1
        assert last[2] < first[2] and last[3] < first[3]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_no_example_writes_over_committed_records(path):
    """Constants of the code, docstrings aside, name no folder of records."""
    tree = ast.parse(path.read_text())
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert not [x for x in texts if isinstance(x, str) and re.match(r"(results|benchmarks)\b", x)]
