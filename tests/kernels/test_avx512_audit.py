"""The avx512 kernels' own code on a machine without AVX-512: built with emulated_avx512.h, then put through the tests
of kernels and models as the best variant there is. A machine that has AVX-512 runs them with the real thing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from outpace.kernels import build, native

HERE = Path(__file__).parent
TESTS = HERE.parent
TRIED = [f"kernels/test_{name}.py" for name in ("linear", "attention", "pass", "sampling_kernels")]
TRIED += [f"runtimes/test_{name}.py" for name in ("native", "loading")]

pytestmark = [
    pytest.mark.audit,
    pytest.mark.skipif("avx512" in native.available(), reason="this machine has AVX-512: the other tests ran it"),
    pytest.mark.skipif("avx2" not in native.available(), reason="the emulation is made of AVX2"),
]


def test_avx512_code_passes_the_tests_of_kernels(tmp_path, monkeypatch):
    package = tmp_path / "outpace"
    shutil.copytree(Path(build.__file__).parents[1], package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    emulated = (*build.X86["avx2"], "-O1", "-Wno-psabi", "-include", str(HERE / "emulated_avx512.h"))
    monkeypatch.setitem(build.X86, "avx512", emulated)
    claim = ["-D__builtin_cpu_supports(x)=1"]  # what op_cpu_supports says
    assert len(build.build(package / "kernels", only=("plain", "avx512"), extra=claim)) == 2
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(TESTS.parent)])}

    def run(*command):
        return subprocess.run([sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True,
                              check=False)  # fmt: skip

    opened = run("-c", "from outpace.kernels import native; print(native.open_library())")
    assert str(package) in opened.stdout and "avx512" in opened.stdout, opened
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(TESTS / name) for name in TRIED))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
