"""Draft from text that is there already: what followed the same words before
(prompt lookup decoding, Saxena 2023; arXiv 2304.04487 for copying from references).

The sources are the text so far (the longest suffix that occurred before, continued as after its latest occurrence),
a passage that the output is copying with edits, the answer that the caller expects (``Request.prediction``), files
of the user's, and finished requests of the same tenant. Each learns how often it is right after how many agreeing
tokens, from the prompt, from the output, from rounds without drafting too; and so decides how far to draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

from ...core.errors import ParameterError
from ...core.protocols import Drafter, Parts, Requirements, Session
from ...core.types import Forward, Proposal, Verdict
from ..common.extending import Start
from .copying import EditedCopy
from .pool import Pool, read_corpus
from .suffix import Cursor, SuffixText
from .trust import Trust

_COPY = 8  # agreeing tokens from which on a repetition is followed as a copy, through its edits; chosen by hand
_GIVEN_UP = 32  # tokens after which a lost copy is not looked for any more; chosen by hand


@dataclass(frozen=True)
class Config:
    gamma: int = 15  # tokens drafted a round, at most; with the pending one 16 rows
    min_match: int = 2  # tokens that must agree before anything is drafted
    stop_below: float = 0.3  # P(accepted) of the drafted path below which no more is drafted
    corpus: str = ""  # a directory, or a file, of text to look up in
    corpus_tokens: int = 200_000  # tokens of it that are read, at most
    pool: int = 0  # tokens of finished requests that are kept and looked up in, for their own tenant only

    def __post_init__(self) -> None:
        if self.min_match < 1:
            raise ParameterError(f"lookup's min_match must be at least 1, not {self.min_match}")
        if not 0 <= self.stop_below <= 1:
            raise ParameterError(f"lookup's stop_below must lie in [0, 1], not {self.stop_below}")
        if self.corpus_tokens < 1 or self.pool < 0:
            raise ParameterError("lookup's corpus_tokens must be at least 1, and its pool at least 0")


class _Source(Protocol):
    """Where drafts are taken from. ``agreed``: how many tokens speak for its next one."""

    @property
    def agreed(self) -> int: ...

    def continuation(self, count: int) -> list[int]: ...

    def push(self, token: int) -> None: ...


class _Repeats:
    """The text so far."""

    def __init__(self, least: int) -> None:
        self.text, self._least = SuffixText(), least
        self.push = self.text.append

    @property
    def agreed(self) -> int:
        return self.text.matched

    def continuation(self, count: int) -> list[int]:
        return _repeating(self.text, self.text.place, count) if self.text.matched >= self._least else []


class _Elsewhere:
    """Another text. Its documents are set apart by negative numbers."""

    def __init__(self, cursor: Cursor, least: int) -> None:
        self._cursor, self._least = cursor, least
        self.push = cursor.push

    @property
    def agreed(self) -> int:
        return self._cursor.matched

    def continuation(self, count: int) -> list[int]:
        if self._cursor.matched < self._least:
            return []
        place = self._cursor.place
        tokens = self._cursor.text.tokens[place : place + count]
        return tokens[: next((i for i, token in enumerate(tokens) if token < 0), count)]


class _Copies:
    """A passage of the text so far that is being copied: begun by a long repetition, followed through its edits."""

    def __init__(self, text: SuffixText) -> None:
        self._text = text
        self._copy: EditedCopy | None = None

    @property
    def agreed(self) -> int:
        return self._copy.run if self._copy is not None else 0

    def continuation(self, count: int) -> list[int]:
        return self._copy.continuation(count) if self._copy is not None else []

    def push(self, token: int) -> None:  # before the text itself takes the token: it is not to be found there
        matched, copy = self._text.matched, self._copy
        if copy is None or copy.lost > _GIVEN_UP or (copy.place != self._text.place and matched > copy.credit):
            copy = EditedCopy(self._text.tokens, self._text.place, matched) if matched >= _COPY else None
            self._copy = copy
        if copy is not None:
            copy.push(token)


class _Prediction:
    """The answer that the caller expects: like a copy, but from its first token on."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._copy = EditedCopy(list(tokens))
        self.continuation = self._copy.continuation
        self.push = self._copy.push

    @property
    def agreed(self) -> int:
        return self._copy.run


def _repeating(text: SuffixText, place: int, count: int) -> list[int]:
    """``count`` tokens from ``place`` on; past the end it repeats, as a text in a loop would."""
    tokens = text.tokens[place : place + count]
    period = len(text) - place
    while len(tokens) < count:
        tokens.append(tokens[len(tokens) - period])
    return tokens


class _Reader:
    """All sources of one session."""

    def __init__(self, config: Config, prediction: Sequence[int], others: Sequence[SuffixText]) -> None:
        self._least = config.min_match
        self.repeats = _Repeats(config.min_match)
        # Copies first: they look at the text before it takes the token.
        self._sources: list[tuple[_Source, Trust, str]] = [(_Copies(self.repeats.text), Trust(), "lookup")]
        self._sources.append((self.repeats, Trust(), "lookup"))
        for text in others:
            self._sources.append((_Elsewhere(Cursor(text), config.min_match), Trust(), "lookup"))
        self._prompt_sources = list(self._sources)
        if prediction:
            # The caller vouches for it: it begins with the trust of a long agreement.
            self._sources.append((_Prediction(prediction), Trust(head_start=32), "prediction"))

    @property
    def length(self) -> int:
        """Tokens read."""
        return len(self.repeats.text)

    def read(self, tokens: Sequence[int], prompt: bool) -> None:
        """Take the next tokens of the text, and learn which source would have drafted them."""
        sources = self._prompt_sources if prompt else self._sources
        for token in tokens:
            for source, trust, _ in sources:
                drafted = source.continuation(1)
                if drafted:
                    trust.learn(source.agreed, drafted[0] == token)
                source.push(token)

    def draft(self, count: int, stop_below: float) -> tuple[list[int], list[float], str]:
        """What is drafted next, from the source that promises most accepted tokens; P(accepted) of each of them;
        and that source's name."""
        best: tuple[list[int], list[float], str] = ([], [], "")
        for source, trust, origin in self._sources:
            found = source.continuation(count)
            chances = trust.chances(source.agreed, len(found), stop_below)
            if sum(chances) > sum(best[1]):
                best = found[: len(chances)], chances, origin
        return best

    def draft_after(self, path: Sequence[int], count: int, stop_below: float) -> list[int]:
        """What is drafted after ``path``, tokens that may follow the text but are not part of it."""
        cursor = self.repeats.text.cursor()
        for token in path:
            cursor.push(token)
        if cursor.matched < self._least:
            return []
        chances = self._sources[1][1].chances(cursor.matched, count, stop_below)
        return cursor.text.tokens[cursor.place : cursor.place + len(chances)]


def _chain(tokens: Sequence[int], name: str) -> Proposal:
    return replace(Proposal.chain(tokens), origins=[name] * len(tokens))


class Lookup:
    """A reader for each session over its prompt and output."""

    needs: Sequence[str] = ()

    def __init__(self, config: Config, corpus: SuffixText | None = None) -> None:
        self._config, self._corpus = config, corpus
        self._pool = Pool(config.pool) if config.pool else None
        self._readers: dict[int, _Reader] = {}

    def begin(self, session: Session) -> None:
        others = [self._corpus] if self._corpus is not None else []
        if self._pool is not None:
            others += self._pool.texts(session.request.tenant)
        self._readers[session.id] = _Reader(self._config, session.request.prediction, others)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        return [self._propose(session, budget) for session, budget in zip(sessions, budgets, strict=True)]

    def _propose(self, session: Session, budget: int) -> Proposal:
        reader = self._reader(session)
        tokens, _, name = reader.draft(budget, max(self._config.stop_below, session.draft.stop_below))
        return _chain(tokens, name)

    def forecast(self, session: Session, most: int) -> list[float]:
        return self._reader(session).draft(most, self._config.stop_below)[1]

    def _reader(self, session: Session) -> _Reader:
        """The session's reader, which has read all its tokens."""
        reader = self._readers[session.id]
        if reader.length < session.request.prompt_length:
            start = perf_counter()
            reader.read(session.tokens[reader.length : session.request.prompt_length], prompt=True)
            session.report.seconds_draft_prefill += perf_counter() - start
        reader.read(session.tokens[reader.length :], prompt=False)
        return reader

    def extend(self, sessions: Sequence[Session], starts: Sequence[Start], budgets: Sequence[int]) -> list[Proposal]:
        answers = []
        for session, start, budget in zip(sessions, starts, budgets, strict=True):
            if not start.path:
                answers.append(self._propose(session, budget))
                continue
            stop_below = max(self._config.stop_below, session.draft.stop_below)
            answers.append(_chain(self._reader(session).draft_after(start.path, budget, stop_below), "lookup"))
        return answers

    def draft_after(self, session: Session, path: Sequence[int], count: int) -> list[int]:
        """What a draft model may draft next, after ``path``. A wrong token costs it a row of a pass, and the target
        nothing: what the target's rows cost in this round does not count."""
        reader, stop_below = self._reader(session), self._config.stop_below
        return reader.draft_after(path, count, stop_below) if path else reader.draft(count, stop_below)[0]

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None: ...

    def end(self, session: Session) -> None:
        if self._readers.pop(session.id, None) is not None and self._pool is not None:
            self._pool.add(session.request.tenant, session.tokens)


def requires(config: Config) -> Requirements:
    return Requirements()


def create(config: Config, parts: Parts) -> Drafter:
    """Raises ParameterError when there is no text at ``config.corpus``."""
    return Lookup(config, read_corpus(config.corpus, config.corpus_tokens, parts) if config.corpus else None)
