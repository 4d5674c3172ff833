"""From files to a running model: both formats, both families, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.helpers.tiny_models import (
    byte_level_tokenizer,
    metaspace_tokenizer,
    tiny_config,
    tiny_weights,
    write_directory,
    write_gguf,
)

from outpace.core.errors import ModelError, ParameterError
from outpace.core.torch_extra import has_torch
from outpace.core.types import Chunk
from outpace.kernels.native import available
from outpace.runtimes import loading
from outpace.runtimes.loading import LoadedModel, load_draft, load_model

TOKENIZER = byte_level_tokenizer()
PROMPTS = [[0, 5, 9, 200, 31], [17], [300, 300, 4, 4, 4, 4, 319, 2]]


def logits_of(model: LoadedModel, tokens: list[int]) -> np.ndarray:
    cache = model.runtime.new_cache()
    return np.stack(list(model.runtime.forward([Chunk(cache.open(16), tokens)], cache).logits[0]))


BACKENDS = [*(["torch"] if has_torch() else []), *(["native"] if available() else [])]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_directory_and_gguf_give_the_same_logits(family: str, tied: bool, backend: str, tmp_path: Path) -> None:
    """Rotary order and names of both formats lead to one model, equal to transformers (bug B40)."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = tiny_config(family, TOKENIZER, tied=tied)
    weights = tiny_weights(config)
    exactly = {"weights": "f32", "backend": backend}
    folder = load_model(write_directory(tmp_path / "folder", config, weights, TOKENIZER, shards=3), **exactly)
    single = load_model(write_gguf(tmp_path / "file.gguf", config, weights, TOKENIZER), **exactly)
    write_directory(tmp_path / "reference", config, weights, TOKENIZER)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "reference", dtype=torch.float32).eval()
    for tokens in PROMPTS:
        ours = logits_of(folder, tokens)
        assert ours.shape == (len(tokens), TOKENIZER.get_vocab_size())  # rows of padding are cut
        np.testing.assert_allclose(ours, logits_of(single, tokens), atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            expected = reference(torch.tensor([tokens])).logits[0, :, : ours.shape[1]].numpy()
        np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=1e-5)
    assert folder.config.tied == single.config.tied == tied
    assert (folder.name, single.name) == ("folder", "file")
    assert folder.end_tokens == single.end_tokens == {1}
    assert folder.chat_template == single.chat_template and folder.chat_template
    stored = sum(values.nbytes for values in weights.values())
    assert folder.nbytes == single.nbytes
    if backend == "torch":
        assert folder.nbytes == stored
    else:  # the embedding stays in the file, the head is packed without rows of padding
        assert 0 < folder.nbytes <= 1.1 * stored
    assert (folder.backend, folder.weights) == (backend, "f32")


@pytest.mark.skipif(not has_torch(), reason="torch is not installed")
def test_weights_of_the_torch_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("llama", TOKENIZER)
    path = write_gguf(tmp_path / "m.gguf", config, tiny_weights(config), TOKENIZER)
    exact, rounded = load_model(path, backend="torch"), load_model(path, weights="bf16", backend="torch")
    assert (exact.weights, exact.runtime.capabilities().dtype) == ("f32", "float32")
    assert (rounded.weights, rounded.runtime.capabilities().dtype) == ("bf16", "bfloat16")
    assert rounded.nbytes < 0.6 * exact.nbytes
    np.testing.assert_allclose(logits_of(exact, PROMPTS[0]), logits_of(rounded, PROMPTS[0]), atol=0.1, rtol=0.1)
    monkeypatch.setattr(loading, "BIG", 1000)
    assert load_model(path, backend="torch").weights == "bf16"
    with pytest.raises(ParameterError, match="float8"):
        load_model(path, weights="float8")
    for weights in ("file", "q8", "q4", "q4_0"):
        with pytest.raises(ParameterError, match="native kernels"):
            load_model(path, weights=weights, backend="torch")


@pytest.mark.skipif(not available(), reason="the C kernels are not built")
def test_weights_of_the_native_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("llama", TOKENIZER)
    file = write_gguf(tmp_path / "m.gguf", config, tiny_weights(config), TOKENIZER)
    folder = write_directory(tmp_path / "folder", config, tiny_weights(config), TOKENIZER)
    assert (load_model(file).weights, load_model(folder).weights) == ("file", "f32")
    sizes = [load_model(file, weights=weights).nbytes for weights in ("f32", "bf16", "q8", "q4", "q4_0")]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < 0.3 * sizes[0]
    monkeypatch.setattr(loading, "BIG", 1000)
    assert load_model(folder).weights == "bf16"
    assert load_draft(file).weights == "q4_0" and load_draft(file, weights="f32").weights == "f32"


@pytest.mark.skipif(not available(), reason="the C kernels are not built")
def test_a_draft_head_keeps_the_first_ids_and_the_special_ones(tmp_path: Path) -> None:
    config = tiny_config("llama", TOKENIZER)
    path = write_gguf(tmp_path / "m.gguf", config, tiny_weights(config), TOKENIZER)
    whole, pruned = load_draft(path, weights="f32"), load_draft(path, weights="f32", head=100)
    kept = sorted({*range(100), *whole.tokenizer.special_ids, *whole.end_tokens})
    all_logits, some = logits_of(whole, PROMPTS[0]), logits_of(pruned, PROMPTS[0])
    assert np.array_equal(some[:, kept], all_logits[:, kept])
    others = [i for i in range(whole.tokenizer.size) if i not in kept]
    assert others and bool((some[:, others] == -np.inf).all())
    for head in (-5, 1.5, True):
        with pytest.raises(ParameterError, match="draft_head"):
            load_draft(path, head=head)  # type: ignore[arg-type]


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
    assert np.array_equal(logits_of(model, PROMPTS[0]), expected)


def test_untied_directory_without_output_is_refused(tmp_path: Path) -> None:
    config = tiny_config("llama", TOKENIZER)
    weights = tiny_weights(config)
    del weights["lm_head.weight"]
    with pytest.raises(ModelError, match=r"lacks tensor lm_head\.weight"):
        load_model(write_directory(tmp_path / "m", config, weights, TOKENIZER))
