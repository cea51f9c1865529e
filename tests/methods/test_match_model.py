"""The match model: matches and counts against a scan of the text, drafts that gain most, state."""

from __future__ import annotations

import random

import pytest

from methods.match_model import CLASS_OF, CLASSES, LONGEST, ORDER, SEPARATOR, MatchModel

FREE = [1.0] * 100  # milliseconds of a verification that does not grow


def newest_match(text: list[int]) -> tuple[int, int]:
    """Return the position after the newest earlier occurrence of the longest end of up to ORDER tokens, by a scan."""
    for n in range(min(ORDER, len(text) - 1), 0, -1):
        for place in range(len(text) - 1, n - 1, -1):
            if text[place - n : place] == text[-n:] and SEPARATOR not in text[-n:]:
                return place, n
    return 0, 0


def common_end(text: list[int], place: int) -> int:
    """Return how many tokens before `place` equal the text's end, without a separator."""
    length = 0
    while length < min(LONGEST, place) and text[place - 1 - length] == text[-1 - length] != SEPARATOR:
        length += 1
    return length


@pytest.mark.parametrize("seed", range(20))
def test_the_match_is_an_occurrence_and_as_long_as_it_says(seed: int) -> None:
    """A match below ORDER tokens is the newest; a longer one is followed while it predicts."""
    rng = random.Random(seed)
    vocabulary, model, text, followed = rng.choice([2, 3, 20]), MatchModel(10_000, 2.5, 256), [], 0
    for _ in range(3):
        prompt = [rng.randrange(vocabulary) for _ in range(rng.choice([1, 4, 30]))]
        model.start(prompt, 0.0)
        text += [SEPARATOR, *prompt]
        for _ in range(60):
            token = rng.randrange(vocabulary)
            model.extend([token])
            text.append(token)
            place, length = newest_match(text)
            if not length:
                assert model._length == 0
                continue
            assert model._length == common_end(text, model._source) >= min(length, ORDER)
            if length < ORDER:
                assert model._source == place
            followed += model._length > ORDER
    assert vocabulary == 20 or followed > 10


def test_counts_are_those_of_every_prediction() -> None:
    """Each output token after a match counts once in the class of its length, drafted or not."""
    rng = random.Random(0)
    model, expected = MatchModel(10_000, 2.5, 256), [[0, 0] for _ in CLASSES]
    model.start([1, 2, 3], 0.0)
    before = [list(pair) for pair in model._counts]
    for _ in range(300):
        token = rng.randrange(3)
        if model._length and model._text[model._source] != SEPARATOR:
            expected[CLASS_OF[model._length]][model._text[model._source] == token] += 1
        model.extend([token])
    made = [[now - old for now, old in zip(pair, first)] for pair, first in zip(model._counts, before)]
    assert made == [pytest.approx(pair) for pair in expected] and sum(map(sum, expected)) > 250


@pytest.mark.parametrize("seed", range(10))
def test_the_draft_gains_most(seed: int) -> None:
    """Its length is a brute force's over all lengths, its expected tokens the posterior's."""
    rng = random.Random(seed)
    model = MatchModel(10_000, 2.5, 256)
    model.start([1, 2, 3, 4, 5, 6] * 4, 0.0)
    for pair in model._counts:
        pair[:] = [rng.random() + 0.01, 5 * rng.random()]
    model.extend([1, 2, 3])
    costs, rate = [1.0], rng.choice([0.5, 1.0, 2.0])
    for _ in range(12):
        costs.append(costs[-1] + rng.choice([0.0, 0.05, 0.4]))
    values, reached, expected = [1 - rate * costs[0]], 1.0, [1.0]
    for k in range(12):
        pair = model._counts[CLASS_OF[min(model._length + k, LONGEST)]]
        reached *= pair[1] / sum(pair)
        expected.append(expected[-1] + reached)
        values.append(expected[-1] - rate * costs[k + 1])
    tokens, promised = model.draft(12, costs, rate)
    best = values.index(max(values))
    assert len(tokens) == best and promised == pytest.approx(expected[best])
    assert tokens == ([4, 5, 6, 1, 2, 3] * 2)[:best]


def test_no_draft_runs_into_another_text() -> None:
    model = MatchModel(10_000, 2.5, 256)
    model.start([5, 6, 7], 0.0)
    model.extend([8])
    model.start([1, 5, 6], 0.0)
    model.extend([7])
    assert model.draft(5, FREE, 0.1)[0] == [8]
    model.extend([8])
    assert model.draft(5, FREE, 0.1) == ([], 1.0)


def test_memory_bounds_earlier_text() -> None:
    for memory, drafted in ((100, [3]), (0, [])):
        model = MatchModel(memory, 2.5, 256)
        model.start([1, 2, 3], 0.0)
        model.start([7, 1], 0.0)
        model.extend([2])
        assert model.draft(1, FREE, 0.1)[0] == drafted


def test_counts_are_bounded_and_fade() -> None:
    model = MatchModel(1000, 2.5, 10)
    model.start([1], 0.0)
    model.extend([1] * 500)
    model.start([1], 0.0)
    assert all(sum(pair) <= 10 + 1e-9 for pair in model._counts)
    model.start([1], 1.0)
    assert model._counts == [pytest.approx(pair) for pair in model._prior]
    assert [pair[1] / sum(pair) for pair in model._prior] == [pytest.approx(n / (n + 2)) for n in CLASSES]


def test_a_copy_at_the_start_of_a_step_counts_as_right_as_earlier_ones() -> None:
    """Each step begins with a token that breaks the match, and goes on with text that repeats."""
    model = MatchModel(10_000, 2.5, 256.0)
    model.start([*range(10, 30)] * 2, 0.0)
    for step in range(30):
        model.extend([1000 + step, *range(10, 20)])
    costs, forgetful = [1.0] * 9, MatchModel(10_000, 2.5, 256.0)
    forgetful.restore(model.state() | {"starts": [4.0, 4.0]})
    for one in (model, forgetful):
        one.extend([*range(10, 20)])
    expected = [one.draft(8, costs, 0.1)[1] for one in (model, forgetful)]
    assert 1 < expected[0] < 1 + (expected[1] - 1) / 2
    model.extend([])  # no step: nothing to count
    assert model.draft(8, costs, 0.1)[1] == expected[0]
