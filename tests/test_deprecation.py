"""Old names work and say at the user's line what replaces them, and none outlives its version."""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib
import inspect
import pathlib
import pickle
import subprocess
import sys
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from packaging.version import Version

import proxlin
from proxlin.deprecation import deprecated_fields, warn_deprecated

SOURCE = pathlib.Path(proxlin.__file__).parent
HELPERS = {"warn_deprecated", "deprecated_names", "deprecated_fields"}


@deprecated_fields({"source": "data", "pull": "force"}, removal="9.0")
@dataclasses.dataclass(frozen=True)
class System:
    """A dataclass two of whose fields were renamed."""

    data: float
    force: float = 0.0

    def __post_init__(self):
        if self.data < 0:
            raise ValueError("data must not be negative")


@deprecated_fields({"refused": "rejected"}, removal="9.0")
class State(NamedTuple):
    """A named tuple with a renamed field."""

    taken: int
    rejected: int = 0


def line():
    """The number of the line that calls."""
    return inspect.currentframe().f_back.f_lineno


def one_warning(caught, what, instead, number):
    """The warning says this and points at this line of this file."""
    (warning,) = caught
    assert warning.category is DeprecationWarning
    assert str(warning.message) == (
        f"{what} is deprecated and will be removed in proxlin 9.0: use {instead}."
    )
    assert (warning.filename, warning.lineno) == (__file__, number)


# ---- a call -------------------------------------------------------------------------------------


def library(source, name="proxlin.made_up"):
    """A module of this library, with the given source."""
    module = {"__name__": name, "warn_deprecated": warn_deprecated, "jax": jax}
    exec(compile(source, f"/site-packages/{name}.py", "exec"), module)
    return module


OLD = """
def inner():
    warn_deprecated("proxlin.old", instead="proxlin.new", removal="9.0")
    return 1.0
def old():
    return inner()
"""


def test_a_call_warns_at_the_line_of_the_user():
    old = library(OLD)["old"]
    with pytest.warns(DeprecationWarning) as caught:
        value, number = old(), line()
    assert value == 1.0
    one_warning(caught, "proxlin.old", "proxlin.new", number)


def test_a_call_under_jit_warns_at_the_line_of_the_user_too():
    old = library(OLD)["old"]
    with pytest.warns(DeprecationWarning) as caught:
        value, number = jax.jit(old)(), line()
    assert value == 1.0
    one_warning(caught, "proxlin.old", "proxlin.new", number)


def test_a_line_warns_once():
    old = library(OLD)["old"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            old()
    assert len(caught) == 1


def test_a_script_shows_the_warning_with_its_line(tmp_path):
    """Python's own filters hide deprecations outside of ``__main__``."""
    script = tmp_path / "script.py"
    script.write_text(
        "from proxlin.deprecation import deprecated_fields\n"
        "import dataclasses\n"
        "@deprecated_fields({'old': 'new'}, removal='9.0')\n"
        "@dataclasses.dataclass\n"
        "class Thing:\n"
        "    new: int\n"
        "thing = Thing(1)\n"
        "print(thing.old)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert f"{script}:8: DeprecationWarning: Thing.old is deprecated" in done.stderr


# ---- names of a module --------------------------------------------------------------------------


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A package with old names, one of which has moved to another module."""
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up" / "__init__.py").write_text(
        "from proxlin.deprecation import deprecated_names\n"
        "new = 1\n"
        "names = {'old': 'new', 'moved': 'made_up.elsewhere.here'}\n"
        "__getattr__ = deprecated_names(__name__, names, removal='9.0')\n"
    )
    (tmp_path / "made_up" / "elsewhere.py").write_text("here = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("made_up")
    for name in ("made_up", "made_up.elsewhere"):
        sys.modules.pop(name, None)


def test_an_old_name_of_a_module(room):
    with pytest.warns(DeprecationWarning) as caught:
        value, number = room.old, line()
    assert value == 1
    one_warning(caught, "made_up.old", "made_up.new", number)


def test_an_old_name_of_what_has_moved(room):
    with pytest.warns(DeprecationWarning) as caught:
        value, number = room.moved, line()
    assert value == 2
    one_warning(caught, "made_up.moved", "made_up.elsewhere.here", number)


def test_an_old_name_imported_from_a_package(room):
    """Python asks a package twice for a name that is imported from it, both at the same line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        number = line() + 1
        from made_up import old
    assert old == 1
    one_warning(caught, "made_up.old", "made_up.new", number)


def test_a_name_that_never_was(room):
    with pytest.raises(AttributeError, match=r"^module 'made_up' has no attribute 'never'$"):
        _ = room.never


# ---- fields -------------------------------------------------------------------------------------


def test_an_old_keyword_of_a_dataclass():
    with pytest.warns(DeprecationWarning) as caught:
        system, number = System(source=2.0), line()
    assert system == System(data=2.0)
    one_warning(caught, "System.source", "System.data", number)


def test_an_old_attribute_of_a_dataclass():
    with pytest.warns(DeprecationWarning) as caught:
        value, number = System(2.0, force=3.0).pull, line()
    assert value == 3.0
    one_warning(caught, "System.pull", "System.force", number)


def test_replace_takes_the_old_keyword():
    with pytest.warns(DeprecationWarning) as caught:
        system, number = dataclasses.replace(System(2.0, 3.0), source=4.0), line()
    assert system == System(4.0, 3.0)
    one_warning(caught, "System.source", "System.data", number)


def test_the_new_names_do_not_warn():
    """Warnings are errors in these tests."""
    system = dataclasses.replace(System(data=2.0, force=1.0), data=3.0)
    assert (system.data, system.force) == (3.0, 1.0)
    assert copy.deepcopy(system) == pickle.loads(pickle.dumps(system)) == system
    assert repr(system) == "System(data=3.0, force=1.0)" and hash(system) == hash(System(3.0, 1.0))
    assert [field.name for field in dataclasses.fields(System)] == ["data", "force"]
    assert list(inspect.signature(System).parameters) == ["data", "force"]
    state = State(1, rejected=2)._replace(taken=3)
    assert state == (3, 2) and state.rejected == 2 and State._fields == ("taken", "rejected")
    assert jax.tree.map(lambda x: x + 1, state) == State(4, 3)
    assert pickle.loads(pickle.dumps(state)) == state


def test_a_class_still_checks_what_it_is_given():
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="not be negative"):
        System(source=-1.0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'sauce'"):
        System(sauce=1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        System(1.0).data = 2.0
    with pytest.raises(AttributeError):
        System(1.0).source = 2.0


USES = [lambda: State(1, refused=2), lambda: State(1, 0)._replace(refused=2)]
if sys.version_info >= (3, 13):
    USES += [lambda: copy.replace(State(1, 0), refused=2)]


@pytest.mark.parametrize("use", USES)
def test_an_old_keyword_of_a_named_tuple(use):
    with pytest.warns(DeprecationWarning) as caught:
        state = use()
    assert isinstance(state, State) and state == (1, 2)
    one_warning(caught, "State.refused", "State.rejected", use.__code__.co_firstlineno)


def test_an_old_attribute_of_a_named_tuple():
    with pytest.warns(DeprecationWarning) as caught:
        value, number = State(1, 2).refused, line()
    assert value == 2
    one_warning(caught, "State.refused", "State.rejected", number)


# ---- the end of a deprecation -------------------------------------------------------------------


def deprecations(path):
    """Where a file uses a helper of this module, and the version of removal it gives."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", None))
        if name in HELPERS:
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            yield f"{path.name}:{node.lineno}", getattr(given.get("removal"), "value", None)


def overdue(paths, version):
    """The deprecations that should have ended with this version or do not say when they end."""
    return [
        where
        for path in paths
        for where, removal in deprecations(path)
        if not isinstance(removal, str)
        or Version(removal) <= Version(Version(version).base_version)
    ]


def test_no_deprecation_outlives_its_version():
    paths = [path for path in SOURCE.rglob("*.py") if path.name != "deprecation.py"]
    assert overdue(paths, proxlin.__version__) == []


def test_names_that_go_without_a_warning_do_not_outlive_their_version():
    """``optax.tree.get`` finds fields only, and a member of an enumeration cannot warn."""
    if Version(proxlin.__version__).release >= (0, 2):
        assert "refused" not in proxlin.ProxLinearState._fields
        assert "BREAKDOWN" not in proxlin.Status.__members__
    else:
        assert optax.tree.get(proxlin.spl(max, proxlin.Squared()).init(jnp.ones(2)), "refused") == 0


def test_a_deprecation_that_is_overdue_is_found(tmp_path):
    path = tmp_path / "room.py"
    path.write_text(
        "warn_deprecated('a', instead='b', removal='0.2')\n"
        "__getattr__ = deprecation.deprecated_names(__name__, {}, removal='0.10')\n"
        "@deprecated_fields({'a': 'b'}, removal='0.3')\n"
        "class A: ...\n"
    )
    assert overdue([path], "0.1.9") == []
    assert overdue([path], "0.2.0") == ["room.py:1"]
    assert overdue([path], "0.2.0rc1") == ["room.py:1"]
    assert sorted(overdue([path], "0.9.1")) == ["room.py:1", "room.py:3"]
    assert len(overdue([path], "0.10")) == 3
    path.write_text("warn_deprecated('a', instead='b', removal=version)\n")
    assert overdue([path], "0.1.0") == ["room.py:1"]
