"""GGUF files: header, metadata and tensors, given Hugging Face names and row order.

The header is read here rather than by ``gguf.GGUFReader``, which makes an array object of every string and so
needs many seconds for a vocabulary of 150 000 tokens, and which trusts lengths and alignment. Constants, block
sizes and dequantization are the ``gguf`` package's; a test compares both readers.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ModelError
from ..families.family import Family, families
from ..families.settings import Settings
from ..families.table import numbered
from .model_file import FileRows, ModelFile
from .tensors import StoredTensor, block_layout
from .typed import BOOL, INT, INTS, NUMBER, NUMBERS, TEXT, TEXTS, check_types

# Metadata keys behind the architecture's name that change nothing of what a decoder computes.
_ABOUT = ("pooling_type", "rope.scaling.finetuned", "tensor_data_layout", "vocab_size")
_ROPE_FREQS = "rope_freqs.weight"
# The types of the metadata that is read: below the architecture's name, and elsewhere.
_COUNT = (INT, INTS)  # some files give one number a layer
_ARCHITECTURE_KEYS = {
    **dict.fromkeys(("block_count", "context_length", "embedding_length", "feed_forward_length"), _COUNT),
    **dict.fromkeys(("attention.head_count", "attention.head_count_kv"), _COUNT),
    **dict.fromkeys(("attention.key_length", "attention.value_length"), _COUNT),
    **dict.fromkeys(("rope.dimension_count", "attention.sliding_window"), _COUNT),
    **dict.fromkeys(("attention.layer_norm_rms_epsilon", "rope.freq_base"), (NUMBER,)),
    **dict.fromkeys(("rope.scaling.factor", "rope.scale_linear"), (NUMBER,)),
    "rope.scaling.original_context_length": (INT,),
    "rope.scaling.type": (TEXT,),
}
_OTHER_KEYS = {
    **dict.fromkeys(("general.architecture", "tokenizer.chat_template"), (TEXT,)),
    **dict.fromkeys(("tokenizer.ggml.model", "tokenizer.ggml.pre"), (TEXT,)),
    **dict.fromkeys(("tokenizer.ggml.tokens", "tokenizer.ggml.merges"), (TEXTS,)),
    "tokenizer.ggml.token_type": (INTS,),
    "tokenizer.ggml.scores": (NUMBERS,),
    **dict.fromkeys((f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom")), (INT,)),
    **dict.fromkeys((f"tokenizer.ggml.add_{name}" for name in ("bos_token", "eos_token", "space_prefix")), (BOOL,)),
}
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_READ_AHEAD = 1 << 22  # bytes; most headers are read at once


@dataclass(frozen=True)
class GgufFile:
    """Metadata and tensors of one file; tensors by the file's own names, in the file's own row order."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


class _Cursor:
    """Reads little-endian values and never past the end of the file."""

    def __init__(self, file: ModelFile) -> None:
        self.path, self.file, self.at = file.path, file, 0
        self.view = memoryview(b"")  # the file's first bytes, as far as they have been read

    def take(self, size: int, what: str) -> int:
        start = self.at
        if size > self.file.size - start:
            raise ModelError(f"{self.path}: the file ends inside {what}; it is truncated, fetch it again")
        self.at = start + size
        if self.at > len(self.view):
            more = min(max(self.at - len(self.view), _READ_AHEAD), self.file.size - len(self.view))
            self.view = memoryview(bytes(self.view) + self.file.read(len(self.view), more).tobytes())
        return start

    def scalar(self, code: str, what: str) -> Any:
        start = self.take(struct.calcsize("<" + code), what)  # which may replace the view
        return struct.unpack_from("<" + code, self.view, start)[0]

    def string(self, what: str) -> str:
        size = self.scalar("Q", what)
        start = self.take(size, what)
        # A merge or a name may hold broken UTF-8 in old files: keep what can be read.
        return str(self.view[start : start + size], "utf-8", "replace")

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], what)
        if kind != _ARRAY or depth > 2:
            raise ModelError(f"{self.path}: {what} has unknown value type {kind}; the file is damaged")
        inner, count = self.scalar("I", what), self.scalar("Q", what)
        if count > self.file.size:
            raise ModelError(f"{self.path}: {what} claims {count} items, more than the file has bytes")
        if inner in _SCALARS:
            layout = struct.Struct(f"<{count}{_SCALARS[inner]}")
            start = self.take(layout.size, what)
            return list(layout.unpack_from(self.view, start))
        return [self.value(inner, what, depth + 1) for _ in range(count)]


def read_gguf(path: Path) -> GgufFile:
    """Read the header of ``path`` and place its tensors.

    Raises ModelError naming the file (and the tensor or key) for a wrong magic number, an unsupported version,
    impossible alignment, metadata of a wrong type, unknown tensor types, and tensors that overlap or reach beyond the
    end of the file.
    """
    file = ModelFile.at(path)
    if file.size < 24:
        raise ModelError(f"{path}: {file.size} bytes are too few for a GGUF file; fetch it again")
    cursor = _Cursor(file)
    cursor.take(4, "the magic number")
    if (magic := bytes(cursor.view[:4])) != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file (it begins with {magic!r} instead of b'GGUF')")
    version = cursor.scalar("I", "the version")
    if version not in (2, 3):
        raise ModelError(f"{path}: GGUF version {version} is not supported (2 and 3, little-endian, are)")
    tensor_count, key_count = cursor.scalar("Q", "the tensor count"), cursor.scalar("Q", "the key count")
    metadata: dict[str, Any] = {}
    alignment = 32
    for _ in range(key_count):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise ModelError(f"{path}: metadata key {key!r} appears twice")
        kind = cursor.scalar("I", f"metadata key {key!r}")
        metadata[key] = cursor.value(kind, f"metadata key {key!r}")
        if key == "general.alignment":
            alignment = metadata[key]
            if kind != _UINT32 or alignment == 0 or alignment % 8:
                raise ModelError(
                    f"{path}: general.alignment is {alignment!r} (value type {kind}); it must be an unsigned 32-bit "
                    "multiple of 8. The file is damaged: fetch or convert it again"
                )
    infos = []
    for _ in range(tensor_count):
        name = cursor.string("a tensor's name")
        what = f"the description of tensor {name!r}"
        dims = cursor.scalar("I", what)
        if not 1 <= dims <= 4:
            raise ModelError(f"{path}: tensor {name!r} has {dims} dimensions; the file is damaged")
        sizes = [cursor.scalar("Q", what) for _ in range(dims)]
        infos.append((name, tuple(reversed(sizes)), cursor.scalar("I", what), cursor.scalar("Q", what)))
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    places = []
    for name, shape, type_id, offset in infos:
        if name in tensors:
            raise ModelError(f"{path}: tensor {name!r} appears twice")
        if offset % alignment:
            raise ModelError(f"{path}: tensor {name!r} starts at {offset}, which alignment {alignment} does not divide")
        tensors[name] = _tensor(file, name, shape, type_id, start + offset)
        places.append((start + offset, start + offset + tensors[name].data.nbytes, name))
    places.sort()
    for (_, end, before), (begin, _, name) in pairwise(places):
        if begin < end:  # one of them would silently hold the other's values
            raise ModelError(f"{path}: tensors {before!r} and {name!r} overlap at byte {begin}; the file is damaged")
    below = {f"{metadata.get('general.architecture')}.{key}": kinds for key, kinds in _ARCHITECTURE_KEYS.items()}
    check_types(metadata, _OTHER_KEYS | below, path)
    return GgufFile(path, metadata, tensors)


def _tensor(file: ModelFile, name: str, shape: tuple[int, ...], type_id: int, start: int) -> StoredTensor:
    import gguf  # slow to import

    path = file.path
    try:
        kind = gguf.GGMLQuantizationType(type_id).name
    except ValueError:
        kind = f"number {type_id}"
    layout = block_layout(kind)
    if layout is None:
        raise ModelError(f"{path}: tensor {name!r} has type {kind}, which cannot be read; use another quantization")
    values, size = layout
    if shape[-1] % values or min(shape) < 1:
        raise ModelError(f"{path}: tensor {name!r} of shape {list(shape)} does not divide into {kind} blocks")
    rows = 1
    for count in shape[:-1]:
        rows *= count
    row_bytes = shape[-1] // values * size
    end = start + rows * row_bytes
    if end > file.size:
        raise ModelError(
            f"{path}: tensor {name!r} ends at byte {end} but the file has only {file.size}; "
            "it is truncated, fetch it again"
        )
    return StoredTensor(name, name, path, shape, kind, FileRows(file, start, (rows, row_bytes)))


def hf_tensors(file: GgufFile, config: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """The file's tensors by Hugging Face name, rotated rows put back in Hugging Face order where the family's are not.

    A tensor that the family's table lacks keeps its name.
    """
    family = _family(file)
    table = {weight.gguf: weight for weight in family.tensors}
    tensors = {}
    for stored, tensor in file.tensors.items():
        if stored == _ROPE_FREQS:
            continue  # carried by the configuration
        short, layer = numbered(stored)
        weight = table.get(short)
        name, order = (stored, None) if weight is None else (weight.hf.format(layer), None)
        if weight is not None and weight.rotary and family.gguf_pairs == "neighbours":
            order = _rotary_order(file.path, stored, tensor.shape[0], config["head_dim"])
        tensors[name] = StoredTensor(name, stored, tensor.file, tensor.shape, tensor.kind, tensor.data, order)
    return tensors


def _family(file: GgufFile) -> Family:
    """An architecture that no family has is refused: guessing the order of rotary pairs gives fluent nonsense."""
    arch = file.metadata.get("general.architecture")
    known = {family.gguf: family for family in families().values()}
    if arch not in known:
        raise ModelError(f"{file.path}: unknown architecture {arch!r} (known: {', '.join(sorted(known))})")
    return known[arch]


def _rotary_order(path: Path, name: str, rows: int, head_dim: int) -> np.ndarray:
    """Stored place of each row. Hugging Face pairs row j of a head with row j + d/2; llama.cpp's converter
    stores the two side by side, at 2j and 2j + 1 (its ``permute``)."""
    if head_dim < 2 or head_dim % 2 or rows % head_dim:
        raise ModelError(f"{path}: tensor {name!r} has {rows} rows, which heads of {head_dim} cannot share")
    stored = np.arange(rows).reshape(-1, head_dim // 2, 2)  # [heads, pair j, half]
    return stored.transpose(0, 2, 1).reshape(rows)


def hf_config(file: GgufFile) -> dict[str, Any]:
    """Hugging Face configuration keys from the metadata and the tensors present.

    Llama 3's ``rope_freqs.weight`` becomes ``rope_scaling = {"rope_type": "factors", "factors": [...]}``: each
    rotary frequency is to be divided by its factor. Raises ModelError for unknown architectures, missing keys, and keys
    of the architecture that have an effect and are not read here.
    """
    family, metadata = _family(file), Settings(file.metadata)
    arch, names = family.gguf, {weight.role: weight.gguf for weight in family.tensors}

    def get(key: str, default: Any = None) -> Any:
        value = metadata.get(f"{arch}.{key}", default)
        if isinstance(value, list):  # some files give one number a layer
            if len(set(value)) != 1:
                raise ModelError(f"{file.path}: {arch}.{key} differs between layers, which is not supported")
            value = value[0]
        if isinstance(value, int) and value < 0:
            raise ModelError(f"{file.path}: metadata key {arch}.{key} is {value}, below zero")
        return _decimal(value) if isinstance(value, float) else value

    def need(key: str) -> int:
        value = get(key)
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"{file.path}: metadata key {arch}.{key} is {value!r}, not a positive number")
        return value

    outer = [file.tensors[names[role]] for role in ("embedding", "head") if names[role] in file.tensors]
    if not outer:
        raise ModelError(f"{file.path}: tensor {names['embedding']!r} is missing")
    heads = need("attention.head_count")
    head_dim = get("attention.key_length") or need("embedding_length") // heads
    for key in ("rope.dimension_count", "attention.value_length"):
        if get(key, head_dim) != head_dim:
            raise ModelError(f"{file.path}: {arch}.{key} is not the head size {head_dim}: not supported")
    config: dict[str, Any] = {
        "model_type": family.model_type,
        "hidden_size": need("embedding_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "intermediate_size": need("feed_forward_length"),
        "vocab_size": outer[0].shape[0],
        "max_position_embeddings": need("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_theta": get("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file, get),
        "tie_word_embeddings": len(outer) == 1,
        "sliding_window": get("attention.sliding_window") or None,
    }
    for weight in family.tensors:
        if weight.when is not None:
            config[weight.when] = config.get(weight.when) or weight.gguf.format(0) in file.tensors
    metadata.refuse_unread(lambda key: key not in _ABOUT, f"{file.path}: ", f"{arch}.")
    return config


def _rope_scaling(file: GgufFile, get: Any) -> dict[str, Any] | None:
    kind, factor = get("rope.scaling.type", "none"), get("rope.scaling.factor") or get("rope.scale_linear")
    if kind == "none" and get("rope.scaling.type") is None and factor not in (None, 0.0, 1.0):
        kind = "linear"  # files older than the type key
    original = get("rope.scaling.original_context_length")
    if _ROPE_FREQS in file.tensors:
        if kind != "none":
            raise ModelError(f"{file.path}: tensor {_ROPE_FREQS!r} beside rope scaling {kind!r} is not supported")
        return {"rope_type": "factors", "factors": file.tensors[_ROPE_FREQS].load().tolist()}
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": factor or 1.0}
    if original:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _decimal(value: float) -> float:
    """The shortest decimal with the same float32: 1e-06 for a stored 9.99999997e-07, as config.json has it."""
    return float(str(np.float32(value)))
