"""Measurement of a model's latency profile: sublayers in isolation, corrected by real steps."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from statistics import fmean, mean, median
from typing import TYPE_CHECKING, Any

import torch

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Method, Probe
from ssd_bench.contract.tree import TokenTree
from ssd_bench.cost.latency import MEASURED, Latency, NodeTimes, fit_line
from ssd_bench.engine.load import QUIET, LoadWatch
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.engine.timing import Clock
from ssd_bench.lease import hold_lease
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from ssd_bench.paths import write_atomic
from ssd_bench.run_warnings import WarningLog, new_warnings

if TYPE_CHECKING:
    from ssd_bench.contract.generation import Step

TIMES = tuple(field.name for field in fields(NodeTimes) if field.name != "nodes")
VERSION = 7  # raised when the measurement changes, or the kernels that it measures
WARMUP, REPEATS = 3, 9
NODES = (1, 2, 4, 8, 16, 32, 64, 128)  # nodes of the measured passes
CALL_ROWS = (1, 4, 16, 64, 256, 1024)  # rows of the measured calls of single sublayers and heads
BRANCH_TOKENS = 16  # tokens of a branch in calls over more rows, about as in KnapSpec; else 1, as in CLaSp
NODE_REPEATS = 5
ROUNDS, LEAST, SECONDS = 20, 2, 5  # rounds of engine steps: most, fewest, seconds to stop after
STEPS, WIDE = 8, 32  # steps of a proposal in a round; a quarter of them for a draft at least this long
DRAFT_LEN, WIDTH = 7, 3  # drafts with all sublayers, and trees: depth, candidates per depth
TREE_NODES = 1 + DRAFT_LEN * WIDTH
NEAR, FAR = 64, 2048  # contexts through which the line of a pass over several nodes is drawn
ATTEMPTS = 2


@torch.inference_mode()
def measure(decoder: Decoder, cache: KVCache) -> Latency:
    """Time one-token sublayers at contexts from 64 to the cache's capacity, and passes over up to 128 nodes.

    Passes with rounded weights are timed if the decoder has copies. Times are medians of repeats over all blocks in
    turn, so that weights come from memory as in decoding. If other processes use more than 10 % of the machine, the
    measurement is repeated once, and the attempt with less other load counts.
    """
    best: tuple[float, Latency] | None = None
    for _ in range(ATTEMPTS):
        watch = LoadWatch()
        points = tuple((n, _median_ms(decoder, partial(_sweep, decoder, cache, 0, n))) for n in contexts(cache.rows))
        t_mlp = _median_ms(decoder, lambda: _sweep(decoder, cache, 1, cache.rows - 1))
        tables: dict[str, Any] = {
            "passes": tuple(_node_times(decoder, cache, n) for n in NODES if n < cache.rows),
            "calls": tuple(_call_times(decoder, cache, n) for n in CALL_ROWS),
        }
        tables |= {
            f"int{bits}_passes": tuple(_node_times(decoder, cache, n, bits) for n in NODES if n < cache.rows)
            for bits in decoder.bits
        }
        slope, intercept, r2 = fit_line(points)
        fitted = Latency(t_mlp, slope, intercept, MEASURED, r2, points=points, **tables)
        latency = _correct_by_steps(fitted, decoder, cache, watch)
        load = watch.other_share()
        if best is None or load < best[0]:
            best = load, replace(latency, loaded=load > QUIET)
        if load <= QUIET:
            break
    assert best is not None
    return best[1]


def contexts(rows: int) -> list[int]:
    """Return the context lengths to measure: powers of two from 64, and the longest."""
    longest = rows - 1
    return [n for n in (2**e for e in range(6, 24)) if n < longest] + [longest]


def load_or_measure(decoder: Decoder, cache: KVCache, path: Path, log: WarningLog | None = None) -> Latency:
    """Load the profile in `path`; without one, measure it, and store it unless other processes used the machine."""
    latency = _load(path)
    if latency is None:
        try:
            with hold_lease(path.parent, f"{path.stem}.lease"):  # two measurements at once would disturb each other
                latency = _load(path) or measure(decoder, cache)
                if not latency.loaded:
                    write_atomic(path, json.dumps(asdict(latency), indent=1).encode())
        except OSError as error:  # the folder cannot be written: the profile is measured in every run
            text = f"the latency profile cannot be stored, so every run measures it again ({error})"
            for warning in new_warnings([f"{text}. Set SSD_BENCH_CACHE to a folder that can be written."], log):
                print(f"warning: {warning}", file=sys.stderr)
    return latency or measure(decoder, cache)


def _load(path: Path) -> Latency | None:
    try:
        stored = json.loads(path.read_bytes())
        if set(stored) != {field.name for field in fields(Latency)}:  # of a version with other parts
            return None
        return Latency.read(stored)
    except (OSError, ValueError, TypeError):  # missing or damaged
        return None


def _sweep(decoder: Decoder, cache: KVCache, parity: int, context: int, n: int = 1, bits: int = 0) -> None:
    """Run all attentions (parity 0) or all MLPs (parity 1) over n tokens at `context`."""
    tokens = torch.zeros(n, dtype=torch.long, device=decoder.device)
    sublayers = range(parity, 2 * decoder.arch.n_layers, 2)
    decoder.run(Pass(sublayers, tokens, context, bits=dict.fromkeys(sublayers, bits) if bits else None), cache)


def _run_head(decoder: Decoder, cache: KVCache, n: int) -> None:
    """Run a pass without sublayers, down to the chosen tokens and probabilities on the host."""
    hidden, _ = decoder.run(Pass((), torch.tensor([0] * n, device=decoder.device), 0), cache)
    for values in decoder.logits(hidden).softmax(-1).max(-1):
        values.tolist()


def _node_times(decoder: Decoder, cache: KVCache, n: int, bits: int = 0) -> NodeTimes:
    """Time a pass over n nodes: attentions at a near and a far context, MLPs, and (in full precision) the rest."""
    points = []
    for context in sorted({min(context, cache.rows - n) for context in (NEAR, FAR)}):
        attentions = partial(_sweep, decoder, cache, 0, context, n, bits)
        points.append((max(1, context), _median_ms(decoder, attentions, NODE_REPEATS)))
    slope, intercept, _ = fit_line(points)
    mlp_ms = _median_ms(decoder, partial(_sweep, decoder, cache, 1, 0, n, bits), NODE_REPEATS)
    if bits:
        return NodeTimes(n, slope, intercept, mlp_ms, 0.0)
    # the rest is once per pass, not once per block
    rest_ms = _median_ms(decoder, partial(_run_head, decoder, cache, n), NODE_REPEATS) * decoder.arch.n_layers
    return NodeTimes(n, slope, intercept, mlp_ms, rest_ms)


def _call_times(decoder: Decoder, cache: KVCache, n: int) -> NodeTimes:
    """Time single calls over n rows: an attention and an MLP over branches, and an LM head."""
    tokens = BRANCH_TOKENS if n > BRANCH_TOKENS else 1
    flat = decoder.embed(torch.zeros(n, dtype=torch.long, device=decoder.device))
    branches = flat.view(n // tokens, tokens, -1)

    def run(parity: int, context: int) -> None:
        for i in range(parity, 2 * decoder.arch.n_layers, 2):
            decoder.run_branches(i, branches, cache, context)

    contexts = sorted({max(1, min(context, cache.rows - tokens)) for context in (NEAR, FAR)})
    points = [(context, _median_ms(decoder, partial(run, 0, context), NODE_REPEATS)) for context in contexts]
    slope, intercept, _ = fit_line(points)
    mlp_ms = _median_ms(decoder, partial(run, 1, 1), NODE_REPEATS)
    # the head is once per call, not once per block
    head_ms = _median_ms(decoder, lambda: decoder.predict_confident(flat)[0].tolist(), NODE_REPEATS)
    return NodeTimes(n, slope, intercept, mlp_ms, head_ms * decoder.arch.n_layers)


class _FixedProposal(Method):
    """A method with a fixed proposal, as a new object in every step, since trees cache what they derive."""

    name, greedy_only = "timed", True

    def __init__(self, proposal: LayerDraft | TokenTree):
        self._proposal = proposal

    def propose(self, context: Context) -> LayerDraft | TokenTree:
        if isinstance(self._proposal, LayerDraft):
            return replace(self._proposal)
        return replace(self._proposal, tokens=(context.output[-1], *self._proposal.tokens[1:]))


def _correct_by_steps(latency: Latency, decoder: Decoder, cache: KVCache, watch: LoadWatch) -> Latency:
    """Return the profile corrected by real steps of the engine, whose parts take longer than in isolation.

    Short and long drafts without sublayers give the times of a draft and of a drafted token. Compared with them, drafts
    with all sublayers give a factor for sublayers over one node, and drafts with siblings the extra time of siblings.
    Verifications give the growth of a pass with its nodes, and the extra time of a tree. Drafts with rounded weights
    give the time of a drafted token with such a head and a factor for such sublayers.
    """
    n_layers = decoder.arch.n_layers
    sizes = {times.nodes for times in latency.passes} | {2, DRAFT_LEN + 1, TREE_NODES}
    steps = _steps(ModelProbe(decoder, cache), _proposals(n_layers, sizes, decoder.bits), watch)
    if not {"whole", "siblings", 1, 2, DRAFT_LEN + 1, TREE_NODES} <= set(steps):  # a context of a few tokens
        return latency
    draft_ms = {name: _trimmed_mean(step.draft_ms for step in samples) for name, samples in steps.items()}
    # a draft of k tokens without sublayers takes start + k * token; short has k = 1
    long, short = draft_ms[DRAFT_LEN + 1], draft_ms[2]
    token = max(0.0, long - short) / (DRAFT_LEN - 1)
    start = max(0.0, short - token)
    # with all sublayers it takes start + k * (token + single * profiled), at the mean context of its tokens
    context = mean(step.context_len for step in steps["whole"]) + (DRAFT_LEN - 1) / 2
    profiled = n_layers * sum(latency.pass_ms(1, context)[:2])
    single = max(0.0, (draft_ms["whole"] - start) / DRAFT_LEN - token) / profiled
    verify_ms = {name: _trimmed_mean(step.verify_ms for step in samples) for name, samples in steps.items()}
    verify_ms[1] += draft_ms[1]  # an empty draft also takes time
    contexts = {name: mean(step.context_len for step in samples) for name, samples in steps.items()}
    verified = {nodes: (contexts[nodes], verify_ms[nodes]) for nodes in sizes & set(steps)}
    rounded: dict[str, Any] = {}
    for name, bits in ((f"int{bits}", bits) for bits in decoder.bits):
        if {name, f"{name} head"} <= set(steps):
            head = max(0.0, draft_ms[f"{name} head"] - start) / DRAFT_LEN
            factor = max(0.0, (draft_ms[name] - start) / DRAFT_LEN - head)
            factor /= n_layers * sum(latency.pass_ms(1, context, bits))
            rounded[f"{name}_draft_rest_ms"] = head
            rounded[f"{name}_passes"] = tuple(_scaled(times, factor) for times in latency.passes_in(bits))
    return replace(
        latency,
        **rounded,
        passes=_grown(latency, n_layers, single, verified),
        draft_rest_ms=token,
        draft_start_ms=start,
        tree_token_ms=max(0.0, draft_ms["siblings"] - long) / DRAFT_LEN,
        tree_node_ms=max(0.0, verify_ms["siblings"] - verify_ms[TREE_NODES]) / TREE_NODES,
    )


def _scaled(times: NodeTimes, factor: float) -> NodeTimes:
    return replace(times, **{name: factor * getattr(times, name) for name in TIMES})


def _trimmed_mean(times: Iterable[float]) -> float:
    """Return the mean without a tenth at either end: unlike a median, it includes a run's usual delays."""
    ordered = sorted(times)
    cut = len(ordered) // 10  # scipy.stats.trim_mean computes this too, but its import takes a second of each run
    return fmean(ordered[cut : len(ordered) - cut])


def _proposals(
    n_layers: int, sizes: Iterable[int], rounded_to: Iterable[int] = ()
) -> dict[str | int, LayerDraft | TokenTree]:
    """Return drafts with all sublayers, with siblings, and without sublayers for each number of nodes; 1 is no draft.

    A threshold above 0 makes the engine compute the probabilities of drafted tokens.
    """
    full, nothing = LayerSet.full(n_layers), LayerSet(n_layers, frozenset(range(2 * n_layers)))
    chains = {n: LayerDraft(nothing, n - 1, 1e-9) if n > 1 else TokenTree.chain([0]) for n in sorted(sizes)}
    siblings = LayerDraft(nothing, DRAFT_LEN, 1e-9, ((0.0, WIDTH),))
    sets = {"whole": full} | {f"int{bits}": full.in_bits(bits) for bits in rounded_to}
    sets |= {f"int{bits} head": nothing.in_bits(bits) for bits in rounded_to}
    drafts = {name: LayerDraft(layer_set, DRAFT_LEN, 1e-9) for name, layer_set in sets.items()}
    return drafts | {"siblings": siblings} | chains


def _grown(
    latency: Latency, n_layers: int, single: float, verified: Mapping[int, tuple[float, float]]
) -> tuple[NodeTimes, ...]:
    """Return passes that grow with their nodes as real verifications do; a size without verifications grows as the next
    smaller one.

    Args:
        single: factor of sublayers over one node.
        verified: mean context and milliseconds of verifications by number of nodes, including 1.
    """
    one_node = latency.passes[0]
    corrected_one = {name: single * getattr(one_node, name) for name in TIMES}

    def sublayers(nodes: int, context: float) -> float:
        return n_layers * sum(latency.pass_ms(nodes, context)[:2])

    context, verify_ms = verified[1]
    corrected_one["rest_ms"] = max(0.0, verify_ms - single * sublayers(1, context))
    passes, growth = [], 1.0
    for times in latency.passes:
        # t(nodes) = corrected t(1) + growth * (profiled t(nodes) - profiled t(1)), so that t is the verification's time
        if times.nodes > 1 and times.nodes in verified:
            context, verify_ms = verified[times.nodes]
            first = single * sublayers(1, context) + corrected_one["rest_ms"]
            profiled = sublayers(times.nodes, context) - sublayers(1, context) + times.rest_ms - one_node.rest_ms
            growth = max(0.0, verify_ms - first) / profiled if profiled > 0 else 1.0
        increase = {name: growth * (getattr(times, name) - getattr(one_node, name)) for name in TIMES}
        passes.append(replace(times, **{name: corrected_one[name] + increase[name] for name in TIMES}))
    return tuple(passes)


def _steps(
    probe: Probe, proposals: Mapping[str | int, LayerDraft | TokenTree], watch: LoadWatch
) -> dict[str | int, list[Step]]:
    """Return engine steps whose whole proposal fitted, by name, without a prompt's slower first step.

    The proposals take turns, so that a temporary slowdown affects all. While other processes use the machine, only
    `LEAST` rounds run.
    """
    steps: dict[str | int, list[Step]] = {}
    begin = time.perf_counter()
    for i in range(ROUNDS):
        if i >= LEAST and (time.perf_counter() - begin > SECONDS or watch.other_share() > QUIET):
            break
        for name, proposal in proposals.items():
            depth = proposal.max_len if isinstance(proposal, LayerDraft) else 0
            n_steps = 1 + (STEPS if depth < WIDE else STEPS // 4)
            trial = probe.trial(_FixedProposal(proposal), [0], 1 + n_steps * (depth + 1), n_steps)
            if fitting := [step for step in trial.steps[1:] if step.draft_len == depth]:
                steps.setdefault(name, []).extend(fitting)
    return steps


def _median_ms(decoder: Decoder, run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median milliseconds of `run`, per block."""
    clock = Clock(decoder.device)
    for _ in range(WARMUP):
        run()
    marks = [clock.mark()]
    for _ in range(repeats):
        run()
        marks.append(clock.mark())
    clock.settle()
    return median(clock.ms(*pair) for pair in zip(marks, marks[1:])) / decoder.arch.n_layers
