"""The kernels under the address and undefined-behaviour sanitizers, in a process of their own."""

import os
import subprocess
from pathlib import Path

import pytest

from outpace.kernels import build, native

HERE = Path(__file__).parent
SOURCES = Path(build.__file__).parent / "csrc"
# A driver and the sources that it needs.
DRIVERS = {"linear": ("linear*.c", "pack*.c", "quantize*.c"), "norm": ("norm.c",)}
# Unrolled it takes minutes to compile, and no sanitizer looks into assembly.
FLAGS = ("-std=gnu11", "-O1", "-g", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
         "-DUNROLL=", "-DOP_NO_ASM")  # fmt: skip
VARIANT = next(iter(native.available()), "plain")  # the one that runs here


@pytest.mark.parametrize("name", DRIVERS)
def test_the_kernels_are_clean(name, tmp_path):
    compiler = build.compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    program = tmp_path / "driver"
    if subprocess.run([*compiler, *FLAGS, str(probe), "-o", str(program)], capture_output=True, check=False).returncode:
        pytest.skip("the C compiler has no sanitizers")
    if subprocess.run([str(program)], capture_output=True, check=False).returncode:
        pytest.skip("programs built with sanitizers do not run here")
    sources = sorted(str(path) for pattern in DRIVERS[name] for path in SOURCES.glob(pattern))
    driver = str(HERE / f"sanitize_{name}.c")
    made = subprocess.run(
        [*compiler, *FLAGS, *build.variants()[VARIANT], "-fopenmp", f"-I{SOURCES}", driver, *sources,
         "-o", str(program), "-lm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    quiet = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # spinning threads would double the sanitizers' time
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=120, env=quiet)
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stdout + done.stderr
