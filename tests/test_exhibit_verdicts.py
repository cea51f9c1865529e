"""The two verdicts, and the order of methods."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ssd_bench.papers import verdict
from ssd_bench.papers.cells import OTHER_MODEL, OTHER_SCALE, PAPERS_OWN, REHEARSAL, Cell, replications
from ssd_bench.papers.reported import Number
from ssd_bench.papers.values import Value
from ssd_bench.papers.verdict import Ours
from ssd_bench.report import exhibits
from tests.exhibit_runs import indexed, make, number

pytestmark = pytest.mark.usefixtures("fewer_resamples")

PAPER = {"rehearsal": False, "dtype": "float16", "device": "cuda"}
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
    return Ours(one, Value(value, low, high), "", scale="paper", cells=cells).verdict


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
        for setup in (OTHER_MODEL, REHEARSAL):
            assert verdict_of(one, one.value, stands=setup) == "other model"
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
    frame = exhibits.long(replications(tmp_path))
    found = frame[frame["setting"] == "ablation=w/o early-stopping"].set_index("metric")["verdict"]
    assert found["M"] == m
    assert frame[frame["setting"] == "ablation=none"].set_index("metric")["verdict"]["speedup"] == speedup


def test_order_of_methods(tmp_path: Path) -> None:
    rates = {"DEL": 0.2, "SWIFT": 0.8, "ConfLayers": 0.95}
    runs = {method: make(tmp_path, method, rate, prompts=3) for method, rate in rates.items()}
    indexed(tmp_path, "conflayers_table1", "mini", lambda job: runs[job.labels["method"]])
    frame = exhibits.long(replications(tmp_path))
    orders = verdict.orders(frame)
    assert len(orders) == 4 * 5
    order = next(o for o in orders if (o.model, o.task) == ("LLaMA-2-70B", "CNN/DM"))
    theirs = frame.loc[list(order.rows)].set_index("method")[["value", "ours"]]
    assert order.same_best == (theirs["value"].idxmax() == theirs["ours"].idxmax())
    assert order.pairs == order.concordant + order.discordant
    assert order.tau == pytest.approx(theirs["value"].corr(theirs["ours"], method="kendall"))
    assert (frame.loc[list(order.rows), "order"] == order.text).all()


def test_order_of_settings_where_there_is_one_method(tmp_path: Path) -> None:
    make(tmp_path, "run", prompts=3)
    indexed(tmp_path, "swift_table9", "mini", lambda job: "run")
    orders = verdict.orders(exhibits.long(replications(tmp_path), "Table 9", "swift"))
    assert {(o.within, len(o.rows)) for o in orders} == {("SWIFT", 4)}
    assert {o.metric for o in orders} == {"M", "alpha", "speedup"}
    assert all(o.concordant == 0 and o.same_best for o in orders)  # one run stands behind all: nothing is ordered
