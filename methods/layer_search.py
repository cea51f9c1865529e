"""Offline search for the sublayers to skip: Bayesian optimisation of the decoding speed (Zhang et al., ACL 2024).

Draft & Verify ("Self-SD") gives each of the 2L sublayers a variable in [0, 1] and skips those above 0.5. A Gaussian
process proposes points by upper confidence bound. A point's score is the speed of decoding with its set over a few
prompts; the best set is the result. Source: searching.py and search.ipynb of dilab-zju/self-speculative-decoding; its
optimiser is bayes_opt's, as in `methods.bayesian`. KNN-SSD searches per domain.

Decisions of this project:

* The default objective is `expected`, which is deterministic. It leaves out the LM head, so sets that skip nearly
  everything look a little too fast.
* Both objectives decode greedily past EOS and reset γ for each prompt, as in the released code.
* The random generator is seeded before every proposal, so that interruptions change nothing. A point proposed twice
  counts twice (bayes_opt's version 1 ignores the second).
* Every evaluation is stored immediately (`ssd_bench.records.search_store`). A search's key has everything its scores
  depend on: model, weights, dtype, machine, task, settings and prompts, but not the run's seed and the budget: a
  smaller budget reads the beginning of a search, a larger one continues it, with its initial latency profile.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from tqdm import tqdm

from methods.bayesian import suggest
from methods.draft_stop import ALL, DraftStop, Reading, StoppedDraft
from methods.fixed_layers import published_set
from methods.settings import DraftLen, NewTokens, StopBelow, TargetRate
from ssd_bench.contract.generation import Step
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Probe, Sample, SearchUse
from ssd_bench.cost.latency import Latency
from ssd_bench.errors import ConfigError
from ssd_bench.records import provenance, search_store
from ssd_bench.records.search_store import Evaluation, SearchRecord
from ssd_bench.settings import Range, Whole, settings

KAPPA = 2.576  # κ of the upper confidence bound: bayes_opt's default (searching.py:84-85 sets none)
VERSION = "layer_search-3"  # part of the key of a search: raise it when proposals or scores change
LOG_SECONDS = 30  # seconds between two lines of progress in a log


@settings("method.search", frozen=True)
class SearchSettings:
    """Settings of a search; defaults as in Self-SD's searching.py."""

    objective: Literal["expected", "wallclock"] = "expected"
    """Score of a set: its drafts' speedup at measured times, or its measured speed."""
    iterations: Whole = 1000
    """Points proposed after the first ones (`init_sets`, else one random point)."""
    max_seconds: Annotated[float, Range(above=0)] | None = None
    """Seconds, over all runs, after which no point is evaluated; null: no limit."""
    new_tokens: NewTokens = 32
    draft_len: DraftLen = 8
    stop_below: StopBelow = 0.8
    target_rate: TargetRate = 0.9
    random_state: Whole = 1
    """Seed of the optimiser."""
    init_sets: Sequence[str] = ()
    """Published sets (`paper/model/task`) to evaluate first; empty: a cold start."""
    reuse: str | Mapping[str, str] | None = None
    """Search or published set to use instead of a new search; a mapping by domain for methods with a set per domain."""

    def draft_stop(self, reading: Reading = ALL) -> DraftStop:
        """Return the stop rule of a search's drafts."""
        return DraftStop(self.draft_len, self.stop_below, self.target_rate, reading=reading)

    def check(self, n_layers: int) -> None:
        """Check the published sets in `init_sets` and `reuse`, before the weights load.

        Raises:
            ConfigError: an unknown set, or one for another number of blocks.
        """
        for name in self.init_sets:
            published_set(name, n_layers, "method.search.init_sets")
        names = self.reuse.values() if isinstance(self.reuse, Mapping) else [self.reuse or ""]
        for name in names:
            if "/" in name:  # a published set; names of searches have no slash
                published_set(name, n_layers, "method.search.reuse")

    @property
    def scoring(self) -> dict[str, Any]:
        names = ("objective", "new_tokens", "draft_len", "stop_below", "target_rate", "random_state")
        return {name: getattr(self, name) for name in names} | {"init_sets": list(self.init_sets)}


@dataclass
class Objective:
    """Objective of a search: the speed of self-speculative decoding with a layer set over some prompts.

    Attributes:
        latency: times of the sublayers, for `expected`; None: the probe's.
        reading: parts of the model that drafts read.
    """

    settings: SearchSettings
    probe: Probe
    prompts: Sequence[Sequence[int]]
    latency: Latency | None = None
    reading: Reading = ALL

    def __post_init__(self) -> None:
        self._warm = self.settings.objective == "expected"  # whether a warm-up is done or not needed

    def __call__(self, layer_set: LayerSet) -> float:
        """Score a set; higher is better.

        Returns:
            `expected`: the speedup over AR at the latency profile's times (SWIFT's E(speedup), with measured times).
            `wallclock`: tokens per second, including prefill.
        """
        trial, new_tokens = _Trial(layer_set, self.settings.draft_stop(self.reading)), self.settings.new_tokens
        if not self._warm:  # the first decoding of a process is slower and does not count
            self.probe.trial(trial, self.prompts[0], new_tokens)
            self._warm = True
        generations = [self.probe.trial(trial, prompt, new_tokens) for prompt in self.prompts]
        if self.settings.objective == "wallclock":
            milliseconds = sum(generation.prefill_ms + generation.decode_ms for generation in generations)
            return 1000 * sum(len(generation.output) for generation in generations) / milliseconds
        steps = (step for generation in generations for step in generation.steps)
        return expected_speedup(steps, partial(self._step_costs, layer_set))

    def _step_costs(self, layer_set: LayerSet, context: int, drafted: int) -> tuple[float, float]:
        """Return the times of an AR step and of a step with a draft: sublayers only, and one target pass to verify."""
        latency = self.latency or self.probe.latency
        target = latency.target_ms(layer_set.n_layers, context)
        return target, target + drafted * latency.draft_ms(self.reading.set_of(layer_set), context)


class DraftedStep(NamedTuple):
    """Counts of a simulated step, as in `Step`."""

    context_len: int
    draft_len: int
    emitted: int


def expected_speedup(steps: Iterable[Step | DraftedStep], price: Callable[[int, int], tuple[float, float]]) -> float:
    """Return the speedup over AR: the cost of the same tokens with AR, over the cost of the steps.

    Args:
        price: (context, drafted tokens) -> (cost of an AR step, cost of a step with such a draft).
    """
    ar_cost = draft_cost = 0.0
    for step in steps:
        ar_step_cost, step_cost = price(step.context_len, step.draft_len)
        ar_cost += step.emitted * ar_step_cost  # AR takes one step per token
        draft_cost += step_cost
    return ar_cost / draft_cost


class _Trial(StoppedDraft):
    """Self-SD's decoding with one layer set, as a method for `Probe.trial`."""

    name = "layer_search"

    def __init__(self, layer_set: LayerSet, stop: DraftStop):
        self._layer_set, self._stop = layer_set, stop


def propose(evaluations: Sequence[Evaluation], n_layers: int, seed: int) -> tuple[float, ...]:
    """Return the next point in [0, 1]^2L, attentions of blocks 0 .. L-1, then their MLPs.

    It is random at first, then of the highest upper confidence bound.
    """
    random = np.random.RandomState([seed, len(evaluations)])
    if not evaluations:
        return tuple(random.rand(2 * n_layers).tolist())
    points = [np.array(evaluation.point) for evaluation in evaluations]
    scores = [evaluation.score for evaluation in evaluations]
    return tuple(suggest(points, scores, random, KAPPA).tolist())


def layer_set_of(point: Sequence[float]) -> LayerSet:
    """Return the set that skips the sublayers above 0.5 in a point of `propose` (searching.py:38-45)."""
    n_layers = len(point) // 2
    skipped = [i for i, value in enumerate(point) if value > 0.5]
    attn, mlp = [i for i in skipped if i < n_layers], [i - n_layers for i in skipped if i >= n_layers]
    return LayerSet.skipping(n_layers, attn, mlp)


def point_of(layer_set: LayerSet) -> tuple[float, ...]:
    """Return a set as a point of `propose`: 1 for a skipped sublayer, else 0."""
    kinds = (layer_set.skip_attn, layer_set.skip_mlp)
    return tuple(float(i in skipped) for skipped in kinds for i in range(layer_set.n_layers))


def search(
    settings: SearchSettings, probe: Probe, samples: Sequence[Sample], domain: str, reading: Reading = ALL
) -> SearchRecord:
    """Run a search within the settings' budget; continue or reuse a stored search with the same key.

    Args:
        domain: the prompts', for the search's name and the table of searches.
        reading: parts of the model that drafts read, in search and run.

    Returns:
        The search up to the budget; its `best` is the result.

    Raises:
        ConfigError: the folder of searches cannot be used.
    """
    n_layers, begin = probe.n_layers, time.perf_counter()
    prompts = [list(sample.prompt) for sample in samples]
    count = max(1, len(settings.init_sets)) + settings.iterations
    budget = inf if settings.max_seconds is None else settings.max_seconds
    header = _header(settings, probe, prompts, domain, reading)
    origin = probe.origin
    with search_store.open_search(origin.folder, f"{origin.model}-{domain}", header, origin.command) as record:
        n_stored = len(record.evaluations)
        objective = Objective(settings, probe, prompts, Latency.read(record.header["latency"]), reading)
        if n_stored < count and record.seconds < budget:
            _extend(record, settings, objective, n_layers, count, budget)
    result, new = record.cut_to_budget(count, budget), max(0, len(record.evaluations) - n_stored)
    probe.report_search(SearchUse(result.name, len(result.evaluations), new, result.seconds))
    print(
        f"layer search {result.name}: score {result.best.score:.4f} ({settings.objective}) "
        f"after {len(result.evaluations)} evaluations in {result.seconds:.1f} s, {new} of them in this run "
        f"in {time.perf_counter() - begin:.1f} s",
        file=sys.stderr,
    )
    return result


def named_set(name: str, probe: Probe) -> LayerSet:
    """Return an earlier search's best set, or a published set, by name.

    Raises:
        ConfigError: unknown name (the message lists all), or a set for another number of blocks.
    """
    option = "method.search.reuse"
    if "/" in name:
        return published_set(name, probe.n_layers, option)
    layer_set = search_store.find(probe.origin.folder, name, option).best.layer_set
    if layer_set.n_layers != probe.n_layers:
        raise ConfigError(option, name, f"a search on {probe.n_layers} blocks; this one is on {layer_set.n_layers}")
    return layer_set


def _header(
    settings: SearchSettings, probe: Probe, prompts: list[list[int]], domain: str, reading: Reading
) -> dict[str, Any]:
    origin = probe.origin
    latency = {name: value for name, value in asdict(probe.latency).items() if name not in ("points", "passes")}
    run = {name: getattr(origin, name) for name in ("model", "weights", "task", "dtype", "machine")}
    # a measured profile is not in the key: it differs a little every time, and the machine is in the key
    given_latency = latency if probe.latency.source == "given" else None
    data = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    scoring = settings.scoring
    window = reading.window
    if window is not None:  # searches without a window keep the key that they had before windows existed
        scoring |= {"window": [window.sinks, window.recent]}
    if reading.bits:
        scoring |= {"weights": f"int{reading.bits}"}
    identity = {**run, "settings": scoring, "latency": given_latency, "n_layers": probe.n_layers}
    return {
        "content_key": provenance.content_key(identity, VERSION, data),
        "n_layers": probe.n_layers,
        **run,
        "domain": domain,
        "seed": origin.seed,
        "settings": scoring,
        "latency": latency,
        "prompts": len(prompts),
        "prompts_sha256": data,
    }


def _extend(
    record: SearchRecord, settings: SearchSettings, objective: Objective, n_layers: int, count: int, budget: float
) -> None:
    scores = {evaluation.layer_set: evaluation.score for evaluation in record.evaluations}
    init_points = [point_of(published_set(name, n_layers)) for name in settings.init_sets]
    progress = _Progress(record, count)
    while (done := len(record.evaluations)) < count and record.seconds < budget:
        begin = time.perf_counter()
        initial = done < len(init_points)
        point = init_points[done] if initial else propose(record.evaluations, n_layers, settings.random_state)
        layer_set = layer_set_of(point)
        # different points may round to one set: `expected` gives it the same score again, `wallclock` measures anew
        score = scores.get(layer_set) if settings.objective == "expected" else None
        if score is None:
            score = scores[layer_set] = objective(layer_set)
        record.add(Evaluation(point, layer_set, score, time.perf_counter() - begin))
        progress.update()
    progress.close()


class _Progress:
    """Progress of a search: a bar on a terminal, a line every half minute in a log."""

    def __init__(self, record: SearchRecord, count: int):
        self._record, self._count, self._last_line = record, count, time.perf_counter()
        terminal = sys.stderr.isatty()
        label = f"layer search {record.name}"
        self._bar = tqdm(total=count, initial=len(record.evaluations), desc=label, disable=not terminal)

    def update(self) -> None:
        best = f"best score {self._record.best.score:.4f}"
        self._bar.set_postfix_str(best, refresh=False)
        self._bar.update()
        now = time.perf_counter()
        if self._bar.disable and now - self._last_line > LOG_SECONDS:
            self._last_line = now
            done = len(self._record.evaluations)
            seconds_left = self._record.seconds / done * (self._count - done)
            line = f"[{done}/{self._count}] layer search {self._record.name}: {best}, {seconds_left:.0f} s left"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()
