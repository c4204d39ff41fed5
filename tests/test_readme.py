"""Every Python block of the README and the docs runs, with the default settings of JAX."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest

import proxlin
from tests.pages import BLOCK, pages_with_blocks, run_blocks, table_of_rooms

ROOT = pathlib.Path(__file__).parent.parent
PAGES = pages_with_blocks(ROOT / "README.md", *sorted((ROOT / "docs").iterdir()))


def test_pages_have_blocks():
    names = {page.stem for page in PAGES}
    assert {
        "README",
        "first-run",
        "training",
        "choosing",
        "auto",
        "adding-a-loss",
        "start",
    } <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_run(page, tmp_path):
    if page.stem == "keras" and importlib.util.find_spec("keras") is None:
        pytest.skip("needs keras")
    run_blocks(page, tmp_path)


def test_the_five_lines_at_the_top_are_part_of_the_program():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    _, lines, _ = re.split(r"^```(?:py)?$\n", text, maxsplit=2, flags=re.MULTILINE)
    assert len(lines.splitlines()) == 5 and lines in BLOCK.search(text).group(1)


def links(page: pathlib.Path) -> list[str]:
    return re.findall(r"\]\(([^)]*)\)", page.read_text(encoding="utf-8"))


def test_links_of_the_readme_are_absolute():
    """A package index shows the README without the repository around it."""
    assert all(link.startswith("https://") for link in links(ROOT / "README.md"))


def test_links_to_the_repository_lead_to_files():
    start = re.compile(r"https://[a-z.]+\.com/proxlin/proxlin/(?:(?:blob|tree)/)?main/([^#]+)")
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*/*.md")]
    paths = [found[1] for page in pages for link in links(page) if (found := start.match(link))]
    assert len(paths) > 20 and [path for path in paths if not (ROOT / path).exists()] == []


def test_reference_lists_every_public_name():
    listed = re.findall(
        r"^\.\. auto\w+:: (\w+)$", (ROOT / "docs/reference/api.md").read_text(), re.MULTILINE
    )
    exported = re.findall(
        r" as (\w+)$", (ROOT / "src/proxlin/__init__.py").read_text(), re.MULTILINE
    )
    modules = {"extend", "testing"}
    assert sorted(listed) == sorted(set(exported) - modules)


@pytest.mark.parametrize("module", [proxlin.extend, proxlin.testing], ids=lambda m: m.__name__)
def test_reference_lists_every_name_of_the_modules(module):
    """Or names it, where it is listed at the front door or stands for a type."""
    page = (ROOT / "docs/reference/api.md").read_text()
    section = page.split(f"## {module.__name__}\n")[1]
    listed = re.findall(rf"^\.\. auto\w+:: {module.__name__}\.(\w+)$", section, re.MULTILINE)
    source = pathlib.Path(module.__file__).read_text()
    exported = getattr(module, "__all__", re.findall(r" as (\w+)$", source, re.MULTILINE))
    named = {name for name in exported if hasattr(proxlin, name)}
    named |= {"Params", "Vector", "Scalar", "Inverse", "Shapes", "Number", "Again"} & set(exported)
    assert sorted([*listed, *named]) == sorted(exported)
    assert all(f"`{name}`" in section for name in named)


def test_map_names_files_that_exist():
    named = set(re.findall(r"`(tests/\w+\.py)`", (ROOT / "docs/reference/map.md").read_text()))
    assert named and all((ROOT / name).exists() for name in named)


@pytest.mark.parametrize("name", ["README.md", "docs/how-to/when.md"])
def test_costs_are_those_on_record(name):
    record = (ROOT / "benchmarks/results/directions.md").read_text(encoding="utf-8").splitlines()
    header = next(line for line in record if line.startswith("| | batch 64 |"))
    _, table = (ROOT / name).read_text(encoding="utf-8").split(header + "\n")
    rows = table.split("\n\n")[0].splitlines()
    assert len(rows) > 2 and set(rows) <= set(record)


def test_design_explains_the_rooms_of_the_readme():
    """Which has the one list; tests/test_corridor.py compares it with the folder."""
    rooms = table_of_rooms(ROOT / "README.md", "## The map of the house")
    assert rooms == table_of_rooms(ROOT / "docs/explanation/design.md", "## The rooms")
