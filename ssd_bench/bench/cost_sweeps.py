"""Sweeps over contexts and rows for the tables of a reference machine: passes, sublayers, LM head, host time.

    contexts.C.passes.N        pass over N nodes at context C
    contexts.C.attention.N     one attention of such a pass
    contexts.C.branches.N      device time of one attention over N rows of branches, launched one by one
    mlp.N, head.N              one MLP of a pass over N nodes; the LM head down to the chosen tokens
    branch_mlp.N, branch_head.N   device times over N rows, launched one by one
    host                       step_ms, call_ms, compare_ms, as in `ReferenceMachine`

All times are milliseconds, keys are texts. Every context has its own cache, because captured attentions divide its rows
among the GPU's processors.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import torch

from methods.ar import AR
from methods.knapsack import directions
from ssd_bench.bench.limits import interleaved, run_pass
from ssd_bench.engine.engine import SCRATCH, Engine
from ssd_bench.engine.probe import ModelProbe, mean_cosine
from ssd_bench.engine.sampling import Decoding
from ssd_bench.model.decoder import Decoder
from ssd_bench.model.kv_cache import KVCache

CONTEXTS = (128, 1024, 4096, 16384, 32768)
NODES = (1, 2, 4, 8, 16, 32, 64, 65, 128, 256, 512, 1024)
BRANCHES = ((1, 1), (16, 1), (4, 20), (16, 20), (32, 20), (128, 20))  # branches, rows per branch
ROUNDS = 5
STEPS = 32  # AR steps from which the host time of a step is measured
MOST_BLOCKS = 16  # blocks whose calls are queued at once: a GPU's queue holds about a thousand kernels
SLEEP_CYCLES = 10**8  # of the GPU, during which the host queues calls, so that device time alone is measured
USABLE = 0.8  # of the free memory, for a cache

Run = Callable[[], Any]


@torch.inference_mode()
def measure(decoder: Decoder, longest: int | None) -> dict[str, Any]:
    """Measure all sweeps; contexts end at `longest`, the model's context, and where the cache no longer fits.

    The decoder's earlier caches become unusable.
    """
    if decoder.device.type == "cuda":
        gc.collect()  # memory of measurements before counts as used until it is released
        torch.cuda.empty_cache()
    contexts: dict[str, Any] = {}
    sweeps: dict[str, Any] = {"contexts": contexts}
    for context in CONTEXTS:
        rows = context + max(NODES) + SCRATCH
        if (longest is not None and context > longest) or not _fits(decoder, rows):
            break
        cache = decoder.new_cache(rows)
        cache.reserve(rows)
        contexts[str(context)] = _context_times(decoder, cache, context)
        if len(contexts) == 1:
            sweeps |= _times_without_context(decoder, cache)
            sweeps["host"] = _host_times(decoder, cache, context)
        del cache  # before the next, larger one
    return sweeps


def _fits(decoder: Decoder, rows: int) -> bool:
    arch, device = decoder.arch, decoder.device
    if device.type != "cuda":
        return True
    n_bytes = rows * arch.n_layers * arch.cache_row * decoder.weights.dtype.itemsize
    return n_bytes < USABLE * torch.cuda.mem_get_info(device)[0]


def _context_times(decoder: Decoder, cache: KVCache, context: int) -> dict[str, dict[str, float]]:
    run, every = partial(run_pass, decoder, cache), decoder.all_sublayers
    whole = {str(n): partial(run, n, context) for n in NODES}
    attentions = {str(n): partial(run, n, context, every[::2], predicts=False) for n in NODES}
    return {
        "passes": _medians(decoder, whole),
        "attention": _medians(decoder, attentions, decoder.arch.n_layers),
        "branches": _branch_times(decoder, partial(_calls, decoder, cache, 0, context)),
    }


def _times_without_context(decoder: Decoder, cache: KVCache) -> dict[str, dict[str, float]]:
    run, every = partial(run_pass, decoder, cache), decoder.all_sublayers
    mlps = {str(n): partial(run, n, 0, every[1::2], predicts=False) for n in NODES}
    heads = {str(n): partial(run, n, 0, ()) for n in NODES}

    def predictions(branches: int, rows: int) -> list[Run]:
        return [partial(decoder.predict, _streams(decoder, branches, rows).flatten(0, 1))]

    return {
        "mlp": _medians(decoder, mlps, decoder.arch.n_layers),
        "head": _medians(decoder, heads),
        "branch_mlp": _branch_times(decoder, partial(_calls, decoder, cache, 1, 0)),
        "branch_head": _branch_times(decoder, predictions),
    }


def _branch_times(decoder: Decoder, calls: Callable[[int, int], list[Run]]) -> dict[str, float]:
    """Return the device times of calls over a number of branches and of rows in each, by all their rows."""
    return {str(branches * rows): _device_ms(decoder, calls(branches, rows)) for branches, rows in BRANCHES}


def _medians(decoder: Decoder, runs: Mapping[str, Run], parts: int = 1) -> dict[str, float]:
    return {name: median(times) * 1e3 / parts for name, times in interleaved(runs, decoder.device, ROUNDS).items()}


def _streams(decoder: Decoder, branches: int, rows: int) -> torch.Tensor:
    return torch.ones(branches, rows, decoder.arch.width, dtype=decoder.arithmetic.activations, device=decoder.device)


def _calls(decoder: Decoder, cache: KVCache, parity: int, context: int, branches: int, rows: int) -> list[Run]:
    """Return calls of attentions (parity 0) or MLPs (parity 1) of the first blocks over branches, as in a search."""
    hidden = _streams(decoder, branches, rows)
    sublayers = range(parity, 2 * min(MOST_BLOCKS, decoder.arch.n_layers), 2)
    return [partial(decoder.run_branches, i, hidden, cache, context) for i in sublayers]


def _device_ms(decoder: Decoder, calls: list[Run]) -> float:
    """Return the median device time of a call, launched while the device sleeps; on a CPU its whole time."""
    return median(_queued_ms(decoder, calls)[1] for _ in range(ROUNDS + 1))


def _queued_ms(decoder: Decoder, calls: list[Run]) -> tuple[float, float]:
    """Return the host time to queue a call, and its device time; on a CPU both are equal."""
    cuda = decoder.device.type == "cuda"
    if cuda:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(decoder.device)
        torch.cuda._sleep(SLEEP_CYCLES)
        first.record()
    begin = time.perf_counter()
    for call in calls:
        call()
    host_ms = (time.perf_counter() - begin) * 1e3 / len(calls)
    if not cuda:
        return host_ms, host_ms
    last.record()
    last.synchronize()
    return host_ms, first.elapsed_time(last) / len(calls)


def _host_times(decoder: Decoder, cache: KVCache, context: int) -> dict[str, float]:
    engine = Engine(
        decoder, cache, Decoding(max_new_tokens=STEPS + 1), frozenset(), ModelProbe(decoder, cache), context + STEPS + 2
    )
    prompt, steps = [0] * context, []
    for _ in range(ROUNDS + 1):
        generation = engine.generate(AR(), prompt)
        passes = {"pass": partial(run_pass, decoder, cache, 1, context + STEPS // 2)}
        steps.append(generation.decode_ms / len(generation.steps) - _medians(decoder, passes)["pass"])
    calls = [call for parity in (0, 1) for call in _calls(decoder, cache, parity, context, 16, 1)]
    streams = _streams(decoder, 16, 1)
    direction = directions(streams[0])
    comparison = partial(_compare, streams, direction)
    return {
        "step_ms": max(0.0, median(steps)),
        "call_ms": median(_queued_ms(decoder, calls)[0] for _ in range(ROUNDS + 1)),
        "compare_ms": _medians(decoder, {"comparison": comparison})["comparison"],
    }


def _compare(streams: torch.Tensor, direction: torch.Tensor) -> None:
    cosines = mean_cosine(streams, direction).cpu()
    streams.index_select(0, cosines.argsort().to(streams.device))
