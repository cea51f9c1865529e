"""Verification on the drafts' states: logits and tapped states of a whole pass, with any taps."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import LayerDraft
from ssd_bench.model.decoder import Decoder, Pass
from tests.conftest import LAYERS, VOCAB
from tests.lossless import Drafting, Load, check_greedy, decode

END = 2 * LAYERS
EXITS = [LayerSet.exit(LAYERS, blocks) for blocks in range(1, LAYERS)]
PROMPTS = ([5, 6, 7], list(range(3, 50)), [9])


def watching(sets: Sequence[LayerSet], taps: Sequence[int], max_len: int = 4, stop_below: float = 0.0) -> Drafting:
    return Drafting(*(LayerDraft(layer_set, max_len, stop_below) for layer_set in sets), taps=taps, reuse_prefix=True)


def forked(rng: random.Random) -> LayerSet:
    """A set with any first skipped sublayer."""
    fork = rng.randrange(1, END)
    return LayerSet(LAYERS, frozenset([fork, *(i for i in range(fork, END) if rng.random() < 0.7)]))


def some_taps(rng: random.Random) -> tuple[int, ...]:
    return tuple(i for i in range(END + 1) if rng.random() < rng.choice([0.2, 0.5, 1.0]))


def check_as_a_whole_pass(
    decoder: Decoder,
    sets: Sequence[LayerSet],
    taps: Sequence[int],
    prompt: Sequence[int],
    rests: list[int],
    exact: bool,
    **options: object,
) -> None:
    """Same trees, paths, logits and tapped states with reuse as without; used for every draft, and only then.

    Args:
        exact: bit for bit; else up to the order of sums.
    """
    made = [watching(sets, taps) for _ in range(2)]
    for method, reuse in zip(made, (True, False)):
        rests.clear()
        decode(decoder, method, prompt, 16, reuse_prefix=reuse, **options)
        drafts = [sets[v.step % len(sets)].first_changed for v in method.seen if len(v.tree) > 1]
        assert rests == (drafts if reuse else []) and drafts
    for saved, whole in zip(made[0].seen, made[1].seen, strict=True):
        assert (saved.tree.tokens, saved.path, saved.emitted) == (whole.tree.tokens, whole.path, whole.emitted)
        assert (saved.hidden is None) == (whole.hidden is None) == (not taps)
        for one, other in ((saved.logits, whole.logits), (saved.hidden, whole.hidden)):
            if one is None or other is None:
                continue
            assert one.shape == other.shape and one.dtype == other.dtype
            assert torch.equal(one, other) if exact else torch.allclose(one, other, atol=1e-10)


@pytest.mark.parametrize(
    ("family", "dtype", "kernels"),
    [
        ("llama", torch.float64, "torch"),
        ("qwen2", torch.float32, "native"),
        ("qwen3", torch.float32, "native"),
        ("qwen3", torch.bfloat16, "native"),
    ],
)
def test_states_are_those_of_a_whole_pass(
    family: str, dtype: torch.dtype, kernels: str, decoders: Load, rests: list[int]
) -> None:
    """Every exit with all taps, and random sets and taps below, at and above the fork.

    Compiled kernels make even a sampled output equal.
    """
    decoder, rng, places, exact = decoders(family, dtype, kernels), random.Random(family), set(), kernels == "native"
    for layer_set in EXITS:
        check_as_a_whole_pass(decoder, [layer_set], range(END + 1), PROMPTS[0], rests, exact)
    for case in range(25 if exact else 10):
        layer_set, taps = forked(rng), some_taps(rng)
        places |= {(t > layer_set.first_changed) - (t < layer_set.first_changed) for t in taps}
        options = {"mode": "sample", "temperature": 0.7} if exact and case % 3 == 0 else {}
        check_as_a_whole_pass(decoder, [layer_set, *EXITS], taps, rng.choice(PROMPTS), rests, exact, **options)
    assert places == {-1, 0, 1}


def test_drafting_keeps_no_more_than_is_asked_for(decoders: Load, passes: list[Pass]) -> None:
    """The fork alone without taps; with taps also those before it, which no later pass keeps again."""
    for taps, early, rest in (
        ((), (4,), ()),
        ((0, 2, 4, 6), (0, 2, 4), (4, 6)),
        ((6, 8), (4,), (6, 8)),
    ):
        passes.clear()
        decode(decoders(), watching([LayerSet.exit(LAYERS, 2)], taps, 3), PROMPTS[0], 5)
        seen = [(len(one.sublayers), len(one.nodes), tuple(one.taps)) for one in passes[1:6]]
        assert seen == [(4, 1, early)] * 4 + [(4, 4, rest)]


def test_greedy_equals_ar_with_any_taps(decoders: Load) -> None:
    def make(rng: random.Random) -> Drafting:
        sets = [forked(rng), rng.choice(EXITS), LayerSet(LAYERS, frozenset([0, rng.randrange(VOCAB) % END]))]
        return watching(sets, some_taps(rng), rng.randint(1, 8), rng.choice([0.0, 0.1]))

    assert check_greedy(make, decoders) > 25
