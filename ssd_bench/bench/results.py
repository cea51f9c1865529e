"""The results of a benchmark as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from ssd_bench import tables

FIGURES = ["", "ms", "limit, ms", "share", "bound by"]
SHOWN = ("1", "8", "32", "64")  # nodes whose forwards stand beside their limits


def screen(results: dict[str, Any]) -> str:
    """All of it: the machine, ratios, figures beside their limits, and forwards by context and nodes."""
    parts = [
        "{model}, {dtype}, {device}, {machine}, {kernels} kernels ({isa})".format(**results),
        tables.terminal(pd.DataFrame(_summary(results), columns=["", ""])),
        "",
        "beside the least that memory and arithmetic allow",
        tables.terminal(pd.DataFrame(_figures(results), columns=FIGURES), FIGURES[1:]),
        "",
        "ms per forward",
        _forwards(results["step_ms"]),
    ]  # fmt: skip
    return "\n".join(parts)


def _summary(results: dict[str, Any]) -> list[tuple[str, str]]:
    limits, latency, edges = results["limits"], results["latency"], results["edges"]
    searches = [
        (f"one {name} search over a plain forward of {found['tokens']} tokens", f"{found['ratio']:.2f}x")
        for name, found in results["search"].items()
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
        ("dearest node more, where kernels may change", _dearest(edges)),
        ("t_mlp, ms", f"{latency['t_mlp_ms']:.3f}"),
        ("t_attn(n), ms", "{t_attn_slope_ms:.3g} n + {t_attn_intercept_ms:.3g}".format(**latency)),
        (f"KnapSpec policy over {results['knapspec_new_tokens']} tokens", f"{results['knapspec_policy_share']:.1%}"),
        (f"one KnapSpec search ({results['knapspec_searches']} made), ms", f"{results['knapspec_search_ms'] or 0:.0f}"),
        *searches,
        ("outside model forwards", f"{results['outside_forward_share']:.1%}"),
    ]


def _figures(results: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    figures = results["figures"]
    yield _row("AR, a decoded token", figures["ar"])
    for context, row in figures["forward"].items():
        for nodes in (n for n in SHOWN if n in row):
            yield _row(f"{nodes} node{'s' * (nodes != '1')} at context {context}", row[nodes])
    for length, figure in figures["prefill"].items():
        yield _row(f"prefill of {length} tokens", figure)
    for name, found in results["search"].items():
        yield _row(f"one {name} search", found["figure"])


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


def _dearest(edges: dict[str, float]) -> str:
    if not edges:
        return "context too short"
    n = max(edges, key=edges.__getitem__)
    return f"{edges[n]:.2f}x ({int(n) - 1} to {n} nodes)"


def _ratio(value: float | None) -> str:
    return "context too short" if value is None else f"{value:.2f}x"
