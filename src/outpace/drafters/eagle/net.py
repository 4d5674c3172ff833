"""The EAGLE draft network: one decoder layer over (embedding of a token, feature of the row before it).

EAGLE 1 and 2 (Li et al., arXiv 2401.15077, figure 6; 2406.16858): ``fc`` mixes embedding and feature, a layer without
input norm follows, and its output estimates the target's next last hidden state: the target's own head reads it.
EAGLE 3 (arXiv 2503.01840, figure 5): ``fc`` mixes three layers of the target into a state; the layer sees the norms of
embedding and state side by side; its output is the next state, which a head over a part of the vocabulary reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.errors import ModelError
from ...families.config import DecoderConfig
from ...families.family import read_config
from ...runtimes.torch_linear import Linear
from ..common.heads import check_shapes, weight, wide

# What each layout calls the layer, and the mixing matrix.
_PREFIXES = {"midlayer.": "layer.", "layers.0.": "layer.", "transformer.": "layer.", "fusion_fc.": "fc."}
# A speculators config says only what differs from these.
_LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000}
_LLAMA |= {"max_position_embeddings": 2048}
Attend = Callable[[Tensor], Tensor]
"""From the layer's queries, keys and values ``[n, (heads + 2 kv_heads) * head_dim]`` to what it attends to,
``[n, heads * head_dim]``."""


@dataclass
class EagleNet:
    """Weights and forward pass. ``taps``: the target's features that are read, in order."""

    config: DecoderConfig
    taps: tuple[str, ...]
    embedding: Tensor  # [vocab_rows, hidden]
    fc: Linear  # 1, 2: 2 hidden -> hidden; 3: features -> hidden
    qkv: Linear
    o: Linear
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear
    down: Linear
    head: Linear
    third: bool  # EAGLE 3; what follows is its own
    norm_before_residual: bool = False
    embedding_norm: Tensor | None = None  # [hidden]
    state_norm: Tensor | None = None  # [hidden]
    head_norm: Tensor | None = None  # [hidden]
    draft_ids: Tensor | None = None  # [draft_vocab] int64: the token of each of the head's rows

    @property
    def dtype(self) -> torch.dtype:
        """Of the states."""
        return self.mlp_norm.dtype

    def enter(self, features: Tensor) -> Tensor:
        """``[n, all taps' widths]`` of the target -> ``[n, hidden]`` states."""
        return self.fc(features) if self.third else features

    def forward(self, tokens: Tensor, states: Tensor, attend: Attend) -> Tensor:
        """States ``[n, hidden]`` behind ``tokens`` ``[n]``, each from the state of the row before its token."""
        config, eps, shape = self.config, self.config.norm_eps, (self.config.hidden,)
        embedded = F.embedding(tokens, self.embedding).to(states.dtype)
        if self.third:
            normed = F.rms_norm(states, shape, self.state_norm, eps)
            x = normed if self.norm_before_residual else states
            seen = torch.cat((F.rms_norm(embedded, shape, self.embedding_norm, eps), normed), -1)
        else:
            x = seen = self.fc(torch.cat((embedded, states), -1))
        x = x + self.o(attend(self.qkv(seen)))
        gate, up = self.gate_up(F.rms_norm(x, (config.hidden,), self.mlp_norm, eps)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)

    def head_logits(self, states: Tensor) -> Tensor:
        """``[n, head rows]`` after ``states`` ``[n, hidden]``."""
        if self.head_norm is not None:
            states = F.rms_norm(states, (self.config.hidden,), self.head_norm, self.config.norm_eps)
        return self.head(states)

    def logits(self, states: Tensor, vocab_size: int) -> Tensor:
        """``[n, vocab_size]``: -inf for tokens that the head does not know."""
        known = self.head_logits(states)
        if self.draft_ids is None:
            return known[:, :vocab_size]
        full = known.new_full((states.shape[0], vocab_size), -torch.inf)
        full[:, self.draft_ids] = known
        return full


def build_net(
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    source: str,
    *,
    layers: int | None,
    vocab_size: int,
    embedding: Callable[[], Tensor],
    output: Callable[[], Tensor],
) -> EagleNet:
    """The network of a checkpoint: SafeAILab's layouts of EAGLE 1, 2 and 3, or a ``speculators`` folder.

    ``layers``: the target's, from which EAGLE 3's default taps are counted. ``embedding``, ``output``: the target's
    matrices ``[vocab_rows, hidden]``, where the checkpoint has none. Raises ModelError naming ``source``: a setting
    or variant that is not supported, tensors missing, surplus or of a wrong shape.
    """
    held = {_renamed(name): tensor for name, tensor in tensors.items()}
    third = "layer.hidden_norm.weight" in held
    config = _config(settings, source)
    taps = _taps(settings, layers, source) if third else ("hidden",)
    if "embed_tokens.weight" not in held:
        held["embed_tokens.weight"] = embedding()
    if "lm_head.weight" not in held and "d2t" not in held:
        held["lm_head.weight"] = output()
    ids = _draft_ids(held, vocab_size, source)
    shapes = _shapes(config, held, third, ids)
    check_shapes(held, shapes, source)
    for name, rows in (("embed_tokens.weight", vocab_size), ("lm_head.weight", 0 if ids is not None else vocab_size)):
        if held[name].shape[0] < rows:
            raise ModelError(f"{source}: {name} has {held[name].shape[0]} rows, but the target {vocab_size} tokens")

    def linear(*names: str) -> Linear:
        weights = torch.cat([weight(held[f"{name}.weight"]) for name in names])
        biased = f"{names[0]}.bias" in held
        return Linear(weights, torch.cat([wide(held[f"{name}.bias"]) for name in names]) if biased else None)

    def norm(name: str) -> Tensor:
        return wide(held[f"{name}.weight"])

    attention = "layer.self_attn."
    return EagleNet(
        config=config,
        taps=taps,
        embedding=weight(held["embed_tokens.weight"]),
        fc=linear("fc"),
        qkv=linear(*(f"{attention}{part}_proj" for part in "qkv")),
        o=linear(f"{attention}o_proj"),
        mlp_norm=norm("layer.post_attention_layernorm"),
        gate_up=linear("layer.mlp.gate_proj", "layer.mlp.up_proj"),
        down=linear("layer.mlp.down_proj"),
        head=linear("lm_head"),
        third=third,
        norm_before_residual=bool(settings.get("norm_before_residual", False)),
        embedding_norm=norm("layer.input_layernorm") if third else None,
        state_norm=norm("layer.hidden_norm") if third else None,
        head_norm=norm("norm") if third else None,
        draft_ids=ids,
    )


def _renamed(name: str) -> str:
    for theirs, ours in _PREFIXES.items():
        if name.startswith(theirs):
            return ours + name[len(theirs) :]
    return name


def _config(settings: Mapping[str, Any], source: str) -> DecoderConfig:
    kind = settings.get("speculators_model_type")
    if kind not in (None, "eagle", "eagle3"):
        raise ModelError(f"{source}: a speculator of type {kind!r} is not an EAGLE one")
    if settings.get("layernorms"):
        raise ModelError(f"{source}: EAGLE with extra layer norms (HASS) is not supported")
    inner = _LLAMA | dict(settings.get("transformer_layer_config") or {}) if kind else dict(settings)
    inner = {"model_type": "llama", "rms_norm_eps": 1e-6} | inner
    if inner.get("num_hidden_layers", 1) != 1:
        raise ModelError(f"{source}: {inner['num_hidden_layers']} layers; only a draft of one layer is supported")
    try:
        return read_config(inner | {"num_hidden_layers": 1})
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from None
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise ModelError(f"{source}: its configuration has an impossible value: {error}") from None


def _taps(settings: Mapping[str, Any], layers: int | None, source: str) -> tuple[str, ...]:
    """EAGLE 3's features. Its layer ids name the block that *reads* the stream: id i is what block i - 1 left."""
    ids = settings.get("eagle_aux_hidden_state_layer_ids")
    ids = ids or (settings.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if ids is None and layers is not None:
        ids = [2, layers // 2, layers - 3]
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) and 1 <= i <= (layers or i) for i in ids):
        raise ModelError(f"{source}: eagle_aux_hidden_state_layer_ids is {ids!r}, not layers that this target has")
    return tuple(f"layer.{i - 1}" for i in ids)


def _draft_ids(held: dict[str, Tensor], vocab_size: int, source: str) -> Tensor | None:
    """Takes ``d2t`` and ``t2d`` out: a draft id's token is the id plus d2t's entry."""
    offsets, known = held.pop("d2t", None), held.pop("t2d", None)
    if offsets is None:
        return None
    ids = torch.arange(offsets.numel()) + offsets.long().flatten()
    fine = 0 < ids.unique().numel() == ids.numel() and int(ids.min()) >= 0 and int(ids.max()) < vocab_size
    if fine and known is not None:
        fine = known.numel() > int(ids.max()) and bool(known.bool()[ids].all())
    if not fine:
        raise ModelError(f"{source}: d2t does not name different tokens of the target's {vocab_size}, as t2d has them")
    return ids


def _shapes(
    config: DecoderConfig, held: Mapping[str, Tensor], third: bool, ids: Tensor | None
) -> dict[str, tuple[int, ...]]:
    hidden, wide, queries = config.hidden, config.intermediate, config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    seen = 2 * hidden if third else hidden  # what the layer looks at
    features = held["fc.weight"].shape[-1] if third and "fc.weight" in held else 2 * hidden
    layer = {
        "self_attn.q_proj": (queries, seen), "self_attn.k_proj": (keys, seen), "self_attn.v_proj": (keys, seen),
        "self_attn.o_proj": (hidden, queries), "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, features)}
    for name, shape in layer.items():
        shapes[f"layer.{name}.weight"] = shape
        if "self_attn" in name and f"layer.{name}.bias" in held:
            shapes[f"layer.{name}.bias"] = shape[:1]
    if "fc.bias" in held:
        shapes["fc.bias"] = (hidden,)
    norms = ("layer.input_layernorm", "layer.hidden_norm", "norm") if third else ()
    for name in ("layer.post_attention_layernorm", *norms):
        shapes[f"{name}.weight"] = (hidden,)
    shapes["embed_tokens.weight"] = (held["embed_tokens.weight"].shape[0], hidden)
    rows = held["lm_head.weight"].shape[0] if ids is None else ids.numel()
    shapes["lm_head.weight"] = (rows, hidden)
    return shapes
