"""Weights of every kind as a GGUF file holds them, and packed."""

import numpy as np
from gguf import GGMLQuantizationType, quants

from outpace.kernels import linear
from outpace.kernels.native import Library

K_BLOCK_BYTES = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
VALUE_BYTES = {  # where a block keeps its values
    "Q4_0": (2, 18), "Q4_1": (4, 20), "Q5_0": (2, 22), "Q5_1": (4, 24), "Q8_0": (2, 34),
    "Q4_K": (16, 144), "Q5_K": (16, 176), "Q6_K": (0, 192),
}  # fmt: skip
HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # where a K block keeps its fp16 scales


def columns(kind: str) -> int:
    """A column count with an odd number of groups where the kind allows it, and odd where anything goes."""
    if kind in K_BLOCK_BYTES:
        return 512
    return 77 if kind in ("F32", "F16", "BF16") else 160


def raw_rows(kind: str, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """uint8 ``[rows, row bytes]``; K blocks are random bits, so every scale and value pattern occurs."""
    rng = np.random.default_rng(seed)
    if kind in K_BLOCK_BYTES:
        blocks = rng.integers(0, 256, (rows, cols // 256, K_BLOCK_BYTES[kind]), dtype=np.uint8)
        for at in HALVES[kind]:
            half = rng.uniform(1e-4, 1e-2, blocks.shape[:2]).astype(np.float16)
            blocks[:, :, at : at + 2] = half[..., None].view(np.uint8)
        return blocks.reshape(rows, -1)
    values = (rng.standard_normal((rows, cols)) * 0.1).astype(np.float32)
    if kind == "F32":
        return values.view(np.uint8)
    return np.ascontiguousarray(quants.quantize(values, GGMLQuantizationType[kind])).view(np.uint8).reshape(rows, -1)


def exact(kind: str, raw: np.ndarray, cols: int) -> np.ndarray:
    """The values by the gguf package's own arithmetic: float32 ``[rows, cols]``."""
    if kind == "F32":
        return raw.view(np.float32).copy()
    values = quants.dequantize(raw, GGMLQuantizationType[kind]).astype(np.float32)
    return values.reshape(raw.shape[0], cols)


def packed(library: Library, kind: str, rows: int, seed: int = 0) -> tuple[linear.PackedMatrix, np.ndarray]:
    """A packed matrix and its exact values."""
    cols = columns(kind)
    raw = raw_rows(kind, rows, cols, seed)
    return linear.pack(library, raw, kind, cols, threads=2), exact(kind, raw, cols)


def activations(rows: int, cols: int, seed: int = 1) -> np.ndarray:
    """float32 ``[rows, cols]`` with channels of very different size, as real models have."""
    rng = np.random.default_rng(seed)
    size = np.exp(rng.standard_normal((1, cols)))
    return (rng.standard_normal((rows, cols)) * size).astype(np.float32)


def largest(raw: np.ndarray, kind: str) -> np.ndarray:
    """The same rows with every integer as large as its bits allow: 15, 31, 63; of Q8_0 -128."""
    first, end = VALUE_BYTES[kind]
    block = K_BLOCK_BYTES.get(kind, end)
    rows = raw.reshape(raw.shape[0], -1, block).copy()
    rows[..., first:end] = 0x80 if kind == "Q8_0" else 0xFF
    return rows.reshape(raw.shape)
