"""Suffix decoding: counts and drafts against a brute-force count, losslessness, a resumed run's state."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from methods.suffix import SEPARATOR, Suffix, grow, matches
from ssd_bench.contract.method import Context, Prefill
from ssd_bench.model.decoder import Decoder
from tests.lossless import Load, check_greedy, decode


def tokens(rng: random.Random, length: int, separators: bool = False) -> list[int]:
    """Return random tokens of a small vocabulary, which often recur."""
    drawn = [rng.randrange(3) for _ in range(length)]
    return [SEPARATOR if separators and rng.random() < 0.1 else token for token in drawn]


def counted(source: Sequence[int], pattern: Sequence[int]) -> list[int]:
    """Return the positions after all occurrences of a pattern."""
    n = len(pattern)
    return [at + n for at in range(len(source) - n + 1) if list(source[at : at + n]) == list(pattern)]


@pytest.mark.parametrize("within", [True, False])
def test_matches_are_all_occurrences_of_every_end(within: bool) -> None:
    for seed in range(200):
        rng = random.Random(seed)
        text = tokens(rng, rng.randint(1, 40))
        past = text if within else tokens(rng, rng.randint(0, 60), separators=True)
        array = np.array(text, np.int64)
        source = array if within else np.array(past, np.int64)
        longest = rng.choice([1, 3, 64])
        seen = [(list(positions), length) for positions, length in matches(source, array, longest)]
        expected = {}
        for length in range(1, min(longest, len(text)) + 1):
            positions = counted(past, text[-length:])
            if within:
                positions = positions[:-1]  # the end of the text itself
            if positions:
                expected[tuple(positions)] = length
        assert {tuple(map(int, positions)): length for positions, length in seen} == expected, seed
        assert all(a[1] < b[1] for a, b in pairwise(seen))


def test_a_draft_has_the_shares_of_its_continuations() -> None:
    drafted = 0
    for seed in range(200):
        rng = random.Random(seed)
        source = tokens(rng, 60, separators=True)
        pattern = tokens(rng, rng.randint(1, 3))
        positions = counted(source, pattern)
        if not positions:
            continue
        size, least, branches = rng.randint(1, 8), rng.choice([0.0, 0.1, 0.4]), rng.random() < 0.5
        array = np.array(source, np.int64)
        draft = grow(array, np.array(positions, np.int64), size, least, branches)
        paths: list[list[int]] = [[]]
        total = 0.0
        for token, parent in zip(draft.tokens, draft.parents):
            paths.append([*paths[parent], token])
            prob = 1.0
            for depth in range(len(paths[-1])):
                before = counted(source, pattern + paths[-1][:depth])
                prob *= len(counted(source, pattern + paths[-1][: depth + 1])) / len(before)
            assert prob >= least
            total += prob
        assert draft.score == pytest.approx(total)
        assert SEPARATOR not in draft.tokens
        assert len({tuple(path) for path in paths}) == len(paths)
        if not branches:
            for depth, token in enumerate(draft.tokens):
                after = Counter(
                    source[at] for at in counted(source, pattern + list(draft.tokens[:depth])) if at < len(source)
                )
                after.pop(SEPARATOR, None)
                assert after[token] == max(after.values())
        drafted += len(draft.tokens)
    assert drafted > 300


def propose(method: Suffix, prompt: list[int], output: list[int]) -> tuple[int, ...]:
    """Return the tokens after the root for this prompt and output."""
    method.start(Prefill(prompt, None))
    return method.propose(Context(1, len(prompt) + len(output) - 1, output, 50)).tokens[1:]


def test_a_longer_match_allows_a_longer_draft() -> None:
    method = Suffix()
    method.prepare(None, ())
    assert propose(method, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], [4]) == (5, 6, 7, 8)
    assert propose(method, [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 2, 3], [4]) == (5, 6, 7)
    assert propose(method, [1, 2, 3], [4]) == ()


def test_earlier_outputs_are_drafted_from(decoder: Decoder) -> None:
    anew, again = Suffix(memory=0), Suffix()
    first = decode(decoder, anew, [5, 6, 7], 40)
    again.prepare(None, ())
    again._past = np.array([SEPARATOR, *first.output], np.int64)
    resumed = Suffix()
    resumed.restore(again.state())
    for method in (again, resumed):
        prompt = [5, 6, 7]
        assert propose(method, prompt, first.output[:3]) == tuple(first.output[3:6])


def test_memory_keeps_the_newest_tokens(decoder: Decoder) -> None:
    method = Suffix(memory=7)
    decode(decoder, method, [5, 6, 7], 30)
    output = decode(decoder, Suffix(), [5, 6, 7], 30).output
    assert method._past.tolist() == output[-7:]


def test_it_is_lossless(decoders: Load) -> None:
    def make(rng: random.Random) -> Suffix:
        return Suffix(
            max_match=rng.choice([1, 4, 64]),
            factor=rng.choice([0.5, 1.0, 3.0]),
            min_prob=rng.choice([0.0, 0.1, 0.6]),
            draft_len=rng.randint(1, 20),
            shape=rng.choice(["chain", "tree"]),
            memory=rng.choice([0, 100]),
        )

    assert check_greedy(make, decoders) > 25
