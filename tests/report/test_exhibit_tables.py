"""The papers' numbers and ours: each once, by the paper's names; both verdicts; tables as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ssd_bench.papers.ours import agreement
from ssd_bench.papers.ours.agreement import Counterpart
from ssd_bench.papers.ours.cells import OTHER_MODEL, OTHER_SCALE, PAPERS_OWN, TOY_MODEL, Cell, Replication, replications
from ssd_bench.papers.ours.match import Matcher
from ssd_bench.papers.ours.values import OVER_AR, Value, mean_value, search_time
from ssd_bench.papers.printed import reported
from ssd_bench.papers.printed.catalogue import folder_of, paper_versions
from ssd_bench.papers.printed.reported import Number
from ssd_bench.report import layout, numbers, write
from ssd_bench.report.exhibit import Exhibit, build_exhibits
from ssd_bench.results.folder import Record
from ssd_bench.results.prompt_table import of_steps
from ssd_bench.results.rows import arm_rows
from tests import synthetic
from tests.exhibit_runs import indexed, make, make_code, number


@pytest.fixture(scope="module")
def full(every_experiment: Path) -> list[Replication]:
    return replications(every_experiment)


@pytest.fixture(scope="module")
def filled(full: list[Replication]) -> dict[tuple[str, str], pd.DataFrame]:
    return numbers.long_tables(full)


@pytest.fixture(scope="module")
def empty() -> dict[tuple[str, str], pd.DataFrame]:
    return numbers.long_tables([])


# --- every number, once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["filled", "empty"])
def test_each_number_is_in_the_report_once(name: str, request: pytest.FixtureRequest) -> None:
    frames = request.getfixturevalue(name)
    found = pd.concat(frames.values())
    printed = {number.id: number.printed for number in reported.numbers()}
    assert sorted(found["id"]) == sorted(printed)
    assert found["id"].is_unique
    for (paper, exhibit), frame in frames.items():
        assert set(zip(frame["paper"], frame["exhibit"])) == {(paper, exhibit)}
    assert dict(zip(found["id"], found["printed"])) == printed


@pytest.mark.parametrize("name", ["filled", "empty"])
def test_each_number_is_in_one_cell_of_the_papers_layout(name: str, request: pytest.FixtureRequest) -> None:
    for frame in request.getfixturevalue(name).values():
        wide = layout.wide_table(frame)
        body = wide[wide["model"].str.startswith("paper")].drop(columns=["method", "setting", "model"], errors="ignore")
        theirs = sorted(
            part for row in body.itertuples(index=False) for text in row for part in text.split("; ") if part
        )
        assert theirs == sorted(layout.BOUNDS[n.bound] + n.printed for n in frame.itertuples())


def test_without_runs_each_number_says_why(empty: dict[tuple[str, str], pd.DataFrame]) -> None:
    found = pd.concat(empty.values())
    assert found["ours"].isna().all()
    assert (found["reason"] != "").all()
    assert set(found["verdict"]) == {"no run yet", "not measurable"}
    tables_only = found[found["exhibit"].str.startswith("Table")]
    lacking = tables_only[tables_only["verdict"] != "no run yet"]
    # LayerSkip's training, and searches' own settings
    assert set(lacking["exhibit"]) == {"Table 11", "Table 12"}


def test_with_all_runs_only_claims_are_left(filled: dict[tuple[str, str], pd.DataFrame]) -> None:
    found = pd.concat(filled.values())
    missing = found[found["ours"].isna()]
    assert set(missing["verdict"]) == {"not measurable"}
    assert len(missing) < 100
    counts = numbers.verdict_counts(filled.values())
    assert counts["numbers"].sum() == len(reported.numbers())
    assert counts["other model"].sum() + counts["by definition"].sum() == len(found) - len(missing)


def test_a_toy_run_never_looks_like_a_replication(filled: dict[tuple[str, str], pd.DataFrame]) -> None:
    found = pd.concat(filled.values())
    have = found[found["ours"].notna()]
    assert have["toy"].all()
    assert set(have["verdict"]) == {"other model", "by definition"}
    for exhibit, frame in filled.items():
        if frame["ours"].notna().any():
            for view in (write.document, write.latex):
                assert "not a replication of any paper" in view(Exhibit(*exhibit, frame))


# --- matching ---------------------------------------------------------------------------------------------------------


def test_metrics_are_those_of_the_summary(filled: dict[tuple[str, str], pd.DataFrame], full: list[Replication]) -> None:
    plain = next(r.record for one in full for r in one.cells if r.record is not None and r.path.name == "plain")
    s, rows = plain.summary.row, pd.concat(filled.values()).set_index("id")
    table2 = "swift/table2/llama-2-13b/swift/cnn-dm"
    for name, key in (("speedup", "speedup_rates_e2e"), ("M", "M")):
        row = rows.loc[f"{table2}/{name}"]
        assert (row["ours"], row["low"], row["high"]) == (s[key], s[f"{key}_lo"], s[f"{key}_hi"])
        assert row["runs"] == "plain"
    assert rows.loc["swift/table2/llama-2-13b/swift/overall/tokens_per_s", "ours"] == pytest.approx(
        s["method_tokens_per_s_e2e"]
    )
    assert rows.loc["swift/table2/llama-2-13b/vanilla/overall/tokens_per_s", "ours"] == pytest.approx(
        s["ar_tokens_per_s_e2e"]
    )
    tpt = rows.loc["knapspec/table2/qwen3-32b/knapspec/aime24/tpt"]
    assert (tpt["ours"], tpt["estimate"]) == (s["tpt_predicted"], s["tpt_estimated"])
    assert rows.loc["knapspec/table2/qwen3-32b/ar/aime24/tpt", "ours"] == s["tpt_predicted_ar"]
    assert rows.loc["swift/table4/llama-2-13b/swift/cnn-dm/expected_speedup", "ours"] == s["expected_speedup"]
    conflayers = "conflayers/table3/llama-2-13b/swift/cnn-dm"
    assert rows.loc[f"{conflayers}/n_accepted", "ours"] == s["M"]
    blocks = synthetic.N_LAYERS
    for name in (f"{conflayers}/skip_ratio", "swift/table10/llama-2-13b/swift/cnn-dm/skip_ratio"):
        assert rows.loc[name, "ours"] == pytest.approx(s["skip_ratio"] * blocks / (blocks - 2))
    assert rows.loc["knn-ssd/table3/llama-2-13b/knn-ssd/math/M", "ours"] == s["M_call"] < s["M"]
    assert rows.loc["knapspec/table2/qwen3-32b/knapspec/aime24/alpha", "ours"] == s["alpha_macro"]
    assert rows.loc["conflayers/table2/qwen2.5-math-72b/swift/gsm8k/rouge2", "ours"] == s["output_rouge2"]
    events = plain.run.steps[plain.run.steps["est_alpha"].notna()]["policy_ms"]
    latency = rows.loc["swift/table12/llama-2-13b/swift/cnn-dm/optimization_latency_s"]
    assert latency["ours"] == pytest.approx(events.sum() / 1000)
    assert rows.loc["swift/table9/llama-2-13b/swift/cnn-dm/gamma=16/step_latency_ms", "ours"] == events.mean()


SPEEDUPS = {  # a number of each paper -> its statistic here, without a third arm and with one
    "swift/table2/llama-2-13b/swift/cnn-dm/speedup": ("speedup_rates_e2e", "speedup_hf_rates_e2e"),
    "knn-ssd/table3/llama-2-13b/knn-ssd/math/speedup": ("speedup_rates_e2e", "speedup_hf_rates_e2e"),
    "conflayers/table1/llama-2-13b/conflayers/cnn-dm/speedup": ("speedup_wall", "speedup_hf_wall"),
    "knapspec/table2/qwen3-32b/knapspec/aime24/speedup": ("speedup_e2e", "speedup_e2e"),
}


@pytest.mark.parametrize("with_hf", [False, True])
def test_speedups_are_counted_as_each_paper_counts_them(with_hf: bool, tmp_path: Path) -> None:
    """Divide by Hugging Face's arm if the paper does and the run has it; the table says so."""
    made = Record(tmp_path / make(tmp_path, "run", hf=with_hf))
    for name in ("swift_table2", "knn_ssd_table3", "conflayers_table1", "knapspec_table2"):
        indexed(tmp_path, name, "mini", lambda job: "run")
    matcher = Matcher(found := replications(tmp_path))
    for name, statistics in SPEEDUPS.items():
        key, one, ours = statistics[with_hf], number(name), matcher.counterpart(number(name))
        assert ours.value is not None
        assert (ours.value.value, ours.value.low) == (made.summary.row[key], made.summary.row[f"{key}_lo"])
        divides = folder_of(one.paper).counts["speedup"].baseline == "hf"
        assert ours.reason == (OVER_AR if divides and not with_hf else "")
        shown = Exhibit(one.paper, one.exhibit, numbers.long_table(found, one.paper, one.exhibit))
        said = "relative to Hugging Face generate, as in the paper" if with_hf else OVER_AR
        for text in (write.document(shown), write.latex(shown)):
            assert ("Speedup as the paper defines it: ratio of" in text and said in text) == divides
        assert not shown.remarks


def test_one_baseline_stands_behind_all_that_is_averaged_or_ranked(tmp_path: Path) -> None:
    runs = {task: make(tmp_path, task[:3], hf=task != "GSM8K") for task in ("CNN/DM", "GSM8K", "TinyStories")}
    indexed(tmp_path, "swift_table2", "mini", lambda job: runs[job.labels["task"]])
    matcher = Matcher(replications(tmp_path))
    cells = {task: f"swift/table2/llama-2-13b/swift/{task}/speedup" for task in ("cnn-dm", "gsm8k", "overall")}
    values = {task: matcher.counterpart(number(name)) for task, name in cells.items()}
    assert {task: ours.reason for task, ours in values.items()} == {"cnn-dm": "", "gsm8k": OVER_AR, "overall": OVER_AR}
    parts = [Record(tmp_path / run).summary.speedup_rates_e2e.value for run in runs.values()]
    assert values["overall"].value is not None and values["overall"].value.value == pytest.approx(sum(parts) / 3)
    lowest = matcher.counterpart(number("swift/abstract/swift/speedup/low"))
    assert lowest.value is None and "different baselines" in lowest.reason
    methods = {"Parallel": make(tmp_path, "a"), "Lookahead": make(tmp_path, "b", hf=True), "SWIFT": make(tmp_path, "c")}
    indexed(tmp_path, "swift_table2", "mini", lambda job: methods[job.labels["method"]])
    frame = numbers.long_table(replications(tmp_path), "swift", "Table 2")
    for order in agreement.rank_orders(frame[frame["metric"] == "speedup"]):
        assert set(frame.loc[list(order.rows), "method"]) == {"Parallel", "SWIFT"}


def test_statistics_of_papers_are_numbers_of_a_summary(tmp_path: Path) -> None:
    summary = Record(tmp_path / make(tmp_path, "run", hf=True)).summary.row
    counted = {(paper, metric): own for paper in paper_versions() for metric, own in folder_of(paper).counts.items()}
    for (paper, metric), own in counted.items():
        assert own.statistic in summary and own.meaning, (paper, metric)
        assert own.baseline != "hf" or own.statistic.replace("speedup", "speedup_hf") in summary
    assert {paper for paper, metric in counted if metric == "speedup"} == set(paper_versions())


def test_pass_at_k_needs_k_outputs(tmp_path: Path) -> None:
    make_code(tmp_path, repeats=3)
    indexed(tmp_path, "swift_table3", "mini", lambda job: "code")
    frame = numbers.long_table(replications(tmp_path), "swift", "Table 3").set_index("id")
    name = "swift/table3/codellama-13b/{}/humaneval/pass@{}/accuracy"
    assert frame.loc[name.format("swift", 1), "ours"] == pytest.approx(0.5)
    assert frame.loc[name.format("vanilla", 1), "ours"] == pytest.approx(0.5)
    assert frame.loc[name.format("swift", 10), "reason"] == "pass@10 needs 10 outputs per prompt; the run has 3"
    assert frame.loc[name.format("swift", 10), "verdict"] == "undefined"


def test_streams_are_told_apart_by_their_parts(full: list[Replication]) -> None:
    made = next(r.record for one in full for r in one.cells if r.record and r.path.name == "stream_swift")
    alphas = [domain.alpha.value for domain in made.domains]
    rows = numbers.long_table(full, "swift", "Figure 7").set_index("id")["ours"]
    before, under = (f"point={point}-domain-shift" for point in ("before", "under"))
    assert rows[f"swift/figure7/self-sd/5-task-stream/{before}/alpha"] == alphas[0]
    shifted = rows[f"swift/figure7/self-sd/5-task-stream/{under}/aggregate=average/alpha"]
    assert shifted == pytest.approx(sum(alphas[1:]) / len(alphas[1:]))
    assert rows["swift/figure7/swift/5-task-stream/alpha/low"] == min(alphas)
    first = next(r.record for one in full for r in one.cells if r.record and r.path.name == "stream")
    speedups = {domain.domain: domain.speedup_rates_e2e.value for domain in first.domains}
    figure1 = numbers.long_table(full, "knn-ssd", "Figure 1").set_index("task")["ours"]
    assert figure1["CNN/DM"] == speedups.pop("cnn_dm")
    assert figure1["other tasks"] == max(speedups.values())


def test_averages_need_all_their_parts(tmp_path: Path) -> None:
    runs = {
        task: make(tmp_path, task.lower()[:3], accept)
        for task, accept in (("CNN/DM", 0.5), ("GSM8K", 0.7), ("TinyStories", 0.9))
    }
    overall = number("swift/table2/llama-2-13b/swift/overall/speedup")
    indexed(tmp_path, "swift_table2", "mini", lambda job: runs[job.labels["task"]])
    found = Matcher(replications(tmp_path)).counterpart(overall)
    parts = [Record(tmp_path / run).summary.speedup_rates_e2e.value for run in runs.values()]
    assert found.value is not None and found.value.value == pytest.approx(sum(parts) / 3)
    assert set(found.runs) == set(runs.values())
    indexed(
        tmp_path, "swift_table2", "mini", lambda job: runs[job.labels["task"]] if job.labels["task"] != "GSM8K" else ""
    )
    lacking = Matcher(replications(tmp_path)).counterpart(overall)
    assert (lacking.value, lacking.reason) == (None, "no run yet for 1 of 3 parts")
    assert Matcher(replications(tmp_path)).counterpart(replace(overall, id="one", task="CNN/DM")).value is not None


def test_averages_over_settings(tmp_path: Path) -> None:
    accept = {"mix_ratio=0.0": 0.4, "mix_ratio=0.3": 0.5, "mix_ratio=0.7": 0.6, "mix_ratio=1.0": 0.8}
    runs = {setting: make(tmp_path, setting, rate) for setting, rate in accept.items()}
    for name in ("knn_ssd_table2", "knn_ssd_table6"):
        indexed(tmp_path, name, "mini", lambda job: runs[job.labels["setting"]])
    alphas = {setting: Record(tmp_path / run).summary.alpha.value for setting, run in runs.items()}
    found = replications(tmp_path)
    rows = pd.concat([numbers.long_table(found, "knn-ssd", name) for name in ("Table 2", "Table 6")]).set_index("id")[
        "ours"
    ]
    average = pytest.approx(sum(alphas.values()) / 4)
    assert rows["knn-ssd/table2/llama-2-13b/knn-ssd/5-task-stream/alpha"] == average
    prefix = "knn-ssd/table6/llama-2-13b/knn-ssd/5-task-stream"
    assert rows[f"{prefix}/mix_ratio=overall/alpha"] == average
    for setting, alpha in alphas.items():
        assert rows[f"{prefix}/{setting}/alpha"] == alpha


def test_the_interval_of_a_mean_adds_in_quadrature() -> None:
    found = mean_value([Value(1.0, 0.7, 1.3), Value(2.0, 1.6, 2.4)])
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.25, 1.75))
    assert mean_value([Value(1.0, 0.7, 1.3), Value(2.0)]).low is None


def test_baselines_are_the_runs_other_arm(full: list[Replication]) -> None:
    frame = numbers.long_table(full, "swift", "Table 2")
    rows = frame[(frame["method"] == "Vanilla") & (frame["metric"] != "tokens_per_s")]
    assert set(rows["verdict"]) == {"by definition"} and set(rows["ours"]) == {1.0}


def test_the_largest_scale_that_has_a_value_counts(tmp_path: Path) -> None:
    make(tmp_path, "mini-run")
    make(tmp_path, "small-run", model={"name": "smollm2_135m", "toy": False})
    indexed(tmp_path, "swift_table8", "mini", lambda job: "mini-run")
    one = "ablation=w/o early-stopping"
    indexed(tmp_path, "swift_table8", "small", lambda job: "small-run" if job.labels["setting"] == one else "!too slow")
    frame = numbers.long_table(replications(tmp_path), "swift", "Table 8")
    scales = frame[frame["method"] == "SWIFT"].groupby("setting")["scale"].unique().str.join("")
    assert dict(scales) == {setting: "small" if setting == one else "mini" for setting in scales.index}
    assert (frame["toy"] == (frame["scale"] == "mini")).all()
    assert (
        "scale small" in layout.wide_table(frame).to_string() and "scale mini" in layout.wide_table(frame).to_string()
    )
    assert "model that this project trained" in Exhibit("swift", "Table 8", frame).results


def test_a_run_that_failed_or_cannot_be_read_says_so(tmp_path: Path) -> None:
    make(tmp_path, "plain")
    indexed(tmp_path, "swift_table8", "mini", lambda job: "!no memory")
    assert "its run failed: no memory" in set(numbers.long_table(replications(tmp_path), "swift", "Table 8")["reason"])
    indexed(tmp_path, "swift_table8", "mini", lambda job: "plain", own_traces=False)
    (tmp_path / "plain" / "steps.parquet").write_bytes(b"PAR1")
    frame = numbers.long_table(replications(tmp_path), "swift", "Table 8")
    assert frame["reason"].str.startswith("its record is unreadable").all()


def test_versions_of_a_paper_share_their_runs(full: list[Replication]) -> None:
    rows = {
        paper: numbers.long_table(full, paper, exhibit)
        for paper, exhibit in (("swift", "Table 6"), ("swift-v1", "Table 5"))
    }
    assert rows["swift"]["ours"].equals(rows["swift-v1"]["ours"])
    assert rows["swift"]["ours"].notna().all()


def test_prose_is_about_the_numbers_of_a_table(full: list[Replication]) -> None:
    matcher = Matcher(full)
    for name, twin in (
        (
            "knapspec/text-5.1/llama3.1-70b/swift/govreport/speedup",
            "knapspec/table2/llama3.1-70b/swift/govreport/speedup",
        ),
        ("swift/text-d4/llama-2-13b/self-sd/cnn-dm/speedup", "swift/table12/llama-2-13b/self-sd/cnn-dm/speedup"),
        (
            "conflayers/text-app-c/llama-3-8b/conflayers/alpaca/alpha",
            "conflayers/table3/llama-3-8b/conflayers/alpaca/alpha",
        ),
    ):
        assert matcher.counterpart(number(name)).value == matcher.counterpart(number(twin)).value
    lowest = matcher.counterpart(number("swift/text-c1/swift/M/low"))
    cells = [
        n for n in reported.numbers() if n.id.startswith("swift/table4/") and n.metric == "M" and n.method == "SWIFT"
    ]
    assert lowest.value is not None
    assert lowest.value.value == min(ours.value.value for ours in map(matcher.counterpart, cells) if ours.value)


def test_correlation_of_points(full: list[Replication]) -> None:
    rows = numbers.long_table(full, "knapspec", "Figure 2").set_index("id")["ours"]
    assert rows.between(-1, 1).all() and len(rows) == 2


def test_values_are_those_of_metrics(full: list[Replication]) -> None:
    """The report shows what `metrics` defines, not a second definition."""
    made = next(r.record for r in full[0].cells if r.record is not None)
    assert made.summary.alpha.value == of_steps("alpha", arm_rows(made.run.steps, "method"))


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_are_the_same_bytes_again(
    full: list[Replication], filled: dict[tuple[str, str], pd.DataFrame], tmp_path: Path
) -> None:
    some = {key: frame for key, frame in filled.items() if key[0] == "conflayers"}
    written = write.write_tables(build_exhibits(some, full), tmp_path / "one")
    assert len(written) == len({path.name for path in written}) == 3 * len(some)
    fresh = replications(full[0].runs_dir)
    again = {key: numbers.long_table(fresh, *key) for key in some}
    write.write_tables(build_exhibits(again, fresh), tmp_path / "two")
    for path in written:
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert {"conflayers_table1", "conflayers_text_app_c", "conflayers_figure4"} <= {path.stem for path in written}
    back = pd.read_csv(tmp_path / "one" / "conflayers_table1.csv")
    assert list(back.columns) == list(numbers.COLUMNS)


def test_names_of_files_are_those_of_the_experiments(filled: dict[tuple[str, str], pd.DataFrame]) -> None:
    stems = [numbers.file_stem(*exhibit) for exhibit in filled]
    assert len(set(stems)) == len(stems)
    assert {"knapspec_table2", "knn_ssd_table1", "swift_v1_table8", "swift_text_5_2", "swift_abstract"} <= set(stems)


def test_markdown_says_what_it_is(full: list[Replication]) -> None:
    frame = numbers.long_table(full, "swift", "Table 8")
    text = write.document(Exhibit("swift", "Table 8", frame))
    assert text.startswith("# SWIFT, Table 8: Ablation\n")
    assert "python -m ssd_bench -m experiment=swift_table8 scale=mini" in text
    assert "Our runs: miniature, size not recorded; results for 14 of the paper's 14 numbers" in text
    assert "This is a toy-model run on a model that this project trained" in text
    assert (
        "Algorithmic numbers: 1 by definition, 8 other model; 8 distinct results of ours." in text
        and "Runs: plain" in text
    )
    none = write.document(Exhibit("knn-ssd", "text §5.3", numbers.long_table([], "knn-ssd", "text §5.3")))
    assert "No run of ours gives these numbers yet." in none and "experiment=knn_ssd_table3 scale=paper" in none
    tpt = layout.wide_table(numbers.long_table(full, "knapspec", "Table 2"))
    assert "AIME24 tpt (the method's own estimate)" in tpt.columns


def test_latex_has_a_sign_for_everything(filled: dict[tuple[str, str], pd.DataFrame]) -> None:
    for exhibit, frame in filled.items():
        text = write.latex(Exhibit(*exhibit, frame))
        body = text.split("\\midrule\n")[1].split("\\bottomrule")[0].strip().splitlines()
        columns = layout.wide_table(frame).shape[1]
        assert all(line.endswith(r" \\") and line.replace(r"\&", "").count("&") == columns - 1 for line in body)
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
        assert text.isascii() and "?" not in text


# --- the two verdicts, and the order of methods -----------------------------------------------------------------------


PAPER = {"toy": False, "dtype": "float16", "device": "cuda"}
A6000 = {"device": {"cpu": "Xeon", "cores": 32, "gpus": ["NVIDIA RTX A6000"] * 4}}
HUB = {"data": {"_target_": "ssd_bench.data.HubSource"}}


@dataclass(frozen=True)
class Stub(Cell):
    """A cell with a standing, and no record."""

    stands: str = PAPERS_OWN
    there: bool = True

    @property
    def setup(self) -> str:
        return self.stands

    def ran_on(self, gpus: Sequence[str]) -> bool:
        return self.there


def verdict_of(one: Number, value: float, low: float | None = None, high: float | None = None, **standing: Any) -> str:
    cells = (Stub({}, ()), Stub({}, (), **standing))
    return Counterpart(one, Value(value, low, high), "", scale="paper", cells=cells).verdict


def test_the_boundary_of_agreement() -> None:
    alpha = number("swift/table4/llama-2-13b/swift/cnn-dm/alpha")  # two decimals, tolerance 0.02
    edge = alpha.value + 0.005 + 0.02
    assert verdict_of(alpha, edge) == "agrees"
    assert verdict_of(alpha, edge + 0.001) == "differs"
    assert verdict_of(alpha, edge + 0.05, edge, edge + 0.1) == "agrees"
    assert verdict_of(alpha, edge + 0.05, edge + 0.001, edge + 0.1) == "differs"
    m = number("swift/table2/llama-2-13b/swift/cnn-dm/M")
    assert verdict_of(m, m.value * 0.95 - 0.005) == "agrees"
    assert verdict_of(m, m.value * 0.95 - 0.006) == "differs"


@pytest.mark.parametrize(
    ("bound", "value", "expected"),
    [("low", 3.0, "agrees"), ("low", 0.8, "differs"), ("high", 0.8, "agrees"), ("max", 3.0, "differs")],
)
def test_bounds_agree_on_one_side(bound: str, value: float, expected: str) -> None:
    speedup = replace(number("swift/table2/llama-2-13b/swift/cnn-dm/speedup"), bound=bound)
    assert verdict_of(speedup, value) == expected


def test_speed_needs_the_papers_hardware_and_both_need_its_model() -> None:
    speedup, m = (number(f"swift/table2/llama-2-13b/swift/cnn-dm/{metric}") for metric in ("speedup", "M"))
    assert verdict_of(speedup, speedup.value) == "agrees"
    assert verdict_of(speedup, speedup.value, there=False) == "other hardware"
    assert verdict_of(m, m.value, there=False) == "agrees"
    for one in (speedup, m):
        assert verdict_of(one, one.value, stands=OTHER_SCALE) == "other scale"
        for setup in (OTHER_MODEL, TOY_MODEL):
            assert verdict_of(one, one.value, stands=setup) == "other model"
    assert {agreement.metric_kind(one) for one in (speedup, m)} == {"speed", "algorithmic"}


@pytest.mark.parametrize(
    ("model", "scale", "config", "device", "m", "speedup"),
    [
        (PAPER | {"name": "llama2_13b"}, "paper", HUB, A6000, "differs", "differs"),
        (PAPER | {"name": "llama2_13b"}, "paper", HUB, {}, "differs", "other hardware"),
        (PAPER | {"name": "llama2_13b"}, "small", HUB, A6000, "other scale", "other scale"),
        (PAPER | {"name": "llama2_13b"}, "paper", {}, A6000, "other scale", "other scale"),
        (PAPER | {"name": "llama2_13b", "toy": True}, "paper", HUB, A6000, "other model", "other model"),
        (PAPER | {"name": "llama2_7b"}, "paper", HUB, A6000, "other model", "other model"),
    ],
)
def test_the_setup_is_read_from_the_record(
    tmp_path: Path,
    model: dict[str, Any],
    scale: str,
    config: dict[str, Any],
    device: dict[str, Any],
    m: str,
    speedup: str,
) -> None:
    make(tmp_path, "run", accept=0.1, model=model, config=config, provenance=device)
    indexed(tmp_path, "swift_table8", scale, lambda job: "run")
    frame = numbers.long_table(replications(tmp_path), "swift", "Table 8")
    found = frame[frame["setting"] == "ablation=w/o early-stopping"].set_index("metric")["verdict"]
    assert found["M"] == m
    assert frame[frame["setting"] == "ablation=none"].set_index("metric")["verdict"]["speedup"] == speedup


def test_order_of_methods(tmp_path: Path) -> None:
    rates = {"DEL": 0.2, "SWIFT": 0.8, "ConfLayers": 0.95}
    runs = {method: make(tmp_path, method, rate, prompts=3) for method, rate in rates.items()}
    indexed(tmp_path, "conflayers_table1", "mini", lambda job: runs[job.labels["method"]])
    frame = numbers.long_table(replications(tmp_path), "conflayers", "Table 1")
    orders = agreement.rank_orders(frame)
    assert len(orders) == 4 * 5
    order = next(o for o in orders if (o.model, o.task) == ("LLaMA-2-70B", "CNN/DM"))
    theirs = frame.loc[list(order.rows)].set_index("method")[["value", "ours"]]
    assert order.same_best == (theirs["value"].idxmax() == theirs["ours"].idxmax())
    assert len(order.pairs) == order.concordant + order.discordant
    (agreed,) = [one for one in agreement.order_agreements(orders) if one.metric == order.metric]
    assert agreed.pairs == 4 * 3 and agreed.share.value is not None  # four tasks: one pair of runs for all four models
    tau = (order.concordant - order.discordant) / len(order.pairs)
    assert tau == pytest.approx(theirs["value"].corr(theirs["ours"], method="kendall"))
    opposite = replace(order, pairs=tuple(replace(pair, concordance=1 - pair.concordance) for pair in order.pairs))
    assert (opposite.concordant, opposite.discordant) == (order.discordant, order.concordant)
    assert (frame.loc[list(order.rows), "order"] == order.text).all()


def test_order_of_settings_where_there_is_one_method(tmp_path: Path) -> None:
    make(tmp_path, "run", prompts=3)
    indexed(tmp_path, "swift_table9", "mini", lambda job: "run")
    orders = agreement.rank_orders(numbers.long_table(replications(tmp_path), "swift", "Table 9"))
    assert {(o.within, len(o.rows)) for o in orders} == {("SWIFT", 4)}
    assert {o.metric for o in orders} == {"M", "alpha", "speedup"}
    assert all(o.concordant == 0 and o.same_best for o in orders)  # one run stands behind all: nothing is ordered


def test_a_search_read_from_the_store_costs_what_it_took(tmp_path: Path) -> None:
    """Another run made it: this one's preparation says nothing of it."""
    found = [
        {"name": "a", "evaluations": 101, "new": 0, "seconds": 12.5},
        {"name": "b", "evaluations": 3, "new": 3, "seconds": 0.5},
    ]
    units = [synthetic.unit(i) for i in range(2)]
    for unit in units:
        for step in unit[1].steps:
            step.est_alpha = None  # no online search
    assert search_time(synthetic.write_run(tmp_path / "read", units, searches=found)) == 13.0
    assert search_time(synthetic.write_run(tmp_path / "own", units, searches=[])) == 5.0
