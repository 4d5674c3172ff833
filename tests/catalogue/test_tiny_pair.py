"""The tiny trained pair that ships in the repository: what the files must be, apart from our own loader."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

import outpace

TINY = Path(outpace.__file__).parent / "catalogue" / "tiny"
ROLES = ("target", "draft")
CODE = 'def read(path):\n    """Return the lines of a file."""\n    with open(path) as f:\n        return f.'


def config(role: str) -> dict:
    return json.loads((TINY / role / "config.json").read_text(encoding="utf-8"))


def tokenizer(role: str) -> Tokenizer:
    return Tokenizer.from_file(str(TINY / role / "tokenizer.json"))


def reference(role: str) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM.from_pretrained(TINY / role, dtype=torch.float32).eval()


def test_both_directories_together_stay_small() -> None:
    assert sum(f.stat().st_size for f in TINY.rglob("*") if f.is_file()) <= 4_000_000


@pytest.mark.parametrize("role", ROLES)
def test_tensors_have_the_shapes_of_the_config_and_are_finite(role: str) -> None:
    c, weights = config(role), load_file(TINY / role / "model.safetensors")
    hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    assert kv_heads < heads, "the pair is here to exercise grouped-query attention"
    layer = {
        "self_attn.q_proj": (heads * dim, hidden),
        "self_attn.k_proj": (kv_heads * dim, hidden),
        "self_attn.v_proj": (kv_heads * dim, hidden),
        "self_attn.o_proj": (hidden, heads * dim),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    expected = {f"model.layers.{i}.{n}.weight": s for i in range(c["num_hidden_layers"]) for n, s in layer.items()}
    expected |= {"model.embed_tokens.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    assert {name: tuple(w.shape) for name, w in weights.items()} == expected
    assert {w.dtype for w in weights.values()} == {getattr(torch, c["torch_dtype"])}
    assert all(w.isfinite().all() and w.float().std() < 5 and w.any() for w in weights.values())


def test_target_and_draft_share_one_vocabulary() -> None:
    target, draft = tokenizer("target").get_vocab(), tokenizer("draft").get_vocab()
    assert target == draft
    assert sorted(target.values()) == list(range(config("target")["vocab_size"]))
    assert config("draft")["vocab_size"] == config("target")["vocab_size"]


@pytest.mark.parametrize(
    "text",
    [CODE, "", " ", "\n\n\t\r\n", "naïve café, 東京 \U0001f409", "\x00\x7f\ufffd", "".join(map(chr, range(1, 0x250)))],
)
def test_every_text_comes_back_from_its_tokens(text: str) -> None:
    tokens = tokenizer("target")
    assert tokens.decode(tokens.encode(text).ids, skip_special_tokens=False) == text


def test_special_tokens_are_single_ids_and_the_stops_of_generation() -> None:
    ids = {word: tokenizer("target").encode(word).ids for word in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")}
    assert ids == {"<|endoftext|>": [0], "<|im_start|>": [1], "<|im_end|>": [2]}
    for role in ROLES:
        stops = json.loads((TINY / role / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
        assert stops == [0, 2]


def test_chat_template_renders_turns() -> None:
    jinja2 = pytest.importorskip("jinja2")
    source = json.loads((TINY / "target" / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    text = jinja2.Template(source).render(messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@torch.no_grad()
def test_target_has_learnt_code_and_the_draft_follows_it() -> None:
    """Along the target's own greedy text the draft names the same token often enough to be worth drafting with."""
    tokens, target, draft = tokenizer("target"), reference("target"), reference("draft")
    prompt = torch.tensor([tokens.encode("<|endoftext|>" + CODE).ids])
    loss = torch.nn.functional.cross_entropy(target(prompt).logits[0, :-1], prompt[0, 1:]).item()
    assert loss < math.log(config("target")["vocab_size"]) / 2
    ids = target.generate(prompt, max_new_tokens=150, do_sample=False, eos_token_id=None, pad_token_id=0)
    guesses, answers = (m(ids).logits[0, prompt.shape[1] - 1 : -1].argmax(-1) for m in (draft, target))
    assert (guesses == answers).float().mean() >= 0.5
