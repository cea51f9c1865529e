"""Prompt encoding: templates, special tokens, and clipping that is exact and maximal."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from ssd_bench.contract.task import Prompt
from ssd_bench.data.prompting import encode
from ssd_bench.errors import ConfigError
from ssd_bench.model.template import Template
from tests.conftest import CHAT, make_tokenizer

TOKENIZER = make_tokenizer(CHAT)


def make_prompt(body: str, head: str = "Read this:\n\n", tail: str = "\n\nSummary:") -> Prompt:
    return Prompt(id="toy-1", head=head, body=body, tail=tail, reference="", domain="toy")


def expected_text(text: str, template: str) -> str:
    return f"<s>{text}" if template == "plain" else f"<s><|user|>{text.strip()}\n<|assistant|>"


@pytest.mark.parametrize("template", ["chat", "plain"])
@pytest.mark.parametrize("limit", [None, 10_000])
def test_a_prompt_that_fits_is_left_alone(template: str, limit: int | None) -> None:
    prompt = make_prompt("the ferry report")
    encoded = encode(prompt, TOKENIZER, Template(template), limit)
    assert TOKENIZER.decode(list(encoded.ids)) == expected_text("Read this:\n\nthe ferry report\n\nSummary:", template)
    assert encoded.ids.count(TOKENIZER.bos_token_id) == 1
    assert encoded.clipped == 0


def test_the_hash_is_that_of_the_ids() -> None:
    one, two = (encode(make_prompt(body), TOKENIZER, Template("plain"), None) for body in ("one", "two"))
    assert len(one.sha256) == 64
    assert one.sha256 != two.sha256
    assert one == encode(make_prompt("one"), TOKENIZER, Template("plain"), 500)


def fits(prompt: Prompt, body: str, template: str, limit: int) -> bool:
    whole = make_prompt(body, prompt.head, prompt.tail)
    return len(encode(whole, TOKENIZER, Template(template), None).ids) <= limit


def check_clip(prompt: Prompt, template: str, limit: int) -> None:
    """Check that at most `limit` ids hold head, tail and as much of a body's start as fits."""
    full = encode(prompt, TOKENIZER, Template(template), None)
    clipped = encode(prompt, TOKENIZER, Template(template), limit)
    assert 1 <= len(clipped.ids) <= limit
    assert clipped.clipped == len(full.ids) - len(clipped.ids)
    ends = TOKENIZER(prompt.body, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    cuts = sorted({end for _, end in ends} | {len(prompt.body)})
    bodies = [prompt.body[:cut] for cut in cuts]
    texts = [expected_text(prompt.head + body + prompt.tail, template) for body in bodies]
    kept = max(i for i, text in enumerate(texts) if text == TOKENIZER.decode(list(clipped.ids)))
    assert kept == len(cuts) - 1 or not fits(prompt, bodies[kept + 1], template, limit)


@pytest.mark.parametrize("template", ["chat", "plain"])
@settings(max_examples=60, deadline=None)
@given(
    body=st.text(alphabet="the reportéf日🙂 \n.", min_size=1, max_size=120).filter(lambda text: text.strip() != ""),
    cut=st.integers(1, 80),
)
def test_clipping_is_exact_and_maximal(template: str, body: str, cut: int) -> None:
    prompt = make_prompt("the " + body)
    limit = len(encode(prompt, TOKENIZER, Template(template), None).ids) - cut
    if limit >= len(encode(make_prompt("the"), TOKENIZER, Template(template), None).ids):
        check_clip(prompt, template, limit)


def test_clipping_a_long_body_asks_the_tokenizer_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    words = random.Random(0).choices(["the", "ferry", "report", "日本", "café,", "\n\n"], k=6000)
    prompt, calls = make_prompt(" ".join(words)), 0
    call: Callable[..., object] = type(TOKENIZER).__call__

    def counted(self: object, *args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return call(self, *args, **kwargs)

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", counted)
    assert 990 < len(encode(prompt, TOKENIZER, Template("plain"), 1000).ids) <= 1000
    assert calls < 30


@pytest.mark.parametrize("template", ["chat", "plain"])
def test_every_limit_from_the_smallest_that_fits(template: str) -> None:
    prompt = make_prompt("the report of the ferry service, 日本語 text")
    smallest = len(encode(make_prompt("the"), TOKENIZER, Template(template), None).ids)
    for limit in range(smallest, len(encode(prompt, TOKENIZER, Template(template), None).ids)):
        check_clip(prompt, template, limit)
    with pytest.raises(ConfigError, match=r"prompt='toy-1' .*its head and tail alone are longer.*longer context"):
        encode(prompt, TOKENIZER, Template(template), smallest - 1)


@pytest.mark.parametrize("limit", [3, 0, -5])
def test_a_prompt_without_a_body_is_never_cut(limit: int) -> None:
    prompt = make_prompt("", head="Question: how many?\nAnswer:", tail="")
    length = len(encode(prompt, TOKENIZER, Template("plain"), None).ids)
    with pytest.raises(ConfigError, match=rf"prompt='toy-1' .*at most {limit} tokens; it has {length} .*shots"):
        encode(prompt, TOKENIZER, Template("plain"), limit)


def test_an_empty_prompt_is_refused() -> None:
    bare = make_tokenizer(None)
    bare.backend_tokenizer.post_processor = processors.ByteLevel()
    with pytest.raises(ConfigError, match=r"prompt='toy-1' .*at least one"):
        encode(make_prompt("", head="", tail=""), bare, Template("plain"), None)
