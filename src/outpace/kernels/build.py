"""Compiles the C kernels: the same sources, once for each instruction set, into one library each.

Imports the standard library only: setup.py runs this file before anything is installed. Run as a program, it rebuilds
the libraries of a checkout in place.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

COMMON = ("-std=gnu11", "-O3", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra")
AVX512_PARTS = ("f", "bw", "vl", "dq", "vnni", "bf16")
X86 = {
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": ("-mfma", "-mf16c", *(f"-mavx512{part}" for part in AVX512_PARTS)),
}


def library_name(variant: str) -> str:
    """The file name of a variant's library, beside this file."""
    return f"_kernels_{variant}.so"


@cache
def sources_digest() -> int:
    """64 bits that tell the C sources beside this file from any others: structs, signatures and packed layouts are
    theirs, so Python uses a library of these sources only."""
    digest = hashlib.sha256()
    for source in sorted((Path(__file__).parent / "csrc").iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return int.from_bytes(digest.digest()[:8], "little")


def variants() -> dict[str, tuple[str, ...]]:
    """The variants this machine's architecture can have, with their compiler flags."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return {"plain": (), **(X86 if x86 else {})}


def compiler() -> list[str] | None:
    """The C compiler: ``CC`` of the build, else the one Python was built with, else cc, gcc or clang; or None."""
    named = [os.environ.get("CC", "").split(), str(sysconfig.get_config_var("CC") or "").split()]
    for command in [*named, ["cc"], ["gcc"], ["clang"]]:
        if command and shutil.which(command[0]):
            return command[:1]
    return None


def build(out: Path, only: Sequence[str] = (), extra: Sequence[str] = (), jobs: int | None = None) -> list[Path]:
    """Compiles the variants (all, or those in ``only``) into ``out`` and returns the libraries made.

    ``extra``: further compiler flags, such as a sanitizer's. Raises RuntimeError with the compiler's own words when
    the plain variant fails; a variant that the compiler is too old for is left out.
    """
    command = compiler()
    if command is None:
        raise RuntimeError("no C compiler found (cc, gcc or clang)")
    sources = sorted((Path(__file__).parent / "csrc").glob("*.c"))
    chosen = {name: flags for name, flags in variants().items() if not only or name in only}
    made = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        openmp = ["-fopenmp"] if _compiles([*command, "-fopenmp"], Path(scratch)) else []
        told = f"-DOP_SOURCES={sources_digest()}ull"
        called = {name: [*command, *COMMON, told, *openmp, *flags, *extra] for name, flags in chosen.items()}
        objects = {name: [f"{scratch}/{name}_{source.stem}.o" for source in sources] for name in chosen}
        tasks = {
            name: [
                pool.submit(_run, [*called[name], "-c", str(source), "-o", made_of])
                for source, made_of in zip(sources, objects[name], strict=True)
            ]
            for name in chosen
        }
        for name in chosen:
            problem = next(filter(None, [task.result() for task in tasks[name]]), "")
            target, linked = out / library_name(name), Path(scratch) / library_name(name)
            problem = problem or _run([*called[name], "-shared", *objects[name], "-o", str(linked), "-lm"])
            if problem and name == "plain":
                raise RuntimeError(problem)
            if problem:
                print(f"outpace: the {name} kernels are left out:\n{problem}", file=sys.stderr)
                continue
            out.mkdir(parents=True, exist_ok=True)
            staged = target.with_suffix(".new")
            shutil.copyfile(linked, staged)
            staged.replace(target)  # a running process keeps the old file
            made.append(target)
    return made


def _run(command: Sequence[str]) -> str:
    """Runs a compiler; its complaints when it fails, "" when it succeeds."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{' '.join(command)}\n{done.stderr}"


def _compiles(command: Sequence[str], scratch: Path) -> bool:
    probe = scratch / "probe.c"
    probe.write_text("#ifdef _OPENMP\n#include <omp.h>\n#endif\nint main(void) { return 0; }\n")
    return not _run([*command, str(probe), "-o", str(scratch / "probe")])


if __name__ == "__main__":
    for path in build(Path(__file__).parent, only=sys.argv[1:]):
        print(path.name)
