"""The plain-text table that a run ends with."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench import tables
from ssd_bench.errors import LosslessError
from ssd_bench.metrics import by_domain, summarise
from ssd_bench.metrics.text import ABSENT, REHEARSAL, lossless, number, percent, spread
from ssd_bench.records.reader import load_run

WIDTH = 100

NOTABLE_MS = 1000
"""A shorter preparation (a cached profile, reading a set) is not worth a line."""


def close(path: Path) -> None:
    """Print the table of a record.

    Raises:
        LosslessError: an output differs from AR's beyond rounding.
    """
    run = load_run(path)
    print(run_table(summarise(run), by_domain(run)))
    bugs = run.prompts.loc[run.prompts["lossless"] == "bug", "prompt_id"].tolist()
    if bugs:
        raise LosslessError(
            f"not lossless on {', '.join(map(str, bugs))}: the output differs from AR's beyond rounding"
        )


def run_table(summary: Mapping[str, Any], domains: Sequence[Mapping[str, Any]] = ()) -> str:
    """What a run found, as text of at most 100 columns.

    Args:
        summary: as `metrics.summarise` returns it.
        domains: as `metrics.by_domain` returns it.
    """
    pairs = summary["n_pairs"] or "no"
    head = (
        f"{summary['method']} on {summary['task']}: {summary['model']}, {summary['dtype']}, {summary['device']}; "
        f"n = {summary['n_prompts']} prompts, {pairs} pairs with AR"
    )
    rows = [*_found(summary), *_third_arm(summary), *_spent(summary), ("record", summary["run_dir"])]
    note = [f"({REHEARSAL})"] if summary["rehearsal"] else []
    lines = [*textwrap.wrap(head, WIDTH), *note, "", _table(pd.DataFrame(rows, columns=["", ""]))]
    lines += ["", _by_domain(domains)] if domains else []
    for warning in summary["warnings"]:
        lines += ["", *textwrap.wrap(f"warning: {warning}", WIDTH, subsequent_indent="  ")]
    lines += ["", "[low, high]: 95 % BCa bootstrap interval over prompts"]
    return "\n".join(lines)


def _table(frame: pd.DataFrame, right: Sequence[str] = ()) -> str:
    return textwrap.indent(tables.terminal(frame, right, ruled=False), "  ")


def _by_domain(domains: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (row["domain"], str(row["n_prompts"]), number(row["M"]), number(row["alpha"], 3), spread(row, "speedup"),
         number(row["ar_score"], 3), number(row["method_score"], 3))
        for row in domains
    ]  # fmt: skip
    counted = ["n", "M", "α", "score AR", "method"]
    return _table(pd.DataFrame(rows, columns=["", "n", "M", "α", "speedup", "score AR", "method"]), counted)


def _found(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    estimated = number(s["tpt_estimated"], 1) if s["tpt_estimated_n"] else ABSENT
    score = f"{number(s['ar_score'], 3)} AR, {number(s['method_score'], 3)} method ({s['metric']})"
    return [
        ("M, tokens per verification", spread(s, "M")),
        ("α, accepted per drafted", spread(s, "alpha", 3)),
        ("tokens/s AR", spread(s, "ar_tokens_per_s", 1)),
        ("tokens/s method", spread(s, "method_tokens_per_s", 1)),
        ("speedup, decode", spread(s, "speedup", 2)),
        ("speedup, end to end", spread(s, "speedup_e2e", 2)),
        ("TPT predicted / estimated", f"{number(s['tpt_predicted'], 1)} / {estimated} tokens/s"),
        ("score", score if s["method_score"] is not None else ABSENT),
        *_scores(s),
        ("output against AR's", f"ROUGE-2 {number(s['output_rouge2'], 3)}, same tokens {percent(s['output_exact'])}"),
        ("lossless (outputs equal to AR's)", lossless(s)),
        ("prompts clipped to fit", f"{s['clipped']} of {s['n_prompts']}"),
    ]


def _third_arm(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where a run has Hugging Face `generate` (HF) as well; as ratios the statistics that papers divide it by."""
    if "speedup_hf" not in s:
        return []
    weights = s["hf_weight_bytes"]
    return [
        ("tokens/s HF generate", spread(s, "hf_tokens_per_s", 1)),
        ("speedup over HF, decode", spread(s, "speedup_hf")),
        ("speedup over HF, end to end", spread(s, "speedup_hf_e2e")),
        ("speedup over HF, mean rates", spread(s, "speedup_hf_rates_e2e")),
        ("speedup over HF, total times", spread(s, "speedup_hf_wall")),
        ("AR over HF, end to end", spread(s, "ar_over_hf_e2e")),
        ("HF's output against AR's", f"same tokens {percent(s['hf_output_exact'])}"),
        (
            "HF's copy of the weights",
            ABSENT if weights is None else f"{weights / 1e6:,.0f} MB, in a process of its own",
        ),
    ]


def _scores(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The scores of the whole run but for the headline, which has a line of its own."""
    names = [name for name in s["scores"] if "/" not in name]
    return [(f"score, {name}", f"{number(s.get(f'ar_{name}'), 3)} AR, {number(s.get(f'method_{name}'), 3)} method")
            for name in names]  # fmt: skip


def _spent(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    shares = ", ".join(f"{name} {percent(s[f'{name}_share'])}" for name in ("draft", "verify", "policy", "other"))
    rows = [("decode time", shares), ("overhead (policy)", percent(s["overhead"]))]
    if (s["prepare_ms"] or 0) >= NOTABLE_MS:
        even = s["break_even_tokens"]
        paid = "never at this speed" if even is None else f"after {even:,.0f} tokens"
        rows.append(("offline preparation", f"{s['prepare_ms'] / 1000:.1f} s, paid back {paid}"))
    return rows
