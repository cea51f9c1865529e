"""Edited or truncated records: the reader names file, prompt and difference."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssd_bench.contract.window import Window
from ssd_bench.errors import ConfigError
from ssd_bench.records.consistency import faults
from ssd_bench.records.files import read_header
from ssd_bench.records.reader import Run, load_run
from ssd_bench.records.schema import DIGESTS, SCHEMAS, PromptRecord
from tests.synthetic import unit, with_hf, with_work, write_run

UNNOTICED = {
    # digests of tokens, times and memory; what only a tokenizer, the task or the model could tell
    "prompts": "prompt_sha256 prefill_ms decode_ms peak_bytes text score output_ids finish_reason divergence_gap",
    # calls of the method, or of a head without a pass, in other steps or answers; drafted tokens that the limits cut
    "work": "prompt_index arm step launches calls rows attentions mlps heads context int8_attentions int8_mlps "
    "int4_attentions int4_mlps ms",
    # what was drafted and rejected, or cut by the length limit; another of the sets; the method's words and estimates
    "steps": "draft_len tree_nodes accepted_len layer_set_id stop_reason searched est_alpha est_draft_len "
    "est_tokens_per_s",
    "layer_sets": "skip_attn skip_mlp int8 int4",
}
"""Columns whose single edits may pass without digests in run.json."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two prompts, one of which ends in a near-tie."""
    return written(tmp_path, 16)


def written(folder: Path, tokens: int, counted: bool = False) -> Run:
    units = [unit(0, tokens=tokens, divergence_index=1, divergence_gap=0.25, lossless="tie"), unit(1, tokens=tokens)]
    units = [with_work(records, searches=2) for records in units] if counted else units
    return write_run(
        folder / "run", units, domains=["toy", "toy"], config={"baseline": "paired", "repeats": 1}, tie_tolerance=0.5
    )


LISTS = ("output_ids", "skip_attn", "skip_mlp", "int8", "int4")
"""Columns of lists; `int8` and `int4` may be null."""


def edited(value: Any, is_list: bool = False) -> Iterator[Any]:
    """Values near this one, and of its column."""
    if isinstance(value, str):
        yield from ("", value + "x", "bug", "hf", "ar")
    elif hasattr(value, "__len__"):
        ids = [int(one) for one in value]
        yield from ([*ids, 7], ids[:-1], [*ids[:-1], 99], [*ids[:1], *ids[2:]], [])
    elif is_list:
        yield from ([0], [99])
    elif value is None or value is pd.NA or value != value:
        yield from (0, 1)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 0, 10**6)
    else:
        yield from (value * 1.001 + 1e-3, -value - 1.0, float("nan"), float("inf"))


def edits(frame: pd.DataFrame, rows: Collection[int]) -> Iterator[tuple[str, int, Any, pd.DataFrame]]:
    """Every column of these rows with every other value, and the resulting table."""
    for column in frame.columns:
        values = list(frame[column]) if column in LISTS else frame[column].tolist()
        for row in rows:
            for new in edited(values[row], column in LISTS):
                if isinstance(values[row], str | int) and new == values[row]:
                    continue
                changed = frame.copy()
                series = pd.Series([*values[:row], new, *values[row + 1 :]], dtype=object)
                changed[column] = series if frame[column].dtype == object else series.astype(frame[column].dtype)
                yield column, row, new, changed


def typical_rows(frame: pd.DataFrame) -> list[int]:
    """The first and last row of each answer; of work, which has the most rows, of each part of the first prompt."""
    keys = [name for name in ("prompt_index", "arm", "part") if name in frame]
    if not keys:
        return [*range(len(frame))]
    rows = frame[frame["prompt_index"] == 0] if "part" in keys else frame
    places = pd.Series(range(len(rows))).groupby([rows[name].to_numpy() for name in keys])
    return sorted({*places.min(), *places.max()})


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_edit_of_a_cell_is_noticed_but_where_nothing_could(name: str, tmp_path: Path) -> None:
    run = written(tmp_path, 7, counted=True) if name == "work" else written(tmp_path, 9)
    header = read_header(run.path)
    assert list(faults(header, run.tables)) == []
    passed: dict[str, list[object]] = {}
    for column, row, new, frame in edits(getattr(run, name), typical_rows(getattr(run, name))):
        if not any(faults(header, run.tables | {name: frame})):
            passed.setdefault(column, []).append((row, new))
    unexpected = {column: cells for column, cells in passed.items() if column not in UNNOTICED[name].split()}
    assert not unexpected


def rewritten(run: Run, name: str, frame: pd.DataFrame, digests: bool) -> None:
    """Put another table in a record, with or without digests."""
    path = run.path / f"{name}.parquet"
    pq.write_table(pa.Table.from_pandas(frame, SCHEMAS[name], preserve_index=False), path)
    if not digests:
        content = json.loads((run.path / "run.json").read_bytes())
        content.pop(DIGESTS, None)
        (run.path / "run.json").write_text(json.dumps(content), encoding="utf-8")


def one_id_more(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(output_ids=[[*ids, 7] if i == 1 else ids for i, ids in enumerate(frame["output_ids"])])


CHANGES: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "an id more": ("prompts", one_id_more, "prompt 0, repeat 0, arm method: new_tokens is"),
    "no steps": ("steps", lambda frame: frame.iloc[:0], "prompt 0, repeat 0, arm ar: its steps emitted 0 tokens"),
    "an arm less": ("prompts", lambda frame: frame.drop(index=3), "prompt 1, repeat 0, arm method: its row is missing"),
    "a prompt less": ("prompts", lambda frame: frame[:2], "prompt 1, repeat 0, arm ar: its row is missing"),
    "a row twice": ("prompts", lambda frame: pd.concat([frame, frame[3:]]), "arm method: it has two rows"),
    "a step less": ("steps", lambda frame: frame.drop(index=4), "arm ar: step 6: step does not count"),
    "the last step less": ("steps", lambda frame: frame[:-1], "prompt 1, repeat 0, arm method: its steps emitted"),
    "steps reversed": ("steps", lambda frame: frame[::-1], "prompt 1, repeat 0, arm method: step"),
    "no sets": ("layer_sets", lambda frame: frame[:0], "prompt 0, repeat 0, arm method: layer_set_id is"),
}


@pytest.mark.parametrize(
    ("change", "digests"), [*((change, False) for change in CHANGES), ("an id more", True), ("no steps", True)]
)
def test_the_reader_names_the_file_the_prompt_and_what_differs(change: str, digests: bool, run: Run) -> None:
    name, edit, said = CHANGES[change]
    rewritten(run, name, edit(getattr(run, name)), digests)
    with pytest.raises(ConfigError) as caught:
        load_run(run.path)
    assert said in str(caught.value) and "force=true in its command" in str(caught.value)
    assert caught.value.field == "record" and str(caught.value.value).endswith(".parquet")


def test_a_digest_tells_what_no_column_could(run: Run) -> None:
    longer = run.prompts.assign(decode_ms=run.prompts["decode_ms"] * 2)
    rewritten(run, "prompts", longer, digests=True)
    with pytest.raises(ConfigError, match=r"prompts\.parquet.*its SHA-256 is not that under tables in run\.json"):
        load_run(run.path)
    rewritten(run, "prompts", longer, digests=False)
    assert load_run(run.path).prompts["decode_ms"].tolist() == longer["decode_ms"].tolist()


def conversation() -> list[PromptRecord]:
    """Return two turns of a prompt."""
    second = unit(0, tokens=8)
    for record in second:
        record.prompt.turn, record.prompt.prompt_sha256 = 1, "0" * 64
        for step in record.steps:
            step.turn = 1
    return [*unit(0, tokens=8), *second]


def one_token() -> list[PromptRecord]:
    """Return answers that the prefill ended."""
    rows = [record.prompt for record in unit(0, tokens=8)]
    for row in rows:
        row.output_ids, row.new_tokens, row.draft_ms, row.verify_ms, row.policy_ms = [2], 1, 0.0, 0.0, 0.0
    return [PromptRecord(row, []) for row in rows]


def alone() -> list[PromptRecord]:
    (record,) = unit(0, lossless=None)[1:]
    record.prompt.order = 0
    return [record]


def shorter(verdict: str) -> list[PromptRecord]:
    """Return an output that ends before AR's, without logits to compare."""
    plain, drafted = unit(0, tokens=16)
    row, last = drafted.prompt, drafted.steps.pop()
    row.new_tokens -= last.emitted
    row.output_ids = list(row.output_ids)[: row.new_tokens]
    for name in ("draft_ms", "verify_ms", "policy_ms"):
        setattr(row, name, sum(getattr(step, name) for step in drafted.steps))
    row.lossless, row.divergence_index = verdict, row.new_tokens
    return [plain, drafted]


@pytest.mark.parametrize(
    "records",
    [with_hf(unit(0)), conversation(), one_token(), alone(), unit(0, lossless=None), shorter("bug")],
    ids=["hf", "turns", "one token", "alone", "sampled", "shorter"],
)
def test_sound_records_of_every_kind_are_read(records: list[PromptRecord], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [records], domains=["toy"])
    assert list(faults(read_header(run.path), run.tables)) == []


WINDOW = Window(2, 6)


def counting(folder: Path, windows: tuple[Window | None, ...] = (None,)) -> Run:
    """Return a greedy run that counts its work; with windows, what its drafts read of them."""
    units = [with_work(unit(i, tokens=20, windows=windows)) for i in range(2)]
    for row in (row for records in units for record in records for row in record.work):
        if row.part == "draft" and windows != (None,):
            row.context = 7.0
    config = {"baseline": "paired", "repeats": 1}
    return write_run(
        folder / "run", units, domains=["toy"] * 2, config=config, decode={"mode": "greedy"}, prepare_work=[]
    )


def in_part(name: str, column: str, value: float) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda work: work.assign(
        **{column: work[column].where(work["part"] != name, value).astype(work[column].dtype)}
    )


ERASED: dict[str, tuple[str, Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "all work": ("work", lambda work: work[:0], "it has no rows"),
    "the work of AR": ("work", lambda work: work[work["arm"] != "ar"], "verification does not run every attention"),
    "the work of a prompt": ("work", lambda work: work[work["prompt_index"] == 0], "does not run every attention"),
    "all prefills": ("work", lambda work: work[work["part"] != "prefill"], "prefill does not run prompt_len nodes"),
    "all comparisons": ("prompts", lambda prompts: prompts.assign(lossless=None), "lossless is null"),
    "a comparison": (
        "prompts",
        lambda prompts: prompts.assign(lossless=prompts["lossless"].where(prompts["prompt_index"] == 0, None)),
        "lossless is null",
    ),
    **{
        f"{count} launches of {part}": ("work", in_part(part, "launches", count), "launches are more than sublayers")
        for part, count in (("verify", 10**6), ("draft", 10**6), ("prefill", 10**6), ("draft", 17), ("verify", 19))
    },
    **{
        f"context {context} of drafts": ("work", in_part("draft", "context", context), "its draft does not read")
        for context in (0.0, 19.0, 1e6)
    },
}


@pytest.mark.parametrize("name", ERASED)
def test_what_was_erased_or_is_too_large_is_noticed(name: str, tmp_path: Path) -> None:
    run = counting(tmp_path)
    header = read_header(run.path)
    assert list(faults(header, run.tables)) == []
    table, edit, text = ERASED[name]
    named = [str(fault) for fault in faults(header, run.tables | {table: edit(getattr(run, table))})]
    assert any(text in fault for fault in named), named


@pytest.mark.parametrize(("context", "is_sound"), [(0.0, False), (6.5, False), (7.0, True), (8.0, True), (9.0, False)])
def test_a_draft_reads_no_more_than_its_window(context: float, is_sound: bool, tmp_path: Path) -> None:
    run = counting(tmp_path, (WINDOW,))
    work = in_part("draft", "context", context)(run.work)
    assert (list(faults(read_header(run.path), run.tables | {"work": work})) == []) == is_sound


def test_one_that_ends_early_is_no_tie(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [shorter("tie")])
    texts = [text for _, _, text in faults(read_header(run.path), run.tables)]
    assert texts == ["lossless is tie, without a divergence_gap"]
