"""A model's files opened: configuration, weights, tokenizer, end tokens and chat template, whatever the format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import ModelError
from ..text.gguf_tokenizer import build_tokenizer
from ..text.tokenizer import Tokenizer
from . import gguf_file, safetensors_file
from .tensors import StoredTensor

__all__ = ["Checkpoint", "StoredTensor", "open_checkpoint"]

# Tokens that end a turn or a text by their name, in files whose metadata forgets them.
_END_NAMES = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "<|EOT|>",
)
_GGUF_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True)
class Checkpoint:
    """What a model's files hold; weights stay on disk until ``StoredTensor.load``.

    ``format`` is "gguf" or "safetensors". ``hf_config`` has Hugging Face's key names and ``tensors`` its tensor
    names in both formats. ``end_tokens`` are the ids after which a text is over.
    """

    path: Path
    format: str
    hf_config: dict[str, Any]
    tensors: Mapping[str, StoredTensor]
    tokenizer: Tokenizer
    end_tokens: frozenset[int]
    chat_template: str | None


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file, or a Hugging Face directory (config.json, safetensors, tokenizer.json).

    Raises ModelError naming the file, and the tensor where there is one: missing or truncated files, unknown
    formats and encodings, an unusable tokenizer.
    """
    path = Path(path)
    if path.is_dir():
        return _open_directory(path)
    if not path.is_file():
        raise ModelError(f"{path}: no such file or directory")
    if path.suffix.lower() in (".bin", ".pt", ".pth", ".ckpt"):
        raise ModelError(f"{path}: pickled weights can run code and are never loaded; use safetensors or GGUF")
    return _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    file = gguf_file.read_gguf(path)
    config = gguf_file.hf_config(file)
    tokenizer = build_tokenizer(path, file.metadata)
    template = file.metadata.get("tokenizer.chat_template")
    ends = [file.metadata.get(f"tokenizer.ggml.{key}") for key in _GGUF_END_KEYS]
    return Checkpoint(
        path=path,
        format="gguf",
        hf_config=config,
        tensors=gguf_file.hf_tensors(file, config),
        tokenizer=tokenizer,
        end_tokens=_end_tokens(tokenizer, [*ends, tokenizer.eos]),
        chat_template=template if isinstance(template, str) and template else None,
    )


def _open_directory(path: Path) -> Checkpoint:
    folder = safetensors_file.read_directory(path)
    ends = [settings.get("eos_token_id") for settings in (folder.config, folder.generation_config)]
    return Checkpoint(
        path=path,
        format="safetensors",
        hf_config=folder.config,
        tensors=folder.tensors,
        tokenizer=folder.tokenizer,
        end_tokens=_end_tokens(folder.tokenizer, [*ends, folder.tokenizer.eos]),
        chat_template=folder.chat_template,
    )


def _end_tokens(tokenizer: Tokenizer, given: Iterable[int | list[int] | None]) -> frozenset[int]:
    """The union of the ids in ``given`` (a number, a list or None each) and of special tokens with an ending name."""
    ends: set[int] = set()
    for value in given:
        ends.update(value if isinstance(value, list) else [] if value is None else [value])
    ends.update(i for name in _END_NAMES if (i := tokenizer.token_id(name)) in tokenizer.special_ids and i is not None)
    return frozenset(i for i in ends if isinstance(i, int) and 0 <= i < tokenizer.size)
