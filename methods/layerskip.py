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
has the sublayers' times alone, it is the score of `layer_search.Objective`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

from methods.ar import AR
from methods.arms import Costs
from methods.draft_stop import DraftStop, StoppedDraft
from methods.layer_search import Drafted, expected
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Estimate, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.errors import ConfigError, refuse
from ssd_bench.model.shape import ModelDims

DEFAULT_RATIO = 0.25  # 8 of 32 blocks: the released code's README, example for the 7B model


class LayerSkip(StoppedDraft):
    """Draft every step with the same leading blocks.

    Args:
        name: name in tables.
        exit_layer: E, blocks that draft, in [1, L]; L is the full model.
        exit_ratio: instead of E its share of the L blocks, in (0, 1]: E = max(1, round(ratio L)). None: 0.25, unless
            `exit_layer` is given.
        draft_len: d, tokens drafted per step, at least 1.
        reuse_prefix: verify on the states that drafting left; false runs all blocks again, as for any layer set.

    Raises:
        ConfigError: a value out of range, or both `exit_layer` and `exit_ratio`.
    """

    def __init__(
        self, name: str = "layerskip", exit_layer: int | None = None, exit_ratio: float | None = None,
        draft_len: int = 6, reuse_prefix: bool = True,
    ):  # fmt: skip
        checks = (
            ("exit_layer", exit_layer is None or exit_layer >= 1, exit_layer, "at least 1 block, or null"),
            ("exit_ratio", exit_ratio is None or 0 < exit_ratio <= 1, exit_ratio, "a share in (0, 1], or null"),
        )
        refuse("method", checks)
        if exit_layer is not None and exit_ratio is not None:
            raise ConfigError("method.exit_ratio", exit_ratio, f"null, since there is method.exit_layer={exit_layer}")
        self.name, self.reuse_prefix = name, reuse_prefix
        self._exit, self._ratio = exit_layer, DEFAULT_RATIO if exit_ratio is None else exit_ratio
        self._stop = DraftStop(draft_len, stop_below=0.0)

    def check(self, dims: ModelDims) -> None:
        """Fix the layer set for this model.

        Raises:
            ConfigError: the model has fewer blocks than the exit.
        """
        blocks = max(1, round(self._ratio * dims.n_layers)) if self._exit is None else self._exit
        if blocks > dims.n_layers:
            raise ConfigError("method.exit_layer", blocks, f"at most {dims.n_layers}, the blocks of {dims.name}")
        self._layer_set = LayerSet.exit(dims.n_layers, blocks)


class SweptLayerSkip(StoppedDraft):
    """LayerSkip with the exit and draft length of the best score on prompts that the run does not evaluate.

    Args:
        name: name in tables.
        calibration: prompts of each domain that pairs are scored on.
        exits: values of E to try, in [1, L - 1]; None: all of them.
        draft_lens: values of d to try, at least 1 each.
        new_tokens: decoded per prompt.
        reuse_prefix: verify on the states that drafting left.

    Raises:
        ConfigError: a value out of range.
    """

    def __init__(
        self, name: str = "layerskip_swept", calibration: int = 8, exits: Sequence[int] | None = None,
        draft_lens: Sequence[int] = (1, 2, 3, 4, 5, 6), new_tokens: int = 32, reuse_prefix: bool = True,
    ):  # fmt: skip
        some = exits is None or (len(exits) > 0 and min(exits) >= 1)
        lens = len(draft_lens) > 0 and min(draft_lens) >= 1
        checks = (
            ("calibration", calibration >= 1, calibration, "at least 1 prompt"),
            ("exits", some, exits, "one number of blocks or more, each at least 1, or null for all"),
            ("draft_lens", lens, draft_lens, "one length or more, each at least 1 (method=ar drafts nothing)"),
            ("new_tokens", new_tokens >= 2, new_tokens, "at least 2: the first comes from the prefill"),
        )
        refuse("method", checks)
        self.name, self.calibration, self.reuse_prefix = name, calibration, reuse_prefix
        self._asked, self._draft_lens, self._new_tokens = exits, tuple(draft_lens), new_tokens
        self._stop = DraftStop(max(draft_lens), stop_below=0.0)

    def check(self, dims: ModelDims) -> None:
        """Fix the exits to try; draft with the full model until `prepare`.

        Raises:
            ConfigError: a model of one block, which has no exit, or an exit that is none of this model's.
        """
        last = dims.n_layers - 1
        if last < 1:
            raise ConfigError("model.n_layers", dims.n_layers, "at least 2 blocks: an exit comes before the last one")
        self._exits = sorted(set(range(1, last + 1) if self._asked is None else self._asked))
        if self._exits[-1] > last:
            raise ConfigError("method.exits", self._asked, f"at most {last}: {dims.name} has {dims.n_layers} blocks")
        self._layer_set = LayerSet.full(dims.n_layers)

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Score every pair; the best one drafts, the earlier exit and then the shorter draft among equals."""
        begin, n_layers = time.perf_counter(), probe.n_layers
        made = [shadow(probe, sample.prompt, self._exits, self._new_tokens) for sample in samples]
        costs = cache(partial(Costs, probe.latency, n_layers, longest=max(self._draft_lens), reuse=self.reuse_prefix))
        scores = {}
        for row, blocks in enumerate(self._exits):
            price = prices(LayerSet.exit(n_layers, blocks), costs)
            for d in self._draft_lens:
                steps = (step for prompt_len, right in made for step in drafted(prompt_len, right[row], d))
                scores[blocks, d] = expected(steps, price)
        blocks, d = max(scores, key=lambda pair: (scores[pair], -pair[0], -pair[1]))
        self._layer_set, self._stop = LayerSet.exit(n_layers, blocks), DraftStop(d, stop_below=0.0)
        print(
            f"{self.name}: exit after {blocks} of {n_layers} blocks, {d} tokens a draft: score {scores[blocks, d]:.4f} "
            f"(expected), the best of {len(scores)} pairs in {time.perf_counter() - begin:.1f} s",
            file=sys.stderr,
        )


def prices(layer_set: LayerSet, costs: Callable[[int], Costs]) -> Callable[[int, int], tuple[float, float]]:
    """What `expected` asks for, of drafts with a set.

    Args:
        costs: of a step at a context.
    """

    @cache
    def at(context: int) -> tuple[float, float, list[float]]:
        here = costs(context)
        return here.ar_ms, here.draft_ms(layer_set), here.verify_ms(layer_set).tolist()

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
