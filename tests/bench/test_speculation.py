"""The speculation bars: measured on the tiny pair, and what the page says of figures that are given."""

from types import SimpleNamespace

import pytest
from tests.helpers.shipped import model

from outpace.bench import speculation
from outpace.bench.compare import Raced
from outpace.bench.contenders import Run
from outpace.core.errors import OutpaceError, PeerError
from outpace.kernels.native import available

ROUNDS = {"seconds": 10.0, "kernels": 9.5}


def raced(seconds, first, first_tokens, tokens=11):
    return Raced(seconds, first, first_tokens, SimpleNamespace(token_ids=[1] * tokens))


@pytest.mark.skipif(not available(), reason="the C kernels are not built")
def test_every_prompt_is_raced_and_the_kernels_time_is_part_of_the_rounds(monkeypatch):
    monkeypatch.setattr(speculation, "TOKENS", 24)
    monkeypatch.setattr(speculation, "TUNING_TOKENS", 8)
    found = speculation.measure_gains(model("tiny"), model("tiny-draft"))
    names = ("fixed", "fixed, whole", "fixed, T = 1", "auto", "auto, whole")
    for text, prompts in (("code", 3), ("prose", 6)):
        entry = found["texts"][text]
        assert len(entry["gamma"]) == 2 and set(entry["gamma"]) <= set(speculation.GAMMAS)
        answers = dict.fromkeys(names, prompts) | {"fixed, T = 1": prompts * len(speculation.SEEDS)}
        assert {name: len(values) for name, values in entry["gains"].items()} == answers
    assert 0 < found["outside"]["kernels"] < found["outside"]["seconds"]
    assert "| code, 3 prompts; 6 answers at T = 1 |" in speculation.gains_page("file", found)


def test_tokens_that_came_with_the_first_one_are_no_gain():
    """Plain: 10 tokens in 5 s. Drafting: 4 tokens at once, then 7 in 1 s. An answer that ended at once says nothing."""
    races = [{"plain": raced(6.0, 1.0, 1), "fixed": raced(2.0, 1.0, 4)},
             {"plain": raced(6.0, 1.0, 1), "fixed": raced(1.0, 1.0, 11)}]  # fmt: skip
    assert speculation._gains(races, "fixed") == [3.5]


def test_another_token_than_plain_decodings_ends_the_measurement(monkeypatch):
    said = {"plain": raced(6.0, 1.0, 1), "fixed": raced(2.0, 1.0, 4, tokens=10)}
    monkeypatch.setattr(speculation, "race", lambda *_: said)
    with pytest.raises(OutpaceError, match="tuning-code-1: drafting says other tokens"):
        speculation.measure_gains(model("tiny"), model("tiny-draft"))


def test_gains_stand_beside_their_bars():
    def gains(cold, warm):
        return {"fixed": cold, "fixed, whole": [1.5], "fixed, T = 1": warm, "auto": [1.6], "auto, whole": [1.4]}

    texts = {"code": {"gamma": [3, 2], "gains": gains([1.4, 1.6, 1.7], [1.2, 1.3, 1.5])},
             "prose": {"gamma": [1, 1], "gains": gains([1.0], [0.9])}}  # fmt: skip
    page = speculation.gains_page("file", {"texts": texts, "outside": ROUNDS})
    code, prose, outside = [line for line in page.splitlines() if "met" in line]
    assert "| 3, 2 | 1.60 (1.40 to 1.70) | 1.50 met | 1.30 (1.20 to 1.50) | 1.27 met | 0.81, 0.85 missed |" in code
    assert code.endswith("| 1.50 | 1.60 | 1.40 |")
    assert "| 1.10 missed |" in prose and "| 0.94 missed | 0.90, 0.85 met" in prose
    assert outside == "Outside the kernels: 5.0% of the rounds' time on code (bar 8% met)."
    slow = speculation.gains_page("q4", {"texts": texts, "outside": ROUNDS | {"kernels": 9.0}})
    assert "10.0% of the rounds' time on code (bar 8% missed)" in slow and "(1.40 to 1.70) | - |" in slow
    assert "Outside" not in speculation.gains_page("q4", {"texts": texts, "outside": ROUNDS | {"kernels": 0.0}})


def test_peers_stand_beside_their_bars_and_one_that_did_not_run_says_why():
    texts = {"code": {"peer": "llama_cpp plain", "speeds": [[30.0, 10.0], [19.0, 10.0], [22.0, 10.0]]},
             "edit": {"peer": "openvino lookup 20", "speeds": [], "error": "no such environment\nmore"},
             "prose": {"peer": "llama_cpp plain", "speeds": []}}  # fmt: skip
    page = speculation.peers_page({"texts": texts})
    assert "| code, 3 prompts | llama_cpp plain | 22.0 | 10.0 | 2.20 (1.90 to 3.00) | 2.00 met |" in page
    assert "| edit | openvino lookup 20 | - | - | no such environment | - |" in page
    assert "| prose | llama_cpp plain | - | - | no answer of more than one step | - |" in page


def test_a_peer_that_is_not_installed_or_fails_loses_nothing(tmp_path, monkeypatch):
    pair = model("tiny"), model("tiny-draft")
    found = speculation.measure_peers(*pair, 1, tmp_path)
    assert all("error" in entry for entry in found["texts"].values()) and len(found["texts"]) == 3

    class Failing:
        """Answers the warm-up and one prompt."""

        def __init__(self, name, *_):
            self.name, self.left, self.closed = name, 2, closed

        def run(self, ids, *_):
            self.left -= 1
            if self.left < 0:
                raise PeerError("gone")
            return Run([1] * 5, 1, 1.0, 2.0)

        def close(self):
            self.closed.append(self.name)

    closed: list[str] = []
    monkeypatch.setattr(speculation, "Other", Failing)
    monkeypatch.setattr(speculation, "TOKENS", 8)
    found = speculation.measure_peers(*pair, 1, tmp_path)
    for entry in found["texts"].values():
        assert entry["error"] == "gone" and [theirs for _, theirs in entry["speeds"]] == [4.0]
    assert closed == ["llama_cpp", "llama_cpp", "openvino"]
