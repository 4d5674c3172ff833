"""Outpace: language models that answer faster without changing what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .core.errors import OutpaceError
from .core.report import Report
from .core.types import SamplingParams

if TYPE_CHECKING:
    from .engine.build import load
    from .engine.engine import Engine, Event, Result, Stream

__version__ = "0.1.0"
__all__ = ["Engine", "Event", "OutpaceError", "Report", "Result", "SamplingParams", "Stream", "load"]


def __getattr__(name: str) -> object:
    # The models' libraries take seconds to import; whoever only asks for the version need not wait.
    if name == "load":
        from .engine.build import load

        return load
    if name in ("Engine", "Event", "Result", "Stream"):
        from .engine import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
