"""Outpace: language models that answer faster without changing what they say."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .core.errors import OutpaceError
from .core.report import Report
from .version import __version__

if TYPE_CHECKING:
    from .core.load_options import LoadOptions
    from .core.types import SamplingParams
    from .engine.build import load
    from .engine.engine import Engine
    from .engine.stream import Event, Result, Stream

__all__ = [
    "Engine",
    "Event",
    "LoadOptions",
    "OutpaceError",
    "Report",
    "Result",
    "SamplingParams",
    "Stream",
    "__version__",
    "load",
]

# Torch and the tokenizers take seconds to import; whoever only asks for the version need not wait.
_LATE = dict.fromkeys(("Event", "Result", "Stream"), ".engine.stream") | {"Engine": ".engine.engine"}
_LATE |= {"load": ".engine.build", "SamplingParams": ".core.types", "LoadOptions": ".core.load_options"}


def __getattr__(name: str) -> object:
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
