"""On a real model: `match` gives plain decoding's tokens, whatever drafts and however many answer at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from outpace import SamplingParams
from outpace.engine.build import load
from outpace.kernels.native import available

PROMPTS = [
    "Name three rivers of Europe.",
    "Write a Python function that reverses a list in place.",
    "The cat sat on the mat. The cat sat on the",
    "Explain in one sentence why the sky is blue.",
    "1, 2, 3, 1, 2, 3, 1, 2, 3, 1,",
    "Translate to French: good morning, my friend.",
]
BACKENDS = ["torch", *(["native"] if available() else [])]


@pytest.mark.audit
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["draft_model", "lookup"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_smollm2_in_float32(
    cached_model: Callable[[str], Path], backend: str, drafter: str, temperature: float
) -> None:
    path = cached_model("smollm2-135m")
    draft = path if drafter == "draft_model" else None
    rounded = "q4" if backend == "native" else "bf16"
    draft_weights = rounded if draft else "auto"  # the model itself, rounded: a draft that is often right
    params = [SamplingParams(temperature=temperature, seed=seed, max_tokens=24) for seed in range(len(PROMPTS))]
    expected = None
    for batch in (1, 3):
        engine = load(path, draft, drafter=drafter, weights="f32", draft_weights=draft_weights, backend=backend,
                      max_batch=batch)  # fmt: skip
        if expected is None:
            expected = [r.token_ids for r in engine.generate(PROMPTS, params, gamma=0)]
        for gamma in (1, 3, 5, 8):
            results = engine.generate(PROMPTS, params, gamma=gamma)
            assert [r.token_ids for r in results] == expected, (batch, gamma)
            assert sum(r.report.accepted for r in results) > 0
