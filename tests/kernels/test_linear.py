"""The C linears against their numpy twin, and bit for bit against themselves."""

import numpy as np
import pytest
from tests.helpers.linear_cases import activations, columns, exact, largest, packed, raw_rows

from outpace.core.bf16 import from_bf16, to_bf16
from outpace.core.errors import ModelError, ParameterError
from outpace.kernels import linear, native, reference

pytestmark = pytest.mark.skipif(not native.available(), reason="the C kernels are not built")

FAST_PATHS = [(kind, linear.fast_activations(kind)) for kind in linear.KINDS]
PATHS = FAST_PATHS + [(kind, "f32") for kind, form in FAST_PATHS if form != "f32"]


def rounded_to(dtype, values):
    with np.errstate(over="ignore"):
        return to_bf16(values) if dtype == "bfloat16" else values.astype(dtype)


def values_of(weight):
    return from_bf16(weight) if weight.dtype == np.uint16 else weight.astype(np.float32)


@pytest.fixture(scope="module", params=native.available())
def library(request):
    return native.open_library(request.param)


@pytest.mark.parametrize("kind", linear.KINDS)
def test_packing_keeps_every_value(library, kind):
    matrix, weight = packed(library, kind, rows=37)
    assert np.array_equal(linear.unpack(matrix).view(np.int32), weight.view(np.int32))
    assert np.array_equal(linear.unpack(matrix, 17, 3), weight[17:20])


@pytest.mark.parametrize("kind", linear.KINDS)
def test_raw_rows_are_dequantized_as_the_file_means(library, kind):
    cols = columns(kind)
    raw = raw_rows(kind, 3, cols)
    assert np.array_equal(linear.dequantize(library, raw, kind, cols, threads=2), exact(kind, raw, cols))


@pytest.mark.parametrize(("kind", "form"), PATHS)
def test_result_is_the_twins(library, kind, form):
    matrix, weight = packed(library, kind, rows=37)
    x = activations(13, matrix.cols)
    x[3] *= 100
    x[5] = 0
    got = linear.matmul(matrix, x, threads=2, activations=form)
    rounded = reference.round_activations(x, form)
    size = np.abs(rounded) @ np.abs(weight.astype(np.float64)).T + 1e-30  # [rows, outputs] the terms' sizes, added
    error = np.abs(got - reference.linear(weight, x, form)) / size
    assert float(error.max()) < 1e-6


@pytest.mark.parametrize("kind", [kind for kind, form in FAST_PATHS if form == "int8"])
def test_no_sum_saturates(library, kind):
    """Every weight and every activation as large as its bits allow, all products of one sign or of both in turns."""
    cols = columns(kind)
    raw = largest(raw_rows(kind, 18, cols), kind)
    matrix, weight = linear.pack(library, raw, kind, cols, threads=1), exact(kind, raw, cols)
    signs = np.ones((6, cols), dtype=np.float32)
    signs[1], signs[2, ::2], signs[3, 1::4], signs[4, 16:] = -1, -1, -1, -1
    error = np.abs(linear.matmul(matrix, signs, threads=1) - reference.linear(weight, signs, "int8"))
    assert float((error / np.abs(weight.astype(np.float64)).sum(axis=1)).max()) < 1e-5


@pytest.mark.parametrize("kind", [kind for kind, form in FAST_PATHS if form != "f32"])
def test_rounding_the_activations_costs_about_a_percent(library, kind):
    matrix, weight = packed(library, kind, rows=64)
    x = activations(8, matrix.cols)
    unrounded = reference.linear(weight, x, "f32")
    error = linear.matmul(matrix, x, threads=1) - unrounded
    assert 1e-4 < np.linalg.norm(error) / np.linalg.norm(unrounded) < 0.02


@pytest.mark.parametrize(("kind", "form"), PATHS)
def test_a_row_does_not_depend_on_the_others(library, kind, form):
    matrix, _ = packed(library, kind, rows=37)
    x = activations(17, matrix.cols)
    alone = np.concatenate([linear.matmul(matrix, row[None], threads=1, activations=form) for row in x])
    for count in range(1, 18):
        order = np.random.default_rng(count).permutation(17)[:count]
        for threads in (1, 2, 3):
            together = linear.matmul(matrix, x[order], threads=threads, activations=form)
            assert np.array_equal(together, alone[order]), f"{count} rows, {threads} threads"
    junk = np.full_like(x, np.nan)
    junk[::3], junk[1::3] = 3e38, np.inf
    for place in (0, 7, 16):
        mixed = junk.copy()
        mixed[place] = x[place]
        assert np.array_equal(linear.matmul(matrix, mixed, threads=2, activations=form)[place], alone[place])


@pytest.mark.parametrize(("kind", "form"), PATHS)
def test_a_long_prefill_keeps_the_bits_too(library, kind, form):
    matrix, _ = packed(library, kind, rows=5)
    x = activations(70, matrix.cols)
    together = linear.matmul(matrix, x, threads=2, activations=form)
    for place in (0, 11, 12, 69):
        assert np.array_equal(
            together[place], linear.matmul(matrix, x[place : place + 1], threads=1, activations=form)[0]
        )


@pytest.mark.parametrize(("kind", "form"), FAST_PATHS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_nan_row_stays_visible(library, kind, form, bad):
    matrix, _ = packed(library, kind, rows=20)
    x = activations(2, matrix.cols)
    x[1, 40] = bad
    got = linear.matmul(matrix, x, threads=1)
    assert np.isfinite(got[0]).all()
    assert not np.isfinite(got[1]).any()


def test_the_variants_agree_to_rounding():
    for kind, _ in FAST_PATHS:
        results = []
        for variant in native.available():
            matrix, weight = packed(native.open_library(variant), kind, rows=33)
            x = activations(4, matrix.cols)
            results.append(linear.matmul(matrix, x, threads=2))
        size = np.abs(x).astype(np.float64) @ np.abs(weight).astype(np.float64).T
        assert all(float((np.abs(one - results[0]) / size).max()) < 1e-6 for one in results)


@pytest.mark.parametrize(("name", "steps"), [("q8", 254), ("q4_0", 8), ("q4", 15)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rounding_weights_at_load_takes_the_nearest_level(library, name, steps, dtype):
    weight = rounded_to(dtype, np.random.default_rng(2).standard_normal((19, 96), dtype=np.float32))
    matrix = linear.pack_float(library, weight, linear.ROUNDED_KINDS[name], threads=2)
    groups = values_of(weight).reshape(19, 3, 32)
    width = groups.max(-1) - groups.min(-1) if name == "q4" else 2 * np.abs(groups).max(-1)
    error = np.abs(linear.unpack(matrix).reshape(19, 3, 32) - groups).max(-1)
    # Half a step, and fp16 scales. q4_0 has 16 levels, one of them at -max or max, and none at the other: a whole step.
    assert (error <= width / steps * 0.5 + np.abs(groups).max(-1) * 2e-3).all()
    assert float(error.max()) > 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_float_weights_pack_as_they_are(library, dtype):
    weight = rounded_to(dtype, np.random.default_rng(0).standard_normal((3, 7), dtype=np.float32))
    matrix = linear.pack_float(library, weight, threads=1)
    assert np.array_equal(linear.unpack(matrix), values_of(weight))


def test_conversions_between_floats_round_to_nearest_even(library):
    weight = np.random.default_rng(0).standard_normal((15, 4096)) * 10.0 ** np.arange(-9, 6)[:, None]
    weight[0, :4] = [65519.0, 65520.0, -0.0, 2.0**-25]
    weight = weight.astype(np.float32)
    for kind, dtype in (("F16", "float16"), ("BF16", "bfloat16")):
        got = linear.unpack(linear.pack_float(library, weight, kind, threads=1))
        assert np.array_equal(got, values_of(rounded_to(dtype, weight)))


def test_closing_frees_once(library):
    matrix, _ = packed(library, "Q8_0", rows=20)
    matrix.close()
    matrix.close()


def test_mistakes_name_the_tensor(library):
    raw = raw_rows("Q4_K", 4, 512)
    with pytest.raises(ModelError, match=r"file\.gguf: blk\.0.*IQ2_XS is not supported"):
        linear.pack(library, raw, "IQ2_XS", 512, threads=1, name="file.gguf: blk.0.attn_q.weight")
    with pytest.raises(ModelError, match="no whole number of Q4_K blocks"):
        linear.pack(library, raw, "Q4_K", 500, threads=1)
    with pytest.raises(ModelError, match="has 144 bytes, the data has 288"):
        linear.pack(library, raw, "Q4_K", 256, threads=1)
    with pytest.raises(ModelError, match="multiple of 32"):
        linear.pack_float(library, np.zeros((2, 33), dtype=np.float32), "Q8_0", threads=1)
    matrix, _ = packed(library, "Q4_K", rows=4)
    with pytest.raises(ParameterError, match=r"need float32 \[rows, 512\]"):
        linear.matmul(matrix, np.zeros((1, 256), dtype=np.float32), threads=1)
    with pytest.raises(ParameterError, match="no 'bf16' activations"):
        linear.matmul(matrix, np.zeros((1, 512), dtype=np.float32), threads=1, activations="bf16")


def test_no_rows_is_no_work(library):
    matrix, _ = packed(library, "Q8_0", rows=20)
    assert linear.matmul(matrix, np.zeros((0, 160), dtype=np.float32), threads=2).shape == (0, 20)


def test_activation_rounding_twin_knows_the_edges():
    x = np.zeros((4, 32), dtype=np.float32)
    x[0, 0], x[1, 3], x[2, 3], x[3] = 254.0, np.nan, np.inf, 1e-37
    x[0, 1] = 1.0  # exactly half a step: to even
    q, scale = reference.quantize_activations(x)
    assert q[0, 0, :2].tolist() == [127, 0]
    assert scale[0].item() == 2.0
    assert np.isnan(scale[1:3]).all()
    assert scale[3].item() == 0.0
