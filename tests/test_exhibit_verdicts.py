"""The two verdicts, the order of methods, and the tables as files."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ssd_bench import metrics
from ssd_bench.errors import ConfigError
from ssd_bench.replicate.cells import Replication, replications
from ssd_bench.report.exhibits import match, tables, verdict, write
from ssd_bench.report.exhibits.match import Ours
from ssd_bench.report.exhibits.values import Value
from tests.exhibit_runs import indexed, make, make_all, number

pytestmark = [pytest.mark.usefixtures("fewer_resamples"), pytest.mark.xdist_group("tables")]

PAPER = {"rehearsal": False, "dtype": "float16", "device": "cuda"}
A6000 = {"device": {"cpu": "Xeon", "cores": 32, "gpus": ["NVIDIA RTX A6000"] * 4}}
HUB = {"data": {"_target_": "ssd_bench.data.HubSource"}}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> list[Replication]:
    return make_all(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def filled(full: list[Replication]) -> dict[tuple[str, str], pd.DataFrame]:
    return tables.everything(full)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def ours(value: float, low: float | None = None, high: float | None = None, **changes: Any) -> Ours:
    return replace(
        Ours(Value(value, low, high), "", scale="paper", setup=match.PAPERS_OWN, same_hardware=True), **changes
    )


def test_the_boundary_of_agreement() -> None:
    alpha = number("swift/table4/llama-2-13b/swift/cnn-dm/alpha")  # two decimals, tolerance 0.02
    edge = alpha.value + 0.005 + 0.02
    assert verdict.verdict(alpha, ours(edge)) == "agrees"
    assert verdict.verdict(alpha, ours(edge + 0.001)) == "differs"
    assert verdict.verdict(alpha, ours(edge + 0.05, edge, edge + 0.1)) == "agrees"
    assert verdict.verdict(alpha, ours(edge + 0.05, edge + 0.001, edge + 0.1)) == "differs"
    m = number("swift/table2/llama-2-13b/swift/cnn-dm/M")
    assert verdict.verdict(m, ours(m.value * 0.95 - 0.005)) == "agrees"
    assert verdict.verdict(m, ours(m.value * 0.95 - 0.006)) == "differs"


@pytest.mark.parametrize(
    ("bound", "value", "expected"),
    [("low", 3.0, "agrees"), ("low", 0.8, "differs"), ("high", 0.8, "agrees"), ("max", 3.0, "differs")],
)
def test_bounds_agree_on_one_side(bound: str, value: float, expected: str) -> None:
    speedup = replace(number("swift/table2/llama-2-13b/swift/cnn-dm/speedup"), bound=bound)
    assert verdict.verdict(speedup, ours(value)) == expected


def test_speed_needs_the_papers_hardware_and_both_need_its_model() -> None:
    speedup, m = (number(f"swift/table2/llama-2-13b/swift/cnn-dm/{metric}") for metric in ("speedup", "M"))
    assert verdict.verdict(speedup, ours(speedup.value)) == "agrees"
    assert verdict.verdict(speedup, ours(speedup.value, same_hardware=False)) == "other hardware"
    assert verdict.verdict(m, ours(m.value, same_hardware=False)) == "agrees"
    for one in (speedup, m):
        assert verdict.verdict(one, ours(one.value, setup=match.OTHER_SCALE)) == "other scale"
        for setup in (match.OTHER_MODEL, match.REHEARSAL):
            assert verdict.verdict(one, ours(one.value, setup=setup)) == "other model"
    assert {verdict.kind(one) for one in (speedup, m)} == {"speed", "algorithmic"}


@pytest.mark.parametrize(
    ("model", "scale", "config", "device", "m", "speedup"),
    [
        (PAPER | {"name": "llama2_13b"}, "paper", HUB, A6000, "differs", "differs"),
        (PAPER | {"name": "llama2_13b"}, "paper", HUB, {}, "differs", "other hardware"),
        (PAPER | {"name": "llama2_13b"}, "small", HUB, A6000, "other scale", "other scale"),
        (PAPER | {"name": "llama2_13b"}, "paper", {}, A6000, "other scale", "other scale"),
        (PAPER | {"name": "llama2_13b", "rehearsal": True}, "paper", HUB, A6000, "other model", "other model"),
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
    frame = tables.table(replications(tmp_path))
    found = frame[frame["setting"] == "ablation=w/o early-stopping"].set_index("metric")["verdict"]
    assert found["M"] == m
    assert frame[frame["setting"] == "ablation=none"].set_index("metric")["verdict"]["speedup"] == speedup


def test_order_of_methods(tmp_path: Path) -> None:
    rates = {"DEL": 0.2, "SWIFT": 0.8, "ConfLayers": 0.95}
    runs = {method: make(tmp_path, method, rate, prompts=3) for method, rate in rates.items()}
    indexed(tmp_path, "conflayers_table1", "mini", lambda job: runs[job.labels["method"]])
    frame = tables.table(replications(tmp_path))
    orders = verdict.orders(frame)
    assert len(orders) == 4 * 5
    order = next(o for o in orders if (o.model, o.task) == ("LLaMA-2-70B", "CNN/DM"))
    theirs = frame.loc[list(order.rows)].set_index("method")[["value", "ours"]]
    assert order.same_best == (theirs["value"].idxmax() == theirs["ours"].idxmax())
    assert order.pairs == order.concordant + order.discordant
    assert order.tau == pytest.approx(theirs["value"].corr(theirs["ours"], method="kendall"))
    assert (frame.loc[list(order.rows), "order"] == order.text).all()


def test_order_of_settings_where_there_is_one_method(full: list[Replication]) -> None:
    frame = tables.table(full, "Table 9", "swift")
    orders = verdict.orders(frame)
    assert {(o.within, len(o.rows)) for o in orders} == {("SWIFT", 4)}
    assert {o.metric for o in orders} == {"M", "alpha", "speedup"}
    assert all(o.concordant == 0 and o.same_best for o in orders)  # one run stands behind all: nothing is ordered


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_are_the_same_bytes_again(
    full: list[Replication], filled: dict[tuple[str, str], pd.DataFrame], tmp_path: Path
) -> None:
    some = {key: frame for key, frame in filled.items() if key[0] == "conflayers"}
    written = write.write_tables(full, tmp_path / "one", some)
    assert len(written) == len({path.name for path in written}) == 3 * len(some)
    fresh = replications(full[0].runs_dir)
    write.write_tables(fresh, tmp_path / "two", {key: tables.table(fresh, key[1], key[0]) for key in some})
    for path in written:
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert {"conflayers_table1", "conflayers_text_app_c", "conflayers_figure4"} <= {path.stem for path in written}
    back = pd.read_csv(tmp_path / "one" / "conflayers_table1.csv")
    assert list(back.columns) == list(tables.COLUMNS)


def test_names_of_files_are_those_of_the_experiments(filled: dict[tuple[str, str], pd.DataFrame]) -> None:
    stems = [write.stem(*exhibit) for exhibit in filled]
    assert len(set(stems)) == len(stems)
    assert {"knapspec_table2", "knn_ssd_table1", "swift_v1_table8", "swift_text_5_2", "swift_abstract"} <= set(stems)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="a directory that can be written"):
        write.write_tables([], tmp_path / "file", {})


def test_markdown_says_what_it_is(full: list[Replication]) -> None:
    frame = tables.table(full, "Table 8", "swift")
    text = write.markdown("swift", "Table 8", frame)
    assert text.startswith("# SWIFT, Table 8: Ablation\n")
    assert "python -m ssd_bench -m experiment=swift_table8 scale=mini" in text
    assert "Ours at scale mini: 14 of 14 numbers. This is a rehearsal" in text
    assert "Algorithmic: 1 by definition, 8 other model." in text and "Runs: plain" in text
    none = write.markdown("knn-ssd", "text §5.3", tables.table([], "text §5.3", "knn-ssd"))
    assert "There is no number of ours yet." in none and "experiment=knn_ssd_table3 scale=paper" in none
    tpt = tables.wide(tables.table(full, "Table 2", "knapspec"))
    assert "AIME24 tpt (the method's own estimate)" in tpt.columns


def test_latex_escapes(filled: dict[tuple[str, str], pd.DataFrame]) -> None:
    assert write.escape("50 % of $x_1 & {α} [a]") == r"50 \% of \$x\_1 \& \{$\alpha$\} {[}a{]}"
    assert (
        write.escape("a\\b~c^d<e>")
        == r"a\textbackslash{}b\textasciitilde{}c\textasciicircum{}d\textless{}e\textgreater{}"
    )
    for exhibit, frame in filled.items():
        text = write.latex(*exhibit, frame)
        body = text.split("\\midrule\n")[1].split("\\bottomrule")[0].strip().splitlines()
        columns = tables.wide(frame).shape[1]
        assert all(line.endswith(r" \\") and line.replace(r"\&", "").count("&") == columns - 1 for line in body)
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
        assert text.isascii() and "?" not in text


def test_tables_import_no_torch() -> None:
    code = "import ssd_bench.report.exhibits.write, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_values_are_those_of_metrics(full: list[Replication]) -> None:
    """What the report shows is what `metrics` defines, not a second definition."""
    made = next(r.made for r in full[0].results if r.made is not None)
    assert made.summary["alpha"] == metrics.alpha_micro(metrics.of_arm(made.run.steps, "method"))
