"""Made-up records from a seed, for tests that read or write them (no model, no torch)."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.window import Window
from ssd_bench.records.reader import Run, load_run
from ssd_bench.records.schema import ANSWER, ROUNDED, PromptRecord, PromptRow, StepRow, WorkRow, pack
from ssd_bench.records.writer import RunWriter

N_LAYERS = 8
T_TARGET_MS, T_DRAFT_MS = 10.0, 3.0
NOT_ROUNDED = dict.fromkeys(ROUNDED, 0)
UNITS = [(0, 0), (1, 0), (0, 1)]  # of `stateful_run`; repeats outside, as the runner streams them

HEADER: dict[str, Any] = {
    "run_id": "tiny-knapspec-toy-0123456789",
    "content_key": "key",
    "command": "python -m ssd_bench method=knapspec task=toy",
    "config": {"seed": 0},
    "model": {"name": "tiny", "n_layers": N_LAYERS, "dtype": "float32", "device": "cpu", "threads": 2, "weights": "w0"},
    "method": "knapspec",
    "task": {"name": "toy", "metric": "exact_match", "version": 1},
    "decode": {"temperature": 0.0, "max_new_tokens": 48},
    "seed": 0,
    "latency": {"t_mlp_ms": 0.75, "t_attn_slope_ms": 0.001, "t_attn_intercept_ms": 0.4, "source": "measured"},
    "prepare_ms": 5000.0,
    "provenance": {"device": {"cpu": "Imaginary 9000", "cores": 2, "gpus": []}},
}


def header(**changes: Any) -> dict[str, Any]:
    """HEADER with top-level keys replaced, and dictionaries updated."""
    made = copy.deepcopy(HEADER)
    for key, value in changes.items():
        made[key] = {**made.get(key, {}), **value} if isinstance(value, dict) else value
    return made


def unit(
    prompt_index: int,
    repeat: int = 0,
    tokens: int = 48,
    accept: float = 0.7,
    windows: Sequence[Window | None] = (None,),
    **row: Any,
) -> list[PromptRecord]:
    """Both arms of one unit, a function of its arguments; `row` replaces columns of the method's prompt row.

    Args:
        windows: of the drafts, in turn.
    """
    rng = np.random.default_rng([prompt_index, repeat])
    tokens = max(2, tokens - int(rng.integers(0, 8)))
    speed = float(rng.uniform(0.9, 1.1))  # of this prompt, in both arms: what pairing takes out
    sets = [LayerSet.skipping(N_LAYERS, attn=[1, 2 + i], mlp=[3]) for i in range(3)]
    plain = [_step((prompt_index, repeat, 0, "ar"), i + 1, 20 + i, None, 0, 0, speed) for i in range(tokens - 1)]
    drafted: list[StepRow] = []
    left, context = tokens - 1, 20
    while left:
        k = min(int(rng.integers(1, 6)), left - 1)
        m = int((np.cumprod(rng.random(k) < accept)).sum())
        chosen = sets[int(rng.integers(len(sets)))] if k else None
        if chosen is not None:
            chosen = replace(chosen, window=windows[len(drafted) % len(windows)])
        step = _step((prompt_index, repeat, 0, "method"), len(drafted) + 1, context, chosen, k, m, speed)
        if rng.random() < 0.1:
            step.est_alpha, step.est_draft_len, step.est_tokens_per_s = 0.8, 4, 150.0
        drafted.append(step)
        left, context = left - m - 1, context + m + 1
    ids = rng.integers(0, 100, tokens).tolist()
    at = row.get("divergence_index")
    drafted_ids = ids if at is None else [*ids[:at], 100, *ids[at + 1 :]]
    ar_row = _row(prompt_index, repeat, "ar", 0, ids, plain)
    method_row = _row(prompt_index, repeat, "method", 1, drafted_ids, drafted, **{"lossless": "identical"} | row)
    return [PromptRecord(ar_row, plain), PromptRecord(method_row, drafted)]


def with_hf(records: list[PromptRecord], slower: float = 4.0, **row: Any) -> list[PromptRecord]:
    """A unit with Hugging Face's arm: AR's tokens in `slower` times its time, and no steps."""
    ar = records[0].prompt
    times = {"prefill_ms": slower * ar.prefill_ms, "decode_ms": slower * ar.decode_ms}
    none = {"draft_ms": 0.0, "verify_ms": 0.0, "policy_ms": 0.0, "score": None}
    return [*records, PromptRecord(replace(ar, **{"arm": "hf", "order": 2} | times | none | row), [])]


def with_work(records: list[PromptRecord], searches: int = 0) -> list[PromptRecord]:
    """A unit that counts its work: drafts token by token, verifications as one pass, as in the engine.

    Args:
        searches: passes of a single attention over 64 branches, in each step of the method, as its overhead.
    """
    for record in records:
        if record.prompt.arm != "hf" and not record.work:
            record.work = [*_prefill_work(record.prompt)]
            for step in record.steps:
                record.work += _step_work(step, searches if record.prompt.arm == "method" else 0)
    return records


def thin(units: Sequence[list[PromptRecord]]) -> list[list[PromptRecord]]:
    """Units whose drafts run two sublayers, so that they pay even at modelled costs."""
    for step in (step for records in units for record in records for step in record.steps if step.layer_set):
        step.layer_set = LayerSet.skipping(N_LAYERS, attn=range(1, N_LAYERS), mlp=range(1, N_LAYERS))
    return [*units]


def _prefill_work(row: PromptRow) -> list[WorkRow]:
    keys = {name: getattr(row, name) for name in ANSWER} | {"step": 0, "part": "prefill", "calls": 1} | NOT_ROUNDED
    whole = {"rows": row.prompt_len, "attentions": N_LAYERS, "mlps": N_LAYERS, "heads": 0.0, "launches": 1}
    head = {"rows": 1, "attentions": 0, "mlps": 0, "heads": 1.0, "launches": 1}
    return [WorkRow(**keys, **kind, context=0.0, ms=None) for kind in (whole, head)]


def _step_work(step: StepRow, searches: int) -> list[WorkRow]:
    keys = {name: getattr(step, name) for name in (*ANSWER, "step")} | {"context": float(step.context_len)}
    keys |= NOT_ROUNDED
    verified = {"rows": step.tree_nodes, "attentions": N_LAYERS, "mlps": N_LAYERS, "heads": 1.0, "launches": 2}
    work = [WorkRow(**keys, **verified, part="verify", calls=1, ms=step.verify_ms)]
    if (layers := step.layer_set) is not None:
        drafted = {"rows": 1, "attentions": layers.n_attn, "mlps": layers.n_mlp, "heads": 1.0, "launches": 2}
        for bits, (attentions, mlps) in layers.n_rounded.items():
            drafted |= {f"int{bits}_attentions": attentions, f"int{bits}_mlps": mlps}
        read = [*range(step.context_len, step.context_len + step.draft_len)]
        if layers.window is not None:
            read = [*map(layers.window.count_read, read)]
        drafted["context"] = sum(read) / max(1, len(read))
        if layers.head_bits:
            drafted[f"int{layers.head_bits}_heads"] = 1.0
        work.insert(0, WorkRow(**keys | drafted, part="draft", calls=step.draft_len, ms=step.draft_ms))
    if searches:
        branches = {"rows": 64, "attentions": 1, "mlps": 0, "heads": 0.0, "launches": 1}
        work.append(WorkRow(**keys, **branches, part="overhead", calls=searches, ms=step.policy_ms))
    return work


def _step(
    key: tuple[int, int, int, str], step: int, context: int, layers: LayerSet | None, k: int, m: int, speed: float
) -> StepRow:
    """A step that drafted k tokens by `layers`, of which m were accepted."""
    return StepRow(
        **dict(zip(ANSWER, key)),
        step=step,
        context_len=context,
        layer_set=layers,
        draft_len=k,
        tree_nodes=k + 1,
        accepted_len=m,
        emitted=m + 1,
        stop_reason="length" if k else "none",
        draft_ms=k * T_DRAFT_MS * speed,
        verify_ms=T_TARGET_MS * speed,
        policy_ms=0.5 * speed if key[3] == "method" else 0.0,
    )


def _row(
    prompt_index: int, repeat: int, arm: str, order: int, ids: list[int], steps: list[StepRow], **changes: Any
) -> PromptRow:
    spent = {name: sum(getattr(step, name) for step in steps) for name in ("draft_ms", "verify_ms", "policy_ms")}
    row = PromptRow(
        prompt_index=prompt_index,
        prompt_id=f"toy-{prompt_index}",
        domain="toy",
        repeat=repeat,
        turn=0,
        arm=arm,
        order=order,
        prompt_sha256=hashlib.sha256(str(prompt_index).encode()).hexdigest(),
        prompt_len=20,
        clipped_tokens=0,
        new_tokens=len(ids),
        prefill_ms=20.0,
        decode_ms=sum(spent.values()) * 1.02,
        **spent,
        peak_bytes=2**33,
        finish_reason="length",
        output_ids=ids,
        text="é" + "x" * prompt_index,
        score=float(prompt_index % 2),
    )
    for name, value in changes.items():
        setattr(row, name, value)
    return row


def stateful_run(run_dir: Path) -> None:
    """A run whose every unit depends on the method state left by the earlier ones."""
    with RunWriter(run_dir, header()) as writer:
        state = writer.last_state() or b"start"
        for prompt_index, repeat in UNITS:
            if not writer.complete and (prompt_index, repeat) not in writer.done:
                state = hashlib.sha256(state + bytes([prompt_index, repeat])).digest()
                records = with_work(unit(prompt_index, repeat, tokens=12, text=state.hex()))
                writer.add(prompt_index, repeat, records, state)
        writer.finish({"wall_s": 1.0, "finished_at": "then"})


class _AtOnce(RunWriter):
    """A writer that gets all units at the end: writing and checking each alone takes three times as long."""

    units: Sequence[list[PromptRecord]] = ()

    def _read_parts(self) -> list[dict[str, Any]]:
        return [pack([record for records in self.units for record in records])] if self.units else []


def write_record(run_dir: Path, units: Iterable[list[PromptRecord]], **changes: Any) -> None:
    with _AtOnce(run_dir, header(**changes)) as writer:
        writer.units = [with_work(records) for records in units]
        writer.finish({"wall_s": 1.0})


def write_run(run_dir: Path, units: Iterable[list[PromptRecord]], **changes: Any) -> Run:
    write_record(run_dir, units, **changes)
    return load_run(run_dir)
