"""A plan: what `outpace tune` found to be the fastest way to run a target on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..core.errors import ParameterError
from ..core.load_options import LoadOptions


@dataclass(frozen=True)
class Plan:
    """The models and the settings of :func:`outpace.load` that a tuning chose, and what it measured.

    ``machine``: where it was measured. ``measured``: a row for each way that was tried: ``way``; ``each``, plain
    seconds / its seconds of every pair; ``measured``, their median, null where nothing was drafted; ``lower_end`` of
    the 95% interval for that median, null for fewer than 6 pairs; ``faster``, whether that lies above 1;
    ``predicted``, the gain by the cost of passes, without prefill; ``drafted`` tokens; ``alpha``, the acceptance rate;
    ``tokens_a_pass``.
    """

    target: str
    draft: str | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    machine: str = ""
    measured: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> str:
        """The text of its file. ``options`` has the settings that are not the defaults."""
        stored = {one.name: getattr(self, one.name) for one in fields(self)} | {"options": self.options.as_dict()}
        return json.dumps(stored, indent=1) + "\n"


def read_plan(file: str | Path) -> Plan:
    """Load a plan. Raises ParameterError naming the file when it is none."""
    known = {one.name for one in fields(Plan)}
    try:
        stored = json.loads(Path(file).read_text(encoding="utf-8"))
        strange = set(stored) - known if isinstance(stored, dict) else {"no object"}
        if strange or not isinstance(stored.get("target"), str):
            raise ValueError(f"unknown fields: {', '.join(sorted(strange))}" if strange else "it names no target")
        options = stored.pop("options", {})
        if not isinstance(options, Mapping):
            raise ValueError("its options are no object")
        return Plan(**stored, options=LoadOptions().changed(options))
    except (OSError, ValueError, TypeError) as error:
        raise ParameterError(f"{file} is no plan that `outpace tune` saved: {error}") from None
