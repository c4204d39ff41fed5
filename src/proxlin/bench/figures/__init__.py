"""The figures of the paper, drawn from records.

A figure is a :class:`Spec` in :data:`FIGURES`: how its runs fall into panels, curves and settings.
Settings are searched: the best one is drawn in full color, the two next best ones faint, and
:func:`table` lists all of them.
"""

from proxlin.bench.figures.drawing import caption, draw, figure, setting_of, svg
from proxlin.bench.figures.selection import Curve, Panel, Setting, missing, select, spec_of
from proxlin.bench.figures.specs import FIGURES, Spec
from proxlin.bench.figures.tables import HEADINGS, Row, cells, table

__all__ = [
    "FIGURES",
    "HEADINGS",
    "Curve",
    "Panel",
    "Row",
    "Setting",
    "Spec",
    "caption",
    "cells",
    "draw",
    "figure",
    "missing",
    "select",
    "setting_of",
    "spec_of",
    "svg",
    "table",
]
