"""Where drafters, rules and families are found: modules of ours, and modules that other packages register.

A package registers one with an entry point of the kind's group, for example in its pyproject.toml::

    [project.entry-points."outpace.drafters"]
    echo = "their_package.echo"
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from .errors import ParameterError, PluginError


@dataclass(frozen=True)
class Registry:
    """The modules of one kind.

    ``kind``: what one is called in errors. ``parameter``: the parameter that names one. ``package``: holds the built-in
    ones. ``shared``: modules of that package that are none. ``group``: entry points that register others.
    ``lacks(name, module)``: what a module must still have to be one of this kind.
    """

    kind: str
    parameter: str
    package: str
    shared: frozenset[str]
    group: str
    lacks: Callable[[str, object], list[str]]

    def names(self) -> list[str]:
        """All that can be used. Registered modules are imported for this, built-in ones are not."""
        return sorted([*self._built_in(), *self.registered()])

    def registered(self) -> list[str]:
        """Those of other packages that can be used."""
        return sorted(name for name, points in self._registered().items() if not self._fault(name, points))

    def broken(self) -> dict[str, str]:
        """Registered names that cannot be used, with the reason."""
        faults = {name: self._fault(name, points) for name, points in self._registered().items()}
        return {name: fault for name, fault in sorted(faults.items()) if fault}

    def module(self, name: str) -> object:
        """The module of that name. Raises ParameterError when there is none, PluginError for a registered one that
        cannot be used. The error names the distribution that registered it."""
        if name in self._built_in():
            module: object = importlib.import_module(f"{self.package}.{name}")
            if lacks := self.lacks(name, module):
                raise PluginError(f"the {self.kind} {name!r} lacks {', and '.join(lacks)}")
            return module
        points = self._registered().get(name)
        if points is None:
            broken = self.broken()
            also = f" (broken: {', '.join(broken)})" if broken else ""
            raise ParameterError(f"{self.parameter} must be one of {', '.join(self.names())}, not {name!r}{also}")
        if fault := self._fault(name, points):
            raise PluginError(fault)
        return points[0].load()

    def _built_in(self) -> list[str]:
        room = importlib.import_module(self.package)
        return [name for name in _modules_in(tuple(room.__path__)) if name not in self.shared]

    def _registered(self) -> dict[str, list[EntryPoint]]:
        found: dict[str, list[EntryPoint]] = {}
        for point in _entry_points(self.group, tuple(sys.path)):
            found.setdefault(point.name, []).append(point)
        return found

    def _fault(self, name: str, points: Sequence[EntryPoint]) -> str:
        """Why the registered ``name`` cannot be used; empty where it can."""
        owners = " and ".join(sorted(point.dist.name if point.dist is not None else "?" for point in points))
        what = f"the {self.kind} {name!r} of the distribution {owners}"
        if name in self._built_in():
            return f"{what} cannot be used: outpace has one of that name itself"
        if len(points) > 1:
            return f"{what} cannot be used: the name is registered more than once"
        try:
            module = points[0].load()
        except Exception as error:  # a foreign module may fail in any way there is
            return f"{what} cannot be imported: {type(error).__name__}: {error}"
        lacks = self.lacks(name, module)
        return f"{what} lacks {', and '.join(lacks)}" if lacks else ""


@functools.cache
def _modules_in(path: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the modules in the folders of a package, looked up once: every question for a name comes here."""
    return tuple(module.name for module in pkgutil.iter_modules(path))


@functools.cache
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Read once for each search path: it takes about 20 ms."""
    return tuple(entry_points(group=group))
