"""Some of the target's own layers draft for it (Draft & Verify, Zhang et al., arXiv 2309.08168).

They share the target's weights and its cache (see common/own_cache.py): the draft costs no memory. Which layers may be
left out is a property of the model. A calibration (choice.py) finds it when none are named.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.errors import DrafterError, ParameterError
from ...core.protocols import Drafter, Parts, Requirements
from ...runtimes.loading import HEAD_IDS, check_head
from ..common.own_cache import OwnCacheDraft
from .choice import Layered, choose_layers

logger = logging.getLogger("outpace")


@dataclass(frozen=True)
class Config:
    gamma: int = 3  # tokens drafted a round
    without: str = ""  # layers to leave out, such as "7,9,10"; when empty a calibration chooses them
    head: int = HEAD_IDS  # token ids that the draft's output head keeps; 0: all

    def __post_init__(self) -> None:
        check_head(self.head)


def requires(config: Config) -> Requirements:
    return Requirements()


def create(config: Config, parts: Parts) -> Drafter:
    target = parts.target
    if not isinstance(target, Layered):
        raise DrafterError("the drafter 'layer_skip' needs a decoder-only target")
    if config.without:
        left_out: Sequence[int] = _numbers(config.without, target.layers)
    else:
        left_out = choose_layers(parts.target_model, head=config.head, tell=_tell).left_out
    kept = [layer for layer in range(target.layers) if layer not in left_out]
    return OwnCacheDraft(target.with_layers(kept, config.head))


def _numbers(text: str, layers: int) -> list[int]:
    """The layers that ``text`` names. Raises ParameterError unless they exist and leave some over."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ParameterError(f"layer_skip's without must be layer numbers such as 7,9,10, not {text!r}") from None
    if numbers[0] < 0 or numbers[-1] >= layers or len(numbers) == layers:
        raise ParameterError(f"layer_skip can leave out some of the layers 0 to {layers - 1}, not {text!r}")
    return numbers


def _tell(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr)
    else:
        logger.info("%s", line)
