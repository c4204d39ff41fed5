"""Fails if a built page would load a script, a style sheet or an image from the network.

Also checks that the scripts and style sheets that pages refer to are there, MathJax and its fonts
among them. Usage: python docs/check_offline.py docs/_build/html
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Tags that load something, with the attribute that says from where. <a href> loads nothing.
LOADS = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "object": "data",
    "embed": "src",
}
# <link> that only names another page
NAMES = {"canonical", "next", "prev", "index", "search", "author", "copyright", "license", "top"}


class Loaded(HTMLParser):
    """Collects what a page loads, and whether it contains mathematics."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.has_math = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.has_math |= "math" in (values.get("class") or "").split()
        address = values.get(LOADS.get(tag, ""))
        if tag == "link" and set((values.get("rel") or "").lower().split()) <= NAMES:
            return
        if address:
            self.addresses.append(address)


def problems(root: Path) -> list[str]:
    """Lists what is wrong with the pages under root."""
    found = []
    pages = sorted(root.rglob("*.html"))
    pages = [page for page in pages if "_static" not in page.relative_to(root).parts]
    if not pages:
        return [f"no pages in {root}"]
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        name = page.relative_to(root)
        for address in parser.addresses:
            parts = urlsplit(address)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                found.append(f"{name}: loads {address} from the network")
            elif parts.path and not (page.parent / unquote(parts.path)).exists():
                found.append(f"{name}: {address} is missing")
        if parser.has_math and not any("mathjax" in address for address in parser.addresses):
            found.append(f"{name}: has mathematics but does not load MathJax")
    for style in sorted(root.rglob("*.css")):
        text = style.read_text(encoding="utf-8")
        if "url(http" in text or "url(//" in text or "@import" in text:
            found.append(f"{style.relative_to(root)}: loads something from the network")
    if not list(root.glob("_static/mathjax/output/chtml/fonts/woff-v2/*.woff")):
        found.append("the fonts of MathJax are missing")
    return found


def main() -> int:
    """Prints the problems; returns the exit status."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    found = problems(Path(sys.argv[1]))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
