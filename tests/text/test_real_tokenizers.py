"""The real files against independent implementations: the gguf package's reader, transformers' tokenizers."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path

import gguf
import numpy as np
import platformdirs
import pytest
import tokenizers
from tokenizers import normalizers, pre_tokenizers

from outpace.files.checkpoint import open_checkpoint
from outpace.text.detokenizer import StreamDecoder

pytestmark = pytest.mark.audit
FILES = ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
_SNIPPETS = [
    "Hello world",
    "  ",
    "    ",
    "\t\t",
    "\n",
    "\n\n\n",
    "\r\n",
    " \n ",
    "1",
    "42",
    "1234567890",
    "3.14159",
    "1,000,000",
    "it's",
    "I'LL",
    "don't",
    "'Re",
    "café",
    "naïve",
    "Ünïcödé",
    "日本語",
    "漢字かな交じり文",
    "한국어",
    "привет",
    "עברית",
    "العربية",
    "١٢٣",
    "½²",
    "🙂",
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "e\u0301",
    "a\u0308o",
    "\u200b",
    "\u00a0",
    "…",
    "—",
    "∑∫√",
    "def f(x):\n\treturn x**2",
    "for (int i = 0; i < n; ++i) {",
    "#include <stdio.h>",
    "a_b-c.d/e\\f",
    "!!!???",
    "<html></html>",
    "snake_case_name",
    "CamelCaseName",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "user\n",
    "https://example.org/?q=1&b=%20",
    "$x^2$",
    "\x00\x07",
    "\ufffd",
    "word " * 5,
    "\u3000",
    "Zażółć gęślą jaźń",
    "ไทย",
    "हिन्दी",
]


def strings() -> list[str]:
    """200 strings: each snippet alone, then random mixtures."""
    draw = random.Random(44)
    mixed = ["".join(draw.choices(_SNIPPETS, k=draw.randint(2, 9))) for _ in range(200 - len(_SNIPPETS))]
    return [*_SNIPPETS, *mixed]


@pytest.fixture(scope="module", params=FILES)
def path(request) -> Path:
    file = Path(platformdirs.user_cache_dir("outpace")) / "models" / f"{request.param}.gguf"
    if not file.exists():
        pytest.skip(f"{file.name} has not been pulled")
    return file


@pytest.fixture(scope="module")
def checkpoint(path):
    return open_checkpoint(path)


@pytest.fixture(scope="module")
def reference(path) -> tokenizers.Tokenizer:
    """transformers' tokenizer of the same file, corrected where its conversion leaves the source's definition:

    - Qwen2's source composes characters first (transformers' own Qwen2Tokenizer sets NFC; the conversion of
      GGUF files drops it), so "e" + combining accent is one "é".
    - SmolLM's source splits digits one by one before GPT-2's pattern ("Digits" then "ByteLevel" in its
      tokenizer.json; ``tokenizer.ggml.pre`` = "smollm" says so); the conversion keeps GPT-2's pattern alone.
    """
    from transformers import AutoTokenizer

    backend = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    if path.stem.startswith("qwen"):
        backend.normalizer = normalizers.NFC()
    else:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(False, use_regex=True)])
    return backend


def test_ids_equal_and_decode_back(checkpoint, reference):
    tokenizer = checkpoint.tokenizer
    composes = "NFC" in str(reference.normalizer)
    for text in strings():
        ids = tokenizer.encode(text, False)
        assert ids == reference.encode(text, add_special_tokens=False).ids, text
        expected = unicodedata.normalize("NFC", text) if composes else text
        assert tokenizer.decode(ids, skip_special=False) == expected
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_every_token_has_its_string(checkpoint, reference):
    ours = checkpoint.tokenizer.tokens()
    assert ours == [reference.id_to_token(index) for index in range(len(ours))]


def test_streams_equal_whole_decodes(checkpoint):
    tokenizer = checkpoint.tokenizer
    draw = random.Random(1)
    runs = [tokenizer.encode(text, False) for text in strings()]
    runs += [[draw.randrange(tokenizer.size) for _ in range(60)] for _ in range(200)]
    for ids in runs:
        decoder = StreamDecoder(tokenizer)
        assert "".join(map(decoder.push, ids)) + decoder.flush() == tokenizer.decode(ids)


def test_header_equals_the_package_reader(path, checkpoint):
    theirs = gguf.GGUFReader(path)
    assert len(theirs.tensors) == len(checkpoint.tensors)
    ours = {tensor.stored_name: tensor for tensor in checkpoint.tensors.values()}
    for tensor in theirs.tensors:
        mine = ours[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert mine.kind == tensor.tensor_type.name
        assert np.array_equal(mine.data.reshape(-1), tensor.data.view(np.uint8).reshape(-1))


def test_end_tokens_are_those_of_the_instruct_models(checkpoint):
    names = {checkpoint.tokenizer.token(token) for token in checkpoint.end_tokens}
    assert names == {"<|im_end|>", "<|endoftext|>"}
    assert json.dumps(sorted(checkpoint.end_tokens))  # plain integers
