"""Tables of comparable runs for each task, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow as pa

from ssd_bench import tables
from ssd_bench.records.files import read_table
from ssd_bench.records.schema import SCHEMAS
from ssd_bench.results.folder import Record
from ssd_bench.results.models import ModelRan
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quality import score_counts
from ssd_bench.results.quantity import Measured, divide
from ssd_bench.results.rows import TIMES, arm_rows
from ssd_bench.results.text import (
    ABSENT,
    FROZEN,
    MEASURED,
    MEASURED_END_TO_END,
    MODELLED,
    TOY,
    TOY_RUN,
    costs_text,
    format_interval,
    format_lossless,
    format_number,
    format_percent,
    format_score,
)

PAPER_COLUMNS = ("method", "n", "M", "α", MEASURED, MODELLED, "overhead", "searched", "lossless")
"""Columns of the LaTeX table: what a paper must report of a method; the caption has model and machine."""
BASELINE_COLUMNS = [*TIMES, "draft_ms", "verify_ms", "policy_ms", "clipped_tokens", "score"]
ACCOUNT_LABELS = {"draft": "draft", "verify": "verify", "policy": "method overhead", "other": "other"}
"""Printed names of the shares of the decode time."""


@dataclass(frozen=True)
class RunGroup:
    """Comparable runs: same task, prompts, model, hardware and choice of tokens.

    Attributes:
        rows: summaries; first AR (all baselines pooled), if a run has a baseline.
        domains: run id -> main numbers by domain; empty for a single domain.
    """

    title: str
    rows: list[dict[str, Any]]
    domains: dict[str, list[dict[str, Any]]]

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Summaries of the runs, without AR."""
        return [row for row in self.rows if row["run_dir"] is not None]

    @property
    def baselines(self) -> list[dict[str, Any]]:
        """Row of AR, if a run has a baseline."""
        return [row for row in self.rows if row["run_dir"] is None]

    @property
    def costs(self) -> list[str]:
        """Reference machines whose costs model the runs."""
        return list(dict.fromkeys(row["modelled_on"] for row in self.runs))

    @property
    def has_hf(self) -> bool:
        """Whether a run has the Hugging Face arm."""
        return any(row.get("speedup_hf") is not None for row in self.rows)


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
            title = f"{_machine(rows[0])}, n = {rows[0]['n_prompts']} prompts (conditions {key[:6]})"
            tasks.setdefault(str(rows[0]["task"]), []).append(RunGroup(title, rows, domains))
    return dict(sorted(tasks.items()))


def _machine(row: Mapping[str, Any]) -> str:
    toy = f" ({TOY})" if row["toy"] else ""
    return f"{model_with_size(row)}{toy}, {row['dtype']}, {row['device']}"


def model_with_size(row: Mapping[str, Any]) -> str:
    """Return a summary's model with its size."""
    return ModelRan(str(row["model"]), row.get("params")).text


def _ar_row(members: Sequence[Record]) -> list[dict[str, Any]]:
    """Return one row for the baseline: all AR arms pooled, as repeats of the same prompts."""
    arms = [_baselines(record) for record in members]
    prompts = pd.concat([arm_rows(rows, "ar") for rows in arms], ignore_index=True)
    if prompts.empty:
        return []
    summaries, digests = [record.summary.row for record in members], [record.digest for record in members]
    first = summaries[0]
    predicted = [s["tpt_predicted_ar"] for s in summaries if s["tpt_predicted_ar"] is not None]
    table = PromptTable(prompts)
    shares = {f"{name}_share": table.value(f"{name}_share", ("ar",)) for name in ACCOUNT_LABELS}
    shared = ("task", "metric", "model", "toy", "dtype", "device")
    row = dict.fromkeys(first) | {key: first[key] for key in shared} | _over_hf(arms)
    speedup = 1.0 if (prompts["new_tokens"] > 1).any() else None
    if any(s.get("speedup_modelled") is not None for s in summaries):
        row |= {"speedup_modelled": speedup, "speedup_frozen": speedup}
    row |= {
        "method": "ar",
        "run_id": str(first["run_id"]) if len(members) == 1 else f"{len(members)} runs",
        "n_prompts": int(prompts["prompt_index"].nunique()),
        "M": divide(sum(digest.ar_emitted for digest in digests), sum(digest.ar_steps for digest in digests)),
        "speedup": speedup,
        "speedup_e2e": 1.0,
        "tpt_predicted": sum(predicted) / len(predicted) if predicted else None,
        "ar_score": table.value("ar_score"),
        **score_counts(arm_rows(prompts, "ar")),
        "clipped": int(prompts[prompts["clipped_tokens"] > 0]["prompt_index"].nunique()),
        "overhead": shares["policy_share"],
        **shares,
        "warnings": [],
    }
    for name in ("tokens_per_s", "tokens_per_s_e2e"):
        rate = table.number(f"ar_{name}")
        row |= _columns(f"ar_{name}", rate) | _columns(f"method_{name}", rate)
    return [row]


def _baselines(record: Record) -> pd.DataFrame:
    """Read the AR and HF arms, without outputs."""
    rows = read_table(
        record.path / "prompts.parquet", pa.schema([SCHEMAS["prompts"].field(name) for name in BASELINE_COLUMNS])
    )
    return rows[rows["arm"] != "method"]


def _over_hf(arms: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """Return AR's numbers over Hugging Face `generate`, pooled over runs with both arms."""
    prompts = [rows for rows in arms if "hf" in set(rows["arm"])]
    if not prompts:
        return {}
    # as repeats of the same prompts, so that a row of one run is not paired with that of another
    repeats = 1 + max(int(rows["repeat"].max()) for rows in prompts)
    numbered = (rows.assign(repeat=rows["repeat"] + i * repeats) for i, rows in enumerate(prompts))
    pooled = pd.concat(numbered, ignore_index=True)
    rate, speedup = (PromptTable(pooled).number(name) for name in ("hf_tokens_per_s", "ar_over_hf"))
    return _columns("hf_tokens_per_s", rate) | _columns("speedup_hf", speedup)


def _columns(name: str, number: Measured) -> dict[str, float | None]:
    return {name: number.value, f"{name}_lo": number.low, f"{name}_hi": number.high}


def readable_row(row: dict[str, Any], with_hf: bool = False) -> dict[str, str]:
    """Return a summary as column -> text, perhaps with the Hugging Face arm."""
    ar, has_hf = row["run_dir"] is None, row.get("speedup_hf") is not None
    hf = {
        "tokens/s HF": format_interval(row, "hf_tokens_per_s", 1) if has_hf else ABSENT,
        "speedup over HF, decode": format_interval(row, "speedup_hf") if has_hf else ABSENT,
    }
    return {
        "model": model_with_size(row),
        "method": str(row["method"]) + (" (A/A check)" if row["method"] == "ar" and not ar else ""),
        "n": str(row["n_prompts"]),
        "M": format_interval(row, "M"),
        "α": format_interval(row, "alpha", 3),
        "tokens/s AR": format_interval(row, "ar_tokens_per_s", 1),
        "tokens/s method": format_interval(row, "method_tokens_per_s", 1),
        MEASURED: format_interval(row, "speedup"),
        MEASURED_END_TO_END: format_interval(row, "speedup_e2e"),
        MODELLED: format_interval(row, "speedup_modelled"),
        FROZEN: format_interval(row, "speedup_frozen"),
        **(hf if with_hf else {}),
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
    """Return a task's tables, one per group of comparable runs, with a legend and all warnings."""
    metric = groups[0].rows[0]["metric"]
    hf_legend = HF_LEGEND if any(group.has_hf for group in groups) else ""
    parts = [f"# {task}", LEGEND.format(metric=metric or "the task has none") + hf_legend]
    for group in groups:
        parts.append(f"## {group.title}")
        parts += [f"*{TOY_RUN[0].upper()}{TOY_RUN[1:]}.*"] if group.rows[0]["toy"] else []
        variation = next((row["noise"] for row in group.rows if row["noise"] is not None), None)
        parts += [] if variation is None else [VARIATION_NOTE.format(format_percent(variation))]
        parts += [_table([readable_row(row, group.has_hf) for row in group.rows])]
        parts += [f"{MODELLED}, and {FROZEN}: {costs_note(group)}."]
        parts += _scores(group) + _domains(group)
        parts += [f"- {row['run_id']}: {text}" for row in group.rows for text in row["warnings"]]
    return "\n\n".join(parts) + "\n"


def latex(task: str, groups: Sequence[RunGroup]) -> str:
    """Return a task's main numbers as LaTeX tables, one per group of comparable runs."""
    name = re.sub(r"[^a-z0-9]+", "-", task.lower())
    texts = []
    for number, group in enumerate(groups, 1):
        rows = [readable_row(row) for row in group.rows]
        variation = next((row["noise"] for row in group.rows if row["noise"] is not None), None)
        caption = [f"{task}: {group.title}.", f"{TOY_RUN}." if group.rows[0]["toy"] else "", PAPER_CAPTION]
        caption += [f"Modelled {costs_note(group)}."]
        caption += [] if variation is None else [VARIATION_NOTE.format(format_percent(variation))]
        frame = pd.DataFrame(rows).fillna(ABSENT)[list(PAPER_COLUMNS)]
        texts.append(tables.latex(frame, " ".join(filter(None, caption)), f"tab:{name}-{number}"))
    return "\n".join(texts)


def costs_note(group: RunGroup) -> str:
    """Return the costs at which a group is modelled; runs are named only if they differ."""
    runs = {name: [str(row["run_id"]) for row in group.runs if row["modelled_on"] == name] for name in group.costs}
    notes = (f"at {costs_text(name)}" + (f" ({', '.join(ids)})" if len(runs) > 1 else "") for name, ids in runs.items())
    return "; ".join(notes)


def _scores(group: RunGroup) -> list[str]:
    """Return a table of all scores of AR and the method, if the task has more than one."""
    rows = []
    for row in (row for row in group.runs if row["scores"]):
        pairs = {name: (row.get(f"ar_{name}"), row.get(f"method_{name}")) for name in row["scores"]}
        shown = {name: f"{format_number(ar, 3)} / {format_number(method, 3)}" for name, (ar, method) in pairs.items()}
        rows.append({"method": row["method"], **shown, "run": row["run_id"]})
    if not rows:
        return []
    return ["Scores of the whole run, AR / method:", _table(rows)]


def readable_domain(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a domain's summary as column -> text."""
    return {
        "domain": str(row["domain"]),
        "n": str(row["n_prompts"]),
        "M": format_interval(row, "M"),
        "α": format_interval(row, "alpha", 3),
        MEASURED: format_interval(row, "speedup"),
        MEASURED_END_TO_END: format_interval(row, "speedup_e2e"),
        "score AR": format_score(row, "ar_score"),
        "score method": format_score(row, "method_score"),
        "ROUGE-2 to AR": format_number(row["output_rouge2"], 3),
    }


def _domains(group: RunGroup) -> list[str]:
    methods = {row["run_id"]: row["method"] for row in group.rows}
    rows = [
        {"method": methods[run_id], **readable_domain(row), "run": run_id}
        for run_id, domains in group.domains.items()
        for row in domains
    ]
    return ["By domain:", _table(rows)] if rows else []


def _table(rows: Sequence[dict[str, str]]) -> str:
    return tables.markdown(pd.DataFrame(rows).fillna(ABSENT))


def overview(tasks: Mapping[str, Sequence[RunGroup]]) -> str:
    """Return all speedups over all tasks, one table per model, dtype, device and kind of speedup.

    A cell has the number from its task's table; columns may differ in prompts. Of a method's repeated runs under the
    same conditions, the cell names each.
    """
    runs = [(task, row) for task, groups in tasks.items() for group in groups for row in group.runs]
    costs = dict.fromkeys(name for groups in tasks.values() for group in groups for name in group.costs)
    kinds = [("speedup", MEASURED, ""), ("speedup_e2e", MEASURED_END_TO_END, "")]
    kinds += [("speedup_modelled", f"{MODELLED} at {costs_text(name)}", name) for name in costs]
    parts = ["# Speedup over AR", OVERVIEW]
    for machine in dict.fromkeys(_machine(row) for _, row in runs):
        parts.append(f"## {machine}")
        by_cell: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for task, row in runs:
            if _machine(row) == machine:
                by_cell.setdefault((task, str(row["method"])), []).append(row)
        methods = dict.fromkeys(method for _, method in by_cell)
        for statistic, heading, name in kinds:
            rows_of = {key: [row for row in rows if name in ("", row["modelled_on"])] for key, rows in by_cell.items()}
            texts = {key: _speedups(rows, statistic) for key, rows in rows_of.items() if rows}
            frame = pd.DataFrame({task: {name: texts.get((task, name), ABSENT) for name in methods} for task in tasks})
            frame = frame.loc[:, (frame != ABSENT).any()].rename_axis("method")
            if len(frame.columns):
                parts += [f"### {heading[0].upper()}{heading[1:]}", tables.markdown(frame)]
    return "\n\n".join(parts) + "\n"


def _speedups(rows: Sequence[dict[str, Any]], statistic: str) -> str:
    if len(rows) == 1:
        return format_interval(rows[0], statistic)
    return "; ".join(f"{format_interval(row, statistic)} ({row['run_id']})" for row in rows)


def unrounded_table(groups: Sequence[RunGroup]) -> pd.DataFrame:
    """Return the unrounded rows for the CSV, a column per key of `Summary.row`."""
    rows = [
        {"group": group.title, **row, "warnings": "; ".join(row["warnings"])} for group in groups for row in group.rows
    ]
    return pd.DataFrame(rows)


PAPER_CAPTION = """Brackets: 95 % intervals over n prompts. M: mean acceptance length, emitted tokens per
verification. α: accepted over drafted tokens. Speedups are over AR on the same prompts in the same run, while decoding:
measured on this machine, or modelled from the recorded work. Overhead: share of the decode time outside drafting and
verification. Searched: share of draft steps with a layer set that a search chose. Lossless: outputs equal to AR's over
outputs checked."""

VARIATION_NOTE = """Intervals of speeds are over prompts and run-to-run variation: in repeated timings of one trace, the
speedup has a standard deviation of {}."""

OVERVIEW = """Speedups of total times on the same prompts, paired with AR in the same run. Measured: on the machine of
the run, decoding alone, and end to end with the prefill. Modelled: the recorded work of decoding at the costs of
another machine. Brackets: 95 % intervals over prompts. The table of each task has all other numbers."""

LEGEND = """Brackets: 95 % intervals over n prompts. M: mean acceptance length, emitted tokens per verification. α:
accepted over drafted tokens. tokens/s: decode only, all tokens over all time. speedup, measured: the method's tokens/s
over AR's on the same prompts in the same run, on the machine of the run, method overhead included. measured, end to
end: the same with the time and the token of the prefill, as the papers count. speedup, modelled: the recorded work of
both arms at the costs of a larger model on a GPU, decode only; acceptance is that of the model that ran. search frozen:
speedup, modelled, without method overhead. –: the record does not count its work. TPT predicted: tokens/s by Eq. 4 of
KnapSpec, from the latency profile, the draft length of the run, and its acceptance rate of tokens whose predecessors
were accepted. TPT estimated: the method's own estimate. overhead: method overhead, a share of the measured decode time.
searched: share of draft steps with a layer set that a search chose, not the initial one; –: the method searches
nothing. skipped attn + MLP: sublayers skipped while drafting, mean over drafted tokens, and their share of all
sublayers. score: {metric}; (n of m): n of m answers have a score. ROUGE-2 to AR: ROUGE-2 of the method's texts with
AR's as references; 1 where they are equal. lossless: outputs equal to AR's over outputs checked. truncated: prompts
shortened to fit. Runs share a table only if they have the same task, prompts, model, hardware and choice of tokens."""

HF_LEGEND = """
HF: Hugging Face generate on the same prompts in the same run (`baseline=hf`), decode only; the row of AR has the
speedup of AR over HF."""
