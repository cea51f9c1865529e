"""Questions about the user's records are answered from these alone, next to the project's records."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import ssd_bench
from ssd_bench.cost.shapes import shape_named
from ssd_bench.papers.runs import index
from ssd_bench.paths import record_files
from ssd_bench.predict.advise import usable_runs
from ssd_bench.predict.question import parse_question
from ssd_bench.records.pack import pack
from ssd_bench.records.reader import find_runs
from ssd_bench.report import figures, numbers, write
from tests.exhibit_runs import indexed, make
from tests.predict.test_replay import LATENCY
from tests.runs import program

OWN, PROJECTS = 7, 3
EXPERIMENT = "swift_table2"
SIZE = {"name": "miniature", "n_layers": 16, "n_params": shape_named("miniature").n_params, "toy": True}
GIVEN = {"model": SIZE, "latency": asdict(LATENCY), "config": {"method": {}}, "task": {"name": "gsm8k"}}


def fill(folder: Path, n_runs: int, label: str) -> None:
    """Runs of two methods, and an experiment's index with all of them."""
    names = [
        make(folder, f"{label}-{i}", accept=0.5 + 0.05 * i, method=("swift", "clasp")[i % 2], **GIVEN)
        for i in range(n_runs)
    ]
    numbers = iter(range(1000))
    indexed(folder, EXPERIMENT, "mini", lambda job: names[next(numbers) % n_runs], own_traces=False)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven own runs next to the project's: three in a folder and three packed."""
    folder = tmp_path_factory.mktemp("clone")
    fill(folder / "runs", OWN, "own")
    fill(folder / "runs/reference/mini", PROJECTS, "projects")
    fill(folder / "packed", PROJECTS, "packed")
    pack(folder / "packed", folder / "runs/reference/more.zip")
    return folder


@pytest.fixture
def here(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(clone)
    yield clone
    shutil.rmtree(clone / "runs/reference/more", ignore_errors=True)  # unpacked where a test asked for it


def test_a_folder_of_runs_does_not_contain_the_projects(here: Path) -> None:
    assert {path.parent.name for path in find_runs("runs")} == {"runs"} and len(find_runs("runs")) == OWN
    assert len(index.find(Path("runs"))) == 1
    assert len(find_runs("runs/reference/mini")) == PROJECTS
    assert len(index.find(Path("runs/reference"))) >= 1


def test_every_command_reads_seven(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is of these runs' paper, without drawings and page."""
    monkeypatch.setattr(figures, "save", lambda made, stem: [])
    monkeypatch.setattr(figures, "draw_figures", lambda *_: {})
    monkeypatch.setattr(write.page, "render", lambda *_: "")
    monkeypatch.setattr(write, "audit", SimpleNamespace(audit=list, markdown_text=str))
    monkeypatch.setattr(numbers, "long_tables", partial(numbers.long_tables, only="swift"))
    frame = ssd_bench.load_runs("runs")
    assert len(frame) == OWN and frame["run_id"].str.startswith("own").all()
    assert program("status").stdout.strip() == f"{OWN} done"
    question = parse_question(["model=miniature", "hardware=sim_h100", "task=gsm8k"])
    used, left = usable_runs(question)
    assert len(used) == OWN and not left
    report, claims = program("report", f"out={here / 'report'}"), program("claims", f"out={here / 'own.csv'}")
    assert report.returncode == claims.returncode == 0
    files = [file for file in (here / "report").rglob("*") if file.suffix in (".md", ".csv")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    assert any("own-0" in text for text in texts)
    for text in (report.stdout, claims.stdout, (here / "own.csv").read_text(encoding="utf-8"), *texts):
        assert "projects-" not in text and "packed-" not in text
    assert not (here / "runs/reference/more").exists()  # nobody asked for it


def test_the_projects_are_read_where_they_are_named(here: Path) -> None:
    assert len(ssd_bench.load_runs("runs/reference/mini")) == PROJECTS
    frame = ssd_bench.load_runs("runs/reference")
    assert len(frame) == 2 * PROJECTS and not frame["run_id"].str.startswith("own").any()
    assert program("status", "runs_dir=runs/reference/more.zip").stdout.strip() == f"{PROJECTS} done"


def test_a_pack_of_own_runs_leaves_out_the_projects(here: Path) -> None:
    assert pack(here / "runs", here / "own.zip") == OWN


@pytest.fixture
def only_the_projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "runs/reference/mini", "projects", **GIVEN)
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path)


def test_without_own_runs_the_message_names_the_projects(only_the_projects: None) -> None:
    for line, code in {
        "advise model=miniature hardware=own": 2,
        "advise model=miniature hardware=sim_h100": 0,
        "claims": 0,
        "status": 0,
    }.items():
        end = program(*line.split())
        assert end.returncode == code and "runs_dir=runs/reference" in " ".join((end.stdout + end.stderr).split()), line
    with pytest.warns(UserWarning, match="no complete run in .*: runs/reference"):
        assert ssd_bench.load_runs("runs").empty
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ssd_bench.load_runs("none").empty  # nothing to name


def test_without_own_runs_the_report_is_of_the_projects(
    only_the_projects: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssd_bench.commands.report.write_replication", lambda *_: [])
    end = program("report")
    first = end.stdout.splitlines()[0]
    assert first.startswith("no runs of yours yet: ") and first.endswith("committed records in runs/reference")
    assert end.returncode == 0 and Path("runs/report/README.md").is_file()
    assert program("report", "runs_dir=none").returncode == 2


def test_files_are_found_by_name_or_by_folder_and_name(tmp_path: Path) -> None:
    folder = tmp_path / "replication"
    indices = ("replication/x.json", "b/replication/y.json", "b/replication/z.csv")
    for name in ("a/run.json", "b/reference/run.json", *indices):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()

    def names(pattern: str, root: Path = folder) -> set[str]:
        return {path.relative_to(folder).as_posix() for path in record_files(root, pattern)}

    assert names("run.json") == {"a/run.json"}
    assert names("replication/*.json") == {"replication/x.json", "b/replication/y.json"}  # not by the folder's own name
    assert names("run.json", folder / "b/reference") == {"b/reference/run.json"}
