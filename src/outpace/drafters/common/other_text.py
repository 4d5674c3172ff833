"""A draft model with a vocabulary of its own reads the session's text, encoded anew in its own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from ...core.errors import DrafterError
from ...core.prefix_cache import CacheUser, PrefixCache
from ...core.protocols import Parts, Runtime, Session
from ...core.types import Array, Chunk
from ...text.pairing import Encoder, TextOf, seam
from ...text.tokenizer import Tokenizer
from .text_cache import CATCH_UP_ROWS, PREFILL_ROWS

_LONGEST, _MARGIN = 256, 32  # characters encoded anew each time; of these, behind a seam; chosen by hand
_ROOM = 4  # tokens of the draft that one of the target's may take; chosen by hand


class DraftText:
    """The text of a session, which only grows, in the draft's tokens. What lies before the last seam keeps its ids;
    behind it every new character may change them, so that part is encoded anew."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self._target, self._draft = target, draft
        self._text = TextOf(target)
        self._encoder = Encoder(draft)
        self._read = 0  # tokens of the target read so far
        self._sealed = list(draft.prefix)
        self._tail = ""

    @property
    def unfinished(self) -> bool:
        """Whether the text ends within a character."""
        return self._text.unfinished

    def follow(self, tokens: Sequence[int]) -> list[int]:
        """The draft's ids of the text of ``tokens``, the session's whole text so far."""
        # What only the target has a name for, such as its token for the beginning, tells the draft nothing.
        fresh = (token for token in tokens[self._read :] if not self._only_special_here(token))
        self._tail += "".join([self._text.push(token) for token in fresh])
        self._read = len(tokens)
        if len(self._tail) > _LONGEST:
            # Text without any seam (some scripts need none) is cut all the same: the draft may then be worse.
            place = seam(self._tail, len(self._tail) - _MARGIN)
            if not place and len(self._tail) > 16 * _LONGEST:
                place = len(self._tail) - _MARGIN
            self._sealed += self._encoder.go_on(self._tail[:place])
            self._tail = self._tail[place:]
        return [*self._sealed, *self._encoder.go_on(self._tail)]

    def _only_special_here(self, token: int) -> bool:
        target, draft = self._target, self._draft
        return token in target.special_ids and draft.token_id(target.token(token)) not in draft.special_ids


@dataclass
class _State:
    text: DraftText
    slot: int
    cached: list[int] = field(default_factory=list)  # the draft's ids whose keys and values the slot holds


class OtherDraft:
    """The draft model with a cache of its own, which is brought to the session's text before drafting."""

    def __init__(self, runtime: Runtime, target: Tokenizer, draft: Tokenizer) -> None:
        self.runtime, self.target, self.draft = runtime, target, draft
        self.cache = runtime.new_cache()
        self.cache_user = CacheUser(PrefixCache(self.cache, 0), self._entries)
        self.states: dict[int, _State] = {}

    def _entries(self, tokens: int) -> int:
        return max(1, min(_ROOM * tokens + 64, self.runtime.context))

    def begin(self, session: Session) -> None:
        capacity = self._entries(session.request.limit)
        self.states[session.id] = _State(DraftText(self.target, self.draft), self.cache.open(capacity))

    def end(self, session: Session) -> None:
        state = self.states.pop(session.id, None)
        if state is not None:
            self.cache.close(state.slot)

    @property
    def slots(self) -> int:
        """Number of sessions begun and not ended."""
        return len(self.states)

    def room(self, session: Session) -> int:
        """Rows that the session's slot can still take."""
        slot = self.states[session.id].slot
        return self.cache.capacity(slot) - self.cache.length(slot)

    def catch_up(self, session: Session) -> list[int]:
        """Bring the cache to the session's text but for its last ids, and return these: what the first step reads.
        Empty where drafting makes no sense: within a character, or beyond the draft's context."""
        start, state = perf_counter(), self.states[session.id]
        ids = state.text.follow(session.tokens)
        if not ids or len(ids) > self._entries(len(session.tokens)) or state.text.unfinished:
            return []
        pairs = enumerate(zip(ids[:-1], state.cached, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(ids) - 1, len(state.cached)))
        if same < len(state.cached):
            self.cache.keep(state.slot, same, [])
            del state.cached[same:]
        while len(ids) - len(state.cached) > CATCH_UP_ROWS:
            left = len(ids) - len(state.cached) - 1
            part = ids[len(state.cached) :][: min(left, PREFILL_ROWS)]
            self.runtime.forward([Chunk(state.slot, part, logits_from=len(part))], self.cache)
            state.cached += part
        session.report.seconds_draft_prefill += perf_counter() - start
        return ids[len(state.cached) :]

    def step(self, sessions: Sequence[Session], rows: Sequence[Sequence[int]]) -> list[Array]:
        """One packed pass over each session's next ids; the logits ``[draft vocab]`` after the last of each."""
        states = [self.states[session.id] for session in sessions]
        chunks = [
            Chunk(state.slot, list(ids), logits_from=len(ids) - 1) for state, ids in zip(states, rows, strict=True)
        ]
        logits = self.runtime.forward(chunks, self.cache).logits
        for session, state, ids in zip(sessions, states, rows, strict=True):
            state.cached += ids
            session.report.draft_passes += 1
        return [row[-1] for row in logits]


def draft_of_other_text(name: str, parts: Parts) -> OtherDraft:
    """The draft of another vocabulary that ``parts`` hold. Raises DrafterError when there is none."""
    if parts.draft is None or parts.draft_model is None or parts.target_model is None:
        raise DrafterError(f"the drafter {name!r} needs a target and a draft model with their tokenizers: name a "
                           "draft with --draft")  # fmt: skip
    return OtherDraft(parts.draft, parts.target_model.tokenizer, parts.draft_model.tokenizer)
