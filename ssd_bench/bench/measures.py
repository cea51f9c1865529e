"""What the benchmark times: AR beside Hugging Face, passes of any size, prefills, searches, the loop's own work.

Whatever is compared takes turns within one run, and medians are reported.
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
from ssd_bench.bench.limits import Limits, Model, Work, interleaved
from ssd_bench.core.engine import Engine, Generation
from ssd_bench.core.method import Method, Probe
from ssd_bench.core.probe import ModelProbe
from ssd_bench.core.sampling import Decoding
from ssd_bench.hugging_face import HuggingFace
from ssd_bench.model.decoder import PREFILL_CHUNK, Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from ssd_bench.model.shape import ModelDims
from ssd_bench.plan import Plan

ROUNDS = 5  # of every interleaved comparison
PREFILL_ROUNDS = 3  # a long one takes a hundred times a forward
NEW_TOKENS = 64
NODES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 1024, 4096, 8192)
EDGES = (9, 13, 17, 25, 33, 37, 65, 97, 129, 193, 257)  # one node more than where kernels may change: full blocks
PREFILLS = (512, 4096)
SEARCH_CONTEXT, SEARCH_TOKENS = 1024, 20  # of the searches that are timed beside a plain forward
POLICY_TOKENS = 512  # output over which the policy share of KnapSpec is taken


def against_transformers(planned: Plan, engine: Engine, limits: Limits) -> tuple[dict[str, Any], dict[str, Any]]:
    """AR of this engine beside Hugging Face `generate`: same weights, dtype, threads, prompts and output length.

    Returns:
        The comparison, prefills included; and the figure of a decoded token, without them.
    """
    # no EOS, as in our arm: nothing ends an output early, and no logit is masked to keep it going
    stock = HuggingFace(
        planned.checkpoint.folder, planned.hardware, engine.decoding, engine.eos_ids, engine.context
    )  # fmt: skip
    prompts = [encoded.ids for encoded in planned.encoded]
    made: dict[str, list[list[Generation]]] = {"ar": [], "hf": []}
    runs = {
        "ar": lambda: made["ar"].append([engine.generate(AR(), prompt) for prompt in prompts]),
        "hf": lambda: made["hf"].append([stock.generate(prompt) for prompt in prompts]),
    }
    times = interleaved(runs, engine.decoder.device, ROUNDS)
    tokens = NEW_TOKENS * len(prompts)
    ratios = [hf / ar for ar, hf in zip(times["ar"], times["hf"])]
    same = sum(ours.output == theirs.output for ours, theirs in zip(made["ar"][-1], made["hf"][-1]))
    compared = {
        "ar_tokens_per_s": tokens / median(times["ar"]), "hf_generate_tokens_per_s": tokens / median(times["hf"]),
        "ar_over_hf": median(ratios), "ar_over_hf_rounds": ratios, "prompts": len(prompts), "same_output": same,
    }  # fmt: skip
    sizes = Model.of(engine.decoder)
    steps = [step for one in made["ar"][-1] for step in one.steps]
    passes = [sizes.forward(step.tree_nodes, step.context_len) for step in steps]
    decoding = median(sum(one.decode_ms for one in turn) for turn in made["ar"][1:])
    return compared, limits.figure(decoding / len(steps), passes, len(steps))


def _contexts_of(engine: Engine) -> list[int]:
    room = engine.context - max(NODES)
    return sorted({min(context, room) for context in CONTEXTS})


def forwards(engine: Engine, limits: Limits) -> dict[str, dict[str, Any]]:
    """Figures of one full forward with its LM head, by context and number of nodes; nodes interleaved."""
    decoder, model, table = engine.decoder, Model.of(engine.decoder), {}
    for context in _contexts_of(engine):
        runs = {str(n): _forward(engine, n, context) for n in NODES}
        times = interleaved(runs, decoder.device, rounds=2 * ROUNDS)
        table[str(context)] = {
            n: limits.figure(median(values) * 1e3, [model.forward(int(n), context)]) for n, values in times.items()
        }
    return table


def edges(engine: Engine) -> dict[str, float]:
    """Median cost of one node more where kernels may change: of n over n - 1 nodes, by n, all interleaved."""
    context = CONTEXTS[0]
    places = [n for n in EDGES if context + n <= engine.context]
    runs = {str(n): _forward(engine, n, context) for edge in places for n in (edge - 1, edge)}
    times = interleaved(runs, engine.decoder.device, rounds=2 * ROUNDS)
    return {str(n): median(more / less for less, more in zip(times[str(n - 1)], times[str(n)])) for n in places}


def prefills(engine: Engine, limits: Limits) -> dict[str, Any]:
    """Figures of a prefill down to its first token, by length of the prompt; lengths interleaved."""
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


def _forward(engine: Engine, n: int, context: int) -> Callable[[], Any]:
    decoder = engine.decoder
    tokens = _prompt(decoder, n)
    what = Pass(decoder.all_sublayers, tokens, context)

    @torch.inference_mode()
    def run() -> Any:
        hidden, _ = decoder.run(what, engine.cache)
        return decoder.logits(hidden).argmax(-1).tolist()

    return run


def contexts(engine: Engine) -> dict[str, Any]:
    """AR milliseconds per token by context, interleaved, and the ratio of 4k to 128 where the model reaches it."""
    runs = {str(context): _forward(engine, 1, context) for context in _contexts_of(engine)}
    times = interleaved(runs, engine.decoder.device, rounds=2 * ROUNDS)
    per_token = {name: median(values) * 1e3 for name, values in times.items()}
    low, high = str(CONTEXTS[0]), str(CONTEXTS[2])
    ratio = per_token[high] / per_token[low] if low in per_token and high in per_token else None
    return {"ar_ms_by_context": per_token, "ar_4k_over_128": ratio}


def policy(planned: Plan, engine: Engine) -> dict[str, Any]:
    """KnapSpec at its paper's interval over a long output: share of its policy, and the time of one search."""
    method = planned.method
    long = Engine(engine.decoder, engine.cache, Decoding(max_new_tokens=POLICY_TOKENS), frozenset(), engine.probe)
    made = long.generate(method, planned.encoded[0].ids)
    policy = [step.policy_ms for step in made.steps]
    events = [step.policy_ms for step in made.steps if step.estimate is not None]
    return {
        "knapspec_policy_share": sum(policy) / made.decode_ms, "knapspec_search_ms": median(events) if events else None,
        "knapspec_searches": len(events), "knapspec_new_tokens": len(made.output),
    }  # fmt: skip


class _Counting(ModelProbe):
    """A probe that notes every sublayer that it applies, to how many tokens over all branches, and the work in it."""

    def __init__(self, decoder: Decoder, cache: KVCache):
        super().__init__(decoder, cache)
        self.passes: list[tuple[int, int]] = []
        self.work: list[Work] = []
        self._model = Model.of(decoder)

    def apply_sublayer(self, i: int, hidden: Tensor, prefix_len: int) -> Tensor:
        branches, tokens, _ = hidden.shape
        self.passes.append((i, branches * tokens))
        self.work.append(self._model.sublayer(i, branches * tokens, prefix_len, prefix_len + (tokens + 1) / 2))
        return super().apply_sublayer(i, hidden, prefix_len)


@torch.inference_mode()
def searches(dims: ModelDims, engine: Engine, limits: Limits) -> dict[str, dict[str, Any]]:
    """One KnapSpec and one CLaSp search after 1k tokens beside a plain forward over as many tokens.

    Each sublayer of that forward gets as many tokens as the search put through it, over all branches. So both sides
    multiply the same matrices; what a search does besides (cosines, choices, LM head) is what its ratio is above 1.
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
    found = {}
    for name, search in kinds.items():
        counting = _Counting(decoder, cache)
        counting.latency = engine.probe.latency
        search(counting)
        tokens = max(1, round(sum(n for _, n in counting.passes) / n_sub))
        runs: dict[str, Callable[[], Any]] = {
            "search": partial(search, engine.probe), "plain": partial(_plain, engine, counting.passes, length),
        }  # fmt: skip
        times = interleaved(runs, decoder.device, ROUNDS)
        ratios = [ours / theirs for ours, theirs in zip(times["search"], times["plain"])]
        found[name] = {
            "tokens": tokens, "search_ms": median(times["search"]) * 1e3, "plain_ms": median(times["plain"]) * 1e3,
            "ratio": median(ratios), "figure": limits.figure(median(times["search"]) * 1e3, counting.work),
        }  # fmt: skip
    cache.reset()
    return found


def _plain(engine: Engine, passes: Sequence[tuple[int, int]], context: int) -> None:
    """Sublayers, each over a number of tokens after `context` others, in chunks as in a prefill."""
    decoder = engine.decoder
    streams = decoder.embed(torch.zeros(PREFILL_CHUNK, dtype=torch.long, device=decoder.device))
    for sublayer, n in passes:
        for chunk in range(0, n, PREFILL_CHUNK):
            length = min(PREFILL_CHUNK, n - chunk)
            decoder.run(Pass((sublayer,), streams[:length], context), engine.cache)


def outside_share(planned: Plan, engine: Engine) -> float:
    """Share of AR's decode time spent outside model forwards: loop, sampling, verification, trace."""
    decoder, inside = engine.decoder, 0.0
    original = {name: getattr(decoder, name) for name in ("run", "logits")}

    def timed(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal inside
            begin = time.perf_counter()
            result = original[name](*args)
            if decoder.device.type == "cuda":
                torch.cuda.synchronize(decoder.device)
            inside += time.perf_counter() - begin
            return result

        return call

    shares = []
    method: Method = AR()
    for _ in range(ROUNDS):
        inside = 0.0
        for name in original:
            setattr(decoder, name, timed(name))
        try:
            made = engine.generate(method, planned.encoded[0].ids)
        finally:
            for name in original:
                delattr(decoder, name)
        shares.append(1 - inside * 1e3 / (made.decode_ms + made.prefill_ms))
    return median(shares)
