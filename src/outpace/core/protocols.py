"""Protocols of the exchangeable parts. Typing is structural: anything that fits takes their place, no base classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

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


@dataclass(frozen=True)
class Request:
    """What was asked. ``limit``: the greatest ``len(tokens)`` that the session may reach, its prompt included.
    ``prediction``: token ids that the caller expects as the answer. ``tenant``: whose request this is; nothing that is
    learnt from one tenant's text serves another."""

    prompt_length: int
    limit: int
    params: SamplingParams = field(default_factory=SamplingParams)
    prediction: Sequence[int] = ()
    tenant: str = ""


@dataclass
class Drafting:
    """How one session drafts.

    ``drafters``: all that may draft for it, by name (the loop's own, where none is named); ``drafter_name`` is the one
    at work. ``gamma``: nodes a round, at most; where ``adaptive``, a controller decides how many. ``stop_below``: a
    drafter stops once the path so far is accepted with less probability than this. ``cached``: tokens of the prompt
    that each drafter had cached when the session began. ``record``: of the round's draft; ask :attr:`Session.record`.
    """

    gamma: int = 0
    adaptive: bool = False
    drafters: Mapping[str, Drafter] = field(default_factory=dict)
    drafter_name: str = ""
    stop_below: float = 0.0
    cached: dict[str, int] = field(default_factory=dict)
    record: DraftRecord = field(default_factory=DraftRecord)

    @property
    def drafter(self) -> Drafter:
        """The drafter at work."""
        return self.drafters[self.drafter_name]


@dataclass
class Session:
    """One request in flight: ``request`` is what was asked, ``draft`` how it drafts, all else its state at run time.

    ``tokens``: the prompt and what was generated; the last one is *pending*: it is not in the cache yet. After the
    prefill, ``cache.length(slot) == len(tokens) - 1`` between rounds. ``cache``: the target's, where ``slot`` is.
    ``pipeline`` is the drafters'; ``target_pipeline`` is the target's. They are two because a grammar keeps state, and
    what a draft has explored must not decide how the target goes on; None: one without such state serves both.
    ``finish``: "stop", "length" or "error". ``origins``: of each generated token, the source of the draft that was
    accepted, or "correction", "bonus" or "plain".
    """

    id: int
    request: Request
    tokens: list[int]
    pipeline: LogitsPipeline
    rng: RandomSource
    draft: Drafting = field(default_factory=Drafting)
    rule: Rule = field(default=None)  # type: ignore[assignment]  # the loop's own, where none is named
    target_pipeline: LogitsPipeline | None = None
    slot: int = -1
    cache: KVCache | None = None
    report: Report = field(default_factory=Report)
    finish: str | None = None
    error: Exception | None = None
    origins: list[str] = field(default_factory=list)

    def begin_draft(self, budget: int | None = None, vocab_size: int | None = None, trees: bool = True) -> None:
        """Start the record of a round's draft: see :class:`DraftRecord`. ``trees``: whether the target takes trees;
        they are drafted where the rule takes them as well."""
        merge, trees = not self.rule.NEEDS_DISTRIBUTIONS, trees and self.rule.TREES
        self.draft.record = DraftRecord(len(self.tokens), budget, vocab_size, trees, merge)

    @property
    def record(self) -> DraftRecord:
        """What is drafted behind the text as it is."""
        if self.draft.record.base != len(self.tokens):  # a drafter that is asked without a loop
            self.begin_draft()
        return self.draft.record

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
        """The last token, which is not in the cache yet."""
        return self.tokens[-1]

    @property
    def generated(self) -> list[int]:
        """The tokens behind the prompt."""
        return self.tokens[self.request.prompt_length :]


class Rule(Protocol):
    """An acceptance rule: a module of ``verify/``, or what its ``create`` gives. Pure functions."""

    @property
    def LOSSLESS(self) -> bool: ...

    @property
    def TREES(self) -> bool: ...

    @property
    def NEEDS_DISTRIBUTIONS(self) -> bool: ...  # whether a drawn token is proposed with the distribution of its draw

    @property
    def SHARED_NOISE(self) -> bool: ...  # whether the target's token is chosen with noise of its position,

    # so that a drafter which chooses tokens gains by using that noise, too

    def draw(self, distribution: Distribution, rng: RandomSource, base: int, node: int, depth: int) -> int:
        """Draw a draft token from ``distribution`` with the random draws this rule expects. ``base`` is the number of
        tokens before the round, ``depth`` 0 for a child of the pending token."""

    def verify(
        self, proposal: Proposal, distributions: Sequence[Distribution], rng: RandomSource, base: int
    ) -> Verdict:
        """Decide how much of the proposal is accepted. ``distributions[0]`` is the target's distribution after the
        pending token, ``distributions[i + 1]`` after node ``i``."""


class Drafter(Protocol):
    """Proposes tokens that the target may accept. See docs/how-to/add-a-drafter.md.

    A drafter may have more: :class:`ReadsFeatures`, :class:`Forecasts`,
    :class:`outpace.core.prefix_cache.OwnsCaches`.
    """

    needs: Sequence[str]  # features of the target that read() and observe() want

    def begin(self, session: Session) -> int | None:
        """A session was admitted, before its prefill. Must be cheap: drafters catch up when they propose.
        Returns how many tokens of the prompt it has cached already, where there are any."""

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        """One proposal a session, of at most its budget of nodes. Every token drawn is submitted."""

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        """What became of the proposals; ``session.tokens`` already holds the committed tokens. ``seen``
        has each session's own rows: the pending token's first, then every node's, rejected ones too.
        Where another drafter was at work, the accepted tokens look like a chain proposed by this one."""

    def end(self, session: Session) -> None: ...


class ReadsFeatures(Protocol):
    """A drafter that sees the features that it ``needs`` during the prefill too. Every drafter with ``needs`` does."""

    def read(self, session: Session, first: int, seen: Forward) -> None:
        """Features of the rows ``session.tokens[first:first + n]``, after each pass of the prefill (never the pending
        token's)."""


class Forecasts(Protocol):
    """A drafter that knows beforehand how likely its draft is to be accepted."""

    def forecast(self, session: Session, most: int) -> list[float]:
        """P(accepted) of each node that it would propose now, ``most`` at most. It must follow from the text alone, and
        be cheap."""


def forecast_of(drafter: Drafter) -> Callable[[Session, int], list[float]] | None:
    """The drafter's forecast, where it :class:`Forecasts`."""
    return getattr(drafter, "forecast", None)


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
    draft: Runtime | None = None  # for drafters that require a draft model
    target_model: Any = None
    draft_model: Any = None
    prefix_bytes: int = 0  # memory for a draft's keys and values of ended requests


@dataclass(frozen=True)
class Requirements:
    """What a drafter cannot be built without. ``draft_model``: a draft model, as ``Parts.draft``. ``same_vocabulary``:
    the tokens of that draft model must be the target's. ``torch``: it computes with torch."""

    draft_model: bool = False
    same_vocabulary: bool = True
    torch: bool = False


class DrafterModule(Protocol):
    """A module of ``drafters/``, or one that a package registers. It can be imported without torch."""

    @property
    def Config(self) -> type[Any]: ...  # a frozen dataclass with a field gamma: int; its fields are the options

    def requires(self, config: Any, /) -> Requirements:
        """What the drafter needs with these options."""

    def create(self, config: Any, parts: Parts, /) -> Drafter:
        """The drafter. Raises ParameterError, ModelError, DrafterError."""


@runtime_checkable
class Composite(Protocol):
    """The Config of a drafter that is made of others. These take the options that are given under their own names."""

    @property
    def member_names(self) -> Sequence[str]: ...

    @property
    def options(self) -> Mapping[str, Mapping[str, object]]: ...  # by member


class ConfigurableRule(Protocol):
    """A module of ``verify/`` whose rule has options."""

    @property
    def Config(self) -> type[Any]: ...  # a frozen dataclass

    def create(self, config: Any, /) -> Rule: ...
