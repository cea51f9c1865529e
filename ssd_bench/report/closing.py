"""Texts at the end of runs: the table of a run, and the comparison of a sweep's runs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ssd_bench import tables
from ssd_bench.errors import LosslessError
from ssd_bench.records.reader import load_run
from ssd_bench.report.runs import (
    ACCOUNT_LABELS,
    costs_note,
    group_by_task,
    model_with_size,
    readable_domain,
    readable_row,
)
from ssd_bench.results.digest import summarise
from ssd_bench.results.folder import Record
from ssd_bench.results.models import ModelRan
from ssd_bench.results.numbers import domain_numbers
from ssd_bench.results.text import (
    ABSENT,
    FROZEN,
    MEASURED,
    MEASURED_END_TO_END,
    MODELLED,
    TOY_RUN,
    costs_text,
    format_interval,
    format_lossless,
    format_number,
    format_percent,
)
from ssd_bench.run_warnings import WarningLog, new_warnings

WIDTH = 100
NOTABLE_MS = 1000
"""Milliseconds; shorter preparations (a cached profile, reading a layer set) get no line."""


def print_record(path: Path, log: WarningLog | None = None) -> None:
    """Print the table of a record; in a sweep, one line, and warnings of kinds not shown yet.

    Raises:
        LosslessError: an output differs from AR's beyond rounding.
    """
    run = load_run(path)
    summary, domains = summarise(run), [domain.row for domain in domain_numbers(run)]
    warnings = new_warnings(summary.warnings, log)
    row = summary.row | {"params": ModelRan.of(run.header).params, "warnings": warnings}
    print(run_table(row, domains) if log is None else "\n".join([run_line(row), *map(_warning, warnings)]))
    bugs = run.prompts.loc[run.prompts["lossless"] == "bug", "prompt_id"].tolist()
    if bugs:
        raise LosslessError(
            f"not lossless on {', '.join(map(str, bugs))}: the output differs from AR's beyond rounding"
        )


def run_line(summary: Mapping[str, Any]) -> str:
    """Return a run's main results in one line, with the folder of its record."""
    measured, modelled = (format_number(summary[name]) for name in ("speedup", "speedup_modelled"))
    parts = [f"M {format_number(summary['M'])}", f"α {format_number(summary['alpha'], 3)}"]
    parts += [f"speedup {measured} measured, {modelled} modelled", f"lossless {format_lossless(summary)}"]
    return f"{summary['method']} on {summary['task']}: {', '.join(parts)}; {summary['run_dir']}"


def _warning(text: str) -> str:
    return textwrap.fill(f"warning: {text}", WIDTH, subsequent_indent="  ")


def run_table(summary: Mapping[str, Any], domains: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the results of a run as text of at most 100 columns.

    The rows are from `summarise`, with `params` of the model, and `domain_numbers`.
    """
    pairs = summary["n_pairs"] or "no"
    head = (
        f"{summary['method']} on {summary['task']}: {model_with_size(summary)}, {summary['dtype']}, "
        f"{summary['device']}; n = {summary['n_prompts']} prompts, {pairs} pairs with AR"
    )
    rows = [*_result_rows(summary), *_hf_rows(summary), *_time_rows(summary), ("record", summary["run_dir"])]
    modelled = RUN_TIMES.format(costs_text(summary["modelled_on"]))
    note = [f"({TOY_RUN})"] if summary["toy"] else []
    lines = [*textwrap.wrap(head, WIDTH), *note, "", _indented_table(pd.DataFrame(rows, columns=["", ""]))]
    lines += ["", _by_domain(domains)] if domains else []
    for warning in summary["warnings"]:
        lines += ["", _warning(warning)]
    lines += ["", *textwrap.wrap(f"[low, high]: 95 % interval over prompts; {modelled}", WIDTH)]
    return "\n".join(lines)


def comparison_text(records: Sequence[Record]) -> str:
    """Return the results of a sweep as text of about 100 columns: one table per task, the largest speedup first.

    Incomparable runs (other prompts, tokens, model or machine) get separate tables. Runs of one method are labelled
    with their differing settings.
    """
    parts = []
    settings = {str(record.path): _settings(record) for record in records}
    contaminated = {str(record.path): bool(record.summary.steadiness.contamination) for record in records}
    for task, groups in group_by_task(records).items():
        for group in groups:
            runs = sorted(group.runs, key=lambda row: -1.0 if row["speedup"] is None else row["speedup"], reverse=True)
            names = _distinguishing_names(runs, settings)
            texts = [readable_row(row) | {"method": name} for row, name in zip(runs, names, strict=True)]
            rows = [_main_columns(text) for text in (*texts, *map(readable_row, group.baselines))]
            unreliable = [name for row, name in zip(runs, names, strict=True) if contaminated[row["run_dir"]]]
            note = f"timings unreliable, see the warnings: {'; '.join(unreliable)}" if unreliable else ""
            warnings = textwrap.wrap(note, WIDTH, subsequent_indent="  ")
            table = _indented_table(pd.DataFrame(rows), list(rows[0])[1:])
            costs = textwrap.wrap(f"modelled {costs_note(group)}", WIDTH)
            parts.append("\n".join([*textwrap.wrap(f"{task}: {group.title}", WIDTH), table, *costs, *warnings]))
    return "\n\n".join([*parts, SIDE_BY_SIDE]) if parts else ""


def _settings(record: Record) -> dict[str, Any]:
    return {**record.header.options("method"), "hardware.costs": record.header.options("hardware").get("costs")}


def _distinguishing_names(rows: Sequence[dict[str, Any]], settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return each row's method, with the settings (by a run's folder) that differ between its rows."""
    names = []
    for row in rows:
        row_settings, label = settings[str(row["run_dir"])], readable_row(row)["method"]
        compared = [settings[str(peer["run_dir"])] for peer in rows if peer["method"] == row["method"]]
        differing = [key for key, value in row_settings.items() if any(peer.get(key) != value for peer in compared)]
        names.append(", ".join([label, *(f"{key}={row_settings[key]}" for key in differing if key != "name")]))
    return names


def _main_columns(row: Mapping[str, str]) -> dict[str, str]:
    names = ("method", "M", "α", "tokens/s method", MEASURED, MODELLED, "overhead", "lossless")
    shown = _without_intervals({name: row[name] for name in names}, names[1:4])
    return {name.removesuffix(" method"): text for name, text in shown.items()}


def _without_intervals(row: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    return {name: text.partition(" [")[0] if name in names else text for name, text in row.items()}


def _indented_table(frame: pd.DataFrame, right: Sequence[str] = ()) -> str:
    return textwrap.indent(tables.terminal(frame, right, ruled=False), "  ")


def _by_domain(domains: Sequence[Mapping[str, Any]]) -> str:
    rows = [_without_intervals(readable_domain(row), ("M", "α")) for row in domains]
    frame = pd.DataFrame(rows).drop(columns="ROUGE-2 to AR").rename(columns={"domain": "", "score method": "method"})
    return _indented_table(frame, ["n", "M", "α", "score AR", "method"])


def _result_rows(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    searched, estimated = s["searched_share"], format_number(s["tpt_estimated"], 1) if s["tpt_estimated_n"] else ABSENT
    scores = f"{format_number(s['ar_score'], 3)} AR, {format_number(s['method_score'], 3)} method ({_scored_by(s)})"
    return [
        ("M, tokens per verification", format_interval(s, "M")),
        ("α, accepted per drafted", format_interval(s, "alpha", 3)),
        ("tokens/s AR", format_interval(s, "ar_tokens_per_s", 1)),
        ("tokens/s method", format_interval(s, "method_tokens_per_s", 1)),
        (MEASURED, format_interval(s, "speedup", 2)),
        (MEASURED_END_TO_END, format_interval(s, "speedup_e2e", 2)),
        (MODELLED, format_interval(s, "speedup_modelled")),
        (FROZEN, format_interval(s, "speedup_frozen")),
        *([] if searched is None else [("drafts with a searched layer set", format_percent(searched))]),
        ("TPT predicted / estimated", f"{format_number(s['tpt_predicted'], 1)} / {estimated} tokens/s"),
        ("score", ABSENT if s["method_score"] is None else scores),
        *_score_rows(s),
        (
            "output compared with AR's",
            f"ROUGE-2 {format_number(s['output_rouge2'], 3)}, same tokens {format_percent(s['output_exact'])}",
        ),
        ("lossless (outputs equal to AR's)", format_lossless(s)),
        ("prompts truncated to fit", f"{s['clipped']} of {s['n_prompts']}"),
    ]


def _scored_by(s: Mapping[str, Any]) -> str:
    metric, answered = str(s["metric"]), s["n_scored"]
    return metric if answered == s["n_answers"] else f"{metric}; {answered} of {s['n_answers']} answers have a score"


def _hf_rows(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the Hugging Face `generate` (HF) arm, with the papers' ratios."""
    if "speedup_hf" not in s:
        return []
    weights = s["hf_weight_bytes"]
    return [
        ("tokens/s HF generate", format_interval(s, "hf_tokens_per_s", 1)),
        ("speedup over HF, decode", format_interval(s, "speedup_hf")),
        ("speedup over HF, end to end", format_interval(s, "speedup_hf_e2e")),
        ("speedup over HF, mean rates", format_interval(s, "speedup_hf_rates_e2e")),
        ("speedup over HF, total times", format_interval(s, "speedup_hf_wall")),
        ("AR over HF, end to end", format_interval(s, "ar_over_hf_e2e")),
        ("HF's output compared with AR's", f"same tokens {format_percent(s['hf_output_exact'])}"),
        ("HF's copy of the weights", ABSENT if weights is None else f"{weights / 1e6:,.0f} MB, in a separate process"),
    ]


def _score_rows(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of further scores of the whole run, without the main score."""
    pairs = {name: (s.get(f"ar_{name}"), s.get(f"method_{name}")) for name in s["scores"] if "/" not in name}
    return [
        (f"score, {name}", f"{format_number(ar, 3)} AR, {format_number(method, 3)} method")
        for name, (ar, method) in pairs.items()
    ]


def _time_rows(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    shares = ", ".join(f"{label} {format_percent(s[f'{account}_share'])}" for account, label in ACCOUNT_LABELS.items())
    overhead = f"{format_percent(s['overhead'])} measured, {format_percent(s['modelled_overhead'])} modelled"
    rows = [("decode time", shares), ("method overhead", overhead)]
    if (s["prepare_ms"] or 0) >= NOTABLE_MS:
        decoded = None not in (s["ar_tokens_per_s"], s["method_tokens_per_s"])
        rows.append(("offline preparation", _preparation(s["prepare_ms"], s["break_even_tokens"], decoded)))
        text = _preparation(s["modelled_prepare_ms"], s["modelled_break_even_tokens"], decoded)
        rows.append(("offline preparation, modelled", text))
    return rows


def _preparation(ms: float, break_even: float | None, decoded: bool) -> str:
    """Return the time of a preparation, and after how many tokens it is paid back, if both arms decoded any."""
    if not ms:  # no call of the model in it
        return "0.0 s"
    paid = "never paid back at this speed" if break_even is None else f"paid back after {break_even:,.0f} tokens"
    return f"{ms / 1000:.1f} s, {paid if decoded else f'paid back {ABSENT}'}"


RUN_TIMES = """measured: on the machine of this run; modelled: the same work at {}, with this model's acceptance; search
frozen: modelled, without method overhead"""


SIDE_BY_SIDE = """speedup over AR [95 % interval over prompts], decode only; modelled: the same work at the costs of a
larger model on a GPU (docs/modelled.md); overhead: of the method, a share of the measured decode
time; lossless: outputs equal to AR's"""
