"""What could draft for a target on this machine, each tried and ranked."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import catalogue, drafters
from ..control.controller import AutoController
from ..control.pass_costs import PassCosts, machine, measure_passes
from ..core.errors import OutpaceError, VocabularyError
from ..core.load_options import Grouped, LoadOptions
from ..core.report import Report
from ..core.types import SamplingParams
from ..engine.build import load, open_target
from ..engine.engine import Engine
from ..engine.plan import Plan
from ..engine.prompts import Prompt
from ..engine.stream import Result
from ..files.checkpoint import open_checkpoint
from ..runtimes.loading import LoadedModel
from ..text.pairing import check_pair
from .compare import race
from .plots import Series, line_chart, standalone
from .simulate import speedup
from .summary import spread

PROMPTS = (
    "Write a Python function that counts how often each word occurs in a text file, with a docstring.",
    "Explain in a few sentences why the sky is blue at noon and red in the evening.",
    "Correct the spelling and repeat the text: Teh quick brwon fox jumps over teh lazy dog, and teh dog sleeps on.",
)
GAMMAS = (1, 2, 3, 4, 6, 8)
_SURE = 0.95  # of the interval for a median ratio that must lie above 1


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
    """What a way brought: ``ratios``, plain seconds / seconds of each pair, whole requests, beside the ``predicted``
    gain, reading apart (``Report.predicted_speedup``). A way that drafted nothing has neither, and is never faster
    than plain decoding. ``error``: why it cannot be used."""

    way: Way
    ratios: list[float] = field(default_factory=list)
    predicted: float | None = None
    drafted: int = 0
    alpha: float | None = None
    tokens_a_pass: float | None = None
    prior: dict[str, float] = field(default_factory=dict)
    error: str = ""

    @property
    def measured(self) -> float | None:
        """Median of the pairs; None where nothing was drafted."""
        return statistics.median(self.ratios) if self.ratios and self.drafted else None

    @property
    def faster(self) -> bool:
        """Whether it is surely faster than plain decoding: the interval for the median ratio lies above 1."""
        low = lower_end(self.ratios)
        return self.drafted > 0 and low is not None and low > 1.0


def lower_end(ratios: Sequence[float]) -> float | None:
    """Lower end of the narrowest interval between two of the ratios, as far from the lowest as from the highest, that
    holds their median with a probability of 95% (the sign test's: no distribution of the ratios is assumed). None for
    fewer than 6 ratios, which are too few for any."""
    n, k, below = len(ratios), 0, 0.5 ** len(ratios)
    while 1 - 2 * below >= _SURE:  # below: P(at most k of n lie under the median)
        k += 1
        below += math.comb(n, k) * 0.5**n
    return sorted(ratios)[k - 1] if k else None


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


def ways(drafts: Sequence[str], options: Grouped) -> list[Way]:
    """Every drafter alone, those that need a draft model with each, and a draft model beside lookup."""
    found = []
    for name in drafters.names():
        if drafters.needs_draft(name, {name: options.get(name, {})}):
            found += [Way(name, draft) for draft in drafts]
        elif name != "none":
            found.append(Way(name))
    return found + [Way("draft_model,lookup", draft) for draft in drafts]


def try_way(
    way: Way,
    target: LoadedModel,
    plain: Engine,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    options: LoadOptions,
    repeats: int = 2,
) -> tuple[Found, Engine | None]:
    """Answer each prompt ``repeats`` times by ``plain``, the target without a drafter, and in this way, side by side.
    Each repeat is another tenant's: it drafts from no earlier answer to the same prompt. ``options``: of the engine,
    apart from its drafters."""
    found = Found(way)
    try:
        engine = load(target, way.draft, _options_of(way, options))
    except OutpaceError as error:
        found.error = str(error)
        return found, None
    engine.generate(prompts[0], SamplingParams(max_tokens=4), tenant="warm-up")
    plain.measure_costs(beside=engine)
    results = []
    for repeat in range(repeats):
        for prompt in prompts:
            ratio, result = paired(plain, engine, prompt, params, tenant=f"repeat {repeat}")
            found.ratios.append(ratio)
            results.append(result.report)
    total = Report.total(results)
    found.drafted, found.alpha, found.tokens_a_pass = total.drafted, total.alpha, total.block_efficiency
    predicted = [report.predicted_speedup for report in results if report.predicted_speedup is not None]
    found.predicted = statistics.median(predicted) if predicted else None
    controller = engine.controller
    assert isinstance(controller, AutoController)
    found.prior = controller.prior("repeat 0")
    return found, engine


def _options_of(way: Way, options: LoadOptions) -> LoadOptions:
    """Of the options, those that matter to this way."""
    used = set(LoadOptions(drafter=way.drafter).drafters)
    given = options.drafter_options
    changes: dict[str, object] = {"drafter": way.drafter, "gamma": None, "controller": "auto"}
    changes["drafter_options"] = {name: values for name, values in given.items() if name in used or "hybrid" in used}
    if way.draft is None:
        changes |= {"draft_weights": "auto", "draft_head": None}
    return options.changed(changes)


def paired(
    plain: Engine, engine: Engine, prompt: Prompt, params: SamplingParams, gamma: int | None = None, tenant: str = ""
) -> tuple[float, Result]:
    """Plain seconds / seconds of one request, and the latter's result."""
    found = race({"plain": plain, "": engine}, prompt, params, {} if gamma is None else {"": gamma}, tenant)
    return found["plain"].seconds / found[""].seconds, found[""].result


def rank(found: Sequence[Found]) -> list[Found]:
    """Those that are surely faster than plain decoding first, and of these the fastest; those that cannot be used
    last."""
    return sorted(found, key=lambda one: (bool(one.error), not one.faster, -(one.measured or 0.0)))


def plan_of(target: str, ranked: Sequence[Found], options: LoadOptions) -> Plan:
    """The plan for the best way, or for plain decoding where none is surely faster."""
    rows = [{"way": one.way.label, "measured": one.measured, "lower_end": lower_end(one.ratios), "faster": one.faster,
             "predicted": one.predicted, "each": one.ratios, "drafted": one.drafted, "alpha": one.alpha,
             "tokens_a_pass": one.tokens_a_pass} for one in ranked if not one.error]  # fmt: skip
    best = ranked[0] if ranked else None
    if best is None or not best.faster:
        chosen = _options_of(Way("none"), options).changed({"gamma": 0, "controller": "fixed"})
        return Plan(target, None, chosen, machine(), rows)
    chosen = _options_of(best.way, options).changed({"prior": best.prior})
    return Plan(target, best.way.draft, chosen, machine(), rows)


def thread_costs(target: str, options: LoadOptions, counts: Sequence[int]) -> Iterator[tuple[int, PassCosts]]:
    """The costs of a few passes with each number of threads."""
    for count in counts:
        model = open_target(target, options.changed({"threads": count}))
        yield count, measure_passes(model.runtime, rows=(1, 4), limit_seconds=1.0)


def speedup_picture(
    target: PassCosts, c: float, points: Sequence[tuple[int, Sequence[float], float]], title: str
) -> str:
    """Speed-up against gamma: a curve for each alpha, and a mark for each of the measured ``points`` (gamma, speed-up
    on each prompt, alpha)."""
    gammas = range(max([8, *(gamma for gamma, *_ in points)]) + 1)
    curves = [
        Series(f"alpha {alpha:g}", [(gamma, speedup(alpha, gamma, c, target.relative)) for gamma in gammas])
        for alpha in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    ]
    if points:
        mean = statistics.mean(alpha for *_, alpha in points)
        marks = [(float(gamma), gain) for gamma, gains, _ in points for gain in gains]
        curves.append(Series(f"each prompt, alpha {mean:.2f}", marks, line=False, marks=True))
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
) -> list[tuple[int, Sequence[float], float]]:
    """(gamma, speed-up on each prompt, mean alpha) with each fixed gamma."""
    points: list[tuple[int, Sequence[float], float]] = []
    for gamma in GAMMAS:
        pairs = [paired(plain, engine, prompt, params, gamma, f"gamma {gamma}") for prompt in prompts]
        alphas = [result.report.alpha for _, result in pairs if result.report.alpha is not None]
        if alphas:
            ratios = [ratio for ratio, _ in pairs]
            points.append((gamma, ratios, statistics.mean(alphas)))
            tell(f"gamma {gamma}: x{statistics.median(ratios):.2f} ({spread(ratios)}), "
                 f"drafts agree {statistics.mean(alphas):.0%}")  # fmt: skip
    return points
