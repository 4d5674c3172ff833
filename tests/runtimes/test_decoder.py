"""The decoder's forward pass against a naive one of our own and against transformers."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from tests.helpers.naive_decoder import naive_logits
from torch import Tensor

from outpace.core.errors import ModelError
from outpace.core.types import Chunk
from outpace.families.config import DecoderConfig
from outpace.families.family import decoder_config
from outpace.families.table import expected_tensors
from outpace.runtimes.torch_decoder import Decoder
from outpace.runtimes.torch_linear import Linear, tiled_linear
from outpace.runtimes.torch_runtime import TorchRuntime
from outpace.runtimes.torch_tensors import tensor_of

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 61,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
}


def random_tensors(config: DecoderConfig, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.3
        for name, shape in expected_tensors(config).items()
    }


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

CONFIGS = {
    "llama": SMALL | {"model_type": "llama"},
    "llama_biases": SMALL | {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 6},
    "qwen2": SMALL | {"model_type": "qwen2", "num_key_value_heads": 1, "use_sliding_window": False},
    "qwen3": SMALL | {"model_type": "qwen3", "head_dim": 12},
    "qwen3_yarn": SMALL | {"model_type": "qwen3", "head_dim": 16, "rope_scaling": YARN},
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_equals_naive_forward(kind: str) -> None:
    config = decoder_config(CONFIGS[kind])
    tensors = random_tensors(config)
    runtime = TorchRuntime(Decoder.from_tensors(config, tensors, torch.float64))
    cache = runtime.new_cache()
    tokens = [5, 60, 0, 17, 17, 3]
    logits = runtime.forward([Chunk(cache.open(6), tokens)], cache).logits[0]
    plain = {name: tensor.numpy() for name, tensor in tensors.items()}
    for end in range(1, len(tokens) + 1):
        np.testing.assert_allclose(logits[end - 1], naive_logits(config, plain, tokens[:end]), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("model_type", "extra"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 16}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
        ("llama", {"rope_scaling": LLAMA3}),
        ("qwen2", {}),
        ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
        ("qwen2", {"rope_scaling": YARN}),
        ("qwen3", {"head_dim": 16}),
        ("qwen3", {"head_dim": 16, "attention_bias": True, "rope_scaling": YARN}),
        ("qwen3", {"head_dim": 32, "rope_scaling": YARN | {"beta_fast": 4.0, "beta_slow": 0.5, "truncate": False}}),
        ("qwen3", {"head_dim": 32, "rope_scaling": YARN | {"factor": 1.0}}),
        ("qwen3", {"head_dim": 32, "rope_scaling": YARN | {"attention_factor": 1.4}}),
        ("llama", {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.5}}),
    ],
)
def test_equals_transformers(model_type: str, extra: dict[str, object]) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    reference = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(model_type, **copy.deepcopy(SMALL | extra))
    ).eval()
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    config = decoder_config(reference.config.to_dict())
    runtime = TorchRuntime(Decoder.from_tensors(config, reference.state_dict()))
    cache = runtime.new_cache()
    tokens = torch.randint(0, 61, (50,)).tolist()
    forward = runtime.forward([Chunk(cache.open(64), tokens)], cache, ["hidden", "layer.0"])
    with torch.no_grad():
        expected = reference(torch.tensor([tokens]), output_hidden_states=True)
    torch.testing.assert_close(tensor_of(forward.logits[0]), expected.logits[0], atol=3e-5, rtol=1e-4)
    torch.testing.assert_close(
        tensor_of(forward.features["layer.0"][0]), expected.hidden_states[1][0], atol=3e-5, rtol=1e-4
    )
    torch.testing.assert_close(
        tensor_of(forward.features["hidden"][0]), expected.hidden_states[-1][0], atol=3e-5, rtol=1e-4
    )


def test_rope_scaling_keeps_old_and_new_spelling_alike() -> None:
    old = decoder_config(SMALL | {"model_type": "llama", "rope_scaling": LLAMA3})
    new = dict(SMALL, model_type="llama", rope_parameters=LLAMA3 | {"rope_theta": 100.0})
    del new["rope_theta"]
    assert decoder_config(new).inv_freq == old.inv_freq
    plain = decoder_config(SMALL | {"model_type": "llama"}).inv_freq
    assert old.inv_freq[0] == plain[0] and old.inv_freq[-1] == pytest.approx(plain[-1] / 4)


def test_tiled_product_equals_the_plain_one() -> None:
    x, weight = torch.randn(3, 3000), torch.randn(200, 3000).bfloat16()  # tiles of 87 rows, the last one short
    torch.testing.assert_close(tiled_linear(x, weight), x @ weight.float().T, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_bfloat16_weights_keep_float32_activations(rows: int) -> None:
    x, weight, bias = torch.randn(rows, 64), torch.randn(80, 64).bfloat16(), torch.randn(80)
    y = Linear(weight, bias)(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, x @ weight.float().T + bias, atol=0.3, rtol=0.02)


def untied() -> tuple[DecoderConfig, dict[str, Tensor]]:
    config = decoder_config(SMALL | {"model_type": "llama"})
    return config, random_tensors(config)


def logits_of(config: DecoderConfig, tensors: dict[str, Tensor]) -> Tensor:
    runtime = TorchRuntime(Decoder.from_tensors(config, tensors, torch.float64))
    cache = runtime.new_cache()
    return tensor_of(runtime.forward([Chunk(cache.open(3), [4, 9, 2])], cache).logits[0])


@pytest.mark.parametrize("held", ["embedding", "output", "both"])
def test_tied_weights_however_stored(held: str) -> None:
    """Tied with only the embedding, only the output matrix, or both (bug B43)."""
    _, tensors = untied()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    config, _ = untied()
    expected = logits_of(config, tensors)
    if held == "embedding":
        del tensors["lm_head.weight"]
    if held == "output":
        del tensors["model.embed_tokens.weight"]
    tied = decoder_config(SMALL | {"model_type": "llama", "tie_word_embeddings": True})
    torch.testing.assert_close(logits_of(tied, tensors), expected, atol=0, rtol=0)
    decoder = Decoder.from_tensors(tied, tensors)
    assert decoder.nbytes < Decoder.from_tensors(config, untied()[1]).nbytes  # one matrix, not two


def test_tied_by_config_but_stored_apart_uses_what_is_stored() -> None:
    config, tensors = untied()
    tied = decoder_config(SMALL | {"model_type": "llama", "tie_word_embeddings": True})
    assert torch.equal(logits_of(tied, tensors), logits_of(config, tensors))


@pytest.mark.parametrize("name", ["lm_head.weight", "model.embed_tokens.weight", "model.layers.2.mlp.up_proj.weight"])
def test_missing_tensor_is_named(name: str) -> None:
    config, tensors = untied()
    del tensors[name]
    with pytest.raises(ModelError, match=rf"here\.bin lacks tensor {name}"):
        Decoder.from_tensors(config, tensors, source="here.bin")


def test_tied_with_neither_matrix_is_refused() -> None:
    config = decoder_config(SMALL | {"model_type": "llama", "tie_word_embeddings": True})
    _, tensors = untied()
    del tensors["lm_head.weight"], tensors["model.embed_tokens.weight"]
    with pytest.raises(ModelError, match="embed_tokens"):
        Decoder.from_tensors(config, tensors)


def test_surplus_tensor_is_named_and_harmless_ones_are_not() -> None:
    config, tensors = untied()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    Decoder.from_tensors(config, tensors)
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(32)
    with pytest.raises(ModelError, match=r"here\.bin holds tensor model\.layers\.0\.self_attn\.q_proj\.bias"):
        Decoder.from_tensors(config, tensors, source="here.bin")


def test_wrong_shape_is_named() -> None:
    config, tensors = untied()
    tensors["model.layers.1.self_attn.k_proj.weight"] = torch.zeros(32, 16)
    with pytest.raises(
        ModelError, match=r"layers\.1\.self_attn\.k_proj\.weight has shape \(32, 16\), expected \(16, 32\)"
    ):
        Decoder.from_tensors(config, tensors)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_named(value: float) -> None:
    config, tensors = untied()
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = value
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.down_proj\.weight holds NaN"):
        Decoder.from_tensors(config, tensors)
