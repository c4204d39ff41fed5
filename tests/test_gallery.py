"""The scripts of the gallery: each runs, holds what it claims, and draws."""

from __future__ import annotations

import ast
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPTS = sorted((pathlib.Path(__file__).parent.parent / "examples/gallery").glob("plot_*.py"))
DRAW = "import matplotlib.pyplot as plt; assert plt.get_fignums()"


def test_each_script_has_a_title_and_ends_with_what_it_claims():
    """Sphinx-Gallery shows the docstring; the numbers of the names are the order."""
    numbers = [int(script.name.split("_")[1]) for script in SCRIPTS]
    assert numbers == list(range(1, 1 + len(SCRIPTS)))
    for script in SCRIPTS:
        tree = ast.parse(script.read_text(encoding="utf-8"))
        title, line, *_ = ast.get_docstring(tree).splitlines()
        assert line == "=" * len(title)
        assert isinstance(tree.body[-1], ast.Assert)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script_runs_and_draws(script, tmp_path):
    program = f"import runpy; runpy.run_path({str(script)!r}); {DRAW}"
    settings = {"MPLBACKEND": "Agg", "MPLCONFIGDIR": str(tmp_path), "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, **settings},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
