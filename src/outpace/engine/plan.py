"""A plan: what `outpace tune` found to be the fastest way to run a target on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..core.errors import ParameterError


@dataclass(frozen=True)
class Plan:
    """The settings of :func:`outpace.load` that a tuning chose, and what it measured.

    ``drafter``: names, separated by commas. ``gamma`` None: ``controller`` decides. ``prior``: P(a draft stands) by
    drafter, so that the controller need not begin with a guess. ``machine``: where it was measured. ``measured``: a row
    for each way that was tried: ``way``; ``each``, plain seconds / its seconds of every pair; ``measured``, their
    median, null where nothing was drafted; ``lower_end`` of the 95% interval for that median, null for fewer than 6
    pairs; ``faster``, whether that lies above 1; ``predicted``, the gain by the cost of passes, without reading the
    prompt; ``drafted`` tokens; ``alpha``, accepted / tested drafts; ``tokens_a_pass``.
    """

    target: str
    draft: str | None = None
    drafter: str | None = None
    gamma: int | None = None
    controller: str = "auto"
    threads: int | None = None
    weights: str = "auto"
    draft_weights: str = "auto"
    draft_head: int | None = None
    backend: str = "auto"
    prior: Mapping[str, float] = field(default_factory=dict)
    machine: str = ""
    measured: list[dict[str, Any]] = field(default_factory=list)

    def arguments(self) -> dict[str, Any]:
        """The keywords of :func:`outpace.load` that the plan sets, ``target`` and ``draft`` among them."""
        about = ("machine", "measured")
        found = {name: value for name, value in asdict(self).items() if name not in about}
        return {name: value for name, value in found.items() if value not in (None, "auto", {})}

    def as_json(self) -> str:
        """The text of its file."""
        return json.dumps(asdict(self), indent=1) + "\n"


def read_plan(file: str | Path) -> Plan:
    """Load a plan. Raises ParameterError naming the file when it is none."""
    known = {one.name for one in fields(Plan)}
    try:
        stored = json.loads(Path(file).read_text(encoding="utf-8"))
        strange = set(stored) - known if isinstance(stored, dict) else {"no object"}
        if strange or not isinstance(stored.get("target"), str):
            raise ValueError(f"unknown fields: {', '.join(sorted(strange))}" if strange else "it names no target")
        return Plan(**stored)
    except (OSError, ValueError) as error:
        raise ParameterError(f"{file} is no plan that `outpace tune` saved: {error}") from None
