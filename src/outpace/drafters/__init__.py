"""Drafters: one module each. A module has ``Config`` (a frozen dataclass, whose fields become command-line
options), ``NEEDS_DRAFT`` (whether it wants a draft model) and ``create(config, parts) -> Drafter``."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from ..core.errors import ParameterError


def names() -> list[str]:
    """The drafters there are: the modules and packages here, apart from ``common``."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "common")


def module(name: str) -> ModuleType:
    """The module of a drafter. Raises ParameterError when there is none of that name."""
    if name not in names():
        raise ParameterError(f"drafter must be one of {', '.join(names())}, not {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
