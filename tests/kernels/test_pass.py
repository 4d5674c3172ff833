"""The Python side of the pass: tables and buffers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.helpers.native_models import random_checkpoint, small_config

from outpace.core.types import Chunk
from outpace.kernels.native import available
from outpace.kernels.passes import rotary_tables
from outpace.runtimes.native import NativeRuntime


def test_rotary_tables_are_exact_far_out():
    cosine, sine = rotary_tables((1.0, 0.001), 100_001)  # [context, 2]
    assert cosine.dtype == sine.dtype == np.float32 and cosine.shape == (100_001, 2)
    for position in (0, 1, 99_999, 100_000):
        for i, frequency in enumerate((1.0, 0.001)):
            assert float(cosine[position, i]) == np.float32(math.cos(position * frequency))
            assert float(sine[position, i]) == np.float32(math.sin(position * frequency))


@pytest.mark.skipif(not available(), reason="the C kernels are not built")
def test_growing_and_shrinking_passes_share_scratch():
    """A pass of many rows between two of few: the buffer is laid out anew each time."""
    config = small_config()
    runtime = NativeRuntime(random_checkpoint(config, "Q8_0"), config, threads=2)
    cache = runtime.new_cache()
    slot = cache.open(200)
    first = runtime.forward([Chunk(slot, [1, 2, 3])], cache).logits[0]
    cache.keep(slot, 0, [])
    big = runtime.forward([Chunk(slot, [1, 2, 3, *range(100)])], cache).logits[0]
    cache.keep(slot, 0, [])
    again = runtime.forward([Chunk(slot, [1, 2, 3])], cache).logits[0]
    assert np.array_equal(first, again) and np.array_equal(first, big[:3])


@pytest.mark.skipif(not available(), reason="the C kernels are not built")
def test_no_logits_asked_for():
    config = small_config()
    runtime = NativeRuntime(random_checkpoint(config), config, threads=2)
    cache = runtime.new_cache()
    slot = cache.open(20)
    forward = runtime.forward([Chunk(slot, [1, 2, 3], logits_from=3)], cache, ["hidden"])
    assert forward.logits[0].shape == (0, config.vocab_size) and forward.features["hidden"][0].shape == (
        3,
        config.hidden,
    )
    assert cache.length(slot) == 3 and np.isfinite(forward.features["hidden"][0]).all()
