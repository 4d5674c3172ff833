"""Reading trained heads (Medusa, EAGLE): a folder with config.json and safetensors, checked before use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch
from torch import Tensor

from ...core.errors import DrafterError, ModelError
from ...families.table import KNOWN, tensor_names
from ...files.checkpoint import open_checkpoint
from ...files.safetensors_file import read_json
from ...runtimes.loading import LoadedModel
from ...runtimes.torch_tensors import load_tensor

BIG = 50_000_000  # values from which a matrix is kept in 16 bits; chosen by hand
SHIPPED = Path(__file__).parents[2] / "catalogue" / "tiny"  # heads for the tiny target


def folder(heads: str, drafter: str, model: LoadedModel | None) -> Path:
    """The folder that ``heads`` names; empty: the heads shipped for the tiny target. Raises DrafterError."""
    if heads:
        return Path(heads)
    if model is not None and model.path.resolve() == SHIPPED / "target":
        return SHIPPED / drafter
    flag = f"--{drafter}-heads"
    raise DrafterError(f"the drafter {drafter!r} needs heads trained for this target: name their folder with {flag}")


def read_heads(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and all tensors of a folder: of its safetensors files or, where it has none, of the pickled files
    that the first public heads came in. Raises ModelError naming the file: missing, damaged, more than tensors."""
    if not path.is_dir():
        raise ModelError(f"{path}: no such folder of heads")
    config = read_json(path / "config.json")
    if config is None:
        raise ModelError(f"{path}: config.json is missing")
    files = sorted(path.glob("*.safetensors"))
    pickled = [] if files else sorted(file for file in path.iterdir() if file.suffix in (".bin", ".pt"))
    if not files and not pickled:
        raise ModelError(f"{path}: no safetensors file")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            with safetensors.safe_open(file, framework="pt") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # not a dict
        except (safetensors.SafetensorError, OSError) as error:
            raise ModelError(f"{file}: not a whole safetensors file ({error}); fetch it again") from error
    for file in pickled:
        tensors |= _unpickled(file)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ModelError(f"{path}: tensor {name} holds NaN or infinite values")
    return config, tensors


def _unpickled(file: Path) -> dict[str, Tensor]:
    """Tensors of a pickled file, read by torch's restricted unpickler, which builds tensors and runs nothing."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):  # CVE-2025-32434
        raise ModelError(f"{file} is pickled, and only torch 2.6 or later reads such files safely; upgrade torch")
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle fails in any way there is
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(f"{file}: not a file of tensors and nothing else ({reason}); it is not loaded") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ModelError(f"{file}: not a dictionary of tensors")
    return found


def check_shapes(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Raise ModelError unless ``tensors`` are exactly those of ``shapes``."""
    for name, shape in shapes.items():
        if name not in tensors:
            raise ModelError(f"{source} lacks tensor {name}")
        if tuple(tensors[name].shape) != shape:
            raise ModelError(f"{source}: tensor {name} has shape {tuple(tensors[name].shape)}, expected {shape}")
    surplus = sorted(set(tensors) - set(shapes))
    if surplus:
        raise ModelError(f"{source} holds tensor {surplus[0]} (of {len(surplus)}), which these heads have no use for")


def weight(tensor: Tensor) -> Tensor:
    """A matrix as it is kept: bfloat16 when big, else float32; float64, which only toys have, stays."""
    return tensor.to(torch.bfloat16) if tensor.numel() >= BIG else wide(tensor)


def wide(tensor: Tensor) -> Tensor:
    """In the dtype of activations."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def target_matrix(model: LoadedModel | None, role: Literal["embedding", "head"], what: str) -> Tensor:
    """The target's embedding or output matrix, ``[vocab_rows, hidden]``, from its files.

    Raises ModelError when there is no target to take it from.
    """
    if model is None:
        raise ModelError(f"{what} takes {KNOWN[role].hf} from the target, and there is none")
    stored, called = open_checkpoint(model.path).tensors, tensor_names(model.config)
    other = "head" if role == "embedding" else "embedding"
    found = stored.get(called[role]) or stored[called[other]]  # a tied model may store one
    rows, columns = found.shape
    return load_tensor(found, torch.bfloat16 if rows * columns >= BIG else torch.float32)
