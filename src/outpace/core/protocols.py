"""The shapes of the parts. Anything that fits may take their place: no base classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from .cache import KVCache
from .report import Report
from .types import Capabilities, Chunk, Forward, Key, Law, Proposal, SamplingParams, Verdict


class Coins(Protocol):
    """Randomness that is asked for by name, so that asking again gives the same answer."""

    def bernoulli(self, key: Key, prob: float) -> bool:
        """True with probability ``prob``."""

    def categorical(self, key: Key, law: Law) -> int:
        """A token drawn from ``law``."""

    def gumbel_argmax(self, position: int, law: Law) -> int:
        """The token with the greatest ``log(prob) + noise``, where the noise is standard Gumbel and a
        function of the absolute position and the token id alone. It is distributed as ``law``."""


class LogitsPipeline(Protocol):
    """The one place where temperature, truncation, penalties and grammar act, on target and draft alike."""

    def law(self, logits: Tensor, prefix: Sequence[int]) -> Law:
        """The law of the token after ``prefix``, from its row of logits ``[vocab_size]``."""


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
    it is not in the cache yet. Between rounds ``cache.length(slot) == len(tokens) - 1``."""

    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    pipeline: LogitsPipeline
    coins: Coins
    limit: int  # the greatest len(tokens) this session may reach
    slot: int = -1
    gamma: int = 0
    report: Report = field(default_factory=Report)
    finish: str | None = None

    @property
    def pending(self) -> int:
        return self.tokens[-1]

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt_length :]


class Rule(Protocol):
    """An acceptance rule: one module of ``verify/``. Pure functions."""

    @property
    def LOSSLESS(self) -> bool: ...

    @property
    def TREES(self) -> bool: ...

    @property
    def NEEDS_LAWS(self) -> bool: ...  # whether drawn tokens must come with the law they were drawn from

    def draw(self, law: Law, coins: Coins, base: int, node: int, depth: int) -> int:
        """Draw a draft token from ``law`` with the coins this rule expects. ``base`` is the number of
        tokens before the round, ``depth`` 0 for a child of the pending token."""

    def verify(self, proposal: Proposal, laws: Sequence[Law], coins: Coins, base: int) -> Verdict:
        """Decide how much of the proposal stands. ``laws[0]`` is the target's law after the pending
        token, ``laws[i + 1]`` after node ``i``."""


class Drafter(Protocol):
    """Guesses what the target will say. See docs/how-to/add-a-drafter.md."""

    needs: Sequence[str]  # features of the target that observe() wants

    def begin(self, session: Session) -> None: ...

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        """One proposal a session, of at most its budget of nodes. Every token drawn is submitted."""

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        """What became of the proposals; ``session.tokens`` already holds the committed tokens. ``seen``
        has each session's own rows: the pending token's first, then every node's, refused ones too."""

    def end(self, session: Session) -> None: ...


@dataclass(frozen=True)
class Parts:
    """What a drafter may be built from."""

    rule: Rule
    vocab_size: int
    draft: Runtime | None = None  # the draft model, for drafters that say NEEDS_DRAFT
