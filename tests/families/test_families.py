"""What a family's file says, what is refused, and that a family of known pieces is one file."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.naive_decoder import naive_logits
from tests.helpers.tiny_models import byte_level_tokenizer, tiny_config, tiny_weights, write_directory, write_gguf

import outpace.families
from outpace.core.errors import ModelError
from outpace.core.torch_extra import has_torch
from outpace.core.types import Chunk
from outpace.families.family import Family, decoder_config, families
from outpace.families.table import DECODER, KNOWN, known
from outpace.files.checkpoint import open_checkpoint
from outpace.kernels import passes
from outpace.kernels.native import available
from outpace.runtimes.loading import load_model

TOKENIZER = byte_level_tokenizer()
SOURCES = Path(passes.__file__).parent / "csrc"
MADE_UP = '''
"""Marsian: Qwen3's norm on queries only, biases on values where asked, another name for a norm, pairs side by side."""

from dataclasses import replace

from .family import Family
from .table import DECODER, known

NAMES = {"hf": "model.layers.{}.pre_mlp_norm.weight", "gguf": "blk.{}.mlp_norm.weight"}

FAMILY = Family(
    model_type="marsian",
    gguf="mars",
    gguf_pairs="neighbours",
    tensors=(
        *(replace(weight, **NAMES) if weight.role == "mlp_norm" else weight for weight in DECODER),
        *known("q_norm"),
        *known("v_bias", when="value_bias"),
    ),
)
'''


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    """The family above, found as all are: as a file in families/."""
    (tmp_path / "marsian.py").write_text(MADE_UP)
    monkeypatch.setattr(outpace.families, "__path__", [*outpace.families.__path__, str(tmp_path)])
    yield families()["marsian"]
    del sys.modules["outpace.families.marsian"]


def test_every_family_is_one_short_file() -> None:
    assert {"llama", "qwen2", "qwen3"} <= set(families())
    for name in families():
        module = importlib.import_module(f"outpace.families.{name}")
        assert len(Path(module.__file__ or "").read_text().splitlines()) < 80


def test_the_table_speaks_of_what_the_kernels_have() -> None:
    """Roles of the table, the fields in Python and the struct in C are the same, and the fields in one order."""
    layered = {role for role, weight in KNOWN.items() if weight.layered}
    assert layered == {*passes.MATRICES, *passes.VECTORS}
    body = re.search(r"typedef struct \{([^}]*)\} pass_layer;", (SOURCES / "pass.h").read_text())
    assert body is not None
    fields = re.sub(r"/\*.*?\*/|op_matrix|const float|[*;]", " ", body[1])
    assert re.split(r"[\s,]+", fields.strip()) == [*passes.MATRICES, *passes.VECTORS]


@pytest.mark.parametrize("broken", ["unknown role", "missing role", "role twice"])
def test_a_table_that_the_decoder_cannot_run_is_refused(broken: str) -> None:
    strange = (*DECODER, *known("q_norm"))
    tables = {"missing role": DECODER[1:], "role twice": (*DECODER, DECODER[0])}
    tables["unknown role"] = (*strange[:-1], type(strange[-1])("gate_norm", "g.{}", "g.{}", ("hidden",)))
    with pytest.raises(ValueError, match="odd: roles"):
        Family("odd", "odd", "halves", tables[broken])


@pytest.mark.parametrize("value_bias", [False, True])
def test_a_family_of_known_pieces_is_one_file(made_up: Family, value_bias: bool, tmp_path: Path) -> None:
    """The same logits from both formats and both backends, and those that its pieces have in a known family."""
    config = tiny_config("qwen3", TOKENIZER, value_bias=value_bias) | {"model_type": "marsian"}
    weights = tiny_weights(tiny_config("qwen3", TOKENIZER))
    weights = {name: values for name, values in weights.items() if "k_norm" not in name}
    if value_bias:
        rng = np.random.default_rng(3)
        weights |= {f"model.layers.{n}.self_attn.v_proj.bias": rng.standard_normal(48).astype("f4") for n in range(2)}
    tokens = [5, 300, 17, 17, 2, 90, 11]
    plain = {name: values.astype(np.float64) for name, values in weights.items()}
    rows = [naive_logits(decoder_config(config), plain, tokens[: end + 1]) for end in range(len(tokens))]
    expected = np.stack(rows)[:, : TOKENIZER.get_vocab_size()]
    weights = {name.replace("post_attention_layernorm", "pre_mlp_norm"): w for name, w in weights.items()}
    names = {"pre_mlp_norm": "mlp_norm"}
    folder = write_directory(tmp_path / "folder", config, weights, TOKENIZER)
    file = write_gguf(tmp_path / "m.gguf", config | {"model_type": "mars"}, weights, TOKENIZER, pairs=True, names=names)
    assert set(open_checkpoint(file).tensors) == set(weights)
    for path in (folder, file):
        for backend in [*(["torch"] if has_torch() else []), *(["native"] if available() else [])]:
            runtime = load_model(path, weights="f32", backend=backend).runtime
            cache = runtime.new_cache()
            logits = runtime.forward([Chunk(cache.open(8), tokens)], cache).logits[0]
            np.testing.assert_allclose(np.stack(list(logits)), expected, atol=1e-4, rtol=1e-4)
    del weights["model.layers.0.pre_mlp_norm.weight"]
    write_gguf(file, config | {"model_type": "mars"}, weights, TOKENIZER, pairs=True, names=names)
    with pytest.raises(ModelError, match=r"lacks tensor blk\.0\.mlp_norm\.weight"):
        load_model(file)


# ---- what changes the arithmetic is read, or refused by its name

SMALL = tiny_config("llama", TOKENIZER)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "martian"}, "martian.*llama.*qwen2.*qwen3"),
        ({"model_type": None}, "None"),
        ({"hidden_act": "relu"}, "relu"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_key_value_heads": 3}, "3 key-value heads"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
        ({"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 255}, "sliding_window 255"),
        ({"sliding_window": 128}, "sliding_window 128"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"logit_scale": 0.0625}, "logit_scale"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"attention_multiplier": 1.0}, "attention_multiplier"),
        ({"query_pre_attn_scalar": 16}, "query_pre_attn_scalar"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier"),
        ({"residual_multiplier": 0.22}, "residual_multiplier"),
        ({"scale_emb": 12}, "scale_emb"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"is_causal": False}, "is_causal"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"alibi": True}, "alibi"),
        ({"parallel_attn": True}, "parallel_attn"),
        ({"clip_qkv": 8.0}, "clip_qkv"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ({"rotary_pct": 0.5}, "rotary_pct"),
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"use_rope": False}, "use_rope"),
        ({"use_dynamic_ntk": True}, "use_dynamic_ntk"),
        ({"hidden_activation": "gelu"}, "hidden_activation"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "original_max_position_embeddings"),
        ({"rope_scaling": {"factor": 2.0}}, "'default': factor is 2.0"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
            "rope_type 'yarn' and type 'linear'",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 16}}, "'linear': beta_fast is 16"),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}}, "mrope_section"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
            "rope_parameters and rope_scaling",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "full_attention"),
        ({"rope_parameters": {"rope_theta": 1e6}}, "rope_theta has several values, 10000.0, 1000000.0"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_a_key_that_changes_the_arithmetic_is_refused_by_its_name(change: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        decoder_config(SMALL | change)


@pytest.mark.parametrize(
    "change",
    [
        {"use_sliding_window": False, "sliding_window": 32, "max_window_layers": 1},
        {"sliding_window": 256},
        {"layer_types": ["full_attention"] * 2},
        {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 1.0, "finetuned": True}},
        {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000}, "rope_scaling": {"rope_type": "default"}},
        {"logit_scale": 1.0, "final_logit_softcapping": None, "num_experts": 0, "is_causal": True, "clip_qkv": None},
        {"attention_dropout": 0.1, "attn_pdrop": 0.1, "use_flash_attn": True, "_attn_implementation": "sdpa"},
        {"pretraining_tp": 2, "initializer_range": 0.02, "attention_softmax_in_fp32": True, "rope_interleaved": False},
        {"unsloth_version": "2025.1", "transformers.js_config": {"dtype": "q4"}, "is_llama_config": True},
    ],
)
def test_keys_without_effect_are_no_reason_to_refuse(change: dict[str, object]) -> None:
    assert decoder_config(SMALL | change) == decoder_config(SMALL)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_all_that_transformers_writes_is_understood(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    written = transformers.AutoConfig.for_model(family).to_dict()
    assert decoder_config(written).layers == written["num_hidden_layers"]


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attention.scale": 0.3}, "attention.scale"),
        ({"logit_scale": 0.0625}, "logit_scale"),
        ({"residual_scale": 0.2}, "residual_scale"),
        ({"expert_count": 8}, "expert_count"),
        ({"attention.causal": False}, "attention.causal"),
        ({"attention.clamp_kqv": 8.0}, "attention.clamp_kqv"),
        ({"attention.max_alibi_bias": 8.0}, "attention.max_alibi_bias"),
        ({"use_parallel_residual": True}, "use_parallel_residual"),
        ({"a_key_of_tomorrow": 3}, "a_key_of_tomorrow"),
        ({"attention.sliding_window": 128}, "sliding_window 128"),
        ({"attention.value_length": 8}, "attention.value_length"),
        ({"rope.dimension_count": 8}, "rope.dimension_count"),
        ({"attention.key_length": 7}, "heads of 7"),
        ({"rope.scaling.attn_factor": 1.2}, "rope.scaling.attn_factor"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}, "original_max_position_embeddings"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, "longrope"),
        ({"rope.scaling.yarn_beta_fast": 16.0}, "yarn_beta_fast"),
        ({"rope.dimension_sections": [4, 2, 2, 0]}, "rope.dimension_sections"),
    ],
)
def test_a_gguf_key_that_changes_the_arithmetic_is_refused(
    metadata: dict[str, object], words: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", SMALL, tiny_weights(SMALL), TOKENIZER, metadata=metadata)
    with pytest.raises(ModelError, match=rf"m\.gguf: .*{re.escape(words)}"):
        load_model(path)


def test_gguf_keys_without_effect_are_no_reason_to_refuse(tmp_path: Path) -> None:
    metadata = {"expert_count": 0, "logit_scale": 1.0, "attention.causal": True, "vocab_size": 328, "pooling_type": 3}
    metadata |= {
        "tensor_data_layout": "Meta AI original pth",
        "rope.scaling.finetuned": True,
        "rope.dimension_count": 16,
    }
    metadata |= {"attention.sliding_window": 256, "rope.scaling.original_context_length": 64}
    weights = tiny_weights(SMALL)
    file = write_gguf(tmp_path / "m.gguf", SMALL, weights, TOKENIZER, metadata=metadata)
    folder = write_directory(tmp_path / "m", SMALL, weights, TOKENIZER)
    assert load_model(file).config == load_model(folder).config


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_frequency_factors_beside_a_scaling_are_refused(kind: str, tmp_path: Path) -> None:
    scaling = {"rope.scaling.type": kind, "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 64}
    extra = {"rope_freqs.weight": np.ones(8, "f4")}
    path = write_gguf(tmp_path / "m.gguf", SMALL, tiny_weights(SMALL), TOKENIZER, extra=extra, metadata=scaling)
    with pytest.raises(ModelError, match=f"'rope_freqs.weight' beside rope scaling '{kind}'"):
        load_model(path)
