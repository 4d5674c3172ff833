"""Rotary position embeddings (Su et al., arXiv 2104.09864): frequencies from a configuration, with their scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..core.errors import ModelError
from .settings import Settings

# Keys of a scaling that say where it came from.
_ABOUT = ("finetuned", "original_max_position_embeddings")


def rotary_frequencies(hf_config: Mapping[str, Any], head_dim: int) -> tuple[tuple[float, ...], float]:
    """``head_dim / 2`` rotary frequencies in radians a position, and the factor of all cosines and sines.

    Reads ``rope_theta`` and ``rope_scaling`` or ``rope_parameters``, which holds both. Scalings: none, ``linear``,
    ``llama3`` and ``yarn``. ModelError for any other, for a key of a scaling that its kind has no use for, and where
    two places say different things: ignoring one gives wrong text silently.
    """
    given = {name: _spelled(name, hf_config.get(name) or {}) for name in ("rope_parameters", "rope_scaling")}
    said = [
        {k: v for k, v in part.items() if k != "rope_theta"} for part in given.values() if part.keys() - {"rope_theta"}
    ]
    if len(said) == 2 and said[0] != said[1]:
        raise ModelError("rope_parameters and rope_scaling say different things; keep one of them")
    thetas = {float(part["rope_theta"]) for part in (*given.values(), hf_config) if part.get("rope_theta") is not None}
    if len(thetas) > 1:
        raise ModelError(f"rope_theta has several values, {', '.join(map(str, sorted(thetas)))}; keep one of them")
    theta = thetas.pop() if thetas else 10000.0
    scaling = Settings(said[0] if said else {})
    kind = scaling.get("rope_type", "default")
    if any(float(part.get("partial_rotary_factor") or 1.0) != 1.0 for part in (hf_config, scaling)):
        raise ModelError("partial_rotary_factor other than 1 is not supported")
    plain = [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    try:
        frequencies, scale = _scaled(kind, plain, theta, scaling)
    except KeyError as missing:
        raise ModelError(f"rope_scaling {kind!r} lacks {missing}") from None
    scaling.refuse_unread(lambda key: key not in _ABOUT, f"rope_scaling {kind!r}: ")
    return tuple(frequencies), scale


def _spelled(name: str, scaling: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that have a value; ``rope_type`` where files from before it have ``type``."""
    held = {key: value for key, value in scaling.items() if value is not None}
    kinds = {held[key] for key in ("rope_type", "type") if key in held}
    if len(kinds) > 1:
        raise ModelError(f"{name} has rope_type {held['rope_type']!r} and type {held['type']!r}; keep one of them")
    held.pop("type", None)
    return held | ({"rope_type": kinds.pop()} if kinds else {})


def _scaled(kind: str, plain: list[float], theta: float, scaling: Mapping[str, Any]) -> tuple[list[float], float]:
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return [f / float(scaling["factor"]) for f in plain], 1.0
    if kind == "factors":  # rope_freqs.weight of a GGUF file
        return [f / float(divisor) for f, divisor in zip(plain, scaling["factors"], strict=True)], 1.0
    if kind == "llama3":
        return [_llama3(f, scaling) for f in plain], 1.0
    if kind == "yarn":
        return _yarn(plain, theta, scaling)
    raise ModelError(f"rope_scaling {kind!r} is not supported; known: default, linear, llama3, yarn")


def _llama3(frequency: float, scaling: Mapping[str, Any]) -> float:
    """Llama 3.1's scaling: slow frequencies are divided by ``factor``, fast ones kept, with a ramp between."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * frequency / (2 * math.pi)
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return kept * frequency + (1 - kept) * frequency / float(scaling["factor"])


def _yarn(plain: list[float], theta: float, scaling: Mapping[str, Any]) -> tuple[list[float], float]:
    """YaRN (Peng et al., arXiv 2309.00071, section 3): the same ramp, linear in the frequency's number.

    It runs between the frequencies that turn ``beta_fast`` and ``beta_slow`` times over the original context. Cosines
    and sines grow by ``attention_factor``, which is the temperature of the attention (equation 22).
    """
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    dim = 2 * len(plain)
    low, high = (
        dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1))
    )
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high += 0.001 if high == low else 0
    divided = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(len(plain))]
    frequencies = [(1 - d) * f + d * f / factor for f, d in zip(plain, divided, strict=True)]
    scale, over, under = (scaling.get(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if scale is None:
        growth = 0.1 * math.log(max(factor, 1.0))
        over, under = (float(over), float(under)) if over and under else (1.0, 0.0)
        scale = (over * growth + 1) / (under * growth + 1)
    return frequencies, float(scale)
