"""Numbers behind the verdicts, recomputed from the committed files with pandas alone."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PACKS = ROOT / "runs" / "reference"
RECORDS = PACKS / "mini.zip"
VERDICTS = ROOT / "docs" / "report" / "verdicts.csv"
LOOP = 0.1
"""Share of repeated 8-grams above which an answer loops."""


def read(name: str) -> Any:
    with zipfile.ZipFile(RECORDS) as pack:
        (path,) = [entry for entry in pack.namelist() if entry.endswith(name)]
        content = pack.read(path)
    return json.loads(content) if name.endswith(".json") else pd.read_parquet(io.BytesIO(content))


def of_miniature() -> pd.DataFrame:
    """Return the committed verdicts on the miniature, by claim."""
    verdicts = pd.read_csv(VERDICTS)
    return verdicts[verdicts["scale"] == "mini"].set_index("claim")


def repeated(ids: list[int]) -> float:
    grams = [tuple(ids[i : i + 8]) for i in range(len(ids) - 7)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def figure3() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return KnapSpec's draft steps behind its Figure 3, with their shares, and its prompts' rows."""
    index = read("replication/knapspec_figure3.mini.json")
    (run,) = [cell["run"] for cell in index["cells"] if cell["labels"]["method"] == "KnapSpec"]
    steps, sets, prompts = (read(f"{run}/{name}.parquet") for name in ("steps", "layer_sets", "prompts"))
    steps = steps[(steps["arm"] == "method") & steps["layer_set_id"].notna()]
    steps = steps.merge(sets.set_index("layer_set_id"), left_on="layer_set_id", right_index=True)
    return steps.assign(share=steps["skip_attn"].map(len) / steps["n_layers"]), prompts


def rise(steps: pd.DataFrame) -> float:
    """Return the mean share of skipped attentions in the last third of the contexts, less the first third's."""
    low, high = steps["context_len"].min(), steps["context_len"].max()
    third = (high - low) / 3
    first, last = steps["context_len"] <= low + third, steps["context_len"] >= high - third
    return float(steps.loc[last, "share"].mean() - steps.loc[first, "share"].mean())


def test_the_rise_of_skipped_attentions_is_that_of_steps_before_the_first_search() -> None:
    """The share rises by 0.09 with the steps in which the full model drafts, not over searched sets."""
    steps, prompts = figure3()
    assert rise(steps) == pytest.approx(0.086, abs=0.002)
    searched = steps[steps["searched"].astype(bool)]
    assert abs(rise(searched)) < 0.005
    loops = (
        prompts.assign(loop=prompts["output_ids"].map(list).map(repeated) > LOOP).groupby("prompt_index")["loop"].any()
    )
    # the thirds are of all searched steps; prompts with looping answers are then left out
    low, high = searched["context_len"].min(), searched["context_len"].max()
    third = (high - low) / 3
    kept = searched[~searched["prompt_index"].map(loops)]
    first, last = kept["context_len"] <= low + third, kept["context_len"] >= high - third
    effect = kept.loc[last, "share"].mean() - kept.loc[first, "share"].mean()
    row = of_miniature().loc["knapspec/attention_with_context"]
    assert row["effect"] == pytest.approx(effect, abs=1e-9) and row["verdict"] == "cannot say"


def test_the_streams_of_knn_ssd_have_one_trace_for_all_mixing_ratios() -> None:
    """Its speed does not depend on the mixing, because its drafts cannot."""
    index = read("replication/knn_ssd_table2.mini.json")
    runs = {cell["run"] for cell in index["cells"] if cell["labels"]["method"] == "KNN-SSD"}
    traces = set()
    for run in runs:
        steps, prompts = (read(f"{run}/{name}.parquet") for name in ("steps", "prompts"))
        hashes = prompts.drop_duplicates("prompt_index").set_index("prompt_index")["prompt_sha256"]
        steps = steps[steps["arm"] == "method"].assign(
            prompt=lambda frame, hashes=hashes: frame["prompt_index"].map(hashes)
        )
        columns = ["prompt", "step", "draft_len", "tree_nodes", "accepted_len", "emitted"]
        traces.add(tuple(steps[columns].sort_values(columns).itertuples(index=False, name=None)))
    assert len(runs) == 4 and len(traces) == 1
    assert "duplicates the trace of KNN-SSD" in of_miniature().loc["knn-ssd/stable_under_mixing", "reason"]


@pytest.mark.parametrize(("scale", "n_indices", "n_runs"), [("mini", 50, 196), ("real", 90, 30)])
def test_the_records_behind_every_committed_verdict_are_in_the_repository(
    scale: str, n_indices: int, n_runs: int
) -> None:
    verdicts = pd.read_csv(VERDICTS)
    assert verdicts["records"].all() and set(verdicts["scale"].dropna()) == {"mini", "real"}
    with zipfile.ZipFile(PACKS / f"{scale}.zip") as pack:
        names = set(pack.namelist())
        indices = [
            json.loads(pack.read(name)) for name in names if name.endswith(f".{scale}.json") and "replication/" in name
        ]
    runs = {cell["run"] for index in indices for cell in index["cells"] if cell["run"]}
    assert len(indices) > n_indices and len(runs) == n_runs
    assert all(
        any(name.endswith(f"{run}/{part}") for name in names) for run in runs for part in ("run.json", "steps.parquet")
    )
