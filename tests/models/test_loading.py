"""From files to a running model: both formats, both families, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers.tiny_models import (
    byte_level_tokenizer,
    metaspace_tokenizer,
    tiny_config,
    tiny_weights,
    write_directory,
    write_gguf,
)
from torch import Tensor

from outpace.core.errors import ModelError, ParameterError
from outpace.core.types import Chunk
from outpace.models import loading
from outpace.models.loading import LoadedModel, load_model

TOKENIZER = byte_level_tokenizer()
PROMPTS = [[0, 5, 9, 200, 31], [17], [300, 300, 4, 4, 4, 4, 319, 2]]


def logits_of(model: LoadedModel, tokens: list[int]) -> Tensor:
    cache = model.runtime.new_cache()
    return model.runtime.forward([Chunk(cache.open(16), tokens)], cache).logits[0]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_directory_and_gguf_give_the_same_logits(family: str, tied: bool, tmp_path: Path) -> None:
    """Rotary order and names of both formats lead to one model, equal to transformers (bug B40)."""
    transformers = pytest.importorskip("transformers")
    config = tiny_config(family, TOKENIZER, tied=tied)
    weights = tiny_weights(config)
    folder = load_model(write_directory(tmp_path / "folder", config, weights, TOKENIZER, shards=3), weights="f32")
    single = load_model(write_gguf(tmp_path / "file.gguf", config, weights, TOKENIZER), weights="f32")
    write_directory(tmp_path / "reference", config, weights, TOKENIZER)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "reference", dtype=torch.float32).eval()
    for tokens in PROMPTS:
        ours = logits_of(folder, tokens)
        assert ours.shape == (len(tokens), TOKENIZER.get_vocab_size())  # rows of padding are cut
        torch.testing.assert_close(ours, logits_of(single, tokens), atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            expected = reference(torch.tensor([tokens])).logits[0, :, : ours.shape[1]]
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    assert folder.config.tied == single.config.tied == tied
    assert (folder.name, single.name) == ("folder", "file")
    assert folder.end_tokens == single.end_tokens == {1}
    assert folder.chat_template == single.chat_template and folder.chat_template
    assert folder.nbytes == single.nbytes == sum(values.nbytes for values in weights.values())


def test_dtypes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("llama", TOKENIZER)
    path = write_gguf(tmp_path / "m.gguf", config, tiny_weights(config), TOKENIZER)
    exact, rounded = load_model(path), load_model(path, weights="bf16")
    assert exact.runtime.capabilities().dtype == torch.float32
    assert rounded.runtime.capabilities().dtype == torch.bfloat16
    assert rounded.nbytes < 0.6 * exact.nbytes
    torch.testing.assert_close(logits_of(exact, PROMPTS[0]), logits_of(rounded, PROMPTS[0]), atol=0.1, rtol=0.1)
    monkeypatch.setattr(loading, "BIG", 1000)
    assert load_model(path).runtime.capabilities().dtype == torch.bfloat16
    with pytest.raises(ParameterError, match="float8"):
        load_model(path, weights="float8")


def test_context_can_be_lowered_only(tmp_path: Path) -> None:
    config = tiny_config("llama", TOKENIZER)
    path = write_gguf(tmp_path / "m.gguf", config, tiny_weights(config), TOKENIZER)
    assert load_model(path).runtime.context == 256
    assert load_model(path, context=100).runtime.context == 100
    for context in (0, -1, 257, True):
        with pytest.raises(ParameterError, match="context"):
            load_model(path, context=context)


@pytest.mark.parametrize("kind", ["directory", "gguf"])
@pytest.mark.parametrize("fault", ["missing", "surplus", "shape", "nan"])
def test_bad_weights_are_named_with_their_file(fault: str, kind: str, tmp_path: Path) -> None:
    config = tiny_config("llama", TOKENIZER)
    weights = tiny_weights(config)
    name = "model.layers.1.mlp.down_proj.weight"
    if fault == "missing":
        del weights[name]
    elif fault == "surplus":
        name = "model.layers.1.mlp.down_proj.bias"
        weights[name] = np.zeros(64, dtype=np.float32)
    elif fault == "shape":
        weights[name] = np.zeros((64, 128), dtype=np.float32)
    else:
        weights[name][3, 7] = np.nan
    if kind == "gguf":
        path = write_gguf(tmp_path / "m.gguf", config, weights, TOKENIZER)
    else:
        path = write_directory(tmp_path / "m", config, weights, TOKENIZER)
    with pytest.raises(ModelError) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    assert name in str(caught.value) or "blk.1.ffn_down" in str(caught.value)


def test_unknown_family_is_named_with_the_folder(tmp_path: Path) -> None:
    config = tiny_config("llama", TOKENIZER)
    path = write_directory(tmp_path / "m", config | {"model_type": "martian"}, tiny_weights(config), TOKENIZER)
    with pytest.raises(ModelError, match=r"m: model_type 'martian' is not supported; known: .*llama"):
        load_model(path)


def test_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    config = tiny_config("llama", TOKENIZER)
    path = write_directory(tmp_path / "m", config, tiny_weights(config), metaspace_tokenizer(360))
    with pytest.raises(ModelError, match="360 tokens but the model only 328 rows"):
        load_model(path)


@pytest.mark.parametrize("held", ["embedding", "output", "both"])
def test_tied_files(held: str, tmp_path: Path) -> None:
    """A tied directory may store either matrix or both (bug B43)."""
    config = tiny_config("llama", TOKENIZER, tied=True)
    weights = tiny_weights(config)
    expected = logits_of(load_model(write_directory(tmp_path / "plain", config, weights, TOKENIZER)), PROMPTS[0])
    if held != "embedding":
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    if held == "output":
        del weights["model.embed_tokens.weight"]
    model = load_model(write_directory(tmp_path / held, config, weights, TOKENIZER))
    assert torch.equal(logits_of(model, PROMPTS[0]), expected)


def test_untied_directory_without_output_is_refused(tmp_path: Path) -> None:
    config = tiny_config("llama", TOKENIZER)
    weights = tiny_weights(config)
    del weights["lm_head.weight"]
    with pytest.raises(ModelError, match=r"lacks tensor lm_head\.weight"):
        load_model(write_directory(tmp_path / "m", config, weights, TOKENIZER))
