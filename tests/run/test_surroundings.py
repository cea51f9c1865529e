"""The same command gives the same answers anywhere: cores, locale, time zone, home, compiler.

Not here: the CPU's model (test_kernels tests every level of instructions, and `make test ISA=LEVEL` runs the suite on
any), its load (no test asserts a time), the order of tests (pytest-randomly shuffles it), and a missing browser (tests
of the report's page say that they are skipped).
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ssd_bench.compose.build import build
from ssd_bench.cost import profiling
from ssd_bench.cost.latency import Latency
from ssd_bench.errors import ConfigError
from ssd_bench.records.reader import Run, find_runs, load_run
from tests.forked import at_once
from tests.runs import GIVEN_LATENCY, ROOT, composed, environment, executed, python

OPTIONS = ("limit=1", "decode.max_new_tokens=12", "hardware=cpu", "hardware.dtype=float32", "hardware.warmup=0")
NOWHERE = "/proc/nowhere"  # cannot be made, not even by root
ELSEWHERE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "TZ": "Pacific/Kiritimati"}
HOMELESS = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "SSD_BENCH_CACHE", "TORCH_EXTENSIONS_DIR"), NOWHERE)


def answers(run: Run) -> list[list[int]]:
    return [list(ids) for ids in run.prompts.sort_values(["prompt_index", "arm"])["output_ids"]]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return executed(tmp_path_factory.mktemp("here"), *OPTIONS)


@pytest.mark.parametrize("compiler", [True, False])
def test_the_main_job_runs_anywhere(compiler: bool, here: Run, tmp_path: Path) -> None:
    """ASCII in the far east without a home, and without a compiler: PyTorch steps in if no kernels can be made."""
    line = [f"runs_dir={tmp_path / 'runs'}", *OPTIONS, "hardware.threads=1", GIVEN_LATENCY]
    if compiler:
        done = python("-m", "ssd_bench", *line, **ELSEWHERE, **HOMELESS)
    else:
        nothing_built = {"SSD_BENCH_CACHE": str(tmp_path), "CC": "false", "CXX": "false"}
        (done,) = at_once([line], environment() | nothing_built)
    assert done.returncode == 0, done.stderr
    (there,) = map(load_run, find_runs(tmp_path / "runs"))
    assert there.header.model.arithmetic["kernels"] == "torch" and answers(there) == answers(here)


@pytest.fixture
def threads_back() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("cores", [2, 3])
def test_answers_do_not_depend_on_the_cores(
    cores: int, here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads_back: None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    run = executed(tmp_path, *OPTIONS, "hardware.threads=null")
    assert run.header.model.threads == cores and answers(run) == answers(here)


def test_a_profile_that_cannot_be_kept_is_used_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Latency(0.5, 1e-3, 0.5)
    monkeypatch.setattr(profiling, "measure", lambda *_: made)
    assert profiling.load_or_measure(None, None, Path(NOWHERE, "profile.json")) is made  # type: ignore[arg-type]
    assert "SSD_BENCH_CACHE" in capsys.readouterr().err


def test_weights_that_cannot_be_converted_name_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSD_BENCH_CACHE", NOWHERE)
    with pytest.raises(ConfigError, match=f"SSD_BENCH_CACHE='{NOWHERE}'"):
        build(composed("model=smollm2_135m"), "model").open()


def test_text_files_name_their_encoding() -> None:
    """A file written by locale may be unreadable on another machine."""
    silent = []
    for package in ("ssd_bench", "methods", "tasks", "hydra_plugins", "tests"):
        for file in (ROOT / package).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if re.search(r"open\(|(read|write)_text\(|text=", text):  # to parse all takes seconds
                calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
                silent += [f"{file}:{call.lineno}" for call in calls if by_locale(call)]
    assert not silent


def by_locale(call: ast.Call) -> bool:
    """Return whether a call's text follows the locale."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    keywords = {keyword.arg for keyword in call.keywords}
    if "encoding" in keywords:
        return False
    if name == "open":
        built_in = isinstance(call.func, ast.Name)  # else a path's, or os.open, which has flags
        given = [arg.value for arg in call.args[built_in:] if isinstance(arg, ast.Constant)]
        modes = [mode for mode in given if isinstance(mode, str)]
        return (built_in or bool(modes)) and not any("b" in mode for mode in modes)
    return name in ("read_text", "write_text") or ("text" in keywords and name in ("run", "Popen"))
