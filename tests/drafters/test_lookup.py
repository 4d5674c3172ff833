"""Lookup: what it proposes from which source, how far, and that it only ever costs time."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.helpers.shipped import model, new_engine
from tests.helpers.toys import GREEDY, MATCH, SAMPLED, decode, plain, remembered, session

from outpace import SamplingParams
from outpace.audit.toy import hashed_logits
from outpace.core.errors import DrafterError, ParameterError
from outpace.core.protocols import Parts
from outpace.drafters.common.extending import Start
from outpace.drafters.lookup import Config, Lookup, create
from outpace.drafters.lookup.pool import Pool
from outpace.sampling.random_source import KeyedRandomSource

EAGER = {"min_match": 1, "stop_below": 0.0}


def drafting(text, *, drafter=None, prediction=(), tenant="", number=0, **options):
    drafter = drafter or Lookup(Config(**options))
    one = session(number, count=200, gamma=16, prompt=text)
    one.request = replace(one.request, prediction=prediction, tenant=tenant)
    drafter.begin(one)
    return drafter, one


def propose(text, budget, **options):
    drafter, one = drafting(text, **options)
    return list(drafter.propose([one], [budget])[0].tokens)


def test_no_match_proposes_nothing():
    assert propose([1, 2, 3, 4], 8, **EAGER) == []
    assert propose([1, 2, 9, 1, 2], 8, min_match=3, stop_below=0.0) == []
    assert propose([5], 8, **EAGER) == []


def test_proposes_what_followed_within_the_budget():
    text = [1, 2, 3, 7, 8, 9, 4, 1, 2, 3]
    assert propose(text, 5, **EAGER) == [7, 8, 9, 4, 1]
    assert propose(text, 2, **EAGER) == [7, 8]
    assert propose(text, 0, **EAGER) == []


def test_latest_of_equal_matches_wins():
    assert propose([1, 2, 5, 9, 1, 2, 6, 9, 8, 1, 2], 2, **EAGER) == [6, 9]


def test_a_text_in_a_loop_is_continued_beyond_its_end():
    assert propose([1, 2, 1, 2, 1, 2], 5, **EAGER) == [1, 2, 1, 2, 1]


def test_the_length_of_the_match_decides_how_far():
    sizes = [len(propose([*range(20), 99, *range(20 - m, 20)], 20)) for m in (2, 4, 16)]
    assert sizes == sorted(sizes) and 0 < sizes[0] < sizes[2]


def test_learns_from_the_text_what_a_match_is_worth():
    """Two tokens that are followed by something else each time stop being a reason to draft, and start again."""
    fickle = [token for i in range(30) for token in (1, 2, 100 + i)]
    assert propose([*fickle, 1, 2], 8) == []
    assert propose([*fickle, *[1, 2, 7] * 20, 1, 2], 8)[:1] == [7]


def test_drafts_less_where_the_controller_asks_for_more_certainty():
    drafter, one = drafting([*range(8), 99, *range(4, 8), 98, *range(4, 8)])
    free = len(drafter.propose([one], [8])[0])
    one.draft.stop_below = 0.9
    assert len(drafter.propose([one], [8])[0]) < free


def test_generated_tokens_are_indexed_too():
    drafter, one = drafting([1, 2, 3], **EAGER)
    assert len(drafter.propose([one], [8])[0]) == 0
    one.tokens += [9, 1, 2]
    assert drafter.propose([one], [2])[0].tokens == [3, 9]


def test_sessions_do_not_see_each_other():
    drafter, one = drafting([1, 2, 1], **EAGER)
    _, other = drafting([1, 3, 1], drafter=drafter, number=1)
    assert [p.tokens for p in drafter.propose([other, one], [1, 1])] == [[3], [2]]
    drafter.end(one)
    drafter.begin(one)  # a number that is used again begins anew
    one.tokens[:] = [7, 7]
    assert drafter.propose([one], [1])[0].tokens == [7]


def test_behind_tokens_that_are_only_drafted():
    """What follows the text and the path; and the path leaves no trace."""
    drafter, one = drafting([1, 2, 3, 4, 5, 9, 1], **EAGER)
    assert drafter.extend([one], [Start([2, 3])], [2])[0].tokens == [4, 5]
    assert drafter.extend([one], [Start([8])], [2])[0].tokens == []
    assert drafter.propose([one], [2])[0].tokens == [2, 3]


def test_a_prediction_is_drafted_from_the_first_token_and_says_so():
    drafter, one = drafting([1, 2, 3], prediction=[50, 51, 52, 53, 54])
    proposal = drafter.propose([one], [4])[0]
    assert proposal.tokens == [50, 51, 52, 53]
    assert proposal.origins == ["prediction"] * 4
    one.tokens += [50, 51, 7]  # 52 became 7
    assert drafter.propose([one], [4])[0].tokens[:1] == [53]
    one.tokens += [53]
    assert drafter.propose([one], [4])[0].tokens == [54]


def edit_task(lines=60):
    """A file of ``lines`` lines in tokens, with a name in every third of them; and the same with another name."""
    name, new = [900, 901], [902, 903, 904]
    before, after = [], []
    for i in range(lines):
        line = [10 + i % 7, 20 + i % 5, *([] if i % 3 else name), 100 + i, 30 + i % 11, 200 + i % 13, 5]
        before += line
        at = line.index(900) if i % 3 == 0 else None
        after += line if at is None else [*line[:at], *new, *line[at + 2 :]]
    return before, after


@pytest.mark.parametrize("predicted", [False, True], ids=["prompt", "prediction"])
def test_an_edit_task_runs_near_the_row_budget(predicted):
    """The answer is the file with one name changed throughout: each round brings nearly all that fits."""
    before, after = edit_task()
    prompt = [1, 2, 3] if predicted else [1, 2, 3, *before, 4]
    said = [*prompt, *([] if predicted else before[:3]), *after[3 if not predicted else 0 :]]
    target = follows(said)
    one = session(count=len(after), gamma=16, prompt=prompt)
    one.request = replace(one.request, prediction=before if predicted else ())
    assert list(decode(target, 1000, Lookup(Config()), MATCH, one)) == said[len(prompt) :]
    assert one.report.block_efficiency > (13 if predicted else 10)  # 17 at most; the first lines are not yet a copy
    assert one.report.alpha > 0.95


def follows(text):
    """A target that says ``text``, whatever was accepted, by position."""

    def logits(prefix):
        row = np.zeros(1000, dtype=np.float64)
        row[text[min(len(prefix), len(text) - 1)]] = 9.0
        return row

    return logits


def test_nothing_is_wasted_on_a_text_that_never_repeats():
    """Prose-like: tokens of a skewed distribution. Hardly any row is drafted, since short matches prove worth
    nothing."""
    from random import Random

    random = Random(3)
    text = [min(int(random.paretovariate(0.6)), 900) for _ in range(1500)]
    one = session(count=1000, gamma=16, prompt=text[:500])
    decode(follows(text), 1000, Lookup(Config()), MATCH, one)
    assert one.report.drafted < 0.25 * one.report.target_passes


@pytest.mark.parametrize("order", [1, 2])
def test_markers_and_loops_cost_time_at_most(order):
    """B59: repeated markers, nested brackets, long runs of one token; any minimum, any length."""
    target = remembered(hashed_logits(5, 8, order=order))
    for prompt in ([0, 1, 2, 0, 1, 2, 0, 1], [3] * 12, [0, 0, 1, 1, 0, 0, 1, 1, 0], [4, 3, 4, 4, 3, 4, 4, 4, 3]):
        expected = tuple(plain(target, KeyedRandomSource(0), GREEDY, prompt, 24))
        for min_match in range(1, 9):
            for gamma in (1, 2, 5, 32):
                drafter = Lookup(Config(gamma, min_match, stop_below=0.0))
                assert decode(target, 5, drafter, MATCH, session(count=24, gamma=gamma, prompt=prompt)) == expected


@pytest.mark.parametrize("prediction", [(), [0] * 30, [4, 3, 2, 1, 0] * 8])
def test_any_prediction_and_any_pool_leave_the_answer_alone(prediction):
    target = remembered(hashed_logits(5, 8, order=2))
    drafter = Lookup(Config(pool=64, stop_below=0.0))
    for seed in range(6):  # from the second on the pool has something
        one = session(seed, count=24, gamma=6, params=SAMPLED, rng=KeyedRandomSource(seed))
        one.request = replace(one.request, prediction=prediction)
        assert list(decode(target, 5, drafter, MATCH, one)) == plain(
            target, KeyedRandomSource(seed), SAMPLED, (0, 1), 24
        )


def test_finished_requests_serve_their_own_tenant_only():
    drafter = Lookup(Config(pool=1000, **EAGER))
    _, one = drafting([1, 2, 3, 4, 5], drafter=drafter, tenant="a")
    drafter.end(one)
    answers = {}
    for number, tenant in enumerate(["a", "b", ""], start=1):
        _, other = drafting([9, 1, 2], drafter=drafter, tenant=tenant, number=number)
        answers[tenant] = drafter.propose([other], [4])[0].tokens
    assert answers == {"a": [3, 4, 5], "b": [], "": []}


def test_no_pool_unless_asked_for():
    drafter, one = drafting([1, 2, 3, 4, 5], **EAGER)
    drafter.end(one)
    _, other = drafting([9, 1, 2], drafter=drafter, number=1)
    assert drafter.propose([other], [4])[0].tokens == []


def test_a_pool_keeps_its_bound_and_the_latest():
    pool = Pool(100)
    for i in range(50):
        pool.add("a" if i % 2 else "b", list(range(i, i + 30)))
        assert len(pool) <= 100
    assert pool.texts("a")[0].tokens[-2] == 49 + 29
    pool.add("c", list(range(500)))
    assert 0 < len(pool) <= 100
    assert pool.texts("c")[0].tokens[-2] == 499


def corpus(path, **options):
    parts = Parts(1000, target_model=SimpleNamespace(tokenizer=model().tokenizer))
    return create(Config(corpus=str(path), **{**EAGER, **options}), parts)


def test_files_are_looked_up_in(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.py").write_text("def frobnicate(widget):\n    return widget.frob()\n")
    (tmp_path / "two.bin").write_bytes(b"\xff\xfe\x00")
    ids = model().tokenizer.encode("def frobnicate(widget):\n    return widget.frob()\n", add_special=False)
    for path in (tmp_path, tmp_path / "sub" / "one.py"):
        drafter, one = drafting([5, *ids[:3]], drafter=corpus(path))
        assert drafter.propose([one], [4])[0].tokens == ids[3:7]
    drafter, one = drafting([5, *ids[:3]], drafter=corpus(tmp_path, corpus_tokens=5))
    assert drafter.propose([one], [4])[0].tokens == ids[3:5]  # neither beyond the bound nor beyond the file


def test_what_a_corpus_needs(tmp_path):
    with pytest.raises(ParameterError, match="UTF-8"):
        corpus(tmp_path)
    with pytest.raises(ParameterError, match="nowhere"):
        corpus(tmp_path / "nowhere")
    with pytest.raises(DrafterError, match="tokenizer"):
        create(Config(corpus=str(tmp_path)), Parts(10))


@pytest.mark.parametrize(
    "options", [{"min_match": 0}, {"stop_below": -0.1}, {"stop_below": 1.5}, {"pool": -1}, {"corpus_tokens": 0}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ParameterError, match="lookup"):
        Config(**options)


def test_through_the_engine_a_prediction_is_the_fastest_way():
    """The answer itself as prediction: one pass for every 17 tokens; another one costs passes, not words."""
    engine = new_engine("lookup", drafter_options={})
    params = SamplingParams(max_tokens=48, ignore_eos=True)
    prompt = "def read(path):\n    with open(path) as f:\n        return"
    alone = engine.generate(prompt, params, gamma=0)
    right = engine.generate(prompt, params, prediction=alone.token_ids)
    wrong = engine.generate(prompt, params, prediction="something else entirely, and wrong")
    assert alone.token_ids == right.token_ids == wrong.token_ids
    assert right.report.target_passes <= 4 and right.origins.count("prediction") >= 40
    assert not right.report.warnings and not wrong.report.warnings
