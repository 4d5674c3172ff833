"""Drivers that run the production loop on toys, and drafters that follow a script."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from outpace import verify
from outpace.audit.exact import enumerate_law, plain_law, total_variation
from outpace.audit.toy import LogitsOf, ToyRuntime
from outpace.core.protocols import Coins, Drafter, LogitsPipeline, Rule, Session
from outpace.core.types import Forward, Law, Proposal, SamplingParams, Verdict
from outpace.engine.loop import Commit, Loop
from outpace.sampling.coins import KeyedCoins
from outpace.sampling.pipeline import Pipeline

MATCH, RATIO = verify.rule("match"), verify.rule("ratio")
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)
PROMPT = (0, 1)


def remembered(logits_of: LogitsOf) -> LogitsOf:
    """The same logits, worked out once for each prefix."""
    known: dict[tuple[int, ...], torch.Tensor] = {}

    def logits(prefix: Sequence[int]) -> torch.Tensor:
        key = tuple(prefix)
        if key not in known:
            known[key] = torch.as_tensor(logits_of(key), dtype=torch.float64)
        return known[key]

    return logits


# ---- driving the loop


def commit_until(ends: Collection[int] = (), count: int | None = None) -> Commit:
    """Stops at an end token, at the session's limit, or after ``count`` generated tokens."""

    def commit(session: Session, tokens: Sequence[int]) -> int:
        for taken, token in enumerate(tokens, start=1):
            session.tokens.append(token)
            if token in ends:
                session.finish = "stop"
            elif len(session.tokens) >= session.limit or len(session.generated) == count:
                session.finish = "length"
            if session.finish is not None:
                return taken
        return len(tokens)

    return commit


def session(
    number: int = 0,
    *,
    count: int,
    gamma: int,
    coins: Coins | None = None,
    params: SamplingParams = GREEDY,
    prompt: Sequence[int] = PROMPT,
    spare: int = 0,
) -> Session:
    """A session that may grow by ``count`` tokens, and whose drafts may look ``spare`` tokens further."""
    limit = len(prompt) + count + spare
    coins = KeyedCoins(0) if coins is None else coins
    return Session(number, list(prompt), len(prompt), params, Pipeline(params), coins, limit, gamma=gamma)


def check_cache(loop: Loop, sessions: Iterable[Session]) -> None:
    for one in sessions:
        assert loop.cache.length(one.slot) == len(one.tokens) - 1


def finish(loop: Loop, sessions: Sequence[Session]) -> None:
    """Run admitted sessions to their ends and release them; the cache is right after every round."""
    active = list(sessions)
    while active:
        loop.round(active)
        check_cache(loop, active)
        for one in active:
            if one.finish is not None:
                loop.release(one)
        active = [one for one in active if one.finish is None]


def decode(
    target: LogitsOf, vocab_size: int, drafter: Drafter, rule: Rule, one: Session, commit: Commit | None = None
) -> tuple[int, ...]:
    """The tokens that the loop generates for one session."""
    loop = Loop(ToyRuntime(target, vocab_size), drafter, rule, commit or commit_until())
    loop.admit([one])
    finish(loop, [one])
    return tuple(one.generated)


def plain(
    target: LogitsOf,
    coins: Coins,
    params: SamplingParams,
    prompt: Sequence[int],
    count: int,
    ends: Collection[int] = (),
) -> list[int]:
    """What plain decoding says: one token at a time, no loop, no cache."""
    pipeline, tokens = Pipeline(params), list(prompt)
    for _ in range(count):
        tokens.append(coins.gumbel_argmax(len(tokens), pipeline.law(torch.as_tensor(target(tuple(tokens))), tokens)))
        if tokens[-1] in ends:
            break
    return tokens[len(prompt) :]


def distance(
    target: LogitsOf,
    vocab_size: int,
    make: Callable[[Rule], Drafter],
    rule: Rule,
    *,
    gamma: int,
    count: int,
    params: SamplingParams = SAMPLED,
    wrap: Callable[[Coins], Coins] = lambda coins: coins,
    spare: int = 0,
) -> float:
    """Total variation between the exact law of the loop's first ``count`` tokens and the target's."""

    def run(coins: Coins) -> tuple[int, ...]:
        one = session(count=count, gamma=gamma, coins=wrap(coins), params=params, spare=spare)
        tokens = decode(target, vocab_size, make(rule), rule, one, commit_until(count=count))
        assert not one.report.warnings, one.report.warnings
        return tokens

    return total_variation(enumerate_law(run), plain_law(target, Pipeline(params), PROMPT, count))


# ---- drafters

ProposeOne = Callable[[Session, int], Proposal]


@dataclass
class Scripted:
    """A drafter from a function of (session, budget); it keeps a record of what it was told."""

    propose_one: ProposeOne
    needs: Sequence[str] = ()
    open: set[int] = field(default_factory=set)
    asked: list[tuple[int, int]] = field(default_factory=list)  # session, budget
    verdicts: list[tuple[int, Verdict]] = field(default_factory=list)

    def begin(self, one: Session) -> None:
        self.open.add(one.id)

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        self.asked += [(one.id, budget) for one, budget in zip(sessions, budgets, strict=True)]
        return [self.propose_one(one, budget) for one, budget in zip(sessions, budgets, strict=True)]

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        self.verdicts += [(one.id, verdict) for one, verdict in zip(sessions, verdicts, strict=True)]

    def end(self, one: Session) -> None:
        self.open.discard(one.id)


def right_first(target: LogitsOf, vocab_size: int, right: int | Callable[[Session], int]) -> ProposeOne:
    """A full chain whose first ``right`` tokens are what plain decoding will say, and the next is not."""

    def propose(one: Session, budget: int) -> Proposal:
        tokens = plain(target, one.coins, one.params, one.tokens, budget)
        wrong = right if isinstance(right, int) else right(one)
        for i in range(wrong, budget):
            tokens[i] = (tokens[i] + 1) % vocab_size
        return Proposal.chain(tokens)

    return propose


def _law(logits_of: LogitsOf, pipeline: LogitsPipeline, prefix: Sequence[int]) -> Law:
    return pipeline.law(torch.as_tensor(logits_of(tuple(prefix)), dtype=torch.float64), prefix)


def without(law: Law, tokens: Collection[int]) -> Law | None:
    """The law given that none of ``tokens`` comes; None when nothing is left."""
    ids = torch.arange(law.probs.numel()) if law.ids is None else law.ids
    kept = torch.tensor([int(token) not in tokens for token in ids]) & (law.probs > 0)
    return Law(law.probs[kept] / law.probs[kept].sum(), ids[kept]) if bool(kept.any()) else None


@dataclass
class _Tree:
    prompt: Sequence[int]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    laws: list[Law | None] = field(default_factory=list)

    def add(self, token: int, parent: int, law: Law | None) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self.laws.append(law)

    def prefix(self, node: int) -> list[int]:
        tail: list[int] = []
        while node >= 0:
            tail.append(self.tokens[node])
            node = self.parents[node]
        return [*self.prompt, *tail[::-1]]

    def grow(self, widths: Sequence[int], budget: int, children: Callable[[_Tree, int, int, int], None]) -> Proposal:
        """Level by level: ``children(tree, parent, width, depth)`` adds the children of one node."""
        level = [-1]
        for depth, width in enumerate(widths):
            start = len(self.tokens)
            for parent in level:
                children(self, parent, min(width, budget - len(self.tokens)), depth)
            level = list(range(start, len(self.tokens)))
        return Proposal(self.tokens, self.parents, self.laws)


def sampled_tree(
    draft: LogitsOf, rule: Rule, widths: Sequence[int], *, replacement: bool, pipeline: LogitsPipeline | None = None
) -> ProposeOne:
    """Siblings drawn from the draft's law, each with the law of its own draw."""

    def propose(one: Session, budget: int) -> Proposal:
        base = len(one.tokens)

        def children(tree: _Tree, parent: int, width: int, depth: int) -> None:
            law: Law | None = _law(draft, pipeline or one.pipeline, tree.prefix(parent))
            seen: list[int] = []
            for _ in range(width):
                if not replacement and seen:
                    assert law is not None
                    law = without(law, seen)
                if law is None:
                    return
                seen.append(rule.draw(law, one.coins, base, len(tree.tokens), depth))
                tree.add(seen[-1], parent, law)

        return _Tree(one.tokens).grow(widths, budget, children)

    return propose


def top_tree(draft: LogitsOf, widths: Sequence[int]) -> ProposeOne:
    """The most probable continuations, chosen and not drawn."""

    def propose(one: Session, budget: int) -> Proposal:
        def children(tree: _Tree, parent: int, width: int, depth: int) -> None:
            logits = torch.as_tensor(draft(tuple(tree.prefix(parent))))
            for token in torch.topk(logits, min(max(width, 0), logits.numel())).indices.tolist():
                tree.add(token, parent, None)

        return _Tree(one.tokens).grow(widths, budget, children)

    return propose


def mixture(chosen: LogitsOf, draft: LogitsOf, rule: Rule, depth: int, *, keep_duplicates: bool) -> ProposeOne:
    """At every node a chosen token first, then a drawn one. The drawn one either cannot repeat the chosen
    one, because its law leaves it out, or may repeat it and is submitted all the same."""

    def propose(one: Session, budget: int) -> Proposal:
        base = len(one.tokens)

        def children(tree: _Tree, parent: int, width: int, level: int) -> None:
            if width < 1:
                return
            first = int(torch.as_tensor(chosen(tuple(tree.prefix(parent)))).argmax())
            tree.add(first, parent, None)
            law: Law | None = _law(draft, one.pipeline, tree.prefix(parent))
            if law is not None and not keep_duplicates:
                law = without(law, [first])
            if width > 1 and law is not None:
                tree.add(rule.draw(law, one.coins, base, len(tree.tokens), level), parent, law)

        return _Tree(one.tokens).grow([2] * depth, budget, children)

    return propose
