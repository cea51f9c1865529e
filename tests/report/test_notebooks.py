"""The notebooks run on the committed records, and show what was committed with them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from ssd_bench.errors import ConfigError
from ssd_bench.papers.claims.claims import claims
from ssd_bench.papers.claims.judge import Judgement
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.report import notebook as module
from ssd_bench.report.notebook import VARIABLE, Paper, Shown
from tests.runs import REFERENCE, ROOT

FOLDER = ROOT / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def shown(cells: Sequence[Any]) -> list[tuple[str, str]]:
    """(source, output) of every code cell; of an image only its existence."""
    found = []
    for cell in cells:
        if cell.cell_type == "code":
            data = [output.get("data", {"text/plain": output.get("text", "")}) for output in cell.outputs]
            texts = ["an image" if "image/png" in each else each.get("text/markdown", "") for each in data]
            found.append((cell.source, "\n".join(texts)))
    return found


def run_here(source: str, names: dict[str, Any]) -> str:
    """Run a cell in this process, and return a kernel's text output."""
    *statements, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        exec(source, names)
        return ""
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    assert isinstance(value, Shown)
    return value._repr_mimebundle_()["text/markdown"]


def test_there_is_one_for_each_paper_and_one_for_all_methods() -> None:
    assert NAMES == ["compare.ipynb", "conflayers.ipynb", "knapspec.ipynb", "knn_ssd.ipynb", "swift.ipynb"]


def test_a_kernel_shows_what_was_committed(reference: list[Replication], monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole notebook of all methods: tables word for word, and figures. `reference` makes the digests it reads."""
    notebook = nbformat.read(FOLDER / "compare.ipynb", as_version=4)
    committed = shown(notebook.cells)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    monkeypatch.setenv(VARIABLE, str(REFERENCE))
    client.execute()
    assert shown(notebook.cells) == committed
    assert any(text == "an image" for _, text in committed)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "compare.ipynb"])
def test_a_papers_notebook_shows_what_was_committed(
    name: str, reference: list[Replication], judgements: list[Judgement], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables word for word, so that numbers and records cannot part; test_exhibit_figures draws the figures."""
    monkeypatch.setenv(VARIABLE, str(REFERENCE))
    monkeypatch.setattr(module, "replications", lambda _: reference)
    monkeypatch.setattr(
        module, "judge", lambda _, paper: [one for one in judgements if one.claim.id.startswith(f"{paper}/")]
    )
    names: dict[str, Any] = {}
    cells = shown(nbformat.read(FOLDER / name, as_version=4).cells)
    for source, text in cells:
        assert text == "an image" or run_here(source, names) == text, source
    assert any(text == "an image" for _, text in cells)


def test_a_notebook_has_prose_before_every_call_and_no_logic() -> None:
    for name in NAMES:
        cells = nbformat.read(FOLDER / name, as_version=4).cells
        assert cells[0].cell_type == "markdown"
        for cell in cells:
            if cell.cell_type == "code":
                lines = [line for line in cell.source.splitlines() if line]
                starts = ("from ssd_bench", "paper", "comparison", "Paper")
                assert all(line.startswith(starts) for line in lines), cell.source


def test_every_claim_stands_in_its_papers_notebook() -> None:
    for claim in claims():
        paper, name = claim.id.split("/")
        source = (FOLDER / f"{paper.replace('-', '_')}.ipynb").read_text(encoding="utf-8")
        assert f'paper.claim(\\"{name}\\")' in source, claim.id


def test_what_a_paper_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"paper='medusa' .*knapspec"):
        Paper("medusa")
    swift = Paper("swift", REFERENCE)
    for show, name, message in (
        (swift.table, "Table 99", r"exhibit='Table 99' .*Table 2"),
        (swift.claim, "best", r"claim='best' .*faster_than_ar"),
        (swift.figure, "Table 2", r"exhibit='Table 2' .*swift_figure6"),
    ):
        with pytest.raises(ConfigError, match=message):
            show(name)
