"""EAGLE 1, 2 and 3 against a plain forward pass of the same weights, written out here, over rounds of every kind."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tests.helpers import shipped
from tests.helpers.heads import write_heads
from tests.helpers.toys import GREEDY, MATCH, SAMPLED, admit, check_cache, commit_until, session

from outpace.audit.heads import toy_checkpoint, toy_eagle
from outpace.audit.toy import ToyRuntime, hashed_logits
from outpace.core.errors import DrafterError, ModelError, ParameterError
from outpace.core.protocols import Parts
from outpace.core.types import Capabilities, Chunk, SamplingParams
from outpace.drafters.eagle import Config, create
from outpace.drafters.eagle.drafter import Eagle
from outpace.engine.loop import Loop
from outpace.runtimes.torch_tensors import tensor_of
from outpace.sampling.random_source import KeyedRandomSource, gumbel_noise

HIDDEN, HEADS, SHARED, DIM, WIDE, VOCAB, PRUNED = 128, 4, 2, 16, 48, 1024, 200
THETA, EPS = 5000.0, 1e-5
LAYOUTS = ("eagle", "eagle-bias", "eagle-speculators", "eagle3", "eagle3-speculators")


def checkpoint(layout: str) -> tuple[dict, dict[str, torch.Tensor]]:
    """Random weights for the tiny target as each project stores them."""
    third, speculators = layout.startswith("eagle3"), layout.endswith("speculators")
    layer = {
        ("transformer." if not third else "layers.0.") if speculators else "midlayer." if third else "layers.0."
    }.pop()
    fc = "fusion_fc" if speculators and not third else "fc"
    generator = torch.Generator().manual_seed(7)

    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    def vector(size):
        return 1 + 0.2 * torch.randn(size, generator=generator)

    seen = HIDDEN * (2 if third else 1)
    tensors = {
        f"{fc}.weight": matrix(HIDDEN, HIDDEN * (3 if third else 2)),
        f"{layer}self_attn.q_proj.weight": matrix(HEADS * DIM, seen),
        f"{layer}self_attn.k_proj.weight": matrix(SHARED * DIM, seen),
        f"{layer}self_attn.v_proj.weight": matrix(SHARED * DIM, seen),
        f"{layer}self_attn.o_proj.weight": matrix(HIDDEN, HEADS * DIM),
        f"{layer}mlp.gate_proj.weight": matrix(WIDE, HIDDEN),
        f"{layer}mlp.up_proj.weight": matrix(WIDE, HIDDEN),
        f"{layer}mlp.down_proj.weight": matrix(HIDDEN, WIDE),
        f"{layer}post_attention_layernorm.weight": vector(HIDDEN),
    }
    if layout == "eagle-bias":
        tensors["fc.bias"] = vector(HIDDEN)
        tensors |= {
            f"layers.0.self_attn.{p}_proj.bias": vector(size) for p, size in zip("qkv", (64, 32, 32), strict=True)
        }
        tensors["embed_tokens.weight"] = matrix(VOCAB, HIDDEN)
    if third:
        kept = torch.randperm(VOCAB, generator=generator)[:PRUNED].sort().values
        tensors |= {f"{layer}{name}.weight": vector(HIDDEN) for name in ("input_layernorm", "hidden_norm")}
        tensors |= {"norm.weight": vector(HIDDEN), "lm_head.weight": matrix(PRUNED, HIDDEN)}
        tensors |= {"d2t": kept - torch.arange(PRUNED), "t2d": torch.isin(torch.arange(VOCAB), kept)}
    inner = {
        "model_type": "llama", "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": SHARED,
        "head_dim": DIM, "intermediate_size": WIDE, "vocab_size": VOCAB, "rms_norm_eps": EPS, "rope_theta": THETA,
    }  # fmt: skip
    if not speculators:
        return {**inner, "num_hidden_layers": 1, "max_position_embeddings": 512, "draft_vocab_size": PRUNED}, tensors
    settings = {"speculators_model_type": "eagle3" if third else "eagle", "transformer_layer_config": inner}
    if third:
        settings |= {"draft_vocab_size": PRUNED, "norm_before_residual": True}
        settings["eagle_aux_hidden_state_layer_ids"] = [1, 3, 5]
    return settings, tensors


@functools.cache
def target_embedding() -> torch.Tensor:
    return load_file(shipped.model().path / "model.safetensors")["model.embed_tokens.weight"].float()


@functools.cache
def stored(layout: str) -> tuple[dict, dict[str, torch.Tensor]]:
    return checkpoint(layout)


def naive(layout: str, tokens: torch.Tensor, features: list[torch.Tensor], path: tuple[int, ...]) -> torch.Tensor:
    """Log probabilities after ``tokens`` and ``path``: the whole sequence run anew for each state that is guessed.

    ``features``: the target's at all of ``tokens`` but the last, one ``[n - 1, 128]`` for each tap.
    """
    settings, w = stored(layout)
    third, speculators = layout.startswith("eagle3"), layout.endswith("speculators")
    at = {
        ("transformer." if not third else "layers.0.") if speculators else "midlayer." if third else "layers.0."
    }.pop()
    target = target_embedding()  # tied: also the output matrix
    embedding = w.get("embed_tokens.weight", target)

    def norm(x, weight):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS) * weight

    def turn(x):  # [n, heads, DIM]
        n = x.shape[0]
        angle = torch.arange(n)[:, None] * THETA ** (-torch.arange(0, DIM, 2) / DIM)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    fc = "fusion_fc" if speculators and not third else "fc"
    if third:
        states = list(torch.cat(features, -1) @ w["fc.weight"].T)
    else:
        states = list(features[0])
    row_tokens = [*tokens[1:].tolist(), *path]
    while True:
        n = len(states)
        x = torch.stack(states)
        e = embedding[torch.tensor(row_tokens[:n])]
        if third:
            residual, seen = (
                x,
                torch.cat((norm(e, w[f"{at}input_layernorm.weight"]), norm(x, w[f"{at}hidden_norm.weight"])), -1),
            )
            if settings.get("norm_before_residual"):
                residual = norm(x, w[f"{at}hidden_norm.weight"])
        else:
            residual = seen = torch.cat((e, x), -1) @ w[f"{fc}.weight"].T + w.get(f"{fc}.bias", 0)
        q, k, v = (
            (seen @ w[f"{at}self_attn.{p}_proj.weight"].T + w.get(f"{at}self_attn.{p}_proj.bias", 0)).view(n, -1, DIM)
            for p in "qkv"
        )
        q, k = turn(q), turn(k)
        k, v = (part.repeat_interleave(HEADS // SHARED, 1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(DIM)
        scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -math.inf)
        mixed = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), v)
        y = residual + mixed.flatten(1) @ w[f"{at}self_attn.o_proj.weight"].T
        z = norm(y, w[f"{at}post_attention_layernorm.weight"])
        out = (
            y
            + (F.silu(z @ w[f"{at}mlp.gate_proj.weight"].T) * (z @ w[f"{at}mlp.up_proj.weight"].T))
            @ w[f"{at}mlp.down_proj.weight"].T
        )
        if n == len(row_tokens):
            break
        states.append(out[-1])
    last = out[-1]
    logits = torch.full((VOCAB,), -math.inf)
    if third:
        logits[w["d2t"] + torch.arange(PRUNED)] = w["lm_head.weight"] @ norm(last, w["norm.weight"])
    else:
        logits = target @ last
    return torch.log_softmax(logits.double(), -1)


def taps_of(layout: str) -> list[str]:
    if not layout.startswith("eagle3"):
        return ["hidden"]
    # The public default of five layers is 2, 2, 2: what the blocks read that are counted from 0.
    return ["layer.0", "layer.2", "layer.4"] if layout.endswith("speculators") else ["layer.1"] * 3


def features_of(tokens: list[int], names: list[str]) -> list[torch.Tensor]:
    runtime = shipped.model(backend="torch").runtime
    cache = runtime.new_cache()
    seen = runtime.forward([Chunk(cache.open(len(tokens)), tokens)], cache, sorted(set(names)))
    return [tensor_of(seen.features[name][0]).clone() for name in names]


def searched(layout, one, budget, depth, width):
    """EAGLE-2's search with the plain forward: expand the best of each level, keep the best of all."""
    features = features_of(one.tokens[:-1], taps_of(layout))
    scores, level = {(): 0.0}, [()]
    for _ in range(min(depth, budget)):
        born = []
        for path in level:
            values = naive(layout, torch.tensor(one.tokens), features, path)
            if one.request.params.temperature > 0:
                ids = values.topk(64).indices.sort().values
                noise = gumbel_noise(one.rng.seed, 0, len(one.tokens) + len(path), ids.numpy())
                known, values = values, torch.full((VOCAB,), -math.inf, dtype=torch.float64)
                values[ids] = torch.log_softmax(known[ids] + torch.from_numpy(noise), -1)
            for token in values.topk(width).indices.tolist():
                born.append((*path, token))
                scores[born[-1]] = scores[path] + float(values[token])
        level = sorted(born, key=lambda path: -scores[path])[:width]
    del scores[()]
    return set(sorted(scores, key=lambda path: -scores[path])[:budget])


@pytest.mark.parametrize(
    ("layout", "params", "depth", "width"),
    [(layout, GREEDY, 3, 2) for layout in LAYOUTS]
    + [("eagle", SAMPLED, 2, 3), ("eagle3", SAMPLED, 3, 2), ("eagle", GREEDY, 3, 1)],
)
def test_trees_are_those_of_a_plain_forward(layout, params, depth, width, tmp_path):
    """Two sessions with other budgets in each round, rounds with gamma 0 among them, a prompt of one token."""
    target = shipped.model(backend="torch")
    folder = write_heads(tmp_path, *checkpoint(layout))
    parts = Parts(VOCAB, target=target.runtime, target_model=target)
    drafter = create(Config(heads=str(folder), depth=depth, width=width), parts)
    loop = Loop(target.runtime, drafter, MATCH, commit_until(), prefill_rows=5)
    pair = [
        session(0, count=7, gamma=6, params=params, rng=KeyedRandomSource(0), prompt=[7]),
        session(1, count=7, gamma=6, params=params, rng=KeyedRandomSource(1), prompt=[50, 60, 70, 80, 90, 50, 60, 70]),
    ]
    propose, sizes = drafter.propose, []

    def watched(sessions, budgets):
        proposals = propose(sessions, budgets)
        for one, budget, proposal in zip(sessions, budgets, proposals, strict=True):
            if len(one.tokens) > 1:  # of a text of one token the target has shown nothing yet
                found = {tuple(proposal.tokens[node] for node in proposal.path(i)) for i in range(len(proposal))}
                assert found == searched(layout, one, budget, depth, width)
                sizes.append(len(proposal))
        return proposals

    drafter.propose = watched
    admit(loop, pair)
    turn = 0
    while active := [one for one in pair if one.finish is None]:
        loop.round(active[turn % 2 :] if turn < 3 else active)
        check_cache(loop, active)
        turn += 1
    assert not [one.report.warnings for one in pair if one.report.warnings]
    assert max(sizes) == (6 if width > 1 else depth)
    assert len(sizes) > 6


def test_a_long_prompt_is_read_in_pieces():
    """The same trees whether 600 rows come in one go or with every round's own few."""
    drafters = [Eagle(toy_eagle(6), 6, depth=3, width=2) for _ in range(2)]
    prompt = [i * 7 % 5 for i in range(600)]
    target = ToyRuntime(hashed_logits(6, 3, order=3), 6)
    proposals = []
    for drafter, step in zip(drafters, (600, 100), strict=True):
        one = session(count=20, gamma=6, prompt=prompt, rule=MATCH)
        drafter.begin(one)
        cache = target.new_cache()
        slot = cache.open(600)
        for first in range(0, 599, step):
            rows = prompt[first : min(first + step, 599)]
            drafter.read(one, first, target.forward([Chunk(slot, rows)], cache, drafter.needs))
            if step == 100:
                drafter._catch_up(one)
        proposals.append(drafter.propose([one], [6])[0])
        assert one.report.seconds_draft_prefill > 0
    assert len(proposals[0]) == 6
    assert proposals[0] == proposals[1]


def test_drafting_stops_where_the_path_is_unlikely_and_pauses_without_new_rows():
    drafter = Eagle(toy_eagle(6), 6, depth=3, width=3)
    sizes = []
    for floor in (0.0, 0.1, 1.0):
        one = session(count=20, gamma=9, prompt=[1, 2, 3, 4], rule=MATCH)
        one.draft.stop_below = floor
        drafter.begin(one)
        target = ToyRuntime(hashed_logits(6, 3), 6)
        cache = target.new_cache()
        drafter.read(one, 0, target.forward([Chunk(cache.open(4), [1, 2, 3])], cache, drafter.needs))
        sizes.append(len(drafter.propose([one], [9])[0]))
        assert len(drafter.propose([one], [9])[0]) == 0  # nothing new was shown
        drafter.end(one)
    assert sizes[0] > sizes[1] > sizes[2] == 0


def test_chains_where_the_target_takes_no_trees(tmp_path):
    target = ToyRuntime(hashed_logits(6, 3), 6)
    target.capabilities = lambda: Capabilities(False, torch.float64, True)
    folder = write_heads(tmp_path, *toy_checkpoint(6))
    drafter = create(Config(heads=str(folder)), Parts(6, target=target))
    one = session(count=30, gamma=4, rule=MATCH)
    loop = Loop(target, drafter, MATCH, commit_until())
    admit(loop, [one])
    while one.finish is None:
        loop.round([one])
    assert not one.report.warnings
    assert one.report.drafted > one.report.target_passes


def test_the_shipped_heads_help():
    """Both networks guess better than nothing, on text that neither has seen."""
    engine, params = shipped.new_engine("eagle"), SamplingParams(max_tokens=48)
    prompt = "def find(items, key):\n    for item in items:\n"
    result = engine.generate(prompt, params)
    plain = shipped.shared_engine().generate(prompt, params, gamma=0)
    assert result.token_ids == plain.token_ids
    assert result.report.block_efficiency > 1.5


WRONG = {
    "no such folder": lambda folder, s, t: folder / "nowhere",
    "config.json is missing": lambda folder, s, t: (folder / "config.json").unlink(),
    "nothing else": lambda folder, s, t: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
    "no safetensors file": lambda folder, s, t: (folder / "model.safetensors").unlink(),
    "not a whole safetensors file": lambda folder, s, t: (folder / "model.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes()[:-9]
    ),
    "lacks tensor layer.mlp.up_proj.weight": lambda folder, s, t: t.pop("midlayer.mlp.up_proj.weight"),
    "no use for": lambda folder, s, t: t.update({"layer.extra.weight": torch.zeros(3)}),
    "norm.weight has shape": lambda folder, s, t: t.update({"norm.weight": torch.zeros(3)}),
    "holds NaN": lambda folder, s, t: t["fc.weight"].fill_(math.nan),
    "2 layers": lambda folder, s, t: s.update(num_hidden_layers=2),
    "impossible value": lambda folder, s, t: s.update(hidden_size="wide"),
    "lacks 'intermediate_size'": lambda folder, s, t: s.pop("intermediate_size"),
    "extra layer norms": lambda folder, s, t: s.update(layernorms=True),
    "not an EAGLE one": lambda folder, s, t: s.update(speculators_model_type="mlp_speculator"),
    "d2t does not name": lambda folder, s, t: t["d2t"].fill_(-5),
    "as t2d has them": lambda folder, s, t: t["t2d"].fill_(False),
    "not layers that this target has": lambda folder, s, t: s.update(eagle_aux_hidden_state_layer_ids=[0, 1, 9]),
    "features of 384": lambda folder, s, t: s.update(eagle_aux_hidden_state_layer_ids=[1, 2]),
    "embed_tokens.weight has 9 rows": lambda folder, s, t: t.update({"embed_tokens.weight": torch.zeros(9, HIDDEN)}),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_with_a_checkpoint_is_said(words, tmp_path):
    settings, tensors = checkpoint("eagle3")
    write_heads(tmp_path, settings, tensors)
    files = [file.name for file in tmp_path.iterdir()]
    changed = WRONG[words](tmp_path, settings, tensors)
    if [file.name for file in tmp_path.iterdir()] == files and "whole" not in words:
        write_heads(tmp_path, settings, tensors)
    target = shipped.model(backend="torch")
    path = changed if words == "no such folder" else tmp_path
    with pytest.raises(ModelError, match=words):
        create(Config(heads=str(path)), Parts(VOCAB, target=target.runtime, target_model=target))


def test_without_heads_it_says_what_to_do(tmp_path):
    with pytest.raises(DrafterError, match="--eagle-heads"):
        create(Config(), Parts(6, target=ToyRuntime(hashed_logits(6, 3), 6)))
    settings, tensors = toy_checkpoint(6)
    del tensors["lm_head.weight"]
    folder = write_heads(tmp_path, settings, tensors)
    with pytest.raises(ModelError, match="takes lm_head.weight from the target"):
        create(Config(heads=str(folder)), Parts(6))
    with pytest.raises(ParameterError, match="depth"):
        Config(depth=0)
