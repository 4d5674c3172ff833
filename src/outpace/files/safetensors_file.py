"""Hugging Face directories: config.json, safetensors (one file or shards with an index), tokenizer.json."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from ..core.errors import ModelError
from ..text.tokenizer import Tokenizer
from .model_file import FileRows, ModelFile
from .tensors import FLOATS, StoredTensor
from .typed import BOOL, INT, INTS, LIST, NUMBER, OBJECT, TEXT, check_types, is_list

_INDEX = "model.safetensors.index.json"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# The types of what is read from the directory's JSON files.
_END = {"eos_token_id": (INT, INTS)}
_CONFIG = {
    "model_type": (TEXT,),
    "hidden_act": (TEXT,),
    **dict.fromkeys(("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "head_dim"), (INT,)),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "max_position_embeddings"), (INT,)),
    "bos_token_id": (INT,),
    **dict.fromkeys(("rms_norm_eps", "rope_theta", "partial_rotary_factor"), (NUMBER,)),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), (OBJECT,)),
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window"), (BOOL,)),
    **_END,
}
_ROPE = {
    **dict.fromkeys(("rope_type", "type"), (TEXT,)),
    **dict.fromkeys(("rope_theta", "factor", "low_freq_factor", "high_freq_factor"), (NUMBER,)),
    "original_max_position_embeddings": (NUMBER,),
}
_TOKENIZER = {
    **dict.fromkeys(("bos_token", "eos_token"), (TEXT, OBJECT)),
    **dict.fromkeys(("add_bos_token", "add_eos_token"), (BOOL,)),
    "added_tokens_decoder": (OBJECT,),
    "chat_template": (TEXT, LIST),
}
_LONGEST_HEADER = 100_000_000  # bytes, the format's own limit


@dataclass(frozen=True)
class ModelDirectory:
    """A directory's parts; ``generation_config`` is empty where the file is missing."""

    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: Mapping[str, StoredTensor]
    tokenizer: Tokenizer
    chat_template: str | None


def read_directory(path: Path) -> ModelDirectory:
    """Open the directory ``path``.

    Raises ModelError naming the missing or broken file: no config.json, no weights, pickled weights only, shards
    that the index names and the directory lacks, tensors that the index places in a file without them.
    """
    config = read_json(path / "config.json", _CONFIG)
    if config is None:
        raise ModelError(f"{path}: config.json is missing; give the directory of a Hugging Face model, or a .gguf file")
    for key in ("rope_scaling", "rope_parameters"):
        check_types(config.get(key) or {}, _ROPE, f"{path / 'config.json'}: {key}")
    tokenizer_config = read_json(path / "tokenizer_config.json", _TOKENIZER) or {}
    return ModelDirectory(
        config=config,
        generation_config=read_json(path / "generation_config.json", _END) or {},
        tensors=_read_weights(path),
        tokenizer=_read_tokenizer(path, config, tokenizer_config),
        chat_template=_chat_template(path, tokenizer_config),
    )


def read_json(path: Path, kinds: Mapping[str, Collection[str]] | None = None) -> dict[str, Any] | None:
    """The JSON object in ``path``, None if there is no such file. Raises ModelError if it is something else, or if a
    value is not of its key's ``kinds`` (see :func:`outpace.files.typed.check_types`)."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not valid JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: holds a {type(value).__name__} where an object belongs")
    check_types(value, kinds or {}, path)
    return value


def _read_weights(path: Path) -> dict[str, StoredTensor]:
    """All tensors of the directory. With an index only what it names counts: other shards are strays."""
    index = read_json(path / _INDEX, {"weight_map": (OBJECT,)})
    if index is None:
        return read_safetensors(_single_file(path))
    places = index.get("weight_map")
    if not places:
        raise ModelError(f"{path / _INDEX}: has no weight_map; fetch it again")
    check_types(places, dict.fromkeys(places, (TEXT,)), f"{path / _INDEX}: weight_map")
    shards = sorted(set(places.values()))
    outside = [shard for shard in shards if Path(shard).name != shard]
    if outside:
        raise ModelError(f"{path / _INDEX}: names a file outside of the directory: {outside[0]!r}")
    missing = [shard for shard in shards if not (path / shard).is_file()]
    if missing:
        raise ModelError(f"{path}: {_INDEX} names files that are missing: {', '.join(missing)}; fetch them")
    opened = {shard: read_safetensors(path / shard) for shard in shards}
    for name, shard in places.items():
        if name not in opened[shard]:
            raise ModelError(f"{path / shard}: tensor {name!r} is missing, although {_INDEX} places it there")
    return {name: opened[shard][name] for name, shard in places.items()}


def _single_file(path: Path) -> Path:
    file = path / "model.safetensors"
    if file.is_file():
        return file
    others = sorted(path.glob("*.safetensors"))
    if others:
        raise ModelError(f"{path}: holds {others[0].name} but neither model.safetensors nor {_INDEX}; fetch the index")
    pickled = [entry.name for entry in sorted(path.iterdir()) if entry.suffix in _PICKLED]
    if pickled:
        raise ModelError(
            f"{path}: only pickled weights ({pickled[0]}); they can run code and are never loaded. "
            "Use a safetensors or GGUF version of the model"
        )
    raise ModelError(f"{path}: no weights (model.safetensors, or shards with {_INDEX})")


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Place the tensors of one safetensors file.

    Raises ModelError naming file and tensor: a broken header, unknown dtypes, sizes that do not fit the shape,
    tensors that overlap, leave gaps or reach beyond the end of the file.
    """
    file = ModelFile.at(path)
    size = file.size
    if size < 10:
        raise ModelError(f"{path}: {size} bytes are too few for a safetensors file; fetch it again")
    header_size = int.from_bytes(file.read(0, 8).tobytes(), "little")
    if header_size > _LONGEST_HEADER:
        raise ModelError(f"{path}: not a safetensors file (its header would take {header_size} bytes)")
    start = 8 + header_size
    if start > size:
        raise ModelError(f"{path}: the file ends inside its header; it is truncated, fetch it again")
    try:
        header = json.loads(file.read(8, header_size).tobytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: broken safetensors header ({error!r}); fetch it again") from error
    if not isinstance(header, dict):
        raise ModelError(f"{path}: the safetensors header is a {type(header).__name__} where an object belongs")
    infos = sorted(_described(path, name, info) for name, info in header.items() if name != "__metadata__")
    tensors: dict[str, StoredTensor] = {}
    expected = 0
    for begin, end, name, kind, shape in infos:
        if begin != expected or end < begin:
            raise ModelError(f"{path}: tensor {name!r} lies at bytes {begin}..{end}, expected from {expected} on")
        expected = end
        if start + end > size:
            raise ModelError(
                f"{path}: tensor {name!r} ends at byte {start + end} but the file has only {size}; "
                "it is truncated, fetch it again"
            )
        rows, row_bytes = math.prod(shape[:-1]), FLOATS[kind] * (shape[-1] if shape else 1)
        if rows * row_bytes != end - begin:
            raise ModelError(
                f"{path}: tensor {name!r} has {end - begin} bytes, which shape {list(shape)} of {kind} is not"
            )
        tensors[name] = StoredTensor(name, name, path, shape, kind, FileRows(file, start + begin, (rows, row_bytes)))
    return tensors


def _described(path: Path, name: str, info: Any) -> tuple[int, int, str, str, tuple[int, ...]]:
    """Begin, end, name, dtype and shape of a tensor, each of them of the type that it must have."""
    info = info if isinstance(info, dict) else {}
    kind, shape, places = (info.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str) or not is_list(places, int) or len(places) != 2:
        raise ModelError(f"{path}: the header's words on tensor {name!r} are broken; fetch the file again")
    if kind not in FLOATS:
        raise ModelError(f"{path}: tensor {name!r} has dtype {kind}, which cannot be read ({', '.join(FLOATS)} can)")
    if not is_list(shape, int) or min(shape, default=1) < 1:
        raise ModelError(f"{path}: tensor {name!r} has the impossible shape {shape}")
    return places[0], places[1], name, kind, tuple(shape)


def _read_tokenizer(path: Path, config: Mapping[str, Any], settings: Mapping[str, Any]) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{path}: tokenizer.json is missing")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{file}: cannot be read as a tokenizer ({error}); fetch it again") from error
    _add_extra_tokens(backend, settings, path / "tokenizer_config.json")

    def marked(key: str) -> int | None:
        token = settings.get(f"{key}_token")
        text = token.get("content") if isinstance(token, dict) else token
        found = backend.token_to_id(text) if isinstance(text, str) else None
        given = config.get(f"{key}_token_id")
        if found is None and f"{key}_token" not in settings and isinstance(given, int):
            found = given  # no tokenizer_config.json speaks of it: config.json does
        return found

    return Tokenizer(
        backend,
        bos=marked("bos"),
        eos=marked("eos"),
        add_bos=settings.get("add_bos_token") is True,
        add_eos=settings.get("add_eos_token") is True,
    )


def _add_extra_tokens(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], source: Path) -> None:
    """Tokens that only tokenizer_config.json declares, in order of id, so that each gets its own."""
    declared = settings.get("added_tokens_decoder") or {}
    present = backend.get_added_tokens_decoder()
    for key, token in declared.items():
        if not key.isdecimal() or not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise ModelError(f"{source}: added_tokens_decoder has {key!r}: {token!r}, not an id with a token's object")
    for index, token in sorted(((int(key), value) for key, value in declared.items()), key=lambda entry: entry[0]):
        if index not in present and backend.token_to_id(token["content"]) in (None, index):
            known = ("single_word", "lstrip", "rstrip", "normalized", "special")
            flags = {key: bool(token[key]) for key in known if key in token}
            backend.add_tokens([tokenizers.AddedToken(token["content"], **flags)])


def _chat_template(path: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja wins over tokenizer_config.json, as in transformers; of a list the one named default."""
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except ValueError as error:
            raise ModelError(f"{file}: not valid UTF-8 ({error}); fetch it again") from error
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[-1].get("template") if named else None
    return template if isinstance(template, str) and template else None
