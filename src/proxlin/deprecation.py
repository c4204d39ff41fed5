"""Old names: they work until the next minor version, and warn with their replacement."""

from __future__ import annotations

import functools
import inspect
import operator
import pkgutil
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

# Packages whose frames lie between the user's line and a warning of this library.
BETWEEN = {"proxlin", "jax", "jaxtyping", "optax", "functools", "dataclasses", "copy"}
BETWEEN |= {"importlib", "_frozen_importlib"}  # from proxlin import old


def warn_deprecated(what: str, *, instead: str, removal: str) -> None:
    """Warns that something is deprecated, at the user's line that asked for it.

    Python shows a ``DeprecationWarning`` only where the user's own script caused it, so a warning
    that pointed into this library, or into JAX while it traces, would not be seen.

    Args:
        what: what is deprecated, as users write it.
        instead: what replaces it.
        removal: the version that removes it, as a literal, which a test reads.
    """
    frame = inspect.currentframe()
    while frame and frame.f_back and _package(frame.f_globals) in BETWEEN:
        frame = frame.f_back
    assert frame is not None  # CPython always has frames
    warnings.warn_explicit(
        f"{what} is deprecated and will be removed in proxlin {removal}: use {instead}.",
        DeprecationWarning,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def deprecated_names(
    module: str, names: Mapping[str, str], *, removal: str
) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module whose old names still work.

    Hide it from type checkers, which would conclude that the module has every name::

        if not TYPE_CHECKING:
            __getattr__ = deprecated_names(__name__, {"Memory": "ProximityState"}, removal="0.2")

    Args:
        module: the module, ``__name__``.
        names: maps each old name to the new one, which is in the same module or has dots:
            ``{"check_loss": "proxlin.testing.check_loss"}``.
        removal: the version that removes the old names.

    Returns:
        A function that returns the object of an old name, with a warning.
    """

    def __getattr__(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = names[name] if "." in names[name] else f"{module}.{names[name]}"
        warn_deprecated(f"{module}.{name}", instead=new, removal=removal)
        return pkgutil.resolve_name(new)

    return __getattr__


def deprecated_fields(names: Mapping[str, str], *, removal: str) -> Callable[[type[T]], type[T]]:
    """A decorator for dataclasses and named tuples whose fields have new names.

    The old ones still work as keywords and as attributes, and warn. It goes on top::

        @deprecated_fields({"source": "data"}, removal="0.2")
        @dataclasses.dataclass(frozen=True)
        class NormalSystem: ...

    If both names are passed, the old one wins: ``dataclasses.replace(system, source=b)`` passes
    ``data`` too, with its current value.

    Args:
        names: maps each old name to the new one; one with dots, ``{"steps": "cost.steps"}``, can
            be read but not passed.
        removal: the version that removes the old names.

    Returns:
        A function that changes a class in place and returns it.
    """
    given = {old for old, new in names.items() if "." not in new}

    def decorate(cls: type[T]) -> type[T]:
        def warn(old: str) -> None:
            what, instead = f"{cls.__name__}.{old}", f"{cls.__name__}.{names[old]}"
            warn_deprecated(what, instead=instead, removal=removal)

        def read(old: str) -> property:
            def get(self: T) -> Any:
                warn(old)
                return operator.attrgetter(names[old])(self)

            return property(get, doc=f"The old name of ``{names[old]}``.")

        def translate(call: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(call)
            def translated(*args: Any, **kwargs: Any) -> Any:
                for old in given & kwargs.keys():
                    warn(old)
                    kwargs[names[old]] = kwargs.pop(old)
                return call(*args, **kwargs)

            return translated

        for old in names:
            setattr(cls, old, read(old))
        # A dataclass has the first, a named tuple the next two, and copy.replace calls the last.
        for method in {"__init__", "__new__", "_replace", "__replace__"} & vars(cls).keys():
            setattr(cls, method, translate(getattr(cls, method)))
        return cls

    return decorate


def _package(module: Mapping[str, Any]) -> str:
    """The package of a module, given its globals."""
    return str(module.get("__name__", "")).partition(".")[0]
