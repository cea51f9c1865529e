"""Offline search for the sublayers to skip: Bayesian optimisation of the decoding speed (Zhang et al., ACL 2024).

Draft & Verify ("Self-SD") gives each of the 2L sublayers a variable in [0, 1] and skips those above 0.5. A Gaussian
process over these points proposes the next one by upper confidence bound; its score is the speed of self-speculative
decoding with that set over a few prompts (searching.py, search.ipynb of dilab-zju/self-speculative-decoding, whose
optimiser is bayes_opt's, as `methods.bayesian`; KNN-SSD searches so per domain). The best evaluated set is the answer.

Decided here:

* `expected`, the default objective, is the speedup that realised drafts imply with the measured times of attention and
  MLP; unlike the paper's wall time (`wallclock`) it is deterministic and unharmed by what else the machine does. The
  LM head is not in those times, so that sets that skip nearly everything look a little faster than they are;
* both decode greedily past EOS, whatever the run does, with γ anew for each prompt, as the released search does;
* the generator is seeded before every proposal with `random_state` and the number of points so far, so that a search
  that was killed goes on exactly as if it had not been; points proposed twice count twice (bayes_opt's version 1
  ignores them), and with `expected` a set that came up before is not decoded again;
* every evaluation is on disk at once (`ssd_bench.records.search_store`), found again by what determines its score:
  model, weights, dtype, machine, task, settings and prompts, not the run's seed, and not the budget: a smaller budget
  reads the beginning of a search, a larger one continues it. `expected` keeps the latency profile that it began with.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from methods.bayesian import suggest
from methods.draft_stop import DraftStop, StoppedDraft
from methods.fixed_layers import published_set
from methods.settings import DraftLen, NewTokens, StopBelow, TargetRate
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Probe, Sample
from ssd_bench.core.window import Window
from ssd_bench.cost.latency import Latency
from ssd_bench.errors import ConfigError
from ssd_bench.model.shape import ModelDims
from ssd_bench.records import provenance, search_store
from ssd_bench.records.search_store import Evaluation, SearchRecord
from ssd_bench.settings import Range, Whole, settings

KAPPA = 2.576  # UCB: bayes_opt's default (searching.py:84-85 gives none)
VERSION = "layer_search-3"  # raised when the same settings propose or score sets differently
LOG_SECONDS = 30  # between lines of a log


@settings("method.search", frozen=True)
class SearchSettings:
    """How to search; the defaults are those of Self-SD's searching.py."""

    objective: Literal["expected", "wallclock"] = "expected"
    """What a set is scored by: the speedup that its drafts imply with measured times, or its measured speed."""
    iterations: Whole = 1000
    """Points that the optimiser proposes after the first ones: `init_sets`, else one at random."""
    max_seconds: Annotated[float, Range(above=0)] | None = None
    """Stop before a point once this much time was spent, over all runs; null: never."""
    new_tokens: NewTokens = 32
    draft_len: DraftLen = 8
    stop_below: StopBelow = 0.8
    target_rate: TargetRate = 0.9
    random_state: Whole = 1
    """Seed of the optimiser."""
    init_sets: Sequence[str] = ()
    """Published sets (`paper/model/task`) to evaluate first; none is a cold start."""
    reuse: str | Mapping[str, str] | None = None
    """Take this set instead of searching: the name of a search or of a published set; by domain where a method has a
    set per domain."""

    def stop(self, window: Window | None = None) -> DraftStop:
        """Return the end of drafts in the decoding that is scored, and the window of these drafts."""
        return DraftStop(self.draft_len, self.stop_below, self.target_rate, window=window)

    def check(self, n_layers: int) -> None:
        """Refuse published names that are unknown or of another model, before the weights load.

        Raises:
            ConfigError: such a name, in `init_sets` or `reuse`.
        """
        for name in self.init_sets:
            _published(name, n_layers, "method.search.init_sets")
        reused = self.reuse.values() if isinstance(self.reuse, Mapping) else [self.reuse or ""]
        for name in reused:
            if "/" in name:
                _published(name, n_layers, "method.search.reuse")

    @property
    def scoring(self) -> dict[str, Any]:
        """What a score, or the order of the points, depends on."""
        names = ("objective", "new_tokens", "draft_len", "stop_below", "target_rate", "random_state")
        return {name: getattr(self, name) for name in names} | {"init_sets": list(self.init_sets)}


class Objective:
    """What a search maximises: how fast self-speculative decoding with a layer set is over some prompts.

    Args:
        settings: of the search.
        probe: of the run.
        prompts: token ids of each.
        latency: times of the sublayers, for `expected`; None: the probe's.
        window: positions that drafts read; None: all.
    """

    def __init__(
        self,
        settings: SearchSettings,
        probe: Probe,
        prompts: Sequence[Sequence[int]],
        latency: Latency | None = None,
        window: Window | None = None,
    ):
        self._settings, self._probe, self._prompts, self._window = settings, probe, prompts, window
        self._latency = latency or probe.latency
        self._warm = settings.objective == "expected"

    def __call__(self, layer_set: LayerSet) -> float:
        """The score of a set, higher is better.

        Returns:
            `expected`: tokens over what they cost in target passes, both at the step's context (E(speedup) of SWIFT,
            with measured times); 1 for drafts that gain nothing. `wallclock`: tokens per second, prefill included.
        """
        trial = _Trial(layer_set, self._settings.stop(self._window))
        if not self._warm:  # the first decoding of a process does not count
            self._probe.trial(trial, self._prompts[0], self._settings.new_tokens)
            self._warm = True
        made = [self._probe.trial(trial, prompt, self._settings.new_tokens) for prompt in self._prompts]
        if self._settings.objective == "wallclock":
            milliseconds = sum(each.prefill_ms + each.decode_ms for each in made)
            return 1000 * sum(len(each.output) for each in made) / milliseconds
        steps = (Drafted(step.context_len, step.draft_len, step.emitted) for each in made for step in each.steps)
        return expected(steps, partial(self._price, layer_set))

    def _price(self, layer_set: LayerSet, context: int, drafted: int) -> tuple[float, float]:
        """KnapSpec's latency model: a verification is one target pass, and nothing beside the sublayers takes time."""
        target = self._latency.target_ms(layer_set.n_layers, context)
        return target, target + drafted * self._latency.draft_ms(layer_set, context, self._window)


class Drafted(NamedTuple):
    """A step as a score sees it: committed positions before it, tokens drafted, tokens emitted."""

    context_len: int
    draft_len: int
    emitted: int


def expected(steps: Iterable[Drafted], price: Callable[[int, int], tuple[float, float]]) -> float:
    """The speedup that steps imply: what AR would have paid for their tokens, over what they cost.

    Args:
        price: of an AR step at a context, and of a step there that drafts so many tokens.
    """
    plain = spent = 0.0
    for context, drafted, emitted in steps:
        target, cost = price(context, drafted)
        plain += emitted * target
        spent += cost
    return plain / spent


class _Trial(StoppedDraft):
    """Self-SD's decoding with one layer set."""

    name = "layer_search"

    def __init__(self, layer_set: LayerSet, stop: DraftStop):
        self._layer_set, self._stop = layer_set, stop

    def check(self, dims: ModelDims) -> None:
        """Any model that the set is for."""


class Proposer:
    """The Bayesian optimiser over points in [0, 1]^2L: attention of blocks 0 .. L-1, then their MLPs.

    Args:
        n_layers: L.
        random_state: seed.
    """

    def __init__(self, n_layers: int, random_state: int):
        self._dims, self._seed = 2 * n_layers, random_state
        self._points: list[NDArray[np.float64]] = []
        self._scores: list[float] = []

    def register(self, point: Sequence[float], score: float) -> None:
        """Learn the score of a point."""
        self._points.append(np.array(point))
        self._scores.append(score)

    def propose(self) -> tuple[float, ...]:
        """The next point: at random without any score, else of the highest upper confidence bound."""
        random = np.random.RandomState([self._seed, len(self._points)])
        if not self._points:
            return tuple(random.rand(self._dims).tolist())
        return tuple(suggest(self._points, self._scores, random, KAPPA).tolist())


def layer_set_of(point: Sequence[float]) -> LayerSet:
    """The set that skips what exceeds 0.5 in a point of `Proposer` (searching.py:38-45)."""
    n_layers = len(point) // 2
    chosen = [i for i, value in enumerate(point) if value > 0.5]
    attn, mlp = [i for i in chosen if i < n_layers], [i - n_layers for i in chosen if i >= n_layers]
    return LayerSet.skipping(n_layers, attn, mlp)


def point_of(layer_set: LayerSet) -> tuple[float, ...]:
    """The corner of the unit cube that stands for a set."""
    kinds = (layer_set.skip_attn, layer_set.skip_mlp)
    return tuple(float(i in skipped) for skipped in kinds for i in range(layer_set.n_layers))


def search(
    settings: SearchSettings, probe: Probe, samples: Sequence[Sample], domain: str, window: Window | None = None
) -> SearchRecord:
    """Search, or find what was searched before, within the budget of the settings.

    Args:
        samples: the prompts to score sets on.
        domain: what they are, for the artifact's name and the table of searches.
        window: positions that drafts read, in the search as in the run; None: all.

    Returns:
        The search as far as the budget goes; its `best` is the answer.

    Raises:
        ConfigError: the folder of searches cannot be used.
    """
    n_layers, begin = probe.n_layers, time.perf_counter()
    prompts = [list(sample.prompt) for sample in samples]
    count = max(1, len(settings.init_sets)) + settings.iterations
    budget = inf if settings.max_seconds is None else settings.max_seconds
    header = _header(settings, probe, prompts, domain, window)
    with search_store.open_search(probe.origin.folder, f"{probe.origin.model}-{domain}", header) as artifact:
        reached = len(artifact.evaluations)
        objective = Objective(settings, probe, prompts, Latency(**artifact.header["latency"]), window)
        if reached < count and artifact.seconds < budget:
            _extend(artifact, settings, objective, n_layers, count, budget)
    made, new = artifact.cut_to_budget(count, budget), max(0, len(artifact.evaluations) - reached)
    use = {"name": made.name, "evaluations": len(made.evaluations), "new": new, "seconds": made.seconds}
    probe.origin.searches.append(use)
    print(
        f"layer search {made.name}: score {made.best.score:.4f} ({settings.objective}) after {len(made.evaluations)} "
        f"evaluations in {made.seconds:.1f} s, of which {new} were made now "
        f"in {time.perf_counter() - begin:.1f} s",
        file=sys.stderr,
    )
    return made


def named_set(name: str, probe: Probe) -> LayerSet:
    """The best set of an earlier search, or a published set, by name.

    Raises:
        ConfigError: unknown (the message lists what is known), or of a model with another number of blocks.
    """
    option = "method.search.reuse"
    if "/" in name:
        return _published(name, probe.n_layers, option)
    layer_set = search_store.find(probe.origin.folder, name, option).best.layer_set
    if layer_set.n_layers != probe.n_layers:
        raise ConfigError(option, name, f"a search on {probe.n_layers} blocks; this one is on {layer_set.n_layers}")
    return layer_set


def _published(name: str, n_layers: int, option: str) -> LayerSet:
    try:
        return published_set(name, n_layers)
    except ConfigError as error:
        raise ConfigError(option, name, error.allowed) from None


def _header(
    settings: SearchSettings, probe: Probe, prompts: list[list[int]], domain: str, window: Window | None
) -> dict[str, Any]:
    """What the artifact keeps, and the content key of what its scores depend on."""
    origin = probe.origin
    latency = {name: value for name, value in asdict(probe.latency).items() if name not in ("points", "passes")}
    where = {name: getattr(origin, name) for name in ("model", "weights", "task", "dtype", "machine")}
    # a profile that was measured belongs to the machine, and differs a little every time
    given = latency if probe.latency.source == "given" else None
    data = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    scoring = settings.scoring
    if window is not None:  # without one, searches keep the key that they had before there were windows
        scoring |= {"window": [window.sinks, window.recent]}
    identity = {**where, "settings": scoring, "latency": given, "n_layers": probe.n_layers}
    return {
        "content_key": provenance.content_key(identity, VERSION, data), "n_layers": probe.n_layers, **where,
        "domain": domain, "seed": origin.seed, "settings": scoring, "latency": latency,
        "prompts": len(prompts), "prompts_sha256": data,
    }  # fmt: skip


def _extend(
    artifact: SearchRecord, settings: SearchSettings, objective: Objective, n_layers: int, count: int, budget: float
) -> None:
    """Add evaluations until there are `count` of them or the budget of seconds is spent."""
    proposer = Proposer(n_layers, settings.random_state)
    scores: dict[LayerSet, float] = {}
    for known in artifact.evaluations:
        proposer.register(known.point, known.score)
        scores[known.layer_set] = known.score
    firsts = [point_of(published_set(name, n_layers)) for name in settings.init_sets]
    progress = _Progress(artifact, count)
    while (done := len(artifact.evaluations)) < count and artifact.seconds < budget:
        begin = time.perf_counter()
        point = firsts[done] if done < len(firsts) else proposer.propose()
        layer_set = layer_set_of(point)
        score = scores.get(layer_set) if settings.objective == "expected" else None
        if score is None:
            score = scores[layer_set] = objective(layer_set)
        artifact.add(Evaluation(point, layer_set, score, time.perf_counter() - begin))
        proposer.register(point, score)
        progress.update()
    progress.close()


class _Progress:
    """A bar on a terminal, a line every half minute in a log."""

    def __init__(self, artifact: SearchRecord, count: int):
        self._artifact, self._count, self._shown = artifact, count, time.perf_counter()
        terminal = sys.stderr.isatty()
        label = f"layer search {artifact.name}"
        self._bar = tqdm(total=count, initial=len(artifact.evaluations), desc=label, disable=not terminal)

    def update(self) -> None:
        """One more evaluation."""
        best = f"best score {self._artifact.best.score:.4f}"
        self._bar.set_postfix_str(best, refresh=False)
        self._bar.update()
        now = time.perf_counter()
        if self._bar.disable and now - self._shown > LOG_SECONDS:
            self._shown = now
            done = len(self._artifact.evaluations)
            left = self._artifact.seconds / done * (self._count - done)
            line = f"[{done}/{self._count}] layer search {self._artifact.name}: {best}, {left:.0f} s left"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
