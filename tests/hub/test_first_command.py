"""A researcher's first real command, from an empty cache: model and data of the hub, with their real numbers of rows.

It adds only `model.shape=null` (the weights are small), and what makes it short.
"""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path

from ssd_bench.records.reader import load_run
from tests.hub.layouts import grouped, sample
from tests.hub.models import add_model, source_of
from tests.hub.server import Hub
from tests.runs import CPU, composed, python

COMMAND = ("model=llama3_1_8b", "method=knapspec", "task=gsm8k", "data=hub")
SMALL = ("model.shape=null", "limit=3", "decode.max_new_tokens=12", *CPU)
SPLITS = {"test": ("gsm8k", 1319), "train": ("gsm8k.fewshot", 7473)}


def publish(hub: Hub) -> tuple[str, str]:
    """Give a hub the gated model, and GSM8K with its real number of rows; return both commits."""
    add_model(hub, "llama3_1_8b").gated = True
    rows = {split: list(islice(cycle(sample(name)), count)) for split, (name, count) in SPLITS.items()}
    commit = composed("task=gsm8k").task.hub.revision
    hub.dataset("openai/gsm8k").commit(grouped({"main": rows}), sha=commit)
    return str(source_of("llama3_1_8b").revision), commit


def test_it_runs_losslessly_and_records_both_commits(hub: Hub, tmp_path: Path) -> None:
    model, data = publish(hub)
    hub.dataset("openai/gsm8k").commit({"README.md": "a later commit of the branch"})
    line = ("-m", "ssd_bench", *COMMAND, *SMALL, f"runs_dir={tmp_path / 'runs'}")
    done = python(*line, cwd=tmp_path, **hub.variables(tmp_path / "home", HF_TOKEN="hf_granted"))
    assert done.returncode == 0, done.stderr[-3000:]
    (folder,) = (path.parent for path in (tmp_path / "runs").glob("llama3_1_8b-knapspec-gsm8k-*/run.json"))
    run = load_run(folder)
    assert run.header.model.commit == model
    commits = {file: text.partition(" ")[0] for file, text in run.header.data.items()}
    assert commits == dict.fromkeys(("gsm8k", "gsm8k.fewshot"), f"openai/gsm8k@{data}")
    of_method = run.prompts[run.prompts["arm"] == "method"]
    assert len(of_method) == 3 and set(of_method["lossless"]) == {"identical"}
    again = python(*line, cwd=tmp_path, **hub.variables(tmp_path / "home", HF_HUB_OFFLINE="1"))
    assert again.returncode == 0 and "already on record" in again.stdout, again.stderr[-3000:]
