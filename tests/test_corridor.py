"""The corridor: no room imports from a room further on, and the doors have the names promised."""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import proxlin
from tests.pages import section, table_of_rooms

SOURCE = pathlib.Path(proxlin.__file__).parent

ROOT = pathlib.Path(__file__).parent.parent

# README.md has the one list of rooms, CONTRIBUTING.md that of the bench: change them there.
ROOMS = table_of_rooms(ROOT / "README.md", "## The map of the house")
BENCH = re.findall(
    r"\w+",
    " ".join(
        re.findall(r"^    .*$", section(ROOT / "CONTRIBUTING.md", "### The bench"), re.MULTILINE)
    ),
)
MAX_LINES = 300
CORE = ROOMS[: ROOMS.index("bench")]
PUBLIC = {name for name in dir(proxlin) if name not in ROOMS} | {"sdca", "least_squares"}
DEPENDENCIES = {"jax", "optax", "jaxtyping", "numpy"}

NAMES = """
    Squared Logistic BinaryLogistic Hinge Sparsemax FromFunction
    Zero L1 SquaredL2 ElasticNet GroupL2
    dual_quadratic primal_quadratic dual_convex primal_convex
    CG MultiShiftCG Cholesky QR SVD ProximalGradient LBFGS
    value_and_direction linearize Sum Term
    prox_linear direction_as_gradient spl armijo_spl auto levenberg_marquardt
    Fixed Armijo ModelStep TrustRegion StochasticTrustRegion
    Euclidean Diagonal Kronecker Marquardt
    sdca least_squares
""".split()


def modules(room):
    """The files of a room."""
    path = SOURCE / room
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def imports(path):
    """All modules that a file imports, anywhere in it, by their full names."""
    package = ["proxlin", *path.relative_to(SOURCE).with_suffix("").parts][:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from proxlin import steps` may import a room.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def rooms_of(path):
    """The rooms of this house that a file imports from."""
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "proxlin":
            # A name from the front door could come from any room.
            yield parts[1] if parts[1] in ROOMS else "front door"


def test_every_module_has_a_place_in_the_corridor():
    assert len(ROOMS) == len(set(ROOMS))
    found = {
        path.stem if path.suffix == ".py" else path.name
        for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found - {"__init__"} == set(ROOMS)


@pytest.mark.parametrize("room", CORE)
def test_no_room_imports_from_a_room_further_on(room):
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for path in modules(room):
        assert set(rooms_of(path)) <= allowed, path


def test_the_bench_has_a_corridor_of_its_own():
    found = {path.stem for path in (SOURCE / "bench").iterdir() if not path.name.startswith("_")}
    assert len(BENCH) == len(set(BENCH))
    assert found == {*BENCH, "sweeps"}
    for room in BENCH:
        allowed = set(BENCH[: BENCH.index(room) + 1])
        for path in modules(f"bench/{room}"):
            names = [name.split(".") for name in imports(path)]
            used = {parts[2] for parts in names if parts[:2] == ["proxlin", "bench"]}
            assert used <= allowed, path


@pytest.mark.parametrize("path", sorted((SOURCE / "bench").rglob("*.py")), ids=lambda p: p.stem)
def test_the_bench_uses_public_names_only(path):
    """The front door, and the two modules that stand open: extend and testing."""
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "proxlin" and parts[1:2] != ["bench"]:
            public = parts == ["proxlin"] or (len(parts) == 2 and parts[1] in PUBLIC)
            assert public or parts[:2] in (["proxlin", "extend"], ["proxlin", "testing"]), name


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_no_file_is_long(path):
    """A module that grows beyond this becomes a folder of the same name."""
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_LINES


# ---- the walk through one step ------------------------------------------------------------------

STOPS = re.findall(
    r"^\d+\. `([\w/]+\.py): ([\w.]+)`: ",
    section(ROOT / "CONTRIBUTING.md", "## One step, from the outside in"),
    re.MULTILINE,
)


def room_number(file):
    return ROOMS.index(pathlib.Path(file).parts[0].removesuffix(".py"))


def functions(path):
    """The functions of a file and the methods of its classes, by their names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from (
                f"{node.name}.{child.name}"
                for child in node.body
                if isinstance(child, ast.FunctionDef)
            )


def first_calls():
    """The stops in the order one step of `auto` calls them first, each with the one it is in."""
    calls: dict[tuple[str, str], Any] = {}
    stack: list[Any] = [None]

    def profile(frame, event, _):
        path = pathlib.Path(frame.f_code.co_filename)
        if not path.is_relative_to(SOURCE):
            return
        name = frame.f_code.co_qualname.rpartition("<locals>.")[2]
        stop = str(path.relative_to(SOURCE)), name
        if stop not in STOPS:
            return
        if event == "call":
            calls.setdefault(stop, stack[-1])
            stack.append(stop)
        elif event == "return":
            stack.pop()

    params, x, y = jnp.zeros((2, 3)), jnp.ones((64, 2)), jnp.zeros(64, int)
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        opt = proxlin.auto(lambda w, x: x @ w, proxlin.Logistic())
        state = opt.init(params)
        jax.eval_shape(lambda w: opt.update(None, state, w, inputs=x, targets=y), params)
    finally:
        sys.setprofile(before)
    return calls


def test_the_walk_is_short_and_names_what_exists():
    assert 10 <= len(STOPS) <= 17 and len(set(STOPS)) == len(STOPS)
    for file, name in STOPS:
        assert name in set(functions(SOURCE / file)), (file, name)


def test_the_walk_is_the_path_of_one_step():
    assert list(first_calls()) == STOPS


def test_the_walk_follows_the_corridor():
    """A stop leads only to rooms above its own, and to these in their order."""
    inside = {}
    for (file, _), parent in first_calls().items():
        inside.setdefault(parent, []).append(room_number(file))
    for parent, rooms in inside.items():
        assert rooms == sorted(rooms), parent
        assert parent is None or rooms[-1] <= room_number(parent[0]), parent


def test_imports_are_seen(tmp_path, monkeypatch):
    """The parser above knows every form of import."""
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    (tmp_path / "losses").mkdir()
    path = tmp_path / "losses" / "base.py"
    path.write_text(
        "import proxlin.steps\n"
        "from proxlin import optimizer, CG\n"
        "from .. import direction\n"
        "from ..batch import Batch\n"
        "from . import squared\n"
        "def late():\n"
        "    from proxlin.bench.demo import main\n"
    )
    assert set(rooms_of(path)) == {
        "steps",
        "optimizer",
        "front door",
        "direction",
        "batch",
        "losses",
        "bench",
    }


def test_solvers_know_nothing_of_networks_or_losses():
    for path in modules("solvers"):
        assert set(rooms_of(path)) <= {"deprecation", "algebra", "checks", "solvers"}, path


@pytest.mark.parametrize("room", ["__init__", *CORE])
def test_core_has_few_dependencies(room):
    for path in modules(room):
        outside = {name.split(".")[0] for name in imports(path)} - {"proxlin"}
        assert outside - sys.stdlib_module_names <= DEPENDENCIES, path


def test_the_front_door_does_not_open_the_bench():
    assert "bench" not in set(rooms_of(SOURCE / "__init__.py"))


@pytest.mark.parametrize("name", NAMES)
def test_public_name(name):
    thing = getattr(proxlin, name)
    assert callable(thing)
    assert inspect.getdoc(thing)
    assert thing.__module__.split(".")[:2] in (["proxlin", room] for room in CORE)


def test_signatures():
    """Parameters that are part of the promise, with their order and defaults."""
    parameters = inspect.signature(proxlin.value_and_direction).parameters
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert [n for n, p in parameters.items() if p.kind is positional] == ["model", "loss"]
    defaults = {n: p.default for n, p in parameters.items() if p.kind is not positional}
    assert defaults == {
        "subproblem": proxlin.dual_quadratic,
        "solver": None,
        "regularizer": proxlin.Zero(),
        "curvature_size": None,
        "chunk_size": None,
        "has_aux": False,
    }
    assert proxlin.CG() == proxlin.CG(max_steps=2)
    assert proxlin.Cholesky() == proxlin.Cholesky(independent=False)
    assert proxlin.Fixed() == proxlin.Fixed(gamma=1.0, eta=1.0)
    assert proxlin.Armijo() == proxlin.Armijo(
        gamma=1.0, beta=1e-4, shrink=0.8, max_eta=1.0, max_backtracks=30
    )
    assert proxlin.ModelStep() == proxlin.ModelStep(gamma=1.0)
    assert proxlin.TrustRegion() == proxlin.TrustRegion(
        gamma=1.0, low=0.25, high=0.75, shrink=0.5, grow=2.0, min_gamma=1e-30, max_gamma=1e30
    )


def test_configuration_is_a_value():
    """Frozen, hashable and equal by content: safe as a static argument of jit."""
    for make in (
        proxlin.Squared,
        proxlin.Logistic,
        proxlin.BinaryLogistic,
        proxlin.CG,
        proxlin.Cholesky,
        proxlin.Fixed,
        proxlin.Armijo,
        proxlin.ModelStep,
        proxlin.TrustRegion,
    ):
        one, other = make(), make()
        assert one == other and hash(one) == hash(other)
        with pytest.raises(AttributeError):
            one.gamma = 2.0
    assert proxlin.FromFunction(max) == proxlin.FromFunction(max)
    assert hash(proxlin.FromFunction(max)) == hash(proxlin.FromFunction(max))
    assert proxlin.FromFunction(max) != proxlin.FromFunction(min)
