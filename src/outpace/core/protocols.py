"""The shapes of the parts. Anything that fits may take their place: no base classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .cache import KVCache
from .recording import DraftRecord
from .report import Report
from .types import (
    Array,
    Capabilities,
    Chunk,
    Distribution,
    Forward,
    Key,
    Proposal,
    RoundSeconds,
    SamplingParams,
    Verdict,
)


class RandomSource(Protocol):
    """Randomness that is asked for by name, so that asking again gives the same answer."""

    def bernoulli(self, key: Key, prob: float) -> bool:
        """True with probability ``prob``."""

    def categorical(self, key: Key, distribution: Distribution) -> int:
        """A token drawn from ``distribution``."""

    def gumbel_argmax(self, position: int, distribution: Distribution) -> int:
        """The token with the greatest ``log(prob) + noise``, where the noise is standard Gumbel and a
        function of the absolute position and the token id alone. It is distributed as ``distribution``."""

    def gumbel(self, position: int, ids: Array) -> Array:
        """That noise for the token ``ids`` ``[n]`` (ascending int64): ``[n]`` float64."""


class LogitsPipeline(Protocol):
    """The one place where temperature, truncation, penalties and grammar act, on target and draft alike."""

    def distribution(self, logits: Array, prefix: Sequence[int]) -> Distribution:
        """The distribution of the token after ``prefix``, from its row of logits ``[vocab_size]``."""


class Runtime(Protocol):
    """A model that runs packed rows of many sessions."""

    vocab_size: int
    context: int

    def capabilities(self) -> Capabilities: ...

    def new_cache(self) -> KVCache: ...

    def forward(self, chunks: Sequence[Chunk], cache: KVCache, want: Sequence[str] = ()) -> Forward:
        """One pass over all rows of all chunks. Writes their keys and values at each slot's length,
        advances it, and returns logits for the rows wanted and the features named in ``want``."""


@dataclass
class Session:
    """One request in flight. ``tokens`` holds the prompt and what was generated; the last is *pending*:
    it is not in the cache yet. Once the prompt is read, ``cache.length(slot) == len(tokens) - 1`` between rounds.

    ``drafters``: all that may draft for it, by name; ``drafter_name`` is the one at work. ``gamma``: nodes a round,
    at most; where ``adaptive``, a controller decides how many. ``finish``: "stop", "length" or "error".
    ``pipeline`` is the drafters'; ``target_pipeline`` is the loop's own, so that no state of a constraint that a draft
    has explored decides how the target goes on. None: there is no such state, and one serves both.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    pipeline: LogitsPipeline
    rng: RandomSource
    limit: int  # the greatest len(tokens) this session may reach
    slot: int = -1
    cache: KVCache | None = None  # the target's, where ``slot`` is
    gamma: int = 0
    report: Report = field(default_factory=Report)
    finish: str | None = None
    error: Exception | None = None
    rule: Rule = field(default=None)  # type: ignore[assignment]  # the loop's own, where none is named
    drafters: Mapping[str, Drafter] = field(default_factory=dict)  # the loop's own, where none is named
    drafter_name: str = ""
    adaptive: bool = False
    stop_below: float = 0.0  # stop drafting once the path so far stands with less probability than this
    prediction: Sequence[int] = ()  # token ids that the caller expects as the answer
    known: dict[str, int] = field(default_factory=dict)  # tokens of the prompt that a drafter had read at the start
    tenant: str = ""  # whose request this is: nothing learnt from one tenant's text serves another
    origins: list[str] = field(default_factory=list)
    """Of each generated token: the source of the draft that stood, or "correction", "bonus" or "plain"."""
    target_pipeline: LogitsPipeline | None = None
    _record: DraftRecord = field(default_factory=DraftRecord)

    def begin_draft(self, budget: int | None = None, vocab_size: int | None = None, trees: bool = True) -> None:
        """Start the record of a round's draft: see :class:`DraftRecord`."""
        self._record = DraftRecord(len(self.tokens), budget, vocab_size, trees, merge=not self.rule.NEEDS_DISTRIBUTIONS)

    @property
    def record(self) -> DraftRecord:
        """What is drafted behind the text as it is."""
        if self._record.base != len(self.tokens):  # a drafter that is asked without a loop
            self.begin_draft()
        return self._record

    def draw(self, distribution: Distribution, parent: int) -> int:
        """Draw a draft token from ``distribution`` behind node ``parent`` (-1: the pending token), and record it.

        Returns its node number; the token is ``record.tokens[node]``. Every draft token that is drawn comes from here.
        Raises DrafterError, before anything is drawn, where the token could not be submitted.
        """
        record = self.record
        record.check_room(distribution, parent)
        token = self.rule.draw(distribution, self.rng, len(self.tokens), len(record), len(record.path(parent)))
        return record.add(token, parent, distribution if self.rule.NEEDS_DISTRIBUTIONS else None)

    @property
    def pending(self) -> int:
        return self.tokens[-1]

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def drafter(self) -> Drafter:
        """The drafter at work."""
        return self.drafters[self.drafter_name]


class Rule(Protocol):
    """An acceptance rule: one module of ``verify/``. Pure functions."""

    @property
    def LOSSLESS(self) -> bool: ...

    @property
    def TREES(self) -> bool: ...

    @property
    def NEEDS_DISTRIBUTIONS(
        self,
    ) -> bool: ...  # whether drawn tokens must come with the distribution they were drawn from

    def draw(self, distribution: Distribution, rng: RandomSource, base: int, node: int, depth: int) -> int:
        """Draw a draft token from ``distribution`` with the random draws this rule expects. ``base`` is the number of
        tokens before the round, ``depth`` 0 for a child of the pending token."""

    def verify(
        self, proposal: Proposal, distributions: Sequence[Distribution], rng: RandomSource, base: int
    ) -> Verdict:
        """Decide how much of the proposal stands. ``distributions[0]`` is the target's distribution after the pending
        token, ``distributions[i + 1]`` after node ``i``."""


class Drafter(Protocol):
    """Guesses what the target will say. See docs/how-to/add-a-drafter.md.

    A drafter with ``needs`` also has ``read(session, first, seen)``: features of the prompt's rows
    ``session.tokens[first:first + n]``, after each pass that read some (never the pending token's).
    One that can tell beforehand how far it will be right has ``forecast(session, most)``: the chance that each node
    it would propose now, ``most`` at most, stands. That must follow from the text alone, and be cheap.
    One that keeps keys and values of its own has ``cache_users()``, a list of
    :class:`outpace.core.prefix_cache.CacheUser`: they count as the engine's ``kv_bytes``. Where these run out, a
    session may end and begin again with a longer text.
    """

    needs: Sequence[str]  # features of the target that read() and observe() want

    def begin(self, session: Session) -> int | None:
        """A session was admitted; its prompt is not read yet. Must be cheap: drafters catch up when they propose.
        Returns how many tokens of the prompt it has to read no more, where there are any."""

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        """One proposal a session, of at most its budget of nodes. Every token drawn is submitted."""

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        """What became of the proposals; ``session.tokens`` already holds the committed tokens. ``seen``
        has each session's own rows: the pending token's first, then every node's, refused ones too.
        Where another drafter was at work, the accepted tokens look like a chain proposed by this one."""

    def end(self, session: Session) -> None: ...


class Controller(Protocol):
    """Decides how much to draft, from what earlier rounds have shown. It never looks at the random draws or at
    what this round draws, so that the distribution of the output stays the target's."""

    def budgets(self, sessions: Sequence[Session], most: Sequence[int]) -> list[int]:
        """Nodes that each session drafts this round, ``0 .. most[i]``. May set ``drafter_name`` and
        ``stop_below`` of adaptive sessions; sessions that are not adaptive draft ``most[i]`` all the same."""

    def observe(
        self,
        sessions: Sequence[Session],
        proposals: Sequence[Proposal],
        verdicts: Sequence[Verdict],
        seconds: RoundSeconds,
    ) -> None:
        """What the round brought and cost."""


@dataclass(frozen=True)
class Parts:
    """What a drafter may be built from. ``target`` and ``draft`` are runtimes, ``target_model`` and
    ``draft_model`` the loaded models (``models.loading.LoadedModel``) that they belong to."""

    vocab_size: int
    target: Runtime | None = None
    draft: Runtime | None = None  # for drafters that say NEEDS_DRAFT
    target_model: Any = None
    draft_model: Any = None
    prefix_bytes: int = 0  # memory for a draft's keys and values of ended requests
