"""What a generation cost and what drafting brought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace

NOT_DRAFTED = ("correction", "bonus", "plain")  # origins of tokens that no drafter proposed; all others name a drafter


@dataclass
class Report:
    """Counts and seconds of one request. Counts include only what was emitted: a run cut by a stop
    charges the tokens before the cut.

    ``target_passes``: verification passes (prefill apart). ``drafted``: tokens proposed; ``tested``:
    drafted tokens compared with the target; ``accepted``: those accepted and emitted. ``draft_passes``: passes
    of a draft model, prefill apart; one may propose several tokens. ``rows``: how many of the target passes had so many
    rows, of those that no other request shared.
    ``prompt_cached``: prompt tokens found in the prefix cache. Seconds are wall time: a pass
    is shared out among the sessions of a batch by their rows, the rest evenly.
    """

    drafter: str = "none"
    rule: str = "match"
    gamma: int = 0
    seed: int = 0
    prompt_tokens: int = 0
    prompt_cached: int = 0
    emitted: int = 0
    target_passes: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    draft_passes: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    seconds_prefill: float = 0.0
    seconds_draft_prefill: float = 0.0
    seconds_draft: float = 0.0
    seconds_target: float = 0.0
    seconds_sample: float = 0.0
    seconds_other: float = 0.0
    warnings: list[str] = field(default_factory=list)
    pass_seconds: Callable[[float, int], float] | None = field(default=None, repr=False, compare=False)
    """Seconds of a target pass over so many rows behind so many cached entries, as known when the request began: from
    passes timed in pairs and from the rounds of earlier requests. Arithmetic, it runs no pass; None: not measured."""

    @classmethod
    def total(cls, reports: Sequence[Report]) -> Report:
        """Several requests' counts, seconds and rows added up, and every warning once. ``drafter``, ``rule``, ``gamma``
        and ``seed`` are the first report's. No prediction: what a pass cost depends on each request's length.
        Raises IndexError for no reports."""
        total = replace(reports[0], pass_seconds=None)
        for name in _ADDED:
            setattr(total, name, sum(getattr(report, name) for report in reports))
        total.rows = dict(sum((Counter(report.rows) for report in reports), Counter()))
        total.warnings = list(dict.fromkeys(warning for report in reports for warning in report.warnings))
        return total

    def relative(self, rows: float) -> float | None:
        """v(rows): a pass over ``rows`` rows / over one, behind as many entries as this request had on average."""
        if self.pass_seconds is None:
            return None
        entries = self.prompt_tokens + self.emitted // 2
        return self.pass_seconds(rows, entries) / self.pass_seconds(1, entries)

    @property
    def rows_cost(self) -> float | None:
        """Mean of v(rows) over this request's target passes; None when nothing was drafted, and where other requests
        shared its passes."""
        passes = sum(self.rows.values())
        if self.pass_seconds is None or not self.drafted or passes != self.target_passes:
            return None
        return sum(count * (self.relative(rows) or 1.0) for rows, count in self.rows.items()) / passes

    @property
    def one_row_seconds(self) -> float | None:
        """Seconds of a one-row target pass while this request ran: of its own passes, by what their rows cost more."""
        return self.seconds_target / self.target_passes / self.rows_cost if self.rows_cost else None

    @property
    def alpha(self) -> float | None:
        """Accepted / tested; None when nothing was tested."""
        return self.accepted / self.tested if self.tested else None

    @property
    def block_efficiency(self) -> float | None:
        """Tokens emitted per target pass, prefill excluded."""
        return self.emitted / self.target_passes if self.target_passes else None

    @property
    def seconds_decode(self) -> float:
        """Seconds after the prefill."""
        return self.seconds_draft + self.seconds_target + self.seconds_sample + self.seconds_other

    @property
    def tokens_per_second(self) -> float | None:
        """Emitted tokens per second, prefill excluded."""
        return self.emitted / self.seconds_decode if self.seconds_decode > 0 else None

    @property
    def c(self) -> float | None:
        """Seconds to draft one token / seconds of a one-row target pass."""
        if not self.drafted or not self.one_row_seconds:
            return None
        return self.seconds_draft / self.drafted / self.one_row_seconds

    @property
    def predicted_speedup(self) -> float | None:
        """Plain decoding's seconds, as predicted, / this request's: tokens a pass over what a round costs in one-row
        passes, v(rows) + drafting + overhead (2211.17192, theorem 3.8, with the tokens, rows and drafting that this
        request really had, and v and overhead added). None when nothing was drafted."""
        plain = self.plain_seconds
        return plain / self.seconds_decode if self.drafted and plain and self.seconds_decode > 0 else None

    @property
    def paper_speedup(self) -> float | None:
        """The paper's own prediction, (1 - alpha^(gamma+1)) / ((1 - alpha) (gamma c + 1)) (theorem 3.8)."""
        if self.alpha is None or self.c is None or not self.target_passes:
            return None
        depth = self.drafted / self.target_passes
        return expected_tokens(self.alpha, depth) / (depth * self.c + 1)

    @property
    def plain_seconds(self) -> float | None:
        """What plain decoding would have taken after the prompt: for every token a one-row pass, its sampling, and
        what a round does besides."""
        if not self.drafted:
            return self.seconds_decode
        if not self.one_row_seconds:
            return None
        return self.emitted * (self.one_row_seconds + self.seconds_other / self.target_passes) + self.seconds_sample

    def as_dict(self) -> dict[str, object]:
        """Counts, seconds and all derived figures, ready for JSON."""
        derived: tuple[str, ...] = ("alpha", "block_efficiency", "c", "tokens_per_second", "seconds_decode")
        derived += ("one_row_seconds", "rows_cost", "plain_seconds")
        derived += ("predicted_speedup", "paper_speedup")
        stored = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "pass_seconds"}
        stored["rows"] = {str(rows): count for rows, count in self.rows.items()}  # as JSON has it
        return stored | {name: getattr(self, name) for name in derived}


_ADDED = tuple(f.name for f in fields(Report) if f.type in ("int", "float") and f.name not in ("gamma", "seed"))


def expected_tokens(alpha: float, gamma: float) -> float:
    """Tokens per round with ``gamma`` drafts each accepted with probability ``alpha`` (equation 1)."""
    return gamma + 1 if alpha >= 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)
