"""Whole runs of the models of `conf/model` through a hub, from an empty cache, as a user types them."""

from __future__ import annotations

from pathlib import Path

from ssd_bench import metrics
from ssd_bench.records.reader import Run, load_run
from tests.hub.models import HUB_MODELS, KINDS, UNWANTED, add_model, kind_of, source_of, wanted_files
from tests.hub.server import Fault, Hub
from tests.runs import CPU, python

OPTIONS = (
    "method=knapspec",
    "task=gsm8k",
    "data=sample",
    "limit=1",
    "decode.max_new_tokens=6",
    "model.shape=null",
    "hardware.kernels=torch",
    *CPU,
)


def run_of(runs: Path, name: str) -> Run:
    """Return the record of a model."""
    (folder,) = runs.glob(f"{name}-knapspec-*")
    return load_run(folder)


def assert_whole(run: Run, name: str, commit: str) -> None:
    """Fail unless the record is complete and lossless, and names the commit."""
    assert run.header.model.commit == commit
    assert run.header.model.name == name
    assert set(metrics.arm_rows(run.prompts, "method")["lossless"]) == {"identical"}


def test_every_model_runs_through_the_hub(hub: Hub, tmp_path: Path) -> None:
    """One sweep over all of them, then the same sweep without a network, which finds every record."""
    repositories = {name: add_model(hub, name, tmp_path / "files" / name) for name in HUB_MODELS}
    assert {kind_of(name) for name in HUB_MODELS} == set(KINDS)
    runs = tmp_path / "runs"
    line = ("-m", "ssd_bench", "-m", f"model={','.join(HUB_MODELS)}", f"runs_dir={runs}", *OPTIONS)
    done = python(*line, cwd=tmp_path, **hub.variables(tmp_path / "home"))
    assert done.returncode == 0, done.stderr[-3000:]
    for name, repository in repositories.items():
        assert_whole(run_of(runs, name), name, repository.branches["main"])
    assert {*hub.downloads()} == set.union(*(wanted_files(repository) for repository in repositories.values()))
    assert not {*hub.downloads()} & {*UNWANTED}
    ids = [f"/{source_of(name).hub}/" for name in HUB_MODELS]
    assert not [line for line, _ in hub.requests if not any(name in line for name in ids)], "asked for something else"
    before, requests = sorted(runs.glob("*/run.json")), len(hub.requests)
    again = python(*line, cwd=tmp_path, **hub.variables(tmp_path / "home", HF_HUB_OFFLINE="1"))
    assert again.returncode == 0, again.stderr[-3000:]
    assert sorted(runs.glob("*/run.json")) == before and len(before) == len(HUB_MODELS)
    assert len(hub.requests) == requests


def test_a_branch_that_moves_between_the_steps_gives_one_commit(hub: Hub, tmp_path: Path) -> None:
    """The new commit has other weights; the run has those of the commit whose config it checked."""
    name = "codellama_13b"
    repository = add_model(hub, name, tmp_path / "old")
    old, files = repository.branches["main"], {**repository.commits[repository.branches["main"]]}
    changed = {path: file.content for path, file in files.items() if not path.endswith(".safetensors")}
    moved = Fault(r"GET .*/resolve/.*/config\.json", then=lambda: repository.commit(changed), times=1)
    hub.faults.append(moved)
    runs = tmp_path / "runs"
    line = ("-m", "ssd_bench", f"model={name}", f"runs_dir={runs}", *OPTIONS)
    done = python(*line, cwd=tmp_path, **hub.variables(tmp_path / "home"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert repository.branches["main"] != old
    assert_whole(run_of(runs, name), name, old)


def test_the_first_command_needs_one_line_each_way(hub: Hub, tmp_path: Path) -> None:
    """Gated without a token: one message, nothing downloaded. With one: runs, at the commit that is pinned."""
    name = "llama3_1_8b"
    repository = add_model(hub, name, tmp_path / "files")
    repository.gated = True
    line = ("-m", "ssd_bench", f"model={name}", f"runs_dir={tmp_path / 'runs'}", *OPTIONS)
    refused = python(*line, cwd=tmp_path, **hub.variables(tmp_path / "home"))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1, refused.stderr
    message = refused.stderr
    page = f"{hub.endpoint}/{source_of(name).hub}"
    assert message.startswith(f"error: model.hub='{source_of(name).hub}'") and f"licence on {page}" in message
    assert "hf auth login" in message and not hub.downloads()
    done = python(*line, cwd=tmp_path, **hub.variables(tmp_path / "home", HF_TOKEN="hf_granted"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert_whole(run_of(tmp_path / "runs", name), name, str(source_of(name).revision))
