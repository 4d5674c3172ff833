"""Types of what a model's files say: every value that is read has the type its reader counts on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..core.errors import ModelError


def is_list(value: object, item: type | tuple[type, ...]) -> bool:
    """Whether ``value`` is a list of nothing but ``item``; true and false are no numbers."""
    return isinstance(value, list) and all(_is(each, item) for each in value)


def _is(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


INT, NUMBER, BOOL, TEXT, OBJECT = "a whole number", "a number", "true or false", "a string", "an object"
LIST, INTS, NUMBERS, TEXTS = "a list", "a list of whole numbers", "a list of numbers", "a list of strings"
_CHECKS: dict[str, Callable[[object], bool]] = {
    INT: lambda value: _is(value, int),
    NUMBER: lambda value: _is(value, (int, float)),
    BOOL: lambda value: _is(value, bool),
    TEXT: lambda value: _is(value, str),
    OBJECT: lambda value: _is(value, dict),
    LIST: lambda value: isinstance(value, list),
    INTS: lambda value: is_list(value, int),
    NUMBERS: lambda value: is_list(value, (int, float)),
    TEXTS: lambda value: is_list(value, str),
}


def check_types(values: Mapping[str, Any], kinds: Mapping[str, Collection[str]], source: object) -> None:
    """Raise ModelError naming ``source`` and the key when a value is of none of its key's ``kinds`` (INT, TEXT, ...).
    Keys that are missing or null are for the reader to judge."""
    for key, allowed in kinds.items():
        value = values.get(key)
        if value is not None and not any(_CHECKS[kind](value) for kind in allowed):
            shown = repr(value)
            shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
            raise ModelError(f"{source}: {key} is {shown}, not {' or '.join(allowed)}")
