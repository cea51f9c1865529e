"""Every view of our numbers names the model that ran and its size, never another."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ssd_bench.commands import report as report_command
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours import agreement
from ssd_bench.papers.ours.cells import Replication, replications
from ssd_bench.papers.printed import reported
from ssd_bench.papers.runs import grid
from ssd_bench.records.header import RunHeader
from ssd_bench.report import figures, numbers, write
from ssd_bench.report.exhibit import Exhibit
from ssd_bench.report.notebook import Comparison, Paper
from ssd_bench.results.models import ModelRan, parameter_counts
from tests import synthetic
from tests.exhibit_runs import indexed, laid_out, make, texts

TOY = {"name": "toy", "n_params": 2_883_584, "toy": True}
PLAIN = {"name": "toy_plain", "n_params": 134_515_008}
RAN = "toy, 2.9 million parameters"
EXPERIMENTS = ("swift_table2", "swift_figure9", "conflayers_figure7", "knapspec_figure2", "ssd_bench_comparison")
TABLES = {"Table 2": "swift", "Figure 9": "swift", "Figure 2": "knapspec", "abstract": "swift"}
SHOWN = [(paper, exhibit) for exhibit, paper in TABLES.items()] + [("conflayers", "Figure 7"), ("swift", "Table 5")]
"""Tables in the report, the last without runs; those of all numbers take 10 s."""
MODELS = {one.model for one in reported.numbers() if one.model}
"""The papers' names for their models, none of which ran here."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of a toy model for every method and setting, whatever the paper's model; two of them keep verdicts.

    Of the comparison one task of two, because a run takes a fifth of a second.
    """
    folder = tmp_path_factory.mktemp("ran") / "runs"
    names: dict[tuple[str, ...], str] = {}
    compared = grid.load(EXPERIMENTS[-1]).jobs[0].labels["task"]
    for experiment in EXPERIMENTS:

        def run(job: grid.Job) -> str | None:
            labels = job.labels
            if job.experiment == EXPERIMENTS[-1] and labels["task"] != compared:
                return None
            key = tuple(labels[axis] for axis in ("task", "method", "setting"))
            if key not in names:
                names[key] = make(folder, f"run{len(names)}", 0.31 + 0.007 * len(names), model=TOY)
            return names[key]

        indexed(folder, experiment, "mini", run, own_traces=False)
    return folder


@pytest.fixture(scope="module")
def by_name(runs: Path) -> dict[str, Replication]:
    return {one.experiment.name: one for one in replications(runs)}


@pytest.fixture(scope="module")
def out(runs: Path) -> Path:
    """The report without figures, which tests draw themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numbers, "long_tables", lambda made: {key: numbers.long_table(made, *key) for key in SHOWN})
        patch.setattr(figures, "draw_figures", lambda *_: {})
        assert report_command.main([f"runs_dir={runs}", f"out={runs.parent / 'out'}"]) == 0
    return runs.parent / "out"


def ours_of(frame: pd.DataFrame) -> set[str]:
    """Our numbers of a long table as printed, less those that the paper prints too."""
    values = frame[["ours", "decode", "estimate"]].stack().dropna()
    texts = {f"{value:.{digits}f}" for value in values for digits in (2, 3)}
    return texts - set(frame["printed"].astype(str)) - {"1.00", "1.000", "0.00"}


def numbers_in(text: str) -> set[str]:
    return set(re.findall(r"\d+\.\d+", text))


def check_rows(rows: Iterator[str], ours: set[str]) -> int:
    """Every row with a number of ours names the model that ran; returns their number."""
    count = 0
    for row in rows:
        if numbers_in(row) & ours:
            assert RAN in row, row
            assert not any(f"paper: {model}" in row for model in MODELS), row
            count += 1
    return count


def frames(folder: Path) -> dict[str, pd.DataFrame]:
    return {
        exhibit: pd.read_csv(folder / "tables" / f"{numbers.file_stem(paper, exhibit)}.csv", dtype={"printed": "str"})
        for exhibit, paper in TABLES.items()
    }


def test_markdown_and_latex_head_our_rows_with_the_model_that_ran(out: Path) -> None:
    for exhibit, frame in frames(out).items():
        stem = out / "tables" / numbers.file_stem(TABLES[exhibit], exhibit)
        for kind, mark in (("md", "| "), ("tex", " & ")):
            text = stem.with_suffix(f".{kind}").read_text(encoding="utf-8")
            assert check_rows((line for line in text.splitlines() if mark in line), ours_of(frame)) > 0
            assert RAN in text.partition("|" if kind == "md" else "toprule")[0]  # the caption
            assert "toy-model run" in text.lower()


def test_the_page_heads_our_rows_with_the_model_that_ran(out: Path) -> None:
    text = html.unescape((out / "index.html").read_text(encoding="utf-8")).replace("\xa0", " ")
    for exhibit, frame in frames(out).items():
        name = numbers.file_stem(TABLES[exhibit], exhibit)
        article = re.search(rf'<article id="{name}".*?</article>', text, re.DOTALL)
        assert article is not None
        rows = re.findall(r"<tr.*?</tr>", article[0], re.DOTALL)
        assert check_rows((re.sub(r'title="[^"]*"', "", row) for row in rows), ours_of(frame)) > 0
    heads = re.findall(r'<th scope="(?:row|rowgroup)"[^>]*>(.*?)</th>', text, re.DOTALL)
    bare = {re.sub(r"<[^>]*>", "", head).strip() for head in heads} & MODELS
    assert not bare  # no heading is the name of a paper's model alone
    top = text[: text.index('id="browse"')]
    said = re.findall(r'<span class="said m-(?!none).*?</span>', top, re.DOTALL)
    assert said and all(RAN in one for one in said)
    assert not re.search(r"our runs are those of", text)


def test_notebooks_head_our_rows_with_the_model_that_ran(runs: Path, out: Path) -> None:
    for exhibit, frame in frames(out).items():
        bundle = Paper(TABLES[exhibit], runs).table(exhibit)._repr_mimebundle_()
        rows = [line for line in bundle["text/markdown"].splitlines() if line.startswith("|")]
        assert check_rows(iter(rows), ours_of(frame)) > 0
    assert set(Paper("swift", runs).claims().frame["model"]) == {f"{RAN}, scale mini"}  # type: ignore[index]
    assert RAN in Paper("swift", runs).claim("faster_than_ar").text
    compared = Comparison(runs)
    assert RAN in compared.table().text and set(compared.table().frame["model"]) == {RAN}  # type: ignore[index]
    assert RAN in compared.advice().text


def test_csv_has_the_model_that_ran_with_every_number(out: Path) -> None:
    for path in (out / "tables").glob("*_*.csv"):
        frame = pd.read_csv(path, keep_default_na=False)
        if "model_ran" not in frame:  # a table of our own: its rows are headed by the model that ran
            assert set(frame["model"]) <= {RAN}, path
            continue
        have = frame[frame["ours"] != ""]
        assert set(have["model_ran"]) <= {RAN} and set(have["params"].astype(str)) <= {"2883584"}
    judged = pd.read_csv(out / "verdicts.csv", dtype="str", keep_default_na=False)
    ran = judged[judged["model"] != ""]
    assert len(ran) and set(zip(ran["model"], ran["params"])) == {("toy", "2883584")}
    assert f", {RAN}, scale mini\n" in (out / "verdicts.md").read_text(encoding="utf-8")


def test_figures_name_the_model_that_ran(by_name: dict[str, Replication]) -> None:
    for name in ("conflayers_figure7", "knapspec_figure2"):
        title, _, *others = texts(laid_out(figures.figure(by_name[name])))  # the caption names the paper's models
        found = [text.get_text() for text in (title, *others)]
        assert RAN in found[0].replace("\n", " ") and "toy-model run" in found[0]
        for model in MODELS:
            assert all(model not in text or text.startswith("paper: ") for text in found)
        grey = [text for text in found if text.startswith("paper")]
        assert grey and (name == "knapspec_figure2" or all(text.removeprefix("paper: ") in MODELS for text in grey))
    for narrow in (False, True):
        forest = figures.forest_plot(by_name["ssd_bench_comparison"], narrow)
        assert forest.get_suptitle() == f"Toy-model runs: {RAN}"
    sentence = figures.figure(by_name["swift_figure9"])  # in place of a figure
    assert isinstance(sentence, NotDrawable) and f"one model ({RAN})" in sentence.reason


def test_a_result_behind_several_of_the_papers_models_is_in_one_row(out: Path) -> None:
    table = pd.read_csv(out / "tables" / "swift_table2.csv", keep_default_na=False, dtype={"ours": "str"})
    models = table.loc[table["method"] == "SWIFT", "model"].unique()
    assert len(models) > 1
    text = (out / "tables" / "swift_table2.md").read_text(encoding="utf-8")
    own = [line for line in text.splitlines() if re.match(rf"\| SWIFT +\| ours: {RAN} ", line)]
    theirs = [line for line in text.splitlines() if re.match(r"\| SWIFT +\| paper: ", line)]
    assert (len(own), len(theirs)) == (1, len(models)) and "same run" not in own[0]
    have = table[table["result"] != ""]
    assert (have.groupby("result")["ours"].nunique() == 1).all()
    repeats = have[have["repeats"] != ""]
    values = table.set_index("id")["ours"]
    assert len(repeats) and (repeats["ours"].to_numpy() == values[repeats["repeats"]].to_numpy()).all()
    distinct = have["result"].nunique()
    assert f"{distinct} distinct results" in text and f"{len(repeats)} repeated results" in text
    assert len(have) == distinct + len(repeats)


def two(folder: Path, large: str, small: str) -> pd.DataFrame:
    """SWIFT's Table 2 with one run for its 13B models and one for the 70B."""
    indexed(folder, "swift_table2", "mini", lambda job: large if "70B" in job.labels["model"] else small, False)
    return numbers.long_table(replications(folder), "swift", "Table 2")


def test_a_second_model_has_rows_of_its_own(tmp_path: Path) -> None:
    make(tmp_path, "a", 0.7, model=TOY)
    make(tmp_path, "b", 0.5, model=PLAIN)
    frame = two(tmp_path, "b", "a")
    text = write.document(Exhibit("swift", "Table 2", frame))
    assert "Our runs: toy, 2.9 million parameters, toy_plain, 134.5 million parameters;" in text
    rows = [line for line in text.splitlines() if re.match(r"\| Vanilla", line)]
    heads = [re.split(r" *\| *", line)[2] for line in rows]
    assert heads == [
        "ours: toy, 2.9 million parameters",
        "paper: LLaMA-2-13B",
        "paper: LLaMA-2-13B-Chat",
        "ours: toy_plain, 134.5 million parameters",
        "paper: LLaMA-2-70B",
    ]
    overall = frame[(frame["model"] == "LLaMA-2-70B") & frame["ours"].notna()]
    assert set(overall["model_ran"]) == {"toy_plain, 134.5 million parameters"}
    assert set(overall["params"]) == {"134515008"}


def test_a_repeated_result_of_another_row_reads_same_run(tmp_path: Path) -> None:
    """Copies of a run decide nothing and are excluded; a repeated result is not printed again."""
    make(tmp_path, "a", 0.7, model=TOY)
    indexed(tmp_path, "knn_ssd_table6", "mini", lambda job: "a", own_traces=False)
    frame = numbers.long_table(replications(tmp_path), "knn-ssd", "Table 6")
    text = write.document(Exhibit("knn-ssd", "Table 6", frame))
    assert "excluded" in text and " void " not in text
    frame.loc[frame["verdict"] == agreement.EXCLUDED, ["ours", "verdict", "result"]] = [0.5, "other model", "r"]
    frame["repeats"] = np.where(frame["id"] == frame["id"].iloc[0], "", frame["id"].iloc[0])
    assert "same run" in write.document(Exhibit("knn-ssd", "Table 6", frame))


@pytest.mark.parametrize(
    ("n_params", "params", "text"),
    [(2883584, "2883584", "tiny, 2.9 million parameters"), (None, "", "tiny, size not recorded")],
)
def test_sizes_come_from_the_record(n_params: int | None, params: str, text: str) -> None:
    ran = ModelRan.of(RunHeader.of(synthetic.header(model={"name": "tiny", "n_params": n_params})))
    assert (ran.text, parameter_counts([ran])) == (text, params)


def test_the_committed_records_are_counted_once(reference: list[Replication]) -> None:
    of_papers = [one for one in reference if one.scale == "mini"]
    every = pd.concat(numbers.long_tables(of_papers).values())
    have = every[every["ours"].notna()]
    assert set(have["model_ran"]) == {"miniature, 2.9 million parameters"} and set(have["params"]) == {"2883584"}
    runs = {cell.path.name for one in of_papers for cell in one.recorded_cells()}
    behind = set(numbers.run_ids(have))
    assert len(runs) == 196 and behind <= runs
    spread = have[have["result"] != ""].groupby("result")["ours"].agg(lambda values: np.ptp(values) / abs(values).max())
    assert (spread.fillna(0) < 1e-9).all()  # equal digest, equal number
    distinct = numbers.distinct_results(have)
    assert len(distinct) < len(have) / 3  # most numbers repeat one: every model is the miniature
