"""LayerSkip: draft with the first E blocks, verify with the rest (Elhoushi et al., ACL 2024, arXiv 2404.16710).

Exit E and draft length d are fixed for a run: by settings (`LayerSkip`), or by a sweep before it (`SweptLayerSkip`).
Verification reuses the drafts' states, keys and values of the first E blocks, and runs these blocks only on the last
drafted token. There is no confidence rule. The weights must be trained for early exits.

The authors time a decoding with every pair of E and d (facebookresearch/LayerSkip, sweep.py). Here one autoregressive
decoding of each calibration prompt scores all pairs. Up to its exit a draft computes the full model's states, so an
exit's predictions after the model's own tokens give the steps of a decoding with any draft length. The score is these
steps' speedup at measured costs (`layer_search.expected_speedup`; `arms.Costs` has head, embedding and the growth of a
verification with its nodes). A given profile has only the times of sublayers; then the score is that of
`layer_search.Objective`. With a window, predictions still read all positions; costs are those with the window.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Annotated

from methods.ar import AR
from methods.arms import Costs
from methods.draft_stop import DraftStop, StoppedDraft
from methods.layer_search import DraftedStep, expected_speedup
from methods.settings import LONGEST_PRICED, Calibration, DraftLen, Name, NewTokens, ReusePrefix
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Prefill, Probe, Sample, Taps, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, Fits, Range, settings

DEFAULT_RATIO = 0.25  # 8 of 32 blocks: the released code's README, example for the 7B model


@settings("method")
class LayerSkip(StoppedDraft):
    """Drafting with the same first blocks in every step."""

    name: Name = "layerskip"
    exit_layer: Count | None = None
    """E, blocks that draft; L: the full model."""
    exit_ratio: Annotated[float, Range(above=0, most=1, what="a share")] | None = None
    """E as a share of L: E = max(1, round(ratio L)); null: 0.25, unless `exit_layer` is set."""
    draft_len: DraftLen = 6
    """d, drafted tokens per step."""
    reuse_prefix: ReusePrefix = True
    """Verify on the drafts' states; false: run all blocks again."""

    def __post_init__(self) -> None:
        if self.exit_layer is not None and self.exit_ratio is not None:
            expected = f"null, since there is method.exit_layer={self.exit_layer}"
            raise ConfigError("method.exit_ratio", self.exit_ratio, expected)
        self._stop = DraftStop(self.draft_len, stop_below=0.0, reading=self._reading)

    def check(self, dims: ModelDims) -> None:
        """Fix the layer set for this model.

        Raises:
            ConfigError: the model has fewer blocks than the exit.
        """
        ratio = DEFAULT_RATIO if self.exit_ratio is None else self.exit_ratio
        blocks = max(1, round(ratio * dims.n_layers)) if self.exit_layer is None else self.exit_layer
        if blocks > dims.n_layers:
            raise ConfigError("method.exit_layer", blocks, f"at most {dims.n_layers}, the blocks of {dims.name}")
        self._layer_set = LayerSet.exit(dims.n_layers, blocks)


@settings("method")
class SweptLayerSkip(StoppedDraft):
    """LayerSkip with the exit and draft length that score best on calibration prompts."""

    searched = True

    name: Name = "layerskip_swept"
    calibration: Calibration = 8
    exits: Annotated[Sequence[Count], Fits("at least one number of blocks, each >= 1", len)] | None = None
    """Values of E to try, at most L - 1; null: 1 to L - 1."""
    draft_lens: Annotated[
        Sequence[Annotated[int, Range(1, LONGEST_PRICED)]],
        Fits(f"at least one length, each in [1, {LONGEST_PRICED}]", len),
    ] = (1, 2, 3, 4, 5, 6)
    """Values of d to try."""
    new_tokens: NewTokens = 32
    reuse_prefix: ReusePrefix = True

    def __post_init__(self) -> None:
        self._stop = DraftStop(max(self.draft_lens), stop_below=0.0, reading=self._reading)

    def check(self, dims: ModelDims) -> None:
        """Fix the exits to try; draft with the full model until `prepare`.

        Raises:
            ConfigError: a one-block model, or an exit that this model lacks.
        """
        last = dims.n_layers - 1
        if last < 1:
            raise ConfigError("model.n_layers", dims.n_layers, "at least 2 blocks: an exit comes before the last one")
        self._exits = sorted(set(range(1, last + 1) if self.exits is None else self.exits))
        if self._exits[-1] > last:
            raise ConfigError("method.exits", self.exits, f"at most {last}: {dims.name} has {dims.n_layers} blocks")
        self._layer_set = LayerSet.full(dims.n_layers)

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Score every pair and draft with the best; ties go to the earlier exit, then the shorter draft."""
        begin, n_layers = time.perf_counter(), probe.n_layers
        decodings = [exit_matches(probe, sample.prompt, self._exits, self.new_tokens) for sample in samples]
        reading, longest = self._reading, max(self.draft_lens)
        costs = cache(partial(Costs, probe.latency, n_layers, longest=longest, reuse=self.reuse_prefix))
        scores = {}
        for row, blocks in enumerate(self._exits):
            price = price_function(reading.set_of(LayerSet.exit(n_layers, blocks)), costs)
            for d in self.draft_lens:
                steps = (step for prompt_len, match in decodings for step in simulated_steps(prompt_len, match[row], d))
                scores[blocks, d] = expected_speedup(steps, price)
        blocks, d = max(scores, key=lambda pair: (scores[pair], -pair[0], -pair[1]))
        self._layer_set, self._stop = LayerSet.exit(n_layers, blocks), DraftStop(d, 0.0, reading=reading)
        print(
            f"{self.name}: exit after {blocks} of {n_layers} blocks, {d} tokens a draft: score {scores[blocks, d]:.4f} "
            f"(expected), the best of {len(scores)} pairs in {time.perf_counter() - begin:.1f} s",
            file=sys.stderr,
        )


def price_function(layer_set: LayerSet, costs: Callable[[int], Costs]) -> Callable[[int, int], tuple[float, float]]:
    """Return the `price` of `expected_speedup` for drafts with a set.

    Args:
        costs: context -> costs of a step there.
    """

    @cache
    def times(context: int) -> tuple[float, float, list[float]]:
        step = costs(context)
        return step.ar_ms, step.draft_ms(layer_set), step.verify_ms(layer_set).tolist()

    def price(context: int, length: int) -> tuple[float, float]:
        ar, token, verify = times(context)
        return ar, length * token + verify[length]

    return price


class _ExitPredictions(AR):
    """Autoregressive decoding that compares every exit's prediction with the next token."""

    def __init__(self, exits: Sequence[int]):
        super().__init__("exits")
        self.taps = Taps(verify=tuple(2 * blocks for blocks in exits))

    def start(self, prefill: Prefill) -> None:
        self.match: list[list[bool]] = [[] for _ in self.taps.verify]

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        assert verification.hidden is not None
        for match, token in zip(self.match, probe.predict(verification.hidden[:, 0]).tolist()):
            match.append(token == verification.emitted[0])
        return None


def exit_matches(
    probe: Probe, prompt: Sequence[int], exits: Sequence[int], new_tokens: int
) -> tuple[int, list[list[bool]]]:
    """Decode a prompt and compare the predictions of the exits (ascending) with the output of `new_tokens` tokens.

    Returns:
        The prompt's length and, by exit, whether it predicts output token 2, 3, ..
    """
    method = _ExitPredictions(exits)
    probe.trial(method, prompt, new_tokens)
    return len(prompt), method.match


def simulated_steps(prompt_len: int, match: Sequence[bool], draft_len: int) -> Iterator[DraftedStep]:
    """Yield the steps of a decoding with drafts of up to d = `draft_len` tokens.

    Args:
        match: one exit's matches, from `exit_matches`; the output has one more token.
    """
    done, total = 1, len(match) + 1  # output tokens; the first comes from the prefill
    while done < total:
        length = min(draft_len, total - done - 1)  # as the engine's limit: the target adds a token of its own
        draft = match[done - 1 : done - 1 + length]
        accepted = draft.index(False) if False in draft else length
        yield DraftedStep(prompt_len + done - 1, length, accepted + 1)
        done += accepted + 1
