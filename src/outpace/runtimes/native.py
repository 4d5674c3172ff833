"""The native runtime: packed rows of many sessions through the C kernels, weights as their file has them."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..core.cache import KVCache
from ..core.errors import CacheError, ModelError, ParameterError
from ..core.progress import progress
from ..core.threads import default_threads
from ..core.types import Array, Capabilities, Chunk, Forward
from ..families.config import DecoderConfig
from ..families.table import check_tensors, tensor_names
from ..files.checkpoint import Checkpoint
from ..files.tensors import StoredTensor
from ..kernels.linear import ROUNDED_KINDS, PackedMatrix, dequantize, first_rows, pack, pack_float
from ..kernels.native import Library, missing_notice, open_library
from ..kernels.passes import MATRICES, DecoderPass, DecoderWeights, LayerWeights, SlotRows, rotary_tables
from .chunks import check_chunks, check_features

WEIGHTS = {"file": None, **ROUNDED_KINDS, "f32": "F32"}
KV_DTYPES = ("bfloat16", "float32")
_FOUR_BITS = {"Q4_0", "Q4_1", "Q4_K"}  # stay as they are: rounding would take quality and save nothing
# Where a quantized block keeps its 16-bit floats: bytes of a block, offsets.
_SCALES = {"Q4_0": (18, [0]), "Q4_1": (20, [0, 2]), "Q5_0": (22, [0]), "Q5_1": (24, [0, 2]), "Q8_0": (34, [0])}
_SCALES |= {"Q4_K": (144, [0, 2]), "Q5_K": (176, [0, 2]), "Q6_K": (210, [208])}


class NativeRuntime:
    """Runs a decoder through the C kernels (the Runtime protocol). Row-invariant, bit for bit.

    ``weights``: "file" (every matrix in the file's own encoding), "bf16", "f32", "q8", "q4" or "q4_0" (rounded at load,
    32 values sharing a scale, with q4 also a minimum; the last two leave 4-bit kinds as they are). ``kv_dtype``:
    "bfloat16" or "float32".
    ``head_rows``: int64 token ids that the output head keeps; the logits of all others are -inf (a draft's pruned
    head). ``activations``: "int8" is each encoding's fast path, "float" the slow reference with exact weights.

    Raises ModelError naming file and tensor, ParameterError for an impossible argument or without built kernels.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: DecoderConfig,
        *,
        weights: str = "file",
        kv_dtype: str = "bfloat16",
        threads: int | None = None,
        head_rows: Array | None = None,
        activations: str = "int8",
        library: Library | None = None,
    ) -> None:
        if weights not in WEIGHTS:
            raise ParameterError(f"weights must be one of {', '.join(WEIGHTS)}, not {weights!r}")
        if kv_dtype not in KV_DTYPES:
            raise ParameterError(f"kv_dtype must be one of {', '.join(KV_DTYPES)}, not {kv_dtype!r}")
        if activations not in ("int8", "float"):
            raise ParameterError(f"activations must be int8 or float, not {activations!r}")
        if threads is None:
            threads = default_threads().count
        if threads < 1:
            raise ParameterError(f"threads must be at least 1, not {threads}")
        library = library or open_library()
        if library is None:
            raise ParameterError(missing_notice())
        self.config, self.vocab_size, self.context, self.layers = (
            config, config.vocab_size, config.context, config.layers
        )  # fmt: skip
        self._whole: NativeRuntime | None = None
        self.threads, self.kv_dtype, self.variant = threads, kv_dtype, library.variant
        kept = _checked_rows(head_rows, config.vocab_size)
        self._features = {"hidden": -1} | {f"layer.{i}": i for i in range(config.layers)}
        loader = _Loader(library, checkpoint, WEIGHTS[weights], threads)
        packed = loader.decoder(config, kept)
        self.nbytes = loader.nbytes
        self._dtype = "float32" if weights == "f32" else "bfloat16"
        self._library, self._weights, self._float = library, packed, activations == "float"
        self._pass = DecoderPass(library, packed, self.kv_dtype, threads, float_activations=self._float)

    def with_layers(self, layers: Sequence[int], head: int = 0) -> NativeRuntime:
        """A runtime over some of this one's layers, which shares their weights in memory.

        Its passes work on this runtime's caches: they read and write the entries of their own layers and leave those
        of the others alone. ``head``: how many token ids, from 0 on, get a logit (0: all; the others get -inf). Its
        only feature is ``hidden``.
        """
        weights = self._weights
        part = copy.copy(self)
        chosen: dict[str, object] = {"layers": [weights.layers[n] for n in layers], "cache_layers": tuple(layers)}
        if 0 < head < weights.head.rows:
            chosen["head"] = first_rows(weights.head, head)
            ids = weights.head_ids
            chosen["head_ids"] = np.arange(head, dtype=np.int32) if ids is None else ids[:head]
        part._features = {"hidden": -1}
        part._weights = dataclasses.replace(weights, **chosen)  # type: ignore[arg-type]
        part._pass = DecoderPass(
            self._library, part._weights, self.kv_dtype, self.threads, float_activations=self._float
        )
        part._whole = self  # whose memory it borrows
        return part

    @property
    def kernel_seconds(self) -> float:
        """Seconds that all passes until now have spent in the kernels."""
        return self._pass.seconds

    def capabilities(self) -> Capabilities:
        """Trees, and rows whose bits depend on nothing else in the pass."""
        return Capabilities(True, self._dtype, True, frozenset(self._features))

    def new_cache(self) -> KVCache:
        """An empty cache for this model."""
        config = self.config
        return KVCache(config.layers, config.kv_heads, config.head_dim, self.kv_dtype)

    def forward(self, chunks: Sequence[Chunk], cache: KVCache, want: Sequence[str] = ()) -> Forward:
        """One pass over all rows of all chunks (see the Runtime protocol).

        Features: ``hidden`` ``[rows, hidden]``, the head's input; ``layer.N``, the residual stream after
        block N. Everything is checked before anything is written: ParameterError for a token id, parent or
        feature that does not exist, ContextError beyond the model's context, CacheError without room.
        """
        check_features(want, self._features)
        if cache.dtype != self.kv_dtype:
            raise CacheError(f"this runtime keeps keys and values in {self.kv_dtype}, the cache in {cache.dtype}")
        check_chunks(chunks, cache, self.vocab_size, self.context)
        if not chunks:
            return Forward([], {name: [] for name in want})
        tokens: list[int] = []
        wanted: list[int] = []
        counts, slots = [], []
        for chunk in chunks:
            rows = len(chunk.tokens)
            keys, values = cache.storage(chunk.slot)
            slots.append(SlotRows(rows, keys, values, cache.length(chunk.slot), chunk.parents))
            wanted += range(len(tokens) + chunk.logits_from, len(tokens) + rows)
            counts.append(max(0, rows - chunk.logits_from))
            tokens += chunk.tokens
        logits, tapped = self._pass.run(
            np.array(tokens, dtype=np.int32),
            slots,
            np.array(wanted, dtype=np.int32),
            taps=sorted({self._features[name] for name in want} - {-1}),
            hidden="hidden" in want,
        )
        for chunk in chunks:
            cache.advance(chunk.slot, len(chunk.tokens))
        ends = np.cumsum([slot.rows for slot in slots])[:-1]
        features = {name: np.split(tapped[self._features[name]], ends) for name in want}
        return Forward(np.split(logits, np.cumsum(counts)[:-1]), features)


def _checked_rows(head_rows: Array | None, vocab_size: int) -> Array | None:
    if head_rows is None:
        return None
    rows = np.unique(np.asarray(head_rows, dtype=np.int64))  # ascending
    if not rows.size or int(rows[0]) < 0 or int(rows[-1]) >= vocab_size:
        raise ParameterError(f"head_rows must be token ids of the vocabulary of {vocab_size}, and not none")
    return rows


class _Loader:
    """Packs a checkpoint's matrices one after the other. ``nbytes``: what a pass reads of them."""

    def __init__(self, library: Library, checkpoint: Checkpoint, kind: str | None, threads: int) -> None:
        self._library, self._kind, self._threads = library, kind, threads
        self._source = str(checkpoint.path)
        self._tensors: Mapping[str, StoredTensor] = checkpoint.tensors
        self.nbytes = 0

    def decoder(self, config: DecoderConfig, head_rows: Array | None) -> DecoderWeights:
        embedding_name, output_name = check_tensors(config, self._tensors, self._source)
        total = sum(t.data.nbytes for t in self._tensors.values())
        shown = total >= 1 << 28 and sys.stderr.isatty()
        with progress("packing weights", total, "B", shown=shown) as packed:
            layers = [self._layer(config, number, packed) for number in range(config.layers)]
            head = self._head(output_name, config.vocab_size, head_rows)
            stored = self._tensors[embedding_name]
            shared = embedding_name == output_name and head_rows is None and head.kind == stored.kind
            embedding = head if shared else self._embedding(stored, config.vocab_size)
        cosine, sine = rotary_tables(config.inv_freq, config.context, config.rope_scale)
        return DecoderWeights(
            layers=layers,
            embedding=embedding,
            final_norm=self._vector(tensor_names(config)["final_norm"]),
            head=head,
            head_ids=None if head_rows is None else head_rows.astype(np.int32),
            vocab=config.vocab_size,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
            cosine=cosine,
            sine=sine,
        )

    def _layer(self, config: DecoderConfig, number: int, packed: Callable[[int], object]) -> LayerWeights:
        matrices, vectors = {}, {}
        for role, name in tensor_names(config, number).items():
            stored = self._tensors[name]
            if role in MATRICES:
                matrices[role] = self._matrix(stored, stored.raw())
                packed(stored.data.nbytes)
            else:
                vectors[role] = self._vector(name)
        return LayerWeights(matrices, vectors)

    def _vector(self, name: str) -> Array:
        vector = self._tensors[name].load()
        self.nbytes += vector.nbytes
        return vector

    def _embedding(self, stored: StoredTensor, vocab_size: int) -> PackedMatrix:
        """In the file's own encoding, whatever the other matrices are rounded to: a pass reads one row a token."""
        raw = stored.raw(vocab_size)
        self._require_finite(stored, raw)
        name = f"{self._source}: tensor {stored.stored_name!r}"
        return pack(self._library, raw, stored.kind, stored.shape[1], threads=self._threads, name=name)

    def _head(self, name: str, vocab_size: int, kept: Array | None) -> PackedMatrix:
        """Only the rows of real tokens, or those kept: padding never gets a logit."""
        stored = self._tensors[name]
        raw = stored.raw(vocab_size) if kept is None else stored.raw()[kept]
        return self._matrix(stored, raw)

    def _matrix(self, stored: StoredTensor, raw: Array) -> PackedMatrix:
        """``raw``: uint8 [rows, bytes per row] of ``stored``."""
        name, columns = f"{self._source}: tensor {stored.stored_name!r}", stored.shape[1]
        self._require_finite(stored, raw)
        kind = self._kind
        keep = kind is None or kind == stored.kind or (kind in _FOUR_BITS and stored.kind in _FOUR_BITS)
        if not keep and kind in _SCALES and columns % 32:
            kind, keep = "BF16", stored.kind == "BF16"  # no whole number of blocks in a row
        if keep:
            packed = pack(self._library, raw, stored.kind, columns, threads=self._threads, name=name)
        else:
            packed = pack_float(self._library, self._decoded(stored, raw), kind, threads=self._threads, name=name)
        self.nbytes += packed.nbytes
        return packed

    def _decoded(self, stored: StoredTensor, raw: Array) -> Array:
        """``raw`` as floats [rows, columns]: 16-bit encodings as they are, others in float32."""
        columns = stored.shape[1]
        if stored.kind in ("BF16", "F16"):
            return np.ascontiguousarray(raw).view(np.uint16 if stored.kind == "BF16" else np.float16)
        return dequantize(self._library, np.ascontiguousarray(raw), stored.kind, columns, threads=self._threads)

    def _require_finite(self, stored: StoredTensor, raw: Array) -> None:
        """Raise ModelError when a value, or the scale of a block, is NaN or infinite: all exponent bits set."""
        if stored.kind in _SCALES:
            size, offsets = _SCALES[stored.kind]
            blocks = raw.reshape(raw.shape[0], -1, size)
            bad = any(bool(((blocks[..., at + 1] & 0x7C) == 0x7C).any()) for at in offsets)
        elif stored.kind in ("F32", "F16", "BF16"):
            exponent = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}[stored.kind]
            words = np.ascontiguousarray(raw).view(np.uint32 if stored.kind == "F32" else np.uint16)
            bad = bool(((words & exponent) == exponent).any())
        else:
            bad = False
        if bad:
            raise ModelError(
                f"{self._source}: tensor {stored.stored_name!r} holds NaN or infinite values; the file is damaged"
            )
