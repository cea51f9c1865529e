"""Whole runs of the models of `conf/model` through a hub, from an empty cache, as a user types them."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path

from ssd_bench.records.reader import Run, load_run
from ssd_bench.results.rows import arm_rows
from tests.hub.client import Client
from tests.hub.layouts import grouped, sample
from tests.hub.models import HUB_MODELS, KINDS, UNWANTED, add_model, kind_of, source_of, wanted_files
from tests.hub.server import Fault
from tests.runs import CPU, composed

# small tokenizers make thousands of tokens of five demonstrations
SMALL = ("limit=1", "task.shots=1", "decode.max_new_tokens=6", "model.shape=null", "hardware.kernels=torch", *CPU)
OPTIONS = ("method=knapspec", "task=gsm8k", "data=sample", *SMALL)


def run_of(runs: Path, name: str) -> Run:
    (folder,) = runs.glob(f"{name}-knapspec-*")
    return load_run(folder)


def assert_whole(run: Run, name: str, commit: str) -> None:
    """Fail unless the record is complete and lossless, and names the commit."""
    assert run.header.model.commit == commit
    assert run.header.model.name == name
    assert set(arm_rows(run.prompts, "method")["lossless"]) == {"identical"}


def test_every_model_comes_through_the_hub(client: Client, tmp_path: Path) -> None:
    """Sweep over a model of each kind; offline a sweep over some of them then finds their records.

    The others are planned, which downloads and checks everything.
    """
    hub, runs = client.hub, tmp_path / "runs"
    earlier_requests, earlier_downloads = len(hub.requests), len(hub.downloads())
    repositories = {name: add_model(hub, name) for name in HUB_MODELS}
    model_of = {kind_of(name): name for name in HUB_MODELS}
    assert set(model_of) == set(KINDS)
    run_names = sorted(model_of.values())
    line = (f"runs_dir={runs}", *OPTIONS)
    done = client.run("-m", f"model={','.join(run_names)}", *line)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, repository in repositories.items():
        commit = repository.branches["main"]
        if name in run_names:
            assert_whole(run_of(runs, name), name, commit)
        else:
            assert client.plan(f"model={name}", "model.shape=null").get("commit") == commit, name
    downloads = {*hub.downloads()[earlier_downloads:]}
    assert downloads == set.union(*(wanted_files(repository) for repository in repositories.values()))
    assert not downloads & {*UNWANTED}
    ids = [f"/{source_of(name).hub}/" for name in HUB_MODELS]
    requested = [line for line, _ in hub.requests[earlier_requests:]]
    assert not [line for line in requested if not any(name in line for name in ids)], "asked for something else"
    before, requests = sorted(runs.glob("*/run.json")), len(hub.requests)
    again = client.run("-m", f"model={','.join(run_names[::4])}", *line, offline=True)
    assert again.returncode == 0, again.stderr[-3000:]
    assert sorted(runs.glob("*/run.json")) == before and len(before) == len(run_names)
    assert len(hub.requests) == requests


def test_a_branch_that_moves_between_the_steps_gives_one_commit(client: Client, tmp_path: Path) -> None:
    """Load the weights of the checked config's commit, though the branch has moved."""
    name, path = "codellama_13b", f"{tmp_path.name}/moving"
    repository = add_model(client.hub, name, path)
    old, files = repository.branches["main"], {**repository.commits[repository.branches["main"]]}
    changed = {place: file.content for place, file in files.items() if not place.endswith(".safetensors")}
    moved = Fault(r"GET .*/resolve/.*/config\.json", then=lambda: repository.commit(changed), times=1)
    client.hub.faults.append(moved)
    runs = tmp_path / "runs"
    done = client.run(f"model={name}", f"model.hub={path}", f"runs_dir={runs}", *OPTIONS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert repository.branches["main"] != old
    assert_whole(run_of(runs, name), name, old)


SPLITS = {"test": ("gsm8k", 1319), "train": ("gsm8k.fewshot", 7473)}


def test_the_first_command_needs_one_line_each_way(client: Client, tmp_path: Path) -> None:
    """Run a gated model on data with their real numbers of rows, both of the hub, at their pinned commits.

    Without a token the command gives one message and downloads nothing; with one it runs, and again offline.
    """
    hub, name, path, data = client.hub, "llama3_1_8b", f"{tmp_path.name}/model", f"{tmp_path.name}/data"
    add_model(hub, name, path).gated = True
    rows = {split: list(islice(cycle(sample(file)), count)) for split, (file, count) in SPLITS.items()}
    commit = hub.dataset(data).commit(grouped({"main": rows}), sha=composed("task=gsm8k").task.hub.revision)
    hub.dataset(data).commit({"README.md": "a later commit of the branch"})
    line = (f"model={name}", f"model.hub={path}", "method=knapspec", "task=gsm8k", f"runs_dir={tmp_path / 'runs'}")
    earlier_downloads = len(hub.downloads())
    refused = client.run(*line, "data=sample", *SMALL)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1, refused.stderr
    assert refused.stderr.startswith(f"error: model.hub='{path}'")
    assert f"accept its licence on {hub.endpoint}/{path}" in refused.stderr and "hf auth login" in refused.stderr
    assert not hub.downloads()[earlier_downloads:]
    line += ("data=hub", f"task.hub.path={data}", f"task.fewshot_hub.path={data}", *SMALL)
    done = client.run(*line, token="hf_granted")
    assert done.returncode == 0, done.stderr[-3000:]
    run = run_of(tmp_path / "runs", name)
    assert_whole(run, name, str(source_of(name).revision))
    commits = {file: text.partition(" ")[0] for file, text in run.header.data.items()}
    assert commits == dict.fromkeys(("gsm8k", "gsm8k.fewshot"), f"{data}@{commit}")
    again = client.run(*line, offline=True)
    assert again.returncode == 0 and "already on record" in again.stdout, again.stderr[-3000:]
