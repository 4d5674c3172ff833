"""Capturing what a target says, and the one loop."""

import itertools

import pytest
import torch
from tests.helpers.heads import medusa_checkpoint

from outpace.audit.toy import ToyRuntime, hashed_logits
from outpace.drafters.medusa.drafter import MedusaHeads
from outpace.drafters.medusa.training import medusa_loss
from outpace.train.capture import capture
from outpace.train.loop import train

V = 5
TARGET = hashed_logits(V, 9, order=2)


def test_what_is_captured_is_what_the_target_says():
    tokens = torch.tensor([[1, 2, 3, 4], [0, 0, 1, 1]])
    seen = capture(ToyRuntime(TARGET, V), tokens, ["hidden", "layer.2"])
    for b, t in itertools.product(range(2), range(4)):
        logits = torch.from_numpy(TARGET(tuple(tokens[b, : t + 1].tolist()))).float()
        torch.testing.assert_close(seen.log_probs[b, t], logits.log_softmax(-1))
        torch.testing.assert_close(seen.features[b, t], torch.cat((logits, logits.roll(2, -1))))
    assert not seen.features.is_inference()


def test_the_loop_learns_and_leaves_what_it_was_given_alone():
    settings, tensors = medusa_checkpoint(V, V, heads=1)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    window = capture(
        ToyRuntime(TARGET, V), torch.randint(V, (4, 40), generator=torch.Generator().manual_seed(0)), ["hidden"]
    )

    def loss(found, batch):
        return medusa_loss(MedusaHeads(settings, found, "the heads"), batch.features, batch.log_probs)

    steps, losses = [], []
    trained = train(
        tensors, loss, itertools.repeat(window), steps=60, rate=0.03, frozen=["0.1.weight"],
        tell=lambda step, value: (steps.append(step), losses.append(value)),
    )  # fmt: skip
    assert steps == list(range(1, 61))
    assert losses[-1] < 0.7 * losses[0]
    assert all(torch.equal(before[name], tensors[name]) for name in before)
    assert torch.equal(trained["0.1.weight"], tensors["0.1.weight"])
    assert not torch.equal(trained["0.0.linear.weight"], tensors["0.0.linear.weight"])
    assert not any(tensor.requires_grad for tensor in trained.values())


def test_a_loss_that_is_no_number_ends_it():
    with pytest.raises(FloatingPointError, match="step 1"):
        train({"w": torch.ones(1)}, lambda w, batch: w["w"].sum() * float("nan"), [None], steps=3)
