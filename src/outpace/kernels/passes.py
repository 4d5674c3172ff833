"""A whole decoder pass in one call into the C library (csrc/pass.h), and the buffers that it needs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from ..core.fork import ProcessLock
from ..core.types import Array
from .linear import ACTIVATIONS, PackedMatrix
from .native import Library, Matrix

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
VECTORS = ("attention_norm", "mlp_norm", "q_norm", "k_norm", *(f"{matrix}_bias" for matrix in MATRICES))


class _Layer(Structure):
    _fields_ = [(name, Matrix) for name in MATRICES] + [(name, c_void_p) for name in VECTORS]


class _Model(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate")),
        ("norm_eps", c_float),
        ("cache_bf16", c_int32),
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("embedding", Matrix),
        ("layer", POINTER(_Layer)),
        ("final_norm", c_void_p),
        ("head", Matrix),
        ("vocab", c_int64),
        ("head_ids", c_void_p),
        ("cache_layer", POINTER(c_int32)),
    ]


class _Chunk(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("length", c_int64),
        ("capacity", c_int64),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("parents", c_void_p),
    ]


class _Call(Structure):
    _fields_ = [
        ("rows", c_int64),
        ("chunks", c_int64),
        ("wanted", c_int64),
        ("tokens", c_void_p),
        ("chunk", POINTER(_Chunk)),
        ("wanted_row", c_void_p),
        ("logits", c_void_p),
        ("layer_taps", c_void_p),
        ("hidden", c_void_p),
    ]


@dataclass(frozen=True)
class LayerWeights:
    """One layer's packed matrices, all of ``MATRICES``, and its float32 vectors, those of ``VECTORS`` that exist."""

    matrices: Mapping[str, PackedMatrix]
    vectors: Mapping[str, Array]


@dataclass(frozen=True)
class DecoderWeights:
    """All a pass reads. ``embedding`` has a row for every token id; it may be the ``head``, too."""

    layers: Sequence[LayerWeights]
    embedding: PackedMatrix
    final_norm: Array  # [hidden]
    head: PackedMatrix
    head_ids: Array | None  # int32 [head.rows], ascending: the token ids that the head scores; None: all
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    cosine: Array  # [context, head_dim / 2]
    sine: Array
    cache_layers: Sequence[int] | None = None  # where the cache keeps each layer's entries; None: in their own order


@dataclass(frozen=True)
class SlotRows:
    """New rows of one slot: its storage ``[layers, kv_heads, capacity, head_dim]``, its length, what follows what."""

    rows: int
    keys: Array
    values: Array
    length: int
    parents: Sequence[int] | None = None


class DecoderPass:
    """Weights bound to the library, with scratch memory of its own. Calls from several threads take turns.
    ``seconds``: how long all of them have been in the library.

    ``float_activations`` multiplies unrounded activations with the exact weights: the slow reference.
    """

    def __init__(
        self,
        library: Library,
        weights: DecoderWeights,
        cache_dtype: str,
        threads: int,
        *,
        float_activations: bool = False,
    ) -> None:
        _declare(library.functions)
        self._library, self._weights, self._threads = library.functions, weights, threads
        self._float_activations = float_activations
        self._lock = ProcessLock("a model's runtime")
        self.seconds = 0.0
        self._scratch: Array = np.empty(0, dtype=np.uint8)
        self._scratch_rows = 0
        self._vectors: list[Array] = []  # keeps alive what the structures point at
        self._layers = (_Layer * len(weights.layers))(*(self._layer(layer) for layer in weights.layers))
        first = weights.layers[0].matrices
        self._model = _Model(
            layers=len(weights.layers),
            hidden=first["q"].cols,
            heads=weights.heads,
            kv_heads=weights.kv_heads,
            head_dim=weights.head_dim,
            intermediate=first["gate"].rows,
            norm_eps=weights.norm_eps,
            cache_bf16=cache_dtype == "bfloat16",
            cosine=self._pointer(weights.cosine),
            sine=self._pointer(weights.sine),
            embedding=self._matrix(weights.embedding),
            layer=self._layers,
            final_norm=self._pointer(weights.final_norm),
            head=self._matrix(weights.head),
            vocab=weights.vocab,
            head_ids=None if weights.head_ids is None else weights.head_ids.ctypes.data,
        )
        if weights.cache_layers is not None:
            self._model.cache_layer = (c_int32 * len(weights.cache_layers))(*weights.cache_layers)

    def _pointer(self, vector: Array) -> int:
        kept = np.ascontiguousarray(vector, dtype=np.float32)
        self._vectors.append(kept)
        return int(kept.ctypes.data)

    def _matrix(self, matrix: PackedMatrix) -> Matrix:
        struct = Matrix.from_buffer_copy(matrix.struct)
        if self._float_activations:
            struct.act_format = ACTIVATIONS["f32"]
        return struct

    def _layer(self, layer: LayerWeights) -> _Layer:
        matrices = {name: self._matrix(layer.matrices[name]) for name in MATRICES}
        vectors = {name: self._pointer(layer.vectors[name]) for name in VECTORS if name in layer.vectors}
        return _Layer(**matrices, **vectors)

    def run(
        self,
        tokens: Array,
        slots: Sequence[SlotRows],
        wanted: Array,
        *,
        taps: Sequence[int] = (),
        hidden: bool = False,
    ) -> tuple[Array, dict[int, Array]]:
        """Write the rows' keys and values, return their logits and taps.

        ``tokens`` int32 [rows], slot after slot; ``wanted`` int32, the rows whose logits are asked for.
        Returns float32 logits [wanted, vocab], -inf where a pruned head scores nothing, and, by layer, the residual
        stream [rows, hidden] after the layers in ``taps``; with ``hidden`` also the head's input, as -1. Nothing is
        checked here. MemoryError when memory runs out.
        """
        width, rows = self._model.hidden, len(tokens)
        logits = np.empty((len(wanted), self._model.vocab), dtype=np.float32)
        tapped = {layer: np.empty((rows, width), dtype=np.float32) for layer in (*taps, *((-1,) if hidden else ()))}
        pointers = (c_void_p * self._model.layers)()
        for layer in taps:
            pointers[layer] = tapped[layer].ctypes.data
        parents = [None if s.parents is None else np.array(s.parents, dtype=np.int32) for s in slots]
        chunks = (_Chunk * len(slots))(
            *(
                _Chunk(
                    slot.rows,
                    slot.length,
                    slot.keys.shape[2],
                    slot.keys.ctypes.data,
                    slot.values.ctypes.data,
                    None if follows is None else follows.ctypes.data,
                )
                for slot, follows in zip(slots, parents, strict=True)
            )
        )
        call = _Call(
            rows=rows,
            chunks=len(slots),
            wanted=len(wanted),
            tokens=tokens.ctypes.data,
            chunk=chunks,
            wanted_row=wanted.ctypes.data,
            logits=logits.ctypes.data,
            layer_taps=ctypes.addressof(pointers) if taps else None,
            hidden=tapped[-1].ctypes.data if hidden else None,
        )
        with self._lock:
            scratch = self._room(rows)
            begun = perf_counter()
            failed = self._library.op_pass_run(byref(self._model), byref(call), scratch, self._threads)
            self.seconds += perf_counter() - begun
        if failed:
            raise MemoryError("no memory left for a pass")
        return logits, tapped

    def _room(self, rows: int) -> int:
        """Address of 64-byte aligned scratch for ``rows`` rows."""
        if rows > self._scratch_rows:
            self._scratch_rows = max(16, rows)
            size = self._library.op_pass_scratch_bytes(byref(self._model), self._scratch_rows, self._threads)
            self._scratch = np.empty(size + 64, dtype=np.uint8)
        return int(self._scratch.ctypes.data + 63) // 64 * 64


def attention_alone(
    library: Library, queries: Array, slots: Sequence[SlotRows], layer: int, kv_heads: int, threads: int
) -> Array:
    """Attention alone: ``queries`` float32 [rows, heads, head_dim] against what the slots hold, new rows included.

    Returns [rows, heads * head_dim]. The pass does the same between its projections.
    """
    functions = library.functions
    _declare(functions)
    rows, heads, head_dim = queries.shape
    packed = np.zeros((rows, heads + 2 * kv_heads, head_dim), dtype=np.float32)
    packed[:, :heads] = queries
    model = _Model(heads=heads, kv_heads=kv_heads, head_dim=head_dim, cache_bf16=slots[0].keys.dtype == np.uint16)
    parents = [None if s.parents is None else np.array(s.parents, dtype=np.int32) for s in slots]
    chunks = (_Chunk * len(slots))()
    for chunk, slot, follows in zip(chunks, slots, parents, strict=True):
        chunk.rows, chunk.length, chunk.capacity = slot.rows, slot.length, slot.keys.shape[2]
        chunk.keys, chunk.values = slot.keys.ctypes.data, slot.values.ctypes.data
        chunk.parents = None if follows is None else follows.ctypes.data
    out = np.empty((rows, heads * head_dim), dtype=np.float32)
    call = _Call(rows=rows, chunks=len(slots), chunk=chunks)
    if functions.op_attention(byref(model), byref(call), layer, packed.ctypes.data, out.ctypes.data, threads):
        raise MemoryError("no memory left for attention")
    return out


def rotary_tables(inv_freq: Sequence[float], context: int, scale: float = 1.0) -> tuple[Array, Array]:
    """Cosines and sines of every position's angles, times ``scale``: float32 [context, len(inv_freq)], worked out in
    float64."""
    angles = np.arange(context, dtype=np.float64)[:, None] * np.array(inv_freq)
    return (scale * np.cos(angles)).astype(np.float32), (scale * np.sin(angles)).astype(np.float32)


def _declare(library: ctypes.CDLL) -> None:
    library.op_pass_scratch_bytes.restype = c_int64
    library.op_pass_scratch_bytes.argtypes = [POINTER(_Model), c_int64, c_int]
    library.op_pass_run.restype = c_int
    library.op_pass_run.argtypes = [POINTER(_Model), POINTER(_Call), c_void_p, c_int]
    library.op_attention.restype = c_int
    library.op_attention.argtypes = [POINTER(_Model), POINTER(_Call), c_int64, c_void_p, c_void_p, c_int]
