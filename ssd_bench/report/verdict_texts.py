"""Verdicts on the papers' claims as texts: for a terminal, as Markdown, and in parts for the page and notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pandas as pd

from ssd_bench import tables
from ssd_bench.papers.claims.claims import STATISTICS, Claim, claims
from ssd_bench.papers.claims.judge import (
    CANNOT_SAY,
    DECIDED,
    DEPENDS,
    EQUIVALENT,
    EVIDENCE_CLASSES,
    HOLDS,
    NOT_RUN,
    TOY,
    VERDICTS,
)
from ssd_bench.papers.printed.catalogue import version_name
from ssd_bench.papers.printed.reported import numbers
from ssd_bench.report.numbers import count_phrase
from ssd_bench.report.verdicts import MEASURED, MEASURED_HERE, PARAMS
from ssd_bench.results.models import ModelRan, model_names
from ssd_bench.results.text import ABSENT

AFTER_RUNS = "claim or rule written after the runs"
ABSENT_RECORDS = "the records are not in the folder of runs"
MISSED = 0.025
"""Probability that one end of a 95 % interval is on the wrong side."""
WIDTH, NARROW = 50, 30
READABLE = ["evidence", "paper", "claim", "model", "verdict", "effect", "times", "threshold", "data", "decided by"]
"""Columns of `readable_table`."""


def verdict_text(row: pd.Series) -> str:
    """Return the verdict; a toy model's says so first, because it is none on the paper's model."""
    return f"on the {TOY}: {row['verdict']}" if row["evidence_class"] == TOY else str(row["verdict"])


def model_text(row: pd.Series) -> str:
    """Return the models that ran, with their sizes; else ""."""
    names, params = (str(row[name]) for name in ("model", PARAMS))
    if not names:
        return ""
    sizes = params.split("; ") if params else [""] * len(names.split(", "))
    models = [
        ModelRan(name, int(count) if count else None) for name, count in zip(names.split(", "), sizes, strict=True)
    ]
    return model_names(models)


def effect_text(claim: Claim, row: pd.Series) -> str:
    """Return the effect in the claim's unit, with its interval if the statistic has prompts."""
    return _interval_text(claim, *row[["effect", "low", "high"]])


def times_text(claim: Claim, row: pd.Series) -> str:
    """Return whether an effect's times are modelled or measured; with a modelled effect, the measured one."""
    times = str(row["times"])
    if times in ("", MEASURED_HERE):
        return times
    measured = _interval_text(claim, *row[[*MEASURED]])
    return times if measured == ABSENT else f"{times}; {MEASURED_HERE}: {measured}"


def _interval_text(claim: Claim, effect: float, low: float, high: float) -> str:
    if math.isnan(effect):
        return ABSENT
    if STATISTICS[claim.statistic].is_count:
        return f"{effect:.0f} mismatch{'' if effect == 1 else 'es'}"
    sign = "+" if claim.effect == "difference" else ""
    size = abs(effect)
    form = f"{sign},.{3 if size < 0.1 else 0 if size >= 100 else 2}f"
    text = f"{effect:{form}}"
    if not math.isnan(low):
        text += f" [{low:{form}}, {high:{form}}]"
    return f"{text}×" if claim.is_ratio else text


def threshold_text(claim: Claim) -> str:
    sign = "≥" if claim.at_least is not None else "≤"
    return f"{sign} {claim.threshold:g}{'×' if claim.is_ratio else ''}"


def statistic_text(claim: Claim) -> str:
    """Return a claim's statistic in a few words."""
    meaning = STATISTICS[claim.statistic].meaning
    relation = "value" if claim.effect == "value" else f"{claim.effect} of the two sides"
    worst = ", of the worst combination" if claim.every else ""
    return f"{claim.statistic} ({meaning}), {relation}{worst}"


def evidence_text(claim: Claim, row: pd.Series) -> str:
    """Return the evidence of a verdict: prompts, combinations, run-to-run variation, and why it is "cannot say"."""
    if row["verdict"] == NOT_RUN:
        return str(row["reason"])
    parts = [
        f"n = {count_phrase(row['n'], row['sample'][:-1])}" if row["n"] else "",
        f"{row['combinations']} of {row['planned_combinations']} combinations",
    ]
    parts += [f"{row['out_of_scope']} out of scope"] if row["out_of_scope"] else []
    parts += [f"{count_phrase(row['loops'], 'prompt')} with looping answers left out"] if row["loops"] else []
    parts += [] if math.isnan(row["variation"]) else [f"run-to-run variation {100 * row['variation']:.1f} %"]
    parts += [f"scaled settings: {row['scaled']}"] if row["scaled"] else []
    parts += [AFTER_RUNS] if row["after_runs"] else []
    parts += [str(row["reason"])] if row["verdict"] in (CANNOT_SAY, DEPENDS) else []
    parts += [] if row["records"] else [ABSENT_RECORDS]
    return "; ".join(filter(None, parts))


def verdict_change(claim: Claim, row: pd.Series) -> str:
    """Return what would change a verdict."""
    if row["decided_by"]:
        return str(row["decided_by"])
    if row["verdict"] == EQUIVALENT:
        return "an interval that leaves the margin of equivalence"
    if row["verdict"] == DEPENDS:
        return "runs on a machine whose measured times agree with the modelled ones"
    if STATISTICS[claim.statistic].is_count:
        return "one mismatch" if row["verdict"] == HOLDS else "runs without a mismatch"
    above = claim.at_least is not None
    if row["verdict"] == HOLDS:
        side, end = ("below", row["low"]) if above else ("above", row["high"])
        return f"an interval that extends {side} the threshold; the present one ends at {end:.2f}"
    return (
        f"an interval that reaches {claim.threshold:g}; the present one ends at {row['high' if above else 'low']:.2f}"
    )


def paper_values(claim: Claim) -> str:
    """Return the paper's numbers for a claim: metrics with ranges."""
    values_by_metric: dict[str, list[float]] = {}
    for number in numbers():
        if any(fnmatchcase(number.id, glob) for glob in claim.theirs):
            values_by_metric.setdefault(number.metric, []).append(number.value)
    ranges = [
        f"{metric} {min(values):g}" + (f" to {max(values):g}" if len(set(values)) > 1 else "")
        for metric, values in values_by_metric.items()
    ]
    return ", ".join(ranges) or "shown or stated without a number"


def verdict_counts(frame: pd.DataFrame) -> str:
    """Count the claims by verdict: "3 hold, 2 fail, 4 cannot say"."""
    totals = frame["verdict"].value_counts()
    words = {
        HOLDS: ("holds", "hold"),
        "fails": ("fails", "fail"),
        EQUIVALENT: ("is equivalent", "are equivalent"),
        DEPENDS: ("depends on the machine", "depend on the machine"),
    }
    parts = [
        f"{totals[word]} {words.get(word, (word, word))[int(totals[word] > 1)]}"
        for word in VERDICTS
        if word in totals.index
    ]
    return ", ".join(parts)


def models_judged(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield a class of evidence, a model of it with its size and scale, and its verdicts.

    Scales are separate, as answers and searches differ in length. A class without runs has the model "".
    """
    for name in EVIDENCE_CLASSES:
        rows = frame[frame["evidence_class"] == name]
        if rows.empty:
            yield name, "", rows
        else:
            for model, of_model in rows.groupby(rows.apply(model_and_scale, axis=1), sort=False):
                yield name, str(model), of_model


def model_and_scale(row: pd.Series) -> str:
    """Return the models that ran with sizes, and the scale unless it is the paper's."""
    return model_text(row) if row["scale"] in ("", "paper") else f"{model_text(row)}, scale {row['scale']}"


def expected_errors(frame: pd.DataFrame) -> str:
    """Return a sentence on how many decided verdicts are expected to be wrong by chance."""
    counts = {claim.id for claim in claims() if STATISTICS[claim.statistic].is_count}
    judged = frame[frame["verdict"].isin(DECIDED) & ~frame["claim"].isin(counts)]
    return (
        f"{len(judged)} verdicts follow from an interval, other decided ones count mismatches. Each interval is wrong "
        f"in at most {100 * MISSED:g} % of samples, so up to {MISSED * len(judged):.1f} of them are expected to be "
        "wrong by chance; the intervals are not corrected for the number of claims."
    )


def undecided_claims(frame: pd.DataFrame) -> int:
    """Return the number of claims that no model decides or shows to depend on the machine."""
    return frame["claim"].nunique() - frame.loc[~frame["verdict"].isin((CANNOT_SAY, NOT_RUN)), "claim"].nunique()


def class_counts(frame: pd.DataFrame) -> dict[str, str]:
    """Count verdicts by class of evidence and model, the paper's model first, "not run" last."""
    counts = {
        f"{name}, {model}" if model else name: verdict_counts(rows) if model else "no runs"
        for name, model, rows in models_judged(frame)
    }
    without_runs = frame[frame["evidence_class"] == ""]
    return counts | ({NOT_RUN: f"{len(without_runs)} claims"} if len(without_runs) else {})


def readable_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts as texts, the papers' models first."""
    by_id = {claim.id: claim for claim in claims()}
    order = [*EVIDENCE_CLASSES, ""]
    rows = []
    for _, row in frame.sort_values(
        "evidence_class", key=lambda names: names.map(order.index), kind="stable"
    ).iterrows():
        claim = by_id[row["claim"]]
        rows.append(
            {
                "evidence": row["evidence_class"] or NOT_RUN,
                "paper": version_name(claim.id.partition("/")[0]),
                "claim": claim.says,
                "model": model_and_scale(row) if model_text(row) else ABSENT,
                "verdict": verdict_text(row),
                "effect": effect_text(claim, row),
                "times": times_text(claim, row) or ABSENT,
                "threshold": threshold_text(claim),
                "data": evidence_text(claim, row),
                "decided by": row["decided_by"] or ABSENT,
            }
        )
    return pd.DataFrame(rows, columns=READABLE)


def terminal_text(frame: pd.DataFrame) -> str:
    """Return the verdicts for a terminal, by class of evidence and paper."""
    parts = []
    for (evidence, paper), rows in readable_table(frame).groupby(["evidence", "paper"], sort=False):
        shown = rows.drop(columns=["evidence", "paper"])
        wrap = [40, 12, 18, None, 24, None, WIDTH, NARROW]
        parts.append(f"{evidence}: {paper}\n\n{tables.terminal(shown, wrap=wrap)}")
    toy = [f"{TOY}: {TOY_NOTE}"] if frame["toy"].any() else []
    totals = [f"{name}: {counts}" for name, counts in class_counts(frame).items()]
    return "\n\n".join([*parts, *toy, "\n".join([f"{len(frame)} claims:", *totals]), expected_errors(frame)])


def document(frame: pd.DataFrame) -> str:
    """Return the verdicts as Markdown, by class of evidence and paper."""
    readable, counts = readable_table(frame), class_counts(frame)
    totals = pd.DataFrame({"evidence": list(counts), "verdicts": list(counts.values())})
    parts = ["# Which claims hold", RULE, tables.markdown(totals), expected_errors(frame)]
    for evidence, rows in readable.groupby("evidence", sort=False):
        parts += [f"## {str(evidence).capitalize()}", *([f"A {TOY} is {TOY_NOTE}."] if evidence == TOY else [])]
        for (paper, model), claims_of_paper in rows.groupby(["paper", "model"], sort=False):
            parts += [
                f"### {paper}" + ("" if model == ABSENT else f", {model}"),
                tables.markdown(claims_of_paper.drop(columns=["evidence", "paper", "model"])),
            ]
    return "\n\n".join(parts) + "\n"


TOY_NOTE = "a model that this project trained; its verdicts say nothing about the paper's model"
RULE = """*Holds*: the whole 95 % interval of the effect reaches the threshold. *Fails*: the whole interval is on the
other side. *Equivalent*: it does not hold, and the 90 % interval lies within a margin around no effect (3 % for ratios
and speedups). *Depends on the machine*: on a real model, modelled and measured times decide differently. *Cannot say*:
none of these, or the runs cannot decide the claim: too few prompts without loops, fewer than five searches where
prompts share the layer sets of a search, an excluded run, a search that scored fewer than two layer sets or had not
ended, runs out of the claim's scope (too short, no GPU), sides timed on different machines, or an effect that was
planted by training. *Not run*: the runs that the claim needs do not exist. Each undecided claim names the runs that
would decide it.

Claims about speed are judged by times *modelled* from the recorded work, at the costs of a GPU and a model size; the
effect by the times *measured here* stands next to them. On a real model both must agree. An interval is over prompts,
or over seeds where these are the sample, and for measured times over run-to-run variation where it was measured.
Settings that the scale replaced stand in the row. Losslessness is a count: one mismatch refutes it.

Each claim has the time at which its statement and threshold were written (`claims.yaml` of each paper), and a SHA-256
that changes with them (`verdicts.csv`); the rule above was written on 27 November 2026. A verdict says if either was
written *after the runs*. The data are counted in combinations of model, task and setting with runs, out of those of the
paper's table or figure. The *evidence* is of one of three classes: the paper's model, another real model, or a toy
model, which this project trained and which says nothing about the paper's model."""
