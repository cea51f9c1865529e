"""Every task on the miniature and its sample: decoded twice, scored, audited, recorded."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from ssd_bench.conf import CONF
from ssd_bench.contract.task import DataSpec, Prompt, Task
from ssd_bench.data import SampleSource
from ssd_bench.records.reader import Run
from ssd_bench.results.digest import summarise
from tests.runs import ROOT, executed, planned

SAMPLE = SampleSource()


@cache
def composed(name: str) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "conf")):
        return compose(f"task/{name}")


def make(name: str, **changes: object) -> Task:
    task: Task = instantiate(OmegaConf.merge(composed(name), {"task": changes}).task)
    return task


def score(task: Task, reference: str, text: str) -> float | None:
    return task.score(Prompt("p", "", "", "", reference, task.name), text)


def test_sample_arithmetic_is_right() -> None:
    rows = [row for name in ("gsm8k", "gsm8k.fewshot") for row in SAMPLE.rows(DataSpec(name, ("answer",), {}))]
    assert len(rows) == 60 + 8
    for row in rows:
        steps = re.findall(r"<<([\d+*/-]+)=(\d+)>>(\d+)", row["answer"])
        assert len(steps) == row["answer"].count("<<") > 0
        for expression, value, shown in steps:
            assert eval(expression) == int(value) == int(shown)  # digits and operators only, by the pattern above
        assert row["answer"].endswith(f"\n#### {steps[-1][1]}")


TASKS = sorted(path.stem for path in (CONF / "task").glob("*.yaml"))
LONG = ("govreport", "pg19")
TWINS = ("aime25", "booksum", "spec_bench", "speed_bench", "stream_shift")
"""Tasks of the class of another, with the same kind of rows."""
WITHOUT_REFERENCE = {"pg19", "mt_bench", "jsonl"}
NEW_TOKENS = 12
PARTS = {  # measures beside the mean score
    "cnn_dm": ["rouge1", "rouge2"],
    "gsm8k": ["unread"],
    "wmt16": ["corpus chrF", "BLEU"],
    "tinystories": ["rouge1", "rouge2"],
}


def checked_run(folder: Path, task: str, *options: str) -> Run:
    """Return a run of a task on the miniature: lossless, and scored where there are references."""
    run = executed(folder, f"task={task}", f"decode.max_new_tokens={NEW_TOKENS}", "method=layerskip", *options)
    prompts = run.prompts
    assert set(prompts["arm"]) == {"ar", "method"} and prompts["new_tokens"].between(1, NEW_TOKENS).all()
    assert set(prompts.loc[prompts["arm"] == "method", "lossless"]) == {"identical"}
    assert prompts["prompt_sha256"].str.fullmatch("[0-9a-f]{64}").all()
    scores = run.header.scores
    assert scores["ar"] == scores["method"]
    if task in WITHOUT_REFERENCE:
        assert prompts["score"].isna().all() and not scores["ar"]
    else:
        assert prompts["score"].between(0, 1).all()
        assert all(0 <= value <= 1 for value in scores["ar"].values())
    summary = summarise(run).row
    assert summary["ar_score"] == summary["method_score"]
    assert (summary["output_rouge2"], summary["output_exact"]) == (1.0, 1.0)
    return run


@pytest.mark.parametrize("task", [name for name in TASKS if name not in ("stream", *TWINS)])
def test_a_task_runs_scored_and_lossless(task: str, tmp_path: Path) -> None:
    options = ["task.items=1"] if task.startswith("stream") else [f"limit={1 if task in LONG else 2}"]
    if task in ("humaneval", "mbpp"):
        options.append("task.sandbox=best_effort")  # also where the kernel has no Landlock
    if task == "jsonl":
        options.append(f"task.path={SAMPLE.root}/jsonl.jsonl")
    checked_run(tmp_path, task, *options)


def test_a_streams_record_holds_its_order_and_scores_by_part(tmp_path: Path) -> None:
    options = ("task.items=2", "task.mix_ratio=0.7")
    run = checked_run(tmp_path, "stream", *options)
    order = run.prompts.drop_duplicates("prompt_index")[["prompt_id", "domain"]].to_numpy().tolist()
    others = planned(tmp_path, "task=stream", *options, "method=jacobi").prompts.items
    assert [[prompt.id, prompt.domain] for prompt in others] == order  # the same for every method
    domains = [domain for _, domain in order]
    assert run.header.domains == domains and {*domains} == {"cnn_dm", "gsm8k", "wmt16", "spider2", "tinystories"}
    names = {part: [n.partition("/")[2] for n in run.header.scores["ar"] if n.startswith(part)] for part in PARTS}
    assert names == PARTS
