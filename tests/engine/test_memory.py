"""Keys and values: one budget for all of them, and an allocation that fails ends its own request only."""

import contextlib
import mmap
import pathlib
import random

import pytest
from tests.helpers.shipped import model

import outpace
from outpace.core.cache import KVCache
from outpace.core.errors import CacheError, ContextError
from outpace.core.prefix_cache import cache_users_of
from outpace.core.types import SamplingParams

GREEDY = SamplingParams(max_tokens=24)
CODE = "class Stack:\n    def __init__(self):\n        self."
LONG = "class Tree:\n    def __init__(self):\n        self.root = None\n" * 3
DRAFTING = {
    "pair": {"drafter": "draft_model,lookup"},
    "tree": {"drafter": "draft_tree"},
    "other vocabulary": {"drafter": "reencode"},
    "hybrid": {"drafter": "hybrid"},
}


def engine(**options):
    options = {"drafter": "draft_model,lookup", "controller": "fixed", **options}
    return outpace.load(model("tiny"), model("tiny-draft"), **options)


def caches(one: outpace.Engine) -> list[KVCache]:
    """Every cache that there is: the target's, then the drafters'."""
    drafts = [share.prefix_cache.cache for drafter in one._drafters.values() for share in cache_users_of(drafter)]
    return [one.scheduler.loop.cache, *drafts]


def nothing_held(one: outpace.Engine) -> bool:
    """Whether only prefix caches are left, and no session is known."""
    users = [user for drafter in one._drafters.values() for user in cache_users_of(drafter)]
    kept = [one.scheduler.loop.prefix_cache, *(user.prefix_cache for user in users)]
    slots = all(prefix_cache.cache.slots == prefix_cache.slots for prefix_cache in kept)
    known = sum(len(getattr(d, name, ())) for d in one._drafters.values() for name in ("_states", "_readers"))
    return slots and known == 0 and one.open_requests == (0, 0)


def ends_of(one: outpace.Engine, streams, each_round=lambda: None, interrupt: type[BaseException] = MemoryError):
    """Step until all have ended, polling as a server does: each one's result, or its error."""
    said, ends = [""] * len(streams), [None] * len(streams)
    for _ in range(5000):
        if None not in ends:
            break
        with contextlib.suppress(interrupt):
            one.step()
        each_round()
        for i, stream in enumerate(streams):
            if ends[i] is None:
                try:
                    event = stream.poll()
                except Exception as error:
                    ends[i] = error
                    continue
                said[i] += event.text if event is not None else ""
                if stream.result is not None:
                    assert stream.result.text == said[i]
                    ends[i] = stream.result
    return ends


@pytest.mark.parametrize("error", [MemoryError, CacheError, KeyboardInterrupt])
def test_an_allocation_that_fails_ends_its_own_request_only(monkeypatch, error):
    """Wherever it fails: each is made to fail in turn, until there are no more."""
    requests = [(LONG, {}), (CODE, {}), (LONG, {"gamma": 0}), (CODE, {"drafter": "lookup"}), (LONG + CODE, {})]
    one = engine(prefix_bytes=1 << 22, max_batch=2)
    expected = [one.generate(prompt, GREEDY, **options).token_ids for prompt, options in requests]
    whole, left = KVCache.open, [0]

    def failing(self, capacity):
        left[0] -= 1
        if left[0] == 0:
            raise error("no memory")
        return whole(self, capacity)

    monkeypatch.setattr(KVCache, "open", failing)
    failed = []
    for turn in range(1, 100):
        one = engine(prefix_bytes=1 << 22, max_batch=2)
        left[0] = 0
        one.generate(LONG, GREEDY)  # for the others to copy from
        left[0] = turn
        ends = ends_of(one, [one.stream(prompt, GREEDY, **options) for prompt, options in requests], interrupt=error)
        assert nothing_held(one)
        wrong = [i for i, end in enumerate(ends) if isinstance(end, Exception)]
        for i, end in enumerate(ends):
            assert i in wrong or (end.token_ids, end.finish_reason) == (expected[i], "length")
        failed.append(wrong)
        if left[0] > 0:
            break
    assert failed[-1] == [] and all(len(wrong) <= 1 for wrong in failed)
    assert {i for wrong in failed for i in wrong} == set(range(len(requests)))


def test_the_reader_of_a_request_without_a_slot_learns_why_and_no_other_does(monkeypatch):
    one = engine()
    expected = one.generate(CODE, GREEDY).text
    whole = KVCache.open
    monkeypatch.setattr(KVCache, "open", lambda self, n: whole(self, n) if n < 100 else 1 / 0)
    good, bad = one.stream(CODE, GREEDY), one.stream(CODE, SamplingParams(max_tokens=200))
    assert "".join(event.text for event in good) == expected
    with pytest.raises(ZeroDivisionError):
        next(bad)
    assert bad.result.finish_reason == "error" and nothing_held(one)


def test_four_chats_without_a_limit_run_in_six_mebibytes():
    """None of them takes the whole context: what they have said is what they hold."""
    one = engine(kv_bytes=6 << 20)
    streams = [
        one.stream([{"role": "user", "content": f"Write {i}"}], SamplingParams(max_tokens=None)) for i in range(4)
    ]
    one.step()
    assert one.open_requests == (4, 0)
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("drafting", DRAFTING)
def test_what_is_held_never_exceeds_the_budget_and_answers_are_those_given_alone(monkeypatch, drafting):
    """Random requests on a budget that the longest one just fits: they outgrow it together, again and again."""
    rng = random.Random(drafting)
    alone = engine(**DRAFTING[drafting])
    requests = [
        (
            rng.choice([CODE, LONG, CODE + LONG])[: rng.randrange(8, 200)],
            SamplingParams(max_tokens=rng.randrange(1, 160), temperature=rng.choice([0.0, 1.0]), seed=i,
                           ignore_eos=True, logprobs=rng.choice([None, 2])),
            rng.choice([None, 0, 7]),
        )
        for i in range(14)
    ]  # fmt: skip
    expected = [alone.generate(prompt, params, gamma=gamma) for prompt, params, gamma in requests]
    budget = max(
        stream._opened.need(stream._opened.session.request.limit)
        for stream in [alone.stream(prompt, params, gamma=gamma) for prompt, params, gamma in requests]
    )
    one = engine(**DRAFTING[drafting], kv_bytes=budget, prefix_bytes=1 << 20)
    ids = one.encode(LONG)
    scored = [part for part in alone.prompt_logprobs(ids, 2, rows=8) if part]
    scoring, found, held, running = None, [], [], []
    given_up = []
    release = one.scheduler.loop.release
    monkeypatch.setattr(one.scheduler.loop, "release", lambda s: (given_up.append(s.finish), release(s)))

    def look():
        nonlocal scoring
        held.append(sum(cache.nbytes for cache in caches(one)))
        running.append(one.open_requests[0])
        if scoring is None:
            scoring = one.prompt_logprobs(ids, 2, rows=8)
        part = next(scoring, None)
        if part is None:
            scoring = None
        elif part:
            found.append(part)

    streams = [one.stream(prompt, params, gamma=gamma) for prompt, params, gamma in requests]
    ends = ends_of(one, streams, look)
    assert max(held) <= budget
    assert max(running) > 1 and given_up.count(None) >= 3  # several ran at once, and some gave way in mid-answer
    for end, whole in zip(ends, expected, strict=True):
        assert (end.text, end.token_ids, end.finish_reason, end.logprobs) == (
            whole.text, whole.token_ids, whole.finish_reason, whole.logprobs)  # fmt: skip
        mine, theirs = end.report, whole.report
        assert (mine.emitted, mine.prompt_tokens) == (theirs.emitted, theirs.prompt_tokens)
        assert mine.prompt_cached < mine.prompt_tokens and 0 <= mine.accepted <= mine.tested <= mine.drafted
        assert mine.target_passes + mine.accepted >= mine.emitted
    assert len(found) >= len(scored) and all(part in scored for part in found)
    if scoring is not None:
        scoring.close()
    assert nothing_held(one)


def test_a_slot_takes_the_pages_that_it_counts():
    """Of addresses for far more; and it gives them back. Counted by the system, which knows nothing of slots."""
    statm = pathlib.Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("no /proc")

    def resident() -> int:
        return int(statm.read_text().split()[1]) * mmap.PAGESIZE

    cache = KVCache(layers=28, kv_heads=2, head_dim=128, dtype="bfloat16")
    before = resident()
    slot = cache.open(32768)  # 896 MiB
    assert cache.nbytes == 0
    for entries in (1, 100, 1000):
        for part in cache.storage(slot):
            part[:, :, cache.length(slot) : entries] = 1
        cache.advance(slot, entries - cache.length(slot))
        assert cache.bytes_for(entries) == cache.nbytes < cache.bytes_for(entries + cache.block)
        assert abs(resident() - before - cache.nbytes) < 4 << 20
    cache.keep(slot, 10, [])
    assert cache.nbytes == cache.bytes_for(1000)  # pages stay until the slot is closed
    del part
    cache.close(slot)
    assert cache.nbytes == 0 and resident() - before < 4 << 20


def test_requests_that_could_never_fit_are_refused_with_their_drafts():
    one = engine()
    answer = one.stream(CODE, GREEDY)._opened
    need = answer.need(answer.session.request.limit)
    assert need > one.scheduler.loop.cache.bytes_for(answer.session.request.limit)
    engine(kv_bytes=need).stream(CODE, GREEDY)
    small = engine(kv_bytes=need - 1)
    with pytest.raises(ContextError, match="MiB are allowed"):
        small.stream(CODE, GREEDY)
    small.stream(CODE, GREEDY, gamma=0)
    with pytest.raises(ContextError):
        next(small.prompt_logprobs([5] * 1000, 0))
    assert nothing_held(engine())


def test_a_text_that_is_scored_waits_for_memory_in_its_turn():
    one = engine(kv_bytes=4 * 90112, prefix_bytes=0)
    ids = [5] * 90
    expected = [part for part in engine().prompt_logprobs(ids, 1) if part]
    first = [one.stream(CODE, GREEDY) for _ in range(4)]
    one.step()
    scoring = one.prompt_logprobs(ids, 1)
    assert next(scoring) == []
    late = one.stream(CODE, GREEDY)
    found = []
    while late.result is None:
        one.step()
        assert late._opened.session.slot < 0 or one.scheduler.admission._claims or found == expected
        if one.scheduler.admission._claims and (part := next(scoring, None)):
            found.append(part)
        for stream in [*first, late]:
            stream.poll()
    found += [part for part in scoring if part]
    assert found == expected and nothing_held(one)
