"""The page: safe with any record, whole without a network."""

from __future__ import annotations

import json
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from proxlin.bench import figures
from proxlin.bench.figures import HEADINGS, Row
from proxlin.bench.records import Run, newest
from proxlin.bench.report.contents import Contents, Entry
from proxlin.bench.report.markup import PAGE, STYLE, Markup, escaped, table, value_of
from proxlin.bench.storage import explained, write_atomically

_SCORES = {"train_loss": "train loss", "test_loss": "test loss", "test_accuracy": "test accuracy"}
# What differs from run to run on the same machine.
_PASSING = ("date", "load", "command")


def write_report(contents: Contents, path: pathlib.Path) -> None:
    """Writes the page; the same records give the same page.

    Raises:
        StorageError: if the file cannot be written.
    """
    text = page(contents)
    with explained(path.parent, len(text)):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)


def page(contents: Contents) -> str:
    """The page as text, see :func:`write_report`."""
    links = [(entry.name, entry.title) for entry in contents.entries]
    heading = (
        "Training runs" if any(e.scale is None for e in contents.entries) else _of_paper(contents)
    )
    body = [
        f"<h1>{escaped(heading)}</h1>",
        _summary(contents.runs),
        _links([*links, ("environment", "Environment"), ("runs", "All runs")]),
        *map(_figure, contents.entries),
        _environments(contents.runs),
        _runs(contents.runs),
    ]
    return PAGE.format(title=escaped(heading), style=STYLE, body="\n".join(body))


# ---- parts of the page -------------------------------------------------------------------------


def _of_paper(contents: Contents) -> str:
    scales = dict.fromkeys(entry.scale for entry in contents.entries)
    if list(scales) == ["paper"]:
        return "Figures of the paper, the paper's scale"
    return f"Figures of the paper, reduced scale ({', '.join(map(str, scales))})"


def _summary(runs: Sequence[Run]) -> str:
    counts = Counter(run.status for run in runs)
    ends = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    plural = "run" if len(runs) == 1 else "runs"
    words = f"{len(runs)} {plural}: {ends}. Seconds are those of the training steps."
    if earlier := len(runs) - len(newest(runs)):
        words += f" Not drawn: {earlier} of earlier versions of a task."
    return f"<p>{escaped(words)}</p>"


def _links(links: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<li><a href="#{name}">{escaped(title)}</a></li>' for name, title in links)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _figure(entry: Entry) -> str:
    """A heading, the picture, the best settings, and all settings, collapsed."""
    name, title, selection, scale = entry
    setting = figures.setting_of(selection, scale)
    words = " ".join([f"{title}.", f"{setting}.", figures.caption(selection)])
    rows = figures.table(selection)
    best = [row for row in rows if row["best"]]
    parts = [
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escaped(title)}</h2>',
        f'<div class="card">{_inline(name, figures.svg(selection, scale), words)}</div>',
        _settings("Medians over the seeds at the end of training, for the best settings", best),
    ]
    if len(rows) > len(best):
        every = _settings("The same for all settings, best ones first", rows)
        parts.append(f"<details><summary>All {len(rows)} settings</summary>{every}</details>")
    return "\n".join([*parts, "</section>"])


def _inline(name: str, svg: str, words: str) -> str:
    """An SVG file as part of a page: scalable, one image for screen readers, with unique ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    rest = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", rest)
    return f'<svg {box[0] if box else ""} role="img" aria-label="{escaped(words)}">{rest}'


def _settings(caption: str, rows: Sequence[Row]) -> str:
    return table(caption, HEADINGS, [figures.cells(row) for row in rows])


def _environments(runs: Sequence[Run]) -> str:
    """A table for each machine or set of versions, and what changed between its runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        lasting = {k: v for k, v in run.meta["environment"].items() if k not in _PASSING}
        groups.setdefault(json.dumps(lasting, sort_keys=True), []).append(run)
    parts = ['<section aria-labelledby="environment"><h2 id="environment">Environment</h2>']
    for members in groups.values():
        environment = members[0].meta["environment"]
        rows = [[key, value_of(v)] for key, v in environment.items() if key not in _PASSING]
        for key in _PASSING:
            values = {value_of(run.meta["environment"].get(key)) for run in members}
            rows.append([key, "; ".join(sorted(values))])
        rows.append(["methods", ", ".join(sorted({run.config["method"] for run in members}))])
        data = {f"{run.meta['task']['description']} ({run.task})" for run in members}
        rows.append(["data", "; ".join(sorted(data))])
        parts.append(table(f"{len(members)} of {len(runs)} runs", ["what", "value"], rows))
    return "\n".join([*parts, "</section>"])


def _runs(runs: Sequence[Run]) -> str:
    """One line for each record, with its configuration collapsed."""
    headings = ["task", "method", "options", "batch size", "seed", "status", "steps", "seconds"]
    headings += [f"{which}{name}" for name in _SCORES.values() for which in ("", "best ")]
    headings += ["seconds of compilation", "hash", "record"]
    rows = []
    for run in runs:
        config, meta = run.config, run.meta
        status = f"{run.status}: {meta['message']}" if meta.get("message") else run.status
        seconds, compiling = (
            f"{meta.get(key) or 0:,.2f}" for key in ("seconds", "compile_seconds")
        )
        given = {key: value for key, value in config["options"].items() if value is not None}
        options = ", ".join(f"{key} = {value_of(value)}" for key, value in given.items())
        cells = [run.task, config["method"], options, config["batch_size"], config["seed"]]
        cells += [status, meta.get("steps", ""), seconds, *_scores(run), compiling]
        rows.append([*map(str, cells), meta["hash"][:10], Markup(_record(run))])
    every = table("In the order of the figures", headings, rows)
    return f'<section aria-labelledby="runs"><h2 id="runs">All runs</h2>{every}</section>'


def _scores(run: Run) -> list[str]:
    """The last and the best of each score."""
    last = run.metrics[-1] if run.metrics else {}
    pairs = [(key, source.get(key)) for key in _SCORES for source in (last, run.best)]
    show = lambda key, x: f"{100 * x:.1f} %" if key.endswith("accuracy") else f"{x:.4g}"
    return ["" if x is None else show(key, x) for key, x in pairs]


def _record(run: Run) -> str:
    """The rest of the record of a run."""
    known = {key: run.meta.get(key) for key in ("hash", "config", "resumed", "task", "environment")}
    text = json.dumps(known, indent=1, ensure_ascii=False)
    return f"<details><summary>configuration</summary><pre>{escaped(text)}</pre></details>"
