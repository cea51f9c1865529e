"""Faults of a local file: the error names file and line, and comes before the model."""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_bench.compose.application import command
from ssd_bench.contract.task import DataSpec
from ssd_bench.data import LocalSource, local
from ssd_bench.data.rows import faults_of
from ssd_bench.errors import ConfigError
from ssd_bench.run.plan import plan
from tests.sources import used

SPEC = DataSpec("toy", ("question", "answer"), {}, lists=("answer",))
MIB = 2**20


def row(name: object, **changes: object) -> bytes:
    return json.dumps({"id": name, "question": "q", "answer": ["a"]} | changes).encode()


FAULTS = {
    "cut off": (row("x")[:-3], "JSON object"),
    "no object": (b'["id", "x"]', "JSON object"),
    "two objects": (row("x") + row("y"), "JSON object"),
    "NaN": (b'{"id": "x", "question": "q", "answer": ["a"], "score": NaN}', "no such number"),
    "huge number": (b'{"id": ' + b"9" * 10_000 + b"}", "JSON object"),
    "deep": (b'{"id": ' + b"[" * 200_000, "JSON object"),
    "empty field": (row("x", question="\n"), " question=.*non-empty string"),
    "Latin-1": (row("x").replace(b'"q"', b'"\xff"'), r"=b'\\xff'.*UTF-8"),
    "UTF-16": (row("x").decode().encode("utf-16-be"), "NUL bytes"),
    "NUL": (row("x").replace(b'"q"', b'"\0"'), "NUL bytes"),
}


@pytest.mark.parametrize("fault", FAULTS)
@settings(max_examples=8, deadline=None)
@given(before=st.integers(0, 30), blank=st.integers(0, 2), after=st.integers(0, 3))
def test_a_fault_is_named_with_its_line(fault: str, before: int, blank: int, after: int) -> None:
    line, message = FAULTS[fault]
    good = [row(i) for i in range(before + after)]
    with tempfile.TemporaryDirectory() as root:
        path = Path(root, "toy.jsonl")
        path.write_bytes(b"\n".join([*good[:before], *[b" "] * blank, line, *good[before:]]))
        with pytest.raises(ConfigError, match=rf"toy\.jsonl:{before + blank + 1}\b.*{message}"):
            used(LocalSource(root), SPEC)
        rows = [found for _, found in LocalSource(root).scan(SPEC)]
    assert [bool(faults_of(found)) for found in rows] == [False] * before + [True] + [False] * after


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 20), st.integers(0, 20))
def test_both_lines_of_a_repeated_id_are_named(first: int, between: int) -> None:
    lines = [row(i) for i in range(first + between)]
    with tempfile.TemporaryDirectory() as root:
        Path(root, "toy.jsonl").write_bytes(b"\n".join([*lines, row(str(first - 1)), b""]))
        message = rf"toy\.jsonl:{first + between + 1} id='{first - 1}' .*line {first} has the same id"
        with pytest.raises(ConfigError, match=message):
            used(LocalSource(root), SPEC)


def test_every_fault_of_a_row_is_found(tmp_path: Path) -> None:
    (tmp_path / "toy.jsonl").write_bytes(row("", question=1, answer=["a", ""]))
    ((_, found),) = LocalSource(tmp_path).scan(SPEC)
    assert [fault.field.rpartition(" ")[2] for fault in faults_of(found)] == ["id", "question", "answer"]


@pytest.mark.parametrize("content", [b"", b"\n \n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
def test_a_file_without_rows_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "toy.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=r"toy\.jsonl=.*at least one row"):
        used(LocalSource(tmp_path), SPEC)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "toy.jsonl").mkdir()
    for read in (LocalSource(tmp_path).rows, LocalSource(tmp_path).fingerprint):
        with pytest.raises(ConfigError, match=r"a folder in which toy\.jsonl is a file"):
            read(SPEC)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"data\.root='.*/file'.*existing folder"):
        used(LocalSource(tmp_path / "file"), SPEC)


@pytest.mark.parametrize("read", [LocalSource.rows, LocalSource.fingerprint])
def test_a_file_that_cannot_be_read_is_refused(
    read: Callable[[LocalSource, DataSpec], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "toy.jsonl").write_bytes(row(0))
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"toy\.jsonl' is invalid: expected a readable file \(Permission denied"):
        read(LocalSource(tmp_path), SPEC)


def test_a_line_without_end_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "toy.jsonl").open("wb") as file:
        file.write(row(0) + b"\n" + b'{"id": "')
        file.truncate(110 * MIB)  # a hole, which reads as zeros and takes no room
        file.seek(0, 2)
        file.write(b"\n" + row(2))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError) as caught:
            used(LocalSource(tmp_path), SPEC)
        lines = list(LocalSource(tmp_path).scan(SPEC))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.field.endswith("toy.jsonl:2")
    assert f"{32 * MIB} bytes (32 MiB) a line; {32 * MIB + 1} were read" in caught.value.expected
    assert [found.get("id") for _, found in lines] == ["0", None, "2"]
    assert peak < 100 * MIB


@pytest.mark.parametrize(("ending", "spare"), [(b"\n", 0), (b"", 0), (b"\n", -1), (b"", -1)])
def test_a_line_just_as_long_as_allowed_is_read(
    ending: bytes, spare: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy.jsonl").write_bytes(row(0) + ending)
    monkeypatch.setattr(local, "LINE_LIMIT", len(row(0)) + spare)
    if spare == 0:
        assert len(used(LocalSource(tmp_path), SPEC)) == 1
    else:
        with pytest.raises(ConfigError, match=rf":1=.*{len(row(0))} were read"):
            used(LocalSource(tmp_path), SPEC)


def test_the_fingerprint_does_not_hold_the_file(tmp_path: Path) -> None:
    with (tmp_path / "toy.jsonl").open("wb") as file:
        file.truncate(8 * MIB)
    tracemalloc.start()
    try:
        LocalSource(tmp_path).fingerprint(SPEC)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * MIB


TOLD = {"gsm8k.jsonl:2=": b"\xff", "gsm8k.jsonl:2 answer=None": b'{"id": "b", "question": "q?"}'}
TOLD["gsm8k 1 answer='one'"] = b'{"id": 1, "question": "q?", "answer": "one"}'


@pytest.mark.parametrize(("named", "line"), TOLD.items())
def test_the_command_line_tells_of_the_data_before_the_model(
    line: bytes, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gsm8k.jsonl").write_bytes(b'{"id": 0, "question": "q", "answer": "#### 1"}\n' + line + b"\n")
    options = ["task=gsm8k", "data=local", f"data.root={tmp_path}", "model=local", "model.path=/does/not/exist"]
    rest = ["model.template=chat", "hardware=cpu", f"runs_dir={tmp_path / 'runs'}"]
    GlobalHydra.instance().clear()
    assert command(lambda cfg, *_: plan(cfg), [*options, *rest]) == 2
    message = capsys.readouterr().err
    assert named in message and "/does/not/exist" not in message and message.count("error:") == 1
