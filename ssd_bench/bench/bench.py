"""Speed of the engine on one model and one machine: ratios within one run, and times with their lower limits."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from ssd_bench import tables
from ssd_bench.bench import limits, measures
from ssd_bench.contract.layer_set import BITS
from ssd_bench.cost import profiling
from ssd_bench.engine.engine import Engine
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.engine.sampling import Decoding
from ssd_bench.errors import ConfigError
from ssd_bench.paths import write_atomic
from ssd_bench.records import provenance
from ssd_bench.run.loading import load_model
from ssd_bench.run.plan import Plan, plan

RECORD = "record"
FIGURES = ["", "ms", "limit, ms", "limit / time", "bound by"]
SHOWN = ("1", "8", "32", "64")  # numbers of nodes with rows in the table of limits


def bench(cfg: DictConfig, record: bool = False, arguments: Sequence[str] = ()) -> Path:
    """Run all measurements; print them, write them to a file and return it.

    Args:
        record: name the file by machine and model instead of by time.
        arguments: other arguments of the command line, for the file.

    Raises:
        ConfigError: as in a run.
    """
    if cfg.dry:
        raise ConfigError("dry", cfg.dry, "false: dry=true describes runs, not this command")
    OmegaConf.set_struct(cfg, False)
    cfg.limit = cfg.limit or 2
    cfg.decode.max_new_tokens = measures.NEW_TOKENS
    cfg.method = {"_target_": "methods.knapspec.KnapSpec"}
    planned = plan(cfg)
    hardware = planned.machine.hardware
    decoder, cache = load_model(planned, planned.model.dims.context)
    decoding = Decoding(max_new_tokens=measures.NEW_TOKENS)
    engine = Engine(decoder, cache, decoding, frozenset(), ModelProbe(decoder, cache))
    command_line = ["python", "-m", "ssd_bench", "bench", *([f"{RECORD}=true"] if record else []), *arguments]
    results = {
        "model": planned.model.dims.name,
        "dtype": hardware.dtype_name,
        "device": hardware.label,
        "machine": f"{', '.join(hardware.gpu_names()) or provenance.cpu_model()}, {hardware.threads} threads",
        "threads": hardware.threads,
        **engine.decoder.arithmetic.named(),
        "provenance": provenance.collect(command_line, hardware.gpu_names()),
    } | _measure_all(planned, engine)
    folder = planned.identity.run_dir.parent / "bench"
    target = _write_by_machine(results, folder) if record else _write_by_time(results, folder)
    print(render(results), f"\n{target}", sep="\n")
    return target


def _measure_all(planned: Plan, engine: Engine) -> dict[str, Any]:
    _say("the limits of this machine")
    machine_limits = limits.measure(engine.decoder)
    _say("AR and Hugging Face generate")
    results, ar = measures.against_transformers(planned, engine, machine_limits)
    _say("forwards over nodes")
    forwards = measures.forwards(engine, machine_limits)
    results["step_ms"] = {c: {n: figure["ms"] for n, figure in row.items()} for c, row in forwards.items()}
    results["edges"] = measures.edges(engine)
    results |= measures.contexts(engine)
    _say("prefills")
    prefills = measures.prefills(engine, machine_limits)
    _say("latency profile")
    latency = profiling.measure(engine.decoder, engine.cache)
    results["latency"] = asdict(latency)
    _say(f"KnapSpec over {measures.POLICY_TOKENS} tokens")
    results |= measures.policy(planned, engine, latency)
    _say("one search compared with a plain forward")
    results["search"] = measures.searches(planned.model.dims, engine, machine_limits, latency)
    results["outside_forward_share"] = measures.outside_share(planned, engine)
    _say("drafts with rounded weights")
    results |= measures.rounded_drafts(engine)
    figures = {"ar": ar, "forward": forwards, "prefill": prefills}
    return {"limits": machine_limits.named(), "figures": figures, **results}


def _say(task: str) -> None:
    print(f"measuring: {task}", file=sys.stderr, flush=True)


def _write_by_machine(results: dict[str, Any], folder: Path) -> Path:
    names = (str(results[key]) for key in ("model", "dtype", "kernels", "isa") if results[key] is not None)
    target = folder / re.sub("[^a-z0-9]+", "-", results["machine"].lower()).strip("-") / f"{'-'.join(names)}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, json.dumps(results, indent=1).encode())
    return target


def _write_by_time(results: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    target, number = folder / f"{now}.json", 1
    while True:
        try:
            with target.open("x", encoding="utf-8") as file:
                file.write(json.dumps(results, indent=1))
            return target
        except FileExistsError:  # another bench ended in this second
            number += 1
            target = folder / f"{now}-{number}.json"


def render(results: dict[str, Any]) -> str:
    """Return tables of the machine, ratios, times with their limits, and forwards by context and nodes."""
    parts = [
        "{model}, {dtype}, {device}, {machine}, {kernels} kernels ({isa})".format(**results),
        tables.terminal(pd.DataFrame(_summary(results), columns=["", ""])),
        "",
        "times compared with their lower limits by memory and arithmetic",
        tables.terminal(pd.DataFrame(_figures(results), columns=FIGURES), FIGURES[1:]),
        "",
        "ms per forward",
        _forwards(results["step_ms"]),
    ]
    return "\n".join(parts)


def _summary(results: dict[str, Any]) -> list[tuple[str, str]]:
    limits, latency, edges = results["limits"], results["latency"], results["edges"]
    searches = [
        (f"one {name} search over a plain forward of {result['tokens']} tokens", f"{result['ratio']:.2f}x")
        for name, result in results["search"].items()
    ]
    return [
        ("read bandwidth, GB/s", f"{limits['bandwidth_bytes_per_s'] / 1e9:.1f} ({limits['bandwidth_by']})"),
        ("peak arithmetic, GFLOP/s", f"{limits['peak_flops'] / 1e9:.1f} ({limits['peak_by']})"),
        ("both measured by", limits["by"]),
        ("AR, tokens/s", f"{results['ar_tokens_per_s']:.1f}"),
        ("Hugging Face generate, tokens/s", f"{results['hf_generate_tokens_per_s']:.1f}"),
        ("AR over Hugging Face", f"{results['ar_over_hf']:.2f}x"),
        ("outputs equal to Hugging Face's", f"{results['same_output']} of {results['prompts']}"),
        ("AR at context 4k over 128", _ratio(results["ar_4k_over_128"])),
        ("largest cost of one more node where kernels may change", _most_expensive_edge(edges)),
        ("t_mlp, ms", f"{latency['t_mlp_ms']:.3f}"),
        ("t_attn(n), ms", "{t_attn_slope_ms:.3g} n + {t_attn_intercept_ms:.3g}".format(**latency)),
        (
            f"KnapSpec's method overhead over {results['knapspec_new_tokens']} tokens",
            f"{results['knapspec_policy_share']:.1%}",
        ),
        (f"one KnapSpec search ({results['knapspec_searches']} made), ms", f"{results['knapspec_search_ms'] or 0:.0f}"),
        *searches,
        ("outside model forwards", f"{results['outside_forward_share']:.1%}"),
        *(
            (f"a token drafted with {bits}-bit weights over an AR step, context {context}", f"{times['ratio']:.2f}x")
            for bits in BITS
            for context, times in results[f"int{bits}_drafts"].items()
        ),
        *(
            (f"memory of the {bits}-bit weights over that of all", f"{results[f'int{bits}_over_full_bytes']:.2f}")
            for bits in BITS
        ),
    ]


def _figures(results: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    figures = results["figures"]
    yield _row("AR, a decoded token", figures["ar"])
    for context, row in figures["forward"].items():
        for nodes in (n for n in SHOWN if n in row):
            yield _row(f"{nodes} node{'s' * (nodes != '1')} at context {context}", row[nodes])
    for length, figure in figures["prefill"].items():
        yield _row(f"prefill of {length} tokens", figure)
    for name, result in results["search"].items():
        yield _row(f"one {name} search", result["figure"])


def _row(name: str, figure: dict[str, Any]) -> tuple[str, ...]:
    times = (f"{figure[key]:.2f}" for key in ("ms", "limit_ms"))
    return name, *times, f"{figure['share']:.0%}", figure["bound_by"]


def _forwards(step_ms: dict[str, dict[str, float]]) -> str:
    nodes = list(next(iter(step_ms.values())))
    heads = ["context", *(f"{n} nodes" for n in nodes), "8 over 1"]
    rows = [
        (context, *(f"{times[n]:.1f}" for n in nodes), f"{times['8'] / times['1']:.2f}x")
        for context, times in step_ms.items()
    ]
    return tables.terminal(pd.DataFrame(rows, columns=heads), heads)


def _most_expensive_edge(edges: dict[str, float]) -> str:
    if not edges:
        return "context too short"
    n = max(edges, key=edges.__getitem__)
    return f"{edges[n]:.2f}x ({int(n) - 1} to {n} nodes)"


def _ratio(value: float | None) -> str:
    return "context too short" if value is None else f"{value:.2f}x"
