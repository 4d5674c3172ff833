"""The speculation bars: measured on the tiny pair, and what the page says of figures that are given."""

import pytest
from tests.helpers.shipped import model

from outpace.bench import speculation
from outpace.kernels.native import available

ABOUT = {"seconds": 10.0, "kernels": 9.5}


@pytest.mark.skipif(not available(), reason="the C kernels are not built")
def test_every_prompt_is_raced_and_the_kernels_time_is_part_of_the_rounds(monkeypatch):
    monkeypatch.setattr(speculation, "TOKENS", 24)
    monkeypatch.setattr(speculation, "TUNING_TOKENS", 8)
    found = speculation.measure_gains(model("tiny"), model("tiny-draft"))
    for text, prompts in (("code", 3), ("prose", 6)):
        entry = found["texts"][text]
        assert entry["gamma"] in speculation.GAMMAS and set(entry["gains"]) == {"0", "1"}
        for gains in entry["gains"].values():
            assert {name: len(values) for name, values in gains.items()} == dict.fromkeys(
                ("fixed", "fixed, whole", "auto", "auto, whole"), prompts
            )
            assert all(value > 0 for values in gains.values() for value in values)
    assert 0 < found["outside"]["kernels"] < found["outside"]["seconds"]
    assert "code, 3 prompts" in speculation.gains_page("file", found)


def test_gains_stand_beside_their_bars():
    def gains(fixed):
        return {"fixed": fixed, "fixed, whole": [1.5], "auto": [1.6], "auto, whole": [1.4]}

    texts = {"code": {"gamma": 3, "gains": {"0": gains([1.4, 1.6, 1.7]), "1": gains([1.2, 1.3, 1.5])}},
             "prose": {"gamma": 1, "gains": {"0": gains([1.0]), "1": gains([0.9])}}}  # fmt: skip
    code, prose, outside = [
        line
        for line in speculation.gains_page("file", {"texts": texts, "outside": ABOUT}).splitlines()
        if "met" in line
    ]
    assert (
        "| 3 | 1.60 (1.40 to 1.70) | 1.50 met | 1.30 (1.20 to 1.50) | 0.81, 0.85 missed | 1.50 | 1.60 | 1.40 |" in code
    )
    assert "| 1.10 missed |" in prose and "0.90, 0.85 met" in prose
    assert outside == "Outside the kernels: 5.0% of the rounds' time on code (bar 8% met)."
    slow = speculation.gains_page("q4", {"texts": texts, "outside": ABOUT | {"kernels": 9.0}})
    assert "10.0% of the rounds' time on code (bar 8% missed)" in slow and "(1.40 to 1.70) | - |" in slow
    assert "Outside" not in speculation.gains_page("q4", {"texts": texts, "outside": ABOUT | {"kernels": 0.0}})


def test_peers_stand_beside_their_bars_and_one_that_did_not_run_says_why():
    texts = {"code": {"peer": "llama_cpp plain", "speeds": [[30.0, 10.0], [19.0, 10.0], [22.0, 10.0]]},
             "edit": {"peer": "openvino lookup 20", "error": "no such environment\nmore"}}  # fmt: skip
    page = speculation.peers_page({"texts": texts})
    assert "| code, 3 prompts | llama_cpp plain | 22.0 | 10.0 | 2.20 (1.90 to 3.00) | 2.00 met |" in page
    assert "| edit | openvino lookup 20 | - | - | no such environment | - |" in page


def test_a_peer_that_is_not_installed_loses_nothing(tmp_path):
    found = speculation.measure_peers(model("tiny"), model("tiny-draft"), 1, tmp_path)
    assert all("error" in entry for entry in found["texts"].values()) and len(found["texts"]) == 3
