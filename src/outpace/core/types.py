"""Value types shared by engine, drafters, rules and runtimes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt

from .errors import DrafterError, ParameterError

Array = npt.NDArray[Any]


class Distribution:
    """A distribution over token ids, stored on its support.

    Made from ``probs`` ``[s]``, floating point and summing to 1, or from ``scores`` ``[s]``, their logarithms
    up to a constant; either is worked out from the other when first asked for. ``ids``: ``[s]`` int64,
    ascending, or None when the support is ``0 .. s-1``. Greedy decoding is the distribution whose support is one token.
    ``to_probs``: works out the probabilities from the scores; None: :func:`softmax`. ``log_total``: works out
    log(sum(exp(scores))) when first needed, so that one probability does not cost them all.
    """

    def __init__(
        self,
        probs: Array | None = None,
        ids: Array | None = None,
        *,
        scores: Array | None = None,
        to_probs: Callable[[Array], Array] | None = None,
        log_total: Callable[[Array], float] | None = None,
    ) -> None:
        if (probs is None) == (scores is None):
            raise TypeError("a distribution is made from probs or from scores")
        self._probs, self._scores, self.ids = probs, scores, ids
        self._to_probs, self._log_total = to_probs or softmax, log_total
        self._total: float | None = None  # cached result of log_total

    @property
    def probs(self) -> Array:
        """``[s]`` probabilities, summing to 1."""
        if self._probs is None:
            self._probs = self._to_probs(self.scores)
        return self._probs

    @property
    def scores(self) -> Array:
        """``[s]`` logarithms of the probabilities, up to a constant."""
        if self._scores is None:
            with np.errstate(divide="ignore"):  # log 0 is -inf
                self._scores = np.log(self.probs)
        return self._scores

    @property
    def only_scores(self) -> bool:
        """Whether no probabilities are known yet."""
        return self._probs is None

    @property
    def size(self) -> int:
        """Number of tokens in the support."""
        return self._values.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the probabilities and the scores."""
        return self._values.dtype

    @property
    def _values(self) -> Array:
        values = self._scores if self._probs is None else self._probs
        assert values is not None
        return values

    @staticmethod
    def point(token: int, dtype: npt.DTypeLike = np.float32) -> Distribution:
        """All mass on one token: the distribution of a token that was chosen, not drawn."""
        return Distribution(np.ones(1, dtype=dtype), np.array([token]))

    def prob(self, token: int) -> float:
        """Probability of one token."""
        at = token
        if self.ids is not None:
            at = int(np.searchsorted(self.ids, token))
            if at == self.ids.size or int(self.ids[at]) != token:
                return 0.0
        if not 0 <= at < self.size:
            return 0.0
        if self._probs is None and self._log_total is not None:
            if self._total is None:
                self._total = self._log_total(self.scores)
            return math.exp(float(self.scores[at]) - self._total)
        return float(self.probs[at])

    def without(self, tokens: Collection[int]) -> Distribution | None:
        """The distribution given that the token is none of ``tokens``: siblings are drawn without replacement. None
        when nothing is left."""
        if all(self.prob(token) == 0 for token in tokens):
            return self
        ids = np.arange(self.size) if self.ids is None else self.ids
        kept = ~np.isin(ids, list(tokens)) & (self.probs > 0)
        return Distribution(self.probs[kept] / self.probs[kept].sum(), ids[kept]) if bool(kept.any()) else None

    def token(self, index: int) -> int:
        """The token id at a place of the support."""
        return index if self.ids is None else int(self.ids[index])

    def on(self, other: Distribution) -> Array:
        """This distribution's probabilities at the support of ``other``: ``[len(other.probs)]``, in this
        distribution's dtype."""
        size = other.size
        if self.ids is None:
            if other.ids is None:
                return self.probs[:size] if size <= self.size else np.pad(self.probs, (0, size - self.size))
            inside = other.ids < self.size
            return np.where(inside, self.probs[np.minimum(other.ids, self.size - 1)], self.dtype.type(0))
        if self.ids is other.ids:
            return self.probs
        if other.ids is None:
            inside = self.ids < size
            full = np.zeros(size, dtype=self.dtype)
            full[self.ids[inside]] = self.probs[inside]
            return full
        at = np.minimum(np.searchsorted(self.ids, other.ids), self.size - 1)
        return np.where(self.ids[at] == other.ids, self.probs[at], self.dtype.type(0))

    def dense(self, vocab_size: int) -> Array:
        """``[vocab_size]`` probabilities in float64."""
        return self.on(Distribution(np.empty(vocab_size))).astype(np.float64)


def softmax(scores: Array, out: Array | None = None) -> Array:
    """exp(scores) / sum(exp(scores)) of one row ``[s]``, in its own dtype. ``out``: where to write it."""
    probs = np.subtract(scores, scores.max(), out=out)
    np.exp(probs, out=probs)
    probs /= probs.sum()
    return probs


def log_total(scores: Array) -> float:
    """log(sum(exp(scores))) of one row ``[s]``, summed in float64."""
    greatest = float(scores.max())
    return greatest + math.log(np.exp(scores - greatest).sum(dtype=np.float64))


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens as a tree below the pending token.

    ``parents[i]`` is a node number below ``i``, or -1 for the pending token; a chain has parents
    -1, 0, 1, ... ``draft_distributions[i]`` is the distribution that token ``i`` was drawn from, given its path and its
    earlier siblings; None stands for a token that was chosen, not drawn (a point mass). ``origins[i]``
    names the source of token ``i``; None stands for the drafter itself.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    draft_distributions: Sequence[Distribution | None] | None = None
    origins: Sequence[str] | None = None

    @staticmethod
    def chain(tokens: Sequence[int], draft_distributions: Sequence[Distribution | None] | None = None) -> Proposal:
        """A proposal without branches."""
        return Proposal(tokens, range(-1, len(tokens) - 1), draft_distributions)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether no node has a sibling."""
        return all(parent == i - 1 for i, parent in enumerate(self.parents))

    def children(self, node: int) -> list[int]:
        """Nodes below ``node`` (-1: the pending token), in the order they were proposed."""
        return [i for i, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """Nodes from the root down to ``node``, which is last; empty for -1."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def distribution(self, node: int) -> Distribution:
        """The distribution that the node's token was drawn from."""
        distribution = self.draft_distributions[node] if self.draft_distributions is not None else None
        return distribution if distribution is not None else Distribution.point(self.tokens[node])

    def check(self, vocab_size: int, budget: int, trees: bool = True) -> None:
        """Raise DrafterError unless this is a well-formed proposal of at most ``budget`` nodes."""
        if len(self.tokens) != len(self.parents):
            raise DrafterError(f"{len(self.tokens)} tokens but {len(self.parents)} parents were proposed")
        if len(self.tokens) > budget:
            raise DrafterError(f"{len(self.tokens)} tokens were proposed within a budget of {budget}")
        for i, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if not (isinstance(token, int) and isinstance(parent, int)):  # a tensor's or numpy's number would leak out
                raise DrafterError(f"node {i} has token {token!r} and parent {parent!r}; both must be int")
            if not 0 <= token < vocab_size:
                raise DrafterError(f"proposed token {token} is outside the vocabulary of {vocab_size}")
            if not -1 <= parent < i:
                raise DrafterError(f"node {i} has parent {parent}; a parent must come before its child")
        if self.origins is not None and len(self.origins) != len(self.tokens):
            raise DrafterError(f"{len(self.tokens)} tokens but {len(self.origins)} origins were proposed")
        if not trees and not self.is_chain:
            raise DrafterError("a tree was proposed, but this runtime or acceptance rule takes chains only")
        if self.draft_distributions is not None:
            if len(self.draft_distributions) != len(self.tokens):
                raise DrafterError(f"{len(self.tokens)} tokens but {len(self.draft_distributions)} draft distributions")
            for token, distribution in zip(self.tokens, self.draft_distributions, strict=True):
                if distribution is not None and not distribution.prob(token) > 0:
                    raise DrafterError(f"token {token} has no probability under the distribution it was drawn from")


class Verdict(NamedTuple):
    """What an acceptance rule decided: accepted nodes from the root down, then one token of the target's.

    ``tested``: drafted tokens that were compared: the accepted ones, and one for the node whose children were all
    rejected, however many these are. ``kind`` of the token: ``"correction"`` where drafts were rejected there,
    ``"bonus"`` where there was none to test. (Without a proposal the loop counts it as ``"plain"``.)
    """

    path: list[int]
    token: int
    kind: str

    @property
    def tested(self) -> int:
        return len(self.path) + (self.kind == "correction")


class RoundSeconds(NamedTuple):
    """Wall time of one round: drafting, the target's pass, distributions and acceptance, bookkeeping.
    ``prompt_rows``: rows of prompts that the pass read besides."""

    draft: float
    target: float
    sample: float
    other: float
    prompt_rows: int = 0


class Key(NamedTuple):
    """Names one random draw of a round: the round's base, the node it is for, and its use.

    ``base`` is the number of tokens before the round; a round always adds at least one, so no two rounds share a
    base. ``use``, one of :data:`USES`: "draft" draws ``node``, "accept" tests it, "next" draws the target's token
    behind it, the last accepted node. ``node`` is -1 for the pending token.
    """

    base: int
    node: int
    use: str


USES = ("draft", "accept", "next")


@dataclass(frozen=True)
class Chunk:
    """Consecutive new rows of one slot in a packed pass.

    ``parents[i]`` is the row of this chunk that row ``i`` follows, -1 for the last cached entry; None
    is a chain. Logits are wanted for the rows from ``logits_from`` on.
    """

    slot: int
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    logits_from: int = 0


class Rows(Protocol):
    """Rows of numbers ``[rows, width]``: an array, or what a runtime keeps elsewhere until a row is looked at."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Array]: ...

    @overload
    def __getitem__(self, key: int) -> Array: ...

    @overload
    def __getitem__(self, key: slice | list[int]) -> Rows: ...


@dataclass(frozen=True)
class Forward:
    """A pass's results, one entry a chunk.

    ``logits``: ``[wanted rows, vocab_size]`` float32 (float64 from a float64 model), real tokens only:
    rows of padding are cut. They stay as they are for as long as someone holds them: distributions look at them late.
    ``features``: by name, ``[rows, width]`` for all rows.
    """

    logits: Sequence[Rows]
    features: Mapping[str, Sequence[Rows]] = field(default_factory=dict)


@dataclass(frozen=True)
class Capabilities:
    """What a runtime can do, known at load."""

    trees: bool
    dtype: str  # "bfloat16", "float32" or "float64"
    row_invariant: bool  # a row's logits have the same bits whatever shares its pass
    features: frozenset[str] = frozenset()


CONSTRAINTS = ("json_object", "json_schema", "regex", "lark", "gbnf")


@dataclass(frozen=True)
class Constraint:
    """What the answer must be, from its first token to its end: a JSON object, JSON that fits the schema in
    ``text``, text that the regular expression in ``text`` matches as a whole, or a sentence of the grammar in
    ``text`` (Lark as llguidance reads it, or llama.cpp's GBNF). Raises ParameterError for another ``kind``."""

    kind: str
    text: str = ""

    def __post_init__(self) -> None:
        if self.kind not in CONSTRAINTS:
            raise ParameterError(f"constraint must be one of {', '.join(CONSTRAINTS)}, not {self.kind!r}")
        if not isinstance(self.text, str) or bool(self.text) == (self.kind == "json_object"):
            wants = "takes no text" if self.kind == "json_object" else "needs a text"
            raise ParameterError(f"constraint {self.kind} {wants}, not {self.text!r}")


@dataclass(frozen=True)
class SamplingParams:
    """What the caller asks for; ``sampling/pipeline.py`` says in which order the controls act.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off. ``seed`` None draws
    a fresh one. ``max_tokens`` None stops at an end token or at the context limit. ``stop``: strings;
    ``stop_token_ids`` adds to the model's own end tokens. ``logprobs``: how many alternatives are reported beside each
    token's log-probability; None reports none.

    ``presence_penalty`` is taken once from the logit of every token generated so far, ``frequency_penalty`` once for
    each time it was (-2 to 2; 0 is off). ``repetition_penalty`` divides the positive logits of tokens in the prompt or
    the answer and multiplies their negative ones (0.01 to 100; 1 is off). ``logit_bias``: token id to what is added to
    its logit, -100 to 100. ``constraint``: what the whole answer must be. Raises ParameterError on impossible values.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 256
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        _number("temperature", self.temperature, 0, 1e4)
        _number("top_p", self.top_p, 0, 1, open_low=True)
        _number("min_p", self.min_p, 0, 1)
        _integer("top_k", self.top_k, 0)
        if self.seed is not None:
            _integer("seed", self.seed, 0, 2**64 - 1)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 0)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0)
        _number("presence_penalty", self.presence_penalty, -2, 2)
        _number("frequency_penalty", self.frequency_penalty, -2, 2)
        _number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        if not isinstance(self.logit_bias, Mapping):
            raise ParameterError(f"logit_bias must map token ids to numbers, not {self.logit_bias!r}")
        for token, bias in self.logit_bias.items():
            _integer("logit_bias", token, 0)
            _number(f"logit_bias of token {token}", bias, -100, 100)
        if self.constraint is not None and not isinstance(self.constraint, Constraint):
            raise ParameterError(f"constraint must be a Constraint, not {self.constraint!r}")
        if self.constraint is not None and self.ignore_eos:
            raise ParameterError("constraint cannot be combined with ignore_eos: it ends with an end token")
        for name in ("stop", "stop_token_ids"):
            if not isinstance(getattr(self, name), (list, tuple, set, frozenset)):
                raise ParameterError(f"{name} must be a list, not {getattr(self, name)!r}")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ParameterError(f"stop must hold non-empty strings, not {text!r}")
        for token in self.stop_token_ids:
            _integer("stop_token_ids", token, 0)


def _number(name: str, value: float, low: float, high: float, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ParameterError(f"{name} must be a number, not {value!r}")
    if not (low < value if open_low else low <= value) or not value <= high:
        raise ParameterError(f"{name} must lie in {'(' if open_low else '['}{low}, {high:g}], not {value!r}")


def _integer(name: str, value: int, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ParameterError(f"{name} must be a whole number, not {value!r}")
    if value < low or (high is not None and value > high):
        most = "" if high is None else f" and at most {high}"
        raise ParameterError(f"{name} must be at least {low}{most}, not {value}")
