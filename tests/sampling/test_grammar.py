"""Structured output: the mask is a function of the prefix, and drafting does not show in what is said."""

import contextlib
import json
import random
import re
from itertools import product

import jsonschema_rs
import numpy as np
import pytest
import tokenizers
from tests.helpers.shipped import model, new_engine, shared_engine
from tokenizers import decoders, models

from outpace.audit.drive import PROMPT, commit_until, decode, remembered, session
from outpace.audit.exact import enumerate_distribution, plain_distribution, total_variation
from outpace.audit.shapes import Scripted, sampled_tree, top_tree
from outpace.audit.toy import hashed_logits, mixed_logits
from outpace.core.errors import ConstraintError, ParameterError
from outpace.core.types import CONSTRAINTS, Constraint, Proposal, SamplingParams
from outpace.sampling.grammar import Grammars
from outpace.sampling.pipeline import Pipeline
from outpace.sampling.random_source import KeyedRandomSource
from outpace.text.tokenizer import Tokenizer
from outpace.verify import block, match, ratio

A, B, END = 0, 1, 2
PATTERN = "(ab|ba){1,3}a?"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def toy_grammars(*letters: str, **limits: int) -> Grammars:
    """Over a vocabulary of one token a letter, and an end token as the last."""
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate([*letters, "<end>"])}, []))
    backend.add_special_tokens(["<end>"])
    backend.decoder = decoders.ByteLevel()
    return Grammars(Tokenizer(backend), [len(letters)], **limits)


AB = toy_grammars("a", "b")


def brute_force(text: str, longest: int = 7) -> list[int]:
    """The tokens after which ``text`` can still become a match, tried out."""
    if not re.fullmatch("[ab]*", text):
        return [END]
    matches = [
        "".join(w) for n in range(longest + 1) for w in product("ab", repeat=n) if re.fullmatch(PATTERN, "".join(w))
    ]
    going_on = {word[len(text)] for word in matches if word.startswith(text) and len(word) > len(text)}
    ids = [{"a": A, "b": B}[letter] for letter in going_on] + [END] * (text in matches)
    return sorted(ids) or [END]


def test_masks_are_what_trying_out_finds_on_any_branch_in_any_order():
    grammar = AB.grammar(Constraint("regex", PATTERN))
    words = [list(w) for n in range(9) for w in product((A, B), repeat=n)]
    random.Random(1).shuffle(words)
    for word in words:
        text = "".join("ab"[token] for token in word)
        assert grammar.allowed(word).tolist() == brute_force(text), text
        assert grammar.allowed([*word, END]).tolist() == [END]
        assert grammar.allowed([*word, END, A]).tolist() == [END]


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_the_state_after_any_walk_is_that_of_a_fresh_one(kind):
    """B55: rejected drafts leave the grammar as if never seen."""
    tiny = model()
    grammars = Grammars(tiny.tokenizer, tiny.end_tokens)
    constraint = Constraint(kind, json.dumps(SCHEMA) if kind == "json_schema" else "")
    rng, grammar, prefix = random.Random(5), grammars.grammar(constraint), []
    for step in range(150):
        mask = grammar.allowed(prefix)
        fresh = grammars.grammar(constraint)
        assert np.array_equal(fresh.allowed(prefix), mask)
        if step % 4 == 0:
            assert np.array_equal(grammar.allowed(prefix), mask)
        if step % 5 == 4:
            prefix = prefix[: max(0, len(prefix) - rng.randrange(5))]
        forbidden = sorted(set(range(1024)) - set(grammar.allowed(prefix).tolist()))
        if step % 7 == 6 and forbidden:
            assert grammar.allowed([*prefix, rng.choice(forbidden), 5]).tolist() == sorted(tiny.end_tokens)
        choice = [t for t in grammar.allowed(prefix).tolist() if t not in tiny.end_tokens]
        prefix = [*prefix, rng.choice(choice)] if choice else prefix[: len(prefix) // 2]


BLANKS = re.compile(r'"(?:[^"\\]|\\.)*(?:"|$)|(\s+)')


def longest_blanks(text: str) -> int:
    """Of those outside strings."""
    return max((len(blanks) for blanks in BLANKS.findall(text)), default=0)


@pytest.mark.parametrize("schema", ["", json.dumps(SCHEMA), '{"type": "array", "items": {"type": "object"}}', "true"])
@pytest.mark.parametrize("blank", ["\n", " ", "\t", "\r", " \n"])
def test_blanks_outside_strings_of_a_json_answer_are_bounded(schema, blank):
    """A walk that takes a blank wherever one may stand, and otherwise opens as much as it can."""
    tiny = model()
    grammar = Grammars(tiny.tokenizer, tiny.end_tokens).grammar(
        Constraint("json_schema" if schema else "json_object", schema)
    )
    rng, ids, texts = random.Random(3), [], [tiny.tokenizer.decode([i]) for i in range(tiny.tokenizer.size)]
    for _ in range(400):
        allowed = [i for i in grammar.allowed(ids).tolist() if i not in tiny.end_tokens]
        if not allowed:
            break
        blanks = [i for i in allowed if texts[i] and set(texts[i]) <= set(blank)]
        opening = [i for i in allowed if texts[i].strip() in ("{", "[", ":", ",")]
        ids.append(max(blanks, key=lambda i: len(texts[i])) if blanks else rng.choice(opening or allowed))
    assert longest_blanks(tiny.tokenizer.decode(ids)) <= 72
    assert len(ids) > 10


@pytest.mark.parametrize("indent", [None, 1, 4, "\t"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n"])
def test_pretty_printed_json_may_be_written(indent, ends):
    value: object = {"name": "x", "tags": [1, {"deep": [[], {}, [True, None]]}]}
    for _ in range(5):
        value = {"in": [value, 2.5]}
    text = json.dumps(value, indent=indent).replace("\n", ends)
    tiny = model()
    grammar = Grammars(tiny.tokenizer, tiny.end_tokens).grammar(Constraint("json_object"))
    ids = tiny.tokenizer.encode(text, add_special=False)
    for place, token in enumerate(ids):
        assert token in grammar.allowed(ids[:place]), text[:place]
    assert set(grammar.allowed(ids).tolist()) & tiny.end_tokens


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("regex", r"\{\n*\}"),
        Constraint("lark", 'start: "{" /\\n*/ "}"'),
        Constraint("json_schema", '{"type": "object", "x-guidance": {"whitespace_pattern": "\\\\n*"}}'),
    ],
    ids=lambda one: one.kind,
)
def test_blanks_that_the_user_wrote_stay_as_they_are(constraint):
    """Also those that a schema asks for in llguidance's own words."""
    tiny = model()
    grammar = Grammars(tiny.tokenizer, tiny.end_tokens).grammar(constraint)
    (end,) = tiny.tokenizer.encode("\n", add_special=False)
    ids = [*tiny.tokenizer.encode("{", add_special=False), *[end] * 300]
    assert end in grammar.allowed(ids)


def pipeline(params: SamplingParams, grammars: Grammars = AB) -> Pipeline:
    return Pipeline(params, len(PROMPT), grammars=grammars)


@pytest.mark.parametrize("rule", [ratio, block], ids=["ratio", "block"])
@pytest.mark.parametrize("shape", ["drawn", "blind", "tree"])
def test_the_distribution_is_the_constrained_targets(rule, shape):
    """Enumerated: drafts drawn under the mask; drafts that do not know it; drawn siblings."""
    if shape == "tree" and not rule.TREES:
        pytest.skip("chains only")
    target = remembered(hashed_logits(3, 1))
    draft = remembered(mixed_logits(target, hashed_logits(3, 2), 0.3))
    params = SamplingParams(temperature=1.0, constraint=Constraint("regex", PATTERN))
    free = Pipeline(SamplingParams(temperature=1.0))
    widths = [2] if shape == "tree" else [1, 1]
    count = 3

    def run(rng):
        drafter = Scripted(sampled_tree(draft, widths, replacement=True, pipeline=free if shape == "blind" else None))
        one = session(count=count, gamma=2, rng=rng, params=params, pipeline=pipeline(params))
        tokens = decode(target, 3, drafter, rule, one, commit_until({END}, count))
        assert not one.report.warnings
        return tokens

    distribution = {}
    for tokens, weight in plain_distribution(target, pipeline(params), PROMPT, count).items():
        cut = tokens[: tokens.index(END) + 1] if END in tokens else tokens
        distribution[cut] = distribution.get(cut, 0.0) + weight
    assert total_variation(enumerate_distribution(run), distribution) < 1e-9
    for tokens in distribution:
        text = "".join("ab"[t] for t in tokens if t != END)
        assert re.fullmatch(PATTERN, text) if END in tokens else brute_force(text) != [END]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_any_draft_leaves_the_tokens_of_match(temperature):
    target = remembered(hashed_logits(3, 4))
    params = SamplingParams(temperature=temperature, constraint=Constraint("regex", "(ab|ba|b)+"))
    for seed in range(8):
        expected = None
        for gamma, drafter in [(0, Scripted(lambda one, budget: Proposal())),
                               (3, Scripted(top_tree(target, [1, 1, 1]))),
                               (6, Scripted(sampled_tree(target, [2, 1, 1], replacement=False)))]:  # fmt: skip
            one = session(count=20, gamma=gamma, rng=KeyedRandomSource(seed), params=params, pipeline=pipeline(params))
            found = decode(target, 3, drafter, match, one, commit_until({END}))
            expected = expected or found
            assert found == expected and not one.report.warnings


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["draft_model", "lookup"])
def test_a_schema_is_kept_and_drafting_does_not_show(drafter, temperature):
    """B55: the closing brace and the end token come at any place of a run."""
    engine, accepted = shared_engine(drafter), 0
    for seed in range(1 if temperature == 0 else 3):
        params = SamplingParams(
            temperature=temperature, seed=seed, max_tokens=80, constraint=Constraint("json_schema", json.dumps(SCHEMA))
        )
        plainly = engine.generate("def f(x):", params, gamma=0)
        for gamma in (1, 5):
            drafted = engine.generate("def f(x):", params, gamma=gamma)
            assert (drafted.text, drafted.token_ids) == (plainly.text, plainly.token_ids)
            assert not drafted.report.warnings
            accepted += drafted.report.accepted
        if plainly.finish_reason == "stop":
            assert jsonschema_rs.is_valid(SCHEMA, json.loads(plainly.text)), plainly.text
    assert accepted > 0 or drafter == "lookup"


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        (Constraint("regex", "[0-9]{4}-[0-9]{2}"), r"\d{4}-\d\d"),
        (Constraint("lark", 'start: "x" NUMBER\nNUMBER: /[0-9]{3,5}/'), r"x\d{3,5}"),
        (Constraint("gbnf", 'root ::= ("yes" | "no") "!"'), r"(yes|no)!"),
        (Constraint("json_object"), r"(?s)\{.*\}"),
    ],
    ids=lambda value: value.kind if isinstance(value, Constraint) else "",
)
def test_every_kind_ends_in_a_whole_answer(constraint, pattern):
    engine = shared_engine()
    for accept in ("match", "ratio"):
        params = SamplingParams(temperature=1.0, seed=11, max_tokens=400, constraint=constraint)
        result = engine.generate("The answer is ", params, accept=accept)
        assert result.finish_reason == "stop"
        assert re.fullmatch(pattern, result.text)
        assert result.token_ids[-1] in engine.target.end_tokens


def test_a_draft_whose_head_lacks_the_allowed_tokens_drafts_all_the_same():
    params = SamplingParams(temperature=1.0, constraint=Constraint("regex", "ba"))
    distribution = pipeline(params).distribution(np.array([0.0, -np.inf, -np.inf], dtype=np.float32), PROMPT)
    assert distribution.token(0) == B and distribution.size == 1
    either = SamplingParams(temperature=1.0, constraint=Constraint("regex", "[ab]c"))
    distribution = pipeline(either, toy_grammars("a", "b", "c")).distribution(
        np.array([-np.inf, -np.inf, 1.0, 2.0], dtype=np.float32), PROMPT
    )
    assert distribution.ids.tolist() == [0, 1] and distribution.probs.tolist() == [0.5, 0.5]


def test_a_draft_with_a_shorter_vocabulary_sees_the_mask_as_far_as_it_goes():
    params = SamplingParams(temperature=1.0, constraint=Constraint("regex", "a?b?"))
    assert pipeline(params).distribution(np.zeros(2, dtype=np.float32), PROMPT).ids.tolist() == [A, B]


@pytest.mark.parametrize(
    ("constraint", "word"),
    [
        (Constraint("json_schema", "{"), "json_schema"),
        (Constraint("json_schema", "[]"), "json_schema"),
        (Constraint("json_schema", '{"type": "nonsense"}'), "nonsense"),
        (Constraint("json_schema", '{"$ref": "#/nowhere"}'), "nowhere"),
        (Constraint("regex", "(a"), "regex"),
        (Constraint("lark", "start: missing"), "missing"),
        (Constraint("gbnf", 'root ::= "a'), "gbnf"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused_at_the_door(constraint, word):
    with pytest.raises(ParameterError, match=rf"constraint.*{word}"):
        shared_engine().generate("x", SamplingParams(constraint=constraint))


def test_limits():
    with pytest.raises(ParameterError, match="constraint has 40 bytes, more than the 30"):
        toy_grammars("a", most_bytes=30).grammar(Constraint("regex", "a" * 40))
    with pytest.raises(ParameterError, match="constraint regex cannot be used.*too big"):
        toy_grammars("a", "b", fuel=1).grammar(Constraint("regex", "(a|b)*a(a|b){200}"))
    with pytest.raises(ParameterError, match="constraint lark cannot be used.*too big"):
        toy_grammars("a", "b", most_symbols=50).grammar(Constraint("lark", "start: " + ' ("a"|"b")*' * 100))


def test_a_constraint_that_grows_too_complex_ends_its_request_alone():
    grammar = toy_grammars("a", "b", step_fuel=1).grammar(Constraint("regex", "((a|b)*a(a|b){12})?b+"))
    with pytest.raises(ConstraintError, match="after"):
        [grammar.allowed([A, B, B, A] * length) for length in range(40)]


def test_a_text_that_the_vocabulary_cannot_write():
    grammar = toy_grammars("a", "b").grammar(Constraint("regex", "ac"))
    with pytest.raises(ConstraintError, match="constraint cannot be followed after 1 tokens"):
        grammar.allowed([A])


def test_constraints_say_what_they_are():
    with pytest.raises(ParameterError, match="constraint must be one of"):
        Constraint("yaml", "x")
    with pytest.raises(ParameterError, match="needs a text"):
        Constraint("regex")
    with pytest.raises(ParameterError, match="takes no text"):
        Constraint("json_object", "{}")
    assert set(CONSTRAINTS) == {"json_object", "json_schema", "regex", "lark", "gbnf"}
    with pytest.raises(ParameterError, match="needs a tokenizer"):
        Pipeline(SamplingParams(constraint=Constraint("json_object")))
    with pytest.raises(ParameterError, match="end token"):
        new_engine("lookup", end_tokens=()).generate("x", SamplingParams(constraint=Constraint("json_object")))


# Behind a "b" the masks are cheap; on paths with several "a" one takes more steps than 50 allow.
COSTLY = Constraint("regex", "b{1,8}|a((a|b)*a(a|b){12})?b+")


def allowed_along(grammar, tokens):
    """The masks along a path, and the error that ends them."""
    masks = []
    for length in range(len(tokens) + 1):
        try:
            masks.append(grammar.allowed(tokens[:length]).tolist())
        except ConstraintError:
            return [*masks, "error"]
    return masks


def test_a_limit_that_one_path_reaches_leaves_all_other_paths_alone():
    """llguidance's copies of a matcher share their lexer's errors."""
    cheap, costly = [B] * 8, [A] * 6
    alone = allowed_along(toy_grammars("a", "b", step_fuel=50).grammar(COSTLY), cheap)
    assert "error" not in alone
    grammars = toy_grammars("a", "b", step_fuel=50)
    first, other = grammars.grammar(COSTLY), grammars.grammar(COSTLY)
    assert allowed_along(first, costly)[-1] == "error"
    for grammar in (first, other, first, grammars.grammar(COSTLY)):
        assert allowed_along(grammar, cheap) == alone
        assert allowed_along(grammar, costly)[-1] == "error"


def test_what_drafts_explore_is_nothing_to_the_target():
    compiled = toy_grammars("a", "b", step_fuel=50).compiled(COSTLY)
    target, drafts = compiled.grammar(COSTLY), compiled.drafts.grammar(COSTLY)
    assert allowed_along(drafts, [A] * 6)[-1] == "error" and compiled.failed
    assert allowed_along(drafts, [B])[-1] == "error"  # no draft, and no time spent on another lexer
    assert target._cache_users and "error" not in allowed_along(target, [B] * 8) and target._cache_users


@pytest.mark.parametrize("rule", [match, ratio, block], ids=["match", "ratio", "block"])
@pytest.mark.parametrize("widths", [[1, 1, 1, 1], [2, 1, 1]], ids=["chain", "tree"])
@pytest.mark.parametrize("said", ["bbb.", "abbaab"])
def test_a_request_ends_as_without_drafts(rule, widths, said):
    """The target's text, and whether an error ends it, are plain decoding's: the draft goes down the costly path."""
    if len(set(widths)) > 1 and not rule.TREES:
        pytest.skip("chains only")
    text = ["ab.".index(letter) for letter in said]
    target = remembered(
        lambda prefix: np.eye(3, dtype=np.float32)[text[min(len(prefix) - len(PROMPT), len(text) - 1)]] * 50
    )
    draft = remembered(lambda prefix: np.array([9.0, 8.0, 0.0], dtype=np.float32))
    params = SamplingParams(temperature=1.0, constraint=COSTLY)
    ends = {}
    for drafter, gamma in ((Scripted(lambda one, budget: Proposal()), 0), (drawing(draft, widths), 6)):
        compiled = toy_grammars("a", "b", step_fuel=50).compiled(COSTLY)
        one = session(count=12, gamma=gamma, params=params,
                      pipeline=Pipeline(params, len(PROMPT), grammars=compiled.drafts))  # fmt: skip
        one.target_pipeline = Pipeline(params, len(PROMPT), grammars=compiled)
        with contextlib.suppress(ConstraintError):
            decode(target, 3, drafter, rule, one, commit_until({END}))
        ends[gamma] = one.generated, type(one.error), one.finish
        assert gamma == 0 or any("drafting failed" in warning for warning in one.report.warnings)
    assert ends[0] == ends[6]
    assert (ends[0][1] is ConstraintError) == (said != "bbb.")


def drawing(draft, widths):
    """Draws and submits what it has drawn, also where the constraint ends it."""
    return Scripted(sampled_tree(draft, widths, replacement=False))


EXPENSIVE = Constraint("regex", "a{0,9}|b[ab]{0,400}[ab]*a[ab]{12}b")  # behind b a mask takes more than 30 steps


def test_a_lexer_that_has_failed_forbids_nothing_silently():
    """It refuses tokens without an error, which must not end an answer."""
    grammars = toy_grammars("a", "b", step_fuel=30)
    one, other = grammars.grammar(EXPENSIVE), grammars.grammar(EXPENSIVE)
    for _ in range(2):
        assert one.allowed([A]).tolist() == [A, END]
        with pytest.raises(ConstraintError, match="after 1 tokens: lexer error"):
            one.allowed([B])
        assert one.allowed([A, A]).tolist() == other.allowed([A, A]).tolist() == [A, END]
        assert grammars.grammar(EXPENSIVE).allowed([A] * 6).tolist() == [A, END]
        assert one.allowed([A, B]).tolist() == [END]
