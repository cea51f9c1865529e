"""Tables of runs: the one that a run ends with, and one a task, where only comparable runs stand together."""

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
from ssd_bench.papers.cells import Record
from ssd_bench.papers.ran import ModelRan
from ssd_bench.records.files import read_table
from ssd_bench.records.reader import load_run
from ssd_bench.records.schema import SCHEMAS

WIDTH = 100

BASELINE_COLUMNS = [*TIMES, "draft_ms", "verify_ms", "policy_ms", "clipped_tokens", "score"]
NOTABLE_MS = 1000
"""A shorter preparation (a cached profile, reading a set) is not worth a line."""


@dataclass(frozen=True)
class RunGroup:
    """Comparable runs: same task, prompts, model, hardware and choice of tokens.

    Attributes:
        title: model, dtype, device, prompts.
        rows: summaries; the first is AR (all baselines of the group together), unless no run has a baseline.
        domains: of each run with several domains, its main numbers in each.
    """

    title: str
    rows: list[dict[str, Any]]
    domains: dict[str, list[dict[str, Any]]]


def group_by_task(records: Sequence[Record]) -> dict[str, list[RunGroup]]:
    """Group the runs: task name -> its groups of comparable runs, in the order in which they came."""
    groups: dict[str, list[Record]] = {}
    for made in records:
        groups.setdefault(made.digest.conditions, []).append(made)
    tasks: dict[str, list[RunGroup]] = {}
    for key, members in groups.items():
        summaries = [made.summary for made in members]
        size = {"params": ModelRan.of(members[0].header).params}
        measured = (row for row in summaries if row["method_tokens_per_s_e2e"] is not None)
        rows = [row | size for row in (*_ar_row(members), *measured)]
        if rows:
            domains = {str(made.summary["run_id"]): made.domains for made in members}
            tasks.setdefault(str(rows[0]["task"]), []).append(RunGroup(_title(rows[0], key), rows, domains))
    return dict(sorted(tasks.items()))


def _title(row: dict[str, Any], conditions: str) -> str:
    return (
        f"{_model(row)}, {row['dtype']}, {row['device']}, n = {row['n_prompts']} prompts (conditions {conditions[:6]})"
    )


def _model(row: Mapping[str, Any]) -> str:
    """Return the model of a summary with its size, and whether this project trained it."""
    return f"{_sized(row)} ({TOY})" if row["rehearsal"] else _sized(row)


def _sized(row: Mapping[str, Any]) -> str:
    return ModelRan(str(row["model"]), row.get("params")).text


def _ar_row(members: Sequence[Record]) -> list[dict[str, Any]]:
    """One row for the baseline: the AR arms of all runs together, each run one more repeat of its prompts."""
    arms = [_baselines(made) for made in members]
    prompts = pd.concat([metrics.arm_rows(rows, "ar") for rows in arms], ignore_index=True)
    if prompts.empty:
        return []
    summaries, digests = [made.summary for made in members], [made.digest for made in members]
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
        "M": divide(sum(one.ar_emitted for one in digests), sum(one.ar_steps for one in digests)),
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


def _baselines(made: Record) -> pd.DataFrame:
    """What the baseline's row is made of: of the arms but the method's, without the outputs."""
    rows = read_table(
        made.path / "prompts.parquet", pa.schema([SCHEMAS["prompts"].field(name) for name in BASELINE_COLUMNS])
    )
    return rows[rows["arm"] != "method"]


def _over_hf(arms: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """AR over Hugging Face `generate` in the runs that have both, their arms together."""
    prompts = [rows for rows in arms if "hf" in set(rows["arm"])]
    if not prompts:
        return {}
    together = pd.concat(prompts, ignore_index=True)
    rate = metrics.tokens_per_s(metrics.arm_rows(together, "hf"))
    over = metrics.speedup(together, arms=("hf", "ar"))
    return {
        "hf_tokens_per_s": rate.value, "hf_tokens_per_s_lo": rate.low, "hf_tokens_per_s_hi": rate.high,
        "speedup_hf": over.value, "speedup_hf_lo": over.low, "speedup_hf_hi": over.high,
    }  # fmt: skip


def readable_row(row: dict[str, Any], with_hf: bool = False) -> dict[str, str]:
    """A summary for a reader: column -> text.

    Args:
        with_hf: with what Hugging Face's arm says, where a run has it.
    """
    ar = row["run_dir"] is None
    hf = {"tokens/s HF": ABSENT, "speedup over HF, decode": ABSENT} if with_hf else {}
    if with_hf and row.get("speedup_hf") is not None:
        hf = {
            "tokens/s HF": format_interval(row, "hf_tokens_per_s", 1),
            "speedup over HF, decode": format_interval(row, "speedup_hf"),
        }
    return {
        "model": _sized(row),
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
        "skipped attn + MLP": ABSENT if row["skipped_attn"] is None else _skipped(row),
        "score AR": format_score(row, "ar_score"),
        "score method": format_score(row, "method_score"),
        "ROUGE-2 to AR": ABSENT if ar else format_number(row["output_rouge2"], 3),
        "lossless": "by definition" if ar else format_lossless(row),
        "clipped": str(row["clipped"]),
        "dtype": str(row["dtype"]),
        "device": str(row["device"]),
        "run": str(row["run_id"]),
    }


def _skipped(row: dict[str, Any]) -> str:
    return f"{format_number(row['skipped_attn'], 1)} + {format_number(row['skipped_mlp'], 1)} ({format_percent(row['skip_ratio'])})"


def document(task: str, groups: Sequence[RunGroup]) -> str:
    """The tables of one task, one per group of comparable runs, with what the columns mean and every warning."""
    metric = groups[0].rows[0]["metric"]
    third = {id(group): any(row.get("speedup_hf") is not None for row in group.rows) for group in groups}
    legend = LEGEND.format(metric=metric or "none") + (HF_LEGEND if any(third.values()) else "")
    parts = [f"# {task}", legend]
    for group in groups:
        parts.append(f"## {group.title}")
        parts += [f"*{REHEARSAL[0].upper()}{REHEARSAL[1:]}.*"] if group.rows[0]["rehearsal"] else []
        noise = next((row["noise"] for row in group.rows if row["noise"] is not None), None)
        parts += [] if noise is None else [NOISE_NOTE.format(format_percent(noise))]
        parts += [_table([readable_row(row, third[id(group)]) for row in group.rows])]
        parts += _scores(group) + _domains(group)
        parts += [f"- {row['run_id']}: {text}" for row in group.rows for text in row["warnings"]]
    return "\n\n".join(parts) + "\n"


def _scores(group: RunGroup) -> list[str]:
    """All scores of the whole runs, where the task has more than its headline; AR's and the method's."""
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
    method_of = {row["run_id"]: row["method"] for row in group.rows}
    for run_id, domains in group.domains.items():
        for row in domains:
            rows.append(
                {
                    "method": method_of[run_id],
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
    """Speedups of all methods over all tasks, one table per model, dtype and device.

    A cell is what the task's own table says: runs of one column may differ in prompts from those of another. Where a
    method ran more than once under the same conditions, the cell names the runs.
    """
    machines: dict[tuple[str, str, str], dict[str, dict[str, list[dict[str, Any]]]]] = {}
    for task, groups in tasks.items():
        for row in (row for group in groups for row in group.rows if row["run_dir"] is not None):
            machine = _model(row), str(row["dtype"]), str(row["device"])
            of_method = machines.setdefault(machine, {}).setdefault(str(row["method"]), {})
            of_method.setdefault(task, []).append(row)
    parts = ["# Speedup over AR", OVERVIEW]
    for machine, methods in machines.items():
        parts.append(f"## {', '.join(machine)}")
        for statistic, head in (("speedup", DECODE), ("speedup_e2e", END_TO_END)):
            cells = {
                task: {name: _speedups(found.get(task, []), statistic) for name, found in methods.items()}
                for task in tasks
            }
            frame = pd.DataFrame(cells)
            frame = frame.loc[:, (frame != ABSENT).any()].rename_axis("method")
            if len(frame.columns):
                parts += [f"### {head[0].upper()}{head[1:]}", tables.markdown(frame)]
    return "\n\n".join(parts) + "\n"


def _speedups(rows: Sequence[dict[str, Any]], statistic: str) -> str:
    if len(rows) == 1:
        return format_interval(rows[0], statistic)
    return "; ".join(f"{format_interval(row, statistic)} ({row['run_id']})" for row in rows) or ABSENT


def unrounded_table(groups: Sequence[RunGroup]) -> pd.DataFrame:
    """The same rows unrounded, one column per key of `metrics.summarise`, for the CSV."""
    rows = [
        {"group": group.title, **row, "warnings": "; ".join(row["warnings"])} for group in groups for row in group.rows
    ]
    return pd.DataFrame(rows)


# --- the table that a run ends with ---------------------------------------------------------------------------------


def print_record(path: Path) -> None:
    """Print the table of a record.

    Raises:
        LosslessError: an output differs from AR's beyond rounding.
    """
    run = load_run(path)
    summary = metrics.summarise(run) | {"params": ModelRan.of(run.header).params}
    print(run_table(summary, metrics.summarise_domains(run)))
    bugs = run.prompts.loc[run.prompts["lossless"] == "bug", "prompt_id"].tolist()
    if bugs:
        raise LosslessError(
            f"not lossless on {', '.join(map(str, bugs))}: the output differs from AR's beyond rounding"
        )


def run_table(summary: Mapping[str, Any], domains: Sequence[Mapping[str, Any]] = ()) -> str:
    """What a run found, as text of at most 100 columns.

    Args:
        summary: as `metrics.summarise` returns it, with `params` of the model.
        domains: as `metrics.summarise_domains` returns it.
    """
    pairs = summary["n_pairs"] or "no"
    head = (
        f"{summary['method']} on {summary['task']}: {_sized(summary)}, {summary['dtype']}, {summary['device']}; "
        f"n = {summary['n_prompts']} prompts, {pairs} pairs with AR"
    )
    rows = [*_found(summary), *_third_arm(summary), *_spent(summary), ("record", summary["run_dir"])]
    note = [f"({REHEARSAL})"] if summary["rehearsal"] else []
    lines = [*textwrap.wrap(head, WIDTH), *note, "", _listed(pd.DataFrame(rows, columns=["", ""]))]
    lines += ["", _by_domain(domains)] if domains else []
    for warning in summary["warnings"]:
        lines += ["", *textwrap.wrap(f"warning: {warning}", WIDTH, subsequent_indent="  ")]
    lines += ["", "[low, high]: 95 % interval over prompts"]
    return "\n".join(lines)


def comparison_text(made: Sequence[Record]) -> str:
    """What the runs of a sweep found, as text of about 100 columns: a table a task, the largest speedup first.

    Runs that cannot be compared (other prompts, tokens, model or machine) stand in tables of their own. Those of one
    method have beside its name the settings in which they differ.
    """
    parts = []
    asked = {str(one.path): (one.header.get("config") or {}).get("method") or {} for one in made}
    for task, groups in group_by_task(made).items():
        for group in groups:
            ar, ran = ([row for row in group.rows if (row["run_dir"] is None) is plain] for plain in (True, False))
            ran.sort(key=lambda row: -1.0 if row["speedup"] is None else row["speedup"], reverse=True)
            rows = [_short(readable_row(row) | {"method": name}) for row, name in zip(ran, _told_apart(ran, asked))]
            rows += [_short(readable_row(row)) for row in ar]
            head = f"{task}: {group.title}"
            busy = [
                f"{row['method']}: a busy machine spoiled the times: {why}"
                for row in ran
                if (why := metrics.contamination(row))
            ]
            told = [line for each in busy for line in textwrap.wrap(each, WIDTH, subsequent_indent="  ")]
            parts.append(
                "\n".join([*textwrap.wrap(head, WIDTH), _listed(pd.DataFrame(rows), list(rows[0])[1:]), *told])
            )
    return "\n\n".join([*parts, SIDE_BY_SIDE]) if parts else ""


def _told_apart(rows: Sequence[dict[str, Any]], asked: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The method of each row, with the settings in which it differs from another one of that method.

    Args:
        asked: folder of a run -> the settings of its method.
    """
    found = []
    for row in rows:
        own, name = asked[str(row["run_dir"])], readable_row(row)["method"]
        others = [asked[str(one["run_dir"])] for one in rows if one["method"] == row["method"]]
        differing = [key for key in own if any(one.get(key) != own[key] for one in others)]
        found.append(", ".join([name, *(f"{key}={own[key]}" for key in differing if key != "name")]))
    return found


def _short(row: Mapping[str, str]) -> dict[str, str]:
    names = ("method", "M", "α", "tokens/s method", DECODE, END_TO_END, "overhead", "lossless")
    return {name.removesuffix(" method"): row[name].partition(" [")[0] if name in names[1:4] else row[name]
            for name in names}  # fmt: skip


def _listed(frame: pd.DataFrame, right: Sequence[str] = ()) -> str:
    return textwrap.indent(tables.terminal(frame, right, ruled=False), "  ")


def _by_domain(domains: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (row["domain"], str(row["n_prompts"]), format_number(row["M"]), format_number(row["alpha"], 3), format_interval(row, "speedup"),
         format_interval(row, "speedup_e2e"), format_score(row, "ar_score"), format_score(row, "method_score"))
        for row in domains
    ]  # fmt: skip
    counted = ["n", "M", "α", "score AR", "method"]
    return _listed(pd.DataFrame(rows, columns=["", "n", "M", "α", DECODE, END_TO_END, "score AR", "method"]), counted)


def _found(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    estimated = format_number(s["tpt_estimated"], 1) if s["tpt_estimated_n"] else ABSENT
    scores = f"{format_number(s['ar_score'], 3)} AR, {format_number(s['method_score'], 3)} method ({_scored_by(s)})"
    return [
        ("M, tokens per verification", format_interval(s, "M")),
        ("α, accepted per drafted", format_interval(s, "alpha", 3)),
        ("tokens/s AR", format_interval(s, "ar_tokens_per_s", 1)),
        ("tokens/s method", format_interval(s, "method_tokens_per_s", 1)),
        (DECODE, format_interval(s, "speedup", 2)),
        (END_TO_END, format_interval(s, "speedup_e2e", 2)),
        *([] if s["searched_share"] is None else [("drafts of a searched set", format_percent(s["searched_share"]))]),
        ("TPT predicted / estimated", f"{format_number(s['tpt_predicted'], 1)} / {estimated} tokens/s"),
        ("score", ABSENT if s["method_score"] is None else scores),
        *_further(s),
        (
            "output against AR's",
            f"ROUGE-2 {format_number(s['output_rouge2'], 3)}, same tokens {format_percent(s['output_exact'])}",
        ),
        ("lossless (outputs equal to AR's)", format_lossless(s)),
        ("prompts clipped to fit", f"{s['clipped']} of {s['n_prompts']}"),
    ]


def _scored_by(s: Mapping[str, Any]) -> str:
    """Return the metric, and over how many answers it is where some have no score."""
    metric, answered = str(s["metric"]), s["n_scored"]
    return metric if answered == s["n_answers"] else f"{metric}; {answered} of {s['n_answers']} answers have a score"


def _third_arm(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where a run has Hugging Face `generate` (HF) as well; as ratios the statistics that papers divide it by."""
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
        ("HF's output against AR's", f"same tokens {format_percent(s['hf_output_exact'])}"),
        (
            "HF's copy of the weights",
            ABSENT if weights is None else f"{weights / 1e6:,.0f} MB, in a process of its own",
        ),
    ]


def _further(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The scores of the whole run but for the headline, which has a line of its own."""
    names = [name for name in s["scores"] if "/" not in name]
    return [(f"score, {name}", f"{format_number(s.get(f'ar_{name}'), 3)} AR, {format_number(s.get(f'method_{name}'), 3)} method")
            for name in names]  # fmt: skip


def _spent(s: Mapping[str, Any]) -> list[tuple[str, str]]:
    shares = ", ".join(
        f"{name} {format_percent(s[f'{name}_share'])}" for name in ("draft", "verify", "policy", "other")
    )
    rows = [("decode time", shares), ("overhead (policy)", format_percent(s["overhead"]))]
    if (s["prepare_ms"] or 0) >= NOTABLE_MS:
        even = s["break_even_tokens"]
        paid = "never at this speed" if even is None else f"after {even:,.0f} tokens"
        if s["ar_tokens_per_s"] is None or s["method_tokens_per_s"] is None:
            paid = ABSENT
        rows.append(("offline preparation", f"{s['prepare_ms'] / 1000:.1f} s, paid back {paid}"))
    return rows


NOISE_NOTE = """Intervals of speeds are over prompts and moments: one trace timed at several moments of the sweep varies
by {} (standard deviation of its speedup)."""

OVERVIEW = """Totals of the same prompts, paired with AR in the same run; in brackets the 95 % interval over prompts.
The table of each task has everything else."""

SIDE_BY_SIDE = """speedup: over AR on the same prompts in the same run [95 % interval over prompts], of
decoding and end to end, with the prefill; overhead: the method's own work, a share of the decode
time; lossless: outputs equal to AR's."""

LEGEND = """Numbers in brackets: 95 % interval over n prompts. M: emitted tokens per verification pass.
α: accepted per drafted tokens. tokens/s: decode only, total tokens over total time. speedup, decode: of these totals,
paired with AR prompt by prompt in the same run, the method's own online work included; end to end: with the prefill,
its time and its token, which is what the papers count. TPT: tokens/s by Eq. 4 of KnapSpec,
predicted from the latency profile, the realised draft length and the realised share of accepted tokens among those
whose predecessors were accepted, and as the method itself estimated it.
overhead: share of the decode time in the method's own work. searched: share of draft steps whose set a search chose,
not the one that the method begins with; –: nothing is searched. skipped attn + MLP: sublayers skipped while drafting,
mean over drafted tokens, and their share of all. score: {metric}; (n of m): n of m answers have one.
ROUGE-2 to AR: of the outputs, AR's as the reference; 1 where they are the same.
lossless: outputs equal to AR's over outputs checked.
clipped: prompts shortened to fit.
Runs stand in one table only if task, prompts, model, hardware and choice of tokens agree."""

HF_LEGEND = """
HF: Hugging Face generate on the same prompts in the same run (`baseline=hf`), decode only as well; in the row of AR,
AR's speedup over it."""
