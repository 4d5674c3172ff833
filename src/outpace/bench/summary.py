"""From runs to figures: medians and quartiles, paired ratios, acceptance, predictions beside measurements."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ..control.pass_costs import PassCosts
from ..core.report import Report
from .measure import PLAIN, Measurement
from .simulate import speedup

EVERYTHING = "all"
ENDS = ("correction", "bonus", "plain")  # where a round's last token, the target's own, came from
PHASES = ("draft", "target", "sample", "other")
_COUNTED = {field.name for field in fields(Report)} - {"rows", "warnings", "pass_seconds"}


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of ``count`` values."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """None when there are no values."""
        known = sorted(value for value in values if value is not None)
        if not known:
            return None
        if len(known) == 1:
            return cls(known[0], known[0], known[0], 1)
        low, middle, high = statistics.quantiles(known, n=4, method="inclusive")
        return cls(middle, low, high, len(known))


def spread(ratios: Sequence[float]) -> str:
    """How far apart the paired ratios behind a figure lie, and how many they are."""
    return "1 pair only" if len(ratios) == 1 else f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} pairs"


@dataclass(frozen=True)
class Row:
    """One contender in one category at one temperature. ``speed``: tokens a second after the first step;
    ``gain``: its ratio to our plain decoding of the same task, pair by pair; ``whole``: tokens a second of the
    whole request; ``prefill``: seconds until the first step. ``same``: answers equal to plain's, of how many.

    ``phases``: share of the decoding time. ``roofline``: the time that reading the weights takes at the bandwidth of
    the moment / the time taken. ``paper``, ``ours``: predicted gains; the paper's knows alpha, gamma and c, ours also
    what more rows and everything else cost.
    """

    temperature: float
    category: str
    contender: str
    speed: Spread | None
    gain: Spread | None
    whole: Spread | None
    prefill: Spread | None
    same: tuple[int, int] | None
    alpha: float | None = None
    block_efficiency: float | None = None
    depth: float | None = None
    c: float | None = None
    rows_cost: float | None = None
    paper: float | None = None
    ours: float | None = None
    phases: dict[str, float] | None = None
    roofline: float | None = None


def rows(measurement: Measurement) -> list[Row]:
    """A row for every contender, category and temperature, and one for all categories together."""
    runs = measurement.runs
    names = contender_names(measurement)
    found = []
    for temperature in dict.fromkeys(run["temperature"] for run in runs):
        for category in [*dict.fromkeys(run["category"] for run in runs), EVERYTHING]:
            for name in names:
                chosen = [run for run in runs if run["temperature"] == temperature and run["contender"] == name
                          and category in (run["category"], EVERYTHING)]  # fmt: skip
                if chosen:
                    found.append(_row(measurement, temperature, category, name, chosen))
    return found


def contender_names(measurement: Measurement) -> list[str]:
    """Plain first, then the others as they came."""
    names = dict.fromkeys(run["contender"] for run in measurement.runs)
    return [name for name in (PLAIN,) if name in names] + [name for name in names if name != PLAIN]


def _row(measurement: Measurement, temperature: float, category: str, name: str, runs: Sequence[dict[str, Any]]) -> Row:
    plain = {_task(run): run for run in measurement.runs if run["contender"] == PLAIN}
    gains = []
    idle = not any(run["report"].get("drafted", True) for run in runs)  # nothing was drafted: there is no gain
    for run in runs:
        base = plain.get(_task(run))
        if name != PLAIN and base and run["tokens_per_second"] and base["tokens_per_second"] and not idle:
            gains.append(run["tokens_per_second"] / base["tokens_per_second"])
    compared = [run["same_as_plain"] for run in runs if run.get("same_as_plain") is not None]
    gain = Spread.of(gains)
    return Row(
        temperature,
        category,
        name,
        speed=Spread.of(run["tokens_per_second"] for run in runs),
        gain=gain,
        whole=Spread.of(len(run["tokens"]) / run["seconds"] for run in runs if run["seconds"]),
        prefill=Spread.of(run["first_seconds"] for run in runs),
        same=(sum(compared), len(compared)) if compared else None,
        **(_drafting(measurement, runs) if "target_passes" in runs[0]["report"] else _told(runs)),
    )


def _task(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["block"], run["prompt"], run["temperature"], run["repeat"]


def _told(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What another engine tells of its drafts."""
    drafted, accepted = (sum(run["report"].get(key) or 0 for run in runs) for key in ("drafted", "accepted"))
    return {"alpha": accepted / drafted if drafted and accepted else None}


def _drafting(measurement: Measurement, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What our own reports tell, together, by the formulas of :class:`outpace.core.report.Report`: nothing of the
    plain runs is in a prediction."""
    total, costs = Report.total([_report(run) for run in runs]), measurement.costs.get("target")
    passes, decoding = total.target_passes, total.seconds_decode
    found: dict[str, Any] = {"block_efficiency": total.block_efficiency}
    if decoding:
        found["phases"] = {phase: getattr(total, f"seconds_{phase}") / decoding for phase in PHASES}
        found["roofline"] = _roofline(measurement, runs, passes, decoding)
    if not total.drafted or total.alpha is None or not passes or costs is None:
        return found
    depth, rows_cost = total.drafted / passes, _rows_cost(runs, costs)
    one = total.seconds_target / passes / rows_cost
    c = total.seconds_draft / total.drafted / one
    plain = total.emitted * (one + total.seconds_other / passes) + total.seconds_sample
    return found | {
        "alpha": total.alpha,
        "depth": depth,
        "c": c,
        "rows_cost": rows_cost,
        "paper": speedup(total.alpha, depth, c),  # type: ignore[arg-type]  # a mean number of drafts a round
        "ours": plain / decoding,
    }


def _rows_cost(runs: Sequence[dict[str, Any]], costs: dict[int, float]) -> float:
    """Mean of v(rows) over the target passes of some runs; of a file that does not tell their rows, v(mean rows)."""
    curve, spent, passes = PassCosts.of_points(costs), 0.0, 0
    for report in (run["report"] for run in runs):
        mean = str(1 + report["drafted"] / max(1, report["target_passes"]))
        for rows, count in (report.get("rows") or {mean: report["target_passes"]}).items():
            spent += count * curve.of(float(rows))
            passes += count
    return spent / passes / costs[1]


def _report(run: dict[str, Any]) -> Report:
    """The counts and seconds that a file tells of one run."""
    return Report(**{key: value for key, value in run["report"].items() if key in _COUNTED})


def _roofline(measurement: Measurement, runs: Sequence[dict[str, Any]], passes: int, decoding: float) -> float | None:
    draft_passes = [run["report"].get("draft_passes") for run in runs]  # a file may be older than this figure
    if not measurement.bandwidth or "target" not in measurement.bytes_read or None in draft_passes:
        return None
    nbytes = passes * measurement.bytes_read["target"]
    nbytes += sum(draft_passes) * measurement.bytes_read.get("draft", 0)
    return nbytes / statistics.median(measurement.bandwidth) / decoding


def acceptance_by_depth(runs: Iterable[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """(depth from 1, how often a draft was accepted there, how often one was tested there), from where each token came
    from: a round is its accepted drafts and one token of the target's, a "correction" where the next draft was
    rejected."""
    accepted: dict[int, int] = {}
    tested: dict[int, int] = {}
    for run in runs:
        depth = 0
        for origin in run["origins"]:
            if origin in ENDS:
                if origin == "correction":
                    tested[depth + 1] = tested.get(depth + 1, 0) + 1
                depth = 0
            else:
                depth += 1
                accepted[depth] = accepted.get(depth, 0) + 1
                tested[depth] = tested.get(depth, 0) + 1
    return [(depth, accepted.get(depth, 0), tested[depth]) for depth in sorted(tested)]


def speed_over_time(runs: Iterable[dict[str, Any]], window: float) -> list[tuple[float, float]]:
    """(seconds since the first step, tokens a second) in steps of ``window`` seconds, over all runs: how many tokens
    came in each window, of the runs that were still going on then; windows that hardly any run reached are left out."""
    counts: dict[int, float] = {}
    time: dict[int, float] = {}
    for run in runs:
        steps = run["steps"]
        if len(steps) < 2:
            continue
        start = steps[0][0]
        for (t0, n0), (t1, n1) in itertools.pairwise(steps):
            place = int((t1 - start) / window)
            counts[place] = counts.get(place, 0.0) + n1 - n0
            time[place] = time.get(place, 0.0) + t1 - t0
    enough = 0.1 * max(time.values(), default=0.0)
    return [((place + 0.5) * window, counts[place] / time[place]) for place in sorted(counts) if time[place] > enough]
