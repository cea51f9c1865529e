"""Faults in a finished record's tables: missing, doubled or contradictory rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ssd_bench.contract.layer_set import BITS
from ssd_bench.errors import ConfigError
from ssd_bench.records.fault import ROUNDING, Fault, Key, answer_name, broken_rules, row_key
from ssd_bench.records.files import REPEATED, open_regular
from ssd_bench.records.schema import ANSWER, ARMS, BASELINES, DIGESTS, PAIR, SCHEMAS
from ssd_bench.records.work_faults import work_faults

REASONS = ("eos", "length", "context")
STOPS = ("confidence", "length", "eos", "budget", "none")
VERDICTS = ("identical", "tie", "bug")
TIMES = ("draft_ms", "verify_ms", "policy_ms")
"""Columns of `prompts` that are sums over `steps`."""
NUMBERS = (*ANSWER[:-1], "step", "context_len", "draft_len", "tree_nodes", "accepted_len", "emitted", *TIMES)
"""Compared columns of `steps`."""
CHANGED = f"its SHA-256 is not that under {DIGESTS} in run.json"


def check_tables(path: Path, header: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> None:
    """Refuse a record that was changed after its run, or contradicts itself.

    Raises:
        ConfigError: the first fault, with its file and prompt.
    """
    changed = changed_tables(path, header)
    if len(stored_digests(header)) == len(SCHEMAS) and not changed:  # comparing rows takes half as long as reading them
        return
    for table, key, text in faults(header, tables):
        _refuse(path / f"{table}.parquet", text if key is None else f"{answer_name(key)}: {text}")
    if changed:
        _refuse(path / f"{changed[0]}.parquet", CHANGED)


def stored_digests(header: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each table's file from run.json."""
    return {name: digest for name, digest in (header.get(DIGESTS) or {}).items() if name in SCHEMAS}


def changed_tables(path: Path, header: Mapping[str, Any]) -> list[str]:
    """Return the tables whose files changed since the run."""
    return [name for name, digest in stored_digests(header).items() if _digest(path / f"{name}.parquet") != digest]


def _refuse(file: Path, text: str) -> None:
    raise ConfigError("record", str(file), f"a table as the run wrote it ({text}); {REPEATED}")


def _digest(file: Path) -> str:
    with open_regular(file) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()  # type: ignore[arg-type]  # typeshed asks for more


def faults(header: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> Iterator[Fault]:
    """Yield every fault of a record, except its files' digests."""
    prompts, steps, layer_sets, work = (tables[name] for name in SCHEMAS)
    columns = {name: prompts[name].tolist() for name in prompts.columns if name != "output_ids"}
    columns["output_ids"] = list(prompts["output_ids"])
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    keys: list[Key] = [tuple(row[name] for name in ANSWER) for row in rows]
    yield from _missing_rows(header, keys)
    for key, row in zip(keys, rows, strict=True):
        yield from (("prompts", key, text) for text in _row_faults(header, row))
    yield from _disagreeing_rows(header, keys, rows)
    yield from _step_faults(dict(zip(keys, rows, strict=True)), steps)
    yield from _set_faults(header, steps, layer_sets)
    yield from work_faults(header, prompts, steps, layer_sets, work)


def _missing_rows(header: Mapping[str, Any], keys: Sequence[Key]) -> Iterator[Fault]:
    """Yield doubled or missing answers of `prompts`: every prompt in every repeat, turns without gaps, all arms."""
    present = set(keys)
    if len(present) < len(keys):
        yield "prompts", next(key for i, key in enumerate(keys) if key in keys[:i]), "it has two rows"
    config = header.get("config") or {}
    arms = set(BASELINES.get(str(config.get("baseline")), ())) or {key[3] for key in keys}
    count = len(header.get("domains") or ()) or 1 + max((key[0] for key in keys), default=-1)
    last = max((key[1] for key in keys), default=0)
    repeats = min(int(config.get("repeats") or 1 + last), last + 2)  # the first missing one is enough
    if "domains" not in header:  # a unit of an unfinished record
        units = {key[:2] for key in keys}
    else:
        units = {(prompt, repeat) for prompt in range(count) for repeat in range(repeats)}
    for key in sorted(present):
        if key[:2] not in units or key[3] not in arms:
            text = f"run.json has {count} prompts in {repeats} repeats, with arms {', '.join(sorted(arms))}"
            yield "prompts", key, text
    turns = dict.fromkeys(units, -1)
    for prompt, repeat, turn, _ in present:
        if (prompt, repeat) in turns:
            turns[prompt, repeat] = max(turns[prompt, repeat], turn)
    for unit, last in sorted(turns.items()):
        for arm in sorted(arms):
            missing = [turn for turn in range(max(last, 0) + 1) if (*unit, turn, arm) not in present]
            if missing:
                more = f" ({len(missing)} turns in all)" if len(missing) > 1 else ""
                yield "prompts", (*unit, missing[0], arm), f"its row is missing{more}"


def _row_faults(header: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[str]:
    domains, most = header.get("domains"), (header.get("decode") or {}).get("max_new_tokens")
    times = {name: row[name] for name in ("prefill_ms", "decode_ms", *TIMES)}
    if (length := len(row["output_ids"])) != row["new_tokens"]:
        yield f"new_tokens is {row['new_tokens']}, and output_ids has {length}"
    if row["new_tokens"] < 1 or (most is not None and row["new_tokens"] > most):
        yield f"new_tokens is {row['new_tokens']}, and the run's limit {most}"
    if length and min(row["output_ids"]) < 0:
        yield "output_ids has a negative id"
    if domains and 0 <= (index := row["prompt_index"]) < len(domains) and row["domain"] != domains[index]:
        yield f"domain is {row['domain']}, and in run.json {domains[index]}"
    if row["arm"] not in ARMS:
        yield f"arm is {row['arm']}, not one of {', '.join(ARMS)}"
    if row["finish_reason"] not in REASONS:
        yield f"finish_reason is {row['finish_reason']}, not one of {', '.join(REASONS)}"
    if bad := [name for name, value in times.items() if not (math.isfinite(value) and value >= 0)]:
        yield f"{bad[0]} is {times[bad[0]]}"
    elif not row["decode_ms"] >= (parts := sum(row[name] for name in TIMES)) * (1 - ROUNDING):
        yield f"decode_ms is {row['decode_ms']:.6g}, and drafting, verification and method overhead take {parts:.6g}"
    if row["prompt_len"] < 1 or row["clipped_tokens"] < 0 or row["peak_bytes"] < 0:
        yield "prompt_len, clipped_tokens or peak_bytes is negative"
    if len(row["prompt_sha256"]) != 64:
        yield "prompt_sha256 is no SHA-256"
    if row["score"] == row["score"] and row["score"] is not None and not 0 <= row["score"] <= 1:
        yield f"score is {row['score']}, not in [0, 1]"


def _disagreeing_rows(
    header: Mapping[str, Any], keys: Sequence[Key], rows: Sequence[Mapping[str, Any]]
) -> Iterator[Fault]:
    """Yield contradictory rows of one prompt: its name, its tokens, the order of arms, the audit."""
    prompts: dict[object, tuple[object, ...]] = {}
    orders: dict[object, list[int]] = {}
    for key, row in zip(keys, rows, strict=True):
        name = row["prompt_id"], row["domain"]
        tokens = row["prompt_sha256"], row["prompt_len"], row["clipped_tokens"]
        if prompts.setdefault(key[0], name) != name:
            yield "prompts", key, "its prompt_id or domain differs from those of another row of this prompt"
        if prompts.setdefault(key[:3] if key[2] else key[:1], tokens) != tokens:
            yield "prompts", key, "its prompt_sha256, prompt_len or clipped_tokens differs from another arm's"
        orders.setdefault(key[:3], []).append(row["order"])
    for key in keys:
        if sorted(orders[key[:3]]) != list(range(len(orders[key[:3]]))):
            yield "prompts", key, "order does not count the arms"
    answers = {key: row["output_ids"] for key, row in zip(keys, rows, strict=True)}
    for key, row in zip(keys, rows, strict=True):
        if (text := _audit_fault(header, row, answers.get((*key[:3], "ar")))) is not None:
            yield "prompts", key, text


def _audit_fault(header: Mapping[str, Any], row: Mapping[str, Any], baseline: NDArray[np.int32] | None) -> str | None:
    """Check the stored comparison of an output with AR's against both outputs; return the fault, if any."""
    verdict, index = row["lossless"], row["divergence_index"]
    if verdict is None or verdict != verdict:
        if row["arm"] == "method" and baseline is not None and (header.get("decode") or {}).get("mode") == "greedy":
            return "lossless is null, expected the comparison with AR's output: decoding was greedy"
        return None if pd.isna(index) and pd.isna(row["divergence_gap"]) else "divergence_index without lossless"
    if verdict not in VERDICTS or row["arm"] != "method" or baseline is None:
        return f"lossless is {verdict}, expected one of {', '.join(VERDICTS)} for the method, compared with AR's output"
    output = row["output_ids"]
    common = min(len(output), len(baseline))
    differing = np.flatnonzero(np.asarray(output[:common]) != np.asarray(baseline[:common]))
    first = int(differing[0]) if len(differing) else None if len(output) == len(baseline) else common
    if (None if pd.isna(index) else int(index)) != first or (first is None) != (verdict == "identical"):
        where = "nowhere" if first is None else f"at {first}"
        return f"lossless is {verdict}, divergence_index {index}, and the output differs from AR's {where}"
    gap, tolerance = row["divergence_gap"], header.get("tie_tolerance")
    if pd.isna(gap):  # no gap where one output ends, nor where logits are NaN
        return "lossless is tie, without a divergence_gap" if verdict == "tie" else None
    if first in (None, common) or (tolerance is not None and (verdict == "tie") != (gap <= tolerance)):
        return f"lossless is {verdict}, divergence_gap {gap}, and the run's tolerance {tolerance}"
    return None


def _set_faults(header: Mapping[str, Any], steps: pd.DataFrame, layer_sets: pd.DataFrame) -> Iterator[Fault]:
    """Yield impossible layer sets and windows, and ids in only one of the two tables."""
    ids, used = layer_sets["layer_set_id"].tolist(), steps["layer_set_id"]
    n_layers = (header.get("model") or {}).get("n_layers")
    numbered = [*zip(ids, *(layer_sets[name] for name in ("n_layers", "skip_attn", "skip_mlp")))]
    for i, count, *skipped in numbered:
        for blocks in skipped:
            if list(blocks) != sorted(set(blocks)) or any(not 0 <= block < count for block in blocks):
                yield "layer_sets", None, f"layer set {i} skips {[*map(int, blocks)]} of {count} blocks"
        if n_layers not in (None, count):
            yield "layer_sets", None, f"layer set {i} has {count} blocks, and the model {n_layers}"
    for (i, count, attn, mlp), *rounded in zip(numbered, *(layer_sets[f"int{bits}"] for bits in BITS)):
        left_out = {*(2 * block for block in attn), *(2 * block + 1 for block in mlp)}
        for bits, of in zip(BITS, rounded):
            sublayers = [] if of is None else [*map(int, of)]
            outside = any(not 0 <= sublayer <= 2 * count or sublayer in left_out for sublayer in sublayers)
            if outside or sublayers != sorted(set(sublayers)):
                text = f"layer set {i} reads {bits}-bit weights in {sublayers} of {2 * count} sublayers"
                yield "layer_sets", None, text
            left_out.update(sublayers)
    for i, sinks, recent in zip(ids, layer_sets["sinks"], layer_sets["recent"]):
        if pd.isna(sinks) != pd.isna(recent) or not (pd.isna(sinks) or (sinks >= 0 and recent >= 1)):
            yield "layer_sets", None, f"layer set {i} reads {sinks} sinks and {recent} recent positions"
    if ids != list(range(len(ids))):
        yield "layer_sets", None, "layer_set_id does not count from 0"
    drafted = np.unique(used.dropna().to_numpy(np.int64))
    if len(drafted) and not (drafted[0] >= 0 and drafted[-1] < len(ids)):
        at = used.isin([i for i in drafted if not 0 <= i < len(ids)]).to_numpy().argmax()
        yield "steps", row_key(steps, int(at)), f"layer_set_id is {used.iloc[at]}, and layer_sets has {len(ids)} rows"
    elif len(drafted) != len(ids):
        yield "layer_sets", None, f"{len(ids)} sets, of which {len(drafted)} drafted"


def _step_faults(answers: Mapping[Key, Mapping[str, Any]], steps: pd.DataFrame) -> Iterator[Fault]:
    """Yield contradictory rows of `steps`, and answers that are not the sum of their steps."""
    columns = {name: steps[name].to_numpy() for name in NUMBERS}
    for arm in PAIR:
        columns[arm] = (steps["arm"] == arm).to_numpy(bool)  # ten times as fast as comparing Python strings
    changed = np.zeros(max(len(steps) - 1, 0), dtype=bool)
    for name in (*ANSWER[:-1], *PAIR):
        changed |= columns[name][1:] != columns[name][:-1]
    starts = np.flatnonzero(np.concatenate([[True], changed])) if len(steps) else np.zeros(0, dtype=np.int64)
    lengths = np.diff([*starts, len(steps)])
    yield from _odd_steps(columns, starts, lengths, steps)
    keys: list[Key] = list(zip(*(steps[name].iloc[starts].tolist() for name in ANSWER), strict=True))
    sums = {name: np.add.reduceat(columns[name], starts) if len(steps) else () for name in ("emitted", *TIMES)}
    at = {key: i for i, key in enumerate(keys)}
    if len(at) < len(keys) or not at.keys() <= answers.keys():
        key = next(key for i, key in enumerate(keys) if key not in answers or key in keys[:i])
        yield "steps", key, "its steps are not in one place" if key in answers else "prompts has no such row"
        return
    for key, row in answers.items():
        if key[3] == "hf":
            if key in at:
                yield "steps", key, "this arm has no steps"
            continue
        i = at.get(key)
        emitted, *times = (0 if i is None else sums[name][i] for name in sums)
        if emitted != row["new_tokens"] - 1:
            text = f"its steps emitted {emitted} tokens after the first, and new_tokens is {row['new_tokens']}"
            yield "steps", key, text
        elif i is not None and columns["context_len"][starts[i]] != row["prompt_len"]:
            yield "steps", key, f"its first context_len is not prompt_len, {row['prompt_len']}"
        for name, time in zip(TIMES, times, strict=True):
            if not math.isclose(time, row[name], rel_tol=ROUNDING, abs_tol=ROUNDING):
                yield "steps", key, f"{name} of its steps add up to {time:.6g}, and in prompts it is {row[name]:.6g}"


def _odd_steps(
    columns: Mapping[str, NDArray[Any]], starts: NDArray[np.int64], lengths: NDArray[np.int64], steps: pd.DataFrame
) -> Iterator[Fault]:
    """Yield the first row of `steps` that breaks each rule, with the number of such rows."""
    if not len(steps):
        return
    position = np.arange(len(steps)) - np.repeat(starts, lengths)
    before = np.cumsum(columns["emitted"]) - columns["emitted"]
    context = np.repeat(columns["context_len"][starts] - before[starts], lengths) + before
    last = np.zeros(len(steps), dtype=bool)
    last[starts + lengths - 1] = True
    accepted, emitted, drafted = (columns[name] for name in ("accepted_len", "emitted", "draft_len"))
    plain = columns["ar"]
    times = np.stack([columns[name] for name in TIMES])
    rules = {
        "arm is neither ar nor method": ~(plain | columns["method"]),
        "step does not count from 1": columns["step"] != position + 1,
        "context_len is not what the steps before it emitted": columns["context_len"] != context,
        "accepted_len is not in [0, draft_len]": (accepted < 0) | (accepted > drafted),
        "emitted is not accepted_len + 1": (emitted > accepted + 1) | (emitted < 1) | (~last & (emitted <= accepted)),
        "tree_nodes is below draft_len + 1": columns["tree_nodes"] < drafted + 1,
        "plain decoding drafts nothing": plain & ((drafted != 0) | steps["layer_set_id"].notna().to_numpy()),
        f"stop_reason is not one of {', '.join(STOPS)}": ~steps["stop_reason"].isin(STOPS).to_numpy(bool),
        "a time is negative or no number": ~((times >= 0) & np.isfinite(times)).all(axis=0),
    }
    yield from broken_rules("steps", steps, rules)
