"""The audit of other engines, offline: fake engines, one right and several wrong, through the real protocol."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.shipped import needs_torch

from outpace.audit import engines
from outpace.audit.engines import checks, process
from outpace.audit.engines import distributions as distributions
from outpace.audit.engines.checks import Float32, Observed, canonical, first_differing, judge
from outpace.core.errors import ModelError, ParameterError, PeerError
from outpace.files.checkpoint import open_checkpoint

TINY = Path(engines.__file__).parents[2] / "catalogue" / "tiny" / "target"
DISTRIBUTION = {0: 0.5, 1: 0.3, 2: 0.2}

# An engine whose next token depends on the last one only; `skew` moves that much mass from token 0 to token 1.
FAKE = """
import random

def load(settings):
    mode = settings["mode"]
    if mode == "broken":
        raise RuntimeError("this engine has no such mode")
    skew = 0.15 if mode == "skewed" else 0.0
    def generate(prompt, max_tokens, temperature, seeds):
        print("engines print")
        if mode == "dies":
            import os
            os.write(2, b"segmentation fault, say")
            os._exit(3)
        answers = []
        for seed in seeds:
            rng = random.Random(seed)
            one = []
            for place in range(max_tokens):
                if temperature == 0:
                    one.append((prompt[-1] + place + (mode == "slips" and place == 5)) % 7 + 10)
                else:
                    shift = 0.1 if one and one[-1] == 1 else 0.0
                    one.append(rng.choices([10, 11, 12], [0.5 - skew - shift, 0.3 + skew + shift, 0.2])[0])
            answers.append(one)
        return {"tokens": answers if mode != "short" else answers[1:], "drafted": 5, "accepted": 2}
    return {"versions": {"fake": "1"}, "numerics": "rounded"}, generate
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    path = tmp_path / "fake.py"
    path.write_text(FAKE, encoding="utf-8")
    return path


def audit(fake: Path, mode: str, draws: int = 3000) -> checks.Outcome:
    checkpoint = open_checkpoint(TINY)
    seen = []
    for number, kind in enumerate(("plain", mode)):
        with process.Peer(sys.executable, fake, {"mode": kind}) as peer:
            seen.append(checks.observe(peer, checkpoint, tokens=12, draws=draws, seconds=60, first_seed=10**6 * number))
    return judge("fake", mode, peer.ready, seen[1], seen[0], Float32(str(TINY), checkpoint))


def test_a_right_engine_passes(fake: Path) -> None:
    outcome = audit(fake, "right")
    assert outcome.passed and outcome.differs == [None] * len(checks.GREEDY_PROMPTS)
    assert outcome.draws == 3000 and outcome.drafted == 5 * 3000 // checks.SEEDS_A_REQUEST
    assert outcome.later is not None and outcome.later.p_value is not None and outcome.later.strata >= 3


def test_an_engine_with_a_wrong_distribution_is_rejected(fake: Path) -> None:
    outcome = audit(fake, "skewed")
    assert outcome.rejected and not outcome.passed and outcome.differs == [None] * len(checks.GREEDY_PROMPTS)


@needs_torch
def test_an_engine_with_other_greedy_tokens_is_seen(fake: Path) -> None:
    outcome = audit(fake, "slips", draws=500)
    assert outcome.differs == [5] * len(checks.GREEDY_PROMPTS) and len(outcome.gaps) == len(checks.GREEDY_PROMPTS)
    assert not outcome.passed and not outcome.rejected


def test_an_engine_that_refuses_is_told_in_its_own_words(fake: Path) -> None:
    with pytest.raises(PeerError, match="fake: RuntimeError: this engine has no such mode"):
        process.Peer(sys.executable, fake, {"mode": "broken"})


def test_an_engine_that_dies_leaves_its_last_words(fake: Path) -> None:
    with (
        process.Peer(sys.executable, fake, {"mode": "dies"}) as peer,
        pytest.raises(PeerError, match=r"status 3.*segmentation fault, say"),
    ):
        peer.generate([1], 2, 0.0, [0])


def test_a_silent_engine_is_not_waited_for(tmp_path: Path) -> None:
    driver = tmp_path / "asleep.py"
    driver.write_text("import time\ndef load(settings):\n    time.sleep(60)\n", encoding="utf-8")
    with pytest.raises(PeerError, match="asleep: .*silent for 0.5 seconds"):
        process.Peer(sys.executable, driver, {}, timeout=0.5)


def test_answers_that_do_not_fit_the_seeds_are_refused(fake: Path) -> None:
    with (
        process.Peer(sys.executable, fake, {"mode": "short"}) as peer,
        pytest.raises(PeerError, match="did not answer 2 seeds"),
    ):
        peer.generate([1], 2, 0.0, [0, 1])


def test_a_missing_environment_names_make_peers(tmp_path: Path) -> None:
    outcome = engines.audit_engine("economize", TINY, peers=tmp_path)[0]
    assert outcome.error is not None and "make peers" in outcome.error and not outcome.passed
    with pytest.raises(ParameterError, match="engine must be one of economize, llama_cpp, openvino, outpace"):
        engines.audit_engine("nonesuch", TINY)


@needs_torch
def test_outpace_itself_passes() -> None:
    outcomes = engines.audit_engine("outpace", TINY, modes=["lookup"], tokens=8, draws=60, weights="f32")
    assert [outcome.mode for outcome in outcomes] == ["plain", "lookup"] and all(one.passed for one in outcomes)
    assert outcomes[1].against == "the float32 distribution" and outcomes[1].first is not None
    lines: list[str] = []
    engines.print_table(outcomes, lines.append)
    assert "greedy 6 of 6 equal" in lines[1] and engines.as_dicts(outcomes)[1]["passed"] is True


def test_a_mode_that_never_drafted_is_not_called_tested() -> None:
    checkpoint = open_checkpoint(TINY)
    seen = Observed([[1]] * len(checks.GREEDY_PROMPTS), [(0, 10, 11, 12)] * 200, drafted=0, accepted=0)
    lines: list[str] = []
    outcome = judge("fake", "lookup", {"numerics": "rounded"}, seen, seen, Float32(str(TINY), checkpoint))
    engines.print_table([outcome], lines.append)
    assert "not put to the test" in lines[0]


@needs_torch
def test_the_exact_distribution_agrees_with_plain_decoding() -> None:
    checkpoint = open_checkpoint(TINY)
    distribution = Float32(str(TINY), checkpoint)
    probs = distribution((0, 5))
    assert probs.sum().item() == pytest.approx(1) and len(probs) == checkpoint.tokenizer.size
    ids = [*checkpoint.tokenizer.encode(checks.DISTRIBUTION_PROMPTS[0], add_special=False), 5]
    assert int(probs.argmax()) == int(distribution.logits(ids).argmax())


def test_answers_end_alike_whoever_wrote_them() -> None:
    ends = frozenset({0, 2})
    assert canonical([5, 2], ends, 4) == canonical([5], ends, 4) == canonical([5, 0, 9], ends, 4) == [5, 0]
    assert canonical([5, 6, 7, 8, 9], ends, 4) == [5, 6, 7, 8]
    assert first_differing([1, 2, 3], [1, 2, 3]) is None
    assert first_differing([1, 2, 3], [1, 4, 3]) == 1 and first_differing([1], [1, 2]) == 1


def sample(rng: random.Random, skew: float = 0.0) -> distributions.Sample:
    weights = [DISTRIBUTION[0] - skew, DISTRIBUTION[1] + skew, DISTRIBUTION[2]]
    return (0, *(rng.choices(list(DISTRIBUTION), weights)[0] for _ in range(3)))


def exact(prefix: distributions.Prefix) -> np.ndarray:
    return np.array(list(DISTRIBUTION.values()), dtype=np.float64)


@pytest.mark.parametrize("two", [False, True], ids=["distribution", "two samples"])
def test_false_alarms_are_as_rare_as_stated(two: bool) -> None:
    rng = random.Random(1)
    alarms = 0
    for _ in range(100):
        draws = [sample(rng) for _ in range(400)]
        if two:
            found = distributions.two_samples(draws, [sample(rng) for _ in range(400)], (1, 2, 3), 0.05)
        else:
            found = distributions.against_distribution(draws, exact, (1, 2, 3), 0.05)
        alarms += found.p_value is not None and found.p_value < 0.05
    assert 1 <= alarms <= 13  # 5 expected; outside by chance less than once in 100 times, and the seed is fixed


@pytest.mark.parametrize("two", [False, True], ids=["distribution", "two samples"])
def test_a_detectable_distance_is_detected(two: bool) -> None:
    rng = random.Random(2)
    quiet = [sample(rng) for _ in range(600)]
    reach = (
        distributions.two_samples(quiet, quiet, (1, 2, 3), 0.01)
        if two
        else distributions.against_distribution(quiet, exact, (1, 2, 3), 0.01)
    )
    assert reach.detectable is not None and 0.02 < reach.detectable < 0.2
    caught = 0
    for _ in range(60):
        draws = [sample(rng, reach.detectable) for _ in range(600)]
        if two:
            found = distributions.two_samples(draws, [sample(rng) for _ in range(600)], (1, 2, 3), 0.01)
        else:
            found = distributions.against_distribution(draws, exact, (1, 2, 3), 0.01)
        caught += found.p_value is not None and found.p_value < 0.01
    assert caught >= 46  # at least 90% are promised: fewer by chance less than once in 500 times


def test_too_few_draws_prove_nothing() -> None:
    found = distributions.against_distribution([(0, 1)] * 10, exact, (1,), 0.01)
    assert found.p_value is None and found.detectable is None and found.strata == 0


@needs_torch
def test_the_tiny_pair_and_a_shallow_draft_as_gguf(tmp_path: Path) -> None:
    from outpace.audit.engines.shallow import write_shallow
    from outpace.audit.engines.tiny_gguf import write_gguf

    whole, shallow = tmp_path / "tiny.gguf", tmp_path / "shallow.gguf"
    write_gguf(TINY, whole)
    checkpoints = [open_checkpoint(TINY), open_checkpoint(whole)]
    ids = list(range(5, 25))
    rows = [Float32(str(c.path), c).logits(ids) for c in checkpoints]
    assert (rows[0] - rows[1]).__abs__().max() < 1e-3
    write_shallow(whole, shallow, {1, 2})
    assert open_checkpoint(shallow).hf_config["num_hidden_layers"] == checkpoints[0].hf_config["num_hidden_layers"] - 2
    assert not np.array_equal(Float32(str(shallow), open_checkpoint(shallow)).logits(ids), rows[1])
    with pytest.raises(ModelError, match="has blocks 0 to 4"):
        write_shallow(whole, tmp_path / "none.gguf", {7})
