"""Acceptance rules: one module each, pure functions of (proposal, target distributions, rng)."""

from __future__ import annotations

import importlib
import pkgutil

from ..core.errors import ParameterError
from ..core.protocols import Rule


def names() -> list[str]:
    """The rules there are: the modules of this package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def rule(name: str) -> Rule:
    """The acceptance rule of that name. Raises ParameterError when there is none."""
    if name not in names():
        raise ParameterError(f"accept must be one of {', '.join(names())}, not {name!r}")
    return importlib.import_module(f"{__name__}.{name}")  # a module is a Rule
