"""The audit pointed at other engines: what can be seen from outside, each engine in its own environment.

``make peers`` makes the environments. Every engine answers the same token ids through the same protocol
(drivers/serve.py), and none of them is a dependency of ours.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ...core.errors import ParameterError, PeerError
from ...files.checkpoint import open_checkpoint
from .checks import LEVEL, Float32, Outcome, judge, observe
from .distributions import Evidence
from .process import DRIVERS, Peer

__all__ = ["Outcome", "audit_engine", "names", "print_table"]


def names() -> list[str]:
    """The engines there are drivers for."""
    return sorted(path.stem for path in DRIVERS.glob("*.py") if path.stem not in ("__init__", "serve"))


def audit_engine(
    engine: str,
    target: str | Path,
    draft: str | Path | None = None,
    *,
    modes: Sequence[str] | None = None,
    gamma: int = 3,
    tokens: int = 48,
    draws: int = 2000,
    seconds: float = 60,
    threads: int = 1,
    weights: str = "auto",
    peers: str | Path = ".peers",
) -> list[Outcome]:
    """Audit one engine on one model: its plain decoding first, then each of ``modes``.

    ``engine``: one of :func:`names`. ``target``, ``draft``: GGUF files or Hugging Face directories. ``modes``: by
    default "lookup", and "draft" when a draft is given; each driver lists its own. ``gamma``: drafted tokens a round.
    ``tokens``: of each greedy answer. ``draws``: samples a mode, fewer when ``seconds`` are over. ``threads``: of the
    engine; more than one makes spinning engines crawl on a busy machine. ``weights``: of Outpace's own target.
    ``peers``: the folder of the environments. An engine, or a mode, that cannot run is an outcome with its own error.
    Raises ParameterError for an unknown engine and ModelError for a target that cannot be read.
    """
    if engine not in names():
        raise ParameterError(f"engine must be one of {', '.join(names())}, not {engine!r}")
    python = Path(sys.executable) if engine == "outpace" else Path(peers) / engine / "bin" / "python"
    checkpoint = open_checkpoint(target)
    chosen = list(modes) if modes is not None else ["lookup", *(["draft"] if draft else [])]
    outcomes: list[Outcome] = []
    exact = Float32(str(target), checkpoint)
    plain = None
    for number, mode in enumerate(["plain", *chosen]):
        settings = {
            "target": str(target),
            "draft": str(draft) if draft else None,
            "mode": mode,
            "gamma": gamma,
            "threads": threads,
            "weights": weights,
        }
        try:
            with Peer(python, DRIVERS / f"{engine}.py", settings) as peer:
                # With plain's seeds `match` gives plain's own tokens; other seeds make the samples independent.
                seen = observe(peer, checkpoint, tokens=tokens, draws=draws, seconds=seconds,
                               first_seed=1_000_000 * number)  # fmt: skip
        except PeerError as error:
            outcomes.append(Outcome(engine, mode, error=str(error)))
            if plain is None:
                break
            continue
        plain = plain or seen
        outcomes.append(judge(engine, mode, peer.ready, seen, plain, exact))
    return outcomes


def print_table(outcomes: Sequence[Outcome], write: Callable[[str], object] = print) -> None:
    """One line an outcome."""
    for outcome in outcomes:
        write(f"{outcome.engine:13}{outcome.mode:20}{_told(outcome)}")


def as_dicts(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """The outcomes, ready for JSON."""
    return [dataclasses.asdict(outcome) | {"passed": outcome.passed} for outcome in outcomes]


def _told(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"did not run: {outcome.error}"
    parts = []
    if outcome.mode != "plain":
        equal = sum(place is None for place in outcome.differs)
        where = ", ".join(str(place) for place in outcome.differs if place is not None)
        gaps = f", float32 gaps there {', '.join(f'{gap:.1g}' for gap in outcome.gaps)}" if outcome.gaps else ""
        parts.append(
            f"greedy {equal} of {len(outcome.differs)} equal" + (f" (not from token {where}{gaps})" if where else "")
        )
    if outcome.first is not None and outcome.later is not None:
        verdict = f"REJECTED at {LEVEL:g}" if outcome.rejected else "not rejected"
        parts.append(f"distribution {verdict} by {outcome.draws} draws against {outcome.against}: "
                     f"first token {_evidence(outcome.first)}, tokens 2-3 {_evidence(outcome.later)}")  # fmt: skip
    if outcome.drafted == 0 and outcome.mode != "plain":
        parts.append("nothing was drafted while sampling, so the distribution was not put to the test")
    elif outcome.drafted:
        taken = "" if outcome.accepted is None else f", {outcome.accepted} accepted"
        parts.append(f"{outcome.drafted} drafted{taken}")
    return "; ".join(parts) or f"{outcome.draws} draws"


def _evidence(test: Evidence) -> str:
    if test.p_value is None:
        return "untested (too few draws)"
    reach = "nothing" if test.detectable is None else f"a distance of {test.detectable:.2f}"
    return f"p {test.p_value:.2g} (would see {reach})"
