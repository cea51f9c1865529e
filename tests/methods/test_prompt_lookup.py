"""Prompt lookup: candidates against Hugging Face's and a scan of the text, losslessness."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from methods.prompt_lookup import PromptLookup
from ssd_bench.contract.method import Context, Prefill
from tests.lossless import Load, check_greedy


def drafts(
    method: PromptLookup, prompt: Sequence[int], output: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield every step's text and draft, for an output that grows by these numbers of tokens."""
    method.start(Prefill(list(prompt), None))
    length = 1
    for step, size in enumerate(sizes, start=1):
        shown = list(output[:length])
        draft = method.propose(Context(step, len(prompt) + length - 1, shown, 100)).tokens[1:]
        yield [*prompt, *shown], list(draft)
        length += size


def text(rng: random.Random) -> tuple[list[int], list[int], list[int]]:
    """Return a prompt and an output of few different tokens, and each step's number of tokens."""
    vocabulary = rng.choice([2, 4, 30])
    prompt = [rng.randrange(vocabulary) for _ in range(rng.choice([1, 2, 5, 40]))]
    sizes = [rng.randint(1, 4) for _ in range(12)]
    output = [rng.randrange(vocabulary) for _ in range(1 + sum(sizes))]
    if rng.random() < 0.3:  # an output that repeats itself
        output = (output[: rng.randint(1, 5)] * len(output))[: len(output)]
    return prompt, output, sizes


def test_candidates_are_those_of_hugging_face() -> None:
    drafted = 0
    for seed in range(150):
        rng = random.Random(seed)
        prompt, output, sizes = text(rng)
        size, ngram = rng.choice([1, 4, 10]), rng.randint(1, 4)
        judge = PromptLookupCandidateGenerator(num_output_tokens=size, max_matching_ngram_size=ngram, max_length=10**6)
        method = PromptLookup(max_ngram=ngram, draft_len=size, whole=False)
        for shown, draft in drafts(method, prompt, output, sizes):
            assert draft == judge.get_candidates(torch.tensor([shown]))[0][0, len(shown) :].tolist(), seed
            drafted += len(draft)
    assert drafted > 1500


@pytest.mark.parametrize("match", ["earliest", "latest"])
@pytest.mark.parametrize("whole", [True, False])
def test_candidates_are_those_of_a_scan(match: str, whole: bool) -> None:
    drafted = 0
    for seed in range(100):
        rng = random.Random(seed)
        prompt, output, sizes = text(rng)
        highest = rng.choice([1, 2, 3, 4, 12, 300, 2**31 - 1])
        method = PromptLookup(
            max_ngram=highest,
            min_ngram=rng.randint(1, min(highest, 6)),
            draft_len=rng.choice([1, 3, 8]),
            match=match,
            whole=whole,
        )
        for shown, draft in drafts(method, prompt, output, sizes):
            assert draft == scanned(method, shown), seed
            drafted += len(draft)
    assert drafted > 500


def scanned(method: PromptLookup, tokens: list[int]) -> list[int]:
    """Return the draft by scanning the whole text for every length of n-gram."""
    for n in range(min(method.max_ngram, len(tokens)), method.min_ngram - 1, -1):
        ends = [end for end in range(n, len(tokens)) if tokens[end - n : end] == tokens[-n:] and n < len(tokens)]
        if ends:
            end = ends[0] if method.match == "earliest" else ends[-1]
            if not method.whole or end + method.draft_len <= len(tokens):
                return tokens[end : end + method.draft_len]
    return []


def test_it_is_lossless(decoders: Load) -> None:
    def make(rng: random.Random) -> PromptLookup:
        highest = rng.randint(1, 4)
        return PromptLookup(
            max_ngram=highest,
            min_ngram=rng.randint(1, highest),
            draft_len=rng.randint(1, 12),
            match=rng.choice(["earliest", "latest"]),
            whole=rng.random() < 0.5,
        )

    assert check_greedy(make, decoders) > 12
