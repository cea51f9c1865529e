"""Measurements: AR and Hugging Face, passes of any size, prefills, searches, the loop's own work.

Compared calls take turns within one run; medians are reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from methods import clasp
from methods.ar import AR
from methods.knapspec import KnapSpec
from ssd_bench.bench.limits import MachineLimits, Model, Traffic, interleaved, run_pass
from ssd_bench.contract.generation import Generation
from ssd_bench.contract.layer_set import BITS
from ssd_bench.contract.method import Method, Probe
from ssd_bench.contract.shape import ModelDims
from ssd_bench.cost.latency import Latency
from ssd_bench.engine.engine import Engine
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.engine.sampling import Decoding
from ssd_bench.model.decoder import PREFILL_CHUNK, Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from ssd_bench.run.hugging_face import HuggingFace
from ssd_bench.run.plan import Plan

ROUNDS = 5  # of every interleaved comparison
PREFILL_ROUNDS = 3  # fewer: a long prefill takes a hundred times as long as a forward
NEW_TOKENS = 64
NODES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 1024, 4096, 8192)
EDGES = (9, 13, 17, 25, 33, 37, 65, 97, 129, 193, 257)  # one node more than full blocks, where kernels may change
PREFILLS = (512, 4096)
SEARCH_CONTEXT, SEARCH_TOKENS = 1024, 20  # of the timed searches
POLICY_TOKENS = 512  # tokens of output over which KnapSpec's method overhead is measured


def against_transformers(planned: Plan, engine: Engine, limits: MachineLimits) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compare AR of this engine with Hugging Face `generate`: same weights, dtype, threads, prompts, output length.

    Returns:
        The comparison with prefills, and AR's time of a decoded token, without prefills, with its limit.
    """
    # No EOS, as in AR here: no output ends early, and no logit has to be masked to prevent that.
    folder, hardware = planned.model.checkpoint.folder, planned.machine.hardware
    hf_model = HuggingFace(folder, hardware, engine.decoding, engine.eos_ids, engine.context)
    prompts = [encoded.ids for encoded in planned.prompts.encoded]
    outputs: dict[str, list[list[Generation]]] = {"ar": [], "hf": []}
    runs = {
        "ar": lambda: outputs["ar"].append([engine.generate(AR(), prompt) for prompt in prompts]),
        "hf": lambda: outputs["hf"].append([hf_model.generate(prompt) for prompt in prompts]),
    }
    times = interleaved(runs, engine.decoder.device, ROUNDS)
    tokens = NEW_TOKENS * len(prompts)
    ratios = [hf / ar for ar, hf in zip(times["ar"], times["hf"])]
    n_equal = sum(ar.output == hf.output for ar, hf in zip(outputs["ar"][-1], outputs["hf"][-1]))
    compared = {
        "ar_tokens_per_s": tokens / median(times["ar"]),
        "hf_generate_tokens_per_s": tokens / median(times["hf"]),
        "ar_over_hf": median(ratios),
        "ar_over_hf_rounds": ratios,
        "prompts": len(prompts),
        "same_output": n_equal,
    }
    sizes = Model.of(engine.decoder)
    steps = [step for generation in outputs["ar"][-1] for step in generation.steps]
    passes = [sizes.forward(step.tree_nodes, step.context_len) for step in steps]
    decoding_ms = median(sum(generation.decode_ms for generation in generations) for generations in outputs["ar"][1:])
    return compared, limits.figure(decoding_ms / len(steps), passes, len(steps))


def _contexts_of(engine: Engine) -> list[int]:
    longest = engine.context - max(NODES)
    return sorted({min(context, longest) for context in CONTEXTS})


def forwards(engine: Engine, limits: MachineLimits) -> dict[str, dict[str, Any]]:
    """Measure full forwards with LM head, by context and number of nodes, in turns."""
    decoder, model, table = engine.decoder, Model.of(engine.decoder), {}
    for context in _contexts_of(engine):
        runs = {str(n): partial(run_pass, decoder, engine.cache, n, context) for n in NODES}
        times = interleaved(runs, decoder.device, rounds=2 * ROUNDS)
        table[str(context)] = {
            n: limits.figure(median(values) * 1e3, [model.forward(int(n), context)]) for n, values in times.items()
        }
    return table


def edges(engine: Engine) -> dict[str, float]:
    """Return the median time of n over n - 1 nodes, where kernels may change, by n, in turns."""
    decoder, context = engine.decoder, CONTEXTS[0]
    edge_nodes = [n for n in EDGES if context + n <= engine.context]
    nodes = [n for edge in edge_nodes for n in (edge - 1, edge)]
    runs = {str(n): partial(run_pass, decoder, engine.cache, n, context) for n in nodes}
    times = interleaved(runs, decoder.device, rounds=2 * ROUNDS)
    return {str(n): median(more / less for less, more in zip(times[str(n - 1)], times[str(n)])) for n in edge_nodes}


def prefills(engine: Engine, limits: MachineLimits) -> dict[str, Any]:
    """Measure prefills including the first token, by length of the prompt, in turns."""
    decoder, model = engine.decoder, Model.of(engine.decoder)
    lengths = sorted({min(length, engine.context) for length in PREFILLS})
    runs = {str(length): partial(_prefill, engine, length) for length in lengths}
    times = interleaved(runs, decoder.device, PREFILL_ROUNDS)
    engine.cache.reset()
    return {str(length): limits.figure(median(times[str(length)]) * 1e3, model.prefill(length)) for length in lengths}


@torch.inference_mode()
def _prefill(engine: Engine, length: int) -> None:
    decoder = engine.decoder
    last, _ = decoder.prefill(_prompt(decoder, length), engine.cache)
    decoder.logits(last).argmax(-1).tolist()


def _prompt(decoder: Decoder, length: int) -> Tensor:
    return torch.arange(length, device=decoder.device) % decoder.arch.vocab_size


def contexts(engine: Engine) -> dict[str, Any]:
    """Measure AR's ms per token by context, in turns, and the ratio of 4k to 128 if the model's context allows it."""
    decoder = engine.decoder
    runs = {str(n): partial(run_pass, decoder, engine.cache, 1, n) for n in _contexts_of(engine)}
    times = interleaved(runs, decoder.device, rounds=2 * ROUNDS)
    per_token = {name: median(values) * 1e3 for name, values in times.items()}
    low, high = str(CONTEXTS[0]), str(CONTEXTS[2])
    ratio = per_token[high] / per_token[low] if low in per_token and high in per_token else None
    return {"ar_ms_by_context": per_token, "ar_4k_over_128": ratio}


def rounded_drafts(engine: Engine) -> dict[str, Any]:
    """Measure a drafted token with rounded weights and an AR step, in turns, by context; adds copies of the weights.

    Passes run on a new cache, since a copy must precede the passes that a backend captures for a cache. The engine is
    not used afterwards.
    """
    decoder = engine.decoder
    for bits in BITS:
        decoder.quantise(bits)
    cache = decoder.new_cache(engine.cache.capacity)
    lengths = sorted({min(context, engine.context - 1) for context in (CONTEXTS[0], CONTEXTS[2])})
    pairs = [(length, bits) for length in lengths for bits in (0, *BITS)]
    runs = {f"{length} {bits}": partial(run_pass, decoder, cache, 1, length, bits=bits) for length, bits in pairs}
    times = interleaved(runs, decoder.device, rounds=4 * ROUNDS)

    def drafts(n: int, bits: int) -> dict[str, float]:
        plain, rounded = times[f"{n} 0"], times[f"{n} {bits}"]
        ratio = median(b / a for a, b in zip(plain, rounded))
        return {"ar_ms": median(plain) * 1e3, "draft_ms": median(rounded) * 1e3, "ratio": ratio}

    shares = {bits: decoder.in_bits(bits).nbytes / decoder.weights.nbytes for bits in BITS}
    return {f"int{bits}_drafts": {str(n): drafts(n, bits) for n in lengths} for bits in BITS} | {
        f"int{bits}_over_full_bytes": share for bits, share in shares.items()
    }


def policy(planned: Plan, engine: Engine, latency: Latency) -> dict[str, Any]:
    """Measure KnapSpec at its paper's interval over a long output: its share of method overhead, time of a search."""
    method, probe = planned.method, ModelProbe(engine.decoder, engine.cache, latency)
    long = Engine(engine.decoder, engine.cache, Decoding(max_new_tokens=POLICY_TOKENS), frozenset(), probe)
    generation = long.generate(method, planned.prompts.encoded[0].ids)
    policy = [step.policy_ms for step in generation.steps]
    search_ms = [step.policy_ms for step in generation.steps if step.estimate is not None]
    return {
        "knapspec_policy_share": sum(policy) / generation.decode_ms,
        "knapspec_search_ms": median(search_ms) if search_ms else None,
        "knapspec_searches": len(search_ms),
        "knapspec_new_tokens": len(generation.output),
    }


class _CountingProbe(ModelProbe):
    """A probe that records every applied sublayer's tokens and work."""

    def __init__(self, decoder: Decoder, cache: KVCache, latency: Latency):
        super().__init__(decoder, cache, latency)
        self.passes: list[tuple[int, int]] = []
        self.work: list[Traffic] = []
        self._model = Model.of(decoder)

    def apply_sublayer(self, i: int, hidden: Tensor, prefix_len: int, bits: int = 0) -> Tensor:
        branches, tokens, _ = hidden.shape
        self.passes.append((i, branches * tokens))
        self.work.append(self._model.sublayer(i, branches * tokens, prefix_len, prefix_len + (tokens + 1) / 2))
        return super().apply_sublayer(i, hidden, prefix_len, bits)


@torch.inference_mode()
def searches(dims: ModelDims, engine: Engine, limits: MachineLimits, latency: Latency) -> dict[str, dict[str, Any]]:
    """Compare a KnapSpec and a CLaSp search after 1k tokens with a plain forward over as many tokens.

    Each sublayer of the forward gets as many tokens as in the search, so both multiply the same matrices. A ratio above
    1 is the rest of the search: cosines, choices, LM head.
    """
    decoder, cache, n_sub = engine.decoder, engine.cache, 2 * dims.n_layers
    length = min(SEARCH_CONTEXT, engine.context // 2)
    _, tapped = decoder.prefill(_prompt(decoder, length), cache, range(n_sub + 1))
    assert tapped is not None
    states = tapped[:, -SEARCH_TOKENS:].clone()
    knapspec, blocks = KnapSpec(), dims.n_layers // 2
    knapspec.check(dims)
    kinds: dict[str, Callable[[Probe], Any]] = {
        "knapspec": lambda probe: knapspec.search(states, length, probe),
        "clasp": lambda probe: clasp.choose(states[::2, -1], blocks, length - 1, probe),
    }
    results = {}
    for name, search in kinds.items():
        counting = _CountingProbe(decoder, cache, latency)
        search(counting)
        tokens = max(1, round(sum(n for _, n in counting.passes) / n_sub))
        runs: dict[str, Callable[[], Any]] = {
            "search": partial(search, ModelProbe(decoder, cache, latency)),
            "plain": partial(_plain, engine, counting.passes, length),
        }
        times = interleaved(runs, decoder.device, ROUNDS)
        ratios = [search_s / plain_s for search_s, plain_s in zip(times["search"], times["plain"])]
        results[name] = {
            "tokens": tokens,
            "search_ms": median(times["search"]) * 1e3,
            "plain_ms": median(times["plain"]) * 1e3,
            "ratio": median(ratios),
            "figure": limits.figure(median(times["search"]) * 1e3, counting.work),
        }
    cache.reset()
    return results


def _plain(engine: Engine, passes: Sequence[tuple[int, int]], context: int) -> None:
    """Run sublayers, each over a number of tokens after `context` others, in chunks as in a prefill."""
    decoder = engine.decoder
    streams = decoder.embed(torch.zeros(PREFILL_CHUNK, dtype=torch.long, device=decoder.device))
    for sublayer, n in passes:
        for chunk in range(0, n, PREFILL_CHUNK):
            length = min(PREFILL_CHUNK, n - chunk)
            decoder.run(Pass((sublayer,), streams[:length], context), engine.cache)


def outside_share(planned: Plan, engine: Engine) -> float:
    """Measure the share of AR's time outside model forwards: loop, sampling, verification, trace."""
    decoder, forward_s = engine.decoder, 0.0
    original_calls = {name: getattr(decoder, name) for name in ("run", "logits")}

    def timed(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal forward_s
            begin = time.perf_counter()
            result = original_calls[name](*args)
            if decoder.device.type == "cuda":
                torch.cuda.synchronize(decoder.device)
            forward_s += time.perf_counter() - begin
            return result

        return call

    shares = []
    method: Method = AR()
    for _ in range(ROUNDS):
        forward_s = 0.0
        for name in original_calls:
            setattr(decoder, name, timed(name))
        try:
            generation = engine.generate(method, planned.prompts.encoded[0].ids)
        finally:
            for name in original_calls:
                delattr(decoder, name)
        shares.append(1 - forward_s * 1e3 / (generation.decode_ms + generation.prefill_ms))
    return median(shares)
