"""A made-up paper, as a folder and a file of run sets: it appears wherever the others do."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ssd_bench.papers.runs import index
from tests.exhibit_runs import make
from tests.runs import ROOT, python

PAPER = {
    "paper.yaml": """\
rank: 9
versions: {made-up: Made-Up}
hardware: [A100]
imposed: {exhibit: Table 1, drafts: Table 1, draft_len: 10, skipped: {SWIFT: {preset: clasp_knapspec, source: script}}}
counts: {M: {statistic: M_call, meaning: the prefill counts, source: invented}}
""",
    "exhibits.csv": """\
paper,exhibit,title,content,models,tasks,methods,numbers_in_text,note
made-up,Table 1,What was invented,rows: methods,Large,GSM8K,SWIFT,yes,
made-up,Figure 1,Speed of what was invented,bars,Large,GSM8K,SWIFT,no,
""",
    "results.csv": """\
paper,exhibit,model,method,task,setting,metric,value,unit,note
made-up,Table 1,Large,SWIFT,GSM8K,,M,3.5,tokens,
made-up,Table 1,Large,SWIFT,GSM8K,,alpha,0.9,fraction,
made-up,Table 1,Large,SWIFT,GSM8K,,speedup,1.5,x,
""",
    "checks.py": '''\
"""Its numbers against each other."""

from collections.abc import Iterator

from ssd_bench.papers.audit.arithmetic import CONTRADICTION, Check, new_check
from ssd_bench.papers.printed.reported import find_number


def checks() -> Iterator[Check]:
    """One comparison."""
    stated = find_number("made-up", "Table 1", metric="speedup")
    yield new_check(stated, "sums", "nothing here adds up to it", 2.5, "§9", CONTRADICTION)
''',
    "figures.py": '''\
"""Its figure."""

from matplotlib.figure import Figure

from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.ours.cells import Replication


def figure1(replication: Replication) -> Figure:
    """A bar a method."""
    drawn = replication.shown_cells()
    figure, body = common.new_figure(3.4, 2)
    body.subplots().bar([cell["method"] for cell in drawn], [cell.summary.speedup.value for cell in drawn])
    return common.finish(figure, replication, drawn, "Bars.")
''',
}
RUN_SET = """\
grids:
  all:
    model: {Large: llama2_70b}
    task: {GSM8K: [gsm8k, limit=2]}
    method: {SWIFT: swift}
exhibits: {table1: {}, figure1: {}}
"""


def linked(source: Path, target: Path) -> None:
    target.mkdir()
    for entry in source.iterdir():
        (target / entry.name).symlink_to(entry)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project with the paper and a run of it; every other file is the project's."""
    root = tmp_path / "project"
    linked(ROOT, root)
    for inner in ("ssd_bench", "ssd_bench/papers", "conf", "conf/experiment"):
        (root / inner).unlink()
        linked(ROOT / inner, root / inner)
    for folder, files in (("ssd_bench/papers/made_up", PAPER), ("conf/experiment/made_up", {"main.yaml": RUN_SET})):
        (root / folder).mkdir()
        for name, content in files.items():
            (root / folder / name).write_text(content, encoding="utf-8")
    made = root.parent / "runs"
    make(made, "plain")
    labels = {"model": "Large", "task": "GSM8K", "method": "SWIFT", "setting": ""}
    for exhibit in ("table1", "figure1"):
        index.write(made, f"made_up_{exhibit}", "mini", [index.IndexEntry(labels, [], "plain")])
    return root


SCRIPT = """
from functools import partial
from ssd_bench.report import numbers
from tests.runs import program

numbers.long_tables = partial(numbers.long_tables, only="made-up")  # those of the other papers take long
for line in LINES:
    done = program(*line)
    assert done.returncode == 0, done.stderr
    print(done.stdout, end="\\f")
"""


def test_it_stands_in_run_sets_tables_figures_page_and_audit(project: Path) -> None:
    """One process for all commands, which imports the copied project."""
    out, runs_dir = project.parent / "report", f"runs_dir={project.parent / 'runs'}"
    lines = [
        ("-m", "experiment=made_up/main", "scale=mini", "dry=true", runs_dir),
        ("run", "--help"),
        ("report", runs_dir, f"out={out}"),
    ]
    done = python("-c", SCRIPT.replace("LINES", repr(lines)), cwd=project, PYTHONPATH=str(project))
    assert done.returncode == 0, done.stderr
    planned, options, *_ = done.stdout.split("\f")
    assert "2 experiments at scale mini: 2 results, 1 distinct runs" in planned and "made_up_figure1" in options
    table = pd.read_csv(out / "tables" / "made_up_table1.csv").set_index("metric")
    assert table["value"].to_dict() == {"M": 3.5, "alpha": 0.9, "speedup": 1.5}
    assert table["ours"].notna().all() and set(table["verdict"]) == {"other model"}
    assert (out / "tables" / "made_up_table1.md").read_text(encoding="utf-8").startswith("# Made-Up, Table 1: What was")
    assert (out / "figures" / "made_up_figure1_mini.png").is_file()
    page = (out / "index.html").read_text(encoding="utf-8")
    for part in ('id="made_up_table1"', 'id="made_up_figure1"', "Figure of made_up_figure1", "audit_made_up"):
        assert part in page
    for text in (page, (out / "audit.md").read_text(encoding="utf-8")):
        assert "nothing here adds up to it" in text
