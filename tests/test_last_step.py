"""What a method learns from the step that ends an output: nothing, where every prompt starts anew."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from methods.ar import AR
from methods.clasp import CLaSp
from methods.dynamic_exit import DEL
from methods.knapspec import KnapSpec
from methods.lookahead import Lookahead
from methods.swift import SWIFT
from ssd_bench.core.method import Estimate, Method, Probe, Verification
from ssd_bench.model.decoder import Decoder
from tests.conftest import VOCAB
from tests.lossless import FAMILIES, decode

Load = Callable[..., Decoder]
CASES = 40
ANEW: dict[str, Callable[[], Method]] = {
    "knapspec": lambda: KnapSpec(capture_steps=1, interval=1),
    "clasp": lambda: CLaSp(interval=1),
    "del": DEL,
    "lookahead": lambda: Lookahead(window=3, ngram=3, guesses=3),
}


class Refusing:
    """A probe for a step after which nothing may run."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"probe.{name} was asked for after the output had ended")


def watched(method: Method, seen: list[tuple[bool, bool]]) -> Method:
    """The method; of each step whether it was the last, and whether anything was estimated, are noted."""
    observe = method.observe

    def noting(verification: Verification, probe: Probe) -> Estimate | None:
        if verification.last:
            assert verification.emitted, "a step that ends an output has emitted its end"
        estimate = observe(verification, Refusing() if verification.last else probe)  # type: ignore[arg-type]
        seen.append((verification.last, estimate is not None))
        return estimate

    method.observe = noting  # type: ignore[method-assign]
    return method


@pytest.mark.parametrize("name", ANEW)
def test_nothing_is_searched_after_the_end(name: str, decoders: Load) -> None:
    """However an output ends, and whatever the settings: one step is the last, and it is the last one."""
    ends, estimates = set(), 0
    for seed in range(CASES):
        rng = random.Random(seed)
        decoder = decoders(rng.choice(FAMILIES))
        prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([2, 7, 30]))]
        new, spare = rng.choice([2, 9, 30]), rng.choice([None, 5])
        eos = frozenset([rng.randrange(VOCAB)]) if rng.random() < 0.6 else frozenset[int]()
        seen: list[tuple[bool, bool]] = []
        made = decode(decoder, watched(ANEW[name](), seen), prompt, new, eos, spare)
        assert made.output == decode(decoder, AR(), prompt, new, eos, spare).output
        assert [last for last, _ in seen] == [False] * (len(seen) - 1) + [True] * bool(seen)
        assert not seen or not seen[-1][1]
        ends.add(made.finish_reason)
        estimates += sum(estimated for _, estimated in seen)
    assert ends == {"eos", "length", "context"}
    assert estimates or name in ("clasp", "lookahead")


def test_what_lasts_goes_on_learning(decoders: Load) -> None:
    """A search whose state outlives the prompt looks at a candidate after its last step, too."""
    method, scored = SWIFT(context_window=4, max_score=1.0), []
    observe, score = method.observe, method._score_one

    def noting(verification: Verification, probe: Probe) -> Estimate | None:
        before = len(scored)
        estimate = observe(verification, probe)
        last.append((verification.last, len(scored) > before))
        return estimate

    def scoring(length: int, probe: Probe) -> None:
        scored.append(length)
        score(length, probe)

    last: list[tuple[bool, bool]] = []
    method.observe, method._score_one = noting, scoring  # type: ignore[method-assign]
    decode(decoders(), method, [3, 5, 8, 13], 12)
    assert last[-1] == (True, True)
