"""Reference machines: their files are the fit of the recorded results, and predict what was measured."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import yaml

from ssd_bench.bench import cost_files, costs, search_costs
from ssd_bench.contract.shape import Shape
from ssd_bench.cost.machine import head_ms
from ssd_bench.cost.reference import SUBLAYER_COLUMNS, reference_machine, reference_names
from ssd_bench.errors import ConfigError
from ssd_bench.predict.acceptance import Acceptance, Steps
from tests.runs import ROOT

RESULTS = ROOT / "runs" / "reference" / "shapes" / "nvidia-h200"
MODELS = ("llama2_13b", "llama3_1_8b", "llama3_2_1b", "qwen3_32b", "qwen3_8b")
# Largest errors of the predicted speedups: median, and of any row. AR of Llama-3.2-1B and Llama-2-13B varied by 8 and
# 5 % from row to row, which no table can predict.
THRESHOLDS = {
    "llama3_1_8b": (0.015, 0.04),
    "qwen3_8b": (0.015, 0.04),
    "qwen3_32b": (0.015, 0.04),
    "llama3_2_1b": (0.03, 0.08),
    "llama2_13b": (0.015, 0.06),
}
SEARCH_ERROR, LEFT_OUT_ERROR = 0.07, 0.17


def result(model: str) -> dict[str, Any]:
    """Return the recorded result of a model on the H200."""
    content: dict[str, Any] = json.loads((RESULTS / f"{model}.json").read_text(encoding="utf-8"))
    return content


@cache
def fitted() -> dict[str, Any]:
    """Return the files' content that the recorded results give, by model."""
    files = cost_files.machines([result(model) for model in MODELS])
    return {model: yaml.safe_load(text) for model, (text, _) in files.items()}


def test_names() -> None:
    assert reference_names() == [f"h200/{model}" for model in MODELS]
    for name in reference_names():
        machine = reference_machine(name)
        assert (machine.name, machine.gpu) == (name, "NVIDIA H200") and machine.model == name.split("/")[1]
    with pytest.raises(ConfigError, match="expected one of h200/llama2_13b, "):
        reference_machine("h200/gpt2")
    with pytest.raises(ConfigError):
        reference_machine("../hardware/cpu")


@pytest.mark.parametrize("model", MODELS)
def test_files_are_the_fit_of_the_recorded_results(model: str) -> None:
    committed = yaml.safe_load((ROOT / "conf" / "costs" / "h200" / f"{model}.yaml").read_text(encoding="utf-8"))
    content = fitted()[model]
    assert committed.keys() == content.keys()
    for key, value in content.items():
        if key in ("host", "draft"):
            assert committed[key] == pytest.approx(value, rel=2e-4)
        elif key in ("passes", "eager"):
            assert np.array(committed[key], float) == pytest.approx(np.array(value, float), rel=2e-4)
        else:
            assert committed[key] == value


def test_every_value_has_a_source() -> None:
    machine = reference_machine("h200/llama3_1_8b")
    kinds = {text.split(":")[0] for text in cost_files.sources(False).values()}
    assert kinds == {"measured", "fitted", "assumed"}
    named = set(cost_files.sources(False))
    content = fitted()["llama3_1_8b"]
    assert {*content["host"], *content["draft"], "eager"} <= named and set(machine.fitted) < named
    assert {"call_ms", "passes, slope by context", "tree_node_ms"} <= set(machine.fitted)
    assert not {"step_ms", "draft_rest_ms", "passes, total of captured"} & set(machine.fitted)
    # results with sweeps have measured everything but the assumptions and 8-bit products
    fitted_with_sweeps = {name for name, text in cost_files.sources(True).items() if text.startswith("fitted")}
    assert fitted_with_sweeps == {"int8_passes", "int8_draft_rest_ms"}


@pytest.mark.parametrize("model", MODELS)
def test_passes_are_the_measured_ones(model: str) -> None:
    machine, content = reference_machine(f"h200/{model}"), result(model)
    nodes = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    attn, mlp, remainder = machine.pass_ms(nodes, np.full_like(nodes, content["context"]))
    measured = [content["pass_ms"][f"{int(n)} nodes"] for n in nodes]
    assert machine.n_layers * (attn + mlp) + remainder == pytest.approx(measured, rel=1e-3)
    half = machine.n_layers / 2 * (attn[0] + mlp[0]) + machine.draft_rest_ms
    assert half == pytest.approx(content["pass_ms"]["half, uniform"], rel=1e-3)
    # a pass that is not captured is launched sublayer by sublayer
    assert machine.captured_nodes == 64
    more = np.array([64.0, 65.0, 128.0, 512.0, 1024.0])
    totals = [sum(times) for times in zip(*machine.pass_ms(more, np.full_like(more, 1024.0)))]
    assert totals == sorted(totals) and totals[1] > 1.5 * totals[0]


@pytest.mark.parametrize("model", MODELS)
def test_predictions_of_measured_speedups(model: str) -> None:
    frame = costs.predicted_rows(reference_machine(f"h200/{model}"), result(model))
    median, largest = THRESHOLDS[model]
    assert len(frame) == len(result(model)["rows"])
    assert frame["error"].abs().median() <= median and frame["error"].abs().max() <= largest
    assert frame["error_ms"].abs().median() <= median


@pytest.mark.parametrize("model", MODELS)
def test_predictions_of_measured_searches(model: str) -> None:
    frame = costs.predicted_searches(reference_machine(f"h200/{model}"), result(model))
    assert list(frame["search"]) == ["knapspec", "clasp"] and (frame["error"].abs() < SEARCH_ERROR).all()


def test_searches_of_a_model_outside_the_fit() -> None:
    results = [costs.ShapesResult.of(result(model)) for model in MODELS]
    errors = search_costs.left_out_errors([(item.model, item.content) for item in results])
    assert max(abs(error) for row in errors for error in row.values()) < LEFT_OUT_ERROR


def test_work_of_searches() -> None:
    assert search_costs.knapsack_rows(2, 1).tolist() == [0, 40, 60, 60]
    work = search_costs.knapspec_work(2, 30.0)
    assert work.calls.tolist() == [0, 1, 1, 1] and (work.attn_rows + work.mlp_rows).mean() == pytest.approx(30)
    for model in MODELS:
        content = result(model)
        work = search_costs.clasp_work(reference_machine(f"h200/{model}").n_layers)
        assert round(work.attn_rows.mean()) == content["search"]["clasp"]["tokens"]


def test_a_stage_takes_the_slower_of_host_and_device() -> None:
    machine = reference_machine("h200/llama3_1_8b")
    calls, device, comparisons = np.array([2.0, 2.0]), np.array([0.0, 5.0]), np.array([0.0, 2.0])
    expected = [2 * machine.call_ms, 5 + 2 * machine.compare_ms]
    assert machine.stage_ms(calls, device, comparisons) == pytest.approx(expected)


def test_blocks_of_a_smaller_model_stand_for_several() -> None:
    machine = reference_machine("h200/llama3_1_8b")
    small = machine.of_blocks(8)
    assert small.n_layers == 8 and small.call_ms == 4 * machine.call_ms and small.step_ms == machine.step_ms
    assert small.draft_rest_ms == machine.draft_rest_ms
    nodes, context = np.array([1.0, 8.0, 200.0]), np.array([100.0, 1024.0, 4096.0])
    for scaled, plain in ((small.pass_ms, machine.pass_ms), (small.eager_ms, machine.eager_ms)):
        attn, mlp, remainder = scaled(nodes, context)
        whole = plain(nodes, context)
        assert attn == pytest.approx(4 * whole[0]) and mlp == pytest.approx(4 * whole[1])
        assert remainder == pytest.approx(whole[2])
    for before, after in zip(machine.latency.passes, small.latency.passes):
        assert all(getattr(after, name) == 4 * getattr(before, name) for name in SUBLAYER_COLUMNS)


def test_head_over_rows() -> None:
    machine = reference_machine("h200/llama3_1_8b")
    rows = np.array([1.0, 16.0, 64.0])
    head = head_ms(machine, rows)
    assert head[0] == machine.draft_rest_ms and (np.diff(head) > 0).all()
    assert head == pytest.approx([times.rest_ms for times in machine.latency.passes if times.nodes in rows])


def test_a_reference_machine_times_steps() -> None:
    machine = reference_machine("h200/qwen3_32b")
    assert machine.loop_ms == machine.step_ms
    speedup = Steps(machine, machine.n_layers).speedup(Acceptance.of(0.96, None, 10), 0.5)
    (row,) = [row for row in result("qwen3_32b")["rows"] if row["alpha"] == 0.961]
    assert speedup == pytest.approx(row["speedup"], rel=0.03)


def test_results_that_cannot_be_fitted() -> None:
    first, second = result("llama3_1_8b"), result("qwen3_8b")
    with pytest.raises(ConfigError, match="results of one GPU"):
        costs.fit_costs([first, second | {"machine": "NVIDIA A100"}])
    with pytest.raises(ConfigError, match="conf/model"):
        costs.fit_costs([first | {"model": "gpt2"}])


def test_layer_counts_are_those_of_the_models() -> None:
    for model in MODELS:
        shape = costs.ShapesResult.of(result(model)).model.shape
        assert isinstance(shape, Shape) and shape.n_layers == reference_machine(f"h200/{model}").n_layers
