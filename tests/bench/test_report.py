"""The page: safe with any record, whole without a network, the same for the same records."""

from __future__ import annotations

import html.parser
import pathlib
import re

import pytest

from proxlin.bench import records as records_
from proxlin.bench import report, sweep
from proxlin.bench.errors import StorageError, UsageError
from tests.bench.made_up import run, runs_of


def page_of(named, runs, scale):
    """The page of runs by the names of their figures, and of others."""
    return report.page(report.contents({scale: named}, runs))


ROOT = pathlib.Path(__file__).parent.parent.parent
HOSTILE = """digits-<script>alert("1")</script>'&"""
OTHER = run("kfac")  # in no figure
VOID = {"meta", "br", "hr", "link", "img", "input"}


class Page(html.parser.HTMLParser):
    """All tags with their attributes, in order; fails where a tag is not closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.words.append(data.strip())

    def attributes(self, name):
        return [attributes[name] for _, attributes in self.tags if name in attributes]

    def of(self, *names):
        return [(tag, attributes) for tag, attributes in self.tags if tag in names]


def records():
    """Two figures that share a run, a run in trouble, and one from another machine."""
    bad = run("armijo-spl", {"gamma": 10.0}, status="oom", losses=(2.0,), seed=0)
    bad.meta["message"] = "no memory <b>left</b>"
    other = run("armijo-spl", {"inner": 8}, environment={"jax": "0.9.1", "date": "2026-01-03"})
    shared = run("armijo-spl", seed=7)
    return {
        "primal-vs-dual": [*runs_of("primal-vs-dual"), bad, shared],
        "inner-iterations": [*runs_of("inner-iterations"), other, shared],
    }


@pytest.fixture(scope="module")
def text():
    return page_of(records(), [OTHER], "smoke")


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_the_same_each_time(tmp_path, text):
    path = tmp_path / "new" / "report.html"
    report.write_report(report.contents({"smoke": records()}, [OTHER]), path)
    assert path.read_text(encoding="utf-8") == text
    assert list(path.parent.iterdir()) == [path]


def test_needs_nothing_besides_itself(text, page):
    assert "http:" not in text and "https:" not in text and "//" not in re.sub(r"/\*", "", text)
    assert not page.of("script", "link", "iframe", "img", "object", "embed")
    assert page.attributes("src") == [] and "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_ids_are_unique_and_found(text, page):
    ids = page.attributes("id")
    assert len(ids) == len(set(ids)) > 100
    used = page.attributes("href") + page.attributes("xlink:href")
    used += re.findall(r"url\(([^)]*)\)", text)
    assert {"#primal-vs-dual", "#runs"} < set(used)
    assert {target.removeprefix("#") for target in used} <= set(ids)
    assert set(page.attributes("aria-labelledby")) <= set(ids)


def test_can_be_read_aloud(page):
    assert dict(page.tags)["html"] == {"lang": "en"}
    levels = [int(tag[1]) for tag, _ in page.of("h1", "h2", "h3", "h4")]
    assert levels == [1, 2, 2, 2, 2, 2]
    assert all(attributes["scope"] in ("row", "col") for _, attributes in page.of("th"))
    assert len(page.of("caption")) == len(page.of("table"))
    pictures = page.of("svg")
    assert len(pictures) == 3 and all(a["role"] == "img" for _, a in pictures)
    assert [a["aria-label"].split(";")[0] for _, a in pictures] == [
        "digits-mlp. digits-mlp",  # of which a run is in no figure
        "Figure 2 of the paper: Directions by the dual and by the primal. digits, mlp",
        "Figure 4 (top) of the paper: Robustness to the number τ of inner iterations. digits, mlp",
    ]


def test_says_what_it_is_and_how_runs_ended(page):
    assert "Training runs" in page.words
    assert any(words.startswith("12 runs: 11 finished, 1 oom.") for words in page.words)
    alone = Page(page_of({"primal-vs-dual": runs_of("primal-vs-dual")}, [], "smoke"))
    assert "Figures of the paper, reduced scale (smoke)" in alone.words


def test_runs_have_their_last_and_their_best_scores():
    worse = run("adam", losses=(2.0, 0.5, 1.0), accuracy=0.8)
    worse.metrics[1]["test_accuracy"] = 0.95
    page = Page(page_of({}, [worse], "smoke"))
    table = page.words[page.words.index("In the order of the figures") + 1 :]
    columns = table.index("record") + 1
    found = dict(zip(table[:columns], table[columns : 2 * columns], strict=True))
    assert found["task"] == "digits-mlp" and found["options"] == "stepsize = 0.001"
    assert (found["test loss"], found["best test loss"]) == ("1.1", "0.55")
    assert (found["test accuracy"], found["best test accuracy"]) == ("80.0 %", "95.0 %")


def test_tasks_of_ones_own_lead_and_only_their_newest_version_is_drawn():
    old, new = (run("adam", task="sub/mine.py:wine", version=v) for v in "ab")
    old.meta["started"], new.meta["started"] = "2026-01-02T03:04:05", "2026-01-02T03:04:06"
    figure = {"primal-vs-dual": [run("armijo-spl")]}
    found = report.contents({"smoke": figure}, [OTHER, new, old])
    first, second, third = found.entries
    assert first.title == "mine.py:wine" and first.selection.runs == [new]
    assert second.title == "digits-mlp" and third.title.startswith("Figure 2 of the paper")
    assert new.meta["hash"] != old.meta["hash"] and len(found.runs) == 4
    words = Page(report.page(found)).words
    assert any("Not drawn: 1 of earlier versions of a task." in each for each in words)


def test_lists_all_runs_once(page):
    runs = {r.meta["hash"]: r for runs in records().values() for r in runs}
    assert len(runs) == 11
    for name in (*runs, OTHER.meta["hash"]):
        assert page.words.count(name[:10]) == 1
    assert "oom: no memory <b>left</b>" in page.words
    configurations = [words for words in page.words if words.startswith('{\n "hash"')]
    assert len(configurations) == 12 and sum('"gamma": ' in x for x in configurations) == 11


def test_settings_in_trouble_are_in_the_table_of_all(page):
    assert "All 4 settings" in page.words and "out of memory" in page.words
    assert "dual, γ = 10, τ = 2" in page.words


def test_each_environment_once(page):
    assert page.words.count("11 of 12 runs") == page.words.count("1 of 12 runs") == 1
    assert page.words.count("0.10.2") == page.words.count("0.9.1") == 1
    assert "digits to try things on (digits-mlp)" in page.words


def test_records_cannot_write_the_page():
    runs = [run("armijo-spl", task=HOSTILE, environment={"cpu": HOSTILE, "command": HOSTILE})]
    runs[0].meta["message"] = HOSTILE
    page = Page(page_of({"primal-vs-dual": runs}, runs, HOSTILE))
    assert not page.of("script")
    assert f"finished: {HOSTILE}" in page.words and page.words.count(HOSTILE) >= 3


def test_the_papers_scale():
    page = Page(page_of({"primal-vs-dual": [run("armijo-spl")]}, [], "paper"))
    assert "Figures of the paper, the paper's scale" in page.words
    assert not any("reduced" in words for words in page.words)


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    runs = {"primal-vs-dual": [run("armijo-spl")]}
    with pytest.raises(StorageError, match="cannot write"):
        report.write_report(report.contents({"smoke": runs}, []), tmp_path / "file" / "report.html")


def test_committed_records_are_still_found_and_drawn():
    found = report.gather(ROOT / "results" / "small" / "runs")
    assert [entry.name for entry in found.entries] == [
        "drop-in",
        "primal-vs-dual",
        "stepsize",
        "inner-iterations",
        "batch-size",
        "comparison",
    ]
    assert {entry.scale for entry in found.entries} == {"small"} and len(found.runs) == 26


def test_a_figure_is_left_out_without_its_subject(tmp_path):
    """A sweep for the stepsize has some runs of three other figures, and shows none of them."""
    for config in sweep.load("stepsize", "smoke"):
        options, more = dict(config.options), {"epochs": 2, "batch_size": config.batch_size}
        made = run(config.method, options, **more)
        assert made.meta["hash"] == config.hash
        folder = config.folder(tmp_path)
        folder.mkdir(parents=True)
        records_.write_run(folder, made.meta)
        records_.write_lines(folder / "metrics.jsonl", made.metrics)
    assert sweep.find(sweep.load("comparison", "smoke"), tmp_path)
    found = report.gather(tmp_path)
    assert [entry.name for entry in found.entries] == ["stepsize"]


def test_scales_beside_each_other_are_told_apart():
    runs = {"primal-vs-dual": [run("armijo-spl")]}
    page = Page(report.page(report.contents({"smoke": runs, "small": runs}, [])))
    assert {"primal-vs-dual-smoke", "primal-vs-dual-small"} <= set(page.attributes("id"))
    assert "Figures of the paper, reduced scale (smoke, small)" in page.words


def test_figures_without_runs_are_left_out():
    runs = {"drop-in": [], "stepsize": [run("kfac")], "primal-vs-dual": [run("armijo-spl")]}
    assert len(Page(page_of(runs, [], "smoke")).of("svg")) == 1


def test_runs_without_figures():
    page = Page(page_of({}, [OTHER], "smoke"))
    assert len(page.of("svg")) == 1 and OTHER.meta["hash"][:10] in page.words


@pytest.mark.parametrize("runs", [{}, {"drop-in": []}, {"drop-in": [OTHER]}])
def test_nothing_to_report(runs):
    with pytest.raises(UsageError, match="no runs to report: run `proxlin sweep`"):
        page_of(runs, [], "smoke")


def test_unknown_figure():
    with pytest.raises(UsageError, match="no figure 'drop-out'"):
        page_of({"drop-out": [run("sgd")]}, [], "smoke")
