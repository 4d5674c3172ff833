"""Tiny random models on disk: one set of weights as a Hugging Face directory and as a GGUF file.

Change the dict of weights before writing to get missing, surplus or broken tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

BOS, EOS = "<s>", "</s>"
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|model|>{% endif %}"
)
_TEXT = [
    "the quick brown fox jumps over the lazy dog and the dog does not mind",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))\n",
    "there are more things in heaven and earth than are dreamt of in this text",
] * 8


def byte_level_tokenizer(size: int = 320) -> tokenizers.Tokenizer:
    """GPT-2 style: BOS, EOS, the 256 bytes, and trained merges up to ``size`` tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXT, trainer)
    return tokenizer


def metaspace_tokenizer(size: int = 360) -> tokenizers.Tokenizer:
    """SentencePiece style: <unk>, BOS, EOS, 256 byte tokens, letters and joint pieces, leading space added."""
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = _metaspace_normalizer()
    trained.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    trained.train_from_iterator(_TEXT, trainers.BpeTrainer(vocab_size=size - 259, show_progress=False))
    pieces = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    names = ["<unk>", BOS, EOS, *[f"<0x{byte:02X}>" for byte in range(256)], *[piece for piece, _ in pieces]]
    vocab = {name: index for index, name in enumerate(names)}
    merges = [
        (piece[:at], piece[at:])
        for piece, _ in pieces
        for at in range(1, len(piece))
        if piece[:at] in vocab and piece[at:] in vocab
    ]
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = _metaspace_normalizer()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", BOS, EOS)])
    return tokenizer


def _metaspace_normalizer() -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])


def tiny_config(family: str, tokenizer: tokenizers.Tokenizer, *, tied: bool = False, **changes: Any) -> dict[str, Any]:
    """A config.json of ``family``: two layers, 4 heads on 2 key-value heads, head size 16, of Qwen3 24."""
    config = {
        "model_type": family,
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": tokenizer.get_vocab_size() + 8,  # rows beyond the tokenizer, as real models have
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
        "torch_dtype": "float32",
    }
    if family == "qwen3":
        config["head_dim"] = 24
    return {**config, **changes}


def tiny_weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights by Hugging Face name; "lm_head.weight" only where the config does not tie it."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def vector(size: int, around: float) -> np.ndarray:
        return (around + 0.2 * rng.standard_normal(size)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        weights |= {
            at + "input_layernorm.weight": vector(hidden, 1.0),
            at + "post_attention_layernorm.weight": vector(hidden, 1.0),
            at + "self_attn.q_proj.weight": matrix(queries, hidden),
            at + "self_attn.k_proj.weight": matrix(keys, hidden),
            at + "self_attn.v_proj.weight": matrix(keys, hidden),
            at + "self_attn.o_proj.weight": matrix(hidden, queries),
            at + "mlp.gate_proj.weight": matrix(inner, hidden),
            at + "mlp.up_proj.weight": matrix(inner, hidden),
            at + "mlp.down_proj.weight": matrix(hidden, inner),
        }
        biased = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        if config["model_type"] == "qwen2" or config.get("attention_bias"):
            weights |= {f"{at}self_attn.{part}.bias": vector(size, 0.0) for part, size in biased.items()}
        if config["model_type"] != "qwen2" and config.get("attention_bias"):
            weights[at + "self_attn.o_proj.bias"] = vector(hidden, 0.0)
        if config["model_type"] == "qwen3":
            weights |= {f"{at}self_attn.{part}_norm.weight": vector(head_dim, 1.0) for part in "qk"}
    weights["model.norm.weight"] = vector(hidden, 1.0)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return weights


def write_directory(
    path: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    tokenizer: tokenizers.Tokenizer,
    *,
    shards: int = 1,
    tokenizer_config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a Hugging Face directory; with ``shards`` > 1 numbered files and their index."""
    path.mkdir(parents=True, exist_ok=True)
    settings = {"bos_token": BOS, "eos_token": EOS, "chat_template": TEMPLATE, **(tokenizer_config or {})}
    (path / "config.json").write_text(json.dumps(dict(config)))
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    if generation_config is not None:
        (path / "generation_config.json").write_text(json.dumps(dict(generation_config)))
    tokenizer.save(str(path / "tokenizer.json"))
    if shards == 1:
        save_file(dict(weights), path / "model.safetensors")
        return path
    places: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in list(weights)[number::shards]}
        save_file(part, path / file)
        places |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    tokenizer: tokenizers.Tokenizer,
    *,
    kind: str = "F32",
    alignment: int | None = None,
    add_bos: bool | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    metadata: Mapping[str, Any] | None = None,
    pairs: bool | None = None,
    names: Mapping[str, str] | None = None,
) -> Path:
    """Write the same model as GGUF, as llama.cpp's converter would: q and k of llama with rotary pairs side by side.

    ``kind`` encodes the matrices ("F32", "F16", "BF16", "Q8_0", "Q4_0", ...); vectors stay F32. ``extra`` adds
    tensors under GGUF's own names, ``metadata`` keys behind the architecture's name, ``names`` GGUF's names
    of parts that other families have not. ``pairs``: whether rotary pairs stand side by side; by default llama's do.
    """
    family = config["model_type"]
    writer = gguf.GGUFWriter(path, family)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    for key, value in (metadata or {}).items():
        writer.add_key_value(f"{family}.{key}", value, gguf.GGUFValueType.get_type(value))
    _add_tokenizer(writer, tokenizer, config["vocab_size"], add_bos)
    for name, values in weights.items():
        stored = values
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        heads |= {"q_norm": 1, "k_norm": 1}
        part = name.split(".")[-2]
        if part in heads and (family == "llama" if pairs is None else pairs):
            stored = _pairs_side_by_side(values, heads[part])
        _add_tensor(writer, _gguf_name(name, _GGUF_NAMES | dict(names or {})), stored, kind)
    for name, values in (extra or {}).items():
        _add_tensor(writer, name, values, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str, names: Mapping[str, str]) -> str:
    stem, _, ending = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{names.get(part, part)}.{ending}"
    return f"{names.get(stem, stem)}.{ending}"


def _pairs_side_by_side(values: np.ndarray, heads: int) -> np.ndarray:
    """Row j of a head to place 2j, row j + d/2 to place 2j + 1."""
    by_half = values.reshape(heads, 2, -1, *values.shape[1:])  # [heads, half, pair, ...]
    return np.ascontiguousarray(by_half.swapaxes(1, 2)).reshape(values.shape)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    if kind == "F32" or values.ndim == 1:
        writer.add_tensor(name, values)
    else:
        qtype = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(values, qtype), raw_dtype=qtype)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: tokenizers.Tokenizer, rows: int, add_bos: bool | None) -> None:
    model = json.loads(tokenizer.to_str())["model"]
    metaspace = bool(model.get("byte_fallback"))
    added = {index: token.special for index, token in tokenizer.get_added_tokens_decoder().items()}
    names: Sequence[str] = [tokenizer.id_to_token(i) or f"[PAD{i}]" for i in range(rows)]
    types = []
    for index, name in enumerate(names):
        if index >= tokenizer.get_vocab_size():
            types.append(gguf.TokenType.UNUSED)
        elif name == model.get("unk_token"):
            types.append(gguf.TokenType.UNKNOWN)
        elif index in added:
            types.append(gguf.TokenType.CONTROL if added[index] else gguf.TokenType.USER_DEFINED)
        elif metaspace and name.startswith("<0x"):
            types.append(gguf.TokenType.BYTE)
        else:
            types.append(gguf.TokenType.NORMAL)
    writer.add_tokenizer_model("llama" if metaspace else "gpt2")
    writer.add_token_list(names)
    writer.add_token_types(types)
    if metaspace:
        writer.add_token_scores([-float(index) for index in range(rows)])
    else:
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(tokenizer.token_to_id(BOS))
    writer.add_eos_token_id(tokenizer.token_to_id(EOS))
    writer.add_chat_template(TEMPLATE)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
