"""Columns of a record, each with its type and one line of description: raw values of every step and prompt.

The runner fills the row classes, from which the Arrow schemas are derived. Below them: conversion of the rows of a unit
to JSON, and of units to tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.errors import ConfigError

SCHEMA_VERSION = 1
"""Raised whenever a column or a key of run.json changes its meaning."""

BASELINES = {"none": ("method",), "paired": ("ar", "method"), "hf": ("ar", "hf", "method")}
"""Values of the option `baseline`, and the arms of a unit with each.

"ar" is autoregressive decoding in this engine, "method" the method under test. "hf" is Hugging Face `generate` on a
copy of the weights in its own process, outside the memory and times of the other arms. It serves for its speed alone:
it has no steps, score or audit, and other rounding may give other tokens. Under `hf`, run.json has the model's `class`
and `attention`, the `weight_bytes`, and `load_ms`, the time to load the weights, which no other time includes.
"""

ARMS = BASELINES["hf"]
ANSWER = ("prompt_index", "repeat", "turn", "arm")
"""Key of an answer in both tables."""
PAIR = ("ar", "method")
DIGESTS = "tables"
"""Key of run.json: SHA-256 of each table's file."""

Unit = tuple[int, int]
"""(prompt_index, repeat): finished as a whole or not at all; a conversation with all its turns."""

_INT, _LONG, _REAL, _TEXT = pa.int32(), pa.int64(), pa.float64(), pa.string()
_INTS, _FLAG = pa.list_(pa.int32()), pa.bool_()


def _col(kind: pa.DataType, text: str) -> Any:
    return field(metadata={"kind": kind, "text": text})


def _nullable(kind: pa.DataType, text: str) -> Any:
    return field(default=None, metadata={"kind": kind, "text": text, "nullable": True})


@dataclass(kw_only=True, slots=True)
class PromptRow:
    """One row of `prompts`: one prompt in one repeat, decoded by one arm."""

    prompt_index: int = _col(_INT, "position in the stream of prompts, from 0")
    prompt_id: str = _col(_TEXT, "id within the task, stable over runs")
    domain: str = _col(_TEXT, "label for per-domain methods and tables")
    repeat: int = _col(_INT, "repetition of the same prompt, from 0")
    turn: int = _col(_INT, "answer of a conversation, from 0; its prompt contains AR's earlier answers")
    arm: str = _col(_TEXT, '"ar": the paired baseline; "method": the method under test; "hf": Hugging Face generate')
    order: int = _col(_INT, "0: this arm ran first on its prompt; 1: second; 2: third")
    prompt_sha256: str = _col(_TEXT, "sha256 of the prompt's token ids; runs are comparable only where it agrees")
    prompt_len: int = _col(_INT, "tokens in the prompt")
    clipped_tokens: int = _col(_INT, "tokens cut from the prompt to fit the context (0: whole)")
    new_tokens: int = _col(_INT, "tokens emitted, the prefill's own token and a final EOS included")
    prefill_ms: float = _col(
        _REAL, "milliseconds of the prefill until its token is chosen; of hf everything until then"
    )
    decode_ms: float = _col(_REAL, "milliseconds of the decode loop, everything included")
    draft_ms: float = _col(_REAL, "milliseconds of drafting, sum over steps")
    verify_ms: float = _col(_REAL, "milliseconds of verification, sum over steps")
    policy_ms: float = _col(_REAL, "milliseconds of method overhead (search, DP, lookup), sum over steps")
    peak_bytes: int = _col(_LONG, "peak memory in bytes of the arm's process (ar and method share one) until then")
    finish_reason: str = _col(_TEXT, '"eos", "length" (max_new_tokens) or "context" (the window is full)')
    output_ids: Sequence[int] = _col(_INTS, "emitted token ids")
    text: str = _col(_TEXT, "the output as text")
    score: float | None = _nullable(_REAL, "task score in [0, 1]; null for hf and for tasks without a score")
    divergence_index: int | None = _nullable(_INT, "first position where output_ids differ from the baseline's")
    divergence_gap: float | None = _nullable(_REAL, "the baseline's top-2 logit gap at that position")
    lossless: str | None = _nullable(
        _TEXT, '"identical", "tie" (near-tie) or "bug" (mismatch); null without baseline or when sampling'
    )


@dataclass(kw_only=True, slots=True)
class StepRow:
    """One row of `steps`: one decode step, that is one target verification pass (the prefill is no row).

    In the table `layer_set` is the integer column `layer_set_id` (first appearance in stream order).
    """

    prompt_index: int = _col(_INT, "as in prompts")
    repeat: int = _col(_INT, "as in prompts")
    turn: int = _col(_INT, "as in prompts")
    arm: str = _col(_TEXT, "as in prompts")
    step: int = _col(_INT, "1-based index of the step; the prefill is step 0 and has no row")
    context_len: int = _col(_INT, "committed cache positions before the step")
    layer_set: LayerSet | None = field(
        default=None,
        metadata={"kind": _INT, "text": "row of layer_sets that drafted; null: no layers drafted", "nullable": True},
    )
    draft_len: int = _col(_INT, "k, drafted length (depth, not nodes)")
    tree_nodes: int = _col(_INT, "nodes verified, the root included")
    accepted_len: int = _col(_INT, "m, accepted drafted tokens, the bonus token excluded")
    emitted: int = _col(_INT, "tokens appended to the output, at most m + 1 (cut at EOS and at the length limit)")
    stop_reason: str = _col(_TEXT, 'why drafting stopped: "confidence", "length", "eos", "budget" or "none"')
    draft_ms: float = _col(_REAL, "milliseconds of drafting")
    verify_ms: float = _col(_REAL, "milliseconds of verification")
    policy_ms: float = _col(_REAL, "milliseconds of method overhead: propose and observe")
    searched: bool | None = _nullable(_FLAG, "whether a search chose the set that drafted; null: no search")
    est_alpha: float | None = _nullable(_REAL, "the method's estimate of alpha at a search event after this step")
    est_draft_len: int | None = _nullable(_INT, "draft length of that estimate")
    est_tokens_per_s: float | None = _nullable(_REAL, "the method's estimate of tokens per second (TPT)")


@dataclass(kw_only=True, slots=True)
class WorkRow:
    """One row of `work`: equal calls of the model in one part of a step."""

    prompt_index: int = _col(_INT, "as in prompts")
    repeat: int = _col(_INT, "as in prompts")
    turn: int = _col(_INT, "as in prompts")
    arm: str = _col(_TEXT, "as in prompts")
    step: int = _col(_INT, "as in steps; 0: the prefill")
    part: str = _col(_TEXT, '"prefill", "draft", "verify" or "overhead" (the calls of the method itself)')
    calls: int = _col(_INT, "number of equal calls; without sublayers and heads they compare streams (cosines)")
    rows: int = _col(_INT, "nodes of each call; in a search, branches times nodes")
    attentions: int = _col(_INT, "attentions that each call runs")
    mlps: int = _col(_INT, "MLPs that each call runs")
    heads: float = _col(_REAL, "LM heads over the rows of each call, as a share of the vocabulary")
    launches: int = _col(_INT, "launches by the host that each call consists of, without a wait between them")
    context: float = _col(_REAL, "positions of the prefix that each attention reads, mean over the calls")
    ms: float | None = _nullable(_REAL, "milliseconds of the calls together; null on a GPU, which runs behind the host")
    int8_attentions: int = _col(_INT, "those among `attentions` that read 8-bit weights")
    int8_mlps: int = _col(_INT, "those among `mlps` that read 8-bit weights")
    int8_heads: float = _col(_REAL, "the part of `heads` that reads 8-bit weights")
    int4_attentions: int = _col(_INT, "those among `attentions` that read 4-bit weights")
    int4_mlps: int = _col(_INT, "those among `mlps` that read 4-bit weights")
    int4_heads: float = _col(_REAL, "the part of `heads` that reads 4-bit weights")


ROUNDED = tuple(f"int{bits}_{part}" for bits in BITS for part in ("attentions", "mlps", "heads"))
"""Columns of `work` that count rounded weights."""


@dataclass(slots=True)
class PromptRecord:
    """One arm of one unit (and one turn of a conversation): its row of `prompts`, its rows of `steps` and `work`."""

    prompt: PromptRow
    steps: list[StepRow]
    work: list[WorkRow] = field(default_factory=list)


def _schema(columns: Iterable[pa.Field]) -> pa.Schema:
    return pa.schema(columns, {"schema_version": str(SCHEMA_VERSION)})


def _column(name: str, kind: pa.DataType, text: str, nullable: bool = False) -> pa.Field:
    return pa.field("layer_set_id" if name == "layer_set" else name, kind, nullable, {"description": text})


def _row_schema(row: type[PromptRow | StepRow | WorkRow]) -> pa.Schema:
    return _schema(_column(f.name, **f.metadata) for f in fields(row))


_BITS_TEXT = "sublayers with {}-bit weights (2i: attention, 2i + 1: MLP, 2L: head); null: none"
SCHEMAS: dict[str, pa.Schema] = {
    "prompts": _row_schema(PromptRow),
    "steps": _row_schema(StepRow),
    "layer_sets": _schema(
        [
            _column("layer_set_id", _INT, "index, by first appearance in stream order"),
            _column("n_layers", _INT, "L, blocks of the model (2L sublayers)"),
            _column("skip_attn", _INTS, "blocks whose attention is skipped, ascending"),
            _column("skip_mlp", _INTS, "blocks whose MLP is skipped, ascending"),
            _column("sinks", _INT, "first positions that the attentions read; null: they read all", True),
            _column("recent", _INT, "last positions that they read, the token's own included; null: all", True),
            *(_column(f"int{bits}", _INTS, _BITS_TEXT.format(bits), True) for bits in BITS),
        ]
    ),
    "work": _row_schema(WorkRow),
}
"""Arrow schema of each table; every field's metadata holds its one-line `description`."""


def arms_of(baseline: object) -> tuple[str, ...]:
    """Return the arms of a unit for a value of the option `baseline`.

    Raises:
        ConfigError: the value is not in `BASELINES`.
    """
    for name, arms in BASELINES.items():
        if baseline == name:
            return arms
    raise ConfigError("baseline", baseline, f"one of {', '.join(BASELINES)}")


def check_unit(unit: Unit, records: Sequence[PromptRecord]) -> None:
    """Raise ValueError unless `records` are distinct arms of each turn of this unit and every row belongs to it."""
    arms = [(record.prompt.turn, record.prompt.arm) for record in records]
    if not arms or len(set(arms)) < len(arms) or not {arm for _, arm in arms} <= set(ARMS):
        raise ValueError(f"unit {unit}: arms {arms}, expected each of {ARMS} at most once in a turn")
    for record in records:
        rows: list[PromptRow | StepRow | WorkRow] = [record.prompt, *record.steps, *record.work]
        for row in rows:
            identity = (row.prompt_index, row.repeat, row.turn, row.arm)
            if identity != (*unit, record.prompt.turn, record.prompt.arm):
                raise ValueError(f"unit {unit}: a row belongs to {identity}")


def _columns(rows: Sequence[PromptRow | StepRow | WorkRow], kind: type) -> dict[str, list[Any]]:
    return {f.name: [getattr(row, f.name) for row in rows] for f in fields(kind)}


def pack(records: Sequence[PromptRecord]) -> dict[str, Any]:
    """Return one unit as JSON: columns of its arms; steps refer to a list of layer sets."""
    records = sorted(records, key=lambda record: (record.prompt.turn, record.prompt.arm))
    steps = _columns([step for record in records for step in record.steps], StepRow)
    ids: dict[LayerSet, int] = {}
    steps["layer_set_id"] = [s if s is None else ids.setdefault(s, len(ids)) for s in steps.pop("layer_set")]
    prompts = _columns([record.prompt for record in records], PromptRow)
    prompts["output_ids"] = [list(ids) for ids in prompts["output_ids"]]
    work = _columns([row for record in records for row in record.work], WorkRow)
    return {"prompts": prompts, "steps": steps, "layer_sets": [*map(_layer_set_row, ids)], "work": work}


def _layer_set_row(layer_set: LayerSet) -> list[Any]:
    """Return the columns of `layer_sets` after the id."""
    window = layer_set.window
    read = (None, None) if window is None else (window.sinks, window.recent)
    rounded = [layer_set.sublayers_in(bits) or None for bits in BITS]
    return [layer_set.n_layers, layer_set.skip_attn, layer_set.skip_mlp, *read, *rounded]


def merge(parts: Sequence[Mapping[str, Any]]) -> dict[str, pa.Table]:
    """Merge parts in stream order into the tables.

    Layer sets are numbered by first appearance, so that a resumed run has the same ids.
    """
    ids: dict[tuple[int | tuple[int, ...] | None, ...], int] = {}
    tables: dict[str, list[pa.Table]] = {"prompts": [], "steps": [], "work": []}
    for part in parts:
        rows = [tuple(tuple(v) if isinstance(v, list) else v for v in row) for row in part["layer_sets"]]
        merged_ids = [ids.setdefault(row, len(ids)) for row in rows]
        local = part["steps"]["layer_set_id"]
        steps = {**part["steps"], "layer_set_id": [i if i is None else merged_ids[i] for i in local]}
        for name, pieces in tables.items():
            pieces.append(_table(name, steps if name == "steps" else part[name]))
    columns = zip(*ids, strict=True) if ids else ((),) * (len(SCHEMAS["layer_sets"]) - 1)
    sets = dict(zip(SCHEMAS["layer_sets"].names, (list(ids.values()), *columns), strict=True))
    order = [(key, "ascending") for key in ANSWER]
    merged = {name: pa.concat_tables([SCHEMAS[name].empty_table(), *pieces]) for name, pieces in tables.items()}
    return {
        "prompts": merged["prompts"].sort_by(order),
        "steps": merged["steps"].sort_by([*order, ("step", "ascending")]),
        "layer_sets": _table("layer_sets", sets),
        # the calls of a step stay in their order: the sort is stable
        "work": merged["work"].sort_by([*order, ("step", "ascending")]),
    }


def _table(name: str, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    table = pa.Table.from_pydict(dict(columns), schema=SCHEMAS[name])
    for column in SCHEMAS[name]:
        if not column.nullable and table[column.name].null_count:
            raise ValueError(f"{name}.{column.name} is null, which its schema does not allow")
    return table
