"""Configurations of which nothing may be dropped: a key that changes the arithmetic is read, or refused by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..core.errors import ModelError

ACTIVATIONS = ("silu", "swish")  # config.json's two names of the activation that all decoders here have

# A config.json holds any number of keys about training and software. One that nothing has read is refused when a word
# of its name is about arithmetic and no word is about something else. Biases and sizes are left out: the tensors there
# are and their shapes show whether they were understood.
_ARITHMETIC = """
    act activation alibi attention attn bidirectional cap causal centered clamp clip expert experts factor gate gating
    lora logit logits mamba moe mrope mup multiplier nope norm normalize ntk offset parallel position qk quantization
    rescale residual rope rotary routed router scalar scale scales scaling sink sinks sliding softcap softcapping
    softmax sparse sparsity ssm swiglu types window
"""
_ELSEWHERE = """
    aux bias degree dropout dtype efficient flash fp fused grad gradient impl implementation loss pdrop pipeline sdpa
    tensor xformers
"""
_WITH_WINDOW_ONLY = "max_window_layers"  # a sliding window is refused itself
# Where a key has no effect, if that is not when it is nothing; for other factors it is 1.
_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "causal": (None, True),
    "is_causal": (None, True),
    "use_rope": (None, True),
    "attention.causal": (True,),
    "position_embedding_type": (None, "rope", "rotary"),
    "attention_factor": (None, 1.0),
    "rope.scaling.attn_factor": (0.0, 1.0),
    "rope.scaling.yarn_attn_factor": (0.0, 1.0),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_beta_fast": (32.0,),
    "rope.scaling.yarn_beta_slow": (1.0,),
}


class Settings(Mapping[str, Any]):
    """A configuration that remembers which of its keys were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def refuse_unread(self, matters: Callable[[str], bool], where: str = "", prefix: str = "") -> None:
        """Raise ModelError for a key that begins with ``prefix``, was never asked for and has an effect.

        ``matters``: whether a key of this name, without the prefix, can have one. ``where`` begins the message.
        """
        for key, value in self._values.items():
            name = key[len(prefix) :]
            if key.startswith(prefix) and key not in self.read and matters(name) and not _no_effect(name, value):
                raise ModelError(
                    f"{where}{key} is {_short(value)}, which would change what the model computes: unsupported"
                )


def speaks_of_arithmetic(key: str) -> bool:
    """Whether the name of a config.json's key does."""
    words = set(re.findall("[a-z]+", key.lower()))
    if key.startswith("_") or key == _WITH_WINDOW_ONLY:
        return False
    return not words.isdisjoint(_ARITHMETIC.split()) and words.isdisjoint(_ELSEWHERE.split())


def _no_effect(key: str, value: Any) -> bool:
    if key in _NO_EFFECT:
        return value in _NO_EFFECT[key]
    if key == "layer_types":
        return set(value or ()) <= {"full_attention"}
    factor = re.search("factor|scale|scaling|multiplier", key) and not re.search("attn|attention|softmax", key)
    if factor and value == 1 and not isinstance(value, bool):
        return True
    return value is None or value in (False, 0, "", [], {}, *ACTIVATIONS)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
