"""CLaSp: choose the blocks to skip by dynamic programming on the last accepted token (Chen et al., ACL 2025).

After a verification the last accepted token runs again through subsets of the blocks, by dynamic programming over
(block, blocks skipped so far). Each cell keeps the stream closest (cosine) to the full model's at that depth (Eq. 2,
Alg. 1). The last cell's set, which skips exactly M blocks, then drafts. Neighbouring tokens have nearly the same best
set ("sparse persistence", §3.7), so a search runs only every T verifications.

No code was released. `methods/fidelity.md` has the presets `clasp` (paper, arXiv 2505.24196) and `clasp_knapspec`
(KnapSpec's re-implementation, kaist-flexml-lab/knapspec @ 8eef1a2), and where the paper is ambiguous.

The result is not exact: a cell keeps one branch, on which later cosines depend (§3.5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.draft_stop import ModelDraft
from methods.knapsack import directions
from methods.settings import DraftLen, Name, ReusePrefix, StopBelow
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, Fits, Range, settings

ByLayers = Annotated[
    Mapping[int, int],
    Fits("fewer skipped blocks than the model has", lambda table: all(0 <= table[n] < n for n in table)),
]


@settings("method")
class CLaSp(ModelDraft):
    """CLaSp, with a setting for every difference between paper and port.

    M, the number of skipped blocks, is the first of `skip_blocks`, `skip_by_layers` and `skip_ratio` with a value.
    """

    name: Name = "clasp"
    skip_blocks: Annotated[int, Range(0, what="a number of blocks", note=" (a share is method.skip_ratio)")] | None = (
        None
    )
    """M, number of skipped blocks; null: by `skip_by_layers`, else by `skip_ratio`."""
    skip_by_layers: ByLayers | None = None
    """M by number of blocks L."""
    skip_ratio: Annotated[float, Range(0, below=1, what="a share of the blocks")] = 0.5
    """Share of skipped blocks: M = round(skip_ratio * L), halves to even."""
    interval: Count = 128
    """T, verification steps between searches."""
    protect_first_last: bool = False
    """Never skip the first and the last block."""
    draft_len: DraftLen = 10
    stop_below: StopBelow = 0.7
    reuse_prefix: ReusePrefix = False
    search_on: Literal["steps", "prefill"] = "prefill"
    """First search: on the prompt's last token (prefill), or after the first step (steps)."""

    def __post_init__(self) -> None:
        self.taps = Taps()

    def check(self, dims: ModelDims) -> None:
        """Set M, the initial full set and the taps of searches.

        Raises:
            ConfigError: M blocks cannot be skipped, since at least one block and the protected ones must run.
        """
        n_layers = dims.n_layers
        field, value, count = "skip_ratio", self.skip_ratio, round(self.skip_ratio * n_layers)
        if self.skip_blocks is not None:
            field, value, count = "skip_blocks", self.skip_blocks, self.skip_blocks
        elif n_layers in (table := self.skip_by_layers or {}):
            field, value, count = "skip_by_layers", table[n_layers], table[n_layers]
        most = max(0, n_layers - (2 if self.protect_first_last else 1))
        if count > most:
            among = " with method.protect_first_last" if self.protect_first_last else ""
            expected = f"at most {most} skipped blocks (this makes it {count}) of this model's {n_layers}{among}"
            raise ConfigError(f"method.{field}", value, expected)
        self._n_skipped, self._full = count, LayerSet.full(n_layers)
        boundaries = tuple(range(0, 2 * n_layers + 1, 2))  # between blocks
        # states cost time: verifications keep them only before a search
        self._idle_taps = Taps(prefill=boundaries, prompt_end=1) if self.search_on == "prefill" else Taps()
        self._search_taps = replace(self._idle_taps, verify=boundaries)
        self.taps = self._idle_taps

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        self._probe = probe

    def start(self, prefill: Prefill) -> None:
        """Search on the prompt's last token, or draft with the full model."""
        self._layer_set = self._full
        if prefill.hidden is not None:
            self._choose(prefill.hidden[:, -1], len(prefill.prompt), self._probe)

    def propose(self, context: Context) -> LayerDraft:
        """Draft with the last set; ask for the states between blocks before a search."""
        self.taps = self._search_taps if self._is_search_step(context.step) else self._idle_taps
        searched = self._layer_set is not self._full
        return LayerDraft(self._reading.set_of(self._layer_set), self.draft_len, self.stop_below, searched=searched)

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Search every T steps, but not after the last; a cosine at one token is no acceptance rate to estimate."""
        if self._is_search_step(verification.step) and not verification.last:
            assert verification.hidden is not None, "propose asks for states before a search"
            self._choose(verification.hidden[:, verification.path[-1]], verification.length, probe)
        return None

    def _choose(self, states: Tensor, length: int, probe: Probe) -> None:
        self._layer_set, _ = choose(states, self._n_skipped, length - 1, probe, self.protect_first_last)

    def _is_search_step(self, step: int) -> bool:
        """Return whether a search follows: steps T, 2T, ... after a search on the prompt, else 1, T + 1, ..."""
        return (step if self.search_on == "prefill" else step - 1) % self.interval == 0


def choose(states: Tensor, count: int, prefix_len: int, probe: Probe, protect: bool = False) -> tuple[LayerSet, Tensor]:
    """Choose the `count` blocks to skip, by the recurrence of Eq. 2, all candidates of a row at once (§3.6).

    g[i, j] is the token's stream after the first i blocks, in the best candidate that skips j of them; x_i is the full
    model's stream there; f_i is block i:

        g[i, j] = argmax_s cos(s, x_i) over s = f_i(g[i-1, j]) (execute) and s = g[i-1, j-1] (skip).

    A tie skips. g[i, 0] = x_i needs no pass. Cells that cannot reach (L, M) are left out, which changes no choice.

    Args:
        states: [L+1, d], x_0 .. x_L: the full model's stream of one token between its blocks.
        count: M, at most L-1, with `protect` L-2.
        prefix_len: position of the token; candidates see the committed rows before it and itself.
        protect: never skip the first and the last block.

    Returns:
        The set that skips M blocks, and g[L, M], the token's stream [d] after it.
    """
    n_layers = len(states) - 1
    skippable = [not protect or 0 < b < n_layers - 1 for b in range(n_layers)]
    row = states[:1].repeat(count + 1, 1)  # row i-1 of g, [M + 1, d]; columns without a candidate hold any value
    skips = np.zeros((n_layers, count + 1), dtype=bool)  # whether cell (i, j) skips block i, for the backtracking
    full_directions = directions(states)
    for b in range(n_layers):  # b counts from 0: block i = b + 1
        # 1) columns low .. high can execute the block
        low = max(1, count - sum(skippable[b + 1 :]))  # below `low`, too few blocks are left to skip M
        high = min(count, sum(skippable[:b]))  # above `high`, row i-1 has no candidate: too few blocks came before
        n_executed = max(0, high + 1 - low)
        # 2) streams for row i: x_i, then the executed ones, then row i-1 unchanged
        parts = [states[b + 1 : b + 2], row]
        if n_executed:
            executed = row[low : high + 1, None]
            for i in (2 * b, 2 * b + 1):
                executed = probe.apply_sublayer(i, executed, prefix_len)
            parts.insert(1, executed[:, 0])
        streams = torch.cat(parts)
        source = np.zeros(count + 1, dtype=np.int64)  # column j -> index of g[i, j] in `streams`; 0 is x_i
        source[low : high + 1] = np.arange(1, n_executed + 1)
        # 3) Eq. 2: skip where g[i-1, j-1] is at least as close to x_i as the executed stream
        if skippable[b]:
            cosines = probe.mean_cosine(streams[:, None], full_directions[b + 1 : b + 2])
            columns = np.arange(low, min(count, high + 1) + 1)  # column high + 1 can only skip
            skipped = n_executed + columns  # index of g[i-1, j-1] in `streams`: 1 + n_executed + (j - 1)
            execute_cosines = np.where(columns <= high, cosines[source[columns]], -np.inf)
            skips[b, columns] = cosines[skipped] >= execute_cosines  # a tie skips
            source[columns] = np.where(skips[b, columns], skipped, source[columns])
        row = streams.index_select(0, torch.from_numpy(source).to(states.device))
    return _backtrack(skips, count), row[count]


def _backtrack(skips: NDArray[np.bool_], j: int) -> LayerSet:
    blocks = []
    for b in reversed(range(len(skips))):
        if skips[b, j]:  # the block was skipped: its candidate came from column j - 1, else from column j
            blocks.append(b)
            j -= 1
    return LayerSet.skipping(len(skips), attn=blocks, mlp=blocks)
