"""Several drafters in one tree, and a drafter for the drafter."""

import itertools

import numpy as np
import pytest
from tests.helpers.toys import (
    BLOCK,
    GREEDY,
    MATCH,
    RATIO,
    SAMPLED,
    Scripted,
    commit_until,
    decode,
    distance,
    finish,
    plain,
    remembered,
    session,
)

from outpace.audit.toy import ToyRuntime, hashed_logits, mixed_logits
from outpace.core.errors import DrafterError, ParameterError
from outpace.core.protocols import Parts
from outpace.core.types import Distribution, Forward, Proposal, Verdict
from outpace.drafters.common.extending import Start
from outpace.drafters.draft_model import DraftModel
from outpace.drafters.hybrid import Config, Hybrid, create
from outpace.drafters.lookup import Config as LookupConfig
from outpace.drafters.lookup import Lookup
from outpace.drafters.recycle import Config as RecycleConfig
from outpace.drafters.recycle import Recycle
from outpace.engine.loop import Loop
from outpace.sampling.random_source import KeyedRandomSource

V = 5
TARGET = remembered(hashed_logits(V, 31, order=2))
DRAFT = remembered(mixed_logits(TARGET, hashed_logits(V, 32), 0.6))
SMALL = remembered(hashed_logits(3, 43, sharpness=1.0, order=2))
SMALL_DRAFT = remembered(mixed_logits(SMALL, hashed_logits(3, 44, order=2), 0.5))
EAGER = LookupConfig(min_match=1, stop_below=0.0)
CAREFUL = LookupConfig(min_match=1, stop_below=0.4)  # leaves the draft model some of the budget


def chosen(*tokens):
    """A first member that always says these."""
    return Scripted(lambda one, budget: Proposal.chain(list(tokens)[:budget]))


def hybrid(join="extend", draft=DRAFT, size=V, first=None):
    members = {"lookup": first or Lookup(CAREFUL), "draft_model": DraftModel(ToyRuntime(draft, size))}
    return Hybrid(members, join)


def proposal_of(drafter, rule, budget, prompt=(0, 1), trees=True, **controls):
    one = session(count=30, gamma=budget, prompt=prompt, rule=rule, **controls)
    one.begin_draft(trees=trees)
    drafter.begin(one)
    return one, drafter.propose([one], [budget])[0]


def test_the_draft_model_goes_on_where_lookup_ended():
    _, found = proposal_of(hybrid(first=chosen(3, 2)), MATCH, 5)
    assert found.is_chain and found.origins == ["lookup"] * 2 + ["draft_model"] * 3
    assert found.tokens == [3, 2, *plain(DRAFT, KeyedRandomSource(0), GREEDY, [0, 1, 3, 2], 3)]


def test_a_full_budget_leaves_the_draft_model_alone():
    draft = ToyRuntime(DRAFT, V)
    drafter = Hybrid({"lookup": chosen(3, 2, 1), "draft_model": DraftModel(draft)})
    _, found = proposal_of(drafter, MATCH, 3)
    assert found.tokens == [3, 2, 1] and draft.forwards == 0


def test_beside_a_draft_may_not_repeat_its_sibling_under_ratio():
    """The draft's own first token is taken by lookup: the next one is drawn from what the distribution leaves."""
    firsts = set()
    for seed in range(40):
        controls = {"params": SAMPLED, "rng": KeyedRandomSource(seed)}
        _, found = proposal_of(hybrid("beside", first=chosen(3)), RATIO, 3, **controls)
        assert list(found.parents) == [-1, -1, 1] and found.draft_distributions[0] is None
        assert found.draft_distributions[1].prob(3) == 0 and found.draft_distributions[1].prob(found.tokens[1]) > 0
        firsts.add(found.tokens[1])
    assert len(firsts) > 1


def test_beside_repeats_become_one_node_under_match():
    right = plain(DRAFT, KeyedRandomSource(0), GREEDY, [0, 1], 3)
    wrong = (right[2] + 1) % V
    _, found = proposal_of(hybrid("beside", first=chosen(*right[:2], wrong)), MATCH, 6)
    assert (found.tokens, list(found.parents)) == ([*right[:2], wrong, right[2]], [-1, 0, 1, 1])
    assert found.origins == ["lookup"] * 3 + ["draft_model"]


@pytest.mark.parametrize(("rule", "trees"), [(BLOCK, True), (MATCH, False)], ids=["rule", "target"])
def test_beside_is_one_member_where_no_trees_are_taken(rule, trees):
    _, found = proposal_of(hybrid("beside", first=chosen(3)), rule, 4, trees=trees)
    assert found.tokens == [3]


@pytest.mark.parametrize("join", ["extend", "beside"])
@pytest.mark.parametrize("first", ["lookup", "chosen", "recycle"])
def test_the_distribution_under_ratio_is_the_targets(join, first):
    """Chosen and drawn tokens in one tree, exactly: every outcome of the random draws."""

    def make(rule):
        member = {"lookup": Lookup(EAGER), "chosen": chosen(2, 1), "recycle": Recycle(RecycleConfig(top=2))}[first]
        return hybrid(join, SMALL_DRAFT, 3, member)

    assert distance(SMALL, 3, make, RATIO, gamma=3, count=2, spare=1) < 1e-9


@pytest.mark.parametrize("names", list(itertools.permutations(["lookup", "recycle", "draft_model"], 2)))
def test_any_order_of_members_is_exact(names):
    makers = {
        "lookup": lambda: Lookup(EAGER),
        "recycle": lambda: Recycle(RecycleConfig(top=2)),
        "draft_model": lambda: DraftModel(ToyRuntime(SMALL_DRAFT, 3)),
    }
    for join in ("extend", "beside"):

        def make(rule, join=join):
            return Hybrid({name: makers[name]() for name in names}, join)

        assert distance(SMALL, 3, make, RATIO, gamma=3, count=2, spare=1) < 1e-9


@pytest.mark.parametrize("join", ["extend", "beside"])
def test_two_members_that_draw_have_rng_of_their_own(join):
    other = remembered(hashed_logits(3, 45, order=2))

    def make(rule):
        return Hybrid(
            {name: DraftModel(ToyRuntime(d, 3)) for name, d in (("a", SMALL_DRAFT), ("b", other))},
            join,
            gammas={"a": 1},
        )

    assert distance(SMALL, 3, make, RATIO, gamma=2, count=2, spare=1) < 1e-9


@pytest.mark.parametrize("join", ["extend", "beside"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_tokens_under_match_are_plain_and_members_follow(join, params):
    for seed in range(4):
        one = session(count=60, gamma=6, params=params, rng=KeyedRandomSource(seed), prompt=[0, 1, 2, 3, 0, 1])
        expected = plain(TARGET, KeyedRandomSource(seed), params, one.tokens, 60)
        assert list(decode(TARGET, V, hybrid(join), MATCH, one)) == expected
        assert not one.report.warnings
        assert {"lookup", "draft_model"} <= set(one.origins)


@pytest.mark.parametrize("join", ["extend", "beside"])
@pytest.mark.parametrize("rule", [MATCH, RATIO], ids=["match", "ratio"])
def test_drafts_come_from_the_right_text_in_every_round(join, rule):
    """The draft model's cache after lookup was refused in part: each distribution is that of its own path, bit for
    bit."""
    drafter = hybrid(join)
    one = session(count=60, gamma=5, params=SAMPLED, rng=KeyedRandomSource(4), prompt=[0, 1, 2, 0, 1])
    member = dict(drafter._members)["draft_model"]
    extend, checked = member.extend, []

    def watched(sessions, starts, budgets):
        answers = extend(sessions, starts, budgets)
        for session_, start, answer in zip(sessions, starts, answers, strict=True):
            prefix = [*session_.tokens, *start.path]
            for i, token in enumerate(answer.tokens):
                distribution = session_.pipeline.distribution(DRAFT(tuple(prefix)), prefix)
                if rule.NEEDS_DISTRIBUTIONS:
                    kept = distribution.without(start.siblings) if i == 0 else distribution
                    assert np.array_equal(answer.draft_distributions[i].probs, kept.probs)
                else:
                    assert token == session_.rng.gumbel_argmax(len(prefix), distribution)
                prefix.append(token)
            checked.append((len(start.path), len(answer)))
        return answers

    member.extend = watched
    decode(TARGET, V, drafter, rule, one)
    assert not one.report.warnings
    assert sum(size for _, size in checked) > 10
    assert join == "beside" or any(path and size for path, size in checked)


def test_a_member_is_told_of_its_own_nodes():
    """Accepted: lookup's 3, then the draft's first token; refused: its second."""
    drafter = hybrid(first=chosen(3))
    one, found = proposal_of(drafter, MATCH, 3)
    told = {}
    for name, member in drafter._members:
        member.observe = lambda sessions, verdicts, seen, name=name: told.update({name: (verdicts[0], seen[0])})
    rows = np.tile(np.arange(4.0)[:, None], V)
    one.tokens += [3, found.tokens[1], 4]
    drafter.observe([one], [Verdict([0, 1], 4, "correction")], [Forward([rows])])
    assert told["lookup"][0] == Verdict([0], found.tokens[1], "correction")
    assert told["lookup"][1].logits[0][:, 0].tolist() == [0, 1]
    assert told["draft_model"][0] == Verdict([0, 1], 4, "correction")
    assert told["draft_model"][1].logits[0][:, 0].tolist() == [0, 1, 2, 3]


def test_a_member_that_drafted_a_tree_is_told_of_its_branch():
    """Recycling's second branch stood: its nodes 1 and 2 of four; the chain beside them is the draft model's."""
    tree = Scripted(lambda one, budget: Proposal([3, 2, 1, 0], [-1, -1, 1, 0]))
    drafter = Hybrid({"tree": tree, "draft_model": DraftModel(ToyRuntime(DRAFT, V))})
    one, _ = proposal_of(drafter, RATIO, 6)
    rows = np.tile(np.arange(7.0)[:, None], V)
    one.tokens += [2, 1, 4]
    drafter.observe([one], [Verdict([1, 2], 4, "bonus")], [Forward([rows])])
    assert tree.verdicts == [(one.id, Verdict([1, 2], 4, "bonus"))]
    assert drafter.propose([one], [0]) == [Proposal([], [], None, [])]


def test_batches_join_and_leave():
    drafter = hybrid()
    loop = Loop(ToyRuntime(TARGET, V), drafter, MATCH, commit_until())
    batch = [
        session(
            i, count=20 + i, gamma=[5, 0, 2, 7][i], params=SAMPLED, rng=KeyedRandomSource(i), prompt=[0, 1, 2] * (1 + i)
        )
        for i in range(4)
    ]
    loop.admit(batch)
    finish(loop, batch)
    for one in batch:
        prompt = one.tokens[: one.request.prompt_length]
        assert one.generated == plain(TARGET, KeyedRandomSource(one.id), SAMPLED, prompt, 20 + one.id)
    assert not drafter._rounds


@pytest.mark.parametrize("rule", [MATCH, RATIO, BLOCK], ids=["match", "ratio", "block"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_lookup_for_the_draft_saves_passes_and_changes_nothing(rule, params):
    """The draft model's own tokens and distributions are the same with and without; so are the answers."""
    loop = [0, 1, 2, 3, 4] * 4

    def cyclic(prefix):
        return np.eye(V)[(prefix[-1] + 1) % V].astype(np.float64) * 4 + 0.3 * DRAFT(prefix)

    answers, passes, distributions = [], [], []
    for lookup in (None, Lookup(EAGER)):
        runtime, seen = ToyRuntime(remembered(cyclic), V), []
        drafter = DraftModel(runtime, lookup)
        extend = drafter.extend

        def watched(sessions, starts, budgets, extend=extend, seen=seen):
            proposals = extend(sessions, starts, budgets)
            seen += [
                (list(p.tokens), [distribution.probs.tolist() for distribution in p.draft_distributions or ()])
                for p in proposals
            ]
            return proposals

        drafter.extend = watched
        one = session(count=60, gamma=6, params=params, rng=KeyedRandomSource(2), prompt=loop)
        answers.append(decode(remembered(cyclic), V, drafter, rule, one))
        passes.append(runtime.forwards)
        distributions.append(seen)
        assert not one.report.warnings
    assert answers[0] == answers[1] and distributions[0] == distributions[1]
    assert passes[1] < 0.7 * passes[0]


def test_lookup_for_the_draft_keeps_the_distribution():
    def make(rule):
        return DraftModel(ToyRuntime(SMALL_DRAFT, 3), Lookup(EAGER))

    assert distance(SMALL, 3, make, RATIO, gamma=2, count=3) < 1e-9


def test_without_siblings():
    distribution = Distribution(np.array([0.5, 0.3, 0.2], dtype=np.float64))
    assert distribution.without(()) is distribution
    assert distribution.without([0]).dense(3).tolist() == [0, 0.6, 0.4]
    assert distribution.without([0, 2, 7]).dense(3).tolist() == [0, 1, 0]
    assert distribution.without([0, 1, 2]) is None
    assert Distribution.point(4).without([4]) is None


def test_members_and_joins_are_checked():
    parts = Parts(V, draft=ToyRuntime(DRAFT, V))
    with pytest.raises(ParameterError, match="join"):
        Config(join="above")
    for members in ("lookup,lookup", "lookup,hybrid"):
        with pytest.raises(ParameterError, match="members"):
            create(Config(members=members), parts)
    with pytest.raises(ParameterError, match="nobody"):
        create(Config(members="lookup,nobody"), parts)
    with pytest.raises(DrafterError, match="first"):
        create(Config(members="lookup,none"), parts)
    assert isinstance(create(Config(members="none, draft_model"), parts), Hybrid)


def test_start_is_the_pending_token_by_default():
    assert Start() == ((), 0, ())
