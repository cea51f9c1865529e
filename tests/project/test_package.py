"""The package: the wheel has all that a run needs, and works without a clone."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from ssd_bench.records.reader import load_run
from tests.runs import GIVEN_LATENCY, ROOT, python

FRAME = ("hydra-core", "omegaconf", "torch", "transformers", "datasets", "evaluate", "rouge-score", "pandas")
RUN = ("method=knapspec", "limit=1", "decode.max_new_tokens=8", "hardware=cpu", GIVEN_LATENCY)
TOOLS = ("-m experiment=knn_ssd_figure10 dry=true", "audit", "run --help")
LINES = """
import json, sys
from hydra.core.global_hydra import GlobalHydra
import ssd_bench
from ssd_bench.cli import dispatch
print(ssd_bench.__file__)
for line in json.loads(sys.argv[1]):
    GlobalHydra.instance().clear()
    try:
        code = dispatch(line)
    except SystemExit as end:  # Hydra's, after its help
        code = end.code or 0
    assert code == 0, line
"""
PACKAGED = ("ssd_bench", "methods", "tasks", "hydra_plugins", "conf")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(built, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, in their own folder."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def tracked() -> list[str]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *PACKAGED]
    return subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout.split("\n")[:-1]


def test_the_wheel_has_every_file_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:  # not the installed files, among which a run writes bytecode
        made = {name for name in archive.namelist() if not name.endswith("/")}
    about = {name for name in made if name.startswith("ssd_bench-")}
    there = [name for name in tracked() if (ROOT / name).is_file()]
    assert made - about == {f"ssd_bench/{name}" if name.startswith("conf/") else name for name in there}


def test_the_program_is_the_door(installed: Path) -> None:
    points = ConfigParser()
    points.read(next(installed.glob("ssd_bench-*.dist-info")) / "entry_points.txt", encoding="utf-8")
    assert dict(points["console_scripts"]) == {"ssd-bench": "ssd_bench.cli:entry"}


def test_the_main_job_runs_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    """Run the wheel's files, not the repository's."""
    lines = json.dumps([RUN, *map(str.split, TOOLS)])
    done = python("-c", LINES, lines, cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert Path(done.stdout.partition("\n")[0]).is_relative_to(installed)
    (made,) = (path for path in (tmp_path / "runs").iterdir() if path.name.startswith("miniature-knapspec"))
    assert load_run(made).header.provenance.code["git_sha"] is None


def test_what_the_projects_frame_names_is_there_with_every_install() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = {line.split(">")[0].split("[")[0] for line in settings["dependencies"]}
    assert {*FRAME, "matplotlib", "wandb"} <= core
    assert {"gguf", "cluster", "ray", "notebooks", "dev"} == settings["optional-dependencies"].keys()


def test_the_lock_names_versions_and_hashes_and_no_place() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert entries and all("==" in line and line.endswith("\\") for line in entries)
    assert "://" not in text and "--index" not in text and "file:" not in text
    locked = {line.split("==")[0] for line in entries}
    assert not {"torch", "triton"} & locked, "their builds are the machine's"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [
        *settings["dependencies"],
        *(line for name, extra in settings["optional-dependencies"].items() if name != "ray" for line in extra),
    ]
    names = {line.split(">")[0].split("[")[0] for line in asked}
    assert names - locked == {"torch", "triton"}
