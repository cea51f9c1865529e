"""SWIFT: search the sublayers to skip while decoding, by matchness on the output's own tokens (Xia et al., ICLR 2025).

Every cycle, until the search ends, one candidate set is scored by matchness: the share of next tokens that it predicts
correctly in one pass over a context window of the output. Candidates skip the same number of sublayers; they are random
or, every β-th time, suggested by Bayesian optimisation. The best set so far drafts. Drafting ends early by confidence;
uncertain positions have more candidates. Search and set persist across prompts.

`methods/fidelity.md` has what the paper and its code (hemingkx/SWIFT @ 88caed7) do differently or leave open, the
switch of each, and what the presets follow. `reset=on_shift` (in neither) restarts the search when a prompt's
acceptance rate is more than `shift_drop` below the mean since the last start.

Ablations of Table 8: `stop_below=0` (no early stopping), `k_set=chain` (no dynamic verification), `max_steps=0` (no
optimisation). As in the code, the search ends after more than S candidates or more than `patience` without progress.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from methods.bayesian import suggest
from methods.candidates import KSet, Mode, widths
from methods.draft_stop import ModelDraft
from methods.settings import DraftLen, Name, StopBelow
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Prefill, Probe, Sample, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, Range, Rate, Share, Whole, settings

KAPPA = 2.5  # κ of the upper confidence bound (inference_swift.py:293-295)
REDUCTION = 0.1  # r is lowered by this: 0.5 to 0.4 (§C.2)


@dataclass
class MatchnessSearch:
    """State of a search, kept across prompts.

    Attributes:
        layer_set: z_best, the set that drafts.
        best: matchness of z_best; 0 before the first score above 0.
        steps: o, scored candidates.
        stale: candidates scored since the best one.
        alpha_sum, prompts: sum of the prompts' acceptance rates since the search's start, and their number.
        points, scores: scored candidates as points of the unit cube, and their matchness, for the Gaussian process.
    """

    layer_set: LayerSet
    best: float = 0.0
    steps: int = 0
    stale: int = 0
    active: bool = True
    alpha_sum: float = 0.0
    prompts: int = 0
    points: list[NDArray[np.float64]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


@settings("method")
class SWIFT(ModelDraft):
    """SWIFT, with a switch for every difference between paper and code."""

    name: Name = "swift"
    skip_ratio: Share | None = None
    """r, share of the 2(L-2) sublayers outside the first and the last block that a candidate skips; null: the paper's
    rule (0.45 below 30B parameters, else 0.5)."""
    context_window: Count = 32
    """γ, output tokens that score a candidate."""
    window: Literal["first", "last"] = "first"
    """Score candidates on the output's first or last tokens."""
    opt_interval: Count = 1
    """Cycles between candidates."""
    bayes_interval: Count | None = 25
    """β, every β-th candidate is suggested by Bayesian optimisation; null: only random ones."""
    max_steps: Whole = 1000
    """S, candidates after which the search ends; 0: keep the initial set."""
    patience: Whole = 300
    """Candidates without progress after which the search ends."""
    max_score: Share = 0.95
    """Matchness above which the search ends."""
    score_initial: bool = False
    """Score the initial set as the first candidate."""
    reset: Literal["never", "on_instance", "on_shift"] = "never"
    """Restarts of the search: never, with every prompt, or when the acceptance rate shifts."""
    shift_drop: Annotated[float, Range(0, 1, what="a difference of rates")] = 0.1
    """Fall of the acceptance rate that counts as a shift."""
    reduce_below: Rate | None = None
    """Acceptance rate below which r is lowered after a search; null: never."""
    draft_len: DraftLen = 25
    stop_below: StopBelow = 0.8
    k_set: KSet = "paper"
    mode: Mode = "greedy"
    search_prompts: Count | None = None
    """Prompts to search on, after which the set is kept (the frozen set of ConfLayers Figure 4); null: all."""
    seed: Whole = 0
    """Seed of random candidates and Bayesian optimisation."""

    def __post_init__(self) -> None:
        if self.reduce_below is not None and not self.max_steps:
            raise ConfigError("method.reduce_below", self.reduce_below, "null where method.max_steps is 0")
        self._widths = widths(self.k_set, self.mode)

    def check(self, dims: ModelDims) -> None:
        """Set the candidates' sublayers, their number and the initial set, and start the search.

        Raises:
            ConfigError: no block between the first and the last.
        """
        n_layers = dims.n_layers
        if n_layers < 3:
            raise ConfigError("model", dims.name, f"at least 3 blocks with method={self.name}; it has {n_layers}")
        by_size = 0.45 if dims.n_params < 30e9 else 0.5
        self._ratio = by_size if self.skip_ratio is None else self.skip_ratio
        inner = range(1, n_layers - 1)
        # in the order of the released code, which breaks ties between equal coordinates of a suggestion
        self._sublayers = [2 * block for block in inner] + [2 * block + 1 for block in inner]
        uniform = inner[::2]
        self._initial = LayerSet.skipping(n_layers, attn=uniform, mlp=uniform)
        self._bit_generator = np.random.PCG64(self.seed)
        self._random = np.random.RandomState(self._bit_generator)
        self._start_search()
        self._accepted = self._drafted = self._n_prompts = 0

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Import the optimiser now, outside any prompt's time."""
        if self.bayes_interval and self.max_steps:
            importlib.import_module("sklearn.gaussian_process")

    def start(self, prefill: Prefill) -> None:
        """Begin a prompt; first restart the search if the last acceptance rate or `reset` says so."""
        self._n_prompts += 1
        frozen = self.search_prompts is not None and self._n_prompts > self.search_prompts
        if frozen:
            self._search.active = False
        restart = self.reset == "on_instance" and not frozen
        if self._drafted and not frozen:
            search, alpha = self._search, self._accepted / self._drafted  # α of the last prompt
            if self.reduce_below is not None and not search.active and alpha < self.reduce_below:
                restart = self._lower_ratio() or restart
            if self.reset == "on_shift" and search.prompts:
                restart = restart or alpha < search.alpha_sum / search.prompts - self.shift_drop
            search.alpha_sum += alpha
            search.prompts += 1
        if restart:
            self._start_search()
        self._committed: list[int] = []  # output tokens of this prompt in the cache
        self._accepted = self._drafted = 0

    def propose(self, context: Context) -> LayerDraft:
        searched = self._search.best > 0 if self.max_steps else None
        layer_set = self._reading.set_of(self._search.layer_set)
        return LayerDraft(layer_set, self.draft_len, self.stop_below, self._widths, searched)

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Score one candidate, if the search goes on and the output is long enough.

        Returns:
            After a candidate, if a score is above 0, the best set's estimate: its matchness as α, at this prompt's mean
            draft length.
        """
        tree, search = verification.tree, self._search
        self._committed += [tree.tokens[node] for node in verification.path]
        self._accepted += len(verification.path) - 1
        self._drafted += tree.draft_len
        due = len(self._committed) > self.context_window + 1 and (verification.step - 1) % self.opt_interval == 0
        if not (search.active and due):
            return None
        self._score_candidate(verification.length, probe)
        if not search.best:
            return None
        draft_len = round(self._drafted / verification.step)
        layer_set = self._reading.set_of(search.layer_set)
        return probe.latency.estimate(search.best, draft_len, layer_set, verification.length)

    def state(self) -> bytes:
        """Return search, r, random generator and the next prompt's counts, as an npz file."""
        saved = asdict(self._search) | {
            "layer_set": sorted(self._search.layer_set.skipped),
            "ratio": self._ratio,
            "bits": self._bit_generator.state,
            "accepted": self._accepted,
            "drafted": self._drafted,
            "seen": self._n_prompts,
        }
        points, scores = (np.array(saved.pop(name)) for name in ("points", "scores"))
        file = io.BytesIO()
        np.savez_compressed(file, points=points, scores=scores, rest=np.array(json.dumps(saved)))
        return file.getvalue()

    def restore(self, state: bytes) -> None:
        with np.load(io.BytesIO(state)) as file:
            points, scores, saved = list(file["points"]), file["scores"].tolist(), json.loads(file["rest"].item())
        self._ratio, self._bit_generator.state = saved.pop("ratio"), saved.pop("bits")
        self._accepted, self._drafted, self._n_prompts = (saved.pop(key) for key in ("accepted", "drafted", "seen"))
        layer_set = LayerSet(self._initial.n_layers, frozenset(saved.pop("layer_set")))
        self._search = MatchnessSearch(layer_set, points=points, scores=scores, **saved)

    def _start_search(self) -> None:
        self._search = MatchnessSearch(self._initial, active=self.max_steps > 0)

    def _n_skipped(self, ratio: float) -> int:
        return int(len(self._sublayers) * ratio)

    def _lower_ratio(self) -> bool:
        """Lower r unless candidates would then skip nothing; return whether it was lowered."""
        lower = round(self._ratio - REDUCTION, 6)
        if self._n_skipped(lower) < 1:
            return False
        self._ratio = lower
        return True

    def _score_candidate(self, length: int, probe: Probe) -> None:
        """Score the next candidate on the context window, after `length` committed positions; keep it if best."""
        search = self._search
        # 1) score: the share of the window's γ tokens after the first that the candidate predicts
        first = 0 if self.window == "first" else len(self._committed) - self.context_window - 1
        tokens = self._committed[first : first + self.context_window + 1]
        point, layer_set = self._next_candidate()
        score = matchness(layer_set, tokens, length - len(self._committed) + first, probe)
        # 2) keep the best set
        search.steps += 1
        if score > search.best:
            search.layer_set, search.best, search.stale = layer_set, score, 0
        else:
            search.stale += 1
        # 3) end the search, or remember the point for the Gaussian process
        if search.best > self.max_score or search.stale > self.patience or search.steps > self.max_steps:
            search.active = False
            search.points, search.scores = [], []
        else:
            search.points.append(point)
            search.scores.append(score)

    def _next_candidate(self) -> tuple[NDArray[np.float64], LayerSet]:
        """Return the next set to score, and its point for the Gaussian process.

        A random set's point is 1 for skipped sublayers, else 0.
        """
        search, n = self._search, len(self._sublayers)
        if self.score_initial and not search.steps:
            skipped = self._initial.skipped
            return np.array([float(i in skipped) for i in self._sublayers]), self._initial
        count = self._n_skipped(self._ratio)
        if self.bayes_interval and (search.steps + 1) % self.bayes_interval == 0:  # every β-th candidate
            scored = search.points, search.scores
            point = suggest(*scored, self._random, KAPPA) if search.points else self._random.rand(n)
            chosen = np.argsort(-point, kind="stable")[:count]  # the largest coordinates, so that r holds
        else:
            chosen = self._random.choice(n, count, replace=False)
            point = np.zeros(n)
            point[chosen] = 1
        return point, LayerSet(self._initial.n_layers, frozenset(self._sublayers[i] for i in chosen))


def matchness(layer_set: LayerSet, tokens: Sequence[int], prefix_len: int, probe: Probe) -> float:
    """Return the share of the tokens after the first that a layer set predicts from earlier tokens (Eq. 3).

    Args:
        layer_set: sublayers that run over the tokens; the prefix has the full model's keys and values.
        tokens: γ+1 committed tokens.
        prefix_len: position of the first token.
    """
    hidden = probe.embed(tokens[:-1])[None]
    for i in layer_set.kept:
        hidden = probe.apply_sublayer(i, hidden, prefix_len)
    drafted = probe.predict(hidden)[0].tolist()
    return sum(draft == token for draft, token in zip(drafted, tokens[1:])) / len(drafted)
