"""CLaSp: choose the blocks to skip by dynamic programming on the last accepted token (Chen et al., ACL 2025).

After a verification the last accepted token is run again through subsets of the blocks, by dynamic programming over
(block, blocks skipped so far). Each cell keeps the stream that is closest (cosine) to the full model's at that depth
(Eq. 2, Alg. 1). The last cell's set, which skips exactly M blocks, drafts from then on. Neighbouring tokens have nearly
the same best set ("sparse persistence", §3.7), so the search takes place only every T verifications.

The authors released no code. The presets are `clasp` (paper, arXiv 2505.24196) and `clasp_knapspec`, the
re-implementation that KnapSpec was compared with (kaist-flexml-lab/knapspec @ 8eef1a2), which skips 22 to 31 % of the
blocks where the paper skips 50 to 60 %. Where the paper leaves something open:

* Eq. 1 is printed as a minimum of the cosine; text, Eq. 2 and Alg. 1 maximise it, and so does this file;
* Fig. 1 begins with an update after the prefill, which neither Alg. 1 nor the port has (`search_on`). With it the first
  search is on the prompt's last token, and the next one follows after T verifications (§3.7). Without it the first
  search follows the first verification, and the full model drafts until then;
* the backtracking of Alg. 1 compares streams by value; here every cell keeps a bit: executed or skipped.

The result is not exact: a cell keeps only one branch, and later cosines depend on it (§3.5). With `draft_window` drafts
read a part of the cache; the search still reads all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from methods.draft_stop import WindowedDraft
from methods.settings import DraftLen, Name, ReusePrefix, StopBelow
from methods.similarity import directions, mean_cosine
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
class CLaSp(WindowedDraft):
    """CLaSp with the settings on which paper and port differ.

    M, the number of skipped blocks, comes from the first of `skip_blocks`, `skip_by_layers` and `skip_ratio` that has a
    value for the model.
    """

    greedy_only = False

    name: Name = "clasp"
    skip_blocks: Annotated[int, Range(0, what="a number of blocks", note=" (a share is method.skip_ratio)")] | None = (
        None
    )
    """M, number of skipped blocks, for every model; null: by `skip_by_layers`, else by `skip_ratio`."""
    skip_by_layers: ByLayers | None = None
    """M by number of blocks L."""
    skip_ratio: Annotated[float, Range(0, below=1, what="a share of the blocks")] = 0.5
    """Share of skipped blocks: M = round(skip_ratio * L), halves to the even number."""
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
        """Set what depends on the model: M, and the full set to start from.

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
        self._count, self._full = count, LayerSet.full(n_layers)
        boundaries = tuple(range(0, 2 * n_layers + 1, 2))
        self._quiet = Taps(prefill=boundaries, prompt_end=1) if self.search_on == "prefill" else Taps()
        self._listening = replace(self._quiet, verify=boundaries)
        self.taps = self._quiet

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Keep the probe for the search on the prompt."""
        self._probe = probe

    def start(self, prefill: Prefill) -> None:
        """Start a prompt with a search on its last token, or with the full model as its own draft."""
        self._layer_set = self._full
        if prefill.hidden is not None:
            self._choose(prefill.hidden[:, -1], len(prefill.prompt), self._probe)

    def propose(self, context: Context) -> LayerDraft:
        """Draft with the last chosen set; ask for the states between blocks if a search follows."""
        self.taps = self._listening if self._is_event(context.step) else self._quiet
        searched = self._layer_set is not self._full
        draft = self._layer_set, self.draft_len, self.stop_below
        return LayerDraft(*draft, searched=searched, window=self._window)

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Search when it is time, unless the output has ended: every prompt starts anew.

        Returns:
            None: a search yields only a cosine at one token, which is no acceptance rate.
        """
        if self._is_event(verification.step) and not verification.last:
            assert verification.hidden is not None, "propose asks for states before a search"
            self._choose(verification.hidden[:, verification.path[-1]], verification.length, probe)
        return None

    def _choose(self, states: Tensor, length: int, probe: Probe) -> None:
        """Search on the last of `length` committed tokens, with its states [L+1, d]."""
        self._layer_set = choose(states, self._count, length - 1, probe, self.protect_first_last).layer_set

    def _is_event(self, step: int) -> bool:
        return (step if self.search_on == "prefill" else step - 1) % self.interval == 0


@dataclass(frozen=True)
class Optimum:
    """The result of a search: a set that skips M blocks, and g[L, M], the token's stream [d] after it."""

    layer_set: LayerSet
    hidden: Tensor


def choose(states: Tensor, count: int, prefix_len: int, probe: Probe, protect: bool = False) -> Optimum:
    """Choose the `count` blocks to skip, by the recurrence of Eq. 2, all candidates of a row at once (§3.6).

    g[i, j] is the stream after the first i blocks of the candidate that skips j of them. It is the one with the higher
    cosine to x_i of two streams: block i executed on g[i-1, j], and g[i-1, j-1] unchanged (block i skipped). A tie
    skips. g[i, 0] = x_i is known. Cells from which (L, M) is out of reach are left out, which changes no choice.

    Args:
        states: [L+1, d], x_0 .. x_L: the full model's stream of one token between its blocks.
        count: M, at most L-1, with `protect` L-2.
        prefix_len: position of that token; every candidate sees the committed rows before it, and itself.
        protect: never skip the first and the last block.
    """
    n_layers = len(states) - 1
    free = [not protect or 0 < b < n_layers - 1 for b in range(n_layers)]
    hidden = states[:1].repeat(count + 1, 1)  # row i of g, [M + 1, d]; columns without a candidate hold any value
    skips, toward = np.zeros((n_layers, count + 1), dtype=bool), directions(states)
    for b in range(n_layers):
        low = max(1, count - sum(free[b + 1 :]))  # below it, too few blocks are left to skip
        high = min(count, sum(free[:b]))  # above it, no candidate enters
        n_executed = max(0, high + 1 - low)
        pool = [
            states[b + 1 : b + 2],
            hidden,
        ]  # streams for the next row: x_i, then executed ones, then row i-1 as it is
        if n_executed:
            executed = hidden[low : high + 1, None]
            for i in (2 * b, 2 * b + 1):
                executed = probe.apply_sublayer(i, executed, prefix_len)
            pool.insert(1, executed[:, 0])
        streams = torch.cat(pool)
        source = np.zeros(count + 1, dtype=np.int64)  # by column j, the index of g[i, j] in `streams`; 0 is x_i
        source[low : high + 1] = np.arange(1, n_executed + 1)
        if free[b]:
            cosines = mean_cosine(streams[:, None], toward[b + 1 : b + 2]).cpu().numpy()
            columns = np.arange(low, min(count, high + 1) + 1)
            # Eq. 2: g[i, j] = argmax cos(., x_i) over f_i(g[i-1, j]) (execute) and g[i-1, j-1] (skip)
            skipped = n_executed + columns  # index of g[i-1, j-1]
            execute_cosines = np.where(columns <= high, cosines[source[columns]], -np.inf)
            skips[b, columns] = cosines[skipped] >= execute_cosines
            source[columns] = np.where(skips[b, columns], skipped, source[columns])
        hidden = streams.index_select(0, torch.from_numpy(source).to(states.device))
    return Optimum(_backtrack(skips, count), hidden[count])


def _backtrack(skips: NDArray[np.bool_], j: int) -> LayerSet:
    """Return the set of the last row's cell j, from the bits [L, M + 1] of all cells."""
    blocks = []
    for b in reversed(range(len(skips))):
        if skips[b, j]:  # block b was skipped: the branch comes from column j - 1
            blocks.append(b)
            j -= 1
    return LayerSet.skipping(len(skips), attn=blocks, mlp=blocks)
