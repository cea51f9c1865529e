"""docs/tutorials: each page's method is written, tested and run as the page says."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ssd_bench.model.decoder import Decoder
from ssd_bench.sweep import sweep
from tests.runs import CPU, ROOT, program

FILES = (ROOT / "docs" / "tutorials").glob("*_method.md")  # tests/compose/test_plugin.py has the page on packages
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in FILES}
MODULES = {"tree_method": "token_recycling", "layer_method": "least_change"}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page], re.DOTALL)


def written(page: str, folder: Path) -> Path:
    (folder / "method").mkdir()
    (folder / f"{MODULES[page]}.py").write_text(blocks(page, "python")[0], encoding="utf-8")
    (settings,) = blocks(page, "yaml")
    (folder / "method" / f"{MODULES[page]}.yaml").write_text(settings, encoding="utf-8")
    return folder


@pytest.fixture(params=sorted(PAGES))
def page(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.syspath_prepend(written(request.param, tmp_path))
    yield request.param
    sys.modules.pop(MODULES[request.param], None)


def test_every_page_is_here() -> None:
    assert set(PAGES) == set(MODULES)


def test_its_tests_pass(page: str, decoders: Callable[..., Decoder]) -> None:
    module = ModuleType(page)
    exec(compile(blocks(page, "python")[1], page, "exec"), vars(module))
    tests: list[Callable[[Any], None]] = [test for name, test in vars(module).items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test(decoders)


def test_its_commands_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block's run, shortened; the last's sweep, described, and its explanation, of that run."""
    lines = "".join(blocks(page, "sh")).replace("YOUR_FOLDER", str(tmp_path)).splitlines()
    monkeypatch.setattr(sweep, "Forecast", lambda folders: SimpleNamespace(hours=lambda run: None))  # reads all records
    short = ("limit=1", "decode.max_new_tokens=8", f"runs_dir={tmp_path / 'runs'}", *CPU)
    for line in lines:
        if not line.startswith("python -m ssd_bench "):
            assert line == f"export PYTHONPATH={tmp_path}"
            continue
        _, _, *arguments = line.removeprefix("python ").split()
        if "explain" in arguments:
            (run,) = (path.parent for path in (tmp_path / "runs").glob("*/run.json"))
            made = program("explain", f"run={run}")
        else:
            made = program(*arguments, *short, *(["dry=true"] if "-m" in arguments else []))
        assert made.returncode == 0, made.stderr
        assert MODULES[page] in made.stdout
