"""The tiny pair as GGUF files, which every engine reads: ``python -m outpace.audit.engines.tiny_gguf FOLDER``.

A pass of it costs next to nothing, so that an audit gets thousands of samples out of any engine.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from ...catalogue import resolve
from ...families.llama import FAMILY
from ...families.table import numbered
from ...files.checkpoint import open_checkpoint

_CONTROL, _NORMAL = 3, 1  # GGUF's token types


def write_gguf(source: Path, destination: Path) -> None:
    """Write a Hugging Face directory of the llama family with a byte-level tokenizer as one float16 GGUF file."""
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    writer = GGUFWriter(str(destination), "llama")
    writer.add_name(destination.stem)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(1)
    special = {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    tokens = sorted((tokenizer["model"]["vocab"] | special).items(), key=lambda entry: entry[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")  # a name that all engines know; they are given token ids, never text
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([_CONTROL if text in special else _NORMAL for text, _ in tokens])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    table = {weight.hf: weight for weight in FAMILY.tensors}
    for name, stored in open_checkpoint(source).tensors.items():
        tensor = stored.load()
        short, layer = numbered(name)
        weight = table[short]
        if weight.rotary:  # GGUF keeps the two of a rotary pair side by side
            halves = tensor.reshape(-1, 2, config["head_dim"] // 2, tensor.shape[1])  # [heads, 2, head_dim / 2, hidden]
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        dtype = np.float16 if tensor.ndim == 2 else np.float32
        writer.add_tensor(weight.gguf.format(layer), np.ascontiguousarray(tensor, dtype=dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where tiny.gguf and tiny-draft.gguf go")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tiny", "tiny-draft"):
        write_gguf(resolve(name), folder / f"{name}.gguf")


if __name__ == "__main__":
    main()
