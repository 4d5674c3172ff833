"""Options of a part: the fields of its frozen ``Config``, checked one by one."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from .errors import ParameterError

_KINDS = (bool, int, float, str)


@dataclass(frozen=True)
class Option:
    """A field that a user may set. ``kind``: bool, int, float or str. ``default``: its value where it is not set."""

    name: str
    kind: type
    default: object

    def takes(self, value: object) -> bool:
        """Whether the value is of this kind. A float option takes ints as well; no number is a bool."""
        if isinstance(value, bool):
            return self.kind is bool
        return isinstance(value, (int, float) if self.kind is float else self.kind)


def options_of(config: type[Any]) -> tuple[Option, ...]:
    """The options of a Config. A field of another type than bool, int, float and str is no option."""
    key: Any = config  # a class; mypy does not see that it can be hashed
    return _options_of(key)


@functools.cache
def _options_of(config: Any) -> tuple[Option, ...]:
    """Reading annotations is slow, and every flag and every check asks."""
    hints = get_type_hints(config)
    return tuple(
        Option(field.name, hints[field.name], None if field.default is MISSING else field.default)
        for field in fields(config)
        if hints[field.name] in _KINDS
    )


def make_config(what: str, config: type[Any], values: Mapping[str, object]) -> Any:
    """The Config with these values. ``what`` names its owner in errors, such as "the drafter 'lookup'".

    Raises ParameterError for a value that is no option, or of the wrong type, and what the Config itself raises.
    """
    options = {option.name: option for option in options_of(config)}
    for name, value in values.items():
        if name not in options:
            known = f"it has {', '.join(sorted(options))}" if options else "it has none"
            raise ParameterError(f"{what} has no option {name!r}; {known}")
        if not options[name].takes(value):
            kind = options[name].kind.__name__
            raise ParameterError(f"{what} takes a value of type {kind} for {name!r}, not {value!r}")
    return config(**values)


def is_config(part: object) -> bool:
    """Whether this is a frozen dataclass."""
    return isinstance(part, type) and is_dataclass(part) and bool(part.__dataclass_params__.frozen)  # type: ignore[attr-defined]
