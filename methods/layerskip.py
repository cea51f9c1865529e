"""LayerSkip: draft with the first E blocks, verify with the rest (Elhoushi et al., ACL 2024, arXiv 2404.16710).

Exit E and draft length d are fixed for a run: given (`LayerSkip`), or found before it (`SweptLayerSkip`). Verification
takes over what drafting computed in the first E blocks, states and keys and values alike, and runs these blocks only
for the last drafted token. There is no confidence rule. Pays with weights trained for early exits; on others an exit
this early predicts little.

One thing differs from the released code: the prompt is processed by all blocks before the first step, where the code
has no such pass and drafts the first output token too.

The authors find E and d by decoding with every pair (facebookresearch/LayerSkip, sweep.py), timed. Here all pairs are
scored on one autoregressive decoding of each calibration prompt. Up to its exit a draft computes what the full model
does, so that what an exit says after each of the model's own tokens tells where a draft of any length would have ended:
the steps are those of a decoding with the pair, the score is their speedup at measured costs (`layer_search.expected`,
`arms.Costs`: head, embedding, and what each further node of a verification takes). Of a profile that was given, which
has the sublayers' times alone, it is the score of `layer_search.Objective`. With a window the sweep still asks exits
that read all positions; its costs are those of the window.
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
from methods.layer_search import Drafted, expected
from methods.settings import Calibration, DraftLen, Name, NewTokens, ReusePrefix
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Estimate, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.core.window import Window
from ssd_bench.errors import ConfigError
from ssd_bench.model.shape import ModelDims
from ssd_bench.settings import Count, Fits, Range, settings

DEFAULT_RATIO = 0.25  # 8 of 32 blocks: the released code's README, example for the 7B model


@settings("method")
class LayerSkip(StoppedDraft):
    """Draft every step with the same leading blocks."""

    name: Name = "layerskip"
    exit_layer: Count | None = None
    """E, blocks that draft; L is the full model."""
    exit_ratio: Annotated[float, Range(above=0, most=1, what="a share")] | None = None
    """Instead of E its share of the L blocks: E = max(1, round(ratio L)); null: 0.25, unless `exit_layer` is given."""
    draft_len: DraftLen = 6
    """d, tokens drafted per step."""
    reuse_prefix: ReusePrefix = True
    """Verify on the states that drafting left; false runs all blocks again, as for any layer set."""

    def __post_init__(self) -> None:
        if self.exit_layer is not None and self.exit_ratio is not None:
            allowed = f"null, since there is method.exit_layer={self.exit_layer}"
            raise ConfigError("method.exit_ratio", self.exit_ratio, allowed)
        self._stop = DraftStop(self.draft_len, stop_below=0.0, window=self._window)

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
    """LayerSkip with the exit and draft length of the best score on prompts that the run does not evaluate."""

    searched = True

    name: Name = "layerskip_swept"
    calibration: Calibration = 8
    exits: Annotated[Sequence[Count], Fits("one number of blocks or more, each at least 1", len)] | None = None
    """Values of E to try, the last of them L - 1; null: all up to it."""
    draft_lens: Annotated[Sequence[Count], Fits("one length or more, each at least 1", len)] = (1, 2, 3, 4, 5, 6)
    """Values of d to try."""
    new_tokens: NewTokens = 32
    reuse_prefix: ReusePrefix = True

    def __post_init__(self) -> None:
        self._stop = DraftStop(max(self.draft_lens), stop_below=0.0, window=self._window)

    def check(self, dims: ModelDims) -> None:
        """Fix the exits to try; draft with the full model until `prepare`.

        Raises:
            ConfigError: a model of one block, which has no exit, or an exit that is none of this model's.
        """
        last = dims.n_layers - 1
        if last < 1:
            raise ConfigError("model.n_layers", dims.n_layers, "at least 2 blocks: an exit comes before the last one")
        self._exits = sorted(set(range(1, last + 1) if self.exits is None else self.exits))
        if self._exits[-1] > last:
            raise ConfigError("method.exits", self.exits, f"at most {last}: {dims.name} has {dims.n_layers} blocks")
        self._layer_set = LayerSet.full(dims.n_layers)

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Score every pair; the best one drafts, the earlier exit and then the shorter draft among equals."""
        begin, n_layers = time.perf_counter(), probe.n_layers
        made = [shadow(probe, sample.prompt, self._exits, self.new_tokens) for sample in samples]
        window, longest = self._window, max(self.draft_lens)
        costs = cache(partial(Costs, probe.latency, n_layers, longest=longest, reuse=self.reuse_prefix))
        scores = {}
        for row, blocks in enumerate(self._exits):
            price = prices(LayerSet.exit(n_layers, blocks), costs, window)
            for d in self.draft_lens:
                steps = (step for prompt_len, right in made for step in drafted(prompt_len, right[row], d))
                scores[blocks, d] = expected(steps, price)
        blocks, d = max(scores, key=lambda pair: (scores[pair], -pair[0], -pair[1]))
        self._layer_set, self._stop = LayerSet.exit(n_layers, blocks), DraftStop(d, stop_below=0.0, window=window)
        print(
            f"{self.name}: exit after {blocks} of {n_layers} blocks, {d} tokens a draft: score {scores[blocks, d]:.4f} "
            f"(expected), the best of {len(scores)} pairs in {time.perf_counter() - begin:.1f} s",
            file=sys.stderr,
        )


def prices(
    layer_set: LayerSet, costs: Callable[[int], Costs], window: Window | None = None
) -> Callable[[int, int], tuple[float, float]]:
    """Return what `expected` asks for, of drafts with a set.

    Args:
        costs: of a step at a context.
        window: positions that drafts read; None: all.
    """

    @cache
    def at(context: int) -> tuple[float, float, list[float]]:
        here = costs(context)
        return here.ar_ms, here.draft_ms(layer_set, window), here.verify_ms(layer_set, window).tolist()

    def price(context: int, length: int) -> tuple[float, float]:
        ar, token, verify = at(context)
        return ar, length * token + verify[length]

    return price


class _Asked(AR):
    """Autoregressive decoding in which every exit is asked for the next token."""

    def __init__(self, exits: Sequence[int]):
        super().__init__("exits")
        self.taps = Taps(verify=tuple(2 * blocks for blocks in exits))

    def start(self, prefill: Prefill) -> None:
        """No answers yet."""
        self.right: list[list[bool]] = [[] for _ in self.taps.verify]

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Note which exits would have said what the model said."""
        assert verification.hidden is not None
        for right, said in zip(self.right, probe.predict(verification.hidden[:, 0]).tolist()):
            right.append(said == verification.emitted[0])
        return None


def shadow(probe: Probe, prompt: Sequence[int], exits: Sequence[int], new_tokens: int) -> tuple[int, list[list[bool]]]:
    """The prompt's length and, by exit, whether what it says after each output token but the last is the next one.

    Args:
        exits: ascending numbers of blocks.
        new_tokens: length of the output.
    """
    method = _Asked(exits)
    probe.trial(method, prompt, new_tokens)
    return len(prompt), method.right


def drafted(prompt_len: int, right: Sequence[bool], draft_len: int) -> Iterator[Drafted]:
    """The steps of a decoding with drafts of up to d tokens.

    Args:
        right: as of `shadow`; the output has one token more.
        draft_len: d.
    """
    done, total = 1, len(right) + 1
    while done < total:
        length = min(draft_len, total - done - 1)
        ahead = right[done - 1 : done - 1 + length]
        accepted = ahead.index(False) if False in ahead else length
        yield Drafted(prompt_len + done - 1, length, accepted + 1)
        done += accepted + 1
