"""The source files of a task of the user's: what its results depend on, besides its data."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

from proxlin.bench.errors import UsageError

_INSTALLED = {"site-packages", "dist-packages"}
_loaded: set[str] = set()
_folders: list[str] = []  # of scripts, searched for what they import; the last one loaded first


def checksum(place: str) -> str:
    """The sha256 of the source of a module and of all modules of the user's that it imports.

    Installed packages and the standard library are left out.

    Args:
        place: ``path/to/file.py``, or the name of a module.

    Raises:
        UsageError: if there is none.
    """
    found = _files(place)
    digest = hashlib.sha256()
    for name in sorted(found):
        digest.update(found[name].read_bytes())
    return digest.hexdigest()


def load(place: str) -> ModuleType:
    """Imports a module of the user's; the second time anew, because its files have changed.

    The folder of a file is searched for modules, as that of a script is.
    """
    for name, path in _files(place).items():
        found = getattr(sys.modules.get(name), "__file__", None)
        if place in _loaded or (found and pathlib.Path(found) != path):
            sys.modules.pop(name, None)
    importlib.invalidate_caches()
    _loaded.add(place)
    path = pathlib.Path(place)
    if path.suffix != ".py":
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader  # every .py has them
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _files(place: str) -> dict[str, pathlib.Path]:
    """The files of the user's by the names of their modules; that of a script has no name."""
    name, package, path = _first(place)
    found = {name: path}
    waiting = [(path, package)]
    while waiting:
        path, package = waiting.pop()
        for name in _imports(path, package):
            file = None if name in found else _file(name)
            if file is not None:
                found[name] = file
                inside = name if file.name == "__init__.py" else name.rpartition(".")[0]
                waiting.append((file, inside))
    return found


def _first(place: str) -> tuple[str, str, pathlib.Path]:
    """Name, package and file of a task's own module."""
    path = pathlib.Path(place)
    if path.suffix == ".py":
        if not path.is_file():
            raise UsageError(f"there is no file {place}")
        _search_first(str(path.parent.absolute()))
        return "", "", path
    spec = _spec(place)
    if spec is None or spec.origin is None:
        raise UsageError(f"there is no module {place!r}, and no file of that name")
    return place, spec.parent or "", pathlib.Path(spec.origin)


def _search_first(folder: str) -> None:
    """Puts a folder before those of other scripts, and behind all that is installed."""
    if folder in sys.path and folder not in _folders:
        return
    sys.path[:] = [place for place in sys.path if place not in _folders]
    _folders[:] = [folder, *(place for place in _folders if place != folder)]
    sys.path += _folders


def _imports(path: pathlib.Path, package: str) -> Iterator[str]:
    """The names of what a file imports; those of functions and classes are among them."""
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [base])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _file(name: str) -> pathlib.Path | None:
    """The file of a module if it is the user's own."""
    top = name.split(".", maxsplit=1)[0]
    if top in {*sys.stdlib_module_names, "proxlin", ""} or not _is_own(_spec(top)):
        return None
    spec = _spec(name)
    return pathlib.Path(spec.origin) if spec and spec.origin and _is_own(spec) else None


def _spec(name: str) -> ModuleSpec | None:
    """Where a module would be imported from, whatever has been imported before."""
    above, _, _ = name.rpartition(".")
    parent = _spec(above) if above else None
    path = parent.submodule_search_locations if parent else None
    if above and path is None:
        return None
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec), None)


def _is_own(spec: ModuleSpec | None) -> bool:
    """Whether a module or package is Python code and not installed."""
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    paths = [pathlib.Path(place) for place in places]
    return all(p.suffix in (".py", "") and not _INSTALLED & set(p.parts) for p in paths)
