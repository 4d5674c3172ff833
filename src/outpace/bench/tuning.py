"""What could draft for a target on this machine, each tried and ranked."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import drafters
from ..core.errors import OutpaceError, VocabularyError
from ..core.types import SamplingParams
from ..engine.build import load
from ..engine.controller import AutoController
from ..engine.costs import PassCosts, machine, measure_passes
from ..engine.engine import Engine, Prompt
from ..engine.plan import Plan
from ..engine.stream import Result
from ..models import catalogue
from ..models.checkpoint import open_checkpoint
from ..models.loading import LoadedModel, load_model
from ..models.pairing import check_pair
from .compare import race
from .plots import Series, line_chart, standalone
from .simulate import speedup

PROMPTS = (
    "Write a Python function that counts how often each word occurs in a text file, with a docstring.",
    "Explain in a few sentences why the sky is blue at noon and red in the evening.",
    "Correct the spelling and repeat the text: Teh quick brwon fox jumps over teh lazy dog, and teh dog sleeps on.",
)
GAMMAS = (1, 2, 3, 4, 6, 8)
_WORTH = 1.02  # a way that gains less than this is not worth having


@dataclass(frozen=True)
class Way:
    """A drafter, or several, with the draft model that it needs."""

    drafter: str
    draft: str | None = None

    @property
    def label(self) -> str:
        return f"{self.drafter} ({Path(self.draft).name.removesuffix('.gguf')})" if self.draft else self.drafter


@dataclass
class Found:
    """What a way brought: plain seconds / seconds of each prompt, whole requests, beside what its tokens and rows a
    pass say with the measured cost of passes, reading apart. ``error``: why it cannot be used."""

    way: Way
    ratios: list[float] = field(default_factory=list)
    predicted: float | None = None
    alpha: float | None = None
    tokens_a_pass: float | None = None
    believed: dict[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def measured(self) -> float | None:
        """Median over the prompts."""
        return statistics.median(self.ratios) if self.ratios else None


def compatible_drafts(target: LoadedModel) -> list[str]:
    """Models of the catalogue that are here, smaller than the target and of its vocabulary."""
    found = []
    for entry in catalogue.catalogue():
        place = catalogue.path(entry.name)
        if place is None or entry.name == target.name or _bytes(place) >= _bytes(target.path):
            continue
        try:
            check_pair(target.tokenizer, open_checkpoint(place).tokenizer, target.name, entry.name)
        except VocabularyError:
            continue
        found.append(entry.name)
    return found


def _bytes(place: Path) -> int:
    files = place.rglob("*") if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


def ways(drafts: Sequence[str]) -> list[Way]:
    """Every drafter alone, those that need a draft model with each, and a draft model beside lookup."""
    found = []
    for name in drafters.names():
        if drafters.module(name).NEEDS_DRAFT:
            found += [Way(name, draft) for draft in drafts]
        elif name != "none":
            found.append(Way(name))
    return found + [Way("draft_model,lookup", draft) for draft in drafts]


def try_way(
    way: Way,
    target: LoadedModel,
    costs: PassCosts,
    plain: Engine,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    **settings: object,
) -> tuple[Found, Engine | None]:
    """Answer each prompt by ``plain``, the target without a drafter, and in this way, side by side.
    ``costs``: the target's passes. ``settings``: further keywords of ``load``."""
    found = Found(way)
    try:
        engine = load(target, way.draft, drafter=way.drafter, controller="auto", **settings)  # type: ignore[arg-type]
    except OutpaceError as error:
        found.error = str(error)
        return found, None
    engine.generate(prompts[0], SamplingParams(max_tokens=4))
    results = []
    for prompt in prompts:
        ratio, result = paired(plain, engine, prompt, params)
        found.ratios.append(ratio)
        results.append(result.report)
    tested = sum(report.tested for report in results)
    found.alpha = sum(report.accepted for report in results) / tested if tested else None
    passes = sum(report.target_passes for report in results)
    found.tokens_a_pass = sum(report.emitted for report in results) / passes
    drafting = sum(report.seconds_draft for report in results) / passes
    rows = 1 + sum(report.drafted for report in results) / passes
    found.predicted = found.tokens_a_pass * costs.of(1) / (costs.of(rows) + drafting)
    controller = engine.controller
    assert isinstance(controller, AutoController)
    found.believed = controller.believed()
    return found, engine


def paired(
    plain: Engine, engine: Engine, prompt: Prompt, params: SamplingParams, gamma: int | None = None
) -> tuple[float, Result]:
    """Plain seconds / seconds of one request, and the latter's result."""
    found = race({"plain": plain, "": engine}, prompt, params, {} if gamma is None else {"": gamma})
    return found["plain"].seconds / found[""].seconds, found[""].result


def rank(found: Sequence[Found]) -> list[Found]:
    """The fastest first; those that cannot be used last."""
    return sorted(found, key=lambda one: -(one.measured or 0.0))


def plan_of(target: str, ranked: Sequence[Found], threads: int | None, **settings: str) -> Plan:
    """The plan for the best way, or for plain decoding where none is worth having."""
    rows = [{"way": one.way.label, "measured": one.measured, "predicted": one.predicted, "each": one.ratios,
             "alpha": one.alpha, "tokens_a_pass": one.tokens_a_pass} for one in ranked if not one.error]  # fmt: skip
    best = ranked[0] if ranked else None
    if best is None or (best.measured or 0.0) < _WORTH:
        return Plan(target, drafter="none", gamma=0, controller="fixed", threads=threads, machine=machine(),
                    measured=rows, **settings)  # type: ignore[arg-type]  # fmt: skip
    return Plan(target, draft=best.way.draft, drafter=best.way.drafter, threads=threads, believed=best.believed,
                machine=machine(), measured=rows, **settings)  # type: ignore[arg-type]  # fmt: skip


def thread_costs(path: Path, weights: str, backend: str, counts: Sequence[int]) -> Iterator[tuple[int, PassCosts]]:
    """The costs of a few passes with each number of threads."""
    for count in counts:
        model = load_model(path, weights=weights, backend=backend, threads=count)
        yield count, measure_passes(model.runtime, rows=(1, 4), limit_seconds=1.0)


def speedup_picture(target: PassCosts, c: float, points: Sequence[tuple[int, float, float]], title: str) -> str:
    """Speed-up against gamma: a curve for each alpha, and measured ``points`` (gamma, speed-up, alpha)."""
    gammas = range(max([8, *(gamma for gamma, *_ in points)]) + 1)
    curves = [
        Series(f"alpha {alpha:g}", [(gamma, speedup(alpha, gamma, c, target.relative)) for gamma in gammas])
        for alpha in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    ]
    if points:
        mean = statistics.mean(alpha for *_, alpha in points)
        curves.append(
            Series(f"measured, {mean:.2f}", [(gamma, gain) for gamma, gain, _ in points], line=False, marks=True)
        )
    return standalone(line_chart(curves, title=title, x_label="gamma: tokens drafted a round",
                                 y_label="times plain decoding", rule=1.0, whole_x=True))  # fmt: skip


def cost_picture(costs: dict[str, PassCosts], title: str) -> str:
    """Milliseconds of a pass against its rows, for each model."""
    curves = [
        Series(name, [(n, 1e3 * s) for n, s in zip(one.rows, one.seconds, strict=True)]) for name, one in costs.items()
    ]
    return standalone(line_chart(curves, title=title, x_label="rows of a pass", y_label="milliseconds", whole_x=True))


def measured_points(
    plain: Engine, engine: Engine, prompts: Sequence[Prompt], params: SamplingParams, tell: Callable[[str], None]
) -> list[tuple[int, float, float]]:
    """(gamma, speed-up, alpha) with each fixed gamma, medians over the prompts."""
    points = []
    for gamma in GAMMAS:
        pairs = [paired(plain, engine, prompt, params, gamma) for prompt in prompts]
        alphas = [result.report.alpha for _, result in pairs if result.report.alpha is not None]
        if alphas:
            points.append((gamma, statistics.median(ratio for ratio, _ in pairs), statistics.mean(alphas)))
            tell(f"gamma {gamma}: x{points[-1][1]:.2f}, drafts agree {points[-1][2]:.0%}")
    return points
