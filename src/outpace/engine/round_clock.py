"""The seconds of a round's stages, and whose reports they are booked into."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from ..core.protocols import Session
from ..core.types import Chunk, RoundSeconds


class RoundClock:
    """Started with the round; :meth:`lap` ends its stages: drafting, the target pass, verification.

    ``decoding``: the sessions that draft and are verified in this round."""

    def __init__(self, decoding: Sequence[Session]) -> None:
        self._times = [perf_counter()]
        self._decoding = decoding
        self._draft_prefill = self._prefill_so_far()

    def lap(self) -> None:
        """A stage ends."""
        self._times.append(perf_counter())

    def book(self, prompts: Sequence[tuple[Session, Chunk]], draft_chunks: Sequence[Chunk]) -> RoundSeconds:
        """End the round: share its seconds out among the sessions. A pass is shared out by rows, the rest evenly.
        ``prompts``: the pieces of prompts that were in the pass; ``draft_chunks``: the chunks of the decoding
        sessions."""
        self.lap()
        begin, drafted, ran, verified, end = self._times
        draft = (
            drafted - begin - (self._prefill_so_far() - self._draft_prefill)
        )  # drafters add theirs to seconds_draft_prefill
        seconds = RoundSeconds(draft, ran - drafted, verified - ran, end - verified, sum(_rows(c) for _, c in prompts))
        seconds_per_row = seconds.target / (seconds.prompt_rows + sum(map(_rows, draft_chunks)))
        for session, chunk in prompts:
            session.report.seconds_prefill += seconds_per_row * _rows(chunk)
        for session, chunk in zip(self._decoding, draft_chunks, strict=True):
            session.report.seconds_draft += seconds.draft / len(self._decoding)
            session.report.seconds_target += seconds_per_row * _rows(chunk)
            session.report.seconds_sample += seconds.sample / len(self._decoding)
            session.report.seconds_other += seconds.other / len(self._decoding)
        return seconds

    def _prefill_so_far(self) -> float:
        return sum(session.report.seconds_draft_prefill for session in self._decoding)


def _rows(chunk: Chunk) -> int:
    return len(chunk.tokens)
