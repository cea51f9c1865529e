"""The content key sees everything that matters and nothing else; provenance holds no secrets."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_bench.records import provenance
from ssd_bench.records.provenance import code_hash, collect, content_key
from ssd_bench.run.plan import plan
from tests.runs import CPU, composed, planned

TEXT = st.text("ab1é", max_size=4)
FRACTION = st.floats(-9, 9).filter(lambda number: not number.is_integer())  # whole ones count as integers
LEAF = st.none() | st.booleans() | st.integers(-5, 5) | FRACTION | TEXT
CONFIG = st.dictionaries(
    st.sampled_from("abcdef"),
    st.recursive(
        LEAF, lambda s: st.lists(s, max_size=3) | st.dictionaries(st.sampled_from("ghi"), s, max_size=3), max_leaves=8
    ),
    max_size=5,
)


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        items = [(key, shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    return tuple(shuffled(item, rng) for item in value) if isinstance(value, list) else value


@settings(max_examples=30, deadline=None)
@given(CONFIG, st.randoms(use_true_random=False))
def test_the_key_ignores_key_order_containers_and_excluded_options(config: dict[str, Any], rng: random.Random) -> None:
    key = content_key(config, "code", "data")
    again = shuffled(config, rng) | {"runs_dir": "elsewhere", "force": True, "wandb": {"mode": "offline"}}
    assert content_key(again, "code", "data") == key
    assert len(key) == 64


@settings(max_examples=30, deadline=None)
@given(CONFIG, CONFIG)
def test_the_key_sees_every_value(one: dict[str, Any], two: dict[str, Any]) -> None:
    equal = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    assert (content_key(one, "c", "d") == content_key(two, "c", "d")) == equal


def test_the_key_sees_code_data_and_types() -> None:
    keys = {content_key({"a": a}, c, d) for a in (1, True, "1", None, 1.5) for c in "xy" for d in "xy"}
    assert len(keys) == 20
    assert content_key({"a": 1}, "x", "y") == content_key({"a": 1.0}, "x", "y")
    with pytest.raises(TypeError):
        content_key({"a": object()}, "x", "y")


def test_the_key_of_a_run_sees_what_its_tables_and_draws_have_of_an_item(tmp_path: Path) -> None:
    keys = []
    for row in ('"id": 1', '"id": 2', '"id": 1, "category": "c"', '"id": 1, "reference": "r"'):
        (tmp_path / "mine.jsonl").write_text(f'{{"prompt": ["a", "b"], {row}}}', encoding="utf-8")
        made = planned(tmp_path, "task=jsonl", f"task.path={tmp_path}/mine.jsonl", "method=ar")
        keys.append(made.identity.content_key)
    assert len(set(keys)) == 4


def test_dotted_exclusions_leave_out_only_their_branch() -> None:
    config = {"hardware": {"progress": True, "dtype": "float32"}}
    other = {"hardware": {"progress": False, "dtype": "float32"}}
    half = {"hardware": {"progress": True, "dtype": "float16"}}
    keys = [content_key(c, "c", "d", exclude=("hardware.progress",)) for c in (config, other, half)]
    assert keys[0] == keys[1] != keys[2]


def test_the_code_hash_sees_sources_and_extra_files_but_not_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ssd_bench", "methods", "tasks"):
        (tmp_path / name / "report").mkdir(parents=True)
    monkeypatch.setattr(provenance, "_package_dir", lambda name: tmp_path / name)
    seen: set[str] = set()
    for name in ("methods/a.py", "ssd_bench/a.py", "ssd_bench/a.cpp", "ssd_bench/a.py"):
        (tmp_path / name).write_text(f"x = {len(seen)}", encoding="utf-8")
        seen.add(code_hash())
    assert len(seen) == 4
    for name in ("ssd_bench/report/tables.py", "ssd_bench/notes.txt"):
        (tmp_path / name).write_text("x = 1", encoding="utf-8")
        assert code_hash() in seen
    assert code_hash([tmp_path / "ssd_bench/notes.txt"]) not in seen
    before = code_hash()
    (tmp_path / "methods/a.py").rename(tmp_path / "tasks/b.py")
    assert code_hash() == before, "a file that is only moved makes no run stale"


def test_collect_is_json_and_masks_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hush-hush")
    argv = ["python", "-m", "ssd_bench", "wandb.api_key=hush-hush", "+hf_token=hush", "decode.max_new_tokens=8"]
    found = collect([*argv, "+model.token=hush-hush"], gpus=["H200"])
    assert "hush" not in json.dumps(found) and "max_new_tokens=8" in found["command"]
    assert found["device"]["gpus"] == ["H200"] and found["device"]["cores"] >= 1
    assert found["code"]["sha256"] == code_hash() and found["packages"]["numpy"]
    assert collect("python -m ssd_bench task=toy")["command"] == "python -m ssd_bench task=toy"


def test_a_plan_has_the_command_line_that_it_was_given(tmp_path: Path) -> None:
    """Not the process's arguments, which may be a scheduler's worker's."""
    cfg = composed(f"runs_dir={tmp_path}", *CPU, "method=ar")
    assert plan(cfg, ["-m", "seed=0,1", "task.system=a b"]).origin.command == (
        "python -m ssd_bench -m seed=0,1 'task.system=a b'"
    )


def test_git_state_tells_commit_and_changes(tmp_path: Path) -> None:
    package = tmp_path / "ssd_bench"
    package.mkdir()
    assert provenance._git_state(package) == {"git_sha": None, "git_dirty": None}
    (package / "__init__.py").write_text("", encoding="utf-8")

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    git("init")
    assert provenance._git_state(package)["git_sha"] is None  # somebody else's checkout: it does not track us
    git("add", ".")
    git("commit", "--no-verify", "-m", "one")
    clean = provenance._git_state(package)
    assert len(clean["git_sha"]) == 40
    assert clean["git_dirty"] is False
    (package / "new.py").write_text("", encoding="utf-8")
    assert provenance._git_state(package) == {"git_sha": clean["git_sha"], "git_dirty": True}
