"""Metadata of a wrong type, and headers that lie: a ModelError that names file and key, never another exception."""

from __future__ import annotations

import json
import shutil
import struct
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGUFValueType as Kind
from gguf.gguf_writer import GGUFValue
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers.tiny_models import byte_level_tokenizer, metaspace_tokenizer, tiny_config, tiny_weights, write_gguf

from outpace.catalogue import resolve
from outpace.core.errors import ModelError
from outpace.files.checkpoint import open_checkpoint
from outpace.files.gguf_file import _ARCHITECTURE_KEYS, _OTHER_KEYS
from outpace.files.safetensors_file import _CONFIG, _END, _TOKENIZER, read_safetensors
from outpace.files.typed import _CHECKS
from outpace.runtimes.loading import checked_config

WHOLE = (Kind.UINT8, Kind.INT8, Kind.UINT16, Kind.INT16, Kind.UINT32, Kind.INT32, Kind.UINT64, Kind.INT64)
# One value of every GGUF type, arrays of each, an empty one and nested ones.
SCALARS = dict.fromkeys(WHOLE, 3) | {Kind.FLOAT32: 0.5, Kind.FLOAT64: 0.5, Kind.BOOL: True, Kind.STRING: "three"}
VALUES = {
    **{kind.name: GGUFValue(value, kind) for kind, value in SCALARS.items()},
    **{f"{kind.name}s": GGUFValue([value] * 2, Kind.ARRAY, kind) for kind, value in SCALARS.items()},
    "empty": GGUFValue([], Kind.ARRAY, Kind.UINT32),
    "nested": GGUFValue([[3, 3], [3]], Kind.ARRAY),
    "nested strings": GGUFValue([["three"]], Kind.ARRAY),
    "negative": GGUFValue(-3, Kind.INT64),
    "huge": GGUFValue(1 << 63, Kind.UINT64),
    "not a number": GGUFValue(float("nan"), Kind.FLOAT32),
}
GGUF_KEYS = _OTHER_KEYS | {f"llama.{key}": kinds for key, kinds in _ARCHITECTURE_KEYS.items()}


def refusal_of(work) -> str:
    """The ModelError's words, "" where there is none; any other exception fails the test."""
    try:
        work()
    except ModelError as error:
        return str(error)
    return ""


class Patched(gguf.GGUFWriter):
    """A writer that puts other values into the metadata at the end."""

    changes: dict[str, GGUFValue] = {}  # noqa: RUF012

    def write_kv_data_to_file(self) -> None:
        self.kv_data[0].update(self.changes)
        super().write_kv_data_to_file()

    def write_header_to_file(self, path: Path | None = None) -> None:
        self.kv_data[0].update(self.changes)
        super().write_header_to_file(path)

    def _pack_val(self, val, vtype, add_vtype, sub_type=None):  # the package refuses empty arrays, files hold them
        if vtype == Kind.ARRAY and len(val) == 0:
            head = struct.pack("<I", Kind.ARRAY) if add_vtype else b""
            return head + struct.pack("<IQ", Kind.UINT32, 0)
        return super()._pack_val(val, vtype, add_vtype, sub_type)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Writes a tiny model with other metadata: byte-level for keys of "gpt2", metaspace for those of "llama"."""
    made = {}
    for tokenizer in (byte_level_tokenizer(), metaspace_tokenizer()):
        config = tiny_config("llama", tokenizer)
        made[len(made)] = (config, tiny_weights(config), tokenizer)
    folder = tmp_path_factory.mktemp("typed")

    def write(changes: dict[str, GGUFValue], metaspace: bool = False) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gguf, "GGUFWriter", Patched)
            patch.setattr(Patched, "changes", changes)
            return write_gguf(folder / "m.gguf", *made[int(metaspace)])

    return write


@pytest.mark.parametrize("key", sorted(GGUF_KEYS))
def test_every_key_with_every_type(written, key):
    """A value of a type that the key does not have is refused by name; one of its type loads or is refused."""
    for name, value in VALUES.items():
        path = written({key: value}, metaspace=key.endswith(("scores", "space_prefix")))
        fits = any(_CHECKS[kind](value.value) for kind in GGUF_KEYS[key])
        refusal = refusal_of(lambda path=path: open_checkpoint(path))
        assert fits or key in refusal, (name, refusal)
        assert not refusal or "m.gguf" in refusal, (name, refusal)


@pytest.mark.parametrize("key", ["tokens", "token_type", "merges", "scores"])
@pytest.mark.parametrize("length", [0, 1, 5])
def test_tokenizer_arrays_of_a_wrong_length(written, key, length):
    whole = {"tokens": "a", "token_type": 1, "merges": "a b", "scores": 0.5}[key]
    kind = {"a": Kind.STRING, "a b": Kind.STRING, 1: Kind.INT32, 0.5: Kind.FLOAT32}[whole]
    changes = {f"tokenizer.ggml.{key}": GGUFValue([whole] * length, Kind.ARRAY, kind)}
    if key == "merges" and length == 0:
        assert open_checkpoint(written(changes)).tokenizer.size > 0  # bytes alone
        return
    with pytest.raises(ModelError, match=r"m\.gguf"):
        open_checkpoint(written(changes, metaspace=key == "scores"))


def test_overlapping_gguf_tensors(tmp_path):
    """Two tensors at one offset, and one that reaches into the next: once they loaded silently."""
    tokenizer = byte_level_tokenizer()
    config = tiny_config("llama", tokenizer)
    path = write_gguf(tmp_path / "m.gguf", config, tiny_weights(config), tokenizer)
    whole = path.read_bytes()

    def offset_of(name: bytes) -> int:
        return whole.index(name) + len(name) + 24  # 2 dimensions, 2 sizes, the type

    ups, downs = b"blk.0.ffn_up.weight", b"blk.0.ffn_down.weight"
    (up,) = struct.unpack_from("<Q", whole, offset_of(ups))
    for begin in (up, up + 64, up - 64):
        content = bytearray(whole)
        struct.pack_into("<Q", content, offset_of(downs), begin)
        path.write_bytes(bytes(content))
        with pytest.raises(ModelError, match=r"m\.gguf: tensors 'blk\.0\.ffn_\w+\.weight' and .* overlap"):
            open_checkpoint(path)


JSON_VALUES = [3, -3, 0.5, True, "three", [], [3], ["three"], [[3]], {}, {"a": 1}, [{"a": 1}]]
JSON_KEYS = [
    *(("config.json", key, kinds) for key, kinds in _CONFIG.items()),
    *(("generation_config.json", key, kinds) for key, kinds in _END.items()),
    *(("tokenizer_config.json", key, kinds) for key, kinds in _TOKENIZER.items()),
    *(("config.json:rope_scaling", key, ()) for key in ("rope_type", "rope_theta", "factor", "low_freq_factor")),
    ("tokenizer_config.json:added_tokens_decoder", "7", ()),
    ("tokenizer_config.json:added_tokens_decoder", "x", ()),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("json") / "damaged"
    shutil.copytree(resolve("tiny-draft"), place)
    return place


@pytest.mark.parametrize(("where", "key", "kinds"), JSON_KEYS, ids=[f"{w}-{k}" for w, k, _ in JSON_KEYS])
def test_json_values_of_every_type(folder, where, key, kinds):
    name, _, inner = where.partition(":")
    file = folder / name
    kept = file.read_text() if file.exists() else None
    whole = json.loads(kept or "{}")
    try:
        for value in JSON_VALUES:
            changed = {inner: {**(whole.get(inner) or {}), key: value}} if inner else {key: value}
            file.write_text(json.dumps(whole | changed))
            fits = not kinds or any(_CHECKS[kind](value) for kind in kinds)
            refusal = refusal_of(lambda: checked_config(open_checkpoint(folder)))
            assert fits or (key in refusal and name in refusal), (value, refusal)
            assert not refusal or "damaged" in refusal, (value, refusal)
    finally:
        file.unlink()
        if kept is not None:
            file.write_text(kept)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
PLACES = st.integers(-4, 16)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F16", "BF16", "F64", "Q4_0", "I8", "f32"]) | ANYTHING,
        "shape": st.lists(st.integers(-1, 4), max_size=3) | ANYTHING,
        "data_offsets": st.tuples(PLACES, PLACES).map(list) | st.lists(PLACES, max_size=3) | ANYTHING,
    },
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.dictionaries(st.sampled_from("abc"), ENTRY | ANYTHING, max_size=3) | ANYTHING)
def test_any_safetensors_header(tmp_path, header):
    """What loads is disjoint, in the file and of its shape; everything else is refused with the file's name."""
    path = tmp_path / "m.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    if refusal := refusal_of(lambda: read_safetensors(path)):
        assert "m.safetensors" in refusal
        return
    tensors = read_safetensors(path)
    spans = sorted(tuple(header[name]["data_offsets"]) for name in tensors)
    assert all(begin >= 0 and end <= 16 for begin, end in spans)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert all(t.load().shape == tuple(header[n]["shape"]) and np.all(t.raw() == 0) for n, t in tensors.items())
