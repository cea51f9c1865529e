"""Measures the latency profile of a model on this machine: sublayers by themselves, corrected by real steps."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

import torch

from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.load import QUIET, LoadWatch
from ssd_bench.core.method import Context, LayerDraft, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.core.probe import ModelProbe
from ssd_bench.core.timing import Clock
from ssd_bench.core.tree import TokenTree
from ssd_bench.cost.latency import Latency, NodeTimes, fit, line
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from ssd_bench.model.shape import ModelDims
from ssd_bench.records.files import write_atomic
from ssd_bench.records.lease import hold_lease

if TYPE_CHECKING:
    from ssd_bench.core.engine import Step

VERSION = 5  # raised when times are measured in another way, or kernels change what takes them
WARMUP, REPEATS = 3, 9
NODES = (1, 2, 4, 8, 16, 32, 64, 128)  # of a pass
NODE_REPEATS = 5
ROUNDS, LEAST, SECONDS = 20, 2, 5  # of engine steps that correct the profile: at most, at least, enough
STEPS, WIDE = 8, 32  # of a proposal in a round; a quarter of them over more nodes than this
DRAFT_LEN, WIDTH = 7, 3  # of drafts with all sublayers and of trees
TREE_NODES = 1 + DRAFT_LEN * WIDTH
NEAR, FAR = 64, 2048  # contexts between which a pass over several nodes is taken as linear
ATTEMPTS = 2


@torch.inference_mode()
def measure(decoder: Decoder, cache: KVCache) -> Latency:
    """Time one-token sublayers at contexts from 64 to the cache's capacity, and passes over up to 128 nodes.

    Medians of repeats over all blocks.
    All L blocks run in turn, so that weights come from memory as in decoding. A measurement during which other
    processes use more than 10 % of the machine is repeated once; the quieter one counts.
    """
    best: tuple[float, Latency] | None = None
    for _ in range(ATTEMPTS):
        watch = LoadWatch()
        points = [(n, _attention_ms(decoder, cache, n)) for n in contexts(cache.rows)]
        t_mlp = _median_ms(decoder, lambda: _sweep(decoder, cache, 1, cache.rows - 1))
        passes = [_node_times(decoder, cache, n) for n in NODES if n < cache.rows]
        latency = _as_decoded(fit(points, t_mlp, passes=passes), decoder, cache, watch)
        others = watch.others()
        if best is None or others < best[0]:
            best = others, replace(latency, loaded=others > QUIET)
        if others <= QUIET:
            break
    assert best is not None
    return best[1]


def contexts(rows: int) -> list[int]:
    """Context lengths to measure: powers of two from 64 up, and the longest that the cache holds."""
    longest = rows - 1
    return [n for n in (2**e for e in range(6, 24)) if n < longest] + [longest]


def cached(decoder: Decoder, cache: KVCache, path: Path) -> Latency:
    """The profile in `path` if it is there, else a measured one, kept there unless the machine was busy."""
    latency = _kept(path)
    if latency is None:
        try:
            with hold_lease(path.parent, f"{path.stem}.lease"):  # two that measure at once would disturb each other
                latency = _kept(path) or measure(decoder, cache)
                if not latency.loaded:
                    write_atomic(path, json.dumps(asdict(latency), indent=1).encode())
        except OSError as error:  # a home that cannot be written: the profile is measured in every run
            print(f"the latency profile is not kept, SSD_BENCH_CACHE names a folder for it ({error})", file=sys.stderr)
    return latency or measure(decoder, cache)


def _kept(path: Path) -> Latency | None:
    try:
        stored = json.loads(path.read_bytes())
        if set(stored) != {field.name for field in fields(Latency)}:  # from before a part of it was measured
            return None
        points = tuple((int(n), t) for n, t in stored["points"])
        return Latency(**stored | {"points": points, "passes": tuple(NodeTimes(**times) for times in stored["passes"])})
    except (OSError, ValueError, TypeError):  # not there, or damaged
        return None


def _sweep(decoder: Decoder, cache: KVCache, parity: int, context: int, n: int = 1) -> None:
    """All attentions (parity 0) or all MLPs (parity 1), n tokens at `context`."""
    tokens = torch.zeros(n, dtype=torch.long, device=decoder.device)
    sublayers = range(parity, 2 * decoder.arch.n_layers, 2)
    decoder.run(Pass(sublayers, tokens, context), cache)


def _rest(decoder: Decoder, cache: KVCache, n: int) -> None:
    """A pass without sublayers, down to the chosen tokens and their probabilities on the host."""
    hidden, _ = decoder.run(Pass((), torch.tensor([0] * n, device=decoder.device), 0), cache)
    for values in decoder.logits(hidden).softmax(-1).max(-1):
        values.tolist()


def _attention_ms(decoder: Decoder, cache: KVCache, context: int) -> float:
    return _median_ms(decoder, lambda: _sweep(decoder, cache, 0, context))


def _node_times(decoder: Decoder, cache: KVCache, n: int) -> NodeTimes:
    """A pass over n nodes: attentions at a near and a far context, MLPs, and the rest."""
    points = []
    for context in sorted({min(context, cache.rows - n) for context in (NEAR, FAR)}):
        attentions = partial(_sweep, decoder, cache, 0, context, n)
        points.append((max(1, context), _median_ms(decoder, attentions, NODE_REPEATS)))
    slope, intercept, _ = line(points)
    mlp = _median_ms(decoder, partial(_sweep, decoder, cache, 1, 0, n), NODE_REPEATS)
    rest = _median_ms(decoder, partial(_rest, decoder, cache, n), NODE_REPEATS) * decoder.arch.n_layers
    return NodeTimes(n, slope, intercept, mlp, rest)


class _Timed:
    """The same proposal in every step, made anew, a tree with the step's root: what trees derive, they derive once."""

    name, taps, reuse_prefix, greedy_only = "timed", Taps(), False, True

    def __init__(self, proposal: LayerDraft | TokenTree):
        self._proposal = proposal

    def check(self, dims: ModelDims) -> None: ...

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None: ...

    def start(self, prefill: Prefill) -> None: ...

    def propose(self, context: Context) -> LayerDraft | TokenTree:
        if isinstance(self._proposal, LayerDraft):
            return replace(self._proposal)
        return replace(self._proposal, tokens=(context.output[-1], *self._proposal.tokens[1:]))

    def observe(self, verification: Verification, probe: Probe) -> None: ...


def _as_decoded(latency: Latency, decoder: Decoder, cache: KVCache, watch: LoadWatch) -> Latency:
    """The profile corrected by real steps of the engine, in which everything takes longer than by itself.

    Drafts with all sublayers and with none give one factor for sublayers over one node. Drafts with none, short and
    long ones, with and without siblings, give what drafting takes beside sublayers, and their verifications how much
    a pass grows with its nodes, and a tree beyond a chain.
    """
    n_layers = decoder.arch.n_layers
    sizes = {times.nodes for times in latency.passes} | {2, DRAFT_LEN + 1, TREE_NODES}
    steps = _steps(ModelProbe(decoder, cache), _proposals(n_layers, sizes), watch)
    if not {"whole", "siblings", 1, 2, DRAFT_LEN + 1, TREE_NODES} <= set(steps):  # a context of a few tokens
        return latency
    drafted = {name: _usual(step.draft_ms for step in found) for name, found in steps.items()}
    long, short = drafted[DRAFT_LEN + 1], drafted[2]
    token = max(0.0, long - short) / (DRAFT_LEN - 1)
    start = max(0.0, short - token)
    at = mean(step.context_len for step in steps["whole"]) + (DRAFT_LEN - 1) / 2
    believed = n_layers * sum(latency.pass_ms(1, at)[:2])
    single = max(0.0, (drafted["whole"] - start) / DRAFT_LEN - token) / believed
    verified = {name: _usual(step.verify_ms for step in found) for name, found in steps.items()}
    verified[1] += drafted[1]  # nothing, which takes a moment as well
    contexts = {name: mean(step.context_len for step in found) for name, found in steps.items()}
    real = {nodes: (contexts[nodes], verified[nodes]) for nodes in sizes & set(steps)}
    return replace(
        latency, passes=_grown(latency, n_layers, single, real), draft_rest_ms=token, draft_start_ms=start,
        tree_token_ms=max(0.0, drafted["siblings"] - long) / DRAFT_LEN,
        tree_node_ms=max(0.0, verified["siblings"] - verified[TREE_NODES]) / TREE_NODES,
    )  # fmt: skip


def _usual(times: Iterable[float]) -> float:
    """Mean without the tenth of either end: a run's total has the usual delays in it, a median has none."""
    from scipy.stats import trim_mean

    return float(trim_mean(list(times), 0.1))


def _proposals(n_layers: int, sizes: Iterable[int]) -> dict[str | int, LayerDraft | TokenTree]:
    """Drafts with all sublayers, with siblings, and of so many nodes without any sublayer; one node: nothing drafted.

    A threshold above 0 makes the engine work out the probabilities of drafted tokens.
    """
    full, nothing = LayerSet.full(n_layers), LayerSet(n_layers, frozenset(range(2 * n_layers)))
    chains = {n: LayerDraft(nothing, n - 1, 1e-9) if n > 1 else TokenTree.chain([0]) for n in sorted(sizes)}
    siblings = LayerDraft(nothing, DRAFT_LEN, 1e-9, ((0.0, WIDTH),))
    return {"whole": LayerDraft(full, DRAFT_LEN, 1e-9), "siblings": siblings} | chains


def _grown(
    latency: Latency, n_layers: int, single: float, verified: Mapping[int, tuple[float, float]]
) -> tuple[NodeTimes, ...]:
    """Passes that grow over one node as real verifications do; where there are none, as those of fewer nodes.

    Args:
        single: factor of sublayers over one node.
        verified: mean context and milliseconds of verifications by number of nodes, one included.
    """
    columns = ("attn_slope_ms", "attn_intercept_ms", "mlp_ms", "rest_ms")
    lone = latency.passes[0]
    at_one = {name: single * getattr(lone, name) for name in columns}

    def sublayers(nodes: int, context: float) -> float:
        return n_layers * sum(latency.pass_ms(nodes, context)[:2])

    context, plain = verified[1]
    at_one["rest_ms"] = max(0.0, plain - single * sublayers(1, context))
    passes, growth = [], 1.0
    for times in latency.passes:
        if times.nodes > 1 and times.nodes in verified:
            context, real = verified[times.nodes]
            first = single * sublayers(1, context) + at_one["rest_ms"]
            believed = sublayers(times.nodes, context) - sublayers(1, context) + times.rest_ms - lone.rest_ms
            growth = max(0.0, real - first) / believed if believed > 0 else 1.0
        grown = {name: at_one[name] + growth * (getattr(times, name) - getattr(lone, name)) for name in columns}
        passes.append(replace(times, **grown))
    return tuple(passes)


def _steps(
    probe: Probe, proposals: Mapping[str | int, LayerDraft | TokenTree], watch: LoadWatch
) -> dict[str | int, list[Step]]:
    """Engine steps that had room for all of a proposal, by name, without the first after a prompt, which is slower.

    All proposals take turns, so that a machine which slows down for a while does so for all of them. While other
    processes use it, no more rounds are made than must be.
    """
    steps: dict[str | int, list[Step]] = {}
    begin = time.perf_counter()
    for i in range(ROUNDS):
        if i >= LEAST and (time.perf_counter() - begin > SECONDS or watch.others() > QUIET):
            break
        for name, proposal in proposals.items():
            depth = proposal.max_len if isinstance(proposal, LayerDraft) else 0
            n_steps = 1 + (STEPS if depth < WIDE else STEPS // 4)
            found = probe.trial(_Timed(proposal), [0], 1 + n_steps * (depth + 1), n_steps).steps
            if fitting := [step for step in found[1:] if step.draft_len == depth]:
                steps.setdefault(name, []).extend(fitting)
    return steps


def _median_ms(decoder: Decoder, run: Callable[[], None], repeats: int = REPEATS) -> float:
    """Median milliseconds of `run`, per block."""
    clock = Clock(decoder.device)
    for _ in range(WARMUP):
        run()
    marks = [clock.mark()]
    for _ in range(repeats):
        run()
        marks.append(clock.mark())
    clock.settle()
    return median(clock.ms(*pair) for pair in zip(marks, marks[1:])) / decoder.arch.n_layers
