"""What drafting brings with each kind of weights, against plain decoding with the same weights and against other
engines, beside the bars that were set for it. A part of ``make bench-kernels``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from ..core.errors import OutpaceError, PeerError
from ..core.types import SamplingParams
from ..engine.build import load
from ..engine.engine import Engine
from ..runtimes.loading import LoadedModel
from ..runtimes.native import NativeRuntime
from . import workload
from .compare import Raced, race
from .contenders import PLAIN_MODE, Mode, Other, Ours
from .provenance import provenance
from .session import prompt_ids
from .tables import markdown, verdict

TEXTS = {"code": ("code",), "prose": ("chat", "creative")}  # categories of the built-in prompts
TUNING = {  # what the fixed gammas are chosen on; no figure is quoted for these
    "code": (
        "Write a Python function that merges two sorted lists into one sorted list without using sort.",
        "Write a Python class `Matrix` with addition, multiplication and a readable `__repr__`.",
        "Write a Python script that renames the photos of a folder by the day on which they were taken.",
    ),
    "prose": (
        "Describe a market square on a rainy morning in about a hundred words.",
        "What should I think about before I adopt a dog from a shelter?",
        "Write the first page of a story in which two sisters find a door in their grandmother's garden.",
    ),
}
GAMMAS = (1, 2, 3, 4, 5, 6)
TOKENS, TUNING_TOKENS = 96, 48
SEEDS = (1, 2)  # a prompt's answers at temperature 1
GAIN = {"file": {"code": 1.5, "prose": 1.1}, "q8": {"code": 2.0, "prose": 1.25}, "bf16": {"code": 2.5, "prose": 1.5}}
WARM = 0.85  # the gain at temperature 1 / that at 0, at least
GAINS = (
    "A gain is drafting's tokens a second after its first tokens over plain decoding's, side by side on the built-in "
    f"prompts, up to {TOKENS} tokens each, the same in both: the median, and the range; the tables say of how many "
    "prompts, and of how many answers at temperature 1. Only the draft model drafts: gamma tokens a round, the best "
    "ones on other prompts at temperature 0 and 1, having read the prompt before the first token; or as many as the "
    "controller likes, which knows nothing before its first prompt and has the draft read a prompt later, or never. "
    "Whole requests count everything."
)
OUTSIDE = 0.08  # of a round outside the kernels, at most
PEERS = {  # our category -> the peer's mode, and our speed over its, at least
    "code": ("llama_cpp", PLAIN_MODE, 2.0),
    "prose": ("llama_cpp", PLAIN_MODE, 1.3),
    "edit": ("openvino", Mode("lookup 20", {"mode": "lookup", "gamma": 20}), 1.5),
}


def measure_gains(target: LoadedModel, draft: LoadedModel) -> dict[str, Any]:
    """Plain decoding, a fixed gamma and the controller, side by side on each prompt, at temperatures 0 and 1. The fixed
    gamma is the best one on three tuning prompts of that kind of text at that temperature; the draft model drafts, and
    nobody else. Raises OutpaceError when one of them says another token than plain decoding."""
    plain = load(target, draft, drafter="draft_model", controller="fixed")
    fixed = {gamma: load(target, draft, drafter="draft_model", controller="fixed") for gamma in GAMMAS}
    auto = load(target, draft, drafter="draft_model")
    candidates = {"plain": (plain, 0)} | {str(n): (engine, n) for n, engine in fixed.items()}
    found: dict[str, Any] = {"texts": {}, "provenance": provenance([target, draft])}
    for text, categories in TEXTS.items():
        tuning = [workload.Prompt(f"tuning-{text}-{n}", text, words) for n, words in enumerate(TUNING[text], start=1)]
        gamma = {}
        for temperature in (0, 1):
            tried = [_race(candidates, prompt, temperature, TUNING_TOKENS, SEEDS[0]) for prompt in tuning]
            gamma[temperature] = max(
                GAMMAS, key=lambda n: sum(raced[str(n)].tokens_per_second or 0.0 for raced in tried)
            )
        cold_ones = {"plain": (plain, 0), "fixed": (fixed[gamma[0]], gamma[0]), "auto": (auto, None)}
        warm_ones = {"plain": (plain, 0), "fixed": (fixed[gamma[1]], gamma[1])}
        prompts = [prompt for prompt in workload.built_in() if prompt.category in categories]
        cold = [_race(cold_ones, prompt, 0, TOKENS, SEEDS[0]) for prompt in prompts]
        warm = [_race(warm_ones, prompt, 1, TOKENS, seed) for seed in SEEDS for prompt in prompts]
        gains = {"fixed": _gains(cold, "fixed"), "auto": _gains(cold, "auto"), "fixed, T = 1": _gains(warm, "fixed")}
        for name in ("fixed", "auto"):
            gains[f"{name}, whole"] = [raced["plain"].seconds / raced[name].seconds for raced in cold]
        found["texts"][text] = {"gamma": [gamma[0], gamma[1]], "gains": gains}
    code = next(prompt for prompt in workload.built_in() if prompt.category in TEXTS["code"])
    found["outside"] = _outside(plain, [target, draft], prompt_ids(plain, code), found["texts"]["code"]["gamma"][0])
    return found


def _race(
    contenders: Mapping[str, tuple[Engine, int | None]], prompt: workload.Prompt, temperature: float, tokens: int,
    seed: int,
) -> dict[str, Raced]:  # fmt: skip
    engines = {name: engine for name, (engine, _) in contenders.items()}
    gammas = {name: gamma for name, (_, gamma) in contenders.items() if gamma is not None}
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens)
    raced = race(engines, prompt_ids(engines["plain"], prompt), params, gammas)
    if any(one.result.token_ids != raced["plain"].result.token_ids for one in raced.values()):
        raise OutpaceError(f"{prompt.id}: drafting says other tokens than plain decoding, which must never be; please "
                           "report it with what `outpace audit` prints")  # fmt: skip
    return raced


def _gains(races: Sequence[Mapping[str, Raced]], name: str) -> list[float]:
    """Tokens a second of one engine over plain decoding's, of the races in which both said any after their first."""
    speeds = [(raced[name].tokens_per_second, raced["plain"].tokens_per_second) for raced in races]
    return [other / plain for other, plain in speeds if other and plain]


def _outside(engine: Engine, models: Sequence[LoadedModel], prompt: list[int], gamma: int) -> dict[str, float]:
    """Seconds of an answer's rounds, and of the time in them that the kernels of its passes took: the rest is Python,
    drawing tokens, bookkeeping. No kernels' seconds where torch makes the passes."""
    counted = [model.runtime for model in models if isinstance(model.runtime, NativeRuntime)]
    with engine.stream(prompt, SamplingParams(max_tokens=TOKENS, temperature=0.0), gamma=gamma) as stream:
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
        prompts = [p for p in workload.built_in() if p.category in TEXTS.get(text, (text,))]
        entry: dict[str, Any] = {"peer": f"{name} {mode.name}", "speeds": []}
        found["texts"][text] = entry
        try:
            with closing(Other(name, mode, settings, folder)) as other:
                for contender in (ours, other):  # touches what a first answer touches
                    contender.run(prompt_ids(ours.engine, prompts[0])[:64], 8, 0.0, 0)
                for turn, prompt in enumerate(prompts):
                    ids, pair = prompt_ids(ours.engine, prompt), {}
                    for contender in (ours, other) if turn % 2 else (other, ours):
                        pair[contender.name] = contender.run(ids, TOKENS, 0.0, 1).tokens_per_second
                    if all(pair.values()):
                        entry["speeds"].append([pair[ours.name], pair[other.name]])
        except PeerError as error:
            entry["error"] = str(error)
    return found


def gains_page(weights: str, found: Mapping[str, Any]) -> str:
    """One kind of weights: gains beside their bars."""
    rows = [["", "gamma", "gain, T = 0", "bar", "gain, T = 1", f"{WARM} of that bar", f"T = 1 / T = 0 ({WARM})",
             "whole request, T = 0", "controller, T = 0", "controller, whole request"]]  # fmt: skip
    for text, entry in found["texts"].items():
        gains = entry["gains"]
        cold, warm = median(gains["fixed"]), median(gains["fixed, T = 1"])
        bar = GAIN.get(weights, {}).get(text)
        counts = f"{text}, {len(gains['fixed'])} prompts; {len(gains['fixed, T = 1'])} answers at T = 1"
        rows.append([counts, ", ".join(map(str, entry["gamma"])),
                     _spread(gains["fixed"]), verdict(cold, least=bar), _spread(gains["fixed, T = 1"]),
                     verdict(warm, least=bar and WARM * bar), f"{warm / cold:.2f}, {verdict(warm / cold, least=WARM)}",
                     *(f"{median(gains[name]):.2f}" for name in ("fixed, whole", "auto", "auto, whole"))])  # fmt: skip
    lines = [markdown(rows)]
    if found["outside"]["kernels"]:
        share = 1 - found["outside"]["kernels"] / found["outside"]["seconds"]
        judged = verdict(share, most=OUTSIDE, form=".0%")
        lines.append(f"Outside the kernels: {share:.1%} of the rounds' time on code (bar {judged}).")
    return "\n\n".join(lines)


def peers_page(found: Mapping[str, Any]) -> str:
    """Our speed over a peer's, beside its bar."""
    rows = [["", "beside", "ours, tokens/s", "theirs", "ours / theirs", "bar"]]
    for text, entry in found["texts"].items():
        if not entry["speeds"]:
            said = entry.get("error", "no answer of more than one step").splitlines()[0]
            rows.append([text, entry["peer"], "-", "-", said, "-"])
            continue
        ours, theirs = zip(*entry["speeds"], strict=True)
        ratios = [a / b for a, b in entry["speeds"]]
        rows.append([f"{text}, {len(ratios)} prompts", entry["peer"], f"{median(ours):.1f}", f"{median(theirs):.1f}",
                     _spread(ratios), verdict(median(ratios), least=PEERS[text][2])])  # fmt: skip
    return markdown(rows)


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
