"""Log-probabilities: the target's own, one entry a token, however the tokens came."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from tests.helpers.shipped import model, new_engine
from tests.helpers.tiny_models import metaspace_tokenizer

from outpace import SamplingParams
from outpace.core.report import Report
from outpace.core.types import Chunk, log_total
from outpace.engine.stream import Event, Result
from outpace.serve.answers import TextFormat
from outpace.serve.worker import Update
from outpace.text.detokenizer import StreamDecoder
from outpace.text.tokenizer import Tokenizer

TEXT = "def main(argv):\n    # naïve 東京\n    parser = "
MESSAGES = [{"role": "user", "content": "東京 é def"}]
HOT = {"temperature": 1.6, "seed": 3, "max_tokens": 24}  # many parts of characters


def reference(ids, wanted):
    """Log-softmax of one pass over the whole text: [len(ids) - 1] rows of the ids wanted."""
    runtime = model("tiny").runtime
    cache = runtime.new_cache()
    logits = runtime.forward([Chunk(cache.open(len(ids)), ids)], cache).logits[0]
    return np.stack([row - log_total(row) for row in logits.astype(np.float64)])[:-1]


@pytest.mark.parametrize("outpace", [{"gamma": 5}, {"drafter": "lookup"}, {"off": True}])
@pytest.mark.parametrize("stop", [None, ["="], ["e(", ")"]])
def test_every_token_has_its_own(live, outpace, stop):
    """B18, B33, B34: equal to one pass over the text; also the first token and the one that straddles a stop."""
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3, "stop": stop, "outpace": outpace, **HOT}
    whole = live.post("chat/completions", body).json()
    content = whole["choices"][0]["logprobs"]["content"]
    chunks = live.chunks("chat/completions", **body)
    streamed = [entry for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content
    assert len(content) == whole["usage"]["completion_tokens"]
    plain = new_engine("none").generate(MESSAGES, SamplingParams(**HOT, stop=stop or ()))
    prompt = live.engine.encode(MESSAGES)
    rows = reference([*prompt, *plain.token_ids], plain.token_ids)[len(prompt) - 1 :]
    for entry, token, row in zip(content, plain.token_ids, rows, strict=True):
        assert entry["logprob"] == pytest.approx(float(row[token]), abs=1e-4)
        best = np.sort(row)[::-1][:3]
        assert [other["logprob"] for other in entry["top_logprobs"]] == pytest.approx(best.tolist(), abs=1e-4)
    spelt = b"".join(bytes(entry["bytes"]) for entry in content).decode("utf-8", "replace")
    text = whole["choices"][0]["message"]["content"]
    assert spelt == text if stop is None else spelt.startswith(text)


def test_an_end_token_is_counted_and_spells_nothing(live):
    (end,) = live.engine.target.end_tokens - {0} or live.engine.target.end_tokens
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 5, "logprobs": True, "logit_bias": {str(end): 100}}
    answer = live.post("chat/completions", body).json()
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    assert entry["bytes"] == [] and entry["token"].startswith("<|") and answer["choices"][0]["message"]["content"] == ""
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_scores_the_prompt(live, count, stream):
    """B58: one entry a token of the prompt, the first null, the others as one pass finds them."""
    ids = live.engine.encode(TEXT)
    body = {"prompt": TEXT, "echo": True, "logprobs": 2, "max_tokens": count, "temperature": 0}
    if stream:
        chunks = live.chunks("completions", **body)
        scores = {name: [x for c in chunks if c["choices"][0]["logprobs"] for x in c["choices"][0]["logprobs"][name]]
                  for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}  # fmt: skip
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    else:
        choice = live.complete(**body)["choices"][0]
        scores, text = choice["logprobs"], choice["text"]
    assert text.startswith(TEXT)
    assert len(scores["tokens"]) == len(scores["token_logprobs"]) == len(scores["top_logprobs"]) == len(ids) + count
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    answer = live.engine.generate(TEXT, SamplingParams(max_tokens=count)).token_ids
    rows = reference([*ids, *answer], None)
    expected = [float(row[token]) for row, token in zip(rows, [*ids[1:], *answer], strict=True)]
    assert scores["token_logprobs"][1:] == pytest.approx(expected, abs=1e-4)
    for token, top, offset in zip(
        scores["tokens"][1:], scores["top_logprobs"][1:], scores["text_offset"][1:], strict=True
    ):
        assert token in top and 2 <= len(top) <= 3
        if token.startswith("bytes:"):  # a part of the character that stands there
            assert bytes.fromhex(token[6:].replace("\\x", "")) in text[offset : offset + 2].encode()
        else:
            assert text[offset : offset + len(token)] == token
    assert any(token.startswith("bytes:\\x") for token in scores["tokens"])  # 東京 takes several tokens a character


def test_an_echo_without_scores(live):
    choice = live.complete(prompt=[TEXT, "x = "], echo=True, max_tokens=3, temperature=0)["choices"]
    assert choice[0]["text"].startswith(TEXT) and choice[1]["text"].startswith("x = ")
    assert choice[0]["logprobs"] is None


def test_scoring_a_long_prompt_leaves_others_running(live):
    """A stream that runs meanwhile gets what it gets alone, and everything is freed."""
    alone = live.complete(prompt=TEXT, max_tokens=60, temperature=0)["choices"][0]["text"]
    held = live.engine.scheduler.loop.cache.slots
    with live.openai.completions.create(model="tiny", prompt=TEXT, max_tokens=60, temperature=0, stream=True) as stream:
        pieces = [next(iter(stream)).choices[0].text]
        scored = live.complete(prompt=[7] * 1000, echo=True, logprobs=1, max_tokens=0)
        pieces += [chunk.choices[0].text for chunk in stream]
    assert len(scored["choices"][0]["logprobs"]["tokens"]) == 1000
    assert "".join(pieces) == alone
    assert live.wait_idle() and live.engine.scheduler.loop.cache.slots == held


def test_shown_tokens(live):
    """What the playground draws: every token with its origin, the texts joined are the answer's."""
    body = {"messages": [{"role": "user", "content": "def f("}], "max_tokens": 30, "temperature": 0, "logprobs": True}
    chunks = live.chunks("chat/completions", **body, outpace={"show": True, "gamma": 4})
    shown = [token for chunk in chunks for token in chunk["choices"][0].get("outpace", {"tokens": []})["tokens"]]
    assert len(shown) == 30
    assert "".join(token["text"] for token in shown) == "".join(c["choices"][0]["delta"]["content"] for c in chunks)
    assert Counter(token["origin"] for token in shown) == chunks[-1]["outpace"]["origins"]
    assert all(token["logprob"] < 0 for token in shown)
    last = chunks[-1]
    assert last["choices"][0]["outpace"]["live"]["alpha"] == last["outpace"]["alpha"]
    assert last["outpace"]["origins"]["draft_model"] == last["outpace"]["accepted"]
    assert json.dumps(live.chunks("chat/completions", **body)).count('"origin"') == 0  # only when asked for


@pytest.mark.parametrize("prompt", ["the dog", "the\n", "é"])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_offsets_where_tokens_bring_a_space_along(prompt, echo, stream):
    """Metaspace tokenizers take the first space away; offsets are those of the text that is there."""
    tokenizer = Tokenizer(metaspace_tokenizer(), bos=1, eos=2, add_bos=True)
    ids, answer = tokenizer.encode(prompt, True), tokenizer.encode("the fox\n日.", False)
    text, decoder = tokenizer.decode(ids) if echo else "", StreamDecoder(tokenizer, ids)
    scored = [(token, -1.0, []) for token in answer]
    echoes = [(text, [(token, None, []) for token in ids])] if echo else []
    shape = TextFormat(tokenizer, [ids], 1, echoes)
    found = [shape.opening()[0]["logprobs"]] if echo and stream else []
    pieces = [decoder.push(token) for token in answer]
    pieces[-1] += decoder.flush()
    if stream:
        ends = [i for i, piece in enumerate(pieces) if piece]
        for start, end in pairwise([0, *[i + 1 for i in ends]]):
            reason = "length" if end == len(answer) else None
            event = Event("".join(pieces[start:end]), answer[start:end], reason, [], scored[start:end])
            found.append(shape.piece(Update(0, event, None, None))["logprobs"])
    else:
        result = Result("".join(pieces), answer, "length", len(ids), Report(), [], scored)
        found.append(shape.whole(0, result)["logprobs"])
    text += "".join(pieces)
    spelt = [token for part in found for token in part["tokens"]]
    offsets = [offset for part in found for offset in part["text_offset"]]
    assert len(spelt) == len(offsets) == len(answer) + echo * len(ids)
    for token, offset in zip(spelt, offsets, strict=True):
        if not token.startswith("bytes:") and token not in ("<s>", "▁"):
            at = text[offset:]
            assert at.startswith(token) or (offset == 0 and at.startswith(token.lstrip(" "))), (token, offset)
