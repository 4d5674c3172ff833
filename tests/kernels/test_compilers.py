"""Every C compiler that is here builds every variant, with the same bits; an unusable library is said to be."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from outpace.core.bf16 import to_bf16
from outpace.kernels import build, native
from outpace.kernels.linear import matmul, pack, pack_float, unpack
from outpace.kernels.native import Library, available, missing_notice, open_library
from outpace.kernels.passes import SlotRows, attention_alone
from outpace.kernels.sampling import NoiseKey, Sampler
from outpace.runtimes.native import _SCALES

pytestmark = pytest.mark.skipif(not available(), reason="no built kernels")


@pytest.fixture(scope="module", params=["gcc", "clang"])
def built(request, tmp_path_factory):
    """All variants, without optimization: it takes most of the time and must not change a bit."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed here")
    out = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", request.param)
        made = build.build(out, extra=("-O1", "-DUNROLL="))
    assert {path.name for path in made} == {build.library_name(variant) for variant in build.variants()}
    return out


@pytest.mark.audit  # a minute; .ci/run runs it
@pytest.mark.parametrize("variant", available())
def test_same_bits_whatever_the_compiler(built, variant):
    """Linears of every kind and activation, attention, and everything that chooses tokens."""
    ours = open_library(variant)
    theirs = Library(native._declare(ctypes.CDLL(str(built / build.library_name(variant)))), variant)
    results = [_everything(library) for library in (ours, theirs)]
    for (name, one), (_, other) in zip(*results, strict=True):
        assert one.tobytes() == other.tobytes(), name


def _everything(library):
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    found = []
    for kind in ("Q8_0", "Q4_0", "Q4_1", "BF16", "F16", "F32"):
        weight = draw(37, 96).astype(np.float16 if kind == "F16" else np.float32)
        matrix = pack_float(library, weight, kind, threads=1)
        found.append((f"values of {kind}", unpack(matrix)))
        for rows in (1, 3, 13):
            found.append((f"{kind}, {rows} rows", matmul(matrix, draw(rows, 96), threads=2)))
            found.append((f"{kind}, exact", matmul(matrix, draw(rows, 96), threads=1, activations="f32")))
    for kind, (size, scales) in _SCALES.items():
        cols = 256 if "_K" in kind else 96
        raw = rng.integers(0, 256, (37, cols // (256 if "_K" in kind else 32), size), dtype=np.uint8)
        for at in scales:
            raw[..., at : at + 2] = (0, 0x2C)  # 1/16
        matrix = pack(library, raw.reshape(37, -1), kind, cols, threads=1)
        found += [(f"values of {kind}", unpack(matrix)), (kind, matmul(matrix, draw(5, cols), threads=2))]
    for dtype in ("float32", "bfloat16"):
        keys, values = draw(1, 2, 24, 16), draw(1, 2, 24, 16)
        if dtype == "bfloat16":
            keys, values = to_bf16(keys), to_bf16(values)
        slots = [SlotRows(5, keys, values, 19, [-1, 0, 0, 1, 2])]
        found.append((f"attention, {dtype}", attention_alone(library, draw(5, 4, 16), slots, 0, 2, 2)))
    sampler, logits, key = Sampler(library), 4 * draw(1003), NoiseKey(7, 11, 2, 1)
    probs = sampler.softmax(logits, 0.7)
    found += [("softmax", probs), ("noise", sampler.gumbel(key, 50)), ("top_k", sampler.top_k(logits, 40))]
    found += [("top_p", sampler.top_p(probs, 0.9)), ("at_least", sampler.at_least(logits, 1.0))]
    numbers = [sampler.argmax(logits), sampler.quantile(probs, 0.3), sampler.log_total(logits, float(logits.max()))]
    numbers += [sampler.perturbed_argmax(logits, 0.9, NoiseKey(seed, 3, 0, 0)) for seed in range(50)]
    return [*found, ("numbers", np.array(numbers, dtype=np.float64))]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Kernels are looked for in an empty folder."""
    monkeypatch.setattr(native, "_path", lambda variant: tmp_path / build.library_name(variant))
    return tmp_path


def test_a_library_of_other_sources_is_not_used(elsewhere, monkeypatch):
    for variant in native.VARIANTS:
        shutil.copy(Path(build.__file__).with_name(build.library_name(variant)), elsewhere)
    assert open_library() is not None
    monkeypatch.setattr(native, "sources_digest", lambda: 1)
    assert available() == () and open_library() is None
    assert "other sources" in missing_notice() and "python -m outpace.kernels.build" in missing_notice()


def test_the_digest_is_of_every_source(tmp_path, monkeypatch):
    package = tmp_path / "kernels"
    shutil.copytree(Path(build.__file__).parent / "csrc", package / "csrc")
    monkeypatch.setattr(build, "__file__", str(package / "build.py"))
    seen = {build.sources_digest.__wrapped__()}
    files = [*(package / "csrc").iterdir()]
    for file in files:
        file.write_text(file.read_text() + "\n")
        seen.add(build.sources_digest.__wrapped__())
    assert len(seen) == len(files) + 1


def test_a_library_that_does_not_load_is_not_used(elsewhere):
    """As one that is linked to a libgomp which this machine lacks."""
    compiler = build.compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    source = elsewhere / "needs.c"
    source.write_text("int gone(void); int op_cpu_supports(int v) { return v ? 0 : gone(); }\n")
    (elsewhere / "gone.c").write_text("int gone(void) { return 1; }\n")
    lost = elsewhere / "libgone.so"
    for command in (
        [*compiler, "-shared", "-fPIC", "gone.c", "-o", lost.name],
        [*compiler, "-shared", "-fPIC", "needs.c", lost.name, "-o", build.library_name("plain")],
    ):
        subprocess.run(command, cwd=elsewhere, check=True)
    lost.unlink()
    assert available() == () and open_library() is None
    assert "libgone.so" in missing_notice()
