"""The report's arithmetic, and what it predicts."""

import json

import pytest
from tests.helpers.requests import CODE, DRAFTERS, GREEDY
from tests.helpers.shipped import new_engine

import outpace
from outpace import SamplingParams
from outpace.core.report import Report
from outpace.core.types import RoundSeconds
from outpace.engine.explain import explain


@pytest.mark.parametrize("accept", ["match", "ratio"])
@pytest.mark.parametrize("drafter", [*DRAFTERS, "none"])
def test_the_reports_arithmetic(drafter, accept):
    engine = new_engine(drafter, accept=accept)
    engine.measure_costs()
    for t in (0, 0.7):
        result = engine.generate(CODE * 2, SamplingParams(temperature=t, seed=1, max_tokens=30, ignore_eos=True))
        report = result.report
        assert report.emitted == len(result.token_ids) == 30
        name = "draft_model" if drafter == "own" else drafter
        assert (report.drafter, report.rule, report.gamma) == (name, accept, engine.gamma)
        assert report.drafted >= report.tested >= report.accepted
        assert report.target_passes <= report.emitted <= report.target_passes + report.accepted
        assert report.block_efficiency == report.emitted / report.target_passes
        seconds = report.seconds_draft + report.seconds_target + report.seconds_sample + report.seconds_other
        assert report.seconds_decode == pytest.approx(seconds)
        assert report.tokens_per_second == pytest.approx(30 / seconds)
        assert report.seconds_prefill > 0 and report.seconds_target > 0
        everything = report.as_dict()
        assert json.loads(json.dumps(everything, allow_nan=False)) == everything
        if drafter == "none":
            assert (report.drafted, report.tested, report.alpha, report.c) == (0, 0, None, None)
            assert report.predicted_speedup is report.paper_speedup is report.one_row_seconds is None
            continue
        assert report.alpha == report.accepted / report.tested
        one, v = report.one_row_seconds, report.rows_cost
        assert one > 0 and v > 0 and sum(report.rows.values()) == report.target_passes
        assert sum((rows - 1) * passes for rows, passes in report.rows.items()) == report.drafted
        spent = sum(passes * report.pass_seconds(rows, 100) for rows, passes in report.rows.items())
        assert spent > 0 and one * v * report.target_passes == pytest.approx(report.seconds_target)
        assert report.c == pytest.approx(report.seconds_draft / report.drafted / one)
        depth, alpha = report.drafted / report.target_passes, report.alpha
        run = sum(alpha**k for k in range(round(depth) + 1)) if depth == round(depth) else None
        overhead = (report.seconds_draft + report.seconds_sample + report.seconds_other) / report.target_passes / one
        token = one + report.seconds_sample / 30 + report.seconds_other / report.target_passes  # decoded plainly
        tokens = report.block_efficiency * token / one
        assert report.predicted_speedup == pytest.approx(tokens / (v + overhead))
        if run is not None:
            assert report.paper_speedup == pytest.approx(run / (depth * report.c + 1))


def test_predictions_of_whole_depth_are_the_papers_sum():
    """Every round of a draft of its own is as deep as gamma when the length allows it: 1 + gamma tokens each."""
    engine = new_engine("own")
    engine.measure_costs()
    report = engine.generate(CODE, SamplingParams(max_tokens=25, ignore_eos=True), gamma=4).report
    assert (report.alpha, report.target_passes, report.drafted) == (1.0, 5, 20)
    assert report.paper_speedup == pytest.approx(5 / (4 * report.c + 1))


def test_a_report_runs_no_passes_and_predicts_nothing_that_is_not_known(monkeypatch):
    engine = new_engine()
    unknown = engine.generate(CODE, GREEDY).report
    engine.measure_costs()
    report = engine.generate(CODE, GREEDY).report
    monkeypatch.setattr(type(engine.target.runtime), "forward", lambda *a, **k: pytest.fail("a pass was run"))
    assert unknown.drafted and unknown.predicted_speedup is unknown.c is unknown.plain_seconds is None
    assert report.as_dict()["predicted_speedup"] == report.predicted_speedup > 0 and report.c > 0
    assert explain(report) and explain(unknown)


def test_requests_that_share_their_passes_predict_nothing():
    engine = new_engine()
    engine.measure_costs()
    for result in engine.generate([CODE, CODE * 2], GREEDY):
        assert result.report.drafted and result.report.predicted_speedup is None


def test_a_prediction_knows_earlier_requests_only():
    """Passes over more rows become dear after a request began: that is for the next one's prediction."""
    engine = new_engine()
    engine.measure_costs()
    stream = engine.stream(CODE, GREEDY)
    before, one = stream.report.relative(5), stream.report.pass_seconds(1, 0)
    for _ in range(60):
        engine.cost_model.observe(5, 0.0, {}, 1, RoundSeconds(0.0, 3 * one, 0.0, 0.0, 0))
        engine.cost_model.observe(1, 0.0, {}, 1, RoundSeconds(0.0, one, 0.0, 0.0, 0))
    assert stream.report.relative(5) == before
    stream.close()
    assert engine.stream(CODE, GREEDY).report.relative(5) == pytest.approx(3, rel=0.2)
    assert engine.cost_model.plain == pytest.approx(one, rel=0.2) and engine.cost_model.observed is not None


def test_the_package_offers_what_it_names():
    assert all(getattr(outpace, name) is not None for name in outpace.__all__)


def test_totals_add_counts_seconds_and_rows_and_predict_nothing():
    one = Report("lookup", seed=3, emitted=4, target_passes=2, rows={1: 2}, seconds_target=0.5, warnings=["a"])
    two = Report("lookup", seed=4, emitted=6, target_passes=3, rows={1: 1, 4: 2}, seconds_target=1, warnings=["a", "b"])
    one.pass_seconds = lambda rows, entries: rows
    total = Report.total([one, two])
    assert (total.drafter, total.seed, total.emitted, total.target_passes) == ("lookup", 3, 10, 5)
    assert (total.seconds_target, total.rows, total.warnings) == (1.5, {1: 3, 4: 2}, ["a", "b"])
    assert total.block_efficiency == 2.0 and total.rows_cost is None
    assert (one.emitted, one.rows) == (4, {1: 2})
