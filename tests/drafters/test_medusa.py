"""Medusa's heads and trees against the same written out plainly, over rounds of every kind."""

import itertools
import json
import math

import pytest
import torch
from tests.helpers import shipped
from tests.helpers.heads import medusa_checkpoint, write_heads
from tests.helpers.toys import BLOCK, GREEDY, MATCH, SAMPLED, admit, commit_until, session

from outpace.audit.toy import ToyRuntime, hashed_logits
from outpace.core.errors import DrafterError, ModelError
from outpace.core.protocols import Parts
from outpace.core.types import Chunk, SamplingParams
from outpace.drafters.common.heads import read_heads
from outpace.drafters.medusa import Config, create
from outpace.drafters.medusa.drafter import Medusa, MedusaHeads
from outpace.engine.loop import Loop
from outpace.sampling.random_source import KeyedRandomSource, gumbel_noise

V, HEADS, BLOCKS = 7, 3, 2
TARGET = hashed_logits(V, 71)
SETTINGS, TENSORS = medusa_checkpoint(V, V, HEADS, BLOCKS)
TABLE = [[0.5 / (rank + 1) ** (1.13 + 0.2 * head) for rank in range(4)] for head in range(HEADS)]  # no ties


def naive(hidden: torch.Tensor) -> torch.Tensor:
    """``[heads, V]`` log probabilities after one hidden state."""
    rows = []
    for head in range(HEADS):
        x = hidden.double()
        for block in range(BLOCKS):
            y = TENSORS[f"{head}.{block}.linear.weight"].double() @ x + TENSORS[f"{head}.{block}.linear.bias"].double()
            x = x + y / (1 + torch.exp(-y))
        rows.append(torch.log_softmax(TENSORS[f"{head}.{BLOCKS}.weight"].double() @ x, -1))
    return torch.stack(rows)


def searched(one, budget: int, static: bool) -> set[tuple[int, ...]]:
    """The ``budget`` best of all paths there are, by the product of their tokens' estimates."""
    values = naive(torch.as_tensor(TARGET(tuple(one.tokens[:-1]))))
    if one.params.temperature > 0:
        for head in range(HEADS):
            noise = gumbel_noise(one.rng.seed, 0, len(one.tokens) + head, torch.arange(V).numpy())
            values[head] = torch.log_softmax(values[head] + torch.from_numpy(noise), -1)
    if static:
        for head, rates in enumerate(TABLE):
            order = values[head].topk(len(rates)).indices
            values[head] = -math.inf
            values[head][order] = torch.tensor(rates).double().log()
    scores = {
        path: sum(float(values[head][token]) for head, token in enumerate(path))
        for size in range(1, HEADS + 1)
        for path in itertools.product(range(V), repeat=size)
    }
    return set(sorted(scores, key=lambda path: -scores[path])[:budget])


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_tree_is_the_best_there_is(params, static):
    heads = MedusaHeads(SETTINGS | {"outpace_accuracies": TABLE}, TENSORS, "the heads")
    drafter = Medusa(heads, V, static=static)
    loop = Loop(ToyRuntime(TARGET, V), drafter, MATCH, commit_until(), prefill_rows=4)
    pair = [
        session(i, count=25, gamma=6, params=params, rng=KeyedRandomSource(i), prompt=[1] * (1 + 8 * i)) for i in (0, 1)
    ]
    propose, checked = drafter.propose, []

    def watched(sessions, budgets):
        proposals = propose(sessions, budgets)
        for one, budget, proposal in zip(sessions, budgets, proposals, strict=True):
            if len(one.tokens) > 1:
                found = {tuple(proposal.tokens[node] for node in proposal.path(i)) for i in range(len(proposal))}
                assert found == searched(one, budget, static)
                checked.append(budget)
        return proposals

    drafter.propose = watched
    admit(loop, pair)
    turn = 0
    while active := [one for one in pair if one.finish is None]:
        loop.round(active[turn % 2 :] or active)
        turn += 1
    assert not [one.report.warnings for one in pair if one.report.warnings]
    assert {6, 2} <= set(checked)  # near the limit the budget falls


def test_chains_under_a_rule_that_takes_no_trees():
    drafter = Medusa(MedusaHeads(SETTINGS, TENSORS, "the heads"), V)
    one = session(count=20, gamma=6, params=SAMPLED, prompt=[1, 2, 3])
    loop = Loop(ToyRuntime(TARGET, V), drafter, BLOCK, commit_until())
    admit(loop, [one])
    while one.finish is None:
        loop.round([one])
    assert not one.report.warnings
    assert one.report.drafted > one.report.target_passes


def test_drafting_stops_where_the_path_is_unlikely():
    drafter = Medusa(MedusaHeads(SETTINGS, TENSORS, "the heads"), V)
    target, one = ToyRuntime(TARGET, V), session(count=20, gamma=9, prompt=[1, 2, 3], rule=MATCH)
    cache = target.new_cache()
    drafter.begin(one)
    drafter.read(one, 0, target.forward([Chunk(cache.open(3), [1, 2])], cache, drafter.needs))
    sizes = []
    for one.stop_below in (0.0, 0.1, 1.0):
        sizes.append(len(drafter.propose([one], [9])[0]))
    assert sizes[0] == 9 > sizes[1] > sizes[2] == 0


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_both_names_of_the_tensors_are_known_and_heads_may_share_the_targets_matrix(prefix, tmp_path):
    target = shipped.model(backend="torch")
    settings, tensors = medusa_checkpoint(128, 1024, 2, 1)
    output = {name: tensors.pop(name) for name in ("0.1.weight", "1.1.weight")}
    parts = Parts(1024, target=target.runtime, target_model=target)
    own = create(
        Config(
            heads=str(write_heads(tmp_path / "own", settings, {prefix + k: v for k, v in (tensors | output).items()}))
        ),
        parts,
    )
    shared = create(
        Config(heads=str(write_heads(tmp_path / "shared", settings, {prefix + k: v for k, v in tensors.items()}))),
        parts,
    )
    state = torch.randn(1, 128)
    assert not torch.equal(own._heads.logits(state, 2), shared._heads.logits(state, 2))
    x = state + torch.nn.functional.silu(state @ tensors["1.0.linear.weight"].T + tensors["1.0.linear.bias"])
    matrix = target.runtime.decoder.head.weight
    torch.testing.assert_close(shared._heads.logits(state, 2)[0, 1], (x @ matrix.T)[0])
    torch.testing.assert_close(own._heads.logits(state, 2)[0, 1], (x @ output["1.1.weight"].T)[0])


WRONG = {
    "medusa_num_heads is None": lambda s, t: s.pop("medusa_num_heads"),
    "medusa_num_layers is 0": lambda s, t: s.update(medusa_num_layers=0),
    "lacks tensor 2.0.linear.weight": lambda s, t: t.pop("2.0.linear.weight"),
    "no use for": lambda s, t: t.update({"3.0.linear.weight": torch.zeros(128, 128)}),
    "hidden state of 64": lambda s, t: t.update(medusa_checkpoint(64, 1024)[1]),
    "heads over 99 tokens": lambda s, t: t.update(medusa_checkpoint(128, 99)[1]),
    "has no outpace_accuracies": lambda s, t: None,
    "between 0 and 1": lambda s, t: s.update(outpace_accuracies=[[0.5, 1.5]] * 3),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_with_a_checkpoint_is_said(words, tmp_path):
    settings, tensors = medusa_checkpoint(128, 1024)
    WRONG[words](settings, tensors)
    target = shipped.model(backend="torch")
    folder = write_heads(tmp_path, settings, tensors)
    with pytest.raises(ModelError, match=words):
        create(Config(heads=str(folder), static=True), Parts(1024, target=target.runtime, target_model=target))


class Evil:
    """What a pickled file may hold besides tensors."""

    def __reduce__(self):
        return (print, ("this must not run",))


def test_the_original_pickled_file_is_read_and_runs_nothing(tmp_path, capsys):
    settings, tensors = medusa_checkpoint(128, 1024)
    target = shipped.model(backend="torch")
    parts = Parts(1024, target=target.runtime, target_model=target)
    folder = write_heads(tmp_path / "safe", settings, tensors)
    (tmp_path / "config.json").write_text(json.dumps(settings))
    file = tmp_path / "medusa_lm_head.pt"
    torch.save(tensors, file)
    assert read_heads(tmp_path)[1].keys() == read_heads(folder)[1].keys()
    create(Config(heads=str(tmp_path)), parts)
    for content in ({"0.0.linear.weight": Evil()}, Evil()):
        torch.save(content, file)
        with pytest.raises(ModelError, match="tensors and nothing else"):
            create(Config(heads=str(tmp_path)), parts)
    file.write_bytes(b"anything")
    with pytest.raises(ModelError, match="medusa_lm_head.pt: not a file of tensors"):
        create(Config(heads=str(tmp_path)), parts)
    assert capsys.readouterr().out == ""


def test_without_heads_it_says_what_to_do():
    with pytest.raises(DrafterError, match="--medusa-heads"):
        create(Config(), Parts(V))


def test_the_shipped_heads_help():
    prompt = "def find(items, key):\n    for item in items:\n"
    result = shipped.new_engine("medusa").generate(prompt, SamplingParams(max_tokens=48))
    assert (
        result.token_ids == shipped.shared_engine().generate(prompt, SamplingParams(max_tokens=48), gamma=0).token_ids
    )
    assert result.report.block_efficiency > 1.2
