"""proxlin.extend has what a piece of one's own is made of: all of it, and nothing else."""

from __future__ import annotations

import ast
import inspect
import pathlib
import pkgutil
import re

import pytest

import proxlin
from proxlin import extend

SOURCE = pathlib.Path(proxlin.__file__).parent
BASES = {
    thing
    for room in ("losses", "regularizers", "metrics", "solvers", "subproblems", "steps")
    for thing in vars(pkgutil.resolve_name(f"proxlin.{room}")).values()
    if inspect.isabstract(thing) and thing.__module__.startswith("proxlin.")
}


def spoken_of(kind):
    """The names in the annotations of a class: its fields and its public methods."""
    found = set(getattr(kind, "__annotations__", {}).values())
    for name, member in vars(kind).items():
        if not name.startswith("_") and inspect.isfunction(member):
            found |= set(member.__annotations__.values())
    return {name for text in found for name in re.findall(r"\b[A-Z]\w+", str(text))}


def test_every_base_is_there():
    assert len(BASES) == 9
    assert {base.__name__ for base in BASES} <= set(extend.__all__)


def test_what_a_base_speaks_of_is_there():
    """The types of this library in the signatures of bases."""
    own = {"Array", "Any", "Bool", "Float", "Int", "PyTree", "Callable", "ClassVar", "None"}
    own |= {"Outputs", "OutputsLike", "PerExample", "Leaf"}  # arrays
    own |= {"Where", "ScalarOrSchedule"}  # a function, and a number or a function
    for base in BASES:
        assert spoken_of(base) - own <= set(extend.__all__), base


def imported(path):
    """The names that a file imports from the library, but for its own room."""
    room = path.relative_to(SOURCE).parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("proxlin."):
            if node.module.split(".")[1] not in (room, "checks", "deprecation"):
                yield from (alias.name for alias in node.names)


@pytest.mark.parametrize(
    "path", ["metrics/base.py", "solvers/cg.py", "solvers/composite.py", "solvers/lbfgs.py"]
)
def test_pieces_of_the_library_need_no_more(path):
    assert set(imported(SOURCE / path)) <= set(extend.__all__)


def test_nothing_else_is_there():
    """Bases, what their signatures speak of, the algebra of vectors, and Kronecker factors."""
    public = {name for name in vars(extend) if not name.startswith("_")} - {"jaxtyping"}
    assert public == set(extend.__all__) and sorted(extend.__all__) == extend.__all__
    spoken = {base.__name__ for base in BASES}.union(*map(spoken_of, BASES))
    results = {extend.MetricVector, extend.Status}  # of precondition, and of a cost
    fields = {"Cost", "Info"}  # of solutions and steps
    fields |= {"Rows", "TermRows", "Factors", "ProximityState"}  # of what pieces are given
    functions = {name for name in extend.__all__ if name.islower()}
    rest = set(extend.__all__) - spoken - fields - functions - {kind.__name__ for kind in results}
    assert rest == set()
