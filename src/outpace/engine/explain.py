"""Why an answer was fast or slow, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..core.report import NOT_DRAFTED, Report

_MUCH = 0.25  # share of the time that is worth a sentence; chosen by hand


def explain(report: Report, origins: Sequence[str] = ()) -> list[str]:
    """Sentences about one answer. ``origins``: of its tokens (``Result.origins``). Says nothing of plain
    decoding's time where the engine does not know what passes cost (``Engine.measure_costs``)."""
    if not report.target_passes:
        return ["Nothing was generated."]
    lines = [_speed(report)]
    if report.drafted:
        lines += [_drafting(report, origins), *_reasons(report)]
    else:
        lines.append(_no_drafting(report))
    if report.seconds_prefill + report.seconds_draft_prefill > report.seconds_decode:
        lines.append(
            f"Most of the time went into the prefill of the prompt's {report.prompt_tokens} tokens "
            f"({report.seconds_prefill:.2f} s), where drafting cannot help."
        )
    if report.seconds_draft_prefill > 0.1 * report.seconds_decode:
        lines.append(f"The drafter needed {report.seconds_draft_prefill:.2f} s for its own prefill of the text.")
    return lines


def _speed(report: Report) -> str:
    text = f"{report.emitted} tokens in {report.seconds_decode:.2f} s ({report.tokens_per_second or 0:.1f} a second)"
    if not report.drafted or report.plain_seconds is None:
        return f"{text}."
    taken = report.seconds_decode + report.seconds_draft_prefill
    factor = report.plain_seconds / taken
    verb = "faster than" if factor > 1.03 else "slower than" if factor < 0.97 else "about as fast as"
    return f"{text}; plain decoding would have taken {report.plain_seconds:.2f} s: x{factor:.2f}, {verb} plain."


def _drafting(report: Report, origins: Sequence[str]) -> str:
    text = (
        f"Acceptance rate {report.alpha or 0:.0%}, {report.block_efficiency or 0:.1f} tokens a pass, "
        f"drafting is {report.seconds_draft / report.seconds_decode:.0%} of the time"
    )
    accepted = Counter(origin for origin in origins if origin not in NOT_DRAFTED)
    if len(accepted) > 1:
        text += "; of the accepted drafts, " + ", ".join(f"{n} came from {name}" for name, n in accepted.most_common())
    plain = sum(origin == "plain" for origin in origins)
    return f"{text}." + (f" In {plain} of {report.target_passes} rounds nothing was drafted." if plain else "")


def _reasons(report: Report) -> list[str]:
    """What keeps the speed-up from being the tokens a pass."""
    reasons = []
    if report.rows_cost is not None and report.rows_cost > 1 + _MUCH:
        rows = 1 + report.drafted / report.target_passes
        reasons.append(f"A pass over {rows:.1f} rows costs as much as {report.rows_cost:.2f} over one.")
    if report.seconds_draft > _MUCH * report.seconds_decode:
        cost = "" if report.c is None else f" (a drafted token costs {report.c:.2f} of a one-row pass)"
        reasons.append(f"Drafting takes much of the time{cost}: a smaller draft would be cheaper.")
    if report.alpha is not None and report.alpha < 0.5:
        reasons.append("More than half of the drafts tested were rejected: this draft does not suit this text.")
    rest = report.seconds_sample + report.seconds_other
    if rest > _MUCH * report.seconds_decode:
        reasons.append(f"Sampling and bookkeeping are {rest / report.seconds_decode:.0%} of the time.")
    return reasons


def _no_drafting(report: Report) -> str:
    if report.drafter == "none":
        return "Nothing was drafted: this is plain decoding."
    text = f"Nothing was drafted: {report.drafter} found nothing, or was not worth its time here."
    second = report.relative(2)
    if second is None:
        return text
    return (
        f"{text} A second row makes a pass {second - 1:.0%} slower, so more than {second - 1:.0%} of the drafts must "
        "be accepted, and they cost time themselves."
    )
