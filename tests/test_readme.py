"""Every Python block of the README and the guides runs, in a process with JAX as it comes."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
    if BLOCK.search(page.read_text(encoding="utf-8"))
]


def program(page: pathlib.Path) -> str:
    """The blocks of a page as one program, each line where it is on the page."""
    text = page.read_text(encoding="utf-8")
    lines: list[str] = []
    for block in BLOCK.finditer(text):
        lines += [""] * (text[: block.start(1)].count("\n") - len(lines))
        lines += block.group(1).splitlines()
    return "\n".join(lines) + "\n"


def test_pages_have_blocks():
    names = {page.stem for page in PAGES}
    assert {"README", "training", "choosing", "freezing-and-decay", "adding-a-loss"} <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(page, tmp_path):
    file = tmp_path / f"{page.stem}.py"
    file.write_text(program(page), encoding="utf-8")
    # Two devices for the sharded batch; fewer optimizations because compiling takes all the time.
    settings = {"JAX_NUM_CPU_DEVICES": "2", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        env={**os.environ, **settings},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_reference_lists_every_public_name():
    listed = re.findall(r"^\.\. auto\w+:: (\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    exported = re.findall(
        r" as (\w+)$", (ROOT / "src/proxlin/__init__.py").read_text(), re.MULTILINE
    )
    assert sorted(listed) == sorted(exported)


def test_map_names_files_that_exist():
    named = set(re.findall(r"`(tests/\w+\.py)`", (ROOT / "docs/map.md").read_text()))
    assert named and all((ROOT / name).exists() for name in named)
