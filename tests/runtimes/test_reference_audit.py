"""Our logits and greedy text against transformers on the same file, dequantized to float32."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outpace.core.types import Chunk
from outpace.runtimes.loading import load_model
from outpace.runtimes.torch_tensors import tensor_of

pytestmark = pytest.mark.audit

PROMPT = "def quicksort(items):\n    if len(items) <= 1:\n        return items\n"


def reference(path: Path, tokens: Sequence[int], steps: int) -> tuple[Tensor, list[int]]:
    """Logits ``[len(tokens), rows]`` of the prompt, and the ``steps`` greedy tokens after it."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, local_files_only=True
    ).eval()
    with torch.inference_mode():
        output = model(torch.tensor([list(tokens)]), use_cache=True)
        logits, greedy = output.logits[0], [int(output.logits[0, -1].argmax())]
        while len(greedy) < steps:
            output = model(torch.tensor([greedy[-1:]]), past_key_values=output.past_key_values, use_cache=True)
            greedy.append(int(output.logits[0, -1].argmax()))
    return logits, greedy


@pytest.mark.parametrize(("name", "steps"), [("smollm2-135m", 64), ("qwen2.5-coder-0.5b", 1)])
def test_logits_and_greedy_tokens_equal_transformers(
    name: str, steps: int, cached_model: Callable[[str], Path]
) -> None:
    path = cached_model(name)
    model = load_model(path, weights="f32")
    tokens = model.tokenizer.encode(PROMPT, False)
    cache = model.runtime.new_cache()
    slot = cache.open(len(tokens) + steps)
    logits = model.runtime.forward([Chunk(slot, tokens)], cache).logits[0]
    greedy = [int(logits[-1].argmax())]
    while len(greedy) < steps:
        greedy.append(int(model.runtime.forward([Chunk(slot, greedy[-1:])], cache).logits[0][0].argmax()))
    logits = tensor_of(logits)
    vocab_size = model.config.vocab_size
    del model, cache
    gc.collect()
    expected, expected_greedy = reference(path, tokens, steps)
    worst = float((logits - expected[:, :vocab_size]).abs().max())
    print(f"{name}: largest difference {worst:.2e} of logits up to {float(logits.abs().max()):.1f}")
    torch.testing.assert_close(logits, expected[:, :vocab_size], atol=2e-3, rtol=1e-4)
    assert greedy == expected_greedy
