"""One HTML page with all figures, their numbers and their origin.

The page is self-contained: no script, no style sheet, no network.
"""

from __future__ import annotations

import html
import json
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from proxlin.bench import figures
from proxlin.bench.errors import UsageError
from proxlin.bench.figures import FIGURES, HEADINGS, Row, Selection
from proxlin.bench.records import Run
from proxlin.bench.storage import explained, write_atomically

# What differs from run to run on the same machine.
_PASSING = ("date", "load", "command")


def write_report(
    figure_runs: Mapping[str, Sequence[Run]], runs: Sequence[Run], path: pathlib.Path, scale: str
) -> None:
    """Writes the page; the same records give the same page.

    Args:
        figure_runs: runs by the name of their figure, a key of :data:`FIGURES`.
        runs: all runs to be listed, whether or not a figure shows them.
        path: the HTML file.
        scale: of the experiments, as in the titles of the figures.

    Raises:
        UsageError: for an unknown figure, or if there is no run at all.
        StorageError: if the file cannot be written.
    """
    text = page(figure_runs, runs, scale)
    with explained(path.parent, len(text)):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)


def page(figure_runs: Mapping[str, Sequence[Run]], runs: Sequence[Run], scale: str) -> str:
    """The page as text, see :func:`write_report`."""
    drawn = [
        figures.select(name, given)
        for name, given in figure_runs.items()
        if any(map(figures.spec_of(name).matches, given))
    ]
    listed = [*(run for selection in drawn for run in selection.runs), *runs]
    everything = list({run.meta["hash"]: run for run in listed}.values())
    if not everything:
        raise UsageError(
            "there are no runs to report: run `proxlin sweep` or `proxlin train` first"
        )
    size = "the paper's scale" if scale == "paper" else f"reduced scale ({scale})"
    links = [(selection.name, selection.spec.title) for selection in drawn]
    there = {name for name, _ in links}
    body = [
        f"<h1>Figures of the paper, {_text(size)}</h1>",
        _summary(everything, [name for name in FIGURES if name not in there]),
        _contents([*links, ("environment", "Environment"), ("runs", "All runs")]),
        *(_figure(selection, scale) for selection in drawn),
        _environments(everything),
        _runs(everything),
    ]
    return _PAGE.format(style=_STYLE, body="\n".join(body))


# ---- parts of the page -------------------------------------------------------------------------


def _summary(runs: Sequence[Run], absent: Sequence[str]) -> str:
    counts = Counter(run.status for run in runs)
    ends = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    plural = "run" if len(runs) == 1 else "runs"
    words = f"{len(runs)} {plural}: {ends}. Seconds are those of the training steps."
    if absent:
        words += f" Figures without runs: {', '.join(absent)}."
    return f"<p>{_text(words)}</p>"


def _contents(links: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<li><a href="#{name}">{_text(title)}</a></li>' for name, title in links)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _figure(selection: Selection, scale: str) -> str:
    """A heading, the picture, the best settings, and all settings, collapsed."""
    name, title = selection.name, selection.spec.title
    setting = figures.setting_of(selection, scale)
    words = " ".join([f"{title}.", f"{setting}.", figures.caption(selection)])
    rows = figures.table(selection)
    best = [row for row in rows if row["best"]]
    parts = [
        f'<section aria-labelledby="{name}"><h2 id="{name}">{_text(title)}</h2>',
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
    return f'<svg {box[0] if box else ""} role="img" aria-label="{_text(words)}">{rest}'


def _settings(caption: str, rows: Sequence[Row]) -> str:
    body = [figures.cells(row) for row in rows]
    # Empty columns are dropped, such as that of the panels if there is only one.
    kept = [i for i in range(len(HEADINGS)) if any(cells[i] for cells in body)]
    return _table(
        caption, [HEADINGS[i] for i in kept], [[cells[i] for i in kept] for cells in body]
    )


def _environments(runs: Sequence[Run]) -> str:
    """A table for each machine or set of versions, and what changed between its runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        lasting = {k: v for k, v in run.meta["environment"].items() if k not in _PASSING}
        groups.setdefault(json.dumps(lasting, sort_keys=True), []).append(run)
    parts = ['<section aria-labelledby="environment"><h2 id="environment">Environment</h2>']
    for members in groups.values():
        environment = members[0].meta["environment"]
        rows = [[key, _value(v)] for key, v in environment.items() if key not in _PASSING]
        for key in _PASSING:
            values = {_value(run.meta["environment"].get(key)) for run in members}
            rows.append([key, "; ".join(sorted(values))])
        rows.append(["methods", ", ".join(sorted({run.config["method"] for run in members}))])
        data = {f"{run.meta['task']['description']} ({run.config['task']})" for run in members}
        rows.append(["data", "; ".join(sorted(data))])
        parts.append(_table(f"{len(members)} of {len(runs)} runs", ["what", "value"], rows))
    return "\n".join([*parts, "</section>"])


def _runs(runs: Sequence[Run]) -> str:
    """One line for each record, with its configuration collapsed."""
    headings = ["task", "method", "options", "batch size", "seed", "status", "steps", "seconds"]
    headings += ["seconds of compilation", "hash", "record"]
    rows = []
    for run in runs:
        config, meta = run.config, run.meta
        status = f"{run.status}: {meta['message']}" if meta.get("message") else run.status
        numbers = [f"{meta.get(key) or 0:,.2f}" for key in ("seconds", "compile_seconds")]
        given = {key: value for key, value in config["options"].items() if value is not None}
        options = ", ".join(f"{key} = {_value(value)}" for key, value in given.items())
        cells = [config["task"], config["method"], options, config["batch_size"], config["seed"]]
        cells += [status, meta.get("steps", ""), *numbers, meta["hash"][:10]]
        rows.append([*map(str, cells), _Markup(_record(run))])
    table = _table("In the order of the figures", headings, rows)
    return f'<section aria-labelledby="runs"><h2 id="runs">All runs</h2>{table}</section>'


def _record(run: Run) -> str:
    """The rest of the record of a run."""
    known = {key: run.meta.get(key) for key in ("hash", "config", "resumed", "task", "environment")}
    text = json.dumps(known, indent=1, ensure_ascii=False)
    return f"<details><summary>configuration</summary><pre>{_text(text)}</pre></details>"


# ---- HTML --------------------------------------------------------------------------------------


class _Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def _table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names its rows; wide ones scroll, also with the keyboard."""
    numbers = [all(_NUMBER.fullmatch(row[i]) for row in rows) for i in range(len(headings))]
    kinds = [' class="number"' if number else "" for number in numbers]
    head = "".join(
        f'<th scope="col"{kind}>{_text(heading)}</th>'
        for heading, kind in zip(headings, kinds, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{_text(first)}</th>'
        + "".join(
            f"<td{kind}>{cell if isinstance(cell, _Markup) else _text(cell)}</td>"
            for cell, kind in zip(rest, kinds[1:], strict=True)
        )
        + "</tr>\n"
        for first, *rest in rows
    )
    return (
        f'<div class="wide" role="region" aria-label="{_text(caption)}" tabindex="0"><table>'
        f"<caption>{_text(caption)}</caption><thead><tr>{head}</tr></thead>\n"
        f"<tbody>{body}</tbody></table></div>"
    )


def _text(value: str) -> str:
    return html.escape(value, quote=True)


def _value(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


_NUMBER = re.compile(r"([\d.,]+(e[-+]\d+)?( [%×])?)?")

_STYLE = """
:root { color-scheme: light dark;
  --text: #1f2328; --back: #ffffff; --line: #d0d7de; --link: #0550ae; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --back: #0d1117; --line: #30363d; --link: #79c0ff; }
}
body { margin: 2rem auto; max-width: 68rem; padding: 0 1rem; color: var(--text);
  background: var(--back); font: 1rem/1.5 system-ui, sans-serif; }
h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
a { color: var(--link); }
.card { background: #ffffff; border: 1px solid var(--line); border-radius: 6px; padding: .5rem; }
.card svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .3rem 0; font-style: italic; }
th, td { text-align: left; vertical-align: top; padding: .2rem .7rem .2rem 0;
  border-bottom: 1px solid var(--line); }
.number { text-align: right; }
tbody th { font-weight: normal; }
pre { font-size: .75rem; }
summary { cursor: pointer; }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>proxlin: figures of the paper</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
