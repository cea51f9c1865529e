"""Jacobi decoding: AR's text in at most as many passes, in every mode, with any filler; refusals."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from methods.ar import AR
from methods.jacobi import Jacobi
from ssd_bench.contract.method import Context, Prefill
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import Decoder
from ssd_bench.run.plan import plan
from tests.conftest import VOCAB
from tests.lossless import Load, check_greedy, decode, method_of
from tests.runs import composed

PROMPT = [5, 6, 7]


def test_any_settings_are_lossless(decoders: Load) -> None:
    """Any filler will do: its pad id may be likely, and may end outputs."""

    def make(rng: random.Random) -> Jacobi:
        mode = rng.choice(["PJ", "PGJ", "HGJ", "sliding"])
        return method_of(
            "jacobi",
            mode=mode,
            block=rng.choice([1, 2, 3, 5, 8, 16]),
            filler=rng.choice(["pad", "last"]),
            pad_id=rng.choice([0, rng.randrange(VOCAB)]),
            assumed_len=rng.randint(1, 25) if mode == "HGJ" else None,
        )

    assert check_greedy(make, decoders) > 25


@pytest.mark.parametrize("mode", ["PGJ", "sliding"])
def test_block_of_one_is_ar(mode: str, decoder: Decoder) -> None:
    made, ar = (decode(decoder, m, PROMPT, 20) for m in (Jacobi(mode=mode, block=1), AR()))
    assert made.output == ar.output
    assert [(s.tree_nodes, s.emitted) for s in made.steps] == [(s.tree_nodes, s.emitted) for s in ar.steps]


def blocks(decoder: Decoder, method: Jacobi, new: int = 30) -> list[tuple[int, int]]:
    """(nodes fed, tokens emitted) of every step."""
    return [(step.tree_nodes, step.emitted) for step in decode(decoder, method, PROMPT, new).steps]


def test_pgj_empties_a_block_before_the_next(decoder: Decoder) -> None:
    left = 0
    for nodes, emitted in blocks(decoder, Jacobi(block=4)):
        left = left or 4
        assert nodes == left or nodes < left == 4  # only the last block may be cut by the length limit
        left = nodes - emitted
    assert left == 0


def test_pj_has_one_block_of_all_that_is_left(decoder: Decoder) -> None:
    left = 29
    for nodes, emitted in blocks(decoder, Jacobi(mode="PJ")):
        assert nodes == left
        left -= emitted


def test_pj_outgrows_no_cache(decoder: Decoder) -> None:
    """A block longer than the cache's scratch rows."""
    expected = decode(decoder, AR(), PROMPT, 220)
    made = decode(decoder, Jacobi(mode="PJ"), PROMPT, 220)
    assert made.output == expected.output and made.steps[0].tree_nodes == 219


def test_sliding_fills_up_at_every_step(decoder: Decoder) -> None:
    done = 1
    for nodes, emitted in blocks(decoder, Jacobi(mode="sliding", block=6)):
        assert nodes == min(6, 30 - done)
        done += emitted


def test_hgj_is_ar_after_the_assumed_length(decoder: Decoder) -> None:
    """Blocks end exactly at the assumed length; before it, the steps are PGJ's."""
    hybrid = blocks(decoder, Jacobi(mode="HGJ", block=4, assumed_len=13))
    done = 1
    for nodes, emitted in hybrid:
        assert nodes <= max(1, min(4, 13 - done)) and (done < 13 or nodes == 1)
        done += emitted
    assert max(nodes for nodes, _ in hybrid) == 4 and done == 30


class Scripted:
    """A made-up target: the next token is a function of the last two, so guesses come true some steps ahead."""

    def __init__(self, seed: int):
        rng = random.Random(seed)
        self.table = {(a, b): rng.randrange(5) for a in range(5) for b in range(5)}

    def predictions(self, text: list[int]) -> list[int]:
        """Tokens after every position but the first."""
        return [self.table[pair] for pair in zip(text, text[1:])]


@pytest.mark.parametrize("seed", range(5))
def test_never_more_passes_than_the_released_loop(seed: int) -> None:
    """Against the loop whose frontier moves by one and whose block ends early after a pass without a change."""
    target, total, b = Scripted(seed), 40, 5

    def released() -> tuple[list[int], int]:
        text, passes = [0, 0], 0
        for start in range(2, 2 + total, b):
            block = [0] * b
            for _ in range(b):
                passes += 1
                new = target.predictions(text + block[:-1])[start - 2 :]
                changed, block = new != block, new
                if not changed:
                    break
            text += block
        return text, passes

    def ours() -> tuple[list[int], int]:
        method, text, passes = Jacobi(block=b), [0, 0], 0
        method.start(Prefill([0], None))
        while len(text) < 2 + total:
            passes += 1
            tree = method.propose(Context(passes, len(text) - 1, text[1:], 1 + total - len(text)))
            predicted = target.predictions([*text, *tree.tokens[1:]])[len(text) - 2 :]
            m = next((i for i, y in enumerate(tree.tokens[1:]) if y != predicted[i]), len(tree) - 1)
            text += predicted[: m + 1]
            method._guesses = predicted[m + 1 :]
        return text, passes

    (theirs, their_passes), (mine, my_passes) = released(), ours()
    assert mine == theirs and my_passes <= their_passes


def test_filler_equal_to_eos_does_not_stop(decoder: Decoder) -> None:
    """An unverified filler ends nothing; EOS ends the output where AR emits it."""
    ar = decode(decoder, AR(), PROMPT, 30)
    absent = next(token for token in range(VOCAB) if token not in ar.output)
    for eos in (absent, ar.output[9]):
        expected = decode(decoder, AR(), PROMPT, 30, frozenset([eos]))
        for mode in ("PJ", "PGJ", "sliding"):
            made = decode(decoder, Jacobi(mode=mode, pad_id=eos), PROMPT, 30, frozenset([eos]))
            assert (made.output, made.finish_reason) == (expected.output, expected.finish_reason)


def test_fillers() -> None:
    context = Context(1, 3, [9, 8], 10)
    for method, filler in ((Jacobi(pad_id=3), 3), (Jacobi(filler="last"), 8)):
        method.start(Prefill(PROMPT, None))
        assert method.propose(context).tokens == (8, filler, filler, filler, filler)


def test_sampling_is_refused_before_the_model_is_opened(tmp_path: Path) -> None:
    """The model's folder does not exist; greedy decoding gets as far as missing it."""
    options = ["model=local", f"model.path={tmp_path / 'none'}", "model.template=chat", "method=jacobi", "hardware=cpu"]
    sampled, greedy = (composed(*options, f"decode={mode}") for mode in ("sample", "greedy"))
    with pytest.raises(ConfigError, match="jacobi has no sampling mode") as error:
        plan(sampled)
    assert error.value.field == "decode.mode"
    with pytest.raises(ConfigError) as other:
        plan(greedy)
    assert other.value.field != "decode.mode"
