"""`python -m ssd_bench bench`: speed of the engine on one model and one machine, as ratios within one run.

Takes the options of `python -m ssd_bench` (model, hardware, runs_dir, ...), decodes with the first prompts of the
task, prints a table and writes `runs_dir/bench/<time>.json`.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from tabulate import tabulate
from torch import Tensor

from methods import clasp
from methods.ar import AR
from methods.knapspec import KnapSpec
from ssd_bench.command import command
from ssd_bench.core.engine import Engine
from ssd_bench.core.method import Method, Probe
from ssd_bench.core.probe import ModelProbe
from ssd_bench.core.sampling import Decoding
from ssd_bench.cost import profiling
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import PREFILL_CHUNK, Decoder, Pass
from ssd_bench.model.kv_cache import KVCache
from ssd_bench.plan import Plan, plan
from ssd_bench.records import provenance
from ssd_bench.run import load_engine

ROUNDS = 5  # of every interleaved comparison; medians are reported
NEW_TOKENS = 64
NODES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (128, 1024, 4096, 8192)
BANDWIDTH_FLOATS = 2**28
SEARCH_CONTEXT, SEARCH_TOKENS = 1024, 20  # of the searches that are timed beside a plain forward
POLICY_TOKENS = 512  # output over which the policy share of KnapSpec is taken


def bench(cfg: DictConfig) -> Path:
    """Run all measurements and write them.

    Raises:
        ConfigError: as in a run.
    """
    if cfg.dry:
        raise ConfigError("dry", cfg.dry, "false: only of runs is it known what they take")
    OmegaConf.set_struct(cfg, False)
    cfg.limit = cfg.limit or 2
    cfg.decode.max_new_tokens = NEW_TOKENS
    cfg.method = {"_target_": "methods.knapspec.KnapSpec"}
    planned = plan(cfg)
    hardware = planned.hardware
    loaded = load_engine(planned, planned.dims.context)
    decoder, cache = loaded.decoder, loaded.cache
    engine = Engine(decoder, cache, Decoding(max_new_tokens=NEW_TOKENS), frozenset(), loaded.probe)
    results: dict[str, Any] = {
        "model": planned.dims.name, "dtype": hardware.dtype_name, "device": hardware.label,
        "threads": hardware.threads, **decoder.arithmetic.named(),
        "provenance": provenance.collect("python -m ssd_bench bench " + shlex.join(sys.argv[1:]), hardware.gpu_names()),
    }  # fmt: skip
    _say("AR beside Hugging Face generate")
    results |= _against_transformers(planned, engine)
    results |= _bandwidth(engine, results["ar_tokens_per_s"])
    _say("step times")
    results["step_ms"] = _step_times(engine)
    results |= _contexts(engine)
    _say("latency profile")
    engine.probe.latency = profiling.measure(decoder, cache)
    results["latency"] = asdict(engine.probe.latency)
    _say(f"KnapSpec over {POLICY_TOKENS} tokens")
    results |= _policy(planned, engine)
    _say("one search beside a plain forward")
    results["search"] = _searches(planned, engine)
    results["outside_forward_share"] = _outside_share(planned, engine)
    target = Path(planned.config["runs_dir"]) / "bench" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(_table(results), f"\n{target}", sep="\n")
    return target


def _say(what: str) -> None:
    print(f"measuring: {what}", file=sys.stderr, flush=True)


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    begin = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def _interleaved(runs: dict[str, Callable[[], Any]], device: torch.device, rounds: int) -> dict[str, list[float]]:
    """Seconds of each run in each round; one uncounted round first, then in turn, so that drift hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(rounds + 1):
        for name, run in runs.items():
            seconds = _seconds(run, device)
            if index:
                times[name].append(seconds)
    return times


def _against_transformers(planned: Plan, engine: Engine) -> dict[str, Any]:
    """AR of this engine beside Hugging Face `generate`: same weights, dtype, threads, prompts and output length."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    device = engine.decoder.device
    model: Any = AutoModelForCausalLM.from_pretrained(planned.checkpoint.folder, dtype=planned.hardware.dtype)
    model.to(device)
    prompts = [torch.tensor([e.ids], device=device) for e in planned.encoded]
    # no EOS, as in our arm: nothing ends an output early, and no logit is masked to keep it going
    model.generation_config = GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    outputs: dict[str, list[list[int]]] = {}

    def hugging_face() -> None:
        with torch.inference_mode():
            # the mask is given: without it, a prompt that holds the padding id would lose that token
            made = [model.generate(p, attention_mask=torch.ones_like(p)) for p in prompts]
            outputs["hf"] = [whole[0, p.shape[1] :].tolist() for whole, p in zip(made, prompts)]

    def ours() -> None:
        outputs["ar"] = [engine.generate(AR(), e.ids).output for e in planned.encoded]

    times = _interleaved({"ar": ours, "hf": hugging_face}, device, ROUNDS)
    tokens = NEW_TOKENS * len(prompts)
    ratios = [hf / ar for ar, hf in zip(times["ar"], times["hf"])]
    same = sum(a == b for a, b in zip(outputs["ar"], outputs["hf"]))
    return {
        "ar_tokens_per_s": tokens / median(times["ar"]), "hf_generate_tokens_per_s": tokens / median(times["hf"]),
        "ar_over_hf": median(ratios), "ar_over_hf_rounds": ratios, "prompts": len(prompts), "same_output": same,
    }  # fmt: skip


def _bandwidth(engine: Engine, tokens_per_s: float) -> dict[str, float]:
    """Bytes per second that the machine reads, and the share of that limit at which AR reads its weights."""
    decoder = engine.decoder
    # a tensor far larger than any cache, summed by PyTorch's own reduction
    data = torch.ones(BANDWIDTH_FLOATS, dtype=torch.float32, device=decoder.device)
    fastest = min(_seconds(lambda: data.sum().item(), decoder.device) for _ in range(ROUNDS))
    limit = data.nbytes / fastest
    embedding = (
        0 if decoder.arch.tied else decoder.weights.embedding.nbytes
    )  # an untied embedding is looked up, not read
    read = (decoder.weights.nbytes - embedding) * tokens_per_s
    return {
        "bandwidth_bytes_per_s": limit, "bandwidth_tokens_per_s": limit / (decoder.weights.nbytes - embedding),
        "bandwidth_share": read / limit,
    }  # fmt: skip


def _contexts_of(engine: Engine) -> list[int]:
    room = engine.context - max(NODES)
    return sorted({min(context, room) for context in CONTEXTS})


def _step_times(engine: Engine) -> dict[str, dict[str, float]]:
    """Median ms of one full forward with its LM head, by context and number of nodes; nodes interleaved."""
    decoder, table = engine.decoder, {}
    for context in _contexts_of(engine):
        runs = {str(n): _forward(engine, n, context) for n in NODES}
        times = _interleaved(runs, decoder.device, rounds=2 * ROUNDS)
        table[str(context)] = {n: median(values) * 1e3 for n, values in times.items()}
    return table


def _forward(engine: Engine, n: int, context: int) -> Callable[[], Any]:
    decoder = engine.decoder
    tokens = torch.arange(n, device=decoder.device)
    what = Pass(decoder.all_sublayers, tokens, context)

    @torch.inference_mode()
    def run() -> Any:
        hidden, _ = decoder.run(what, engine.cache)
        return decoder.logits(hidden).argmax(-1).tolist()

    return run


def _contexts(engine: Engine) -> dict[str, Any]:
    """AR milliseconds per token by context, interleaved, and the ratio of 4k to 128 where the model reaches it."""
    runs = {str(context): _forward(engine, 1, context) for context in _contexts_of(engine)}
    times = _interleaved(runs, engine.decoder.device, rounds=2 * ROUNDS)
    per_token = {name: median(values) * 1e3 for name, values in times.items()}
    low, high = str(CONTEXTS[0]), str(CONTEXTS[2])
    ratio = per_token[high] / per_token[low] if low in per_token and high in per_token else None
    return {"ar_ms_by_context": per_token, "ar_4k_over_128": ratio}


def _policy(planned: Plan, engine: Engine) -> dict[str, Any]:
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
    """A probe that notes every sublayer that it applies, and to how many tokens over all branches."""

    def __init__(self, decoder: Decoder, cache: KVCache):
        super().__init__(decoder, cache)
        self.passes: list[tuple[int, int]] = []

    def apply_sublayer(self, i: int, hidden: Tensor, prefix_len: int) -> Tensor:
        self.passes.append((i, hidden.shape[0] * hidden.shape[1]))
        return super().apply_sublayer(i, hidden, prefix_len)


@torch.inference_mode()
def _searches(planned: Plan, engine: Engine) -> dict[str, dict[str, float]]:
    """One KnapSpec and one CLaSp search after 1k tokens beside a plain forward over as many tokens.

    Each sublayer of that forward gets as many tokens as the search put through it, over all branches. So both sides
    multiply the same matrices; what a search does besides (cosines, choices, LM head) is what its ratio is above 1.
    """
    decoder, cache, n_sub = engine.decoder, engine.cache, 2 * planned.dims.n_layers
    length = min(SEARCH_CONTEXT, engine.context // 2)
    prompt = torch.arange(length, device=decoder.device) % planned.dims.vocab_size
    _, tapped = decoder.prefill(prompt, cache, range(n_sub + 1))
    assert tapped is not None
    states = tapped[:, -SEARCH_TOKENS:].clone()
    knapspec, blocks = KnapSpec(), planned.dims.n_layers // 2
    knapspec.check(planned.dims)
    searches: dict[str, Callable[[Probe], Any]] = {
        "knapspec": lambda probe: knapspec.search(states, length, probe),
        "clasp": lambda probe: clasp.choose(states[::2, -1], blocks, length - 1, probe),
    }
    found = {}
    for name, search in searches.items():
        counting = _Counting(decoder, cache)
        counting.latency = engine.probe.latency
        search(counting)
        tokens = max(1, round(sum(n for _, n in counting.passes) / n_sub))
        runs: dict[str, Callable[[], Any]] = {
            "search": partial(search, engine.probe), "plain": partial(_plain, engine, counting.passes, length),
        }  # fmt: skip
        times = _interleaved(runs, decoder.device, ROUNDS)
        ratios = [ours / theirs for ours, theirs in zip(times["search"], times["plain"])]
        found[name] = {
            "tokens": tokens, "search_ms": median(times["search"]) * 1e3, "plain_ms": median(times["plain"]) * 1e3,
            "ratio": median(ratios),
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


def _outside_share(planned: Plan, engine: Engine) -> float:
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


def _table(results: dict[str, Any]) -> str:
    """The results as text."""
    searches = [
        (f"one {name} search over a plain forward of {found['tokens']} tokens", f"{found['ratio']:.2f}x")
        for name, found in results["search"].items()
    ]
    rows = [
        ("AR, tokens/s", f"{results['ar_tokens_per_s']:.1f}"),
        ("Hugging Face generate, tokens/s", f"{results['hf_generate_tokens_per_s']:.1f}"),
        ("AR over Hugging Face", f"{results['ar_over_hf']:.2f}x"),
        ("outputs equal to Hugging Face's", f"{results['same_output']} of {results['prompts']}"),
        ("memory-bandwidth limit, tokens/s", f"{results['bandwidth_tokens_per_s']:.1f}"),
        ("share of that limit", f"{results['bandwidth_share']:.0%}"),
        ("AR at context 4k over 128", _ratio(results["ar_4k_over_128"])),
        ("t_mlp, ms", f"{results['latency']['t_mlp_ms']:.3f}"),
        ("t_attn(n), ms", "{t_attn_slope_ms:.3g} n + {t_attn_intercept_ms:.3g}".format(**results["latency"])),
        (f"KnapSpec policy over {results['knapspec_new_tokens']} tokens", f"{results['knapspec_policy_share']:.1%}"),
        (f"one KnapSpec search ({results['knapspec_searches']} made), ms", f"{results['knapspec_search_ms'] or 0:.0f}"),
        *searches,
        ("outside model forwards", f"{results['outside_forward_share']:.1%}"),
    ]
    machine = f"{results['device']}, {results['threads']} threads, {results['kernels']} kernels ({results['isa']})"
    head = f"{results['model']}, {results['dtype']}, {machine}"
    steps = [
        [context, *(f"{times[str(n)]:.1f}" for n in NODES), f"{times['8'] / times['1']:.2f}x"]
        for context, times in results["step_ms"].items()
    ]
    columns = ["context", *(f"{n} nodes" for n in NODES), "8 over 1"]
    return "\n".join([head, tabulate(rows), "", "ms per forward", tabulate(steps, columns)])


def _ratio(value: float | None) -> str:
    return "context too short" if value is None else f"{value:.2f}x"


def main(_: Sequence[str]) -> int:
    """Of the arguments that Hydra reads from the command line; returns the exit code, as a run."""
    return command(bench)
