"""Small random models for the native runtime's tests, as checkpoints in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np

from outpace.families.config import DecoderConfig
from outpace.families.table import DECODER, expected_tensors, known
from outpace.files.tensors import StoredTensor


def small_config(*optional: str, **changes: object) -> DecoderConfig:
    """``optional``: roles of tensors that not every decoder has."""
    fields: dict[str, object] = {
        "family": "test",
        "hidden": 96,
        "layers": 3,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 16,
        "intermediate": 160,
        "vocab_rows": 131,
        "vocab_size": 127,
        "context": 256,
        "norm_eps": 1e-5,
        "inv_freq": tuple(10000.0 ** (-i / 8) for i in range(8)),
        "weights": (*DECODER, *known(*optional)),
    }
    return DecoderConfig(**(fields | changes))  # type: ignore[arg-type]


def random_checkpoint(config: DecoderConfig, kind: str = "F32", seed: int = 0) -> SimpleNamespace:
    """Random weights; matrices as ``kind``, vectors in F32."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in expected_tensors(config).items():
        if config.tied and name == "lm_head.weight":
            continue
        values = rng.standard_normal(shape, dtype=np.float32)
        values = values / shape[1] ** 0.5 if len(shape) == 2 else 1 + 0.2 * values if "norm" in name else 0.3 * values
        values = values.reshape(-1, shape[-1]).astype(np.float32)
        stored = kind if len(shape) == 2 else "F32"
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[stored])
        raw = np.ascontiguousarray(data).view(np.uint8).reshape(len(values), -1)
        tensors[name] = StoredTensor(name, name, Path("memory"), tuple(shape), stored, raw)
    return SimpleNamespace(path=Path("memory"), tensors=tensors)
