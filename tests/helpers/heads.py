"""Toy heads in folders, as a drafter's ``heads`` option names them."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch import Tensor

_FOLDERS = Path(tempfile.mkdtemp(prefix="outpace-heads-"))


def write_heads(folder: Path, settings: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Path:
    """A folder with config.json and model.safetensors."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(settings)))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def medusa_checkpoint(hidden: int, vocab_rows: int, heads: int = 3, blocks: int = 1) -> tuple[dict, dict[str, Tensor]]:
    """config.json and tensors of random heads in the original layout."""
    import torch

    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for head in range(heads):
        for block in range(blocks):
            tensors[f"{head}.{block}.linear.weight"] = torch.randn(hidden, hidden, generator=generator) / hidden**0.5
            tensors[f"{head}.{block}.linear.bias"] = torch.randn(hidden, generator=generator)
        tensors[f"{head}.{blocks}.weight"] = torch.randn(vocab_rows, hidden, generator=generator) / hidden**0.5
    return {"medusa_num_heads": heads, "medusa_num_layers": blocks}, tensors


@functools.cache
def toy_folder(drafter: str, vocab_size: int) -> Path | None:
    """Heads for a toy of ``vocab_size`` tokens; None for a drafter that takes none. Skips the test without torch."""
    if drafter not in ("medusa", "eagle"):
        return None
    pytest.importorskip("torch")
    from outpace.audit.heads import toy_checkpoint

    if drafter == "medusa":
        return write_heads(_FOLDERS / f"medusa-{vocab_size}", *medusa_checkpoint(vocab_size, vocab_size))
    return write_heads(_FOLDERS / f"eagle-{vocab_size}", *toy_checkpoint(vocab_size))
