"""The papers' numbers and ours: each once, by the paper's names; both verdicts; tables as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ssd_bench.papers.ours import agreement
from ssd_bench.papers.ours.agreement import Counterpart
from ssd_bench.papers.ours.cells import PAPERS_OWN, TOY_MODEL, Cell, Replication, replications
from ssd_bench.papers.ours.match import Matcher
from ssd_bench.papers.ours.values import OVER_AR, Value, mean_value, search_time
from ssd_bench.papers.printed import reported
from ssd_bench.papers.printed.catalogue import folder_of, paper_versions
from ssd_bench.papers.printed.reported import Number
from ssd_bench.papers.runs import grid
from ssd_bench.report import layout, numbers, write
from ssd_bench.report.exhibit import Exhibit
from ssd_bench.results.folder import Record
from ssd_bench.results.prompt_table import of_steps
from ssd_bench.results.rows import arm_rows
from tests import synthetic
from tests.exhibit_runs import indexed, make, make_code, number

Frames = dict[tuple[str, str], pd.DataFrame]


@pytest.fixture(scope="module")
def full(every_experiment: Path) -> list[Replication]:
    return replications(every_experiment)


@pytest.fixture(scope="module")
def filled(full: list[Replication]) -> Frames:
    return numbers.long_tables(full)


@pytest.fixture(scope="module")
def empty() -> Frames:
    return numbers.long_tables([])


@pytest.mark.parametrize("name", ["filled", "empty"])
def test_each_number_is_in_the_report_once_in_a_cell_of_the_papers_layout(
    name: str, request: pytest.FixtureRequest
) -> None:
    frames = request.getfixturevalue(name)
    found = pd.concat(frames.values())
    printed = {number.id: number.printed for number in reported.numbers()}
    assert sorted(found["id"]) == sorted(printed)
    assert found["id"].is_unique
    for (paper, exhibit), frame in frames.items():
        assert set(zip(frame["paper"], frame["exhibit"])) == {(paper, exhibit)}
        wide = layout.wide_table(frame)
        body = wide[wide["model"].str.startswith("paper")].drop(columns=["method", "setting", "model"], errors="ignore")
        theirs = sorted(
            part for row in body.itertuples(index=False) for text in row for part in text.split("; ") if part
        )
        assert theirs == sorted(layout.BOUNDS[n.bound] + n.printed for n in frame.itertuples())
    assert dict(zip(found["id"], found["printed"])) == printed


def test_without_runs_each_number_says_why(empty: Frames) -> None:
    found = pd.concat(empty.values())
    assert found["ours"].isna().all()
    assert (found["reason"] != "").all()
    assert set(found["verdict"]) == {"no run yet", "not measurable"}
    tables_only = found[found["exhibit"].str.startswith("Table")]
    lacking = tables_only[tables_only["verdict"] != "no run yet"]
    # LayerSkip's training, and searches' own settings
    assert set(lacking["exhibit"]) == {"Table 11", "Table 12"}


def test_with_all_runs_only_claims_are_left(filled: Frames) -> None:
    found = pd.concat(filled.values())
    missing = found[found["ours"].isna()]
    assert set(missing["verdict"]) == {"not measurable"}
    assert len(missing) < 100
    assert len(found) == len(reported.numbers())
    assert found["verdict"].isin(("other model", "by definition")).sum() == len(found) - len(missing)
    assert found.loc[found["ours"].notna(), "toy"].all()
    correlations = filled["knapspec", "Figure 2"]["ours"]
    assert correlations.between(-1, 1).all() and len(correlations) == 2


def test_metrics_are_those_of_the_summary(filled: Frames, full: list[Replication]) -> None:
    plain = next(r.record for one in full for r in one.cells if r.record is not None and r.path.name == "plain")
    s, rows = plain.summary.row, pd.concat(filled.values()).set_index("id")
    inner = s["skip_ratio"] * synthetic.N_LAYERS / (synthetic.N_LAYERS - 2)  # of the blocks but for first and last
    events = plain.run.steps[plain.run.steps["est_alpha"].notna()]["policy_ms"]
    expected = {
        "swift/table2/llama-2-13b/swift/overall/tokens_per_s": s["method_tokens_per_s_e2e"],
        "swift/table2/llama-2-13b/vanilla/overall/tokens_per_s": s["ar_tokens_per_s_e2e"],
        "swift/table2/llama-2-13b/swift/cnn-dm/speedup": s["speedup_rates_e2e"],
        "swift/table2/llama-2-13b/swift/cnn-dm/M": s["M"],
        "swift/table4/llama-2-13b/swift/cnn-dm/expected_speedup": s["expected_speedup"],
        "swift/table10/llama-2-13b/swift/cnn-dm/skip_ratio": inner,
        "swift/table12/llama-2-13b/swift/cnn-dm/optimization_latency_s": events.sum() / 1000,
        "swift/table9/llama-2-13b/swift/cnn-dm/gamma=16/step_latency_ms": events.mean(),
        "knapspec/table2/qwen3-32b/knapspec/aime24/tpt": s["tpt_predicted"],
        "knapspec/table2/qwen3-32b/ar/aime24/tpt": s["tpt_predicted_ar"],
        "knapspec/table2/qwen3-32b/knapspec/aime24/alpha": s["alpha_macro"],
        "conflayers/table3/llama-2-13b/swift/cnn-dm/n_accepted": s["M"],
        "conflayers/table3/llama-2-13b/swift/cnn-dm/skip_ratio": inner,
        "conflayers/table2/qwen2.5-math-72b/swift/gsm8k/rouge2": s["output_rouge2"],
        "knn-ssd/table3/llama-2-13b/knn-ssd/math/M": s["M_call"],
    }
    assert s["alpha"] == of_steps("alpha", arm_rows(plain.run.steps, "method"))  # no second definition
    assert rows.loc[list(expected), "ours"].to_dict() == pytest.approx(expected, rel=1e-12) and s["M_call"] < s["M"]
    table2 = rows.loc["swift/table2/llama-2-13b/swift/cnn-dm/M"]
    assert (table2["low"], table2["high"], table2["runs"]) == (s["M_lo"], s["M_hi"], "plain")
    assert rows.loc["knapspec/table2/qwen3-32b/knapspec/aime24/tpt", "estimate"] == s["tpt_estimated"]


SPEEDUPS = {  # a number of each paper -> its statistic here, without a third arm and with one
    "swift/table2/llama-2-13b/swift/cnn-dm/speedup": ("speedup_rates_e2e", "speedup_hf_rates_e2e"),
    "knn-ssd/table3/llama-2-13b/knn-ssd/math/speedup": ("speedup_rates_e2e", "speedup_hf_rates_e2e"),
    "conflayers/table1/llama-2-13b/conflayers/cnn-dm/speedup": ("speedup_wall", "speedup_hf_wall"),
    "knapspec/table2/qwen3-32b/knapspec/aime24/speedup": ("speedup_e2e", "speedup_e2e"),
}
OWN_METHODS = {"swift_table2": "SWIFT", "knn_ssd_table3": "KNN-SSD", "conflayers_table1": "ConfLayers"}
OWN_METHODS |= {"knapspec_table2": "KnapSpec"}


def only(method: str, runs: Callable[[grid.Job], str | None]) -> Callable[[grid.Job], str | None]:
    """Runs of one method: those of others would be copies with their own traces."""
    return lambda job: runs(job) if job.labels["method"] == method else None


@pytest.mark.parametrize("with_hf", [False, True])
def test_speedups_are_counted_as_each_paper_counts_them(with_hf: bool, tmp_path: Path) -> None:
    """Divide by Hugging Face's arm if the paper does and the run has it; the table says so."""
    made = Record(tmp_path / make(tmp_path, "run", hf=with_hf))
    for name, method in OWN_METHODS.items():
        indexed(tmp_path, name, "mini", only(method, lambda job: "run"))
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
        assert OVER_AR not in str(shown.remarks)


def test_one_baseline_stands_behind_all_that_is_averaged_or_ranked(tmp_path: Path) -> None:
    runs = {task: make(tmp_path, task[:3], hf=task != "GSM8K") for task in ("CNN/DM", "GSM8K", "TinyStories")}
    indexed(tmp_path, "swift_table2", "mini", only("SWIFT", lambda job: runs[job.labels["task"]]))
    matcher = Matcher(replications(tmp_path))
    cells = {task: f"swift/table2/llama-2-13b/swift/{task}/speedup" for task in ("cnn-dm", "gsm8k", "overall")}
    values = {task: matcher.counterpart(number(name)) for task, name in cells.items()}
    assert {task: ours.reason for task, ours in values.items()} == {"cnn-dm": "", "gsm8k": OVER_AR, "overall": OVER_AR}
    parts = [Record(tmp_path / run).summary.speedup_rates_e2e.value for run in runs.values()]
    assert values["overall"].value is not None and values["overall"].value.value == pytest.approx(sum(parts) / 3)
    assert set(values["overall"].runs) == set(runs.values())
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


def test_streams_are_told_apart_by_their_parts(full: list[Replication], filled: Frames) -> None:
    made = next(r.record for one in full for r in one.cells if r.record and r.path.name == "stream_swift")
    alphas = [domain.alpha.value for domain in made.domains]
    rows = filled["swift", "Figure 7"].set_index("id")["ours"]
    before, under = (f"point={point}-domain-shift" for point in ("before", "under"))
    assert rows[f"swift/figure7/self-sd/5-task-stream/{before}/alpha"] == alphas[0]
    shifted = rows[f"swift/figure7/self-sd/5-task-stream/{under}/aggregate=average/alpha"]
    assert shifted == pytest.approx(sum(alphas[1:]) / len(alphas[1:]))
    assert rows["swift/figure7/swift/5-task-stream/alpha/low"] == min(alphas)
    first = next(r.record for one in full for r in one.cells if r.record and r.path.name == "stream")
    speedups = {domain.domain: domain.speedup_rates_e2e.value for domain in first.domains}
    figure1 = filled["knn-ssd", "Figure 1"].set_index("task")["ours"]
    assert figure1["CNN/DM"] == speedups.pop("cnn_dm")
    assert figure1["other tasks"] == max(speedups.values())


def test_averages_need_all_their_parts(tmp_path: Path) -> None:
    runs = {task: make(tmp_path, task.lower()[:3]) for task in ("CNN/DM", "TinyStories")}
    overall = number("swift/table2/llama-2-13b/swift/overall/speedup")
    indexed(tmp_path, "swift_table2", "mini", only("SWIFT", lambda job: runs.get(job.labels["task"])))
    lacking = Matcher(replications(tmp_path)).counterpart(overall)
    assert (lacking.value, lacking.reason) == (None, "no run yet for 1 of 3 parts")
    assert Matcher(replications(tmp_path)).counterpart(replace(overall, id="one", task="CNN/DM")).value is not None


def test_averages_over_settings(tmp_path: Path) -> None:
    accept = {"mix_ratio=0.0": 0.4, "mix_ratio=0.3": 0.5, "mix_ratio=0.7": 0.6, "mix_ratio=1.0": 0.8}
    runs = {setting: make(tmp_path, setting, rate) for setting, rate in accept.items()}
    for name in ("knn_ssd_table2", "knn_ssd_table6"):
        indexed(tmp_path, name, "mini", only("KNN-SSD", lambda job: runs[job.labels["setting"]]))
    alphas = {setting: Record(tmp_path / run).summary.alpha.value for setting, run in runs.items()}
    found = replications(tmp_path)
    tables = [numbers.long_table(found, "knn-ssd", name) for name in ("Table 2", "Table 6")]
    rows = pd.concat(tables).set_index("id")["ours"]
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
    assert all(f"scale {name}" in layout.wide_table(frame).to_string() for name in ("small", "mini"))
    assert "model that this project trained" in Exhibit("swift", "Table 8", frame).results


def test_a_run_that_failed_or_cannot_be_read_says_so(tmp_path: Path) -> None:
    make(tmp_path, "plain")
    indexed(tmp_path, "swift_table8", "mini", lambda job: "!no memory")
    assert "its run failed: no memory" in set(numbers.long_table(replications(tmp_path), "swift", "Table 8")["reason"])
    indexed(tmp_path, "swift_table8", "mini", lambda job: "plain", own_traces=False)
    (tmp_path / "plain" / "steps.parquet").write_bytes(b"PAR1")
    frame = numbers.long_table(replications(tmp_path), "swift", "Table 8")
    assert frame["reason"].str.startswith("its record is unreadable").all()


def test_versions_of_a_paper_share_their_runs_and_baselines_are_their_other_arm(
    filled: Frames,
) -> None:
    latest, first = filled["swift", "Table 6"]["ours"], filled["swift-v1", "Table 5"]["ours"]
    assert latest.equals(first) and latest.notna().all()
    frame = filled["swift", "Table 2"]
    rows = frame[(frame["method"] == "Vanilla") & (frame["metric"] != "tokens_per_s")]
    assert set(rows["verdict"]) == {"by definition"} and set(rows["ours"]) == {1.0}


def test_prose_is_about_the_numbers_of_a_table(full: list[Replication]) -> None:
    matcher = Matcher(full)
    for paper, prose, table, name in (
        ("knapspec", "text-5.1", "table2", "llama3.1-70b/swift/govreport/speedup"),
        ("swift", "text-d4", "table12", "llama-2-13b/self-sd/cnn-dm/speedup"),
        ("conflayers", "text-app-c", "table3", "llama-3-8b/conflayers/alpaca/alpha"),
    ):
        theirs, twin = (matcher.counterpart(number(f"{paper}/{place}/{name}")) for place in (prose, table))
        assert theirs.value == twin.value
    lowest = matcher.counterpart(number("swift/text-c1/swift/M/low"))
    cells = reported.find_numbers("swift", "Table 4", metric="M", method="SWIFT")
    assert lowest.value is not None
    assert lowest.value.value == min(ours.value.value for ours in map(matcher.counterpart, cells) if ours.value)


def test_markdown_says_what_it_is(filled: Frames) -> None:
    text = write.document(Exhibit("swift", "Table 8", filled["swift", "Table 8"]))
    assert text.startswith("# SWIFT, Table 8: Ablation\n")
    assert "python -m ssd_bench -m experiment=swift_table8 scale=mini" in text
    assert "Our runs: miniature, size not recorded; results for 14 of the paper's 14 numbers" in text
    assert "This is a toy-model run on a model that this project trained" in text
    assert "Algorithmic numbers: 1 by definition, 8 other model; 8 distinct results of ours." in text
    assert "Runs: plain" in text
    none = write.document(Exhibit("knn-ssd", "text §5.3", numbers.long_table([], "knn-ssd", "text §5.3")))
    assert "No run of ours gives these numbers yet." in none and "experiment=knn_ssd_table3 scale=paper" in none
    assert "AIME24 tpt (the method's own estimate)" in layout.wide_table(filled["knapspec", "Table 2"]).columns


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
    assert (verdict_of(alpha, edge), verdict_of(alpha, edge + 0.001)) == ("agrees", "differs")
    for low, verdict in ((edge, "agrees"), (edge + 0.001, "differs")):
        assert verdict_of(alpha, edge + 0.05, low, edge + 0.1) == verdict
    m = number("swift/table2/llama-2-13b/swift/cnn-dm/M")
    assert verdict_of(m, m.value * 0.95 - 0.005) == "agrees"
    assert verdict_of(m, m.value * 0.95 - 0.006) == "differs"


def test_bounds_agree_on_one_side() -> None:
    speedup = number("swift/table2/llama-2-13b/swift/cnn-dm/speedup")
    cases = ("low", 3.0, "agrees"), ("low", 0.8, "differs"), ("high", 0.8, "agrees"), ("max", 3.0, "differs")
    for bound, value, expected in cases:
        assert verdict_of(replace(speedup, bound=bound), value) == expected


def test_the_run_furthest_from_the_papers_setup_decides() -> None:
    speedup = number("swift/table2/llama-2-13b/swift/cnn-dm/speedup")
    assert verdict_of(speedup, speedup.value) == "agrees"
    assert verdict_of(speedup, speedup.value, there=False) == "other hardware"
    assert verdict_of(speedup, speedup.value, stands=TOY_MODEL) == "other model"


MODEL = {"name": "llama2_13b", "toy": False, "dtype": "float16", "device": "cuda"}
AS_IN_THE_PAPER = {
    "model": MODEL,
    "config": {"data": {"_target_": "ssd_bench.data.HubSource"}},
    "provenance": {"device": {"cpu": "Xeon", "cores": 32, "gpus": ["NVIDIA RTX A6000"] * 4}},
}


@pytest.mark.parametrize(
    ("changes", "scale", "m", "speedup"),
    [
        ({}, "paper", "differs", "differs"),
        ({"provenance": {}}, "paper", "differs", "other hardware"),
        ({}, "small", "other scale", "other scale"),
        ({"config": {}}, "paper", "other scale", "other scale"),
        ({"model": MODEL | {"toy": True}}, "paper", "other model", "other model"),
        ({"model": MODEL | {"name": "llama2_7b"}}, "paper", "other model", "other model"),
    ],
)
def test_the_setup_is_read_from_the_record(
    tmp_path: Path, changes: dict[str, Any], scale: str, m: str, speedup: str
) -> None:
    make(tmp_path, "run", accept=0.1, **AS_IN_THE_PAPER | changes)
    indexed(tmp_path, "swift_table8", scale, lambda job: "run" if job.labels["setting"] == "ablation=none" else None)
    frame = numbers.long_table(replications(tmp_path), "swift", "Table 8")
    found = frame[(frame["method"] == "SWIFT") & (frame["setting"] == "ablation=none")].set_index("metric")["verdict"]
    assert (found["M"], found["speedup"]) == (m, speedup)


def test_order_of_methods(tmp_path: Path) -> None:
    rates = {"DEL": 0.2, "SWIFT": 0.8, "ConfLayers": 0.95}
    runs = {method: make(tmp_path, method, rate, prompts=3) for method, rate in rates.items()}
    indexed(tmp_path, "conflayers_table1", "mini", lambda job: runs[job.labels["method"]])
    frame = numbers.long_table(replications(tmp_path), "conflayers", "Table 1")
    orders = agreement.rank_orders(frame)
    assert len(orders) == 4 * 5
    order = next(o for o in orders if set(frame.loc[[*o.rows], "model"]) == {"LLaMA-2-70B"} and o.task == "CNN/DM")
    theirs = frame.loc[list(order.rows)].set_index("method")[["value", "ours"]]
    assert order.same_best == (theirs["value"].idxmax() == theirs["ours"].idxmax())
    concordances = [concordance for _, concordance in order.pairs]
    opposite = replace(order, pairs=[(runs, 1 - concordance) for runs, concordance in order.pairs])
    assert (order.concordant, opposite.concordant) == (concordances.count(1.0), concordances.count(0.0))
    (agreed,) = [one for one in agreement.order_agreements(orders) if one.metric == order.metric]
    assert agreed.pairs == 4 * 3 and agreed.share.value is not None  # four tasks: one pair of runs for all four models
    tau = (concordances.count(1.0) - concordances.count(0.0)) / len(order.pairs)
    assert tau == pytest.approx(theirs["value"].corr(theirs["ours"], method="kendall"))
    assert (frame.loc[list(order.rows), "order"] == order.text).all()


def test_order_of_settings_where_there_is_one_method(tmp_path: Path) -> None:
    make(tmp_path, "run", prompts=3)
    indexed(tmp_path, "swift_table9", "mini", lambda job: "run")
    frame = numbers.long_table(replications(tmp_path), "swift", "Table 9")
    orders = agreement.rank_orders(frame)
    assert {(*frame.loc[[*o.rows], "method"], o.methods) for o in orders} == {(*["SWIFT"] * 4, False)}
    assert {o.metric for o in orders} == {"M", "alpha", "speedup"}
    assert all(o.concordant == 0 and o.same_best for o in orders)  # one run stands behind all: nothing is ordered


def test_a_search_read_from_the_store_costs_what_it_took(tmp_path: Path) -> None:
    """Another run made it: this one's preparation says nothing of it."""
    found = [{"name": "a", "evaluations": 101, "new": 0, "seconds": 12.5}, {"name": "b", "new": 3, "seconds": 0.5}]
    units = [synthetic.unit(i) for i in range(2)]
    for step in (step for unit in units for step in unit[1].steps):
        step.est_alpha = None  # no online search
    assert search_time(synthetic.write_run(tmp_path / "read", units, searches=found)) == 13.0
    assert search_time(synthetic.write_run(tmp_path / "own", units, searches=[])) == 5.0
