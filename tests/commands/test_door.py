"""The entry point: its commands, output, and imports."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from ssd_bench import cli
from ssd_bench.cli import COMMANDS, dispatch
from ssd_bench.compose.application import command
from tests.runs import ROOT, environment, program, python


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Record each command's module and arguments, without running it."""
    asked: list[tuple[str, list[str]]] = []

    def module(name: str) -> SimpleNamespace:
        return SimpleNamespace(main=lambda arguments: asked.append((name, arguments)) or 7)

    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=module))
    return asked


@pytest.mark.parametrize("arguments", [[], ["a=1"], ["-m", "a=1,2"], ["~a"], ["--cfg", "job"], ["run"], ["run", "-h"]])
def test_without_a_command_it_runs(arguments: list[str], chosen: list[tuple[str, list[str]]]) -> None:
    rest = arguments[1:] if arguments[:1] == ["run"] else arguments
    assert dispatch(arguments) == 7 and chosen == [("ssd_bench.commands.run", rest)]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_function_of_its_module(name: str, chosen: list[tuple[str, list[str]]]) -> None:
    assert dispatch([name, "x=1", "--help"]) == 7 and chosen == [(f"ssd_bench.commands.{name}", ["x=1", "--help"])]
    assert callable(importlib.import_module(f"ssd_bench.commands.{name}").main)


def test_the_arguments_of_the_process_are_read_at_the_door_alone() -> None:
    files = [file for file in (ROOT / "ssd_bench").rglob("*.py") if "sys.argv" in file.read_text(encoding="utf-8")]
    assert [file.name for file in files] == ["cli.py"]


def test_an_unknown_command_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["reprot", "runs_dir=x"]) == 2
    error = capsys.readouterr().err
    assert "unknown command reprot" in error and all(name in error for name in COMMANDS)


def test_help_is_one_screen_of_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 120 and "run --help" in lines[-1]
    assert [line.split()[0] for line in lines if line[:3].strip() and line.split()[0] in COMMANDS] == list(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "modes", "compositions"),
    [
        (["method=ar"], [RunMode.RUN], 1),
        (["method=ar", "hydra.mode=RUN"], [RunMode.RUN], 2),
        (["-m", "method=ar"], [RunMode.MULTIRUN], None),
        (["method=ar", "hydra.mode=MULTIRUN"], [RunMode.MULTIRUN], None),
    ],
)
def test_a_config_is_composed_once_unless_it_may_choose_a_sweep(
    arguments: list[str],
    modes: list[RunMode],
    compositions: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compose, composed, seen = Hydra.compose_config, [], []

    def counted(self: Hydra, *options: Any, **named: Any) -> DictConfig:
        composed.append(options)
        return compose(self, *options, **named)

    monkeypatch.setattr(Hydra, "compose_config", counted)
    code = command(lambda *given: seen.append(HydraConfig.get().mode), [*arguments, f"runs_dir={tmp_path}"])
    assert (code, seen) == (0, modes)
    assert compositions in (None, len(composed))


LIGHT = {
    "import ssd_bench": ["torch", "pandas", "hydra"],
    "from ssd_bench.cli import dispatch; dispatch(['-h'])": ["torch", "hydra"],
    "import ssd_bench.tables, ssd_bench.commands.data": ["pandas", "jinja2"],
    "import ssd_bench.commands.export, ssd_bench.report.frame": ["torch"],
    "import ssd_bench.report.write, ssd_bench.report.runs, ssd_bench.report.figures": ["torch"],
    "import ssd_bench.engine.lossless, ssd_bench.records.provenance, ssd_bench.commands.replay": ["torch"],
}
"""Imports and the libraries that they do not wait for, one after the other in a process."""


def test_what_does_not_use_a_library_does_not_import_it() -> None:
    code = "import sys"
    for statement, spared in LIGHT.items():
        code += f"\n{statement}\nassert sys.modules.keys().isdisjoint({spared}), {statement!r}"
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["audit", "bench"])
def test_every_command_says_how_it_is_used(name: str) -> None:
    done = program(name, "--help")
    assert done.returncode == 0 and f"python -m ssd_bench {name}" in done.stdout


def test_a_reader_that_has_seen_enough_ends_a_command_without_a_word() -> None:
    line = f"set -o pipefail; {sys.executable} -m ssd_bench options | head -1"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=environment(), capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout == "| option | belongs to | allowed values | meaning |\n"
