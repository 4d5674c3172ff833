"""The heads in torch, and the drafter that builds a tree of what they propose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.errors import ModelError
from ...core.protocols import Drafter, Parts, Session
from ...core.types import Array, Forward, Proposal, Verdict
from ..common.heads import check_shapes, folder, read_heads, target_matrix, weight, wide
from ..common.tree import Tree, likeliest

_MOST = 64  # heads or blocks that no checkpoint has


class MedusaHeads:
    """The heads' weights. Block matrices ``[hidden, hidden]``, output matrices ``[vocab_rows, hidden]``."""

    def __init__(
        self, config: Mapping[str, object], tensors: Mapping[str, Tensor], source: str, output: Tensor | None = None
    ) -> None:
        """``output``: the target's matrix, for heads that have none of their own. Raises ModelError: an impossible
        config, tensors missing, surplus or of a wrong shape."""
        count, blocks = (_small(config.get(f"medusa_num_{name}"), name, source) for name in ("heads", "layers"))
        tensors = {name.removeprefix("medusa_head."): tensor for name, tensor in tensors.items()}
        if output is not None and f"0.{blocks}.weight" not in tensors:
            tensors |= {f"{head}.{blocks}.weight": output for head in range(count)}
        first = tensors.get(f"0.{blocks}.weight", torch.empty(0, 0))
        rows, hidden = first.shape[0], first.shape[-1]
        shapes: dict[str, tuple[int, ...]] = {}
        for head in range(count):
            for block in range(blocks):
                shapes[f"{head}.{block}.linear.weight"] = (hidden, hidden)
                shapes[f"{head}.{block}.linear.bias"] = (hidden,)
            shapes[f"{head}.{blocks}.weight"] = (rows, hidden)
        check_shapes(tensors, shapes, source)
        self.hidden, self.vocab_rows = hidden, rows
        self.blocks = [
            [(weight(tensors[f"{at}.linear.weight"]), wide(tensors[f"{at}.linear.bias"])) for at in places]
            for places in ([f"{head}.{block}" for block in range(blocks)] for head in range(count))
        ]
        self.outputs = [weight(tensors[f"{head}.{blocks}.weight"]) for head in range(count)]
        self.accuracies = _accuracies(config.get("outpace_accuracies"), count, source)

    def __len__(self) -> int:
        return len(self.outputs)

    def logits(self, states: Tensor, heads: int) -> Tensor:
        """``[n, heads, vocab_rows]`` of the first ``heads`` heads after hidden ``states`` ``[n, hidden]``."""
        rows = []
        for blocks, output in zip(self.blocks[:heads], self.outputs, strict=False):
            x = wide(states)
            for matrix, bias in blocks:
                x = x + F.silu(F.linear(x.to(matrix.dtype), matrix).to(x.dtype) + bias)
            rows.append(F.linear(x.to(output.dtype), output).to(x.dtype))
        return torch.stack(rows, 1)


def _small(value: object, name: str, source: str) -> int:
    if not isinstance(value, int) or not 1 <= value <= _MOST:
        raise ModelError(f"{source}: medusa_num_{name} is {value!r}, not a small whole number")
    return value


def _accuracies(value: object, heads: int, source: str) -> list[list[float]] | None:
    """By head and rank, how often that token was right; None where the config does not say."""
    if value is None:
        return None
    try:
        table = [[float(entry) for entry in row] for row in value]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        table = []
    if len(table) != heads or not all(row and all(0 < entry < 1 for entry in row) for row in table):
        raise ModelError(f"{source}: outpace_accuracies must hold numbers between 0 and 1 for each of {heads} heads")
    return table


class Medusa:
    """Keeps of each session the hidden state of the last row that the target has run."""

    needs: Sequence[str] = ("hidden",)

    def __init__(self, heads: MedusaHeads, vocab_size: int, static: bool = False) -> None:
        self._heads, self._vocab_size, self._static = heads, vocab_size, static
        self._hidden: dict[int, Tensor | None] = {}  # [hidden]
        self._lengths: dict[int, int] = {}  # of the text when the drafter last looked

    def begin(self, session: Session) -> None:
        self._hidden[session.id], self._lengths[session.id] = None, len(session.tokens)

    def read(self, session: Session, first: int, seen: Forward) -> None:
        """Keep the last of the prompt's rows."""
        self._hidden[session.id] = seen.features["hidden"][0][-1].copy()

    def propose(self, sessions: Sequence[Session], budgets: Sequence[int]) -> list[Proposal]:
        states = [self._hidden[session.id] for session in sessions]
        known = [i for i, budget in enumerate(budgets) if budget > 0 and states[i] is not None]
        proposals = [Proposal() for _ in sessions]
        if known:
            deepest = min(len(self._heads), max(budgets[i] for i in known))
            hidden = torch.from_numpy(np.stack([states[i] for i in known]))  # type: ignore[misc]
            for i, rows in zip(known, self._heads.logits(hidden, deepest).numpy(force=True), strict=True):
                try:
                    proposals[i] = self._tree(sessions[i], rows[:, : self._vocab_size], budgets[i])
                except Exception as error:  # leaves this session without a draft, and the others alone
                    sessions[i].record.error = error
        return proposals

    def _tree(self, session: Session, logits: Array, budget: int) -> Proposal:
        """``logits``: ``[heads, vocab_size]``."""
        tree, text = Tree(), list(session.tokens)
        width = budget if session.record.trees else 1
        for depth, row in enumerate(logits[:budget]):
            distribution = session.pipeline.distribution(row, text)
            tokens = likeliest(session, distribution, row, len(session.tokens) + depth, width)
            if self._static:
                assert self._heads.accuracies is not None
                rates = self._heads.accuracies[depth]
                tokens = [(token, math.log(rate)) for (token, _), rate in zip(tokens, rates, strict=False)]
            text.append(tokens[0][0])  # one distribution serves all nodes of a depth: that of the likeliest path
            born = [tree.add(node, *found) for node in tree.level for found in tokens]
            tree.descend(born, width, session.draft.stop_below)
        return tree.proposal(budget, session.draft.stop_below)

    def observe(self, sessions: Sequence[Session], verdicts: Sequence[Verdict], seen: Sequence[Forward]) -> None:
        for session, verdict, forward in zip(sessions, verdicts, seen, strict=True):
            gained = len(session.tokens) - self._lengths[session.id]
            rows = [0, *(node + 1 for node in verdict.path)][:gained]  # a stop may have cut the round
            self._hidden[session.id] = forward.features["hidden"][0][rows[-1]].copy()
            self._lengths[session.id] = len(session.tokens)

    def end(self, session: Session) -> None:
        self._hidden.pop(session.id, None)
        self._lengths.pop(session.id, None)


def create(heads: str, static: bool, parts: Parts) -> Drafter:
    path = folder(heads, "medusa", parts.target_model)
    settings, tensors = read_heads(path)
    own = any(name.endswith(".weight") and not name.endswith("linear.weight") for name in tensors)
    output = None if own else target_matrix(parts.target_model, "head", str(path))
    found = MedusaHeads(settings, tensors, str(path), output)
    if parts.target_model is not None and parts.target_model.config.hidden != found.hidden:
        wanted = parts.target_model.config.hidden
        raise ModelError(f"{path}: heads for a hidden state of {found.hidden}, but the target's has {wanted}")
    if found.vocab_rows < parts.vocab_size:
        raise ModelError(f"{path}: heads over {found.vocab_rows} tokens, but the target has {parts.vocab_size}")
    if static and found.accuracies is None:
        raise ModelError(f"{path}: config.json has no outpace_accuracies, which a static tree is built from")
    return Medusa(found, parts.vocab_size, static)
