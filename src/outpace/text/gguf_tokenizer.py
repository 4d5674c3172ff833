"""A tokenizer from GGUF metadata (``tokenizer.ggml.*``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ..core.errors import ModelError
from .tokenizer import Tokenizer

# llama.cpp's token types
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_TIKTOKEN = (  # cl100k's split, with {digits} for how many digits stay together
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _byte_level(use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _gpt2() -> list[pre_tokenizers.PreTokenizer]:
    return [_byte_level(True)]


def _digits_apart() -> list[pre_tokenizers.PreTokenizer]:
    """Digits one by one, then GPT-2's split: StarCoder and SmolLM."""
    return [pre_tokenizers.Digits(individual_digits=True), _byte_level(True)]


def _qwen2() -> list[pre_tokenizers.PreTokenizer]:
    return [_split(_TIKTOKEN.format(digits="")), _byte_level(False)]


def _llama3() -> list[pre_tokenizers.PreTokenizer]:
    return [_split(_TIKTOKEN.format(digits="{1,3}")), _byte_level(False)]


def _deepseek_coder() -> list[pre_tokenizers.PreTokenizer]:
    return [
        _split(r"[\r\n]"),
        _split(r"\s?\p{L}+"),
        _split(r"\s?\p{P}+"),
        _split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
        pre_tokenizers.Digits(individual_digits=True),
        _byte_level(False),
    ]


_PRE_TOKENIZERS: dict[str, Callable[[], list[pre_tokenizers.PreTokenizer]]] = {
    **dict.fromkeys(["default", "gpt-2"], _gpt2),
    **dict.fromkeys(["smollm", "starcoder", "refact", "codeshell", "command-r"], _digits_apart),
    **dict.fromkeys(["qwen2", "deepseek-r1-qwen"], _qwen2),
    **dict.fromkeys(["llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx"], _llama3),
    "deepseek-coder": _deepseek_coder,
}
_NFC = ("qwen2", "deepseek-r1-qwen")  # whose source tokenizers compose characters first
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")  # whole words beat merges, and BOS is added unless metadata says no


def build_tokenizer(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that ``tokenizer.ggml.*`` describes: "gpt2" (byte-level BPE) or "llama" (metaspace BPE).

    Trailing unused tokens are padding of the embedding and are left out. Raises ModelError naming ``path`` for
    missing metadata, unknown models and unknown pre-tokenizers.
    """
    model = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelError(f"{path}: metadata key tokenizer.ggml.tokens is missing or empty")
    types = metadata.get("tokenizer.ggml.token_type", [NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise ModelError(f"{path}: {len(tokens)} tokens but {len(types)} token types in tokenizer.ggml.token_type")
    size = len(tokens)
    while size and types[size - 1] == UNUSED:
        size -= 1
    vocab: dict[str, int] = {}
    for index in range(size):
        vocab.setdefault(tokens[index], index)
    try:
        if model == "gpt2":
            backend, add_bos = _byte_level_bpe(path, metadata, vocab)
        elif model == "llama":
            backend, add_bos = _metaspace_bpe(path, metadata, vocab, types), True
        else:
            raise ModelError(f"{path}: unknown tokenizer.ggml.model {model!r} (known: gpt2, llama)")
    except ModelError:
        raise
    except Exception as error:  # the library raises plain Exception for merges outside the vocabulary
        raise ModelError(f"{path}: the tokenizer's metadata is inconsistent: {error}") from error
    _add_marked_tokens(backend, tokens[:size], types)
    ids = {key: metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos")}
    for key, value in ids.items():
        if value is not None and not 0 <= value < len(tokens):
            raise ModelError(f"{path}: tokenizer.ggml.{key}_token_id is {value}, beyond the {len(tokens)} tokens")
    if model == "llama":  # SentencePiece's own places
        ids = {"bos": 1 if ids["bos"] is None else ids["bos"], "eos": 2 if ids["eos"] is None else ids["eos"]}
    return Tokenizer(
        backend,
        bos=ids["bos"],
        eos=ids["eos"],
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)),
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
    )


def _byte_level_bpe(
    path: Path, metadata: Mapping[str, Any], vocab: dict[str, int]
) -> tuple[tokenizers.Tokenizer, bool]:
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is None:
        raise ModelError(f"{path}: metadata key tokenizer.ggml.merges is missing")
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise ModelError(f"{path}: unknown pre-tokenizer tokenizer.ggml.pre = {pre!r} (known: {known})")
    pairs = [_pair(path, merge) for merge in merges]
    backend = tokenizers.Tokenizer(models.BPE(vocab, pairs, ignore_merges=pre in _LLAMA3))
    if pre in _NFC:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(_PRE_TOKENIZERS[pre]())
    backend.decoder = decoders.ByteLevel()
    return backend, pre in _LLAMA3


def _pair(path: Path, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ModelError(f"{path}: merge {merge!r} is not two tokens with a space between")
    return left, right


def _metaspace_bpe(
    path: Path, metadata: Mapping[str, Any], vocab: dict[str, int], types: Sequence[int]
) -> tokenizers.Tokenizer:
    """SentencePiece joins the neighbours whose joint piece scores highest. As BPE: a piece of rank r gives a
    merge of rank r for every way to cut it in two pieces of the vocabulary."""
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None:
        raise ModelError(f"{path}: metadata key tokenizer.ggml.scores is missing")
    if len(scores) != len(types):
        raise ModelError(f"{path}: {len(types)} tokens but tokenizer.ggml.scores has {len(scores)}")
    mergeable = {token: index for token, index in vocab.items() if types[index] in (NORMAL, USER_DEFINED, UNUSED)}
    merges = []
    for token in sorted(mergeable, key=lambda t: (-scores[mergeable[t]], mergeable[t])):
        cuts = [(token[:at], token[at:]) for at in range(1, len(token))]
        cuts = [cut for cut in cuts if cut[0] in mergeable and cut[1] in mergeable]
        merges += sorted(cuts, key=lambda cut: (vocab[cut[0]], vocab[cut[1]]))
    unknown = next((token for token, index in vocab.items() if types[index] == UNKNOWN), None)
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    marker = "\u2581"
    steps = [normalizers.Prepend(marker)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", marker)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(marker, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _add_marked_tokens(backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Control and user-defined tokens are found in the text before anything is split or normalized."""
    marked = [(tokens[i], types[i]) for i in range(len(tokens)) if types[i] in (UNKNOWN, CONTROL, USER_DEFINED)]
    backend.add_tokens(
        [AddedToken(token, normalized=False, special=kind != USER_DEFINED) for token, kind in marked if token]
    )
