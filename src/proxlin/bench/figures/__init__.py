"""The figures of the paper, drawn from records.

A figure is a :class:`Spec` in :data:`FIGURES`: how its runs fall into panels, curves and settings.
The best setting of a curve is drawn in full color, the next two faintly, and :func:`table` lists
all of them. :func:`select` sorts the runs once; everything else works on its result.
"""

from proxlin.bench.figures.drawing import draw, figure, svg
from proxlin.bench.figures.selection import (
    Curve,
    Panel,
    Selection,
    Setting,
    select,
    select_tasks,
    spec_of,
)
from proxlin.bench.figures.specs import FIGURES, Spec
from proxlin.bench.figures.tables import HEADINGS, Row, cells, table
from proxlin.bench.figures.words import caption, setting_of

__all__ = [
    "FIGURES",
    "HEADINGS",
    "Curve",
    "Panel",
    "Row",
    "Selection",
    "Setting",
    "Spec",
    "caption",
    "cells",
    "draw",
    "figure",
    "select",
    "select_tasks",
    "setting_of",
    "spec_of",
    "svg",
    "table",
]
