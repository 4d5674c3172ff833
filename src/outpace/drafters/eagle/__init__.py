"""A small network continues the target's own features, and drafts a tree (EAGLE: Li et al., arXiv 2401.15077;
EAGLE-2: 2406.16858; EAGLE-3: 2503.01840).

The draft's row i stands for token i + 1 and the target's features of row i: it guesses token i + 2. What the target
has shown is read into a cache of its own, as far as the text goes; a round's tree is grown behind it, its guessed
states in the place of features, and dropped again. The tree is dynamic: each level expands the nodes that are most
likely to stand, and the best nodes under the row budget are submitted. See net.py for the checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import ParameterError
from ...core.protocols import Drafter, Parts
from ...core.torch_extra import require_torch

NEEDS_DRAFT = False


@dataclass(frozen=True)
class Config:
    gamma: int = 8  # nodes of the tree, at most
    heads: str = ""  # folder of the trained network
    depth: int = 5  # levels of the tree, at most
    width: int = 4  # nodes expanded a level, and children looked at of each; 1: a chain

    def __post_init__(self) -> None:
        if self.depth < 1 or self.width < 1:
            raise ParameterError(f"eagle's depth and width must be at least 1, not {self.depth} and {self.width}")


def create(config: Config, parts: Parts) -> Drafter:
    """Raises ParameterError where torch is not installed."""
    require_torch("the drafter 'eagle'")
    from . import drafter

    return drafter.create(config, parts)
