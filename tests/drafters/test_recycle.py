"""Token recycling: what it keeps of the logits, and the tree it makes of that."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.toys import BLOCK, GREEDY, MATCH, RATIO, SAMPLED, decode, plain, remembered, session

from outpace.audit.toy import hashed_logits
from outpace.core.errors import ParameterError
from outpace.core.top import top
from outpace.core.types import Forward, Verdict
from outpace.drafters.common.extending import Start
from outpace.drafters.recycle import Config, Recycle, template
from outpace.sampling.random_source import KeyedRandomSource

V = 6
TARGET = remembered(hashed_logits(V, 41, order=1))


@given(st.integers(1, 80), st.lists(st.floats(0.01, 0.6), min_size=1, max_size=8))
def test_template_is_a_tree_best_first(size, shares):
    nodes = template(size, shares)
    assert len(nodes) == size
    chances, children = {-1: 1.0}, set()
    for node, (parent, rank, chance) in enumerate(nodes):
        assert -1 <= parent < node and chance == pytest.approx(chances[parent] * shares[rank])
        chances[node] = chance
        children.add((parent, rank))
    assert len(children) == size
    ordered = [chance for *_, chance in nodes]
    assert ordered == sorted(ordered, reverse=True)
    best = sorted((chances[p] * share for p in chances for r, share in enumerate(shares) if (p, r) not in children))
    assert not best or best[-1] <= ordered[-1]  # nothing left out is better
    assert template(size, shares, 2 * ordered[-1]) == [node for node in nodes if node[2] >= 2 * ordered[-1]]


@pytest.mark.parametrize("size", [3, 200, 1024, 5000])
def test_(size):
    logits = np.random.default_rng(1).standard_normal((4, size)).astype(np.float32)
    assert [top(row, 3).tolist() for row in logits] == np.argsort(-logits, axis=1)[:, :3].tolist()


def observed(tokens, rows, text=(0, 1, 2), stop_below=0.0, **options):
    """A drafter that proposed a chain of ``tokens`` and saw logits whose best are ``rows``."""
    drafter, one = (
        Recycle(Config(stop_below=stop_below, **options)),
        session(count=30, gamma=8, prompt=text, rule=MATCH),
    )
    drafter.begin(one)
    drafter.extend([one], [Start(tokens)], [0])
    logits = np.zeros((len(rows), 50), dtype=np.float32)
    for row, best in enumerate(rows):
        for rank, token in enumerate(best):
            logits[row, token] = 9.0 - rank
    one.tokens.append(rows[0][0])
    drafter.observe([one], [Verdict([], rows[0][0], "correction")], [Forward([logits])])
    return drafter, one


def test_keeps_what_followed_each_row_refused_ones_too():
    """Pending 2 was followed by 7 or 8, the refused draft 9 by 5 or 6: both are drafted when these come again."""
    drafter, one = observed([9], [[7, 8], [5, 6]], top=2)
    for last, expected in ((2, {7, 8}), (9, {5, 6})):
        one.tokens.append(last)
        proposal = drafter.propose([one], [2])[0]
        assert set(proposal.tokens) == expected and list(proposal.parents) == [-1, -1]
        assert proposal.draft_distributions is None


def test_a_tree_grows_through_the_matrix():
    drafter, one = observed([9, 7], [[9, 3], [7, 4], [5, 6]], top=2)
    one.tokens.append(2)
    proposal = drafter.propose([one], [6])[0]
    paths = {tuple(proposal.tokens[n] for n in proposal.path(node)) for node in range(len(proposal))}
    assert {(9,), (9, 7), (9, 7, 5), (3,)} <= paths
    one.draft.stop_below = 0.2  # 0.5 and 0.25 are enough, 0.14 is not
    assert list(drafter.propose([one], [6])[0].tokens) == [9, 7]


def test_before_any_pass_the_prompt_is_the_matrix():
    drafter, one = Recycle(Config(stop_below=0.0)), session(count=9, gamma=4, prompt=[1, 2, 1, 3, 1], rule=MATCH)
    drafter.begin(one)
    assert list(drafter.propose([one], [2])[0].tokens) == [3, 1]  # the latest follower first
    assert drafter.extend([one], [Start([2, 3])], [1])[0].tokens == [1]
    assert drafter.extend([one], [Start([], 1, [3])], [1])[0].tokens == [2]


@pytest.mark.parametrize(("rule", "trees"), [(BLOCK, True), (MATCH, False)], ids=["rule", "target"])
def test_chains_where_no_trees_are_taken(rule, trees):
    drafter = Recycle(Config(stop_below=0.0))
    one = session(count=9, gamma=4, prompt=[1, 2, 1, 3, 1, 2, 1], rule=rule)
    one.begin_draft(trees=trees)
    drafter.begin(one)
    proposal = drafter.propose([one], [5])[0]
    assert len(proposal) == 5 and proposal.is_chain


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_target_that_looks_one_token_back_is_soon_known(params):
    one = session(count=200, gamma=8, params=params, rng=KeyedRandomSource(3))
    assert list(decode(TARGET, V, Recycle(Config()), MATCH, one)) == plain(
        TARGET, KeyedRandomSource(3), params, (0, 1), 200
    )
    assert one.report.block_efficiency > (3 if params is GREEDY else 1.8)
    assert not one.report.warnings


def test_sessions_learn_for_themselves():
    drafter = Recycle(Config())
    one, other = (session(i, count=30, gamma=4, prompt=[1, 2, 1]) for i in range(2))
    other.tokens[:] = [1, 5, 1]
    for each in (one, other):
        each.rule = RATIO
        drafter.begin(each)
    assert [p.tokens for p in drafter.propose([one, other], [1, 1])] == [[2], [5]]


def test_learns_how_often_each_rank_comes_and_drafts_as_much():
    """A target that always says the likeliest is drafted deep; one that says anything, hardly at all."""
    sizes = []
    for follow in (lambda i: 1 + i % 3, lambda i: i * i * 7 % 997 % 40):
        drafter, one = Recycle(Config()), session(count=300, gamma=7, prompt=[1, 2, 3] * 3, rule=MATCH)
        drafter.begin(one)
        for i in range(120):
            drafter.propose([one], [7])
            one.tokens.append(follow(i))
            logits = np.zeros((1, 50), dtype=np.float32)
            logits[0, one.tokens[-1]] = 9.0
            drafter.observe([one], [Verdict([], one.tokens[-1], "correction")], [Forward([logits])])
        sizes.append(len(drafter.propose([one], [7])[0]))
    assert sizes[0] == 7 and sizes[1] <= 1


@pytest.mark.parametrize("options", [{"top": 0}, {"top": 9}, {"stop_below": 2.0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ParameterError, match=next(iter(options))):
        Config(**options)
