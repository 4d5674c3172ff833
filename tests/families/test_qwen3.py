"""Qwen3: one file of families/, the same model in every format and on every backend, and speculative decoding over
it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.tiny_models import byte_level_tokenizer, tiny_config, tiny_weights, write_directory, write_gguf

from outpace import SamplingParams, load
from outpace.core.errors import ModelError
from outpace.core.torch_extra import has_torch
from outpace.core.types import Chunk
from outpace.kernels.native import available
from outpace.runtimes.loading import load_model

TOKENIZER = byte_level_tokenizer()
BACKENDS = [*(["torch"] if has_torch() else []), *(["native"] if available() else [])]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
# As the 0.6B model: twice as many values in the heads as in the stream, two query heads a key head, one matrix at both
# ends, and the family's own head size, eps and theta.
TRUE_SHAPE = {"hidden_size": 256, "head_dim": 128, "intermediate_size": 768, "num_hidden_layers": 3, "tied": True}
TRUE_SHAPE |= {"rms_norm_eps": 1e-6, "rope_theta": 1e6}


def logits_of(path: Path, backend: str, tokens: list[int]) -> np.ndarray:
    runtime = load_model(path, weights="f32", backend=backend).runtime
    cache = runtime.new_cache()
    return np.stack(list(runtime.forward([Chunk(cache.open(len(tokens)), tokens)], cache).logits[0]))


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}, {"rope_scaling": YARN}])
def test_equals_transformers_in_both_formats(changes: dict[str, object], tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = tiny_config("qwen3", TOKENIZER, **(TRUE_SHAPE | changes))
    weights = tiny_weights(config)
    folder = write_directory(tmp_path / "folder", config, weights, TOKENIZER)
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
    metadata = yarn if "rope_scaling" in changes else None
    file = write_gguf(tmp_path / "file.gguf", config, weights, TOKENIZER, metadata=metadata)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = np.random.default_rng(1).integers(0, 320, 200).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0, :, : TOKENIZER.get_vocab_size()].numpy()
    for backend in BACKENDS:
        for path in (folder, file):
            np.testing.assert_allclose(logits_of(path, backend, tokens), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("form", ["directory", "gguf"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_speculative_answers_are_plain_ones(backend: str, form: str, tmp_path: Path) -> None:
    """Greedy and sampled, under match: the tokens of plain decoding, with a draft of the same family."""
    config = tiny_config("qwen3", TOKENIZER)
    weights, noise = tiny_weights(config, 0), tiny_weights(config, 1)
    near = {name: values + 0.1 * noise[name] for name, values in weights.items()}
    write = {"directory": write_directory, "gguf": write_gguf}[form]
    paths = [write(tmp_path / name, config, held, TOKENIZER) for name, held in (("target", weights), ("draft", near))]
    target, draft = (load_model(path, weights="f32", backend=backend, threads=1) for path in paths)
    prompts = ["the quick brown fox", "def add(a, b):", "more things in"]
    params = [SamplingParams(max_tokens=24, temperature=t, seed=5) for t in (0.0, 0.0, 0.8)]
    plain = load(target, drafter="none", controller="fixed").generate(prompts, params)
    engine = load(target, draft, controller="fixed")
    for gamma in (1, 4):
        found = engine.generate(prompts, params, gamma=gamma)
        assert [r.token_ids for r in found] == [r.token_ids for r in plain]
        assert 0 < sum(r.report.accepted for r in found) < sum(r.report.tested for r in found)


@pytest.mark.parametrize("fault", ["missing", "shape", "surplus"])
@pytest.mark.parametrize("form", ["directory", "gguf"])
def test_tensors_are_named_as_the_file_names_them(form: str, fault: str, tmp_path: Path) -> None:
    config = tiny_config("llama" if fault == "surplus" else "qwen3", TOKENIZER)
    weights = tiny_weights(config)
    ours = "model.layers.1.self_attn.k_norm.weight"
    write, theirs = {"directory": (write_directory, ours), "gguf": (write_gguf, "blk.1.attn_k_norm.weight")}[form]
    if fault == "missing":
        del weights[ours]
    else:
        weights[ours] = np.ones(8, dtype=np.float32)
    words = {"missing": "lacks tensor {}", "shape": "tensor {} has shape (8,), expected (24,)"}
    words |= {"surplus": "holds tensor {}, which a llama decoder has no use for"}
    with pytest.raises(ModelError, match=re.escape(words[fault].format(theirs))):
        load_model(write(tmp_path / "m", config, weights, TOKENIZER))
