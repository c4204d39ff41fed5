"""Annotations are true: every call in these tests is checked against them."""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import typing

import jax.numpy as jnp
import jaxtyping
import pytest

import proxlin
from proxlin.algebra import dot, select
from proxlin.batch import _normalized
from proxlin.proximity import Proximity
from tests.test_corridor import CORE, SOURCE, modules

FILES = [path for room in CORE for path in modules(room)]
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
ONES = jnp.ones((3, 2))


def module_of(path: pathlib.Path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return importlib.import_module(".".join(["proxlin", *parts]).removesuffix(".__init__"))


def functions(module):
    """Functions of a module and methods of its classes, as they are written there."""
    own = [x for x in vars(module).values() if getattr(x, "__module__", "") == module.__name__]
    methods = [each for x in own if inspect.isclass(x) for each in vars(x).values()]
    written = lambda f: inspect.unwrap(f).__code__.co_filename == module.__file__
    return [x for x in own + methods if inspect.isfunction(x) and written(x)]


@pytest.mark.parametrize(
    "call",
    [
        lambda: _normalized(jnp.ones(3, int)),
        lambda: select(jnp.ones(2, bool), ONES, ONES),
        lambda: dot("x", "y"),
        lambda: proxlin.Squared().hvp(ONES, ONES, ONES.T),
        lambda: proxlin.Squared().value(ONES, jnp.ones((4, 2))),
        lambda: Proximity(gamma=ONES, params=ONES, regularizer=proxlin.Zero()),
    ],
    ids=["dtype", "rank", "type", "other shape", "other examples", "field"],
)
def test_wrong_arguments_are_caught(call):
    with pytest.raises(jaxtyping.TypeCheckError):
        call()


def test_wrong_results_are_caught():
    loss = proxlin.FromFunction(lambda f, y: f)
    with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
        loss.value(ONES, ONES)


@pytest.mark.usefixtures("unchecked")
def test_the_checks_can_be_off():
    assert _normalized(jnp.ones(4, int)).shape == (4,)


@pytest.mark.parametrize("room", CORE)
def test_every_function_is_checked(room):
    for path in modules(room):
        for function in functions(module_of(path)):
            assert hasattr(function, "__wrapped__"), function


@pytest.mark.parametrize("room", CORE)
def test_every_annotation_means_something(room):
    """A name that is not there would be taken for Any, in silence."""
    for path in modules(room):
        for function in functions(module_of(path)):
            typing.get_type_hints(inspect.unwrap(function), vars(module_of(path)))


# Records ----------------------------------------------------------------------------------------


def records():
    """Named tuples and dataclasses with three fields and more, by name."""
    for tree in TREES.values():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            kinds = " ".join(map(ast.unparse, [*node.bases, *node.decorator_list]))
            fields = [x for x in node.body if isinstance(x, ast.AnnAssign)]
            fields = [x for x in fields if "ClassVar" not in ast.unparse(x.annotation)]
            if ("NamedTuple" in kinds or "dataclass" in kinds) and len(fields) >= 3:
                yield node.name, node


def calls(tree):
    """Calls by a plain name, and that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, node


def test_records_are_made_by_keyword():
    """Of three fields and more, two that change places would not be seen."""
    names = {name for name, _ in records()}
    assert {"Batch", "Cost", "Direction", "Proximity"} <= names
    made = [(name, call) for tree in TREES.values() for name, call in calls(tree) if name in names]
    made += [(name, call) for _, node in records() for name, call in calls(node) if name == "cls"]
    assert [ast.unparse(call) for _, call in made if call.args] == []


def test_pieces_are_asked_what_they_can_do_and_not_who_they_are():
    """A regularizer says itself whether it is zero."""
    asked = [call for tree in TREES.values() for name, call in calls(tree) if name == "isinstance"]
    assert asked and not [ast.unparse(call) for call in asked if "Zero" in ast.unparse(call)]
