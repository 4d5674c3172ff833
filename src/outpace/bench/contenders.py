"""Who takes part: our engine in several settings, and other engines in environments of their own."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from ..audit.engines.process import DRIVERS, Peer
from ..core.errors import ParameterError, PeerError
from ..core.types import SamplingParams
from ..engine.engine import Engine
from .compare import rate_after

PEER_TIMEOUT = 900.0  # seconds that one answer of a peer may take


@dataclass
class Run:
    """One answer, timed. ``first_tokens`` were there after ``first_seconds``, the prompt's reading included; all were
    there after ``seconds``. Speed is what came after the first step: prefill is left out the same way for everybody."""

    tokens: list[int]
    first_tokens: int
    first_seconds: float
    seconds: float
    report: dict[str, Any] = field(default_factory=dict)
    steps: list[tuple[float, int]] = field(default_factory=list)  # seconds, tokens out by then
    origins: list[str] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first step per second after it; None for an answer that ended there."""
        return rate_after(len(self.tokens) - self.first_tokens, self.seconds - self.first_seconds)


class Contender(Protocol):
    """Anything that answers token ids and can be timed."""

    @property
    def name(self) -> str: ...

    def run(self, prompt: Sequence[int], max_tokens: int, temperature: float, seed: int) -> Run: ...


@dataclass(frozen=True)
class Ours:
    """Our engine in one setting; ``gamma`` 0 is plain decoding, None leaves it to the engine."""

    name: str
    engine: Engine
    drafter: str | None = None
    gamma: int | None = None
    answered: Counter[tuple[int, ...]] = field(default_factory=Counter)  # by prompt

    def run(self, prompt: Sequence[int], max_tokens: int, temperature: float, seed: int) -> Run:
        """Answer, noting when each round's tokens came. A prompt that comes again is another tenant's, so that what a
        drafter keeps of finished requests never holds an answer to the same prompt."""
        again = self.answered[tuple(prompt)]
        self.answered[tuple(prompt)] += 1
        tenant = f"{self.name}, {again}"
        params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
        start = perf_counter()
        steps, count = [], 0
        with self.engine.stream(list(prompt), params, gamma=self.gamma, drafter=self.drafter, tenant=tenant) as stream:
            for event in stream:
                count += len(event.token_ids)
                if event.token_ids:
                    steps.append((perf_counter() - start, count))
        seconds = perf_counter() - start
        result = stream.result
        assert result is not None
        result.report.pass_seconds = None  # costs are measured once for all runs
        first = steps[0] if steps else (seconds, 0)
        return Run(result.token_ids, first[1], first[0], seconds, result.report.as_dict(), steps, list(result.origins))


@dataclass(frozen=True)
class Mode:
    """One way to run a peer: ``settings`` go to its driver."""

    name: str
    settings: dict[str, Any]


PLAIN_MODE = Mode("plain", {"mode": "plain", "gamma": 0})


def _modes(*gammas: int, lookup: Sequence[int], matches: Sequence[int | None] = (None,)) -> list[Mode]:
    found = [PLAIN_MODE]
    for n, match in itertools.product(lookup, matches):
        name = f"lookup {n}" if match is None else f"lookup {n}/{match}"
        found.append(Mode(name, {"mode": "lookup", "gamma": n} | ({} if match is None else {"match": match})))
    found += [Mode(f"draft {n}", {"mode": "draft", "gamma": n}) for n in gammas]
    return found


# Settings that FIELD-like surveys found worth trying; the best of each peer is chosen on tuning prompts.
MODES: dict[str, list[Mode]] = {
    "llama_cpp": _modes(2, 4, lookup=(8, 24), matches=(2, 8)),
    "openvino": _modes(3, lookup=(5, 10, 20)),
    "transformers": _modes(3, lookup=(10, 20)),
    "economize": _modes(3, lookup=(10, 20)),
    "vllm": _modes(3, lookup=(4, 8)),
}


class Other:
    """A peer in one mode. Raises PeerError with its own words when it cannot start."""

    def __init__(self, engine: str, mode: Mode, models: dict[str, Any], peers: Path) -> None:
        self.name = f"{engine} {mode.name}"
        python = (peers / engine / "bin" / "python").absolute()
        self._peer = Peer(python, DRIVERS / f"{engine}.py", models | mode.settings, timeout=PEER_TIMEOUT)
        self.ready: dict[str, Any] = self._peer.ready

    def run(self, prompt: Sequence[int], max_tokens: int, temperature: float, seed: int) -> Run:
        """Answer, timed by the driver. Raises PeerError when it fails, or does not tell its times."""
        draws = self._peer.generate(prompt, max_tokens, temperature, [seed])
        if not draws.timing:
            raise PeerError(f"{self.name}: the driver told no times")
        first, first_seconds, seconds = draws.timing[0]
        told = {"drafted": draws.drafted, "accepted": draws.accepted}
        return Run(draws.tokens[0], first, first_seconds, seconds, {k: v for k, v in told.items() if v is not None})

    def close(self) -> None:
        """End its process."""
        self._peer.close()


def modes(engine: str, draft: bool) -> list[Mode]:
    """The settings to try of a peer; those with a draft model only where there is one. Raises ParameterError."""
    if engine not in MODES:
        raise ParameterError(f"--peers knows {', '.join(MODES)}, not {engine!r}")
    return [mode for mode in MODES[engine] if draft or mode.settings["mode"] != "draft"]
