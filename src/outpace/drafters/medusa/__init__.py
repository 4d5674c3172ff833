"""Extra heads on the target's last hidden state draft the tokens behind the next one, each by itself
(Medusa, Cai et al., arXiv 2401.10774, sections 2.1 and 2.3.3).

Head k is a stack of residual blocks x + SiLU(W x + b) and an output matrix, and drafts the token k + 2 places ahead of
the row that it looks at: of the row that the pending token was drawn from, head 0 drafts the token behind the pending
one. Since no head sees what another one drafts, a path's estimate is the product of its tokens' estimates. So the best
tree under the row budget is known at once, either from this round's probabilities or, ``static``, from the accuracies
that training measured. Its nodes are chosen, not drawn.

``heads`` is a folder in the original layout: config.json with ``medusa_num_heads`` and ``medusa_num_layers``, tensors
``{head}.{block}.linear.weight``, ``.bias`` and ``{head}.{blocks}.weight`` (also behind ``medusa_head.``), as
safetensors or as ``medusa_lm_head.pt``. Where no head has an output matrix, all use the target's: a small file.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.protocols import Drafter, Parts, Requirements


@dataclass(frozen=True)
class Config:
    gamma: int = 8  # nodes of the tree, at most
    heads: str = ""  # folder of the trained heads
    static: bool = False  # a fixed tree from the accuracies in config.json, not one from each round's probabilities


def requires(config: Config) -> Requirements:
    return Requirements(torch=True)


def create(config: Config, parts: Parts) -> Drafter:
    from . import drafter  # here: it imports torch

    return drafter.create(config.heads, config.static, parts)
