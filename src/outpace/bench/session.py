"""One `outpace bench` from beginning to end: load, measure costs, run ours, then each peer beside ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..control.pass_costs import measure_passes
from ..core.errors import ContextError, PeerError
from ..core.load_options import LoadOptions
from ..engine.build import load
from ..engine.engine import Engine
from ..engine.prompts import Prompt
from ..runtimes.loading import LoadedModel
from ..text.detokenizer import StreamDecoder
from . import workload
from .contenders import Contender, Mode, Other, Ours, modes
from .measure import PLAIN, Measurement, measure_tasks, tasks
from .probe import Bandwidth
from .provenance import provenance

AUTO = "auto"
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
TUNING_TOKENS = 48
Say = Callable[[str], object]


@dataclass(frozen=True)
class Experiment:
    """What to measure. ``drafters``: names, and "auto" for the controller's choice among all of them; ``gammas``:
    drafted tokens a round, None for the controller's choice. ``threads``: of the peers. ``options``: of the engine,
    apart from its drafters and controller."""

    target: LoadedModel
    draft: LoadedModel | None
    drafters: Sequence[str]
    gammas: Sequence[int | None]
    options: LoadOptions
    prompts: Sequence[workload.Prompt]
    temperatures: Sequence[float]
    max_tokens: int
    repeats: int
    threads: int
    peers: Sequence[str] = ()
    peers_folder: Path = Path(".peers")


def run_experiment(plan: Experiment, save: Path | None, say: Say) -> Measurement:
    """Carry out the plan. Ctrl-C ends it early; what was measured by then is returned, and marked incomplete. ``save``:
    where what there is so far is written after each task; writing the whole is the caller's."""
    models = [plan.target, *([plan.draft] if plan.draft else [])]
    settings = {"drafters": list(plan.drafters), "gammas": list(plan.gammas), "options": plan.options.as_dict(),
                "temperatures": list(plan.temperatures), "max_tokens": plan.max_tokens, "repeats": plan.repeats,
                "threads": plan.threads, "peers": list(plan.peers)}  # fmt: skip
    measurement = Measurement(provenance(models), settings)
    measurement.bytes_read = {"target": plan.target.nbytes} | ({"draft": plan.draft.nbytes} if plan.draft else {})
    try:
        _run(plan, measurement, save, say)
        measurement.complete = True
    except KeyboardInterrupt:
        say("interrupted: what is measured is kept")
    return measurement


def _run(plan: Experiment, measurement: Measurement, save: Path | None, say: Say) -> None:
    engine, ours = contenders(plan)
    prompts = []
    for prompt in plan.prompts:
        ids = prompt_ids(engine, prompt)
        if len(ids) >= plan.target.runtime.context:
            why = f"{len(ids)} tokens, and the model's context ends at {plan.target.runtime.context}"
            measurement.failures.append({"what": prompt.id, "why": why})
        else:
            prompts.append((prompt, ids))
    say("measuring what a pass costs by its rows")
    measurement.costs["target"] = measure_passes(plan.target.runtime, rows=ROWS).by_rows
    if plan.draft is not None:
        measurement.costs["draft"] = measure_passes(plan.draft.runtime, rows=(1, 2, 4, 8)).by_rows
    bandwidth = Bandwidth(threads=plan.threads)
    for contender in ours:  # a first answer of each touches what a first answer touches
        if prompts:
            contender.run(prompts[0][1][:64], 8, 0.0, 0)
    work = tasks(prompts, plan.temperatures, plan.repeats)
    common: dict[str, Any] = {"max_tokens": plan.max_tokens, "save": save, "bandwidth": bandwidth, "progress": say}
    if not plan.peers or len(ours) > 1:
        measure_tasks(measurement, ours, work, decode=lambda ids: pieces(plan.target, ids), **common)
    beside: list[Contender] = [*ours[:1], *ours[-1:]] if len(ours) > 1 else list(ours)
    for name in plan.peers:
        for mode in _chosen(plan, name, engine, measurement, say):
            try:
                other = Other(name, mode, _settings(plan), plan.peers_folder)
            except PeerError as error:
                measurement.failures.append({"what": f"{name} {mode.name}", "why": str(error)})
                continue
            try:
                if work:
                    other.run(work[0].ids[:64], 8, 0.0, 0)
                measure_tasks(measurement, [*beside, other], work, block=other.name, **common)
            except PeerError as error:
                measurement.failures.append({"what": other.name, "why": str(error)})
            finally:
                other.close()


def contenders(plan: Experiment) -> tuple[Engine, list[Contender]]:
    """Our engine, and its settings as contenders: plain decoding first."""
    names = [name for name in plan.drafters if name != AUTO] or [None]  # type: ignore[list-item]
    engine = load(
        plan.target,
        plan.draft,
        plan.options,
        drafter=[name for name in names if name is not None],
        controller="auto" if None in plan.gammas else "fixed",
        gamma=None,
    )
    found: list[Contender] = [Ours(PLAIN, engine, gamma=0)]
    for name in plan.drafters:
        for gamma in plan.gammas:
            if name == AUTO and gamma is not None:
                continue
            title = name if gamma is None else f"{name} {gamma}"
            found.append(Ours(title, engine, None if name == AUTO else name, gamma))
    return engine, found


def prompt_ids(engine: Engine, prompt: workload.Prompt) -> list[int]:
    """The prompt's token ids: a user's message where the model has a chat template."""
    chat = engine.target.chat_template and not prompt.raw
    text: Prompt = [{"role": "user", "content": prompt.text}] if chat else prompt.text
    return engine.encode(text)


def pieces(model: LoadedModel, ids: Sequence[int]) -> list[str]:
    """The text that each token adds."""
    decoder = StreamDecoder(model.tokenizer, [])
    found = [decoder.push(token) for token in ids]
    rest = decoder.flush()
    if found and rest:
        found[-1] += rest
    return found


def _settings(plan: Experiment) -> dict[str, Any]:
    longest = min(plan.target.runtime.context, 12288)
    return {"target": str(plan.target.path), "draft": str(plan.draft.path) if plan.draft else None,
            "threads": plan.threads, "weights": plan.target.weights, "context": longest}  # fmt: skip


def _chosen(plan: Experiment, name: str, engine: Engine, measurement: Measurement, say: Say) -> list[Mode]:
    """The peer's plain mode, and whichever mode is fastest on one of the tuning prompts."""
    tried = modes(name, plan.draft is not None)
    best: dict[str, tuple[float, Mode]] = {}
    for mode in tried:
        try:
            other = Other(name, mode, _settings(plan), plan.peers_folder)
        except PeerError as error:
            measurement.failures.append({"what": f"{name} {mode.name} (tuning)", "why": str(error)})
            if mode is tried[0]:
                return []
            continue
        try:
            for prompt in workload.tuning():
                ids = prompt_ids(engine, prompt)
                other.run(ids, 8, 0.0, 0)
                speed = other.run(ids, TUNING_TOKENS, 0.0, 0).tokens_per_second or 0.0
                say(f"tuning {other.name} on {prompt.id}: {speed:.1f} tok/s")
                measurement.tuning.append({"peer": name, "mode": mode.name, "prompt": prompt.id, "speed": speed,
                                           "versions": other.ready.get("versions"),
                                           "numerics": other.ready.get("numerics")})  # fmt: skip
                if speed > best.get(prompt.id, (0.0, mode))[0]:
                    best[prompt.id] = (speed, mode)
        except (PeerError, ContextError) as error:
            measurement.failures.append({"what": f"{other.name} (tuning)", "why": str(error)})
        finally:
            other.close()
    chosen = {mode.name: mode for _, mode in best.values()}
    return list({tried[0].name: tried[0], **chosen}.values()) if best else []
