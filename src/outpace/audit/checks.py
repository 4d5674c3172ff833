"""What an audit is asked, and what one check answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from .. import drafters
from ..core.torch_extra import has_torch

if TYPE_CHECKING:
    from ..runtimes.loading import LoadedModel

SECTIONS = ("exact", "broken", "equality", "statistical", "soak")


def skipped() -> tuple[str, ...]:
    """The drafters that the sections leave out, because torch is not installed."""
    if has_torch():
        return ()
    wanted = {name: drafters.requirements(drafters.configure([name], {}))[name] for name in drafters.names()}
    return tuple(name for name, one in wanted.items() if one.torch)


@dataclass(frozen=True)
class Options:
    """``target``, ``draft``: loaded models for the sections on real logits (None: the tiny pair that ships).
    ``quick``: a part of every grid. ``seed``: of sampled prompts, random draws and soak cases."""

    target: LoadedModel | None = None
    draft: LoadedModel | None = None
    quick: bool = False
    sections: tuple[str, ...] = SECTIONS
    seed: int = 0
    soak_cases: int | None = None  # None: 30 when quick, else 2000


@dataclass(frozen=True)
class Check:
    """One line of the audit. ``values``: the numbers behind ``note``, ready for JSON."""

    section: str
    name: str
    passed: bool
    note: str
    values: dict[str, object] = field(default_factory=dict)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """All fields, ready for JSON."""
        return asdict(self)

    def line(self) -> str:
        """The check in one line of text."""
        return f"{'ok  ' if self.passed else 'FAIL'}  {self.section:<11}  {self.name}: {self.note}"
