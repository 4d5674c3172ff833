"""Growing trees: what is chosen and dropped, what is drawn and kept; and the draft model's trees over many rounds."""

import math

import numpy as np
import pytest
from tests.helpers.toys import BLOCK, GREEDY, MATCH, RATIO, SAMPLED, admit, check_cache, commit_until, plain, session
from tests.helpers.toys import remembered as _remembered

from outpace.audit.toy import ToyRuntime, hashed_logits, mixed_logits
from outpace.core.errors import DrafterError, ParameterError
from outpace.core.protocols import Parts
from outpace.core.top import top
from outpace.core.types import Capabilities, Distribution, SamplingParams, log_total, softmax
from outpace.drafters.common.tree import Tree, likeliest
from outpace.drafters.draft_tree import Config, DraftTree, create
from outpace.engine.loop import Loop
from outpace.sampling.pipeline import Pipeline
from outpace.sampling.random_source import KeyedRandomSource, gumbel_noise

V = 7
TARGET = _remembered(hashed_logits(V, 61))
DRAFT = _remembered(mixed_logits(TARGET, hashed_logits(V, 62), 0.6))


def test_the_best_nodes_under_the_budget_are_a_tree():
    tree = Tree()
    born = [tree.add(-1, token, math.log(p)) for token, p in ((4, 0.6), (2, 0.3), (3, 0.1))]
    tree.descend(born, 2, 0.0)
    assert tree.level == [0, 1]
    for node, p in ((0, 0.5), (0, 0.2), (1, 0.9)):
        tree.add(node, 5, math.log(p))
    proposal = tree.proposal(4)
    assert (proposal.tokens, proposal.parents) == ([4, 2, 5, 5], [-1, -1, 0, 1])  # 0.6, 0.3, 0.3, 0.27; 0.12, 0.1 fell
    assert proposal.draft_distributions is None
    assert [len(tree.proposal(budget)) for budget in (0, 1, 9)] == [0, 1, 6]
    assert tree.proposal(9, floor=0.25).tokens == [4, 2, 5, 5]
    assert tree.proposal(9, floor=0.28).tokens == [4, 2, 5]


def test_equals_are_kept_parents_first():
    tree = Tree()
    node = -1
    for token in range(5):
        node = tree.add(node, token, 0.0)
    tree.add(-1, 6, 0.0)
    assert tree.proposal(3).parents == [-1, 0, 1]


def test_without_a_token_the_rest_keeps_its_proportions():
    distribution = Distribution(np.array([0.2, 0.5, 0.3], dtype=np.float32)).without([1])
    assert distribution.ids.tolist() == [0, 2]
    np.testing.assert_allclose(distribution.probs, np.array([0.4, 0.6], dtype=np.float32))


def test_greedy_alternatives_come_from_the_logits_and_the_pipeline_has_the_first_word():
    one = session(count=5, gamma=3, rule=MATCH)
    logits = np.array([0.0, 3.0, 2.0, -math.inf, 1.0], dtype=np.float32)
    found = likeliest(one, Distribution.point(1), logits, 2, 3)
    assert [token for token, _ in found] == [1, 2, 4]
    assert found[1][1] == pytest.approx(2.0 - math.log(1 + math.e + math.e**2 + math.e**3))
    assert [token for token, _ in likeliest(one, Distribution.point(4), logits, 2, 3)] == [4, 1, 2]
    assert len(likeliest(one, Distribution.point(1), logits, 2, 9)) == 4  # what cannot come is no alternative


def test_under_match_the_noise_ranks_the_alternatives():
    """With the target's own distribution every draw of the target is the first choice, and the second the next best."""
    distribution = Distribution(softmax(np.random.default_rng(0).standard_normal(50)))
    for seed in range(20):
        one = session(count=5, gamma=3, params=SAMPLED, rng=KeyedRandomSource(seed), rule=MATCH)
        noisy = distribution.scores + gumbel_noise(seed, 0, 9, np.arange(50))
        assert [token for token, _ in likeliest(one, distribution, distribution.scores, 9, 3)] == top(noisy, 3).tolist()
        one.rule = RATIO
        assert [token for token, _ in likeliest(one, distribution, distribution.scores, 9, 3)] == top(
            distribution.probs, 3
        ).tolist()


@pytest.mark.parametrize(("depth", "width", "children"), [(1, 1, 3), (4, 1, 3), (3, 2, 2), (3, 3, 4), (5, 2, 3)])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_draft_models_tree_is_the_one_grown_without_a_cache(depth, width, children, params):
    """Over rounds of every kind, for two sessions at once: the nodes submitted are those that a plain search finds."""
    drafter = DraftTree(ToyRuntime(DRAFT, V), Config(depth=depth, width=width, children=children))
    loop = Loop(ToyRuntime(TARGET, V), drafter, MATCH, commit_until())
    pair = [
        session(i, count=40, gamma=9, params=params, rng=KeyedRandomSource(i), prompt=[1, 2, 3] * (1 + 4 * i))
        for i in (0, 1)
    ]
    propose, sizes = drafter.propose, []

    def watched(sessions, budgets):
        proposals = propose(sessions, budgets)
        for one, budget, proposal in zip(sessions, budgets, proposals, strict=True):
            assert paths(proposal) == searched(one, budget, depth, width, children)
            sizes.append(len(proposal))
        return proposals

    drafter.propose = watched
    admit(loop, pair)
    turn = 0
    while active := [one for one in pair if one.finish is None]:
        for one in active:
            one.draft.gamma = [9, 2, 0, 5][turn % 4] if one.id else 6
        loop.round(active)
        check_cache(loop, active)
        turn += 1
    for one in pair:
        assert not one.report.warnings
        assert one.generated == plain(TARGET, one.rng, params, one.tokens[: one.request.prompt_length], 40)
    assert max(sizes) > depth or width * children == 1


def paths(proposal):
    """The texts of all nodes."""
    return {tuple(proposal.tokens[node] for node in proposal.path(i)) for i in range(len(proposal))}


def searched(one, budget, depth, width, children):
    """EAGLE-2's search, written out: expand the best of each level, keep the best of all."""
    scores, level = {(): 0.0}, [()]
    for _ in range(min(depth, budget)):
        born = []
        for path in level:
            prefix = [*one.tokens, *path]
            logits = DRAFT(tuple(prefix))
            values = logits - log_total(logits)
            if one.request.params.temperature > 0:
                noise = gumbel_noise(one.rng.seed, 0, len(prefix), np.arange(V))
                values = values + noise - log_total(values + noise)
            for token in top(values, children).tolist():
                born.append((*path, token))
                scores[born[-1]] = scores[path] + float(values[token])
        level = sorted(born, key=lambda path: -scores[path])[:width]
    del scores[()]
    return set(sorted(scores, key=lambda path: -scores[path])[:budget])


@pytest.mark.parametrize("rule", [RATIO, BLOCK], ids=["ratio", "block"])
def test_drawn_trees_carry_the_distributions_of_their_draws(rule):
    """Siblings without replacement, each with the distribution of its own draw; chains where the rule takes no
    trees."""
    drafter = DraftTree(ToyRuntime(DRAFT, V), Config(depth=3, width=2, children=3))
    for seed in range(30):
        one = session(count=40, gamma=8, params=SAMPLED, rng=KeyedRandomSource(seed), rule=rule)
        drafter.begin(one)
        [proposal] = drafter.propose([one], [8])
        drafter.end(one)
        proposal.check(V, 8, trees=rule.TREES)
        assert len(proposal) == (8 if rule.TREES else 3)
        for node in range(-1, len(proposal)):
            prefix = [*one.tokens, *(proposal.tokens[i] for i in proposal.path(node))]
            distribution = Pipeline(SAMPLED).distribution(DRAFT(tuple(prefix)), prefix)
            for child in proposal.children(node):
                np.testing.assert_allclose(proposal.draft_distributions[child].dense(V), distribution.dense(V))
                distribution = distribution.without([proposal.tokens[child]])


def test_drafting_stops_where_the_path_is_unlikely():
    drafter = DraftTree(ToyRuntime(DRAFT, V), Config(depth=4, width=2))
    one = session(count=40, gamma=12, rule=MATCH)
    drafter.begin(one)
    full = drafter.propose([one], [12])[0]
    one.draft.stop_below = 0.3
    less = drafter.propose([one], [12])[0]
    assert 0 < len(less) < len(full)
    one.draft.stop_below = 1.0
    assert len(drafter.propose([one], [12])[0]) == 0


def test_the_drafts_own_context_ends_the_tree():
    drafter = DraftTree(ToyRuntime(DRAFT, V, context=10), Config(depth=4, width=2))
    one = session(count=40, gamma=12, prompt=[1] * 8, rule=MATCH)
    drafter.begin(one)
    depths = [len(path) for path in paths(drafter.propose([one], [12])[0])]
    assert max(depths) == 3  # two tokens behind the text are within the draft's sight, and a third is guessed
    one.tokens += [1, 2, 3]
    assert len(drafter.propose([one], [12])[0]) == 0


def test_a_prompt_longer_than_a_pass_and_one_pass_a_level():
    runtime = ToyRuntime(TARGET, V)
    drafter = DraftTree(runtime, Config(depth=3, width=2))
    one = session(count=9, gamma=6, prompt=[i * 5 % V for i in range(600)], rule=MATCH)
    drafter.begin(one)
    [proposal] = drafter.propose([one], [6])
    assert tuple(plain(TARGET, KeyedRandomSource(0), one.request.params, one.tokens, 3)) in paths(proposal)
    assert runtime.forwards == 3 + 3  # 592 rows in three passes, then a pass a level
    assert one.report.seconds_draft_prefill > 0 and one.report.draft_passes == 3


def test_what_cannot_be_is_refused():
    with pytest.raises(DrafterError, match="--draft"):
        create(Config(), Parts(V))
    with pytest.raises(ParameterError, match="width"):
        Config(width=0)
    chains = ToyRuntime(DRAFT, V)
    chains.capabilities = lambda: Capabilities(False, "float64", True)
    with pytest.raises(DrafterError, match="width 1"):
        create(Config(width=2), Parts(V, draft=chains))
    one = session(count=9, gamma=6, params=SamplingParams(temperature=1.0), rule=MATCH)
    one.begin_draft(trees=False)
    drafter = create(Config(width=2), Parts(V, draft=ToyRuntime(DRAFT, V)))
    drafter.begin(one)
    assert drafter.propose([one], [6])[0].is_chain
