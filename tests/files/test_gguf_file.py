"""GGUF headers: agreement with the gguf package's own reader, alignment, and damaged files refused by name."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from tests.helpers.tiny_models import byte_level_tokenizer, tiny_config, tiny_weights, write_gguf

from outpace.core.errors import ModelError
from outpace.files import gguf_file
from outpace.files.checkpoint import open_checkpoint
from outpace.files.gguf_file import read_gguf

_LAST = "output.weight"  # the writer's last tensor for an untied model


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    config = tiny_config("llama", tokenizer)
    return config, tiny_weights(config)


def test_same_as_the_package_reader(tmp_path, tokenizer, model):
    path = write_gguf(tmp_path / "m.gguf", *model, tokenizer, kind="Q8_0", add_bos=True)
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert dict(ours.metadata) == fields
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert mine.kind == tensor.tensor_type.name
        assert mine.raw().tobytes() == tensor.data.tobytes()
        assert np.array_equal(mine.load(), gguf.quants.dequantize(tensor.data, tensor.tensor_type))


@pytest.mark.parametrize("ahead", [1, 7, 64])
def test_headers_longer_than_what_is_read_at_once(tmp_path, tokenizer, model, monkeypatch, ahead):
    path = write_gguf(tmp_path / "m.gguf", *model, tokenizer)
    whole = read_gguf(path)
    monkeypatch.setattr(gguf_file, "_READ_AHEAD", ahead)
    assert read_gguf(path) == whole


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_kinds(tmp_path, tokenizer, model, kind):
    """Values come back within the encoding's step; reordered rows keep their values and their bytes."""
    config, weights = model
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", config, weights, tokenizer, kind=kind))
    qtype = gguf.GGMLQuantizationType[kind]
    for name in ["model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.up_proj.weight"]:
        expected = gguf.quants.quantize(weights[name], qtype)  # row by row, so the order of rows does not matter
        stored = checkpoint.tensors[name]
        assert stored.kind == kind
        assert stored.raw().tobytes() == expected.tobytes()
        assert np.array_equal(stored.load(), gguf.quants.dequantize(expected, qtype))


@pytest.mark.parametrize("alignment", [None, 32, 64, 128])
@pytest.mark.parametrize("padding", [0, 1, 4096])
def test_alignment_and_padding(tmp_path, tokenizer, model, alignment, padding):
    config, weights = model
    path = write_gguf(tmp_path / "m.gguf", config, weights, tokenizer, alignment=alignment)
    content = path.read_bytes() + b"\0" * padding
    path.write_bytes(content)
    tensors = open_checkpoint(path).tensors
    assert all(np.array_equal(tensors[name].load(), values) for name, values in weights.items())


def test_file_may_end_with_its_last_tensor(tmp_path, tokenizer, model):
    """Writers pad the last tensor to the alignment; readers must not insist on it, nor miss a lost byte."""
    config, weights = model
    weights = {**weights, "model.norm.weight": weights["model.norm.weight"]}
    path = write_gguf(tmp_path / "m.gguf", config, weights, tokenizer, extra={"rope_freqs.weight": np.ones(8, "f4")})
    content = path.read_bytes()
    while content[-32:] == b"\0" * 32:
        content = content[:-32]
    path.write_bytes(content)
    assert open_checkpoint(path).tensors["lm_head.weight"].load().shape == (config["vocab_size"], 64)
    path.write_bytes(content[:-1])
    with pytest.raises(ModelError, match=r"m\.gguf: tensor 'rope_freqs.weight' ends at byte"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (4, struct.pack("<I", 0)),
        (4, struct.pack("<I", 3)),
        (4, struct.pack("<I", 33)),
        (5, struct.pack("<i", -32)),
        (5, struct.pack("<i", 64)),
        (6, struct.pack("<f", 64.0)),
        (8, struct.pack("<Q", 2) + b"64"),
    ],
)
def test_impossible_alignment(tmp_path, tokenizer, model, kind, value):
    path = write_gguf(tmp_path / "m.gguf", *model, tokenizer, alignment=64)
    content = path.read_bytes()
    at = content.index(b"general.alignment") + len("general.alignment")
    path.write_bytes(content[:at] + struct.pack("<I", kind) + value + content[at + 8 :])
    with pytest.raises(ModelError, match=r"m\.gguf: general\.alignment is"):
        open_checkpoint(path)


def test_truncated_anywhere(tmp_path, tokenizer, model):
    """Whatever the length, the answer is a ModelError with the file's name, never a crash or a silent load."""
    path = write_gguf(tmp_path / "m.gguf", *model, tokenizer)
    content = path.read_bytes()
    data_start = len(content) - sum(-(-values.nbytes // 32) * 32 for values in model[1].values())
    header = [0, 3, 8, 23, 24, 40, *range(100, data_start, 977)]
    for size in [*header, data_start, data_start + 1000, len(content) // 2, len(content) - 32]:
        path.write_bytes(content[:size])
        with pytest.raises(ModelError, match=r"m\.gguf"):
            open_checkpoint(path)
    path.write_bytes(content[: len(content) - 32])
    with pytest.raises(ModelError, match=rf"tensor '{_LAST}' ends at byte \d+ but the file has only"):
        open_checkpoint(path)


def _patched(path, find: bytes, change) -> None:
    content = bytearray(path.read_bytes())
    at = content.index(find) + len(find)
    change(content, at)
    path.write_bytes(bytes(content))


def test_damage_is_named(tmp_path, tokenizer, model):
    def fresh():
        return write_gguf(tmp_path / "m.gguf", *model, tokenizer)

    path = fresh()
    path.write_bytes(b"GGML" + path.read_bytes()[4:])
    with pytest.raises(ModelError, match="not a GGUF file"):
        open_checkpoint(path)
    path = fresh()
    path.write_bytes(b"GGUF" + struct.pack(">I", 3) + path.read_bytes()[8:])
    with pytest.raises(ModelError, match="version 50331648"):
        open_checkpoint(path)

    # A matrix's description: name, 2 dimensions (4 bytes), sizes (16), type (4), offset (8).
    def put(place: int, layout: str, value: int):
        return lambda content, at: struct.pack_into(layout, content, at + place, value)

    name = b"blk.0.attn_output.weight"
    for change, words in [
        (put(20, "<I", 12345), "type number 12345"),
        (put(20, "<I", gguf.GGMLQuantizationType.I8), "type I8"),
        (put(20, "<I", gguf.GGMLQuantizationType.Q4_K), "does not divide into Q4_K blocks"),
        (put(0, "<I", 9), "9 dimensions"),
        (put(4, "<Q", 0), "shape"),
        (put(12, "<Q", 1 << 60), "ends at byte"),
        (put(24, "<Q", 16), "starts at 16"),
    ]:
        path = fresh()
        _patched(path, name, change)
        with pytest.raises(ModelError, match=words) as error:
            open_checkpoint(path)
        assert name.decode() in str(error.value)
    path = fresh()
    _patched(path, b"tokenizer.ggml.tokens", put(8, "<Q", 1 << 62))
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.tokens"):
        open_checkpoint(path)
    path = fresh()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"))
    with pytest.raises(ModelError, match=r"'blk\.0\.attn_k\.weight' appears twice"):
        open_checkpoint(path)


def test_unknown_architecture(tmp_path, tokenizer, model):
    path = write_gguf(tmp_path / "m.gguf", *model, tokenizer)
    path.write_bytes(path.read_bytes().replace(b"llama", b"lamma"))
    with pytest.raises(ModelError, match="unknown architecture 'lamma'"):
        open_checkpoint(path)


def test_names_without_a_translation_stay(tmp_path, tokenizer, model):
    """So that the decoder can refuse what it has no place for."""
    extra = {"blk.0.attn_sinks.weight": np.ones(4, "f4"), "strange": np.ones(4, "f4")}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", *model, tokenizer, extra=extra))
    assert set(checkpoint.tensors) - set(model[1]) == set(extra)


def test_llama3_rotary_factors_become_configuration(tmp_path, tokenizer, model):
    factors = np.array([1, 1, 1.5, 2, 4, 8, 8, 8], "f4")
    checkpoint = open_checkpoint(
        write_gguf(tmp_path / "m.gguf", *model, tokenizer, extra={"rope_freqs.weight": factors})
    )
    assert checkpoint.hf_config["rope_scaling"] == {"rope_type": "factors", "factors": factors.tolist()}
    assert "rope_freqs.weight" not in checkpoint.tensors
