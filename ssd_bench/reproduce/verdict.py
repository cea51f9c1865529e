"""Verdicts on the parts of a record, by its second run on the same prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pandas as pd

from ssd_bench.contract.layer_set import BITS
from ssd_bench.records.fault import Key
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import Run, find_runs, load_run, read_each
from ssd_bench.records.schema import ANSWER, ROUNDED
from ssd_bench.reproduce.again import Deviations
from ssd_bench.reproduce.check import answer_key, equal_numbers, unequal_scores
from ssd_bench.reproduce.finding import DIFFERENT, OPEN, REPRODUCED, PartVerdict, RecordFinding
from ssd_bench.results.digest import UNCOMPUTABLE
from ssd_bench.results.evidence import RunTiming, Steadiness, run_to_run_variation
from ssd_bench.results.modelled import reference_run
from ssd_bench.results.prompt_table import PromptTable, of_steps
from ssd_bench.results.rows import arm_rows
from ssd_bench.results.text import format_number

OUTPUTS, STEPS, ACCEPTANCE = "outputs", "layer sets and steps", "M and α"
MODELLED, SPEEDUP, SCORE = "modelled time", "measured speedup", "score"
COUNTS = ("context_len", "draft_len", "tree_nodes", "accepted_len", "emitted", "stop_reason", "searched")
ESTIMATES = ("est_alpha", "est_draft_len", "est_tokens_per_s")
ESTIMATE_ROUNDING = 1e-3
"""Relative difference that rounding explains between a method's estimates, computed from logits and states."""
CALLS = ("step", "part", "calls", "rows", "attentions", "mlps", "heads", "launches", "context", *ROUNDED)
"""Columns of `work` that time calls on a reference machine."""
MOST_REPEATED = 20  # further runs of the same method, task and machine that are read for run-to-run variation


def first_prompts(run: Run, count: int) -> Run:
    """Return the part of a run that a second run of its first prompts repeats."""
    if count >= 1 + max(run.prompts["prompt_index"], default=-1):
        return run
    prompts, steps, work = (
        frame[(frame["prompt_index"] < count) & (frame["repeat"] == 0)] for frame in (run.prompts, run.steps, run.work)
    )
    return replace(run, prompts=prompts, steps=steps, work=work)


def verdicts(recorded: Run, again: Run, deviations: Deviations, is_sample: bool) -> list[PartVerdict]:
    """Return the verdict on every part that was run again; a sample's scores over all answers cannot be compared."""
    parts: dict[str, Callable[[], PartVerdict]] = {
        OUTPUTS: lambda: _outputs(recorded, again, deviations),
        STEPS: lambda: _steps(recorded, again),
        ACCEPTANCE: lambda: _acceptance(recorded, again),
        MODELLED: lambda: _modelled(recorded, again),
        SPEEDUP: lambda: _speedup(recorded, again, is_sample),
        SCORE: lambda: _score(recorded, again, is_sample),
    }
    results = []
    for name, compute in parts.items():
        try:
            results.append(compute())
        except UNCOMPUTABLE as error:
            # a damaged record may have values with which no number can be computed: that is an answer, too
            finding = RecordFinding(name, f"it cannot be computed from the record ({type(error).__name__}: {error})")
            results.append(PartVerdict(name, DIFFERENT, findings=(finding,)))
    return results


def _answers(run: Run) -> dict[Key, Any]:
    return {answer_key(row): row for row in run.prompts.to_dict("records")}


def _both(part: str, a: Mapping[Key, Any], b: Mapping[Key, Any]) -> tuple[list[Key], list[RecordFinding]]:
    """Return the answers of both runs, and a finding for each of only one."""
    missing = [RecordFinding(part, "the record lacks this answer", key) for key in sorted(b.keys() - a.keys())]
    missing += [RecordFinding(part, "the second run lacks this answer", key) for key in sorted(a.keys() - b.keys())]
    return sorted(a.keys() & b.keys()), missing


def _outputs(recorded: Run, again: Run, deviations: Deviations) -> PartVerdict:
    first, second = _answers(recorded), _answers(again)
    keys, findings = _both(OUTPUTS, first, second)
    limit = max(recorded.header.tie_tolerance or 0.0, again.header.tie_tolerance or 0.0)
    missing, near, different = len(findings), 0, 0
    for key in keys:
        text, is_near = _output_difference(first[key], second[key], key, deviations, limit)
        if text:
            near, different = near + is_near, different + (not is_near)
            findings.append(RecordFinding(OUTPUTS, text, key))
    counts = f"{len(keys) - near - different} equal, {near} near-ties, {missing + different} mismatches"
    return PartVerdict.judged(OUTPUTS, findings, f"{len(first)} answers", counts)


def _output_difference(
    a: Mapping[str, Any], b: Mapping[str, Any], key: Key, deviations: Deviations, limit: float
) -> tuple[str, bool]:
    """Return how rows of `prompts` differ ("": equal), and whether it is a near-tie within `limit`."""
    ids, new_ids = ([int(token) for token in row["output_ids"]] for row in (a, b))
    if ids != new_ids:
        common = min(len(ids), len(new_ids))
        at = next((i for i in range(common) if ids[i] != new_ids[i]), common)
        if at == common:
            return f"{len(ids)} tokens recorded, {len(new_ids)} again, equal until the shorter ends: mismatch", False
        deficit = deviations.deficit(key, new_ids, at, (ids[at], new_ids[at]))
        kind = "near-tie" if deficit <= limit else "mismatch"
        text = f"token {at} is {ids[at]} recorded, {new_ids[at]} again: {kind}, {deficit:.3g} below the best logit"
        return text, kind == "near-tie"
    for name in ("text", "finish_reason", "lossless", "divergence_index", "prompt_id", "order"):
        if not _same(a[name], b[name]):
            return f"{name} is {_brief(a[name])} recorded, {_brief(b[name])} again: mismatch", False
    gaps = [row["divergence_gap"] for row in (a, b)]
    if not any(map(pd.isna, gaps)) and abs(gaps[0] - gaps[1]) > limit:
        return f"divergence_gap is {gaps[0]:.4g} recorded, {gaps[1]:.4g} again", False
    return "", False


def _same(a: Any, b: Any) -> bool:
    return bool(pd.isna(a) and pd.isna(b)) or (not pd.isna(a) and not pd.isna(b) and bool(a == b))


def _brief(value: Any) -> str:
    return f"a text of {len(value)}" if isinstance(value, str) and len(value) >= 30 else str(value)


def _rows(frame: pd.DataFrame, columns: Sequence[str]) -> dict[Key, list[dict[str, Any]]]:
    """Return each answer's rows, in order, with None for null."""
    part = frame[[*ANSWER, *columns]].astype(object)
    rows: dict[Key, list[dict[str, Any]]] = {}
    for row in part.where(part.notna(), None).to_dict("records"):
        rows.setdefault(answer_key(row), []).append({str(name): row[name] for name in columns})
    return rows


def _set_texts(run: Run) -> dict[int, str]:
    texts = {}
    for set_id in map(int, run.layer_sets["layer_set_id"]):
        layer_set = run.layer_set(set_id)
        attn, mlp = (", ".join(map(str, blocks)) or "none" for blocks in (layer_set.skip_attn, layer_set.skip_mlp))
        rounded = "".join(f"; in {bits} bits: {of}" for bits in BITS if (of := layer_set.sublayers_in(bits)))
        texts[set_id] = f"{layer_set.text}; attentions {attn}, MLPs {mlp}{rounded}"
    return texts


def _steps(recorded: Run, again: Run) -> PartVerdict:
    columns = ("step", "layer_set_id", *COUNTS, *ESTIMATES)
    first, second = (_rows(run.steps, columns) for run in (recorded, again))
    texts = _set_texts(recorded), _set_texts(again)
    keys, findings = _both(STEPS, first, second)
    for key in keys:
        if text := _step_difference(first[key], second[key], texts):
            findings.append(RecordFinding(STEPS, text, key))
    counts = [f"{len(run.steps)} steps" for run in (recorded, again)]
    used = [run.steps["layer_set_id"].nunique() for run in (recorded, again)]
    return PartVerdict.judged(STEPS, findings, *(f"{count}, {sets} sets" for count, sets in zip(counts, used)))


def _step_difference(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], texts: tuple[dict[int, str], dict[int, str]]
) -> str:
    for steps in zip(a, b):
        ids = [step["layer_set_id"] for step in steps]
        sets = [None if i is None else of_run.get(int(i), "unknown") for i, of_run in zip(ids, texts)]
        if sets[0] != sets[1]:
            return f"step {steps[0]['step']}: the layer set {sets[0]} recorded, {sets[1]} again"
        for name in (*COUNTS, *ESTIMATES):
            recorded, again = (step[name] for step in steps)
            is_rounding = name in ESTIMATES and None not in (recorded, again)
            if not (math.isclose(recorded, again, rel_tol=ESTIMATE_ROUNDING) if is_rounding else recorded == again):
                return f"step {steps[0]['step']}: {name} is {recorded} recorded, {again} again"
    return "" if len(a) == len(b) else f"{len(a)} steps recorded, {len(b)} again"


def _acceptance(recorded: Run, again: Run) -> PartVerdict:
    """Compare the method's M and α to the last digit."""
    steps = [arm_rows(run.steps, "method") for run in (recorded, again)]
    numbers = [(of_steps("M", part), of_steps("alpha", part)) for part in steps]
    pairs = [(name, a, b) for name, a, b in zip(("M", "α"), *numbers) if a != b]
    findings = [RecordFinding(ACCEPTANCE, f"{name} is {a} recorded, {b} again") for name, a, b in pairs]
    return PartVerdict.judged(ACCEPTANCE, findings, *(f"{format_number(m)}, {format_number(a, 3)}" for m, a in numbers))


def _modelled(recorded: Run, again: Run) -> PartVerdict:
    """Compare every answer's counted work, and its modelled time to the last digit."""
    first, second = (_rows(run.work, CALLS) for run in (recorded, again))
    keys, findings = _both(MODELLED, first, second)
    for key in keys:
        if (text := _work_difference(first[key], second[key])) is not None:
            findings.append(RecordFinding(MODELLED, text, key))
    modelled = [reference_run(run).prompts for run in (recorded, again)]
    times = [{answer_key(row): row["decode_ms"] for row in frame.to_dict("records")} for frame in modelled]
    named = {finding.key for finding in findings}
    findings += [
        RecordFinding(MODELLED, f"{times[0][key]!r} ms recorded, {times[1][key]!r} again", key)
        for key in sorted(times[0].keys() & times[1].keys())
        if times[0][key] != times[1][key] and key not in named
    ]
    speedups = [PromptTable(frame).value("speedup") for frame in modelled]
    texts = ["" if value is None else f"speedup {format_number(value, 4)}" for value in speedups]
    return PartVerdict.judged(MODELLED, findings, *texts)


def _work_difference(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> str | None:
    for row, new_row in zip(a, b):
        for name in CALLS:
            if row[name] != new_row[name]:
                return f"step {row['step']}, {row['part']}: {name} is {row[name]} recorded, {new_row[name]} again"
    return None if len(a) == len(b) else f"{len(a)} kinds of calls recorded, {len(b)} again"


def _speedup(recorded: Run, again: Run, is_sample: bool) -> PartVerdict:
    """Compare the measured speedup with run-to-run variation, if the machine is the same and was idle."""
    values = [PromptTable(run.prompts).value("speedup") for run in (recorded, again)]
    verdict, reason = OPEN, "no prompt was decoded by both arms"
    if None not in values:
        verdict, reason = _speed_verdict(recorded, again, is_sample)
    findings = [RecordFinding(SPEEDUP, reason)] if verdict == DIFFERENT else []
    first, second = map(format_number, values)
    return PartVerdict(SPEEDUP, verdict, first, second, "" if findings else reason, findings)


def _speed_verdict(recorded: Run, again: Run, is_sample: bool) -> tuple[str, str]:
    first, second = recorded.header.hardware, again.header.hardware
    if differing := [name for name in first if first[name] != second[name]]:
        return OPEN, f"other hardware: {', '.join(differing)}"
    for run, name in ((recorded, "record"), (again, "second run")):
        if reasons := Steadiness.of(run).contamination:
            return OPEN, f"times of the {name} are unreliable: {reasons}"
    if is_sample:
        return OPEN, "run-to-run variation is known for whole runs, not for a sample"
    timings = [RunTiming.of(run) for run in (recorded, *_repeated(recorded))]
    for variation in run_to_run_variation(timings):
        ratio = variation.speed_ratio(timings[0], RunTiming.of(again))
        if ratio is None:
            return REPRODUCED, "within run-to-run variation of repeated runs"
        return DIFFERENT, f"the speedups differ by a factor of {ratio:.3f}, more than those of repeated runs"
    return OPEN, "run-to-run variation is unknown: no repeated runs next to the record"


def _repeated(run: Run) -> Iterator[Run]:
    """Yield further runs of the method and task on this machine, next to the record."""
    read, compared = 0, attrgetter("method", "task", "model.name", "hardware")
    for path, header in read_each(find_runs(run.path.parent), lambda path: (path, RunHeader.read(path))):
        if compared(header) == compared(run.header) and path.name != run.path.name and read < MOST_REPEATED:
            read += 1
            yield from read_each([path], load_run)


def _score(recorded: Run, again: Run, is_sample: bool) -> PartVerdict:
    """Compare the score of every answer, and those over all."""
    first, second = _answers(recorded), _answers(again)
    keys, findings = _both(SCORE, first, second)
    findings += [
        RecordFinding(SCORE, f"score is {first[key]['score']} recorded, {second[key]['score']} again", key)
        for key in keys
        if not equal_numbers(first[key]["score"], second[key]["score"])
    ]
    scores = [run.header.scores for run in (recorded, again)]
    for arm in sorted({*scores[0], *scores[1]}) if not is_sample else ():
        for name, a, b in unequal_scores(*(of_run.get(arm, {}) for of_run in scores)):
            findings.append(RecordFinding(SCORE, f"{name} of arm {arm} is {a} recorded, {b} again"))
    means = [run.prompts.loc[run.prompts["arm"] == "method", "score"].mean() for run in (recorded, again)]
    return PartVerdict.judged(SCORE, findings, *(format_number(mean, 3) for mean in means))
