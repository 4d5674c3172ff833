"""Plain and speculative decoding of one prompt, side by side in one run."""

from __future__ import annotations

import dataclasses
import platform
import secrets
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter

from .. import __version__
from ..core.prefix_cache import shared_length
from ..core.threads import default_threads
from ..core.torch_extra import torch_version
from ..core.types import SamplingParams
from ..engine.build import load
from ..engine.engine import Engine
from ..engine.prompts import Prompt
from ..engine.stream import Result
from . import workload

_CALIBRATION_TOKENS = 24  # of each prompt on which the costs of passes are corrected


@dataclass(frozen=True)
class Comparison:
    """Repeats of the same request, each side by side with plain decoding. ``plain`` and ``speculative`` are the runs
    of median speed; ``ratios`` are the speed-ups of each pair, in tokens per second, of the pairs in which both
    generated something and something was drafted."""

    plain: Result
    speculative: Result
    ratios: list[float]

    @property
    def speedup(self) -> float | None:
        """Median of the paired ratios; None when nothing was generated, or nothing drafted."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def first_difference(self) -> int | None:
        """Index of the first generated token that differs, None when all are equal."""
        a, b = self.plain.token_ids, self.speculative.token_ids
        return None if a == b else shared_length(a, b)

    @property
    def tokens_equal(self) -> bool:
        return self.first_difference is None

    def as_dict(self) -> dict[str, object]:
        """One object for JSON."""
        return {
            "plain": self.plain.report.as_dict(),
            "speculative": self.speculative.report.as_dict(),
            "speedup": self.speedup,
            "speedup_each": self.ratios,
            "tokens_equal": self.tokens_equal,
            "first_difference": self.first_difference,
            "text": self.speculative.text,
            "token_ids": self.speculative.token_ids,
            "finish_reason": self.speculative.finish_reason,
            "provenance": versions(),
        }


def compare(
    engine: Engine,
    prompt: Prompt,
    params: SamplingParams,
    *,
    gamma: int | None = None,
    repeats: int = 3,
    calibrate: bool = True,
    show: Callable[[str, Result], None] = lambda mode, result: None,
) -> Comparison:
    """Run plain and speculative decoding side by side (:func:`race`).

    The costs of passes that the reports' predictions rest on are measured if need be, and corrected by short answers to
    other prompts where ``calibrate`` is set, as the first comparison of several should: nothing of ``prompt`` itself is
    in them. Each repeat is another tenant's request, so none drafts from what an earlier one answered. ``show`` is
    called with "plain" or "speculative" after every run. Without a seed, one is drawn for all.
    """
    if params.seed is None:
        params = dataclasses.replace(params, seed=secrets.randbits(63))
    engine.measure_costs()
    alone = load(engine.target, drafter="none", accept=engine.rule_name)
    alone.measure_costs(beside=engine)
    engines = {"plain": alone, "speculative": engine}
    depths = {} if gamma is None else {"speculative": gamma}
    for other in workload.tuning() if calibrate else ():
        text = [{"role": "user", "content": other.text}] if engine.target.chat_template else other.text
        race(engines, text, SamplingParams(max_tokens=_CALIBRATION_TOKENS, ignore_eos=True), depths, "calibration")
    known = engine.cost_model.pass_seconds() if engine.cost_model else None
    runs: dict[str, list[Result]] = {mode: [] for mode in engines}
    for repeat in range(repeats):
        raced = race(engines, prompt, params, depths, f"repeat {repeat}")
        for mode, found in runs.items():
            found.append(raced[mode].result)
            found[-1].report.pass_seconds = known
            show(mode, found[-1])
    pairs = zip(runs["plain"], runs["speculative"], strict=True)
    ratios = [_speed(fast) / _speed(slow) for slow, fast in pairs if fast.report.drafted and _speed(slow)]
    return Comparison(_median(runs["plain"]), _median(runs["speculative"]), ratios)


def rate_after(tokens: int, seconds: float) -> float | None:
    """Tokens a second of what came after an answer's first step; None where nothing did."""
    return tokens / seconds if tokens > 0 and seconds > 0 else None


@dataclass(frozen=True)
class Raced:
    """One request of a race. ``seconds``: in all, ``first``: until its first token, with which a drafting engine may
    give others: ``first_tokens``."""

    seconds: float
    first: float
    first_tokens: int
    result: Result

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first ones per second after them; None for an answer that ended there."""
        return rate_after(len(self.result.token_ids) - self.first_tokens, self.seconds - self.first)


def race(
    engines: Mapping[str, Engine],
    prompt: Prompt,
    params: SamplingParams,
    gamma: Mapping[str, int] | None = None,
    tenant: str = "",
) -> dict[str, Raced]:
    """The same request in several engines, side by side: whoever has said least, and took least time for it, makes
    the next pass. So a machine that becomes slower or faster does so for all, where requests timed one after the
    other differ by as much as two of its minutes do. ``gamma``: of those engines that are to draft so much.
    ``tenant``: see ``Engine.open``; with one for each repeat no drafter drafts what it has seen answered.
    Raises what a request ends with."""
    depths, found = gamma or {}, {}
    seconds, first = dict.fromkeys(engines, 0.0), dict.fromkeys(engines, (0.0, 0))
    with ExitStack() as opened:
        running = {
            name: opened.enter_context(engine.stream(prompt, params, gamma=depths.get(name), tenant=tenant))
            for name, engine in engines.items()
        }
        while running:
            name = min(running, key=lambda name: (running[name].report.emitted, seconds[name]))
            begun = perf_counter()
            engines[name].step()
            seconds[name] += perf_counter() - begun
            if running[name].report.emitted and not first[name][1]:
                first[name] = seconds[name], running[name].report.emitted
            running[name].poll()
            result = running[name].result
            if result is not None:
                found[name] = Raced(seconds[name], *first[name], result)
                del running[name]
    return found


def _speed(result: Result) -> float:
    return result.report.tokens_per_second or 0.0


def _median(runs: list[Result]) -> Result:
    return sorted(runs, key=_speed)[(len(runs) - 1) // 2]


def versions(threads: int | None = None) -> dict[str, object]:
    """What a figure depends on besides the code's input. ``threads``: of the passes; None: the default."""
    return {
        "outpace": __version__,
        "torch": torch_version(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": threads or default_threads().count,
    }
