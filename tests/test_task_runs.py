"""Every task end to end on the miniature and its sample: decoded twice, scored, audited, recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssd_bench.command import CONF
from ssd_bench.metrics import summarise
from tests.runs import executed

TASKS = sorted(path.stem for path in (CONF / "task").glob("*.yaml"))
WITHOUT_REFERENCE = {"pg19"}
NEW_TOKENS = 24
PARTS = {  # measures beside the mean score
    "cnn_dm": ["rouge1", "rouge2"],
    "gsm8k": [],
    "wmt16": ["corpus chrF", "BLEU"],
    "spider2": ["exact_match", "executable"],
    "tinystories": ["rouge1", "rouge2"],
}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_runs_scored_and_lossless(task: str, tmp_path: Path) -> None:
    options = ["task.items=2"] if task.startswith("stream") else ["limit=2"]
    if task == "humaneval":
        options.append("task.sandbox=best_effort")  # also where the kernel has no Landlock
    run = executed(tmp_path, f"task={task}", f"decode.max_new_tokens={NEW_TOKENS}", "method=layerskip", *options)
    prompts = run.prompts
    assert set(prompts["arm"]) == {"ar", "method"} and prompts["new_tokens"].between(1, NEW_TOKENS).all()
    assert set(prompts.loc[prompts["arm"] == "method", "lossless"]) == {"identical"}
    assert prompts["prompt_sha256"].str.fullmatch("[0-9a-f]{64}").all()
    scores = run.header["scores"]
    assert scores["ar"] == scores["method"]
    if task in WITHOUT_REFERENCE:
        assert prompts["score"].isna().all() and not scores["ar"]
    else:
        assert prompts["score"].between(0, 1).all()
        assert all(0 <= value <= 1 for value in scores["ar"].values())
    summary = summarise(run)
    assert summary["ar_score"] == summary["method_score"]
    assert (summary["output_rouge2"], summary["output_exact"]) == (1.0, 1.0)


def test_a_streams_record_holds_its_order_and_scores_by_part(tmp_path: Path) -> None:
    options = ("task=stream", "task.items=2", "task.mix_ratio=0.7", "decode.max_new_tokens=8")
    runs = [executed(tmp_path, *options, f"method={method}") for method in ("layerskip", "jacobi")]
    orders = [run.prompts.drop_duplicates("prompt_index")[["prompt_id", "domain", "prompt_sha256"]] for run in runs]
    assert orders[0].equals(orders[1])  # the same for every method
    assert runs[0].header["domains"] == orders[0]["domain"].tolist()
    assert set(orders[0]["domain"]) == {"cnn_dm", "gsm8k", "wmt16", "spider2", "tinystories"}
    names = {
        part: [n.partition("/")[2] for n in runs[0].header["scores"]["ar"] if n.startswith(part)] for part in PARTS
    }
    assert names == PARTS
