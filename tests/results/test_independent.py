"""Numbers of the first screen, computed again from the parquet files and the cost table alone.

`numbers` uses nothing of the project. Methods that search, whose overhead has other calls, are left out.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest
import yaml

import ssd_bench

ROOT = Path(__file__).parents[2]
PACK = ROOT / "runs/reference/real.zip"
COSTS = yaml.safe_load((ROOT / "conf/costs/h200/llama3_1_8b.yaml").read_text(encoding="utf-8"))
METHODS = ("int8_draft", "int4_draft", "nested_draft", "window_draft", "prompt_lookup", "suffix")
STEP = ["prompt_index", "repeat", "turn", "arm", "step"]


def runs() -> list[str]:
    folders = (name.removesuffix("/work.parquet") for name in ZipFile(PACK).namelist() if name.endswith("work.parquet"))
    return sorted(folder for folder in folders if folder.rpartition("/")[2].split("-")[1] in METHODS)


def pass_ms(name: str, factor: float, rows: np.ndarray, context: np.ndarray) -> tuple[np.ndarray, ...]:
    """Milliseconds of an attention, an MLP and the rest, linear between the table's numbers of rows."""
    nodes, slope, intercept, mlp, rest = np.array(COSTS[name], float).T
    columns = factor * (slope[:, None] * context + intercept[:, None]), factor * mlp, rest
    high = np.clip(np.searchsorted(nodes, rows), 1, len(nodes) - 1)
    share = (rows - nodes[high - 1]) / (nodes[high] - nodes[high - 1])

    def between(column: np.ndarray) -> np.ndarray:
        low, top = (column[at] if column.ndim == 1 else column[at, np.arange(len(rows))] for at in (high - 1, high))
        return np.asarray(low + share * (top - low))

    return tuple(map(between, columns))


def numbers(run: str) -> dict[str, float]:
    with ZipFile(PACK) as pack:
        header: dict[str, Any] = json.loads(pack.read(f"{run}/run.json"))
        steps, work = (pd.read_parquet(io.BytesIO(pack.read(f"{run}/{name}.parquet"))) for name in ("steps", "work"))
    factor = COSTS["n_layers"] / header["model"]["n_layers"]
    work = work[(work["step"] > 0) & work["part"].isin(["draft", "verify"])].copy()
    rows, context, draft = work["rows"].to_numpy(float), work["context"].to_numpy(float), COSTS["draft"]
    attn, mlp, rest = pass_ms("passes", factor, rows, context)
    growth = rest - pass_ms("passes", factor, np.ones_like(rows), context)[2]
    head = np.where(work["part"] == "draft", draft["draft_rest_ms"] + growth, rest)
    work["ms"] = work["attentions"] * attn + work["mlps"] * mlp + work["heads"] * head
    for bits in (8, 4):
        rounded_attn, rounded_mlp, _ = pass_ms(f"int{bits}_passes", factor, rows, context)
        work["ms"] -= work[f"int{bits}_attentions"] * (attn - rounded_attn)
        work["ms"] -= work[f"int{bits}_mlps"] * (mlp - rounded_mlp)
        work["ms"] -= work[f"int{bits}_heads"] * (draft["draft_rest_ms"] - draft[f"int{bits}_draft_rest_ms"])
    work["ms"] *= work["calls"]
    steps = steps.merge(work.groupby(STEP, observed=True)["ms"].sum().reset_index(), on=STEP, how="left")
    steps["ms"] = steps["ms"].fillna(0.0) + COSTS["host"]["step_ms"]
    total = steps.groupby("arm", observed=True)[["emitted", "ms"]].sum()
    rate, method = total["emitted"] / total["ms"], steps[steps["arm"] == "method"]
    return {
        "M": method["emitted"].mean(),
        "alpha": method["accepted_len"].sum() / method["draft_len"].sum(),
        "speedup_modelled": rate["method"] / rate["ar"],
    }


def test_there_are_runs_of_every_method() -> None:
    assert {run.split("-")[1] for run in runs()} == set(METHODS)


def test_numbers_are_those_of_the_tables_alone(tmp_path: Path) -> None:
    with ZipFile(PACK) as pack:
        pack.extractall(tmp_path, [name for name in pack.namelist() if name.partition("/")[0] in runs()])
    shown = ssd_bench.load_runs(tmp_path)
    shown.index = pd.Index([Path(folder).name for folder in shown["run_dir"]])
    for run in runs():
        again = numbers(run)
        assert shown.loc[run, [*again]].to_dict() == pytest.approx(again, rel=1e-9)
