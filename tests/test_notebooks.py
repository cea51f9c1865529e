"""The notebooks run from top to bottom on the committed records, and show what was committed with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from ssd_bench.errors import ConfigError
from ssd_bench.papers.claims.claims import claims
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.report.notebook import VARIABLE, Paper
from tests.runs import REFERENCE, ROOT

FOLDER = ROOT / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def shown(cells: Sequence[Any]) -> list[tuple[str, str]]:
    """(source, what it shows) of every cell with code; of an image only that there is one."""
    found = []
    for cell in cells:
        if cell.cell_type == "code":
            data = [output.get("data", {"text/plain": output.get("text", "")}) for output in cell.outputs]
            texts = ["an image" if "image/png" in each else each.get("text/markdown", "") for each in data]
            found.append((cell.source, "\n".join(texts)))
    return found


@pytest.fixture(scope="module")
def executed(reference: list[Replication]) -> dict[str, Sequence[Any]]:
    """Return the cells of every notebook, executed by one kernel (to start one takes seconds) without common names.

    Args:
        reference: makes the digests that the kernel reads.
    """
    joined, places = nbformat.v4.new_notebook(), dict[str, slice]()
    for name in NAMES:
        start = len(joined.cells)
        joined.cells += nbformat.read(FOLDER / name, as_version=4).cells
        places[name] = slice(start, len(joined.cells))
        joined.cells.append(nbformat.v4.new_code_cell("%reset -f"))
    client = NotebookClient(joined, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(REFERENCE))
        client.execute()
    return {name: joined.cells[place] for name, place in places.items()}


def test_there_is_one_for_each_paper_and_one_for_all_methods() -> None:
    assert NAMES == ["compare.ipynb", "conflayers.ipynb", "knapspec.ipynb", "knn_ssd.ipynb", "swift.ipynb"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_what_was_committed(name: str, executed: dict[str, Sequence[Any]]) -> None:
    """Its tables word for word, so that numbers and records cannot part; of figures, that they are drawn."""
    committed, fresh = nbformat.read(FOLDER / name, as_version=4).cells, executed[name]
    assert shown(fresh) == shown(committed)
    assert any(text == "an image" for _, text in shown(fresh))


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_prose_before_every_call_and_no_logic(name: str) -> None:
    cells = nbformat.read(FOLDER / name, as_version=4).cells
    assert cells[0].cell_type == "markdown"
    for cell in cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if line]
            assert all(line.startswith(("from ssd_bench", "paper", "comparison", "Paper")) for line in lines), (
                cell.source
            )


def test_every_claim_stands_in_its_papers_notebook() -> None:
    for claim in claims():
        paper, name = claim.id.split("/")
        source = (FOLDER / f"{paper.replace('-', '_')}.ipynb").read_text(encoding="utf-8")
        assert f'paper.claim(\\"{name}\\")' in source, claim.id


def test_what_a_paper_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"paper='medusa' .*knapspec"):
        Paper("medusa")
    with pytest.raises(ConfigError, match=r"exhibit='Table 99' .*Table 2"):
        Paper("swift", REFERENCE).table("Table 99")
    with pytest.raises(ConfigError, match=r"claim='best' .*faster_than_ar"):
        Paper("swift", REFERENCE).claim("best")
    with pytest.raises(ConfigError, match=r"exhibit='Table 2' .*swift_figure6"):
        Paper("swift", REFERENCE).figure("Table 2")
