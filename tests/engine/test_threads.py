"""How many threads are computed with, from trees of /proc and /sys made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from outpace.core.threads import choose_threads, default_threads

V2 = "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw\n"
V1 = "33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
DOCKER_V1 = "33 30 0:29 /docker/abc /sys/fs/cgroup/cpu rw master:9 - cgroup cgroup rw,cpu\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def machine(cores: int, smt: int = 1, **more: str) -> dict[str, str]:
    """CPU c and c + cores are siblings, as on most servers."""
    files = {"sys/devices/system/cpu/online": f"0-{cores * smt - 1}\n"}
    for cpu in range(cores * smt):
        siblings = ",".join(str(cpu % cores + cores * n) for n in range(smt))
        files[f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"] = siblings
    return files | more


def v2(place: str, **quotas: str) -> dict[str, str]:
    """Groups by their path with _ for /; cpu.max of each."""
    groups = {f"sys/fs/cgroup{name.replace('_', '/')}/cpu.max": text for name, text in quotas.items()}
    return {"proc/self/mountinfo": V2, "proc/self/cgroup": f"0::{place}\n"} | groups


@pytest.mark.parametrize(
    ("files", "count", "words"),
    [
        (machine(64) | v2("/", _="200000 100000"), 2, "quota of 2"),
        (machine(64) | v2("/", _="150000 100000"), 2, "quota of 1.5"),
        (machine(64) | v2("/", _="10000 100000"), 1, "quota of 0.1"),
        (machine(8) | v2("/", _="max 100000"), 8, "8 cores"),
        (machine(8) | v2("/", _="6400000 100000"), 8, "8 cores"),
        (machine(8) | v2("/a/b", _a="300000 100000", _a_b="max 100000"), 3, "quota of 3"),
        (machine(8) | v2("/a/b", _a="300000 100000", _a_b="200000 100000"), 2, "quota of 2"),
        (machine(8) | v2("/a/b", _a="100000 100000", _a_b="200000 100000"), 1, "quota of 1"),
        (machine(8) | v2("/../..", _="400000 100000"), 4, "quota of 4"),
        (machine(8) | v2("/", _="garbage"), 8, "8 cores"),
        (machine(8) | v2("/", _="0 0"), 8, "8 cores"),
        (machine(8), 8, "8 cores"),
        ({}, 8, "8 cores"),
        (machine(4, smt=2), 4, "4 cores of 8 CPUs"),
        (machine(4, smt=2) | v2("/", _="300000 100000"), 3, "quota of 3"),
        (machine(8) | {"sys/devices/system/cpu/online": "0-4\n"}, 5, "5 cores"),
    ],
)
def test_counts(tmp_path, files, count, words):
    choice = choose_threads(tree(tmp_path, files), range(64 if "sys/devices/system/cpu/cpu63" in str(files) else 8))
    assert (choice.count, words in choice.reason) == (count, True), choice


@pytest.mark.parametrize("mount", [V1, DOCKER_V1])
@pytest.mark.parametrize(("quota", "count"), [("200000", 2), ("-1", 8), ("50000", 1)])
def test_version_1(tmp_path, mount, quota, count):
    top = "sys/fs/cgroup/cpu,cpuacct/docker/abc" if mount == V1 else "sys/fs/cgroup/cpu"
    names = "cpu,cpuacct" if mount == V1 else "cpu"
    files = {"proc/self/mountinfo": mount, "proc/self/cgroup": f"9:memory:/docker/abc\n4:{names}:/docker/abc\n0::/x\n"}
    files |= {f"{top}/cpu.cfs_quota_us": quota, f"{top}/cpu.cfs_period_us": "100000"}
    assert choose_threads(tree(tmp_path, machine(8) | files), range(8)).count == count


def test_the_affinity_mask_counts_cores(tmp_path):
    root = tree(tmp_path, machine(4, smt=2))
    assert choose_threads(root, [1, 2]).count == 2
    assert choose_threads(root, [1, 5]).count == 1  # one core's two halves
    assert choose_threads(root, [1, 5, 2]).count == 2


def test_hybrid_processors_compute_on_their_fast_cores(tmp_path):
    smt = machine(8) | {"sys/devices/cpu_core/cpus": "0-3\n", "sys/devices/cpu_atom/cpus": "4-7\n"}
    smt |= {f"sys/devices/system/cpu/cpu{n}/topology/core_cpus_list": f"{n & 2}-{(n & 2) + 1}" for n in range(4)}
    intel = tree(tmp_path / "intel", smt)
    assert str(choose_threads(intel, range(8))) == "2 threads (2 performance cores of 8 CPUs)"
    assert choose_threads(intel, [4, 5, 6]).count == 3  # nothing but slow ones
    for name, fast, slow, usual in (("cpu_capacity", 1024, 446, 900), ("cpufreq/cpuinfo_max_freq", 5200, 3900, 4900)):
        speeds = [fast, usual, usual, usual, slow, slow, slow, slow]
        arm = {f"sys/devices/system/cpu/cpu{n}/{name}": str(speed) for n, speed in enumerate(speeds)}
        assert choose_threads(tree(tmp_path / name[:4] / name[-4:], machine(8) | arm), range(8)).count == 4


@pytest.mark.parametrize(("word", "count"), [("6", 6), ("3,2", 3), ("", 2), ("0", 2), ("many", 2)])
def test_the_users_word_goes_first(tmp_path, word, count):
    root = tree(tmp_path, machine(8) | v2("/", _="200000 100000"))
    choice = choose_threads(root, range(8), word)
    assert choice.count == count and ("OMP_NUM_THREADS" in choice.reason) == (count != 2)


def test_this_machine_has_an_answer():
    assert default_threads().count >= 1 and default_threads().reason
