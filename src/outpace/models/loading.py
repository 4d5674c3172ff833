"""From a path to a model that runs: files, configuration, checks, weights."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from outpace.core.errors import ModelError, ParameterError
from outpace.core.protocols import Runtime
from outpace.models.checkpoint import Checkpoint, StoredTensor, open_checkpoint
from outpace.models.config import DecoderConfig
from outpace.models.decoder import Decoder, check_tensors
from outpace.models.families import decoder_config
from outpace.models.runtime import TorchRuntime
from outpace.models.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BIG = 200_000_000  # parameters from which "auto" halves the bytes a pass reads


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run. ``nbytes`` counts the bytes of its weights in memory."""

    runtime: Runtime
    tokenizer: Tokenizer
    end_tokens: frozenset[int]
    chat_template: str | None
    config: DecoderConfig
    name: str
    path: Path
    nbytes: int


def load_model(path: str | Path, *, dtype: str = "auto", context: int | None = None) -> LoadedModel:
    """Load a GGUF file or a Hugging Face directory into the torch runtime.

    ``dtype``: "float32", "bfloat16", or "auto" (bfloat16 from 200 million parameters on). ``context`` lowers
    the model's own context length. Raises ModelError naming file and tensor, ParameterError for an impossible
    argument. Shows progress on stderr while reading a big model, when that is a terminal.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ParameterError(f"dtype must be auto, {' or '.join(DTYPES)}, not {dtype!r}")
    checkpoint = open_checkpoint(path)
    config = checked_config(checkpoint, context)
    parameters = sum(math.prod(tensor.shape) for tensor in checkpoint.tensors.values())
    kind = DTYPES.get(dtype, torch.bfloat16 if parameters >= BIG else torch.float32)
    name = checkpoint.path.stem if checkpoint.path.is_file() else checkpoint.path.resolve().name
    with tqdm(
        total=len(checkpoint.tensors),
        desc=f"loading {name}",
        unit="tensor",
        leave=False,
        disable=not sys.stderr.isatty() or parameters < BIG,
    ) as bar:
        decoder = Decoder.from_tensors(config, _Counted(checkpoint.tensors, bar), kind, str(checkpoint.path))
    return LoadedModel(
        runtime=TorchRuntime(decoder),
        tokenizer=checkpoint.tokenizer,
        end_tokens=checkpoint.end_tokens,
        chat_template=checkpoint.chat_template,
        config=config,
        name=name,
        path=checkpoint.path,
        nbytes=decoder.nbytes,
    )


def checked_config(checkpoint: Checkpoint, context: int | None = None) -> DecoderConfig:
    """The decoder that the files describe, all names and shapes checked: what any runtime starts from.

    ``vocab_size`` is the tokenizer's and ``tied`` whether one matrix really serves as embedding and output.
    """
    source = str(checkpoint.path)
    try:
        config = decoder_config(checkpoint.hf_config)
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from None
    if not 0 < checkpoint.tokenizer.size <= config.vocab_rows:
        raise ModelError(
            f"{source}: the tokenizer has {checkpoint.tokenizer.size} tokens but the model only "
            f"{config.vocab_rows} rows"
        )
    if context is not None:
        if isinstance(context, bool) or not isinstance(context, int) or not 1 <= context <= config.context:
            raise ParameterError(f"context must lie between 1 and the model's {config.context}, not {context!r}")
        config = dataclasses.replace(config, context=context)
    embedding, output = check_tensors(config, checkpoint.tensors, source)
    return dataclasses.replace(config, vocab_size=checkpoint.tokenizer.size, tied=embedding == output)


class _Counted(Mapping[str, StoredTensor]):
    """Tensors that move a progress bar when they are taken."""

    def __init__(self, tensors: Mapping[str, StoredTensor], bar: tqdm) -> None:
        self._tensors, self._bar = tensors, bar

    def __getitem__(self, name: str) -> StoredTensor:
        self._bar.update()
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
