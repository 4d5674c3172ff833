"""The losses are those of what decoding does, computed here one row at a time."""

import math

import pytest
import torch

from outpace.audit.heads import toy_eagle, toy_medusa
from outpace.drafters.eagle import training as eagle
from outpace.drafters.eagle.training import eagle_loss
from outpace.drafters.medusa import training as medusa
from outpace.drafters.medusa.training import medusa_accuracies, medusa_loss

V, BATCH, TIME = 6, 2, 9


def window(width: int):
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(V, (BATCH, TIME), generator=generator)
    features = torch.randn(BATCH, TIME, width, generator=generator, dtype=torch.float64)
    return tokens, features, torch.randn(BATCH, TIME, V, generator=generator, dtype=torch.float64).log_softmax(-1)


def divergence(wanted, logits):
    """KL(wanted || guessed) of one row, both over the same tokens."""
    return float((wanted.exp() * (wanted - logits.log_softmax(-1))).sum())


def causal(net, rows: int):
    """Plain attention over a chain, with rotary pairs (i, i + d/2)."""
    d, heads, shared = net.config.head_dim, net.config.heads, net.config.kv_heads
    angle = torch.arange(rows)[:, None].double() * torch.tensor(net.config.inv_freq)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]

    def turn(x):
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def attend(qkv):
        q, k, v = (part.view(rows, -1, d) for part in qkv.split([heads * d, shared * d, shared * d], -1))
        scores = torch.einsum("qhd,khd->hqk", turn(q), turn(k)) / math.sqrt(d)
        scores = scores.masked_fill(~torch.ones(rows, rows, dtype=torch.bool).tril(), -math.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)

    return attend


@pytest.mark.parametrize("third", [False, True], ids=["eagle", "eagle 3"])
def test_eagles_loss_is_that_of_drafting_from_every_row(third):
    net = toy_eagle(V, third, draft_vocab=4 if third else None)
    tokens, features, log_probs = window(3 * V if third else V)
    rows = TIME - 1 - eagle.STEPS
    total = 0.0
    for b in range(BATCH):
        for t in range(rows):
            states = list(net.enter(features[b, : t + 1]))
            for step in range(eagle.STEPS):
                n = t + 1 + step
                after = net.forward(tokens[b, 1 : n + 1], torch.stack(states), causal(net, n))[-1]
                wanted = log_probs[b, n]
                if third:
                    wanted = wanted[net.draft_ids].log_softmax(-1)
                part = divergence(wanted, net.head_logits(after[None])[0])
                if not third:
                    gap = (after - features[b, n]).abs()
                    part += eagle.FEATURE_WEIGHT * float(torch.where(gap < 1, gap * gap / 2, gap - 0.5).mean())
                total += eagle.DECAY**step * part / (BATCH * rows)
                states.append(after)
    assert float(eagle_loss(net, tokens, features, log_probs)) == pytest.approx(total, rel=1e-9)


def test_medusas_loss_and_accuracies_look_as_far_ahead_as_each_head():
    heads = toy_medusa(V)
    _, features, log_probs = window(V)
    rows = TIME - len(heads)
    total, hits = 0.0, torch.zeros(len(heads), V)
    for b in range(BATCH):
        for t in range(rows):
            for head, logits in enumerate(heads.logits(features[b, t : t + 1], len(heads))[0]):
                wanted = log_probs[b, t + 1 + head]
                total += medusa.DECAY**head * divergence(wanted, logits) / (BATCH * rows)
                hits[head, int((logits.argsort(descending=True) == wanted.argmax()).nonzero())] += 1 / (BATCH * rows)
    assert float(medusa_loss(heads, features, log_probs)) == pytest.approx(total, rel=1e-9)
    found = torch.tensor(medusa_accuracies(heads, features, log_probs, ranks=V))
    torch.testing.assert_close(found, hits.clamp(1e-4, 1 - 1e-4), atol=1e-4, rtol=0)
