"""From a path to a model that runs: files, configuration, checks, weights."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..catalogue import name_of
from ..core.errors import ModelError, ParameterError
from ..core.fork import check_process
from ..core.load_options import BACKENDS, WEIGHTS
from ..core.progress import progress
from ..core.protocols import Runtime
from ..core.torch_extra import require_torch
from ..core.types import Array
from ..families.config import DecoderConfig
from ..families.family import decoder_config
from ..families.table import check_tensors
from ..files.checkpoint import Checkpoint, StoredTensor, open_checkpoint
from ..kernels.native import missing_notice, open_library
from ..text.tokenizer import Tokenizer
from .native import NativeRuntime

MOST, MOST_LAYERS = 1 << 28, 10_000  # sizes beyond these are a damaged file, for which memory would be allocated
HEAD_IDS = 65536  # token ids that a draft's output head keeps of a vocabulary twice as large
BIG = 200_000_000  # parameters from which "auto" halves the bytes a pass reads

logger = logging.getLogger("outpace")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run. ``weights`` says what its weights are, ``nbytes`` how many bytes a pass reads of
    them: all in memory but for an embedding that is not the output matrix, too."""

    runtime: Runtime
    tokenizer: Tokenizer
    end_tokens: frozenset[int]
    chat_template: str | None
    config: DecoderConfig
    name: str
    path: Path
    nbytes: int
    weights: str
    backend: str


def load_model(
    path: str | Path,
    *,
    weights: str = "auto",
    backend: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    head_rows: Array | None = None,
) -> LoadedModel:
    """Load a GGUF file or a Hugging Face directory.

    ``weights``: "file" runs every matrix in the file's own encoding, "q8", "q4", "bf16" and "f32" round it at
    load; "auto" is "file" for a GGUF file, and otherwise bf16 from 200 million parameters on, else f32.
    ``backend``: "native" (the C kernels), "torch" (bf16 and f32 only), or "auto": native where it is built.
    ``threads``: None: as many as :func:`outpace.core.threads.default_threads` says. Torch has one number for the
    whole process.
    ``context`` lowers the model's own context length.
    ``head_rows``: token ids that a draft's output head keeps (native only; all others get no probability).

    Raises ModelError naming file and tensor, ParameterError for an impossible argument. Shows progress on
    stderr while reading a big model, when that is a terminal.
    """
    return _load(_open(path, weights, backend), weights, backend, threads, context, head_rows)


def _open(path: str | Path, weights: str, backend: str) -> Checkpoint:
    """The files at ``path``, once the arguments are known to make sense."""
    check_process()
    _one_of("weights", weights, WEIGHTS)
    _one_of("backend", backend, BACKENDS)
    return open_checkpoint(path)


def _parameters(checkpoint: Checkpoint) -> int:
    return sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values())


def _load(
    checkpoint: Checkpoint,
    weights: str,
    backend: str,
    threads: int | None,
    context: int | None,
    head_rows: Array | None,
) -> LoadedModel:
    config = checked_config(checkpoint, context)
    parameters = _parameters(checkpoint)
    native = backend != "torch" and open_library() is not None
    if backend == "native" and not native:
        raise ParameterError(missing_notice())
    if not native and backend == "auto":
        require_torch("running without the C kernels", missing_notice())
        _notice_once(f"{missing_notice()} Until then the slower torch path runs.")
    if weights == "auto":
        weights = "file" if native and checkpoint.format == "gguf" else "bf16" if parameters >= BIG else "f32"
    runtime: Runtime
    if native:
        runtime = made = NativeRuntime(checkpoint, config, weights=weights, threads=threads, head_rows=head_rows,
                                       kv_dtype="float32" if weights == "f32" else "bfloat16")  # fmt: skip
        nbytes = made.nbytes
    else:
        if weights not in ("bf16", "f32") or head_rows is not None:
            asked = "a pruned head" if head_rows is not None else f"weights {weights!r}"
            raise ParameterError(f"{asked} needs the native kernels; the torch backend runs whole bf16 and f32 models")
        runtime, nbytes = _torch_runtime(checkpoint, config, weights, parameters, threads)
    return LoadedModel(
        runtime=runtime,
        tokenizer=checkpoint.tokenizer,
        end_tokens=checkpoint.end_tokens,
        chat_template=checkpoint.chat_template,
        config=config,
        name=name_of(checkpoint.path),
        path=checkpoint.path,
        nbytes=nbytes,
        weights=weights,
        backend="native" if native else "torch",
    )


def load_draft(
    path: str | Path,
    *,
    weights: str = "auto",
    head: int | None = None,
    backend: str = "auto",
    threads: int | None = None,
) -> LoadedModel:
    """Load a model to draft with: as cheap as its acceptance rate allows. No answer's distribution depends on it.

    ``weights``: as for :func:`load_model`, but "auto" rounds a big model to q4_0, which has a tenth fewer bytes to
    read than q4. ``head``: keep the first so many token ids of the output head, and the special ones; None keeps 65536
    when there are at least twice as many (a byte-pair vocabulary lists frequent tokens first), 0 keeps all.
    Both need the native kernels.
    """
    native = backend != "torch" and open_library() is not None
    kept = None
    check_head(head)
    checkpoint = _open(path, weights, backend)
    if native:
        if weights == "auto" and _parameters(checkpoint) >= BIG:
            weights = "q4_0"
        kept = kept_head(checkpoint.tokenizer, checkpoint.end_tokens, head)
    elif head:
        raise ParameterError("a pruned draft head needs the native kernels")
    return _load(checkpoint, weights, backend, threads, None, kept)


def check_head(head: int | None) -> None:
    """Raise ParameterError unless this is a number of token ids for :func:`kept_head`."""
    if head is not None and (isinstance(head, bool) or not isinstance(head, int) or head < 0):
        raise ParameterError(f"draft_head must be a number of token ids, or 0 for all, not {head!r}")


def kept_head(tokenizer: Tokenizer, end_tokens: frozenset[int], head: int | None) -> Array | None:
    """Ids that a draft's output head keeps, ascending, for ``head`` as in :func:`load_draft`; None: all of them."""
    check_head(head)
    size = tokenizer.size
    if head is None:
        head = HEAD_IDS if size >= 2 * HEAD_IDS else 0
    if not 0 < head < size:
        return None
    return np.array(sorted({*range(head), *tokenizer.special_ids, *end_tokens}))


def _torch_runtime(
    checkpoint: Checkpoint, config: DecoderConfig, weights: str, parameters: int, threads: int | None
) -> tuple[Runtime, int]:
    """The runtime, and the bytes that a pass reads. Raises ParameterError where torch is not installed."""
    require_torch("the torch backend")
    import torch

    from .torch_decoder import Decoder
    from .torch_runtime import TorchRuntime
    from .torch_tensors import limit_threads

    limit_threads(threads)
    dtype = torch.float32 if weights == "f32" else torch.bfloat16
    shown = parameters >= BIG and sys.stderr.isatty()
    with progress(f"loading {checkpoint.path.name}", len(checkpoint.tensors), "tensor", shown=shown) as loaded:
        decoder = Decoder.from_tensors(config, _Counted(checkpoint.tensors, loaded), dtype, str(checkpoint.path))
    return TorchRuntime(decoder), decoder.nbytes


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ParameterError(f"{name} must be one of {', '.join(known)}, not {value!r}")


@functools.cache
def _notice_once(text: str) -> None:
    logger.warning("%s", text)


def checked_config(checkpoint: Checkpoint, context: int | None = None) -> DecoderConfig:
    """The decoder that the files describe, all names and shapes checked: what any runtime starts from.

    ``vocab_size`` is the tokenizer's and ``tied`` whether one matrix really serves as embedding and output.
    """
    source = str(checkpoint.path)
    try:
        config = decoder_config(checkpoint.hf_config)
        _require_possible(config)
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from None
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise ModelError(f"{source}: its configuration has an impossible value: {error}") from None
    if not 0 < checkpoint.tokenizer.size <= config.vocab_rows:
        raise ModelError(
            f"{source}: the tokenizer has {checkpoint.tokenizer.size} tokens but the model only "
            f"{config.vocab_rows} rows"
        )
    if context is not None:
        if isinstance(context, bool) or not isinstance(context, int) or not 1 <= context <= config.context:
            raise ParameterError(f"context must lie between 1 and the model's {config.context}, not {context!r}")
        config = dataclasses.replace(config, context=context)
    embedding, output = check_tensors(config, checkpoint.tensors, source, gguf=checkpoint.format == "gguf")
    return dataclasses.replace(config, vocab_size=checkpoint.tokenizer.size, tied=embedding == output)


def _require_possible(config: DecoderConfig) -> None:
    for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab_rows", "context"):
        size = getattr(config, name)
        if not 1 <= size <= MOST:
            raise ModelError(f"{name} is {size}, which no model has")
    if config.layers > MOST_LAYERS:
        raise ModelError(f"{config.layers} layers are more than any model has ({MOST_LAYERS} is taken for the limit)")
    if not 0 < config.norm_eps < 1:
        raise ModelError(f"rms_norm_eps is {config.norm_eps}, not a small positive number")
    if not all(isinstance(f, float) and 0 < f < math.inf for f in config.inv_freq):
        raise ModelError("rope_theta or rope_scaling give rotary frequencies that are not positive numbers")


class _Counted(Mapping[str, StoredTensor]):
    """Tensors that move a progress bar when they are taken."""

    def __init__(self, tensors: Mapping[str, StoredTensor], loaded: Callable[[int], object]) -> None:
        self._tensors, self._loaded = tensors, loaded

    def __getitem__(self, name: str) -> StoredTensor:
        self._loaded(1)
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
