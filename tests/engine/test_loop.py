"""The round: what is committed, what stays cached, what is counted, and what a bad drafter can do to it."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from tests.helpers.toys import (
    GREEDY,
    MATCH,
    PROMPT,
    RATIO,
    SAMPLED,
    Scripted,
    admit,
    commit_until,
    decode,
    finish,
    plain,
    remembered,
    right_first,
    sampled_tree,
    session,
    top_tree,
)

from outpace.audit.toy import ToyRuntime, hashed_logits, mixed_logits
from outpace.core.errors import NumericsError
from outpace.core.types import Chunk, Distribution, Proposal
from outpace.drafters.draft_model import DraftModel
from outpace.drafters.lookup import Config, Lookup
from outpace.engine.loop import Loop
from outpace.sampling.random_source import KeyedRandomSource

V = 6
TARGET = remembered(hashed_logits(V, 21))
DRAFT = remembered(mixed_logits(TARGET, hashed_logits(V, 22), 0.6))


def said(count: int, prompt: Sequence[int] = PROMPT, ends: Sequence[int] = ()) -> list[int]:
    """What the target says greedily."""
    return plain(TARGET, KeyedRandomSource(0), GREEDY, prompt, count, ends)


@pytest.mark.parametrize("gamma", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("rule", [MATCH, RATIO], ids=["match", "ratio"])
def test_refusal_at_each_offset_adds_one_token_more(rule, gamma):
    """B03: j right drafts give j + 1 tokens, the target's own, and a cache of just these."""
    for right in range(gamma + 1):
        one = session(count=40, gamma=gamma)
        loop = Loop(ToyRuntime(TARGET, V), Scripted(right_first(TARGET, V, right)), rule, commit_until())
        admit(loop, [one])
        for turn in range(1, 5):
            loop.round([one])
            assert one.generated == said(turn * (right + 1))
            assert loop.cache.length(one.slot) == len(one.tokens) - 1
            report = one.report
            assert (report.target_passes, report.drafted) == (turn, turn * gamma)
            assert (report.accepted, report.emitted) == (turn * right, turn * (right + 1))
            assert report.tested == turn * min(right + 1, gamma)
        loop.release(one)
        assert loop.cache.slots == 0


def test_corrupting_every_third_draft_changes_counts_only():
    """B02."""
    drafter = Scripted(right_first(TARGET, V, lambda one: [4, 0, 2][one.report.target_passes % 3]))
    one = session(count=30, gamma=4)
    assert decode(TARGET, V, drafter, MATCH, one) == tuple(said(30))
    assert [len(verdict.path) for _, verdict in drafter.verdicts[:6]] == [4, 0, 2, 4, 0, 2]


@pytest.mark.parametrize("rule", [MATCH, RATIO], ids=["match", "ratio"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_target_as_its_own_draft_accepts_everything(rule, params):
    """B06."""
    for count in range(1, 21):
        drafter = DraftModel(ToyRuntime(TARGET, V))
        one = session(count=count, gamma=4, params=params, prompt=(3, 1))
        tokens = decode(TARGET, V, drafter, rule, one)
        assert len(tokens) == count
        if rule is MATCH:
            assert list(tokens) == plain(TARGET, one.rng, params, (3, 1), count)
        assert one.report.accepted == one.report.tested == one.report.drafted
        assert one.report.target_passes == math.ceil(count / 5)


@pytest.mark.parametrize("place", range(8))
def test_end_token_at_each_offset_of_a_run(place):
    """B15, B57: the end is the last token, and only what was emitted is counted."""
    gamma, end = 5, V - 1
    script = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0]
    script[place] = end

    def target(prefix: Sequence[int]) -> np.ndarray:
        return np.eye(V)[script[len(prefix) - 2]] * 9.0

    one = session(count=9, gamma=gamma)
    decode(target, V, Scripted(right_first(target, V, gamma)), MATCH, one, commit_until(ends=[end]))
    assert one.generated == script[: place + 1]
    assert one.finish == "stop"
    runs = place // (gamma + 1) + 1
    assert (one.report.emitted, one.report.target_passes) == (place + 1, runs)
    bonus = runs - 1 + (place % (gamma + 1) == gamma)  # whole runs end with a token of the target's own
    assert one.report.accepted == one.report.tested == place + 1 - bonus


def test_end_in_the_middle_of_a_run_is_accounted_as_emitted():
    """B57 word for word: [d1, d2, EOS, d4, d5] emits three."""
    first = said(5)
    end = next(token for token in range(V) if token not in first[:2])
    run = [*first[:2], end, 0, 0]
    fixed = lambda prefix: np.eye(V)[[*run, 0][len(prefix) - 2]] * 9.0  # noqa: E731
    one = session(count=30, gamma=5)
    decode(fixed, V, Scripted(lambda one, budget: Proposal.chain(run)), MATCH, one, commit_until(ends=[end]))
    report = one.report
    assert (report.drafted, report.tested, report.accepted, report.emitted) == (5, 3, 3, 3)


@pytest.mark.parametrize("right", [0, 2, 8])
def test_limit_is_met_exactly_and_never_overshot(right):
    """B19, B20, B21: no budget below one is asked for, and none above what may still be emitted."""
    for count in range(1, 21):
        drafter = Scripted(right_first(TARGET, V, right))
        one = session(count=count, gamma=8)
        assert decode(TARGET, V, drafter, MATCH, one) == tuple(said(count))
        assert one.finish == "length"
        assert one.report.emitted == count
        assert all(1 <= budget <= min(8, count - 1) for _, budget in drafter.asked)
        if count == 1:
            assert drafter.asked == []


@pytest.mark.parametrize("length", range(1, 65))
def test_every_prompt_length_up_to_the_context(length):
    """B28: neither model sees a position beyond its context of 64."""
    prompt = [i % V for i in range(length)]
    limit = min(64, length + 20)
    target = remembered(hashed_logits(V, 21, order=3))
    draft = ToyRuntime(target if length % 2 else hashed_logits(V, 22, order=3), V, context=64)
    one = session(count=limit - length, gamma=5, prompt=prompt)
    loop = Loop(ToyRuntime(target, V, context=64), DraftModel(draft), MATCH, commit_until(), prefill_rows=7)
    if length == 64:
        return  # nothing may be generated: the engine ends such a session before it is admitted
    admit(loop, [one])
    finish(loop, [one])
    assert one.generated == plain(target, one.rng, GREEDY, prompt, limit - length)
    assert not one.report.warnings


def test_draft_with_a_shorter_context_drafts_less():
    one = session(count=30, gamma=4)
    drafter = DraftModel(ToyRuntime(TARGET, V, context=12))
    assert decode(TARGET, V, drafter, MATCH, one) == tuple(said(30))
    assert not one.report.warnings
    assert 0 < one.report.drafted < 12


def raising(one, budget):
    raise RuntimeError(f"lost the thread at {len(one.tokens)}")


BAD = {
    "raises": raising,
    "id beyond the vocabulary": lambda one, budget: Proposal.chain([V + len(one.tokens)]),
    "negative id": lambda one, budget: Proposal.chain([-1]),
    "no whole number": lambda one, budget: Proposal.chain([1.5]),
    "number of a tensor": lambda one, budget: Proposal.chain(np.array([1])),
    "not a proposal": lambda one, budget: [1, 2],
    "nothing": lambda one, budget: None,
    "over budget": lambda one, budget: Proposal.chain([0] * (budget + 1)),
    "parents missing": lambda one, budget: Proposal([0], []),
    "parent behind its child": lambda one, budget: Proposal([0], [0]),
    "distributions missing": lambda one, budget: Proposal.chain([0], []),
    "impossible draw": lambda one, budget: Proposal.chain([0], [Distribution.point(1)]),
}


@pytest.mark.parametrize("rule", [MATCH, RATIO], ids=["match", "ratio"])
@pytest.mark.parametrize("propose", BAD.values(), ids=BAD)
def test_bad_proposals_mean_plain_decoding_and_one_warning(propose, rule):
    one = session(count=10, gamma=3)
    assert decode(TARGET, V, Scripted(propose), rule, one) == tuple(said(10))
    assert len(one.report.warnings) == 1
    assert (one.report.target_passes, one.report.drafted, one.report.alpha) == (10, 0, None)


def test_wrong_number_of_proposals():
    drafter = Scripted(right_first(TARGET, V, 3))
    drafter.propose = lambda sessions, budgets: []  # type: ignore[method-assign]
    one = session(count=10, gamma=3)
    assert decode(TARGET, V, drafter, MATCH, one) == tuple(said(10))
    assert len(one.report.warnings) == 1


def test_one_bad_proposal_leaves_the_other_sessions_drafts_alone():
    good = right_first(TARGET, V, 3)
    drafter = Scripted(lambda one, budget: good(one, budget) if one.id else Proposal.chain([99]))
    loop = Loop(ToyRuntime(TARGET, V), drafter, MATCH, commit_until())
    both = [session(i, count=12, gamma=3) for i in range(2)]
    admit(loop, both)
    finish(loop, both)
    assert [one.generated for one in both] == [said(12)] * 2
    assert [len(one.report.warnings) for one in both] == [1, 0]
    assert [one.report.target_passes for one in both] == [12, 3]


@pytest.mark.parametrize("name", ["begin", "observe", "end"])
def test_drafter_that_raises_elsewhere(name):
    def broken(*args):
        raise RuntimeError("lost")

    drafter = Scripted(right_first(TARGET, V, 3))
    setattr(drafter, name, broken)
    one = session(count=10, gamma=3)
    loop = Loop(ToyRuntime(TARGET, V), drafter, MATCH, commit_until())
    admit(loop, [one])
    finish(loop, [one])
    assert one.generated == said(10)
    assert len(one.report.warnings) == 1
    assert loop.cache.slots == 0
    assert len(drafter.asked) == {"begin": 0, "observe": 1, "end": 3}[name]


def test_draft_model_that_fails_in_the_middle_of_a_round_recovers():
    """Its cache holds half a draft then; the next rounds draft rightly again."""

    class Failing(ToyRuntime):
        def forward(self, chunks, cache, want=()):
            answer = super().forward(chunks, cache, want)
            if self.forwards == 4:
                raise RuntimeError("out of memory")
            return answer

    one = session(count=24, gamma=4)
    assert decode(TARGET, V, DraftModel(Failing(TARGET, V)), MATCH, one) == tuple(said(24))
    assert len(one.report.warnings) == 1
    assert one.report.accepted == one.report.tested == one.report.drafted > 0


@pytest.mark.parametrize("rule", [MATCH, RATIO], ids=["match", "ratio"])
def test_trees_are_compacted_in_the_cache(rule):
    """The accepted path is rarely the first branch; the toy reads its prefix back from the cache."""
    one = session(count=60, gamma=9)
    assert decode(TARGET, V, Scripted(top_tree(DRAFT, [3, 2])), rule, one) == tuple(said(60))
    assert one.report.accepted > 0
    one = session(count=60, gamma=9, params=SAMPLED)
    tokens = decode(TARGET, V, Scripted(sampled_tree(DRAFT, [2, 2, 1], replacement=False)), rule, one)
    if rule is MATCH:
        assert list(tokens) == plain(TARGET, one.rng, SAMPLED, PROMPT, 60)


def test_tree_is_refused_where_only_chains_are_taken():
    class ChainsOnly:
        LOSSLESS, TREES, NEEDS_DISTRIBUTIONS, SHARED_NOISE = True, False, False, False
        draw, verify = staticmethod(MATCH.draw), staticmethod(MATCH.verify)

    one = session(count=10, gamma=6)
    assert decode(TARGET, V, Scripted(top_tree(DRAFT, [2, 2])), ChainsOnly(), one) == tuple(said(10))
    assert len(one.report.warnings) == 1


@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_sessions_join_and_leave_with_ragged_acceptance(size, params):
    """B51: each of 16 gets what it would get alone, wherever it sits in the batch."""
    queue = []
    for i in range(16):
        gamma = [0, 3, 5][i % 3]
        prompt = [(i + j) % V for j in range(1 + i % 5)]
        queue.append(session(i, count=4 + i, gamma=gamma, rng=KeyedRandomSource(i), params=params, prompt=prompt))
    everyone, active = list(queue), []
    scripted = Scripted(right_first(TARGET, V, lambda one: (one.id + one.report.target_passes) % 4))
    loop = Loop(ToyRuntime(TARGET, V), scripted, MATCH, commit_until(), prefill_rows=3)
    while queue or active:
        joining = [queue.pop(0) for _ in range(min(size - len(active), len(queue)))]
        admit(loop, joining)
        active = [*joining, *active][::-1]  # the places change all the time
        loop.round(active)
        for one in active:
            assert loop.cache.length(one.slot) == len(one.tokens) - 1
            if one.finish:
                loop.release(one)
        active = [one for one in active if not one.finish]
    for one in everyone:
        prompt = one.tokens[: one.request.prompt_length]
        assert one.generated == plain(TARGET, KeyedRandomSource(one.id), params, prompt, 4 + one.id), one.id
        assert not one.report.warnings
    assert not scripted.open
    assert loop.cache.slots == 0


def test_draft_passes_are_shared_by_the_batch():
    draft = ToyRuntime(DRAFT, V)
    loop = Loop(ToyRuntime(TARGET, V), DraftModel(draft), MATCH, commit_until())
    batch = [session(i, count=30, gamma=4, rng=KeyedRandomSource(i)) for i in range(5)]
    admit(loop, batch)
    before = draft.forwards
    loop.round(batch)
    assert draft.forwards - before == 4


def test_plain_sessions_never_reach_the_drafter():
    drafter = Scripted(raising)
    one = session(count=5, gamma=0)
    assert decode(TARGET, V, drafter, MATCH, one) == tuple(said(5))
    assert drafter.asked == drafter.verdicts == one.report.warnings == []


def test_released_in_the_middle_frees_everything():
    drafter = Scripted(right_first(TARGET, V, 1))
    loop = Loop(ToyRuntime(TARGET, V), drafter, MATCH, commit_until())
    one, other = session(1, count=20, gamma=3), session(2, count=20, gamma=3)
    admit(loop, [one, other])
    loop.round([one, other])
    loop.release(one)
    loop.release(one)  # twice is harmless
    finish(loop, [other])
    assert other.generated == said(20)
    assert loop.cache.slots == 0
    assert not drafter.open


def test_long_prompts_are_read_in_pieces():
    passes: list[int] = []

    class Counting(ToyRuntime):
        def forward(self, chunks: Sequence[Chunk], cache, want=()):
            passes.append(sum(len(chunk.tokens) for chunk in chunks))
            return super().forward(chunks, cache, want)

    prompts = [[i % V for i in range(23)], [1], [i * 5 % V for i in range(17)]]
    batch = [session(i, count=3, gamma=0, prompt=prompt) for i, prompt in enumerate(prompts)]
    loop = Loop(Counting(TARGET, V), Scripted(raising), MATCH, commit_until(), prefill_rows=10)
    admit(loop, batch)
    assert passes == [10, 10, 10, 8]
    finish(loop, batch)
    assert [one.generated for one in batch] == [said(3, prompt) for prompt in prompts]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_lookup_meets_the_limit_on_repetitive_prompts(length):
    """B19, B30: long proposals, a limit close by, several requests at once."""
    target = remembered(hashed_logits(V, 3, order=1))
    loop = Loop(ToyRuntime(target, V), Lookup(Config(gamma=256, min_match=1)), MATCH, commit_until())
    batch = [session(i, count=40 + i, gamma=256, prompt=[0, 1, 2][:length] * 20) for i in range(8)]
    admit(loop, batch)
    finish(loop, batch)
    for one in batch:
        assert one.generated == plain(target, one.rng, GREEDY, one.tokens[: one.request.prompt_length], 40 + one.id)
        assert one.report.drafted > 0
        assert not one.report.warnings


def test_nan_logits_are_an_error_not_a_token():
    nothing = lambda prefix: np.full((V,), math.nan)  # noqa: E731
    with pytest.raises(NumericsError):
        decode(nothing, V, Scripted(raising), MATCH, session(count=3, gamma=0))
