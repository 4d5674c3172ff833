"""The values that pass between rooms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .errors import DrafterError, ParameterError


class Law:
    """A distribution over token ids, stored on its support.

    Made from ``probs`` ``[s]``, floating point and summing to 1, or from ``scores`` ``[s]``, their logarithms
    up to a constant; either is worked out from the other when first asked for. ``ids``: ``[s]`` int64,
    ascending, or None when the support is ``0 .. s-1``. Greedy decoding is the law whose support is one token.
    """

    def __init__(self, probs: Tensor | None = None, ids: Tensor | None = None, *, scores: Tensor | None = None) -> None:
        if (probs is None) == (scores is None):
            raise TypeError("a law is made from probs or from scores")
        self._probs, self._scores, self.ids = probs, scores, ids

    @property
    def probs(self) -> Tensor:
        """``[s]`` probabilities, summing to 1."""
        if self._probs is None:
            self._probs = torch.softmax(self.scores, dim=-1)
        return self._probs

    @property
    def scores(self) -> Tensor:
        """``[s]`` logarithms of the probabilities, up to a constant."""
        if self._scores is None:
            self._scores = torch.log(self.probs)
        return self._scores

    @property
    def size(self) -> int:
        """Number of tokens in the support."""
        known = self._scores if self._probs is None else self._probs
        assert known is not None
        return known.numel()

    @staticmethod
    def point(token: int, dtype: torch.dtype = torch.float32) -> Law:
        """All mass on one token: the law of a token that was chosen, not drawn."""
        return Law(torch.ones(1, dtype=dtype), torch.tensor([token]))

    def prob(self, token: int) -> float:
        """Probability of one token."""
        if self.ids is None:
            return float(self.probs[token]) if 0 <= token < self.probs.numel() else 0.0
        at = int(torch.searchsorted(self.ids, token))
        return float(self.probs[at]) if at < self.ids.numel() and int(self.ids[at]) == token else 0.0

    def token(self, index: int) -> int:
        """The token id at a place of the support."""
        return index if self.ids is None else int(self.ids[index])

    def on(self, other: Law) -> Tensor:
        """This law's probabilities at the support of ``other``: ``[len(other.probs)]`` in float64."""
        probs = self.probs.double()
        size = other.probs.numel()
        if self.ids is None:
            if other.ids is None:
                out = torch.zeros(size, dtype=torch.float64)
                shared = min(size, probs.numel())
                out[:shared] = probs[:shared]
                return out
            inside = other.ids < probs.numel()
            return torch.where(inside, probs[other.ids.clamp(max=probs.numel() - 1)], 0.0)
        ids = torch.arange(size) if other.ids is None else other.ids
        at = torch.searchsorted(self.ids, ids).clamp(max=self.ids.numel() - 1)
        return torch.where(self.ids[at] == ids, probs[at], 0.0)

    def dense(self, vocab_size: int) -> Tensor:
        """``[vocab_size]`` probabilities in float64."""
        return self.on(Law(torch.empty(vocab_size)))


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens as a tree below the pending token.

    ``parents[i]`` is a node number below ``i``, or -1 for the pending token; a chain has parents
    -1, 0, 1, ... ``draft_laws[i]`` is the law that token ``i`` was drawn from, given its path and its
    earlier siblings; None stands for a token that was chosen, not drawn (a point mass).
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    draft_laws: Sequence[Law | None] | None = None

    @staticmethod
    def chain(tokens: Sequence[int], draft_laws: Sequence[Law | None] | None = None) -> Proposal:
        """A proposal without branches."""
        return Proposal(tokens, range(-1, len(tokens) - 1), draft_laws)

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

    def law(self, node: int) -> Law:
        """The law that the node's token was drawn from."""
        law = self.draft_laws[node] if self.draft_laws is not None else None
        return law if law is not None else Law.point(self.tokens[node])

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
        if not trees and not self.is_chain:
            raise DrafterError("a tree was proposed, but this runtime or acceptance rule takes chains only")
        if self.draft_laws is not None:
            if len(self.draft_laws) != len(self.tokens):
                raise DrafterError(f"{len(self.tokens)} tokens but {len(self.draft_laws)} draft laws")
            for token, law in zip(self.tokens, self.draft_laws, strict=True):
                if law is not None and not law.prob(token) > 0:
                    raise DrafterError(f"token {token} has no probability under the law it was drawn from")


class Verdict(NamedTuple):
    """What an acceptance rule decided: accepted nodes from the root down, then one token of the target's.

    ``tested``: drafted tokens that were compared (accepted ones, and one where a draft was refused).
    ``kind``: ``"correction"`` when drafts were refused there, ``"bonus"`` when none was left to test.
    """

    path: list[int]
    token: int
    kind: str

    @property
    def tested(self) -> int:
        return len(self.path) + (self.kind == "correction")


class Key(NamedTuple):
    """Names one coin of a round: the round's base, the node it is for, and its use.

    ``base`` is the number of tokens before the round; a round always adds at least one, so no two
    rounds share a base. ``node`` is -1 for the pending token. ``use`` is one of :data:`USES`.
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


@dataclass(frozen=True)
class Forward:
    """A pass's results, one entry a chunk.

    ``logits``: ``[wanted rows, vocab_size]`` float32 (float64 from a float64 model), real tokens only:
    rows of padding are cut.
    ``features``: by name, ``[rows, width]`` for all rows.
    """

    logits: list[Tensor]
    features: dict[str, list[Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Capabilities:
    """What a runtime can do, known at load."""

    trees: bool
    rollback: int | None  # how many entries can be undone; None: any number
    dtype: torch.dtype
    row_invariant: bool  # a row's logits have the same bits whatever shares its pass
    features: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SamplingParams:
    """What the caller asks for; see docs for the order in which the controls act.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off. ``seed`` None draws
    a fresh one. ``max_tokens`` None stops at an end token or at the context limit. ``stop``: strings;
    ``stop_token_ids`` adds to the model's own end tokens. Raises ParameterError on impossible values.
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
