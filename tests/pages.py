"""The Python blocks of a Markdown page, run as one program with the default settings of JAX."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages_with_blocks(readme: pathlib.Path, *folders: pathlib.Path) -> list[pathlib.Path]:
    """The README and the pages of some folders, those that have Python blocks."""
    pages = [readme, *(page for folder in folders for page in sorted(folder.glob("*.md")))]
    return [page for page in pages if BLOCK.search(page.read_text(encoding="utf-8"))]


def program(page: pathlib.Path) -> str:
    """The blocks of a page as one program, each line where it is on the page."""
    text = page.read_text(encoding="utf-8")
    lines: list[str] = []
    for block in BLOCK.finditer(text):
        lines += [""] * (text[: block.start(1)].count("\n") - len(lines))
        lines += block.group(1).splitlines()
    return "\n".join(lines) + "\n"


def section(page: pathlib.Path, heading: str) -> str:
    """The text under a heading, up to the next one of the same or a higher level."""
    text = "\n" + page.read_text(encoding="utf-8")
    _, _, rest = text.partition(f"\n{heading}\n")
    assert rest, f"{page} has no heading {heading!r}"
    return re.split(rf"^#{{1,{heading.index(' ')}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def table_of_rooms(page: pathlib.Path, heading: str) -> tuple[str, ...]:
    """The modules that the first column of a table names, in their order."""
    return tuple(re.findall(r"^\| `(\w+)` \|", section(page, heading), re.MULTILINE))


def run_blocks(page: pathlib.Path, directory: pathlib.Path, *options: str) -> None:
    """Runs the blocks of a page in a directory.

    Warnings are errors; options of Python, such as ``-W``, can say otherwise.
    """
    file = directory / f"{page.stem}_page.py"  # a page about Keras must not be what it imports
    file.write_text(program(page), encoding="utf-8")
    # Two devices for the sharded batch; fewer optimizations because compiling takes all the time.
    settings = {"JAX_NUM_CPU_DEVICES": "2", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, str(file)],
        env={**os.environ, **settings},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
