"""Text and tables as HTML, and the frame of the page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column names its rows; wide ones scroll, also with the keyboard.

    Empty columns are dropped, such as that of the panels if there is only one.
    """
    kept = [i for i in range(len(headings)) if any(row[i] for row in rows)]
    headings, rows = [headings[i] for i in kept], [[row[i] for i in kept] for row in rows]
    numbers = [all(_NUMBER.fullmatch(row[i]) for row in rows) for i in range(len(headings))]
    kinds = [' class="number"' if number else "" for number in numbers]
    head = "".join(
        f'<th scope="col"{kind}>{escaped(heading)}</th>'
        for heading, kind in zip(headings, kinds, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{escaped(first)}</th>'
        + "".join(
            f"<td{kind}>{cell if isinstance(cell, Markup) else escaped(cell)}</td>"
            for cell, kind in zip(rest, kinds[1:], strict=True)
        )
        + "</tr>\n"
        for first, *rest in rows
    )
    return (
        f'<div class="wide" role="region" aria-label="{escaped(caption)}" tabindex="0"><table>'
        f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead>\n"
        f"<tbody>{body}</tbody></table></div>"
    )


def escaped(value: str) -> str:
    """Text as HTML has it."""
    return html.escape(value, quote=True)


def value_of(value: Any) -> str:
    """A value of a record in words."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


_NUMBER = re.compile(r"([\d.,]+(e[-+]\d+)?( [%×])?)?")

STYLE = """
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

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>proxlin: {title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
