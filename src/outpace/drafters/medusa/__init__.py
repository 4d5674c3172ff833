"""Extra heads on the target's last hidden state guess the tokens behind the next one, each by itself
(Medusa, Cai et al., arXiv 2401.10774, sections 2.1 and 2.3.3).

Head k is a stack of residual blocks x + SiLU(W x + b) and an output matrix, and guesses k + 2 tokens ahead of the row
that it looks at: of the row that the pending token was drawn from, head 0 guesses the token behind the pending one.
Since the heads do not see each other's guesses, a path's estimate is the product of its tokens' estimates: the best
tree under the row budget is known at once, either of this round's probabilities or, ``static``, of the accuracies
that training measured. Its nodes are chosen, not drawn.

``heads`` is a folder in the original layout: config.json with ``medusa_num_heads`` and ``medusa_num_layers``, tensors
``{head}.{block}.linear.weight``, ``.bias`` and ``{head}.{blocks}.weight`` (also behind ``medusa_head.``), as
safetensors or as ``medusa_lm_head.pt``. Where no head has an output matrix, all use the target's: a small file.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.protocols import Drafter, Parts
from ...core.torch_extra import require_torch

NEEDS_DRAFT = False


@dataclass(frozen=True)
class Config:
    gamma: int = 8  # nodes of the tree, at most
    heads: str = ""  # folder of the trained heads
    static: int = 0  # 1: a fixed tree from the accuracies in config.json, not one from each round's probabilities


def create(config: Config, parts: Parts) -> Drafter:
    """Raises ParameterError where torch is not installed."""
    require_torch("the drafter 'medusa'")
    from . import drafter

    return drafter.create(config, parts)
