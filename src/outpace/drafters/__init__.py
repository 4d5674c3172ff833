"""Drafters: one module or package each, a :class:`outpace.core.protocols.DrafterModule`. Other packages register theirs
as entry points of the group ``outpace.drafters``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ..core import options as core_options
from ..core.errors import ParameterError
from ..core.options import Option, is_config, options_of
from ..core.protocols import Composite, DrafterModule, Requirements
from ..core.registry import Registry

Options = Mapping[str, Mapping[str, object]]
"""By drafter, the fields of its Config and their values."""


def _lacks(name: str, module: object) -> list[str]:
    config: Any = getattr(module, "Config", None)
    lacks = [] if is_config(config) else ["a Config that is a frozen dataclass"]
    if not lacks and "gamma" not in (option.name for option in options_of(config) if option.kind is int):
        lacks = ["a field gamma: int in its Config"]
    signatures = {"requires": "requires(config)", "create": "create(config, parts)"}
    return lacks + [called for name, called in signatures.items() if not callable(getattr(module, name, None))]


_REGISTRY = Registry("drafter", "drafter", __name__, frozenset({"common"}), "outpace.drafters", _lacks)
names, registered, broken = _REGISTRY.names, _REGISTRY.registered, _REGISTRY.broken


def module(name: str) -> DrafterModule:
    """The module of a drafter. Raises ParameterError when there is none of that name, PluginError when it is broken."""
    return cast(DrafterModule, _REGISTRY.module(name))


def options(name: str) -> list[Option]:
    """A drafter's own options: all of its Config's but ``gamma``, which every drafter has."""
    return [option for option in options_of(module(name).Config) if option.name != "gamma"]


def configure(names: Sequence[str], options: Options, gamma: int | None = None) -> dict[str, Any]:
    """The Config of each named drafter, by name.

    Options belong to the drafter under whose name they are given; those of a hybrid's member are the member's.
    ``gamma``: of every named drafter; None: its own default. Raises ParameterError for an option that no drafter here
    takes, and for a value of the wrong type.
    """
    if gamma is not None and (isinstance(gamma, bool) or not isinstance(gamma, int) or gamma < 0):
        raise ParameterError(f"gamma must be a whole number of at least 0, not {gamma!r}")
    configs, used = {}, set(names)
    for name in names:
        given = {**options.get(name, {}), **({} if gamma is None else {"gamma": gamma})}
        config = core_options.make_config(f"the drafter {name!r}", module(name).Config, given)
        if isinstance(config, Composite):
            members = config.member_names
            config = replace(config, options={one: options[one] for one in members if one in options})  # type: ignore[type-var]
            used |= set(members)
        configs[name] = config
    for name, values in options.items():
        if name not in used:
            module(name)  # an unknown one has an error of its own
            raise ParameterError(f"{', '.join(values)} belongs to the drafter {name!r}, but {', '.join(names)} is used")
    return configs


def requirements(configs: Mapping[str, Any]) -> dict[str, Requirements]:
    """What the drafters with these Configs (see :func:`configure`) need, by name."""
    return {name: module(name).requires(config) for name, config in configs.items()}


def needs_draft(name: str, options: Options | None = None) -> bool:
    """Whether the drafter, with these options, needs a draft model."""
    return requirements(configure([name], options or {}))[name].draft_model
