"""Data of a run, and its messages, if the hub refuses, fails, or has moved on."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hub.layouts import card, jsonl
from tests.hub.server import RATE_LIMITED, Fault, Hub
from tests.runs import python

OLD, NEW = "a" * 40, "b" * 40
READ = """
import json, sys, time
time.sleep = lambda seconds: None  # between tries
from ssd_bench.data import HubSource
from ssd_bench.errors import ConfigError
from ssd_bench.contract.task import DataSpec
for arguments in json.loads(sys.argv[1]):
    spec = DataSpec("toy", ("question",), {"path": "org/it", "name": None, "split": "test"} | arguments)
    source = HubSource()
    try:
        rows = [row["question"] for row in source.rows(spec)]
        print(json.dumps([rows, source.fingerprint(spec)]))
    except ConfigError as error:
        print(json.dumps(str(error)))
"""


def lines(*questions: str) -> str:
    return jsonl([{"question": question} for question in questions])


def files(word: str) -> dict[str, bytes | str]:
    return {"test.jsonl": lines(f"{word} 0", f"{word} 1"), "train.jsonl": lines("t"), "README.md": "text"}


def read(hub: Hub, home: Path, *arguments: dict[str, object], **variables: str) -> list[object]:
    """Return what a client process reads or is told, for each set of arguments."""
    done = python("-c", READ, json.dumps(arguments), **hub.variables(home, **variables))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_no_other_commit_is_read_in_place_of_the_one_asked_for(hub: Hub, tmp_path: Path) -> None:
    hub.dataset("org/it").commit(files("old"), sha=OLD, branch=None)
    hub.dataset("org/it").commit(files("new"), sha=NEW)
    ((rows, fingerprint), (main, branch)) = read(hub, tmp_path, {"revision": NEW}, {"revision": "main"})  # type: ignore[misc]
    assert rows == main == ["new 0", "new 1"] and fingerprint == branch and f"org/it@{NEW} files:" in fingerprint
    arguments = {"revision": OLD}, {"revision": NEW}, {"revision": "main"}
    for variables, cause in (({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"), ({}, "HTTP 500")):
        hub.faults.append(Fault("/org/it", 500))
        old, new, moved = read(hub, tmp_path, *arguments, **variables)
        assert str(old).startswith(f"task.hub.revision='{OLD}' is invalid: org/it could not be loaded (")
        assert cause in str(old)
        assert f"the cache has commit {NEW}, which task.hub.revision=COMMIT reads" in str(old)
        assert new == moved == [["new 0", "new 1"], fingerprint]


def test_a_branch_that_moves_is_one_commit_for_all_that_a_run_reads(hub: Hub, tmp_path: Path) -> None:
    hub.dataset("org/it").commit(files("old"), sha=OLD)
    hub.faults.append(Fault("tree", then=lambda: hub.dataset("org/it").commit(files("new"), sha=NEW), times=1))
    ((rows, fingerprint), (later, moved)) = read(hub, tmp_path, {"revision": "main"}, {"revision": "main"})  # type: ignore[misc]
    assert (rows, later) == (["old 0", "old 1"], ["new 0", "new 1"])
    assert f"@{OLD} " in fingerprint and f"@{NEW} " in moved


def test_the_cause_of_a_failure_is_named(hub: Hub, tmp_path: Path) -> None:
    for name in ("gated", "limited", "broken", "dropped"):
        hub.dataset(f"org/{name}").commit(files(name))
    hub.dataset("org/gated").gated = True
    hub.faults += [
        Fault("/org/limited", 429, headers=RATE_LIMITED),
        Fault("/org/broken", 500),
        Fault("GET .*/org/dropped.*test.jsonl", None, after=5),
    ]
    arguments = [
        {"path": f"org/{name}", "revision": "main"} for name in ("gated", "limited", "broken", "dropped", "absent")
    ]
    gated, limited, broken, dropped, absent, revision = map(
        str, read(hub, tmp_path, *arguments, {"path": "org/gated", "revision": "dev"})
    )
    assert f"accept its licence on {hub.endpoint}/datasets/org/gated, then run `hf auth login`" in gated
    assert "HTTP 429" in limited and "HTTP 500" in broken and "broke off" in dropped
    assert "no such dataset" in absent and "no revision dev" in revision
    (stranger,) = read(hub, tmp_path, arguments[0], HF_TOKEN="hf_stranger")
    assert "this account has no access yet" in str(stranger)


def test_a_full_disk_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.dataset("org/it").commit(files("old"))
    full = "import errno, builtins, pathlib, huggingface_hub.file_download as f\n"
    full += "def fail(*a, **k): raise OSError(errno.ENOSPC, 'No space left on device')\nf.http_get = fail\n"
    done = python("-c", full + READ, json.dumps([{"revision": "main"}]), **hub.variables(tmp_path))
    assert "is full: free some space" in done.stdout, done.stderr


def test_a_cache_with_some_shards_of_a_split_is_not_that_split(hub: Hub, tmp_path: Path) -> None:
    shards = {f"data/test-0000{i}-of-00002.jsonl": lines(f"q{i}") for i in (0, 1)}
    sha = hub.dataset("org/it").commit(shards | {"README.md": card({"default": {"test": "data/test-*"}})})
    get = "from huggingface_hub import hf_hub_download as get\nimport sys\n"
    get += "for name in sys.argv[2:]:\n    get('org/it', name, repo_type='dataset', revision=sys.argv[1])\n"
    first, second = sorted(shards)
    assert python("-c", get, sha, "README.md", first, **hub.variables(tmp_path)).returncode == 0
    (told,) = read(hub, tmp_path, {"revision": sha}, HF_HUB_OFFLINE="1")
    assert "could not be loaded (DataFilesNotFoundError: No (supported) data files found in org/it)" in str(told)
    assert python("-c", get, sha, second, **hub.variables(tmp_path)).returncode == 0
    ((rows, _),) = read(hub, tmp_path, {"revision": sha}, HF_HUB_OFFLINE="1")  # type: ignore[misc]
    assert rows == ["q0", "q1"]
