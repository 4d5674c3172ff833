"""Acceptance rules: one module each, pure functions of (proposal, target distributions, rng).

A module is a :class:`outpace.core.protocols.Rule`; one with options is a
:class:`outpace.core.protocols.ConfigurableRule`. Other packages register theirs as entry points of the group
``outpace.rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ..core import options as core_options
from ..core.errors import ParameterError
from ..core.options import Option, is_config, options_of
from ..core.protocols import ConfigurableRule, Rule
from ..core.registry import Registry

_FLAGS = ("LOSSLESS", "TREES", "NEEDS_DISTRIBUTIONS", "SHARED_NOISE")


def _is_configurable(module: object) -> bool:
    return hasattr(module, "Config")


def _lacks(name: str, module: object) -> list[str]:
    if _is_configurable(module):
        lacks = [] if is_config(module.Config) else ["a Config that is a frozen dataclass"]  # type: ignore[attr-defined]
        return lacks + ([] if callable(getattr(module, "create", None)) else ["create(config)"])
    lacks = [f"the flag {flag}" for flag in _FLAGS if not isinstance(getattr(module, flag, None), bool)]
    return lacks + [f"{name}()" for name in ("draw", "verify") if not callable(getattr(module, name, None))]


_REGISTRY = Registry("acceptance rule", "accept", __name__, frozenset(), "outpace.rules", _lacks)
names, registered, broken = _REGISTRY.names, _REGISTRY.registered, _REGISTRY.broken
module = _REGISTRY.module


def options(name: str) -> list[Option]:
    """The options of a rule."""
    found = module(name)
    return list(options_of(cast(ConfigurableRule, found).Config)) if _is_configurable(found) else []


def rule(name: str, options: Mapping[str, object] | None = None) -> Rule:
    """The acceptance rule of that name, with these options. Raises ParameterError when there is none, and for an option
    or value that it does not take; PluginError when it is broken."""
    found = module(name)
    if not _is_configurable(found):
        if options:
            raise ParameterError(f"the acceptance rule {name!r} has no options, so no {', '.join(sorted(options))}")
        return cast(Rule, found)
    configurable = cast(ConfigurableRule, found)
    config = core_options.make_config(f"the acceptance rule {name!r}", configurable.Config, options or {})
    return configurable.create(config)


def rules(options: Mapping[str, Mapping[str, object]] | None = None) -> dict[str, Rule]:
    """Every rule that can be used, by name. ``options``: by rule. Raises ParameterError as :func:`rule` does."""
    given = dict(options or {})
    found = {name: rule(name, given.pop(name, None)) for name in names()}
    for name in given:
        rule(name)  # raises: there is none, or it is broken
    return found
