"""Tables of runs: the table that a run prints at its end, and tables of comparable runs for each task."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from ssd_bench import metrics, tables
from ssd_bench.errors import LosslessError
from ssd_bench.metrics.definitions import TIMES
from ssd_bench.metrics.intervals import divide
from ssd_bench.metrics.text import (
    ABSENT,
    DECODE,
    END_TO_END,
    REHEARSAL,
    TOY,
    format_interval,
    format_lossless,
    format_number,
    format_percent,
    format_score,
)
from ssd_bench.papers.ours.cells import Record
from ssd_bench.papers.ours.ran import ModelRan
from ssd_bench.records.files import read_table
from ssd_bench.records.reader import load_run
from ssd_bench.records.schema import SCHEMAS
from ssd_bench.run_warnings import new_warnings

WIDTH = 100

BASELINE_COLUMNS = [*TIMES, "draft_ms", "verify_ms", "policy_ms", "clipped_tokens", "score"]
NOTABLE_MS = 1000
"""Milliseconds; a shorter preparation (a cached profile, reading a layer set) gets no line."""
ACCOUNT_LABELS = {"draft": "draft", "verify": "verify", "policy": "method overhead", "other": "other"}
"""Printed names of the shares of the decode time."""


@dataclass(frozen=True)
class RunGroup:
    """Comparable runs: same task, prompts, model, hardware and choice of tokens.

    Attributes:
        title: model, dtype, device, prompts.
        rows: summaries; the first is AR (all baselines of the group pooled), unless no run has a baseline.
        domains: run id -> main numbers by domain; empty for a run with one domain.
    """

    title: str
    rows: list[dict[str, Any]]
    domains: dict[str, list[dict[str, Any]]]


def group_by_task(records: Sequence[Record]) -> dict[str, list[RunGroup]]:
    """Group runs: task name -> groups of comparable runs, in the order of the records."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.digest.conditions, []).append(record)
    tasks: dict[str, list[RunGroup]] = {}
    for key, members in groups.items():
        summaries = [record.summary.row for record in members]
        size = {"params": ModelRan.of(members[0].header).params}
        measured = (row for row in summaries if row["method_tokens_per_s_e2e"] is not None)
        rows = [row | size for row in (*_ar_row(members), *measured)]
        if rows:
            domains = {record.summary.run_id: [domain.row for domain in record.domains] for record in members}
            tasks.setdefault(str(rows[0]["task"]), []).append(RunGroup(_title(rows[0], key), rows, domains))
    return dict(sorted(tasks.items()))


def _title(row: dict[str, Any], conditions: str) -> str:
    return (
        f"{_model_label(row)}, {row['dtype']}, {row['device']}, n = {row['n_prompts']} prompts "
        f"(conditions {conditions[:6]})"
    )


def _model_label(row: Mapping[str, Any]) -> str:
    """Return the model of a summary with its size, and whether this project trained it."""
    return f"{_model_with_size(row)} ({TOY})" if row["rehearsal"] else _model_with_size(row)


def _model_with_size(row: Mapping[str, Any]) -> str:
    return ModelRan(str(row["model"]), row.get("params")).text


def _ar_row(members: Sequence[Record]) -> list[dict[str, Any]]:
    """Return one row for the baseline: the AR arms of all runs pooled, as repeats of the same prompts."""
    arms = [_baselines(record) for record in members]
    prompts = pd.concat([metrics.arm_rows(rows, "ar") for rows in arms], ignore_index=True)
    if prompts.empty:
        return []
    summaries, digests = [record.summary.row for record in members], [record.digest for record in members]
    first = summaries[0]
    predicted = [s["tpt_predicted_ar"] for s in summaries if s["tpt_predicted_ar"] is not None]
    shares = metrics.decode_time_shares(prompts)
    row = dict.fromkeys(first) | {
        key: first[key] for key in ("task", "metric", "model", "rehearsal", "dtype", "device")
    }
    row |= _over_hf(arms)
    row |= {
        "method": "ar",
        "run_id": str(first["run_id"]) if len(members) == 1 else f"{len(members)} runs",
        "n_prompts": int(prompts["prompt_index"].nunique()),
        "M": divide(sum(digest.ar_emitted for digest in digests), sum(digest.ar_steps for digest in digests)),
        "speedup": 1.0 if (prompts["new_tokens"] > 1).any() else None,
        "speedup_e2e": 1.0,
        "tpt_predicted": sum(predicted) / len(predicted) if predicted else None,
        "ar_score": metrics.mean_score(prompts),
        **metrics.score_counts(metrics.arm_rows(prompts, "ar")),
        "clipped": int(prompts[prompts["clipped_tokens"] > 0]["prompt_index"].nunique()),
        "overhead": shares["policy"],
        **{f"{name}_share": share for name, share in shares.items()},
        "warnings": [],
    }
    for end_to_end, name in ((False, "tokens_per_s"), (True, "tokens_per_s_e2e")):
        rate = metrics.tokens_per_s(prompts, end_to_end)
        for arm in ("ar", "method"):
            row |= {f"{arm}_{name}": rate.value, f"{arm}_{name}_lo": rate.low, f"{arm}_{name}_hi": rate.high}
    return [row]


def _baselines(record: Record) -> pd.DataFrame:
    """Read the rows of the AR and HF arms, without the outputs."""
    rows = read_table(
        record.path / "prompts.parquet", pa.schema([SCHEMAS["prompts"].field(name) for name in BASELINE_COLUMNS])
    )
    return rows[rows["arm"] != "method"]


def _over_hf(arms: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """Return the numbers of AR over Hugging Face `generate`, pooled over the runs that have both arms."""
    prompts = [rows for rows in arms if "hf" in set(rows["arm"])]
    if not prompts:
        return {}
    pooled = pd.concat(prompts, ignore_index=True)
    rate = metrics.tokens_per_s(metrics.arm_rows(pooled, "hf"))
    speedup = metrics.speedup(pooled, arms=("hf", "ar"))
    return {
        "hf_tokens_per_s": rate.value,
        "hf_tokens_per_s_lo": rate.low,
        "hf_tokens_per_s_hi": rate.high,
        "speedup_hf": speedup.value,
        "speedup_hf_lo": speedup.low,
        "speedup_hf_hi": speedup.high,
    }


def readable_row(row: dict[str, Any], with_hf: bool = False) -> dict[str, str]:
    """Return a summary as texts: column -> text.

    Args:
        with_hf: add the columns of the Hugging Face arm.
    """
    ar = row["run_dir"] is None
    hf = {"tokens/s HF": ABSENT, "speedup over HF, decode": ABSENT} if with_hf else {}
    if with_hf and row.get("speedup_hf") is not None:
        hf = {
            "tokens/s HF": format_interval(row, "hf_tokens_per_s", 1),
            "speedup over HF, decode": format_interval(row, "speedup_hf"),
        }
    return {
        "model": _model_with_size(row),
        "method": str(row["method"]) + (" (A/A check)" if row["method"] == "ar" and not ar else ""),
        "n": str(row["n_prompts"]),
        "M": format_interval(row, "M"),
        "α": format_interval(row, "alpha", 3),
        "tokens/s AR": format_interval(row, "ar_tokens_per_s", 1),
        "tokens/s method": format_interval(row, "method_tokens_per_s", 1),
        DECODE: format_interval(row, "speedup"),
        END_TO_END: format_interval(row, "speedup_e2e"),
        **hf,
        "TPT predicted": format_number(row["tpt_predicted"], 1),
        "TPT estimated": format_number(row["tpt_estimated"], 1),
        "overhead": format_percent(row["overhead"]),
        "searched": format_percent(row["searched_share"]),
        "skipped attn + MLP": ABSENT if row["skipped_attn"] is None else _skipped_text(row),
        "score AR": format_score(row, "ar_score"),
        "score method": format_score(row, "method_score"),
        "ROUGE-2 to AR": ABSENT if ar else format_number(row["output_rouge2"], 3),
        "lossless": "by definition" if ar else format_lossless(row),
        "truncated": str(row["clipped"]),
        "dtype": str(row["dtype"]),
        "device": str(row["device"]),
        "run": str(row["run_id"]),
    }


def _skipped_text(row: dict[str, Any]) -> str:
    attn, mlp = format_number(row["skipped_attn"], 1), format_number(row["skipped_mlp"], 1)
    return f"{attn} + {mlp} ({format_percent(row['skip_ratio'])})"


def document(task: str, groups: Sequence[RunGroup]) -> str:
    """Return the tables of one task, one per group of comparable runs, with a legend and all warnings."""
    metric = groups[0].rows[0]["metric"]
    has_hf = {id(group): any(row.get("speedup_hf") is not None for row in group.rows) for group in groups}
    legend = LEGEND.format(metric=metric or "the task has none") + (HF_LEGEND if any(has_hf.values()) else "")
    parts = [f"# {task}", legend]
    for group in groups:
        parts.append(f"## {group.title}")
        parts += [f"*{REHEARSAL[0].upper()}{REHEARSAL[1:]}.*"] if group.rows[0]["rehearsal"] else []
        variation = next((row["noise"] for row in group.rows if row["noise"] is not None), None)
        parts += [] if variation is None else [VARIATION_NOTE.format(format_percent(variation))]
        parts += [_table([readable_row(row, has_hf[id(group)]) for row in group.rows])]
        parts += _scores(group) + _domains(group)
        parts += [f"- {row['run_id']}: {text}" for row in group.rows for text in row["warnings"]]
    return "\n\n".join(parts) + "\n"


def _scores(group: RunGroup) -> list[str]:
    """Return a table of all scores of AR and the method, if the task has further scores than its main one."""
    rows = []
    for row in (row for row in group.rows if row["run_dir"] is not None and row["scores"]):
        pairs = {name: (row.get(f"ar_{name}"), row.get(f"method_{name}")) for name in row["scores"]}
        shown = {name: f"{format_number(ar, 3)} / {format_number(method, 3)}" for name, (ar, method) in pairs.items()}
        rows.append({"method": row["method"], **shown, "run": row["run_id"]})
    if not rows:
        return []
    return ["Scores of the whole run, AR / method:", _table(rows)]


def _domains(group: RunGroup) -> list[str]:
    rows = []
    methods = {row["run_id"]: row["method"] for row in group.rows}
    for run_id, domains in group.domains.items():
        for row in domains:
            rows.append(
                {
                    "method": methods[run_id],
                    "domain": row["domain"],
                    "n": str(row["n_prompts"]),
                    "M": format_interval(row, "M"),
                    "α": format_interval(row, "alpha", 3),
                    DECODE: format_interval(row, "speedup"),
                    END_TO_END: format_interval(row, "speedup_e2e"),
                    "score AR": format_score(row, "ar_score"),
                    "score method": format_score(row, "method_score"),
                    "ROUGE-2 to AR": format_number(row["output_rouge2"], 3),
                    "run": run_id,
                }
            )
    return ["By domain:", _table(rows)] if rows else []


def _table(rows: Sequence[dict[str, str]]) -> str:
    return tables.markdown(pd.DataFrame(rows).fillna(ABSENT))


def overview(tasks: Mapping[str, Sequence[RunGroup]]) -> str:
    """Return the speedups of all methods over all tasks, one table per model, dtype and device.

    A cell has the number from the table of its task; columns may differ in their prompts. If a method ran more than
    once under the same conditions, the cell names the runs.
    """
    machines: dict[tuple[str, str, str], dict[str, dict[str, list[dict[str, Any]]]]] = {}
    for task, groups in tasks.items():
        for row in (row for group in groups for row in group.rows if row["run_dir"] is not None):
            machine = _model_label(row), str(row["dtype"]), str(row["device"])
            of_method = machines.setdefault(machine, {}).setdefault(str(row["method"]), {})
            of_method.setdefault(task, []).append(row)
    parts = ["# Speedup over AR", OVERVIEW]
    for machine, methods in machines.items():
        parts.append(f"## {', '.join(machine)}")
        for statistic, heading in (("speedup", DECODE), ("speedup_e2e", END_TO_END)):
            cells = {
                task: {name: _speedups(by_task.get(task, []), statistic) for name, by_task in methods.items()}
                for task in tasks
            }
            frame = pd.DataFrame(cells)
            frame = frame.loc[:, (frame != ABSENT).any()].rename_axis("method")
            if len(frame.columns):
                parts += [f"### {heading[0].upper()}{heading[1:]}", tables.markdown(frame)]
    return "\n\n".join(parts) + "\n"


def _speedups(rows: Sequence[dict[str, Any]], statistic: str) -> str:
    if len(rows) == 1:
        return format_interval(rows[0], statistic)
    return "; ".join(f"{format_interval(row, statistic)} ({row['run_id']})" for row in rows) or ABSENT


def unrounded_table(groups: Sequence[RunGroup]) -> pd.DataFrame:
    """Return the unrounded rows for the CSV, one column per key of `Summary.row`."""
    rows = [
        {"group": group.title, **row, "warnings": "; ".join(row["warnings"])} for group in groups for row in group.rows
    ]
    return pd.DataFrame(rows)


# --- the table that a run prints at its end -------------------------------------------------------------------------


def print_record(path: Path) -> None:
    """Print the table of a record; in a sweep, only those of its warnings whose kind no run has shown.

    Raises:
        LosslessError: an output differs from AR's beyond rounding.
    """
    run = load_run(path)
    summary, domains = metrics.summarise(run), [domain.row for domain in metrics.summarise_domains(run)]
    row = summary.row | {"params": ModelRan.of(run.header).params, "warnings": new_warnings(summary.warnings)}
    print(run_table(row, domains))
    bugs = run.prompts.loc[run.prompts["lossless"] == "bug", "prompt_id"].tolist()
    if bugs:
        raise LosslessError(
            f"not lossless on {', '.join(map(str, bugs))}: the output differs from AR's beyond rounding"
        )


def run_table(summary: Mapping[str, Any], domains: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the results of a run as text of at most 100 columns.

    Args:
        summary: row of the result of `metrics.summarise`, with `params` of the model.
        domains: rows of the result of `metrics.summarise_domains`.
    """
    pairs = summary["n_pairs"] or "no"
    head = (
        f"{summary['method']} on {summary['task']}: {_model_with_size(summary)}, {summary['dtype']}, "
        f"{summary['device']}; n = {summary['n_prompts']} prompts, {pairs} pairs with AR"
    )
    rows = [*_result_rows(summary), *_hf_rows(summary), *_time_rows(summary), ("record", summary["run_dir"])]
    note = [f"({REHEARSAL})"] if summary["rehearsal"] else []
    lines = [*textwrap.wrap(head, WIDTH), *note, "", _indented_table(pd.DataFrame(rows, columns=["", ""]))]
    lines += ["", _by_domain(domains)] if domains else []
    for warning in summary["warnings"]:
        lines += ["", *textwrap.wrap(f"warning: {warning}", WIDTH, subsequent_indent="  ")]
    lines += ["", "[low, high]: 95 % interval over prompts"]
    return "\n".join(lines)


def comparison_text(records: Sequence[Record]) -> str:
    """Return the results of a sweep as text of about 100 columns: one table per task, the largest speedup first.

    Runs that are not comparable (other prompts, tokens, model or machine) are in separate tables. Several runs of one
    method are labelled with the settings that differ between them.
    """
    parts = []
    settings = {str(record.path): record.header.options("method") for record in records}
    contaminated = {str(record.path): bool(record.summary.steadiness.contamination) for record in records}
    for task, groups in group_by_task(records).items():
        for group in groups:
            ar = [row for row in group.rows if row["run_dir"] is None]
            method_rows = [row for row in group.rows if row["run_dir"] is not None]
            method_rows.sort(key=lambda row: -1.0 if row["speedup"] is None else row["speedup"], reverse=True)
            names = _distinguishing_names(method_rows, settings)
            rows = [
                _main_columns(readable_row(row) | {"method": name})
                for row, name in zip(method_rows, names, strict=True)
            ]
            rows += [_main_columns(readable_row(row)) for row in ar]
            head = f"{task}: {group.title}"
            unreliable = [name for row, name in zip(method_rows, names, strict=True) if contaminated[row["run_dir"]]]
            note = f"timings unreliable, see the warnings: {'; '.join(unreliable)}" if unreliable else ""
            warnings = textwrap.wrap(note, WIDTH, subsequent_indent="  ")
            table = _indented_table(pd.DataFrame(rows), list(rows[0])[1:])
            parts.append("\n".join([*textwrap.wrap(head, WIDTH), table, *warnings]))
    return "\n\n".join([*parts, SIDE_BY_SIDE]) if parts else ""


def _distinguishing_names(rows: Sequence[dict[str, Any]], settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the method of each row, with the settings that differ between rows of this method.

    Args:
        settings: folder of a run -> settings of its method.
    """
    names = []
    for row in rows:
        row_settings, label = settings[str(row["run_dir"])], readable_row(row)["method"]
        compared = [settings[str(peer["run_dir"])] for peer in rows if peer["method"] == row["method"]]
        differing = [key for key, value in row_settings.items() if any(peer.get(key) != value for peer in compared)]
        names.append(", ".join([label, *(f"{key}={row_settings[key]}" for key in differing if key != "name")]))
    return names


def _main_columns(row: Mapping[str, str]) -> dict[str, str]:
    names = ("method", "M", "α", "tokens/s method", DECODE, END_TO_END, "overhead", "lossless")
    return {
        name.removesuffix(" method"): row[name].partition(" [")[0] if name in names[1:4] else row[name]
        for name in names
    }


def _indented_table(frame: pd.DataFrame, right: Sequence[str] = ()) -> str:
    return textwrap.indent(tables.terminal(frame, right, ruled=False), "  ")


def _by_domain(domains: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            row["domain"],
            str(row["n_prompts"]),
            format_number(row["M"]),
            format_number(row["alpha"], 3),
            format_interval(row, "speedup"),
            format_interval(row, "speedup_e2e"),
            format_score(row, "ar_score"),
            format_score(row, "method_score"),
        )
        for row in domains
    ]
    columns = ["", "n", "M", "α", DECODE, END_TO_END, "score AR", "method"]
    return _indented_table(pd.DataFrame(rows, columns=columns), ["n", "M", "α", "score AR", "method"])


def _result_rows(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    estimated = format_number(s["tpt_estimated"], 1) if s["tpt_estimated_n"] else ABSENT
    scores = f"{format_number(s['ar_score'], 3)} AR, {format_number(s['method_score'], 3)} method ({_scored_by(s)})"
    return [
        ("M, tokens per verification", format_interval(s, "M")),
        ("α, accepted per drafted", format_interval(s, "alpha", 3)),
        ("tokens/s AR", format_interval(s, "ar_tokens_per_s", 1)),
        ("tokens/s method", format_interval(s, "method_tokens_per_s", 1)),
        (DECODE, format_interval(s, "speedup", 2)),
        (END_TO_END, format_interval(s, "speedup_e2e", 2)),
        *(
            []
            if s["searched_share"] is None
            else [("drafts with a searched layer set", format_percent(s["searched_share"]))]
        ),
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
    """Return the metric, and the number of scored answers if some have no score."""
    metric, answered = str(s["metric"]), s["n_scored"]
    return metric if answered == s["n_answers"] else f"{metric}; {answered} of {s['n_answers']} answers have a score"


def _hf_rows(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the Hugging Face `generate` (HF) arm, with the ratios that papers report."""
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
        (
            "HF's copy of the weights",
            ABSENT if weights is None else f"{weights / 1e6:,.0f} MB, in a separate process",
        ),
    ]


def _score_rows(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of further scores of the whole run; the main score has a separate row."""
    names = [name for name in s["scores"] if "/" not in name]
    return [
        (
            f"score, {name}",
            f"{format_number(s.get(f'ar_{name}'), 3)} AR, {format_number(s.get(f'method_{name}'), 3)} method",
        )
        for name in names
    ]


def _time_rows(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    shares = ", ".join(f"{label} {format_percent(s[f'{account}_share'])}" for account, label in ACCOUNT_LABELS.items())
    rows = [("decode time", shares), ("method overhead", format_percent(s["overhead"]))]
    if (s["prepare_ms"] or 0) >= NOTABLE_MS:
        even = s["break_even_tokens"]
        paid = "never paid back at this speed" if even is None else f"paid back after {even:,.0f} tokens"
        if s["ar_tokens_per_s"] is None or s["method_tokens_per_s"] is None:
            paid = f"paid back {ABSENT}"
        rows.append(("offline preparation", f"{s['prepare_ms'] / 1000:.1f} s, {paid}"))
    return rows


VARIATION_NOTE = """Intervals of speeds are over prompts and run-to-run variation: in repeated timings of one trace, the
speedup has a standard deviation of {}."""

OVERVIEW = """Speedups of total times on the same prompts, paired with AR in the same run. Brackets: 95 % intervals over
prompts. The table of each task has all other numbers."""

SIDE_BY_SIDE = """speedup: over AR on the same prompts in the same run [95 % interval over prompts], decode only and
end to end (with the prefill); overhead: method overhead, a share of the decode time; lossless:
outputs equal to AR's."""

LEGEND = """Brackets: 95 % intervals over n prompts. M: mean acceptance length, emitted tokens per verification. α:
accepted over drafted tokens. tokens/s: decode only, all tokens over all time. speedup, decode: the method's tokens/s
over AR's on the same prompts in the same run, method overhead included. speedup, end to end: the same with the time and
the token of the prefill, as the papers count. TPT predicted: tokens/s by Eq. 4 of KnapSpec, from the latency profile,
the draft length of the run, and its acceptance rate of tokens whose predecessors were accepted. TPT estimated: the
method's own estimate. overhead: method overhead, a share of the decode time. searched: share of draft steps with a
layer set that a search chose, not the initial one; –: the method searches nothing. skipped attn + MLP: sublayers
skipped while drafting, mean over drafted tokens, and their share of all sublayers. score: {metric}; (n of m): n of m
answers have a score. ROUGE-2 to AR: ROUGE-2 of the method's texts with AR's as references; 1 where they are equal.
lossless: outputs equal to AR's over outputs checked. truncated: prompts shortened to fit. Runs share a table only if
they have the same task, prompts, model, hardware and choice of tokens."""

HF_LEGEND = """
HF: Hugging Face generate on the same prompts in the same run (`baseline=hf`), decode only; the row of AR has the
speedup of AR over HF."""
