"""What drafting brings with each kind of weights, against plain decoding with the same weights and against other
engines, beside the bars that were set for it. A part of ``make bench-kernels``."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import PeerError
from ..core.types import SamplingParams
from ..engine.build import load
from ..engine.engine import Engine
from ..models.loading import LoadedModel
from ..models.native import NativeRuntime
from . import workload
from .compare import Raced, race
from .contenders import Mode, Other, Ours
from .provenance import provenance
from .session import encode
from .tables import markdown

TEXTS = {"code": ("code",), "prose": ("chat", "creative")}  # categories of the built-in prompts
GAMMAS = (1, 2, 3, 4, 5, 6)  # the best one on a tuning prompt is taken
TOKENS, TUNING_TOKENS = 128, 64
GAIN = {"file": {"code": 1.5, "prose": 1.1}, "q8": {"code": 2.0, "prose": 1.25}, "bf16": {"code": 2.5, "prose": 1.5}}
WARM = 0.85  # the gain at temperature 1 / that at 0, at least
OUTSIDE = 0.08  # of a round outside the kernels, at most
PEERS = {  # our category -> the peer's mode, and our speed over its, at least
    "code": ("llama_cpp", Mode("plain", {"mode": "plain", "gamma": 0}), 2.0),
    "prose": ("llama_cpp", Mode("plain", {"mode": "plain", "gamma": 0}), 1.3),
    "edit": ("openvino", Mode("lookup 20", {"mode": "lookup", "gamma": 20}), 1.5),
}


def measure_gains(target: LoadedModel, draft: LoadedModel) -> dict[str, Any]:
    """Plain decoding, a fixed gamma and the controller, side by side on each prompt, at temperatures 0 and 1. The fixed
    gamma is the best one on the tuning prompt of that kind of text; the draft model drafts, and nobody else."""
    plain = load(target, draft, drafter="draft_model", controller="fixed")
    fixed = {gamma: load(target, draft, drafter="draft_model", controller="fixed") for gamma in GAMMAS}
    auto = load(target, draft, drafter="draft_model")
    found: dict[str, Any] = {"texts": {}, "provenance": provenance([target, draft])}
    for text, categories in TEXTS.items():
        tuning = next(prompt for prompt in workload.tuning() if prompt.category in categories)
        tried = _race({"plain": (plain, 0)} | {str(n): (engine, n) for n, engine in fixed.items()}, tuning, 0.0,
                      TUNING_TOKENS)  # fmt: skip
        gamma = max(GAMMAS, key=lambda n: _gain(tried, str(n)))
        by_temperature: dict[str, dict[str, list[float]]] = {}
        for temperature in (0.0, 1.0):
            gains = by_temperature[f"{temperature:g}"] = defaultdict(list)
            for prompt in (p for p in workload.built_in() if p.category in categories):
                contenders = {"plain": (plain, 0), "fixed": (fixed[gamma], gamma), "auto": (auto, None)}
                raced = _race(contenders, prompt, temperature, TOKENS)
                for name in ("fixed", "auto"):
                    gains[name].append(_gain(raced, name))
                    gains[f"{name}, whole"].append(raced["plain"].seconds / raced[name].seconds)
        found["texts"][text] = {"gamma": gamma, "gains": by_temperature}
    code = next(prompt for prompt in workload.built_in() if prompt.category in TEXTS["code"])
    found["outside"] = _outside(plain, [target, draft], encode(plain, code), found["texts"]["code"]["gamma"])
    return found


def _race(
    contenders: Mapping[str, tuple[Engine, int | None]], prompt: workload.Prompt, temperature: float, tokens: int
) -> dict[str, Raced]:
    engines = {name: engine for name, (engine, _) in contenders.items()}
    gammas = {name: gamma for name, (_, gamma) in contenders.items() if gamma is not None}
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=tokens)
    return race(engines, encode(engines["plain"], prompt), params, gammas)


def _gain(raced: Mapping[str, Raced], name: str) -> float:
    """Plain decoding's seconds after its first token / those of the other. Both say the same tokens."""
    plain, other = raced["plain"], raced[name]
    return (plain.seconds - plain.first) / (other.seconds - other.first)


def _outside(engine: Engine, models: Sequence[LoadedModel], prompt: list[int], gamma: int) -> dict[str, float]:
    """Seconds of an answer's rounds, and of the time in them that the kernels of its passes took: the rest is Python,
    drawing tokens, bookkeeping. No kernels' seconds where torch makes the passes."""
    counted = [model.runtime for model in models if isinstance(model.runtime, NativeRuntime)]
    with engine.open(prompt, SamplingParams(max_tokens=TOKENS, temperature=0.0), gamma=gamma) as stream:
        while stream.report.emitted < 2 and stream.result is None:  # the draft has read the prompt after that
            engine.step()
            stream.poll()
        kernels = sum(runtime.kernel_seconds for runtime in counted)
        before = stream.report.seconds_decode
        while stream.result is None:
            engine.step()
            stream.poll()
    spent = stream.report.seconds_decode - before
    return {"seconds": spent, "kernels": sum(runtime.kernel_seconds for runtime in counted) - kernels}


def measure_peers(target: LoadedModel, draft: LoadedModel, threads: int, folder: Path) -> dict[str, Any]:
    """Our default engine and a peer, in turns on each prompt, at temperature 0: our tokens a second over its."""
    ours = Ours("auto", load(target, draft))
    settings = {"target": str(target.path), "draft": None, "threads": threads}
    found: dict[str, Any] = {"texts": {}, "provenance": provenance([target, draft])}
    for text, (name, mode, _) in PEERS.items():
        try:
            other = Other(name, mode, settings, folder)
        except PeerError as error:
            found["texts"][text] = {"peer": f"{name} {mode.name}", "error": str(error)}
            continue
        try:
            speeds = []
            for prompt in (p for p in workload.built_in() if p.category in TEXTS.get(text, (text,))):
                ids = encode(ours.engine, prompt)
                runs = [contender.run(ids, TOKENS, 0.0, 1) for contender in (ours, other)]
                speeds.append([run.tokens_per_second for run in runs])
            found["texts"][text] = {"peer": other.name, "versions": other.ready.get("versions"),
                                    "speeds": [pair for pair in speeds if all(pair)]}  # fmt: skip
        finally:
            other.close()
    return found


def gains_page(weights: str, found: Mapping[str, Any]) -> str:
    """One kind of weights: gains beside their bars."""
    rows = [["", "gamma", "gain, T = 0", "bar", "gain, T = 1", f"T = 1 / T = 0 (bar {WARM})", "whole request, T = 0",
             "controller, T = 0", "controller, whole request"]]  # fmt: skip
    for text, entry in found["texts"].items():
        cold, warm = entry["gains"]["0"], entry["gains"]["1"]
        gain, kept = _middle(cold["fixed"]), _middle(warm["fixed"]) / _middle(cold["fixed"])
        least = GAIN.get(weights, {}).get(text)
        rows.append([f"{text}, {len(cold['fixed'])} prompts", str(entry["gamma"]), _spread(cold["fixed"]),
                     at_least(gain, least), _spread(warm["fixed"]), at_least(kept, WARM, f"{kept:.2f}, "),
                     *(f"{_middle(cold[name]):.2f}" for name in ("fixed, whole", "auto", "auto, whole"))])  # fmt: skip
    lines = [markdown(rows)]
    if found["outside"]["kernels"]:
        share = 1 - found["outside"]["kernels"] / found["outside"]["seconds"]
        verdict = "met" if share <= OUTSIDE else "missed"
        lines.append(f"Outside the kernels: {share:.1%} of the rounds' time on code (bar {OUTSIDE:.0%} {verdict}).")
    return "\n\n".join(lines)


def peers_page(found: Mapping[str, Any]) -> str:
    """Our speed over a peer's, beside its bar."""
    rows = [["", "beside", "ours, tokens/s", "theirs", "ours / theirs", "bar"]]
    for text, entry in found["texts"].items():
        if "error" in entry:
            rows.append([text, entry["peer"], "-", "-", entry["error"].splitlines()[0], "-"])
            continue
        ours, theirs = zip(*entry["speeds"], strict=True)
        ratios = [a / b for a, b in entry["speeds"]]
        rows.append([f"{text}, {len(ratios)} prompts", entry["peer"], f"{_middle(ours):.1f}", f"{_middle(theirs):.1f}",
                     _spread(ratios), at_least(_middle(ratios), PEERS[text][2])])  # fmt: skip
    return markdown(rows)


def at_least(value: float, least: float | None, before: str = "") -> str:
    return "-" if least is None else f"{before}{least:.2f} {'met' if value >= least else 'missed'}"


def _middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def _spread(values: Sequence[float]) -> str:
    return f"{_middle(values):.2f} ({min(values):.2f} to {max(values):.2f})"
