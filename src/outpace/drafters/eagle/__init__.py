"""A small network continues the target's own features, and drafts a tree (EAGLE: Li et al., arXiv 2401.15077;
EAGLE-2: 2406.16858; EAGLE-3: 2503.01840).

The draft's row i has token i + 1 and the target's features of row i, and drafts token i + 2. The rows of the text are
in a cache of its own. A round's tree is grown behind them, with drafted states in the place of features, and dropped
again. The tree is dynamic: each level expands the nodes that are most likely to be accepted, and the best nodes under
the row budget are proposed. See net.py for the checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import ParameterError
from ...core.protocols import Drafter, Parts, Requirements


@dataclass(frozen=True)
class Config:
    gamma: int = 8  # nodes of the tree, at most
    heads: str = ""  # folder of the trained network
    depth: int = 5  # levels of the tree, at most
    width: int = 4  # nodes expanded a level, and children looked at of each; 1: a chain

    def __post_init__(self) -> None:
        if self.depth < 1 or self.width < 1:
            raise ParameterError(f"eagle's depth and width must be at least 1, not {self.depth} and {self.width}")


def requires(config: Config) -> Requirements:
    return Requirements(torch=True)


def create(config: Config, parts: Parts) -> Drafter:
    from . import drafter  # here: it imports torch

    return drafter.create(config.heads, config.depth, config.width, parts)
