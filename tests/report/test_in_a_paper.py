"""LaTeX tables that compile, a BibTeX entry, CITATION.cff and facts for papers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pandas as pd
import pytest
import yaml

from ssd_bench import tables
from ssd_bench.papers.claims.judge import NOT_RUN, Judgement
from ssd_bench.papers.printed.catalogue import paper_folders
from ssd_bench.report import runs, verdicts
from ssd_bench.report.write import latex_verdicts
from ssd_bench.results.folder import load_records
from tests.exhibit_runs import MINIATURE, make
from tests.runs import ROOT
from tests.synthetic import unit, write_record

DOCUMENT = (ROOT / "docs" / "in_a_paper.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = {"begin", "end", "caption", "label", "centering", "resizebox", "linewidth", "toprule", "midrule"}
COMMANDS |= {"bottomrule", "textless", "textgreater", "textbar", "textbackslash", "textasciitilde", "textasciicircum"}
COMMANDS |= {"S", "dots", "space"}
COMMANDS |= set(tables.MATHS.values())
"""LaTeX commands with booktabs and graphicx."""


def check_latex(text: str) -> None:
    """Refuse what LaTeX would: open groups and environments, unknown commands, signs without a backslash."""
    assert text.isascii()
    body = re.sub(r"(?m)^%.*$", "", text)
    bare = re.sub(r"\\[\\{}%&$#_]", "", body)
    depth = 0
    for sign in bare:
        depth += {"{": 1, "}": -1}.get(sign, 0)
        assert depth >= 0
    assert depth == 0
    open_environments: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", bare):
        if kind == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert not open_environments
    assert set(re.findall(r"\\([A-Za-z]+)", bare)) <= COMMANDS
    assert bare.count("$") % 2 == 0
    outside = re.sub(r"\$[^$]*\$|\\label\{[^}]*\}", "", bare)
    assert not set("#_^~%") & set(outside.replace("{!}{%", ""))
    for block in re.findall(r"\\begin\{tabular\}\{((?:[^{}]|\{[^}]*\})*)\}(.*?)\\end\{tabular\}", body, re.DOTALL):
        columns = len(re.sub(r"p\{[^}]*\}", "p", block[0]))
        rows = [line for line in block[1].splitlines() if line.endswith(r"\\")]
        assert rows and all(line.replace(r"\&", "").count("&") == columns - 1 for line in rows)


def test_latex_of_any_text_compiles() -> None:
    odd = pd.DataFrame({"50 % of $x_1 & {a} [b]": [r"a\b~c^d", "1.22×"], "α ≥ β": ["[–", "− ≈ ± γ … §"]})
    check_latex(tables.latex(odd, "100 % # & _ ^ ~ \\ × α", "tab:odd"))
    wide = tables.latex(odd, "caption", "tab:wide", {"α ≥ β": "6cm"})
    check_latex(wide)
    assert r"\begin{tabular}{lp{6cm}}" in wide
    with pytest.raises(AssertionError):  # the check itself sees what is missing
        check_latex(wide.replace(r"\end{tabular}", ""))
    with pytest.raises(AssertionError):
        check_latex(wide.replace(r"\%", "%"))


def test_own_runs_have_a_latex_table_with_what_a_paper_reports(tmp_path: Path) -> None:
    for name, method in (("one", "swift"), ("two", "clasp")):
        make(tmp_path, name, method=method, task={"name": "gsm_8k/a", "metric": None})
    write_record(tmp_path / "three", [unit(i) for i in range(3)], run_id="three", model=MINIATURE)
    tasks = runs.group_by_task(load_records([tmp_path / name for name in ("one", "two", "three")]))
    texts = {task: runs.latex(task, groups) for task, groups in tasks.items()}
    assert len(texts) == 2
    for text in texts.values():
        check_latex(text)
        assert "toy-model run" in text and r"95 \% intervals" in text
    both = texts["gsm_8k/a"]
    assert "swift" in both and "clasp" in both and r"\label{tab:gsm-8k-a-1}" in both
    labels = re.findall(r"\\label\{(.*?)\}", "".join(texts.values()))
    assert len(labels) == len(set(labels)) == sum(map(len, tasks.values()))


def test_verdicts_have_a_latex_table_per_paper(judgements: list[Judgement]) -> None:
    judged = verdicts.table(judgements)
    text = latex_verdicts(judged)
    check_latex(text)
    papers = judged.loc[judged["verdict"] != NOT_RUN, "claim"].str.partition("/")[0].unique()
    assert text.count(r"\begin{table}") == len(papers) > 1
    assert all(rf"\label{{tab:verdicts-{paper}}}" in text for paper in papers)
    assert latex_verdicts(judged[judged["verdict"] == NOT_RUN]) == ""


def test_the_bibtex_entry_parses_and_fits_the_project() -> None:
    (entry,) = re.findall(r"```bibtex\n(.*?)```", DOCUMENT, re.DOTALL)
    kind, key, body = re.fullmatch(r"@(\w+)\{(\w+),\n(.*)\n\}\n", entry, re.DOTALL).groups()  # type: ignore[union-attr]
    lines = [re.fullmatch(r"  (\w+) += \{(.*)\},?", line) for line in body.splitlines()]
    assert kind == "software" and key == "ssd_bench" and all(lines)
    assert all(line.endswith(",") for line in body.splitlines()[:-1])
    fields = {line[1]: line[2] for line in lines if line is not None}
    assert {"title", "author", "year", "version"} <= fields.keys() and fields["year"].isdecimal()
    assert fields["version"] == PROJECT["version"] and fields["note"] == PROJECT["license"]
    assert all(value.count("{") == value.count("}") for value in fields.values())


def test_the_citation_file_has_what_its_format_requires() -> None:
    """Citation File Format 1.2.0; the repository's address is explicitly left to its owner."""
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    assert {"authors", "cff-version", "message", "title"} <= content.keys()
    assert content["cff-version"] == "1.2.0" and str(content["version"]) == PROJECT["version"]
    assert content["license"] == PROJECT["license"] and content["type"] == "software"
    assert content["authors"] and all(author.keys() & {"name", "family-names"} for author in content["authors"])
    assert "repository-code" not in content and "repository-code" in text and "owner of the repository" in DOCUMENT
    assert content["title"] in DOCUMENT and content["authors"][0]["name"] in DOCUMENT


def test_papers_are_cited_as_their_folders_say() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (\d{4}\.\d{5}) \|$", DOCUMENT, re.MULTILINE))
    folders = [folder for folder in paper_folders() if folder.name != "ssd_bench"]
    assert set(rows) == {folder.name for folder in folders}
    for name, identifier in rows.items():
        first = (ROOT / "ssd_bench/papers" / name / "paper.yaml").read_text(encoding="utf-8").splitlines()[0]
        assert identifier in first


def test_the_document_names_files_of_a_report() -> None:
    """Reports of other tasks have them in test_report."""
    named = set(re.findall(r"\{report/([\w.]+)\}", DOCUMENT))
    assert named == {"gsm8k.tex", "verdicts.tex", "gsm8k.pdf"}
