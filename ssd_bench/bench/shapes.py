"""Speed of known model sizes with random weights, and of drafts at imposed acceptance.

Times do not depend on the weights. With imposed acceptance the text is meaningless: losslessness is not checked, and
there is no score. α, M and the share of skipped sublayers are from the sources of a paper's speedup
(`predict.acceptance`).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import pandas as pd
import torch

from methods.ar import AR
from methods.fixed_layers import pattern_set
from ssd_bench import tables
from ssd_bench.bench import cost_sweeps, limits, measures
from ssd_bench.bench.imposed import Imposed, ImposedEngine
from ssd_bench.contract.generation import Step
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.cost import profiling
from ssd_bench.cost.shapes import known_shape, shape_named, shaped_models
from ssd_bench.engine.engine import SCRATCH
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.engine.sampling import Decoding
from ssd_bench.model import drawn
from ssd_bench.model.backend import select
from ssd_bench.model.decoder import PREFILL_CHUNK
from ssd_bench.predict.acceptance import Acceptance, ReportedSpeedup, plain_name, reported_speedups
from ssd_bench.predict.gpu_results import HF_TOKENS, speedup_over_hf, stated_for
from ssd_bench.run.hardware import Hardware
from ssd_bench.run.hugging_face import HuggingFace

READ = "read"
ROUNDS = 9
COLUMNS = {
    "of_exhibit": "table or figure",
    "of_method": "method",
    "of_task": "task",
    "of_setting": "setting",
    "alpha": "their α",
    "M": "their M",
    "skipped": "skipped",
    "source": "source of the share",
    "realised_alpha": "α",
    "realised_M": "M",
    "theirs": "theirs",
    "speedup": "ours",
}
OTHER_DRAFTS = (
    "{n} rows have no speedup of the paper: their drafts were timed at another α, M or share of sublayers than sources "
    "state\nfor it, or no source states a share; they test costs, and say nothing of the paper's speedup."
)
DRAWS = 2  # runs per row, with different draws of its acceptance
NODES = (1, 2, 4, 8, 16, 32, 64)


def slug(machine: str) -> str:
    """Return a machine's name for a folder."""
    return re.sub("[^a-z0-9]+", "-", machine.lower()).strip("-")


def default_models() -> set[str]:
    """Return the models of conf/model with an imposable row of a paper, and weights that fit twice in memory."""
    paper_models = {row.model for row in reported_speedups() if not row.missing}
    names = {name for name in shaped_models() if plain_name(name) in paper_models}
    memory_bytes = torch.cuda.mem_get_info()[1] if torch.cuda.is_available() else 2**34
    return {name for name in names if (shape := known_shape(name)) and 4 * shape.n_params < memory_bytes}


def measure_model(name: str, hardware: Hardware, counts: dict[str, int]) -> dict[str, Any]:
    """Run all measurements of one model's sizes."""
    shape = known_shape(name)
    assert shape is not None
    context, tokens = counts["context"], counts["tokens"]
    arch = drawn.architecture(name, shape, max(context + tokens, measures.SEARCH_CONTEXT) + PREFILL_CHUNK)
    backend = select(hardware.devices[0], hardware.dtype, hardware.kernels, hardware.isa)
    pack = backend.kind.operators(backend.arithmetic).pack
    weights = drawn.draw(arch, hardware.dtype, hardware.devices[0], pack)
    decoder = backend.kind(backend.arithmetic, weights)
    cache = decoder.new_cache(arch.context + SCRATCH)
    engine = ImposedEngine(decoder, cache, Decoding(max_new_tokens=tokens), frozenset(), ModelProbe(decoder, cache))
    prompt = torch.randint(arch.vocab_size, (context,), generator=torch.Generator().manual_seed(0)).tolist()
    machine_limits = limits.measure(decoder)
    _say(name, "AR, passes, drafts")
    results: dict[str, Any] = {
        "model": name,
        "dtype": hardware.dtype_name,
        **decoder.arithmetic.named(),
        "limits": machine_limits.named(),
    }
    results |= _speeds(engine, machine_limits, prompt)
    _say(name, "latency profile, searches")
    latency = profiling.measure(decoder, cache)
    steps = results["ar"]["ms"]
    searches = measures.searches(arch.dims(name), engine, machine_limits, latency)
    results["search"] = {
        kind: {"tokens": s["tokens"], "ms": s["search_ms"], "ar_steps": s["search_ms"] / steps}
        for kind, s in searches.items()
    }
    _say(name, "the papers' rows")
    model_rows = [row for row in reported_speedups() if row.model == plain_name(name)]
    imposed_rows = [row for row in model_rows if not row.missing][: counts["limit"]]
    results["rows"] = [_imposed(engine, row, prompt) for row in imposed_rows]
    results["missing"] = [{**_label(row), "why": row.missing} for row in model_rows if row.missing]
    _say(name, "Hugging Face generate")
    results["hf"] = _hugging_face(engine, hardware, prompt)
    _say(name, "sweeps over contexts and rows")
    results["sweeps"] = cost_sweeps.measure(decoder, shape.context)  # last: the engine's cache is unusable afterwards
    results["peak_bytes"] = hardware.peak_bytes()
    return results


def _speeds(engine: ImposedEngine, machine_limits: limits.MachineLimits, prompt: Sequence[int]) -> dict[str, Any]:
    """Measure AR, passes by nodes, and drafts of half of the sublayers, with one and with alternating sets."""
    decoder, context, n_layers = engine.decoder, len(prompt), engine.decoder.arch.n_layers
    generations = [engine.generate(AR(), prompt) for _ in range(4)][1:]
    model = limits.Model.of(decoder)
    passes = [model.forward(1, step.context_len) for step in generations[0].steps]
    decoded = median(generation.decode_ms for generation in generations)
    half = LayerSet(n_layers, frozenset(i for i in range(2 * n_layers) if i // 2 % 2)).kept
    other_half = LayerSet(n_layers, frozenset(i for i in range(2 * n_layers) if not i // 2 % 2)).kept
    uniform = pattern_set("uniform", 0.5, n_layers).kept
    run = partial(limits.run_pass, decoder, engine.cache)
    runs: dict[str, Callable[[], Any]] = {f"{n} nodes": partial(run, n, context) for n in NODES}
    runs |= {
        "half, whole blocks": partial(run, 1, context, half),
        "half, uniform": partial(run, 1, context, uniform),
        "8 tokens, one set": lambda: [run(1, context, half) for _ in range(8)],
        "8 tokens, another set each": lambda: [run(1, context, (half, other_half)[i % 2]) for i in range(8)],
    }
    times = limits.interleaved(runs, decoder.device, ROUNDS)
    ms = {name: median(values) * 1e3 for name, values in times.items()}
    return {"ar": machine_limits.figure(decoded / len(passes), passes, len(passes)), "pass_ms": ms}


def _imposed(engine: ImposedEngine, row: ReportedSpeedup, prompt: Sequence[int]) -> dict[str, Any]:
    assert row.share is not None
    layer_set = pattern_set("uniform", row.share.value, engine.decoder.arch.n_layers)
    acceptance = Acceptance.of(row.alpha, row.tokens, row.draft_len)
    engine.method = None
    plain = engine.generate(AR(), prompt)
    ar_ms, ms, steps = plain.decode_ms / len(plain.steps), 0.0, list[Step]()
    for seed in range(DRAWS):
        engine.method = Imposed(layer_set, acceptance, seed)
        generation = engine.generate(engine.method, prompt)
        ms += generation.decode_ms / (len(generation.output) - 1) / DRAWS
        steps += generation.steps
    engine.method = None
    accepted, drafted = sum(step.accepted_len for step in steps), sum(step.draft_len for step in steps)
    return _label(row) | {
        "theirs": row.number.value,
        "alpha": row.alpha,
        "M": row.tokens,
        "skipped": row.share.value,
        "acceptance": "imposed",
        "realised_alpha": accepted / max(1, drafted),
        "realised_M": sum(step.emitted for step in steps) / len(steps),
        "ms_per_token": ms,
        "ar_ms_per_token": ar_ms,
        "speedup": ar_ms / ms,
    }


def _label(row: ReportedSpeedup) -> dict[str, Any]:
    number = row.number
    names = ("paper", "exhibit", "model", "method", "task", "setting", "metric")
    return {"number": number.id} | {f"of_{name}": getattr(number, name) for name in names}


def _hugging_face(engine: ImposedEngine, hardware: Hardware, prompt: Sequence[int]) -> dict[str, Any] | None:
    weights, device = engine.decoder.weights, engine.decoder.device
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < 1.2 * weights.nbytes:
        return None
    hf_model = HuggingFace(
        drawn.config(weights.arch), hardware, Decoding(max_new_tokens=HF_TOKENS), frozenset(), engine.context
    )
    times = [hf_model.generate(prompt).decode_ms / (HF_TOKENS - 1) for _ in range(3)][1:]
    return {"ms": median(times), **hf_model.about}


def _say(name: str, measurement: str) -> None:
    print(f"{name}: {measurement}", file=sys.stderr, flush=True)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _sweep_lines(sweeps: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if sweeps is None:
        return []
    passes = {context: times["passes"]["1"] for context, times in sweeps["contexts"].items()}
    lines = [(f"a pass over one node at context {context}, ms", f"{ms:.3f}") for context, ms in passes.items()]
    host = {"step_ms": "a step", "call_ms": "a call of a search", "compare_ms": "a comparison of branches"}
    return lines + [(f"host time of {label}, ms", f"{sweeps['host'][key]:.3f}") for key, label in host.items()]


def _row_parts(result: dict[str, Any]) -> list[str]:
    """Return the table of drafts at imposed acceptance, with the paper's speedup if it is for these drafts."""
    if not result["rows"]:
        return []
    n_layers, n_other, table = shape_named(result["model"]).n_layers, 0, []
    for row in result["rows"]:
        stated = stated_for(row, n_layers)
        n_other += stated is None
        values = row | ({"source": None, "theirs": None} if stated is None else {"source": stated.source})
        table.append([_text(values[key]) for key in COLUMNS])
    heads = list(COLUMNS.values())
    parts = ["", tables.terminal(pd.DataFrame(table, columns=heads), heads[4:])]
    return [*parts, OTHER_DRAFTS.format(n=n_other)] if n_other else parts


def render(result: dict[str, Any]) -> str:
    """Return the tables of one model's measurements and drafts at imposed acceptance."""
    ar, ms, over_hf = result["ar"], result["pass_ms"], speedup_over_hf(result)
    one_node_ms = ms["1 nodes"]
    lines = [
        (f"AR, a token of {ar['ms']:.3f} ms, of the bandwidth", f"{ar['share']:.0%}"),
        ("AR over Hugging Face generate", "too large" if over_hf is None else f"{over_hf:.2f}x"),
        *((f"{n} nodes over one", f"{ms[f'{n} nodes'] / one_node_ms:.3f}x") for n in NODES[1:]),
        ("draft with half of the sublayers, whole blocks", f"{ms['half, whole blocks'] / one_node_ms:.3f}x"),
        ("draft with half of the sublayers, uniform", f"{ms['half, uniform'] / one_node_ms:.3f}x"),
        ("another set at every token over one", f"{ms['8 tokens, another set each'] / ms['8 tokens, one set']:.3f}x"),
        *(
            (f"one {kind} search of 20 tokens, AR steps", f"{s['ar_steps']:.1f}")
            for kind, s in result["search"].items()
        ),
        *_sweep_lines(result.get("sweeps")),
    ]
    parts = [
        "{model}, random weights, {dtype}, {machine}, {kernels} kernels".format(**result),
        tables.terminal(pd.DataFrame(lines, columns=["", ""])),
    ]
    parts += _row_parts(result)
    missing = Counter(f"{row['of_paper']} {row['of_exhibit']}: {row['why']}" for row in result["missing"])
    parts += [f"not measured: {n} numbers of {why}" for why, n in missing.items()]
    return "\n".join(parts)
