"""Drafts of another vocabulary: token by token where both have it, or by way of the text."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.helpers.shipped import model
from tests.helpers.tiny_models import byte_level_tokenizer, metaspace_tokenizer
from tests.helpers.toys import (
    BLOCK,
    GREEDY,
    MATCH,
    RATIO,
    SAMPLED,
    admit,
    commit_until,
    decode,
    distance,
    finish,
    plain,
    remembered,
    session,
)
from tests.helpers.vocabularies import foreseeing, letters, parts, scripted

from outpace import SamplingParams, drafters, load
from outpace.audit.toy import ToyRuntime, hashed_logits
from outpace.core.errors import DrafterError, VocabularyError
from outpace.core.protocols import Parts
from outpace.core.types import softmax
from outpace.drafters.common.other_text import DraftText
from outpace.engine.loop import Loop
from outpace.runtimes.loading import LoadedModel
from outpace.sampling.pipeline import Pipeline
from outpace.sampling.random_source import KeyedRandomSource
from outpace.text.tokenizer import Tokenizer

NAMES = ["intersect", "reencode"]
OURS = letters("a", "b", "c")
THEIRS = letters("x", "c", "ab", "a", "b")  # other ids, one token that we lack, one that is two of ours
LACKING = letters("x", "c", "a")  # no b: what the target says is often beyond it
TARGET = remembered(hashed_logits(3, 1))
MIXED = "Él dijo: naïve café, 山の上の家 😀🎉 and then\n    return x1 + 42  # <|im_end|> <s> done\n"
PROSE = "the quick brown fox jumps over the lazy dog and then it runs away from there. " * 12

every = pytest.mark.parametrize("name", NAMES)


def build(name: str, target: Tokenizer, draft: Tokenizer, runtime: ToyRuntime, gamma: int = 4):
    module = drafters.module(name)
    return module.create(module.Config(gamma=gamma), parts(target, draft, runtime))


GUESSES = {draft: remembered(hashed_logits(draft.size, 5)) for draft in (THEIRS, LACKING)}


def toy(name: str, draft: Tokenizer):
    return build(name, OURS, draft, ToyRuntime(GUESSES[draft], draft.size))


@every
@pytest.mark.parametrize("rule", [RATIO, BLOCK], ids=["ratio", "block"])
@pytest.mark.parametrize("draft", [THEIRS, LACKING], ids=["more", "fewer"])
@pytest.mark.parametrize(
    "params",
    [GREEDY, SAMPLED, SamplingParams(temperature=1.7, top_k=2), SamplingParams(temperature=0.6, top_p=0.8)],
    ids=["greedy", "sampled", "top-k", "top-p"],
)
def test_the_distribution_of_the_output_is_the_targets(name, rule, draft, params):
    assert distance(TARGET, 3, lambda rule: toy(name, draft), rule, gamma=2, count=3, params=params) < 1e-9


@every
def test_drafted_distributions_hold_shared_tokens_only(name):
    one = session(count=20, gamma=3, params=SAMPLED, rule=RATIO)
    drafter = toy(name, LACKING)
    drafter.begin(one)
    proposal = drafter.propose([one], [3])[0]
    assert proposal.tokens and 1 not in proposal.tokens
    if name == "reencode":
        assert proposal.draft_distributions is None  # chosen, not drawn
    else:
        for distribution in proposal.draft_distributions:
            assert distribution.prob(1) == 0 and float(distribution.probs.sum()) == pytest.approx(1)
            assert distribution.prob(0) > 0 and distribution.prob(2) > 0


def test_intersection_is_the_drafts_distribution_renormalised():
    """At temperature 1: q(x) over the sum of q over what both have."""
    one = session(count=20, gamma=1, params=SAMPLED, rule=RATIO)
    drafter = toy("intersect", LACKING)
    drafter.begin(one)
    distribution = drafter.propose([one], [1])[0].draft_distributions[0]
    ids = LACKING.encode("a", add_special=False)  # "ab" is the prompt; the draft lacks b
    whole = softmax(GUESSES[LACKING](tuple(ids)))  # x, c, a
    expected = np.stack((whole[2], np.array(0.0), whole[1])) / (whole[1] + whole[2])
    assert np.allclose(distribution.dense(3), expected)


@every
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_under_match_every_answer_is_plain_decodings(name, params):
    accepted = 0
    for seed in range(3):
        for gamma in (1, 4):
            one = session(count=16, gamma=gamma, rng=KeyedRandomSource(seed), params=params)
            found = decode(TARGET, 3, toy(name, THEIRS), MATCH, one)
            assert found == tuple(plain(TARGET, KeyedRandomSource(seed), params, one.tokens[:2], 16))
            assert not one.report.warnings
            accepted += one.report.accepted
    assert accepted > 0


PAIRS = {
    "bytes to bytes": (Tokenizer(byte_level_tokenizer(400)), Tokenizer(byte_level_tokenizer(300))),
    "bytes to pieces": (Tokenizer(byte_level_tokenizer(320)), Tokenizer(metaspace_tokenizer(360))),
    "pieces to bytes": (Tokenizer(metaspace_tokenizer(340)), Tokenizer(byte_level_tokenizer(400))),
}
pairs = pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())


@every
@pairs
@pytest.mark.parametrize("rule", [MATCH, RATIO], ids=["match", "ratio"])
def test_a_draft_that_foresees_the_text_is_accepted(name, pair, rule):
    """The draft reads the text rightly at every round, and its tokens are rightly brought back."""
    target, draft = pair
    text = "the cat sat on the mat and then it ran over there to the other cat, return a + b and add(1, 2) again"
    tokens = target.encode(text, add_special=False)
    spelled = b"".join(map(target.token_bytes, tokens)).decode()  # may begin with a space
    drafter = build(name, target, draft, foreseeing(draft, spelled))
    one = session(count=len(tokens) - 3, gamma=3, params=SAMPLED, prompt=tokens[:3])
    loop = Loop(ToyRuntime(scripted(tokens, target.size), target.size), drafter, rule, commit_until())
    admit(loop, [one])
    finish(loop, [one])
    assert one.tokens == tokens and not one.report.warnings
    assert one.report.block_efficiency > (2.5 if name == "reencode" else 1.5)
    assert one.report.draft_passes >= one.report.target_passes - 1  # the last round may have no room for drafts


@pairs
def test_draft_text_is_followed_token_by_token(pair):
    """Encoded from the last seam on, as the whole text is encoded at once; the words are those of the text."""
    target, draft = pair
    tokens = target.encode(PROSE, add_special=True)
    known = DraftText(target, draft)
    for end in range(1, len(tokens), 11):
        ids = known.follow(tokens[:end])
        spelled = b"".join(map(target.token_bytes, tokens[:end])).decode()
        assert b"".join(map(draft.token_bytes, ids)).decode().strip(" ") == spelled.strip(" ")
        assert ids == DraftText(target, draft).follow(tokens[:end])
    assert len(known._tail) < 300


@pairs
def test_nothing_is_drafted_within_a_character(pair):
    target, draft = pair
    tokens = target.encode("a😀", add_special=False)
    runtime = ToyRuntime(hashed_logits(draft.size, 3), draft.size)
    for name in NAMES:
        for end in range(1, len(tokens) + 1):
            one = session(count=20, gamma=3, prompt=tokens[:end], rule=MATCH)
            drafter = build(name, target, draft, runtime)
            drafter.begin(one)
            whole = b"".join(map(target.token_bytes, tokens[:end])).decode(errors="replace").find("\ufffd") < 0
            assert bool(drafter.propose([one], [3])[0].tokens) <= whole
            assert whole or not drafter.propose([one], [3])[0].tokens


@every
@pairs
def test_any_text_stays_in_range_and_equals_plain(name, pair):
    """Emoji, accents, other scripts, code, literal markers; drafts from all over a larger or smaller vocabulary."""
    target, draft = pair
    tokens = target.encode(MIXED, add_special=True)
    drafter = build(name, target, draft, ToyRuntime(hashed_logits(draft.size, 8, order=1), draft.size))
    logits = remembered(hashed_logits(target.size, 9, sharpness=6.0, order=1))
    for cut in range(1, len(tokens), 17):
        one = session(cut, count=8, gamma=4, params=SAMPLED, rng=KeyedRandomSource(cut), prompt=tokens[:cut])
        loop = Loop(ToyRuntime(logits, target.size), drafter, MATCH, commit_until())
        admit(loop, [one])
        finish(loop, [one])
        assert one.generated == plain(logits, KeyedRandomSource(cut), SAMPLED, tokens[:cut], 8)
        assert not one.report.warnings
    assert drafter._draft.cache.slots == 0 and not drafter._draft.states


@every
def test_a_draft_whose_context_ends_drafts_no_more(name):
    runtime = ToyRuntime(hashed_logits(THEIRS.size, 5), THEIRS.size, context=9)
    drafter = build(name, OURS, THEIRS, runtime)
    one = session(count=30, gamma=4, params=SAMPLED)
    found = decode(TARGET, 3, drafter, MATCH, one)
    assert found == tuple(plain(TARGET, KeyedRandomSource(0), SAMPLED, [0, 1], 30))
    assert 0 < one.report.drafted < 40 and not one.report.warnings


@every
def test_a_pass_serves_all_sessions_of_a_step(name):
    runtime = ToyRuntime(hashed_logits(LACKING.size, 1), LACKING.size)
    drafter = build(name, OURS, LACKING, runtime)
    batch = [session(i, count=20, gamma=4, rule=MATCH) for i in range(4)]
    for one in batch:
        drafter.begin(one)
    before = runtime.forwards
    assert [len(proposal) for proposal in drafter.propose(batch, [4, 0, 2, 1])] == [4, 0, 2, 1]
    assert runtime.forwards - before == 4


@every
def test_doubt_stops_the_draft(name):
    drafter = build(name, OURS, THEIRS, ToyRuntime(hashed_logits(THEIRS.size, 1), THEIRS.size))
    one = session(count=20, gamma=6, params=SAMPLED, rule=RATIO)
    one.draft.stop_below = 0.99
    drafter.begin(one)
    assert len(drafter.propose([one], [6])[0]) == 1


@every
def test_a_grammar_without_shared_tokens_leaves_the_round_plain(name):
    class OnlyB:
        def distribution(self, logits, prefix):
            masked = np.full_like(logits, -np.inf)
            masked[1] = logits[1]
            return Pipeline(SAMPLED).distribution(masked, prefix)

    one = session(count=6, gamma=3, params=SAMPLED, pipeline=OnlyB(), rng=KeyedRandomSource(0))
    assert decode(TARGET, 3, toy(name, LACKING), RATIO, one) == (1,) * 6
    assert not one.report.warnings


# ---- with models


def test_the_error_of_an_unfit_pair_names_what_bridges_it():
    target = model("tiny")
    with pytest.raises(VocabularyError) as caught:
        load(target, other(target))
    needs = drafters.requirements(drafters.configure(drafters.names(), {}))
    bridging = [name for name, one in needs.items() if one.draft_model and not one.same_vocabulary]
    assert sorted(bridging) == NAMES
    assert all(name in str(caught.value) for name in bridging)


def other(target: LoadedModel) -> LoadedModel:
    """A model that knows nothing, of a vocabulary of its own."""
    tokenizer = Tokenizer(byte_level_tokenizer(300))
    runtime = ToyRuntime(hashed_logits(tokenizer.size, 2, order=1), tokenizer.size, dtype=np.float32)
    return dataclasses.replace(target, runtime=runtime, tokenizer=tokenizer, name="other")


@every
def test_an_engine_takes_a_draft_of_another_vocabulary(name):
    target = model("tiny")
    engine = load(target, other(target), drafter=name, controller="fixed")
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=24, ignore_eos=True)
    drafted, alone = engine.generate(MIXED, params), engine.generate(MIXED, params, gamma=0)
    assert drafted.token_ids == alone.token_ids
    assert drafted.report.drafted > 0 and not drafted.report.warnings


@every
def test_without_a_draft_it_says_what_to_do(name):
    module = drafters.module(name)
    with pytest.raises(DrafterError, match="--draft"):
        module.create(module.Config(), Parts(3))


def test_vocabularies_without_a_common_token():
    with pytest.raises(DrafterError, match="reencode"):
        build("intersect", OURS, letters("x", "y"), ToyRuntime(hashed_logits(2, 1), 2))
