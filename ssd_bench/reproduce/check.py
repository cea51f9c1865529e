"""Check of a record without running it: complete, consistent, and in agreement with its prompts, tokenizer and task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from ssd_bench.contract.task import Prompt
from ssd_bench.engine.lossless import tolerance
from ssd_bench.errors import ConfigError
from ssd_bench.records.consistency import CHANGED, changed_tables, faults, stored_digests
from ssd_bench.records.fault import ROUNDING, Key
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import ANSWER, SCHEMAS
from ssd_bench.records.validation import HEADER, header_schema_faults
from ssd_bench.reproduce.finding import RecordFinding
from ssd_bench.results.evidence import Steadiness
from ssd_bench.run.arms import task_text
from ssd_bench.run.plan import Plan

SAME = (
    *("method", "seed", "tie_tolerance", "domains", "task.name", "task.metric"),
    *(f"model.{name}" for name in ("name", "n_layers", "n_params", "context", "dtype", "lm_head", "toy")),
    *(f"decode.{name}" for name in ("mode", "temperature", "top_p", "top_k", "max_new_tokens", "reuse_prefix")),
)
"""Keys of run.json that follow from its config."""
OUTSIDE_FACTOR, OUTSIDE_SHARE = 10, 0.1
"""Decode time outside drafting, verification and method overhead is suspicious above this factor times the time
elsewhere (in the arm's other answers; per step, in the other arm), and above this share of it. In the committed
records, the arms differ per step by a factor of 4 at most."""
LOOP_SHARE = 0.5
"""Share that is suspicious in every answer of an arm; the committed records have 0.04 at most."""
FEW_ANSWERS = 3
"""Number of answers below which a busy machine's pauses may have hit every answer of an arm."""
CLOCKS = 0.01  # relative difference of the clocks of a GPU and of the host
SETUP_TIMES = ("load_ms", "profile_ms", "prepare_ms", "warmup_ms")
KEY_DIGITS = 10  # of the content key, at the end of run_id


def table_faults(run: Run, stored: Mapping[str, Any]) -> Iterator[RecordFinding]:
    """Yield every fault of a record that shows without its model: schema, digests, counts, contradictions, times."""
    for fault in dict.fromkeys(header_schema_faults(stored)):
        yield RecordFinding(HEADER, str(fault).removeprefix(f"{HEADER}: "))
    digests = stored_digests(stored)
    for name in sorted({*SCHEMAS} - {*digests}) if digests else ():
        yield RecordFinding(HEADER, f"it has no SHA-256 of {name}.parquet")
    yield from (RecordFinding(f"{name}.parquet", CHANGED) for name in changed_tables(run.path, stored))
    if run.header.run_id != (name := run_name(run.header, run.header.content_key)):
        yield RecordFinding(HEADER, f"run_id is {run.header.run_id}, and its parts give {name}")
    yield from (RecordFinding(table, text, key) for table, key, text in faults(stored, run.tables))
    yield from _short_run(run)
    yield from _long_loops(run)[0]


def run_name(header: RunHeader, key: str) -> str:
    """Name a run by model, method, task and the first digits of its content key."""
    return f"{header.model.name}-{header.method}-{header.task.name}-{key[:KEY_DIGITS]}"


def time_notes(run: Run) -> list[str]:
    """Return the answers with pauses between steps, if the record calls its times unreliable."""
    return [f"{finding}; the times of the record are unreliable" for finding in _long_loops(run)[1]]


def _short_run(run: Run) -> Iterator[RecordFinding]:
    header, prompts = run.header, run.prompts
    spent = prompts["prefill_ms"].sum() + prompts["decode_ms"].sum()
    spent += sum(getattr(header, name) or 0.0 for name in SETUP_TIMES)
    # a resumed run has the time since it was resumed
    if header.wall_s and not header.resumed and spent > 1e3 * header.wall_s * (1 + CLOCKS):
        yield RecordFinding(HEADER, f"wall_s is {header.wall_s:.6g}, and the parts of the run took {spent / 1e3:.6g} s")


def _long_loops(run: Run) -> tuple[list[RecordFinding], list[RecordFinding]]:
    """Return arms and answers with far more decode time than their steps: faults, and a busy machine's pauses.

    On a busy machine a process may wait between two steps, but not in every answer of an arm.
    """
    prompts = run.prompts
    parts = prompts[["draft_ms", "verify_ms", "policy_ms"]].sum(axis=1)
    outside = (prompts["decode_ms"] - parts).where(parts > 0)
    shares = outside / parts
    arms = _long_arms(run, outside, shares)
    medians = shares.groupby(prompts["arm"]).transform("median")
    answers = []
    for at in shares.index[(shares > OUTSIDE_FACTOR * medians) & (shares > OUTSIDE_SHARE)]:
        text = f"decode_ms is {1 + shares[at]:.2f} times the time of its steps; the arm's median is"
        answers.append(RecordFinding("prompts", f"{text} {1 + medians[at]:.2f}", answer_key(prompts.loc[at])))
    if not Steadiness.of(run).contamination:
        return arms + answers, []
    return (arms, answers) if (prompts["arm"].value_counts() >= FEW_ANSWERS).all() else ([], arms + answers)


def _long_arms(run: Run, outside: pd.Series[float], shares: pd.Series[float]) -> list[RecordFinding]:
    """Return the arms whose answers all have far more decode time than their steps.

    Args:
        outside: each answer's decode time outside its steps; NaN without steps.
        shares: the same over the time of the steps.
    """
    steps = run.steps.groupby(list(ANSWER)).size()
    per_step = outside / steps.reindex(pd.MultiIndex.from_frame(run.prompts[[*ANSWER]])).to_numpy()
    # the decode loop is the same in both arms: between two steps it takes about the same time
    least = pd.DataFrame({"share": shares, "step": per_step}).groupby(run.prompts["arm"]).min()
    findings = []
    for arm, (share, step) in least.iterrows():
        is_longer = step > OUTSIDE_FACTOR * least["step"].drop(arm).min()
        if share > LOOP_SHARE or (share > OUTSIDE_SHARE and is_longer):
            text = f"decode_ms of every answer of arm {arm} is at least {1 + share:.2f} times the time of its steps"
            findings.append(RecordFinding("prompts", text))
    return findings


def answer_key(row: Any) -> Key:
    """Return the key of a table's row."""
    prompt, repeat, turn, arm = (row[name] for name in ANSWER)
    return int(prompt), int(repeat), int(turn), str(arm)


def lookup(content: Mapping[str, Any], name: str) -> Any:
    """Return an entry of nested tables by its dotted name, or None."""
    value: Any = content
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def header_faults(stored: Mapping[str, Any], planned: Mapping[str, Any]) -> Iterator[RecordFinding]:
    """Yield entries of run.json that contradict its config, by the header of a run planned from it."""
    for name in SAME:
        value, expected = lookup(stored, name), lookup(planned, name)
        if name == "tie_tolerance":  # it follows from the arithmetic of the recorded run, not from that of this machine
            expected = _tolerance(stored)
        if value is not None and expected is not None and value != expected:
            yield RecordFinding(HEADER, f"{name} is {_short(value)}, and its config gives {_short(expected)}")


def _tolerance(stored: Mapping[str, Any]) -> float | None:
    names = (lookup(stored, f"model.{name}") for name in ("arithmetic.activations", "arithmetic.inputs", "dtype"))
    try:
        return tolerance(*map(str, names))
    except ConfigError:
        return None


def _short(value: object) -> str:
    return f"a list of {len(value)}" if isinstance(value, list) else str(value)


def prompt_faults(run: Run, plan: Plan) -> Iterator[RecordFinding]:
    """Yield answers whose prompt is not the task's here, by name or tokens."""
    for row in run.prompts.to_dict("records"):
        index = row["prompt_index"]
        if not 0 <= index < len(plan.prompts.items):
            yield RecordFinding("prompts", f"the task gives {len(plan.prompts.items)} prompts here", answer_key(row))
            continue
        prompt, encoded = plan.prompts.items[index], plan.prompts.encoded[index]
        expected = {"prompt_id": prompt.id, "domain": prompt.domain}
        if row["turn"] == 0:
            expected |= {"prompt_sha256": encoded.sha256, "prompt_len": len(encoded.ids)}
            expected |= {"clipped_tokens": encoded.clipped}
        for name, value in expected.items():
            if row[name] != value:
                yield RecordFinding("prompts", f"{name} is {row[name]}, and here it is {value}", answer_key(row))


def text_faults(run: Run, plan: Plan) -> Iterator[RecordFinding]:
    """Yield answers whose text, end or score does not follow from their token ids."""
    checkpoint = plan.model.checkpoint
    size = checkpoint.config.vocab_size
    for row in _known_rows(run, plan):
        key, ids = answer_key(row), [int(token) for token in row["output_ids"]]
        if not ids or not all(0 <= token < size for token in ids):
            yield RecordFinding("prompts", f"output_ids is empty, or has ids outside of [0, {size})", key)
            continue
        text = checkpoint.text(ids)
        if text != row["text"]:
            shorter = min(len(text), len(row["text"]))
            at = next((i for i in range(shorter) if text[i] != row["text"][i]), shorter)
            yield RecordFinding("prompts", f"text differs from the text of output_ids at character {at}", key)
        is_end = ids[-1] in checkpoint.eos_ids
        if is_end != (row["finish_reason"] == "eos") and row["arm"] != "hf":
            ending = f"the last token is {'an' if is_end else 'no'} end of text"
            yield RecordFinding("prompts", f"finish_reason is {row['finish_reason']}, and {ending}", key)
        limit = plan.prompts.new_tokens[key[0]]
        if row["finish_reason"] == "length" and len(ids) != limit:
            yield RecordFinding("prompts", f"finish_reason is length, after {len(ids)} of {limit} tokens", key)
        if row["arm"] != "hf":
            score = plan.task.score(_turn(plan, key), task_text(plan, key[0], key[2], text))
            if not equal_numbers(row["score"], score):
                yield RecordFinding("prompts", f"score is {row['score']}, and the task gives {score}", key)


def score_faults(run: Run, plan: Plan) -> Iterator[RecordFinding]:
    """Yield scores of run.json that do not follow from the recorded texts."""
    answers: dict[str, tuple[list[Prompt], list[str]]] = {}
    for row in _known_rows(run, plan):
        if row["arm"] != "hf":
            key, (prompts, texts) = answer_key(row), answers.setdefault(row["arm"], ([], []))
            prompts.append(_turn(plan, key))
            texts.append(task_text(plan, key[0], key[2], row["text"]))
    for arm, (prompts, texts) in answers.items():
        scores = plan.task.scores(prompts, texts)
        for name, recorded, computed in unequal_scores(run.header.scores.get(arm, {}), scores):
            yield RecordFinding(HEADER, f"score {name} of arm {arm} is {recorded}, and the answers give {computed}")


def _known_rows(run: Run, plan: Plan) -> list[dict[str, Any]]:
    """Return the rows of `prompts` with a prompt and turn of the task here."""
    turns = [len(prompt.user_texts) for prompt in plan.prompts.items]
    rows: list[dict[str, Any]] = run.prompts.to_dict("records")  # type: ignore[assignment]
    of_prompts = [row for row in rows if 0 <= row["prompt_index"] < len(turns)]
    return [row for row in of_prompts if 0 <= row["turn"] < turns[row["prompt_index"]]]


def _turn(plan: Plan, key: Key) -> Prompt:
    return plan.prompts.items[key[0]].at(key[2])


def equal_numbers(a: Any, b: Any) -> bool:
    """Return whether two numbers are equal but for the order of a sum; null equals NaN."""
    missing = [value is None or pd.isna(value) for value in (a, b)]
    return all(missing) if any(missing) else math.isclose(a, b, rel_tol=ROUNDING, abs_tol=ROUNDING)


def unequal_scores(a: Mapping[str, float], b: Mapping[str, float]) -> list[tuple[str, float | None, float | None]]:
    """Return the scores that are not equal in both tables, by name."""
    pairs = [(name, a.get(name), b.get(name)) for name in sorted({*a, *b})]
    return [(name, x, y) for name, x, y in pairs if not equal_numbers(x, y)]
