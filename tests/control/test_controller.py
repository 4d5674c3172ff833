"""The controller: what it learns, what it decides, and what it may lose."""

from __future__ import annotations

import gc
import itertools
import random

import pytest
from tests.helpers.shipped import model
from tests.helpers.toys import session

from outpace import SamplingParams, load
from outpace.bench.simulate import Logged, Truth, by_chance, simulate, speedup
from outpace.control.acceptance import Acceptance, Prior
from outpace.control.allocation import Candidate, allocate, without_drafts
from outpace.control.controller import AutoController
from outpace.control.cost_model import CostModel
from outpace.control.drift import LinearFit, SpeedDrift
from outpace.control.pass_costs import PassCosts
from outpace.core.types import Proposal, RoundSeconds, Verdict
from outpace.engine.explain import explain

TARGET = PassCosts((1, 2, 4, 8, 16), (1.0, 1.1, 1.3, 1.8, 3.0))
DRAFT = PassCosts((1, 32), (0.1, 0.32))
STEEP = PassCosts((1, 2, 16), (1.0, 2.0, 16.0))


def cost_model(target=TARGET):
    return CostModel(target, {"draft": DRAFT})


def candidate(alpha, most=12, least=0):
    chances = [alpha ** (place + 1) for place in range(most)]
    return Candidate("draft", 0, most, least, chances, [1.0] * most)


def auto(target=TARGET, drafts=None):
    return AutoController(target, {"draft": DRAFT} if drafts is None else drafts, clock=lambda: 0.0)


# Timing


def test_drift_follows_the_machine():
    drift = SpeedDrift()
    for _ in range(40):
        drift.observe("one row", 1.5, 1.0)
    assert drift.factor("one row") == pytest.approx(1.5, rel=0.02)
    assert 1.2 < drift.factor("another size") < 1.5  # mostly the machine's


def test_drift_is_not_taken_in_by_an_interruption():
    drift = SpeedDrift()
    for _ in range(40):
        drift.observe("one row", 1.0, 1.0)
    drift.observe("one row", 30.0, 1.0)
    assert drift.factor("one row") < 1.1


def test_catching_up_with_a_few_tokens_says_nothing_about_reading():
    """A draft model's cost of reading a prompt went down by a share in every round that it was two tokens behind."""
    learnt = cost_model()
    before = learnt.prefill("draft", 1000)
    for _ in range(500):
        learnt.observe_prefill("draft", 2, 1e-6)
    assert learnt.prefill("draft", 1000) == before
    learnt.observe_prefill("draft", 500, 50.0)
    assert learnt.prefill("draft", 1000) == pytest.approx(100.0)
    assert learnt.prefill("draft", 5) == 0


def test_a_draft_goes_on_after_lookup_has_copied():
    """Some tokens behind, as a draft model is then, is no text to be patient about: it was only ever tried again."""
    always, copies = Logged([99] * 400, [3] * 400), [8 if i % 40 < 9 else 0 for i in range(400)]
    copying = Logged(copies, [8] * 400, [[0.97] * n for n in copies])
    drafts = {"draft": always, "lookup": copying}
    found = simulate(drafts, Truth(TARGET, {"draft": DRAFT}), 400, controller=auto(), prompt=40)
    assert sum(3 <= n < 8 for n in found.nodes) > 50


def test_line_learns_both_parameters_and_stays_positive():
    rng, line = random.Random(0), LinearFit(0.0, 1.0)
    for _ in range(200):
        x = rng.choice([1, 2, 4, 8])
        line.observe(x, 0.5 + 0.25 * x)
    assert line.at(1) == pytest.approx(0.75, rel=0.1) and line.at(8) == pytest.approx(2.5, rel=0.1)
    falling = LinearFit(0.0, 1.0)
    for x in [1, 8] * 50:
        falling.observe(x, 1.0 / x)
    assert falling.step >= 0 and falling.first >= 0


def test_prices_of_a_drafter_without_a_model_are_learnt():
    known = cost_model()
    for _ in range(30):
        known.observe(5, 0.0, {"lookup": 4.0}, 3, RoundSeconds(0.4, 1.4, 0.0, 0.0))
    assert known.drafting("lookup", 4.0) == pytest.approx(0.4, rel=0.1)


# Acceptance


def feed(acceptance, alpha, budget, rounds, seed=0):
    draft = by_chance(alpha, seed)
    for _ in range(rounds):
        made, accepted = draft(0, budget)
        acceptance.observe(budget, Proposal.chain([0] * made), Verdict(list(range(accepted)), 0, "correction"))


def test_acceptance_is_learnt_by_depth():
    acceptance = Acceptance(Prior(0.7), keep=0.999)
    feed(acceptance, [0.9, 0.5, 0.9], 3, 1500)
    accept_probs, propose_probs = acceptance.forecast(3)
    assert accept_probs[:3] == pytest.approx([0.9, 0.45, 0.405], abs=0.04)
    assert propose_probs[:3] == pytest.approx([1, 1, 1], abs=0.01)


@pytest.mark.parametrize(("alpha", "low", "high"), [(0.97, 0.8, 1.0), (0.1, 0.0, 0.55)])
def test_a_few_rounds_move_the_forecast_of_places_never_tried(alpha, low, high):
    acceptance = Acceptance(Prior(0.7))
    feed(acceptance, alpha, 2, 10)
    assert low < acceptance.accept_prob(4) / acceptance.accept_prob(3) < high


def test_a_drafter_that_finds_nothing_is_charged_for_it():
    acceptance = Acceptance(Prior(0.7))
    for i in range(60):
        found = i % 4 == 0  # one round in four finds three tokens, and all stand
        proposal = Proposal.chain([0, 0, 0] if found else [])
        acceptance.observe(6, proposal, Verdict([0, 1, 2] if found else [], 0, "bonus"))
    accept_probs, propose_probs = acceptance.forecast(4)
    assert propose_probs[0] == pytest.approx(0.25, abs=0.08) and propose_probs[3] < 0.05
    assert accept_probs[2] == pytest.approx(0.25, abs=0.08)


def test_places_of_a_tree_are_learnt_apart():
    acceptance = Acceptance(Prior(0.7), keep=0.999)
    tree = Proposal([1, 2, 3], [-1, -1, 0])  # the second node is a poor sibling, the third a good child
    for i in range(400):
        path = [0, 2] if i % 10 < 6 else [1] if i % 10 == 6 else []
        acceptance.observe(3, tree, Verdict(path, 0, "correction"))
    assert acceptance.forecast(3)[0][:3] == pytest.approx([0.6, 0.1, 0.6], abs=0.04)


# Allocation


@pytest.mark.parametrize("target", [TARGET, STEEP])
@pytest.mark.parametrize("alpha", [0.2, 0.45, 0.7, 0.9])
def test_the_share_of_one_session_is_the_closed_forms_best_gamma(alpha, target):
    best = max(range(13), key=lambda gamma: speedup(alpha, gamma, 0.1, target.relative))
    found = allocate([candidate(alpha)], cost_model(target))
    assert found.nodes == [best]
    assert found.rate == pytest.approx(speedup(alpha, best, 0.1, target.relative))


def test_a_batch_shares_one_budget_by_what_each_gains():
    candidates = [candidate(0.9), candidate(0.5), candidate(0.1)]
    found = allocate(candidates, cost_model())
    assert found.nodes[0] > found.nodes[1] >= found.nodes[2] == 0
    free = PassCosts((1, 64), (1.0, 1.0))

    def rate(nodes):  # by hand: rows of one pass, and steps in which fewer and fewer take part
        tokens = sum(1 + sum(o.accept_probs[:n]) for o, n in zip(candidates, nodes, strict=True))
        steps = sum(DRAFT.relative(sum(n > d for n in nodes)) for d in range(max(nodes)))
        return tokens / (TARGET.of(3 + sum(nodes)) + 0.1 * steps)

    best = max(itertools.product(range(8), repeat=3), key=rate)
    assert found.rate == pytest.approx(rate(found.nodes)) and found.rate > 0.99 * rate(best)
    assert sum(allocate([candidate(0.8)] * 8, cost_model()).nodes) < sum(
        allocate([candidate(0.8)] * 8, cost_model(free)).nodes
    )


def test_what_a_session_drafts_in_any_case_is_counted():
    found = allocate([candidate(0.1, least=4), candidate(0.9)], cost_model())
    assert found.nodes[0] == 4 and found.seconds > allocate([candidate(0.1), candidate(0.9)], cost_model()).seconds
    assert without_drafts([candidate(0.9)], cost_model()).nodes == [0]


# Decisions


def run(alpha, *, target=TARGET, tokens=300, prompt=20, limit=None, controller=None, drafts=None, seed=0):
    truth = Truth(target, {"draft": DRAFT})
    return simulate(drafts or {"draft": by_chance(alpha, seed)}, truth, tokens, prompt=prompt, limit=limit,
                    controller=controller or auto(target))  # fmt: skip


def test_the_first_token_does_not_wait_for_drafts():
    found = run(0.9, prompt=500)
    assert found.nodes[0] == 0
    assert found.first == pytest.approx(Truth(TARGET).prefill(500) + 1.0)


def test_a_long_prompt_before_a_short_answer_is_not_read_by_the_draft():
    assert sum(run(0.95, prompt=2000, tokens=16).nodes) == 0
    assert sum(run(0.95, prompt=100, tokens=300).nodes) > 100


def test_what_was_saved_up_is_not_spent_on_reading_one_long_prompt():
    controller = auto()
    controller._states.tenant("").credit = 1e9
    assert sum(run(0.95, prompt=2000, tokens=16, controller=controller).nodes) == 0


def test_a_long_answer_makes_a_long_prompt_worth_reading_in_the_end():
    nodes = run(0.95, prompt=5000, tokens=1500).nodes
    began = next(i for i, n in enumerate(nodes) if n)
    assert 20 < began < 1000


def test_bad_drafts_cost_little():
    plainly = simulate({"draft": by_chance(0.0)}, Truth(TARGET), 400, gamma=0, prompt=20).seconds
    assert plainly / run(0.02, tokens=400).seconds > 0.97


def test_trying_again_spends_only_what_was_saved_up():
    slow = {"draft": PassCosts((1, 32), (0.1, 3.2))}  # to catch up costs a tenth of the time it was away
    truth, controller = Truth(TARGET, slow), auto(drafts=slow)
    plainly = simulate({"draft": by_chance(0.0)}, truth, 600, gamma=0, prompt=5).seconds
    assert plainly / simulate({"draft": by_chance(0.0)}, truth, 600, controller=controller, prompt=5).seconds > 0.97


def test_drafting_comes_back_when_the_text_changes():
    def draft(position, allowed):
        return allowed, allowed if position > 300 else 0

    quick = {"draft": PassCosts((1, 32), (0.1, 0.11))}  # catching up costs less than what may be lost by trying
    truth, controller = Truth(TARGET, quick), auto(drafts=quick)
    nodes = simulate({"draft": draft}, truth, 900, prompt=20, controller=controller).nodes
    assert sum(nodes[100:250]) < 40 and nodes[-30] >= 8


def test_the_better_drafter_is_chosen():
    drafts = {"poor": by_chance(0.2, 1), "good": by_chance(0.9, 2)}
    truth = Truth(TARGET, {"poor": DRAFT, "good": DRAFT})
    chosen = []

    class Watched(AutoController):
        def budgets(self, sessions, most):
            found = super().budgets(sessions, most)
            chosen.append(sessions[0].draft.drafter_name)
            return found

    simulate(drafts, truth, 400, controller=Watched(TARGET, dict.fromkeys(drafts, DRAFT), clock=lambda: 0.0))
    assert chosen[20:].count("good") > 0.85 * len(chosen[20:])


def test_a_drafters_own_forecast_is_used_from_the_first_round_on():
    """What lookup knows: nothing to copy for 40 tokens, then a long passage."""
    chances = [[]] * 40 + [[0.98 ** (i + 1) for i in range(16)]] * 60
    copying = Logged([len(each) for each in chances], [len(each) for each in chances], chances)
    found = simulate({"lookup": copying}, Truth(TARGET), 100, gamma=16, controller=auto(drafts={}))
    assert sum(found.nodes[:40]) == 0 and min(found.nodes[41:-1]) >= 8
    wary = Logged(copying.proposed, copying.accepted, [[0.1] if each else [] for each in chances])
    assert sum(simulate({"lookup": wary}, Truth(STEEP), 100, gamma=16, controller=auto(STEEP, {})).nodes) == 0


def test_a_prompt_is_not_read_while_a_drafter_that_reads_nothing_does():
    """An edit: a few tokens of its own, then a long copy. Reading the prompt would pay, were it not for lookup."""
    chances = [[]] * 6 + [[0.98 ** (i + 1) for i in range(16)]] * 240
    copying = Logged([len(each) for each in chances], [len(each) for each in chances], chances)
    truth, chosen = Truth(TARGET, {"draft": DRAFT}), []

    class Watched(AutoController):
        def budgets(self, sessions, most):
            found = super().budgets(sessions, most)
            chosen.append(sessions[0].draft.drafter_name if found[0] else "")
            return found

    for drafts in ({"draft": by_chance(0.95), "lookup": copying}, {"draft": by_chance(0.95)}):
        chosen.clear()
        simulate(
            drafts, truth, 240, gamma=16, prompt=2000, controller=Watched(TARGET, {"draft": DRAFT}, clock=lambda: 0.0)
        )
        assert set(chosen) - {""} == ({"lookup"} if len(drafts) > 1 else {"draft"})


def test_deciding_takes_a_small_part_of_the_time():
    ticks = itertools.count()
    controller = AutoController(TARGET, {"draft": DRAFT}, clock=lambda: next(ticks) * 1.0)  # a second a look
    fresh = []

    class Counted:
        def budgets(self, sessions, most):
            before = next(ticks)
            found = controller.budgets(sessions, most)
            fresh.append(next(ticks) - before > 2)
            return found

        observe = staticmethod(controller.observe)

    run(0.5, tokens=600, controller=Counted())
    assert 2 < sum(fresh[2:]) < 0.1 * len(fresh)


# In the engine


@pytest.fixture(scope="module")
def engine():
    costs = PassCosts((1, 2, 4, 16), (1.0, 1.01, 1.02, 1.2))  # drafting always pays here
    built = load(model("tiny"), model("tiny-draft"), drafter="draft_model,lookup", gamma=3)
    controller = AutoController(costs, {"draft_model": PassCosts((1, 16), (0.01, 0.02))}, clock=lambda: 0.0)
    built.controller = built.scheduler.loop._controller = controller
    return built


PARAMS = SamplingParams(max_tokens=40, temperature=0.8, seed=3, ignore_eos=True)
PROMPTS = ["def add(a, b):", "import os\n", "class A:\n    def f(self):"]


def test_answers_are_plain_decodings_whatever_it_decides(engine):
    fixed = engine.generate(PROMPTS, PARAMS, gamma=0)
    adaptive = engine.generate(PROMPTS, PARAMS)
    assert [r.token_ids for r in adaptive] == [r.token_ids for r in fixed]
    assert sum(r.report.drafted for r in adaptive) > 0 and not any(r.report.warnings for r in adaptive)


def test_a_forecast_that_fails_costs_nothing_but_itself(engine, monkeypatch):
    def forecast(self, session, most):
        raise ArithmeticError("no idea")

    plainly = engine.generate(PROMPTS, PARAMS, gamma=0)
    monkeypatch.setattr("outpace.drafters.lookup.Lookup.forecast", forecast)
    assert [r.token_ids for r in engine.generate(PROMPTS, PARAMS)] == [r.token_ids for r in plainly]


def test_a_request_overrides_it(engine):
    assert engine.generate(PROMPTS[0], PARAMS, gamma=0).report.drafted == 0
    two = engine.generate(PROMPTS[0], PARAMS, gamma=2, drafter="draft_model").report
    assert two.gamma == 2 and 1.5 < two.drafted / two.target_passes <= 2
    named = engine.generate(PROMPTS[0], PARAMS, drafter="lookup")
    assert "draft_model" not in named.origins


def test_sessions_that_are_gone_are_forgotten(engine):
    for _ in range(3):
        engine.stream(PROMPTS[0], PARAMS).close()
        engine.generate(PROMPTS[0], PARAMS)
    gc.collect()
    assert len(engine.controller._states._sessions) == 0


def test_tenants_do_not_learn_from_each_other(engine):
    engine.generate(PROMPTS[0], PARAMS, tenant="one")
    one, other = engine.controller._states.tenant("one"), engine.controller._states.tenant("other")
    assert one.acceptance and one.lengths.remaining(30, 99) != other.lengths.remaining(30, 99)
    assert not other.acceptance


def test_load_takes_a_controller(tmp_path, monkeypatch):
    monkeypatch.setattr("outpace.control.pass_costs.costs_dir", lambda: tmp_path)
    built = load(model("tiny"), model("tiny-draft"), controller="auto", prior={"draft_model": 0.9})
    assert isinstance(built.controller, AutoController) and len(list(tmp_path.iterdir())) == 2
    assert load(model("tiny"), model("tiny-draft"), controller="auto", gamma=2).controller is None
    with pytest.raises(ValueError, match="controller must be one of auto, fixed"):
        load(model("tiny"), controller="clever")


def test_explanations_say_what_was_and_what_plain_would_have_been(engine):
    result = engine.generate(PROMPTS[0], PARAMS, gamma=3, drafter="draft_model")
    told = " ".join(explain(result.report, result.origins))
    assert f"Acceptance rate {result.report.alpha:.0%}" in told and "plain decoding would have taken" in told
    assert "this is plain decoding" in " ".join(explain(engine.generate(PROMPTS[0], PARAMS, gamma=0).report))


def test_short_answers_teach_it_not_to_read_prompts():
    controller = auto()
    reads = []
    for number in range(12):
        drafts = {"draft": by_chance(0.9, number)}
        found = simulate(drafts, Truth(TARGET, {"draft": DRAFT}), 10, prompt=1500, limit=300, controller=controller,
                         number=number)  # fmt: skip
        reads.append(sum(found.nodes) > 0)
    assert reads[0] and sum(reads[6:]) <= 2  # what was saved up is still spent on trying


def test_sessions_draft_together_where_none_would_alone():
    """A step of the draft costs the same for one session as for two."""
    target, draft = PassCosts((1, 2, 4), (1.0, 1.4, 1.6)), {"draft": PassCosts((1, 8), (0.6, 0.6))}

    def budgets(count):
        sessions = [session(i, count=400, gamma=1) for i in range(count)]
        for one in sessions:
            one.draft.adaptive, one.draft.drafters, one.draft.drafter_name = True, {"draft": None}, "draft"
            one.draft.cached, one.report.emitted = {"draft": len(one.tokens)}, 1
        controller = AutoController(target, draft, {"draft": 0.9}, clock=lambda: 0.0)
        return controller.budgets(sessions, [1] * count)

    assert budgets(1) == [0] and budgets(2) == [1, 1]
