"""The draft model's own cache: it catches up, rolls back, and never drafts from a wrong prefix."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.helpers.toys import MATCH, RATIO, SAMPLED, admit, check_cache, commit_until, plain, remembered, session

from outpace.audit.toy import ToyRuntime, hashed_logits, mixed_logits
from outpace.core.errors import DrafterError
from outpace.core.protocols import Parts
from outpace.drafters.draft_model import Config, DraftModel, create
from outpace.drafters.lookup import Config as LookupConfig
from outpace.drafters.lookup import Lookup
from outpace.engine.loop import Loop
from outpace.sampling.pipeline import Pipeline
from outpace.sampling.random_source import KeyedRandomSource

V = 5
TARGET = remembered(hashed_logits(V, 31))
DRAFT = remembered(mixed_logits(TARGET, hashed_logits(V, 32), 0.6))


@pytest.mark.parametrize("gammas", [[3], [1], [4, 0, 2], [0, 0, 0, 5], [0] * 12 + [3]])
def test_drafts_come_from_the_right_prefix_after_any_round(gammas):
    """After full acceptance, refusals, and many rounds without drafting: draft with its distribution, at the right
    place."""
    one = session(count=40, gamma=3, params=SAMPLED, rng=KeyedRandomSource(4))
    drafter = DraftModel(ToyRuntime(DRAFT, V))
    loop = Loop(ToyRuntime(TARGET, V), drafter, RATIO, commit_until())
    propose, checked, lengths = drafter.propose, [], set()

    def watched(sessions, budgets):
        proposals = propose(sessions, budgets)
        for proposal in proposals:
            prefix = list(one.tokens)
            for token, distribution in zip(proposal.tokens, proposal.draft_distributions, strict=True):
                assert np.array_equal(
                    distribution.probs, Pipeline(SAMPLED).distribution(DRAFT(tuple(prefix)), prefix).probs
                )
                prefix.append(token)
                checked.append(token)
        return proposals

    drafter.propose = watched
    admit(loop, [one])
    turn = 0
    while one.finish is None:
        one.draft.gamma = gammas[turn % len(gammas)]
        before = len(one.tokens)
        loop.round([one])
        check_cache(loop, [one])
        lengths.add(len(one.tokens) - before)
        turn += 1
    assert len(checked) > 2
    assert len(lengths) > 1  # both accepted and refused


def test_draws_with_the_noise_of_match_and_keeps_no_distributions_there():
    one = session(count=9, gamma=4, params=SAMPLED, rng=KeyedRandomSource(4), rule=MATCH)
    drafter = DraftModel(ToyRuntime(TARGET, V))
    drafter.begin(one)
    proposal = drafter.propose([one], [4])[0]
    assert proposal.tokens == plain(TARGET, KeyedRandomSource(4), SAMPLED, one.tokens, 4)
    assert proposal.draft_distributions is None


def test_prompts_longer_than_a_prefill_pass():
    prompt = [i * 7 % V for i in range(700)]
    one = session(count=9, gamma=3, prompt=prompt, rule=MATCH)
    drafter = DraftModel(ToyRuntime(TARGET, V))
    drafter.begin(one)
    assert drafter.propose([one], [3])[0].tokens == plain(TARGET, KeyedRandomSource(0), one.request.params, prompt, 3)


def test_a_text_that_begins_like_an_ended_one_is_read_from_there_on():
    """Whatever the end of the other was: drafts are those of the right text, and other tenants share nothing."""
    prompt = [i * 7 % V for i in range(60)]
    drafter = DraftModel(ToyRuntime(TARGET, V), prefix_bytes=1 << 20)
    first = session(0, count=30, gamma=3, prompt=prompt, rule=MATCH)
    assert drafter.begin(first) == 0
    proposal = drafter.propose([first], [3])[0]
    first.tokens += [(token + 1) % V for token in proposal.tokens]  # refused, and it never came to know: its cache is
    drafter.end(first)  # that of its drafts
    texts = [(prompt, 59), ([*first.tokens, 1], 60), ([*prompt[:40], 1, 1, 2], 40), (proposal.tokens * 9, 0)]
    for number, (text, known) in enumerate(texts, 1):
        one = session(number, count=9, gamma=3, prompt=text, rule=MATCH)
        assert drafter.begin(one) == known
        assert drafter.propose([one], [3])[0].tokens == plain(TARGET, KeyedRandomSource(0), one.request.params, text, 3)
        drafter.end(one)
    stranger = session(9, count=9, gamma=3, prompt=prompt, rule=MATCH)
    stranger.request = replace(stranger.request, tenant="somebody else")
    assert drafter.begin(stranger) == 0


def test_a_pass_serves_all_sessions_of_a_step():
    runtime = ToyRuntime(DRAFT, V)
    drafter = DraftModel(runtime)
    batch = [session(i, count=20, gamma=4, rule=MATCH) for i in range(4)]
    for one in batch:
        drafter.begin(one)
    before = runtime.forwards
    proposals = drafter.propose(batch, [4, 0, 2, 1])
    assert [len(proposal) for proposal in proposals] == [4, 0, 2, 1]
    assert runtime.forwards - before == 4


def test_without_a_draft_model_it_says_what_to_do():
    with pytest.raises(DrafterError, match="--draft"):
        create(Config(), Parts(V))


def test_drafting_stops_once_the_path_is_unlikely_to_stand():
    """The token that crosses the line was drawn, and is submitted; lookup's guesses behind it are not."""
    for lookup in (None, Lookup(LookupConfig(min_match=1))):
        drafter = DraftModel(ToyRuntime(DRAFT, V), lookup)
        one = session(
            count=30, gamma=8, params=SAMPLED, rng=KeyedRandomSource(3), prompt=[0, 1, 2, 0, 1, 2], rule=RATIO
        )
        drafter.begin(one)
        whole = drafter.propose([one], [8])[0]
        drafter.end(one)
        drafter.begin(one)
        stands = [
            math.prod(
                distribution.prob(t)
                for t, distribution in zip(whole.tokens[:n], whole.draft_distributions, strict=False)
            )
            for n in range(9)
        ]
        one.draft.stop_below = 0.2
        short = drafter.propose([one], [8])[0]
        expected = next(n for n in range(1, 9) if stands[n] < 0.2)
        assert list(short.tokens) == list(whole.tokens[:expected])
        assert expected < 8


@pytest.mark.parametrize("stop_below", [0.0, 0.9])
def test_lookup_spares_the_draft_passes_and_changes_none_of_its_tokens(stop_below):
    """By default; whatever the threshold that the target's rows set in this round."""

    def counting(prefix):
        return np.eye(V)[(prefix[-1] + 1) % V].astype(np.float64) * 50

    found = {}
    for config in (Config(), Config(lookup=0)):
        runtime = ToyRuntime(counting, V)
        drafter = create(config, Parts(V, draft=runtime))
        one = session(count=30, gamma=6, prompt=[0, 1, 2, 3, 4] * 4, rule=MATCH)
        one.draft.stop_below = stop_below
        drafter.begin(one)
        tokens = list(drafter.propose([one], [6])[0].tokens)
        found[config.lookup] = tokens, one.report.draft_passes, runtime.forwards
    (without, six, all_without), (spared, one_pass, all_spared) = found[0], found[1]
    assert without == spared == [0, 1, 2, 3, 4, 0]
    assert (six, one_pass, all_without - all_spared) == (6, 1, 5)  # reading the prompt is not counted
