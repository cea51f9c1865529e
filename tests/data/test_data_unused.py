"""Unusable rows stop a run that uses them, others report them; only drawn rows are read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy
import pytest

from ssd_bench.contract.task import DataSpec, Prompt
from ssd_bench.data import HubSource, LocalSource
from ssd_bench.data.rows import UnusableRow
from ssd_bench.errors import ConfigError
from tasks.selection import shuffled
from tests.data.test_data_hub import repository
from tests.runs import executed, local_model, planned
from tests.sources import local_source
from tests.tasks.test_tasks import make

Row = dict[str, Any]


def problem(identity: str) -> Row:
    return {"id": identity, "question": f"question {identity}", "answer": "#### 1"}


def problems(count: int, *faulty: int) -> list[Row]:
    """Return rows of GSM8K, some without an answer."""
    return [problem(f"p{i}") | ({"answer": ""} if i in faulty else {}) for i in range(count)]


class Lazy(Sequence[Row]):
    """Rows that remember which were read."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows, self.read = rows, list[int]()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: Any) -> Any:
        self.read.append(at)
        return self.rows[at]

    def __iter__(self) -> Iterator[Row]:
        raise AssertionError("nobody has to read all of them")


class Both:
    """Items in a list, demonstrations read one by one."""

    def __init__(self, items: list[Row], shots: list[Row]) -> None:
        self.items, self.shots = items, Lazy(shots)

    def rows(self, spec: DataSpec) -> Sequence[Row]:
        return self.shots if "." in spec.name else self.items

    def fingerprint(self, spec: DataSpec) -> str:
        return spec.name


def eager(items: list[Row], shots: list[Row], count: int, seed: int) -> list[str]:
    """Return the demonstrations' ids by reading all: shuffle the rows, leave out the items, take the first."""
    excluded = {row["question"].strip() for row in items} | {row["id"] for row in items}
    rows = [shots[i] for i in numpy.random.default_rng(seed).permutation(len(shots))]
    pool = [row for row in rows if row["question"].strip() not in excluded and row["id"] not in excluded]
    return [row["id"] for row in pool[:count]]


def asked(prompt: Prompt) -> list[str]:
    return [line.removeprefix("Question: ") for line in prompt.head.splitlines() if line.startswith("Q")]


@pytest.mark.parametrize("seed", range(3))
def test_demonstrations_are_those_of_a_shuffle_of_all_rows_and_no_further_row_is_read(seed: int) -> None:
    items = [problem(f"i{n}") for n in range(20)]
    shots = [problem(f"s{n}") | ({"question": f" question i{n % 20} "} if n % 3 == 0 else {}) for n in range(3000)]
    source = Both(items, shots)
    prompt = make("gsm8k").prompts(source, "plain", 1, seed)[0]
    assert asked(prompt)[:5] == [shots[int(name[1:])]["question"] for name in eager(items, shots, 5, seed)]
    assert 5 <= len(source.shots.read) < 40


def test_demonstrations_of_every_subject_take_one_pass() -> None:
    subjects = ("Algebra", "Geometry", "Prealgebra")
    items = [{"id": f"i{n}", "problem": f"x{n}", "answer": "1", "subject": name} for n, name in enumerate(subjects)]
    shots = [{"id": f"s{n}", "problem": f"p{n}", "solution": "s", "subject": subjects[n % 3]} for n in range(600)]
    source = Both(items, shots)
    prompts = make("math").prompts(source, "plain", None, 3)
    order = [shots[int(i)] for i in numpy.random.default_rng(3).permutation(600)]
    for prompt in prompts:
        assert asked(prompt)[:5] == [row["problem"] for row in order if row["subject"].lower() == prompt.domain][:5]
    assert len(source.shots.read) == len(set(source.shots.read)) < 100


def test_rows_of_the_hub_that_are_not_drawn_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    drawn = set(numpy.random.default_rng(4).permutation(80)[:5])
    train = [{"question": f"t{i}", "answer": "#### 1" if i in drawn else ""} for i in range(80)]
    last = numpy.random.default_rng(4).permutation(9)[-1]
    test = [{"question": f"q{i}", "answer": "" if i == last else "#### 1"} for i in range(9)]
    folder = repository(tmp_path / "repository", {"train.jsonl": train, "test.jsonl": test})
    hub = {"path": str(folder), "name": None, "revision": None, "rows": None}
    task, source = make("gsm8k", hub=hub | {"split": "test"}, fewshot_hub=hub | {"split": "train"}), HubSource()
    assert len(task.prompts(source, "plain", 2, 4)) == 2
    unusable = {label.rpartition(" ")[2]: len(faults) for label, faults in source.unusable().items()}
    assert unusable == {"test": 1, "train": 0}


ROW = {"id": "a", "question": "q"}


def test_a_row_with_faults_has_its_other_fields(tmp_path: Path) -> None:
    source = local_source(tmp_path, {"toy": [ROW, {"id": "b", "question": "", "note": "n"}, ROW]})
    spec = DataSpec("toy", ("question",), {}, optional=("note",))
    good, faulty, repeated = source.rows(spec)
    assert good == ROW | {"note": ""} and isinstance(faulty, UnusableRow) and isinstance(repeated, UnusableRow)
    assert (faulty["id"], faulty["note"], repeated["question"]) == ("b", "n", "q")
    with pytest.raises(ConfigError, match=r"toy\.jsonl:2 question=''"):
        faulty["question"]
    ((file, faults),) = source.unusable().items()
    assert file == str(tmp_path / "toy.jsonl")
    assert [fault.field.rpartition(":")[2] for fault in faults] == ["2 question", "3 id"]


def position(rows: list[Row], name: str, seed: int = 0) -> int:
    return [row["id"] for row in shuffled(rows, seed)].index(name)


def test_an_item_that_cannot_be_used_stops_a_run_that_takes_it(tmp_path: Path) -> None:
    rows = problems(12, 4)
    source, at = local_source(tmp_path, {"gsm8k": rows}), position(rows, "p4")
    task = make("gsm8k")
    kept = [prompt.id for prompt in task.prompts(source, "chat", at, 0)]
    assert kept == [row["id"] for row in list(shuffled(rows, 0))[:at]]
    for limit in (at + 1, None):
        with pytest.raises(ConfigError, match=r"gsm8k\.jsonl:5 answer=''"):
            task.prompts(source, "chat", limit, 0)


def test_a_demonstration_that_cannot_be_used_stops_a_run_that_draws_it(tmp_path: Path) -> None:
    shots = problems(12, 4)
    source, at = local_source(tmp_path, {"gsm8k": [problem("x")], "gsm8k.fewshot": shots}), position(shots, "p4")
    make("gsm8k", shots=at).prompts(source, "plain", None, 0)
    with pytest.raises(ConfigError, match=r"gsm8k\.fewshot\.jsonl:5 answer=''"):
        make("gsm8k", shots=at + 1).prompts(source, "plain", None, 0)


def test_a_record_tells_of_rows_that_it_did_not_need(
    small_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = problems(12, 4)
    local_source(tmp_path / "data", {"gsm8k": rows})
    at = position(rows, "p4")
    options = (*local_model(small_checkpoint), "task=gsm8k", "data=local", f"data.root={tmp_path}/data")
    short = (*options, "decode.max_new_tokens=2")
    run = executed(tmp_path / "runs", *short, "method=ar", f"limit={at}")
    (told,) = run.header.warnings
    assert "1 fault in rows of " in told and "that this run does not use" in told and "gsm8k.jsonl:5 answer=''" in told
    assert capsys.readouterr().err.count(told) == 1
    with pytest.raises(ConfigError, match=r"gsm8k\.jsonl:5 answer=''"):
        planned(tmp_path, *short, "method=ar", f"limit={at + 1}")


def test_a_calibration_item_that_cannot_be_used_stops_the_run(small_checkpoint: Path, tmp_path: Path) -> None:
    rows = problems(12, 4)
    local_source(tmp_path / "data", {"gsm8k": rows})
    at = position(rows, "p4")
    options = (*local_model(small_checkpoint), "task=gsm8k", "data=local", f"data.root={tmp_path}/data", "limit=1")
    method = ("method=layerskip_swept", "decode.max_new_tokens=2")
    assert at > 2
    plan = planned(tmp_path, *options, *method, f"method.calibration={at - 1}")
    assert len(plan.prompts.samples) == at - 1 and plan.warnings
    with pytest.raises(ConfigError, match=r"gsm8k\.jsonl:5 answer=''"):
        planned(tmp_path, *options, *method, f"method.calibration={at}")


@pytest.mark.parametrize(
    "line", ['{"id": 1, "id": 2, "question": "q"}', '{"id": 1, "question": "q", "x": {"": 1, "": 1}}']
)
def test_a_repeated_key_is_a_fault(line: str, tmp_path: Path) -> None:
    (tmp_path / "toy.jsonl").write_text(f"{json.dumps(ROW)}\n{line}\n", encoding="utf-8")
    source = LocalSource(tmp_path)
    assert isinstance(source.rows(DataSpec("toy", ("question",), {}))[1], UnusableRow)
    ((_, (fault,)),) = source.unusable().items()
    assert fault.field.endswith("toy.jsonl:2") and "an object in which every key is unique" in fault.expected
