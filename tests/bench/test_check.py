"""What got slower than the noise; provenance; the page of kernel figures."""

import json
import random
from pathlib import Path

import pytest

from outpace.bench import kernels
from outpace.bench.check import changes, table
from outpace.bench.provenance import sha256, write_atomically


def runs(seconds: float, noise: float, seed: int, count: int = 9) -> list[dict[str, float]]:
    rng = random.Random(seed)
    return [{"token": seconds * (1 + noise * rng.uniform(-1, 1))} for _ in range(count)]


@pytest.mark.parametrize(
    ("factor", "noise", "slower", "faster"),
    [(1.0, 0.05, False, False), (1.25, 0.05, True, False), (0.7, 0.05, False, True), (1.02, 0.0, False, False),
     (1.04, 0.0, True, False), (1.1, 0.5, False, False)],
)  # fmt: skip
def test_only_what_exceeds_the_noise_is_called_slower(factor: float, noise: float, slower: bool, faster: bool) -> None:
    [found] = changes(runs(1.0, noise, seed=1), runs(factor, noise, seed=2))
    assert (found.slower, found.faster) == (slower, faster), found
    assert ("SLOWER" in table([found])) == slower


def test_the_same_code_is_seldom_called_slower() -> None:
    called = sum(changes(runs(1.0, 0.1, seed=i), runs(1.0, 0.1, seed=1000 + i))[0].slower for i in range(200))
    assert called <= 12


def test_figures_of_one_side_only_are_left_out() -> None:
    [found] = changes([{"a": 1.0, "b": 1.0}], [{"a": 1.0}])
    assert found.name == "a"


def test_sums_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    file, memory = tmp_path / "model.gguf", tmp_path / "sums.json"
    file.write_bytes(b"abc")
    first = sha256(file, memory)
    assert first == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    known = json.loads(memory.read_text(encoding="utf-8"))
    memory.write_text(json.dumps(dict.fromkeys(known, "remembered")), encoding="utf-8")
    assert sha256(file, memory) == "remembered"
    file.write_bytes(b"abcd")
    assert sha256(file, memory) not in ("remembered", first)


def test_a_directory_is_the_sum_of_its_weights(tmp_path: Path) -> None:
    memory = tmp_path / "sums.json"
    (tmp_path / "a.safetensors").write_bytes(b"1")
    first = sha256(tmp_path, memory)
    (tmp_path / "b.safetensors").write_bytes(b"2")
    assert sha256(tmp_path, memory) != first


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new" / "x.json", "one")
    write_atomically(tmp_path / "new" / "x.json", "two")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["x.json"]
    assert (tmp_path / "new" / "x.json").read_text(encoding="utf-8") == "two"


def test_the_kernels_page_says_which_bars_are_met() -> None:
    about = {"date": "d", "cpu": "c", "kernels": "avx2", "threads": 2, "commit": "abc", "uncommitted_changes": False,
             "command": "x", "models": [{"name": "m"}]}  # fmt: skip
    rows = {1: 0.05, 2: 0.05, 4: 0.06, 6: 0.09, 8: 0.1, 16: 0.3}
    text = kernels.kernels_page(
        {
            "weights": {"file": {"rows": rows, "prefill": 4.0, "bytes": 1e9, "one_row": [0.05, 0.08, 0.06],
                                 "bandwidth": [25e9, 10e9, 20e9], "provenance": about}},
            "draft": {"target": 0.05, "draft": 0.02, "bytes": 1e8, "weights": "q4", "provenance": about},
            "llama_cpp": {"our token": 0.05, "token": 0.04, "our prefill": 4.0, "prefill": 8.0, "versions": {},
                          "provenance": about},
        }
    )  # fmt: skip
    assert "| 1.90 met |" in text and "4.50 missed" in text
    assert "1.20 times what reading takes (bar 1.30 met; 20.0 GB/s" in text  # of 1.25, 0.8 and 1.2
    assert "0.40 (bar 0.28 missed)" in text and "| 0.80 |" in text and "| 2.00 |" in text
