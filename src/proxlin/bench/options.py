"""Options of methods as users write them: strings on a command line, numbers in a file."""

from __future__ import annotations

import inspect
import math
import types
import typing
from typing import Any

from proxlin.bench.errors import UsageError


def read(method: str, option: inspect.Parameter, value: Any) -> Any:
    """The value of an option in the type of its annotation.

    Args:
        method: whose option it is, for the message.
        option: with its name and annotation, ``float`` or ``int | None``.
        value: of that type, or a string for it; ``"none"`` where None is allowed.

    Raises:
        UsageError: for anything else, and for numbers that are not positive: a stepsize or gamma
            of zero. Whole numbers may be zero.
    """
    union = isinstance(option.annotation, types.UnionType)
    kinds = typing.get_args(option.annotation) if union else (option.annotation,)
    if value is None or value == "none":
        if types.NoneType in kinds:
            return None
    else:
        try:
            found = kinds[0](value)
        except (TypeError, ValueError):
            pass
        else:
            _check_range(method, option.name, found)
            return found
    raise UsageError(
        f"option {option.name} of method {method!r} must be of type {kinds[0].__name__}, "
        f"got {value!r}"
    )


def _check_range(method: str, name: str, value: Any) -> None:
    if isinstance(value, float) and not 0 < value < math.inf:
        raise UsageError(f"option {name} of method {method!r} must be positive, got {value:g}")
    if isinstance(value, int) and value < 0:
        raise UsageError(f"option {name} of method {method!r} must not be negative, got {value}")
