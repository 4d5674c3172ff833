"""Both formats give the same checkpoint, and damaged ones are refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.helpers.tiny_models import (
    TEMPLATE,
    byte_level_tokenizer,
    metaspace_tokenizer,
    tiny_config,
    tiny_weights,
    write_directory,
    write_gguf,
)

from outpace.core.bf16 import to_bf16
from outpace.core.errors import ModelError
from outpace.files.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_both_formats_hold_the_same(tmp_path, tokenizer, family, tied):
    config = tiny_config(family, tokenizer, tied=tied)
    weights = tiny_weights(config)
    folder = open_checkpoint(write_directory(tmp_path / "hf", config, weights, tokenizer))
    file = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", config, weights, tokenizer)))
    assert (folder.format, file.format) == ("safetensors", "gguf")
    assert set(folder.tensors) == set(file.tensors) == set(weights)
    for name, values in weights.items():
        for checkpoint in (folder, file):
            tensor = checkpoint.tensors[name]
            assert tensor.shape == values.shape
            assert tensor.kind == "F32"
            assert np.array_equal(tensor.load(), values), (checkpoint.format, name)
            assert tensor.raw().dtype == np.uint8
            assert tensor.raw().tobytes() == values.tobytes()
    same = ["model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"]
    same += ["intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta"]
    for key in [*same, "tie_word_embeddings"]:
        assert file.hf_config[key] == config[key], key
    assert file.end_tokens == folder.end_tokens == {tokenizer.token_to_id("</s>")}
    assert file.chat_template == folder.chat_template == TEMPLATE
    assert file.tokenizer.tokens() == folder.tokenizer.tokens()
    assert file.tokenizer.size == folder.tokenizer.size == tokenizer.get_vocab_size() < config["vocab_size"]


def test_llama_biases_are_put_back_in_order_too(tmp_path, tokenizer):
    config = tiny_config("llama", tokenizer, attention_bias=True)
    weights = tiny_weights(config)
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", config, weights, tokenizer))
    name = "model.layers.1.self_attn.k_proj.bias"
    assert np.array_equal(file.tensors[name].load(), weights[name])
    assert file.tensors[name].raw().tobytes() == weights[name].tobytes()


def test_metaspace_tokenizer_survives_both_formats(tmp_path):
    tokenizer = metaspace_tokenizer()
    config = tiny_config("llama", tokenizer)
    weights = tiny_weights(config)
    folder = open_checkpoint(write_directory(tmp_path / "hf", config, weights, tokenizer))
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", config, weights, tokenizer))
    assert file.tokenizer.prefix == (1,)  # llama files ask for BOS unless they say no
    for text in ["the dog", "  two  spaces", "naïve 日本 🙂", "a\nb", ""]:
        assert file.tokenizer.encode(text, False) == folder.tokenizer.encode(text, False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes_round_to_nearest_even(tmp_path, tokenizer, dtype):
    config = tiny_config("llama", tokenizer)
    weights = tiny_weights(config)
    folder = open_checkpoint(write_directory(tmp_path / "hf", config, weights, tokenizer))
    name = "model.embed_tokens.weight"
    expected = to_bf16(weights[name]) if dtype == "bfloat16" else weights[name].astype(dtype)
    assert np.array_equal(folder.tensors[name].load(dtype), expected)


def test_slabs_join_in_order(tmp_path, tokenizer, monkeypatch):
    config = tiny_config("llama", tokenizer)
    weights = tiny_weights(config)
    file = open_checkpoint(write_gguf(tmp_path / "m.gguf", config, weights, tokenizer))
    monkeypatch.setattr("outpace.files.tensors._SLAB_VALUES", 7 * 64)
    for name, values in weights.items():
        assert np.array_equal(file.tensors[name].load(), values), name


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_values_that_are_not_finite_are_refused(tmp_path, tokenizer, value, form, monkeypatch):
    monkeypatch.setattr("outpace.files.tensors._SLAB_VALUES", 7 * 64)  # several slabs, one of them bad
    config = tiny_config("qwen2", tokenizer)
    weights = tiny_weights(config)
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    write = {"safetensors": write_directory, "gguf": write_gguf}[form]
    checkpoint = open_checkpoint(write(tmp_path / "m", config, weights, tokenizer))
    stored = checkpoint.tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ModelError, match="NaN or infinite") as error:
        stored.load()
    assert stored.stored_name in str(error.value)
    assert str(stored.file) in str(error.value)


def test_large_finite_values_are_fine(tmp_path, tokenizer):
    config = tiny_config("qwen2", tokenizer)
    weights = tiny_weights(config)
    weights["lm_head.weight"][:] = 3e38  # their sum overflows
    checkpoint = open_checkpoint(write_directory(tmp_path / "hf", config, weights, tokenizer))
    assert np.isfinite(checkpoint.tensors["lm_head.weight"].load()).all()
    with pytest.raises(ModelError, match="float16"):
        checkpoint.tensors["lm_head.weight"].load("float16")


@pytest.fixture
def sharded(tmp_path, tokenizer):
    config = tiny_config("llama", tokenizer)
    weights = tiny_weights(config)
    return write_directory(tmp_path / "hf", config, weights, tokenizer, shards=3), weights


def test_shards_are_joined_and_strays_ignored(sharded):
    path, weights = sharded
    (path / "model-00009-of-00009.safetensors").write_bytes(b"a stray that nobody names")
    tensors = open_checkpoint(path).tensors
    assert set(tensors) == set(weights)
    assert all(np.array_equal(tensors[name].load(), values) for name, values in weights.items())


def test_missing_shard_is_named(sharded):
    path, _ = sharded
    (path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.safetensors"):
        open_checkpoint(path)


def test_index_with_other_file_names(sharded):
    path, _ = sharded
    index = path / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-0000", "pytorch-0000"))
    with pytest.raises(ModelError, match=r"pytorch-00001-of-00003\.safetensors"):
        open_checkpoint(path)


def test_index_cannot_point_outside(sharded):
    path, _ = sharded
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../other.safetensors"}}))
    with pytest.raises(ModelError, match="outside"):
        open_checkpoint(path)


def test_tensor_that_the_index_promises_is_missing(sharded):
    path, _ = sharded
    index = path / "model.safetensors.index.json"
    places = json.loads(index.read_text())
    places["weight_map"]["model.layers.7.mlp.up_proj.weight"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(places))
    with pytest.raises(ModelError, match=r"model\.layers\.7\.mlp\.up_proj\.weight"):
        open_checkpoint(path)


def test_empty_missing_and_pickled(tmp_path, tokenizer):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        open_checkpoint(empty)
    with pytest.raises(ModelError, match="no such file"):
        open_checkpoint(tmp_path / "nowhere")
    config = tiny_config("llama", tokenizer)
    folder = write_directory(tmp_path / "hf", config, tiny_weights(config), tokenizer)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        open_checkpoint(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match="pickled"):
        open_checkpoint(folder)
    with pytest.raises(ModelError, match="pickled"):
        open_checkpoint(folder / "pytorch_model.bin")
    (folder / "tokenizer.json").unlink()


def test_damaged_safetensors_are_named(tmp_path, tokenizer):
    config = tiny_config("llama", tokenizer)
    weights = tiny_weights(config)
    folder = write_directory(tmp_path / "hf", config, weights, tokenizer)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    header_size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + header_size])
    last = max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"])

    def refused(content: bytes, words: str) -> None:
        file.write_bytes(content)
        with pytest.raises(ModelError, match=words) as error:
            open_checkpoint(folder)
        assert "model.safetensors" in str(error.value)

    def with_header(**changes) -> bytes:
        text = json.dumps({**header, last: {**header[last], **changes}}).encode()
        return len(text).to_bytes(8, "little") + text + whole[8 + header_size :]

    refused(whole[:-1], f"'{last}' ends at byte")
    refused(whole[:20], "truncated")
    refused(b"", "too few")
    refused(b"x" * len(whole), "not a safetensors file")
    refused(whole[:8] + b"?" * header_size, "broken safetensors header")
    begin, end = header[last]["data_offsets"]
    refused(with_header(data_offsets=[begin - 4, end - 4]), f"'{last}' lies at")
    refused(with_header(dtype="I32"), f"'{last}' has dtype I32")
    refused(with_header(shape=[1]), f"'{last}' has")
    refused(with_header(shape=[-1]), f"'{last}' has the impossible shape")
    file.write_bytes(whole)
    assert open_checkpoint(folder).tensors[last].load().shape == weights[last].shape


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_broken_json_is_named(tmp_path, tokenizer, name):
    config = tiny_config("llama", tokenizer)
    folder = write_directory(tmp_path / "hf", config, tiny_weights(config), tokenizer)
    (folder / name).write_text('{"half": ')
    with pytest.raises(ModelError, match=name):
        open_checkpoint(folder)


def test_end_tokens_are_a_union(tmp_path, tokenizer):
    """Numbers or lists, from every file that names some, and end markers that no file names."""
    tokenizer.add_special_tokens(["<|im_end|>"])
    config = tiny_config("llama", tokenizer, eos_token_id=[5, 6])
    settings = {"eos_token": {"content": "</s>", "special": True}}
    folder = write_directory(
        tmp_path / "hf",
        config,
        tiny_weights(config),
        tokenizer,
        tokenizer_config=settings,
        generation_config={"eos_token_id": 7},
    )
    expected = {5, 6, 7, tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<|im_end|>")}
    assert open_checkpoint(folder).end_tokens == expected
    assert all(isinstance(token, int) for token in open_checkpoint(folder).end_tokens)


def test_template_places(tmp_path, tokenizer):
    config = tiny_config("llama", tokenizer)
    weights = tiny_weights(config)
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    settings = {"chat_template": several}
    folder = write_directory(tmp_path / "hf", config, weights, tokenizer, tokenizer_config=settings)
    assert open_checkpoint(folder).chat_template == "plain"
    (folder / "chat_template.jinja").write_text("from the file é")
    assert open_checkpoint(folder).chat_template == "from the file é"
    settings = {"chat_template": None}
    folder = write_directory(tmp_path / "none", config, weights, tokenizer, tokenizer_config=settings)
    assert open_checkpoint(folder).chat_template is None
