"""Every parameter, through the official client, streamed and whole, with drafts: the answer is what plain decoding
with the same parameters gives."""

import json
import re

import pytest
from tests.helpers.shipped import new_engine

from outpace import SamplingParams
from outpace.core.types import Constraint

TEXT = "class Reader:\n    def read(self, path):\n        with open(path) as f:\n            return"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "def main("}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"],
          "additionalProperties": False}  # fmt: skip

# What the client does not know, or not for both endpoints.
OURS = {"top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos", "response_format", "outpace"}

# Fields of a request, and the parameters that they mean; "changes": whether the answer is another than without them.
CASES = {
    "greedy": ({"temperature": 0}, {}, True),
    "seed": ({"seed": 7}, {"temperature": 1.0, "seed": 7}, True),
    "temperature": ({"temperature": 0.6, "seed": 3}, {"temperature": 0.6, "seed": 3}, True),
    "top_p": ({"seed": 3, "top_p": 0.5}, {"temperature": 1.0, "seed": 3, "top_p": 0.5}, True),
    "top_k": ({"seed": 3, "top_k": 3}, {"temperature": 1.0, "seed": 3, "top_k": 3}, True),
    "min_p": ({"seed": 3, "min_p": 0.2}, {"temperature": 1.0, "seed": 3, "min_p": 0.2}, True),
    "all of them": (
        {"temperature": 0.9, "seed": 4, "min_p": 0.01, "top_k": 40, "top_p": 0.9},
        {"temperature": 0.9, "seed": 4, "min_p": 0.01, "top_k": 40, "top_p": 0.9},
        True,
    ),
    "presence_penalty": ({"temperature": 0, "presence_penalty": 2}, {"presence_penalty": 2.0}, True),
    "frequency_penalty": ({"temperature": 0, "frequency_penalty": 1.5}, {"frequency_penalty": 1.5}, True),
    "repetition_penalty": ({"temperature": 0, "repetition_penalty": 1.8}, {"repetition_penalty": 1.8}, True),
    "logit_bias": ({"temperature": 0, "logit_bias": {"276": -9, "639": 4}}, {"logit_bias": {276: -9, 639: 4}}, None),
    "stop": ({"temperature": 0, "stop": ["\n  ", "("]}, {"stop": ["\n  ", "("]}, True),
    "one stop": ({"temperature": 0, "stop": "get"}, {"stop": "get"}, True),
    "ignore_eos": ({"temperature": 0, "ignore_eos": True}, {"ignore_eos": True}, None),
    "regex": (
        {"temperature": 0, "response_format": {"type": "regex", "regex": "[a-c]{3}-[0-9]{2}"}},
        {"constraint": Constraint("regex", "[a-c]{3}-[0-9]{2}")},
        True,
    ),
    "grammar": (
        {"temperature": 0, "response_format": {"type": "grammar", "grammar": 'start: "yes" | "no"'}},
        {"constraint": Constraint("lark", 'start: "yes" | "no"')},
        True,
    ),
    "json_schema": (
        {"seed": 5, "response_format": {"type": "json_schema", "json_schema": {"name": "ab", "schema": SCHEMA}}},
        {"temperature": 1.0, "seed": 5, "constraint": Constraint("json_schema", json.dumps(SCHEMA))},
        True,
    ),
    "gamma": ({"temperature": 0, "outpace": {"gamma": 7}}, {}, None),
    "lookup": ({"temperature": 0, "outpace": {"drafter": "lookup"}}, {}, None),
    "off": ({"temperature": 0, "outpace": {"off": True}}, {}, None),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain():
    return new_engine("none")


def ask(live, chat, fields, **more):
    known = {name: value for name, value in fields.items() if name not in OURS}
    extra = {name: value for name, value in fields.items() if name in OURS}
    create = live.openai.chat.completions.create if chat else live.openai.completions.create
    prompt = {"messages": MESSAGES} if chat else {"prompt": TEXT}
    return create(model="tiny", max_tokens=24, extra_body=extra, **prompt, **known, **more)


def text_of(choice):
    return choice.text if hasattr(choice, "text") else choice.message.content


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_plain_decoding(live, plain, name, chat):
    """B09, B16, B23, B31, B55: whatever drafts, every control acts at every place of a run."""
    fields, meant, _ = CASES[name]
    reference = plain.generate(MESSAGES if chat else TEXT, SamplingParams(max_tokens=24, **meant))
    whole = ask(live, chat, fields)
    assert text_of(whole.choices[0]) == reference.text
    assert whole.choices[0].finish_reason == reference.finish_reason
    assert whole.usage.completion_tokens == len(reference.token_ids)
    assert whole.usage.prompt_tokens == reference.prompt_tokens
    pieces, finish = "", []
    for chunk in ask(live, chat, fields, stream=True):
        (choice,) = chunk.choices
        pieces += (choice.delta.content or "") if chat else choice.text
        finish.append(choice.finish_reason)
    assert pieces == reference.text
    assert finish[-1] == reference.finish_reason and set(finish[:-1]) <= {None}


@pytest.mark.parametrize("name", [name for name, (_, _, changes) in CASES.items() if changes])
def test_they_have_an_effect(live, name):
    fields = CASES[name][0]
    without = {key: fields[key] for key in ("temperature", "seed") if key in fields}
    without = {"greedy": {"seed": 1}, "temperature": {"seed": 3}, "seed": {"seed": 8}}.get(name, without)
    assert text_of(ask(live, False, fields).choices[0]) != text_of(ask(live, False, without).choices[0])


def test_a_bias_forbids_and_forces(live):
    """B46: -100 on the token that would come, at every place of a run; +100 forces one."""
    greedy = live.complete(prompt=TEXT, max_tokens=12, temperature=0, logprobs=0)
    first = greedy["choices"][0]["logprobs"]["tokens"][0]
    token = live.engine.target.tokenizer.encode(first, add_special=False)[0]
    banned = live.complete(prompt=TEXT, max_tokens=24, temperature=0, logprobs=0, logit_bias={str(token): -100})
    assert first not in banned["choices"][0]["logprobs"]["tokens"]
    forced = live.complete(prompt=TEXT, max_tokens=5, temperature=0, logprobs=0, logit_bias={str(token): 100})
    assert forced["choices"][0]["logprobs"]["tokens"] == [first] * 5


def test_stop_token_ids(live, plain):
    ids = plain.generate(TEXT, SamplingParams(max_tokens=24)).token_ids
    for place in (0, 3, 8):
        answer = live.complete(prompt=TEXT, max_tokens=24, temperature=0, stop_token_ids=[ids[place]])
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == ids.index(ids[place]) + 1


def test_structured_answers_fit(live):
    """B55: JSON by a schema and free JSON; sampled, with drafts of any depth."""
    for seed in range(2):
        for kind in ({"type": "json_object"}, CASES["json_schema"][0]["response_format"]):
            answers = set()
            for outpace in ({}, {"gamma": 9}, {"off": True}):
                body = {
                    "messages": MESSAGES,
                    "max_tokens": 60,
                    "seed": seed,
                    "response_format": kind,
                    "outpace": outpace,
                }
                (choice,) = live.post("chat/completions", body).json()["choices"]
                answers.add(choice["message"]["content"])
                if choice["finish_reason"] == "stop":
                    value = json.loads(choice["message"]["content"])
                    assert kind["type"] == "json_object" or (isinstance(value["a"], int) and value["b"] in ("x", "y"))
            assert len(answers) == 1


def test_a_grammar_that_cannot_be_read_names_the_field(live):
    for wanted in ({"type": "regex", "regex": "("}, {"type": "grammar", "grammar": "start: nothing"}):
        answer = live.post("completions", {"prompt": TEXT, "response_format": wanted})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "response_format"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prediction_is_drafted_from(live, stream):
    """The answer is the same; usage says how much of the prediction was accepted."""
    body = {"messages": MESSAGES, "max_tokens": 40, "temperature": 0, "outpace": {"drafter": "lookup"}}
    truth = live.post("chat/completions", body).json()
    content = truth["choices"][0]["message"]["content"]
    assert truth["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] == 0
    for predicted, right in ((content, True), ([{"type": "text", "text": content}], True), ("9 8 7 6", False)):
        asked = {**body, "prediction": {"type": "content", "content": predicted}}
        if stream:
            asked["stream_options"] = {"include_usage": True}
            chunks = live.chunks("chat/completions", **asked)
            told = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
            usage = chunks[-1]["usage"]
        else:
            answer = live.post("chat/completions", asked).json()
            told, usage = answer["choices"][0]["message"]["content"], answer["usage"]
        assert told == content
        details = usage["completion_tokens_details"]
        size = len(live.engine.target.tokenizer.encode(predicted if isinstance(predicted, str) else content, False))
        assert details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"] == size
        assert (details["accepted_prediction_tokens"] > size // 2) == right


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers(live, plain, stream):
    """B50: each sample has its own random draws, finish reason and log-probabilities; usage sums them."""
    fields = {"prompt": [TEXT, "import os\n"], "n": 3, "seed": 5, "max_tokens": 12, "logprobs": 1, "stop": "\n"}
    texts, finishes, counts = [""] * 6, [None] * 6, [0] * 6
    if stream:
        chunks = live.chunks("completions", **fields, stream_options={"include_usage": True})
        choices, usage = [choice for chunk in chunks for choice in chunk["choices"]], chunks[-1]["usage"]
    else:
        answer = live.complete(**fields)
        choices, usage = answer["choices"], answer["usage"]
        assert [choice["index"] for choice in choices] == list(range(6))
    for choice in choices:
        texts[choice["index"]] += choice["text"]
        counts[choice["index"]] += len(choice["logprobs"]["tokens"])
        finishes[choice["index"]] = choice["finish_reason"] or finishes[choice["index"]]
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=12, stop="\n")
    expected = [plain.generate(prompt, params, sample=i) for prompt in fields["prompt"] for i in range(3)]
    assert texts == [result.text for result in expected]
    assert finishes == [result.finish_reason for result in expected]
    assert counts == [len(result.token_ids) for result in expected]
    assert usage["completion_tokens"] == sum(counts)
    assert usage["prompt_tokens"] == expected[0].prompt_tokens + expected[3].prompt_tokens
    assert len(set(texts[:3])) > 1


def test_unseeded_answers_differ_and_name_their_seed(live):
    """B32."""
    answers = [live.complete(prompt=TEXT, max_tokens=12) for _ in range(6)]
    assert len({answer["choices"][0]["text"] for answer in answers}) > 4
    again = live.complete(prompt=TEXT, max_tokens=12, seed=answers[0]["outpace"]["seed"])
    assert again["choices"][0]["text"] == answers[0]["choices"][0]["text"]


def test_token_ids_as_prompts(live):
    ids = live.engine.encode(TEXT)
    texts = [
        live.complete(prompt=prompt, max_tokens=8, temperature=0)["choices"][0]["text"] for prompt in (TEXT, ids, [ids])
    ]
    assert len(set(texts)) == 1


@pytest.mark.parametrize("gamma", [0, 5])
def test_finish_reasons(live, gamma):
    """B20, B21, B29, B49: the limit, the end of the context, a stop; none, one and two tokens."""

    def ask(**body):
        answer = live.complete(temperature=0, outpace={"gamma": gamma}, **body)
        return answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]

    for count in (0, 1, 2, 3, 7):
        assert ask(prompt=TEXT, max_tokens=count, ignore_eos=True) == ("length", count)
    context = live.engine.target.runtime.context
    for left in (0, 1, 2, 5):
        assert ask(prompt=[5] * (context - left), max_tokens=100, ignore_eos=True) == ("length", left)
    assert ask(prompt=TEXT, max_tokens=100, stop="(")[0] == "stop"
    body = {"messages": [{"role": "user", "content": "x " * 980}], "temperature": 0, "ignore_eos": True}
    usage = live.post("chat/completions", {**body, "outpace": {"gamma": gamma}}).json()["usage"]
    assert 0 < usage["completion_tokens"] < 200
    assert usage["total_tokens"] == context  # without a limit of its own, an answer may fill the context


def test_the_request_decides_about_drafting_for_itself_only(live):
    """B60, B61: A, B, A, and the report says what was at work."""

    def ask(outpace):
        return live.complete(prompt=TEXT, max_tokens=20, temperature=0, outpace=outpace)

    first, off, lookup, third = ask({"gamma": 3}), ask({"off": True}), ask({"drafter": "lookup"}), ask({"gamma": 3})
    assert len({answer["choices"][0]["text"] for answer in (first, off, lookup, third)}) == 1
    names = ("drafter", "gamma", "drafted", "tested", "accepted", "target_passes", "origins")
    assert [first["outpace"][name] for name in names] == [third["outpace"][name] for name in names]
    assert first["outpace"]["drafter"] == "draft_model" and first["outpace"]["gamma"] == 3
    assert first["outpace"]["drafted"] <= 3 * first["outpace"]["target_passes"]
    assert off["outpace"]["drafter"] == "none" and off["outpace"]["drafted"] == 0
    assert off["outpace"]["target_passes"] == off["usage"]["completion_tokens"]
    assert lookup["outpace"]["drafter"] == "lookup"


def test_counts_are_of_what_was_emitted(live):
    """B57: in the answer, and in the metrics."""

    def totals():
        text, names = live.http.get("/metrics").text, ("tokens", "drafted_tokens", "tested_tokens", "accepted_tokens")
        names = (*names, "target_passes")
        found = {name: re.findall(rf"(?m)^outpace_{name}_total(?:{{.*}})? (\S+)$", text) for name in names}
        return {name: sum(map(float, values)) for name, values in found.items()}

    before = totals()
    answer = live.complete(prompt=TEXT, max_tokens=40, temperature=0, stop="return", outpace={"gamma": 6})
    gained = {name: value - before[name] for name, value in totals().items()}
    usage, counts = answer["usage"], answer["outpace"]
    assert usage["completion_tokens"] == gained["tokens"] == sum(counts["origins"].values())
    for name in ("drafted", "tested", "accepted"):
        assert gained[f"{name}_tokens"] == counts[name]
    assert gained["target_passes"] == counts["target_passes"]
    assert counts["drafted"] >= counts["tested"] >= counts["accepted"]
    assert counts["accepted"] == sum(
        n for o, n in counts["origins"].items() if o not in ("bonus", "correction", "plain")
    )
