"""The native runtime on a real file, against the same file dequantized and run in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from outpace.core.types import Chunk
from outpace.files.checkpoint import open_checkpoint
from outpace.kernels.native import available
from outpace.runtimes.loading import checked_config
from outpace.runtimes.native import NativeRuntime
from outpace.runtimes.torch_decoder import Decoder
from outpace.runtimes.torch_runtime import TorchRuntime
from outpace.runtimes.torch_tensors import tensor_of

pytestmark = [pytest.mark.audit, pytest.mark.skipif(not available(), reason="the C kernels are not built")]

TEXT = '''def median(values):
    """Return the middle of the values, or the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2

The river rose for nine days. On the tenth the miller's daughter counted the posts of the old bridge and found
that one was missing; she said nothing until the evening, when her father asked why the lamp had been left out.
Most of the rain had fallen in the hills, where the forest was cut in the years after the war, and it came down
brown and fast, carrying fence rails and, once, a door with its handle still on it.
'''


@pytest.fixture(scope="module")
def opened(cached_model):
    checkpoint = open_checkpoint(cached_model("smollm2-135m"))
    return checkpoint, checked_config(checkpoint, 1024), checkpoint.tokenizer.encode(TEXT, add_special=False)


def logits_of(runtime, tokens):
    """[tokens, vocab] in one prefill."""
    cache = runtime.new_cache()
    return tensor_of(runtime.forward([Chunk(cache.open(len(tokens)), tokens)], cache).logits[0])


def divergence(reference, other):
    """Mean KL(reference || other) per token, in nats."""
    p, q = reference.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


def test_logits_are_those_of_the_dequantized_model(opened):
    checkpoint, config, tokens = opened
    exact = logits_of(TorchRuntime(Decoder.from_tensors(config, checkpoint.tensors, torch.float32)), tokens)
    bounds = {("float", "float32"): 1e-8, ("float", "bfloat16"): 2e-4, ("int8", "bfloat16"): 5e-3}
    for (activations, kv_dtype), bound in bounds.items():
        runtime = NativeRuntime(checkpoint, config, threads=2, activations=activations, kv_dtype=kv_dtype)
        found = divergence(exact, logits_of(runtime, tokens))
        print(f"KL per token, {activations} activations, {kv_dtype} cache: {found:.2e} nats over {len(tokens)} tokens")
        assert found < bound


def test_prefill_rows_and_threads_change_no_bit(opened):
    checkpoint, config, tokens = opened
    runtime = NativeRuntime(checkpoint, config, threads=2)
    expected = logits_of(runtime, tokens)
    for rows, threads in ((1, 2), (7, 1), (16, 3)):
        other = NativeRuntime(checkpoint, config, threads=threads)
        cache = other.new_cache()
        slot = cache.open(len(tokens))
        pieces = [
            other.forward([Chunk(slot, tokens[i : i + rows])], cache).logits[0] for i in range(0, len(tokens), rows)
        ]
        assert np.array_equal(np.concatenate(pieces), expected.numpy())
