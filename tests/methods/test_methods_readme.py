"""methods/README.md: its example works as printed, and its table names every preset."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from ssd_bench.conf import CONF
from tests.lossless import Load, check_greedy
from tests.runs import CPU, program

README = (Path(__file__).parents[2] / "methods" / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "successors.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "successors.yaml").write_text(block("yaml"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_example_is_lossless(folder: Path, decoders: Load) -> None:
    settings = OmegaConf.load(folder / "method" / "successors.yaml")
    assert check_greedy(lambda rng: instantiate(settings, draft_len=rng.choice([1, 4])), decoders) > 0


def test_the_example_runs_by_its_command(folder: Path) -> None:
    (words,) = re.findall(r"```\npython -m ssd_bench (.*?)\n```", README)
    options = ("decode.max_new_tokens=12", f"runs_dir={folder / 'runs'}", *CPU)
    made = program(*words.replace("YOUR_FOLDER", str(folder)).split(), *options)
    assert made.returncode == 0, made.stderr
    assert "successors on gsm8k" in made.stdout and re.search(r"lossless.*4/4", made.stdout)
    advice = program("advise", "model=miniature", "hardware=sim_h100", f"runs_dir={folder / 'runs'}")
    assert advice.returncode == 0, advice.stderr
    assert re.search(r"^successors +gsm8k  .* 1  ", advice.stdout, re.MULTILINE)
    assert "the best of your runs of miniature is successors on gsm8k" in " ".join(advice.stdout.split())


PLAIN = """
class Plain(Successors):
    def __init__(self, name, draft_len):
        self.name, self.draft_len = name, draft_len
"""


def test_a_plain_class_runs_as_well(folder: Path) -> None:
    (folder / "plain.py").write_text(block("python").replace('@settings("method")', "") + PLAIN, encoding="utf-8")
    written = block("yaml").replace("successors.Successors", "plain.Plain")
    (folder / "method" / "plain.yaml").write_text(written, encoding="utf-8")
    options = (f"hydra.searchpath=[file://{folder}]", "limit=1", "decode.max_new_tokens=12", *CPU)
    made = program("method=plain", "task=gsm8k", *options, f"runs_dir={folder / 'runs'}")
    assert made.returncode == 0 and re.search(r"lossless.*1/1", made.stdout), made.stderr


def test_the_table_names_every_preset() -> None:
    rows = re.findall(r"^\| (`.*?) \|", README.split("\n## Available methods\n")[1], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == {path.stem for path in (CONF / "method").glob("*.yaml")}
