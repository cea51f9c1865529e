"""Reference machines: passes, searches and steps by the tables in `conf/costs`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ssd_bench.cost.reference import SUBLAYER_COLUMNS, reference_machine, reference_names
from ssd_bench.errors import ConfigError
from ssd_bench.predict.acceptance import Acceptance, Steps
from tests.runs import ROOT

RESULTS = ROOT / "runs" / "reference" / "shapes" / "nvidia-h200"
MODELS = ("llama2_13b", "llama3_1_8b", "llama3_2_1b", "qwen3_32b", "qwen3_8b")


def result(model: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{model}.json").read_text(encoding="utf-8"))
    return content


def test_names() -> None:
    assert reference_names() == [f"h200/{model}" for model in MODELS]
    for name in reference_names():
        machine = reference_machine(name)
        assert (machine.name, machine.gpu) == (name, "NVIDIA H200") and machine.model == name.split("/")[1]
    with pytest.raises(ConfigError, match="expected one of h200/llama2_13b, "):
        reference_machine("h200/gpt2")


@pytest.mark.parametrize("model", MODELS)
def test_passes_are_the_measured_ones(model: str) -> None:
    machine, content = reference_machine(f"h200/{model}"), result(model)
    nodes = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    attn, mlp, remainder = machine.pass_ms(nodes, np.full_like(nodes, content["context"]))
    measured = [content["pass_ms"][f"{int(n)} nodes"] for n in nodes]
    assert machine.n_layers * (attn + mlp) + remainder == pytest.approx(measured, rel=1e-3)
    half = machine.n_layers / 2 * (attn[0] + mlp[0]) + machine.rest_ms(0)
    assert half == pytest.approx(content["pass_ms"]["half, uniform"], rel=1e-3)
    # a pass that is not captured is launched sublayer by sublayer
    assert machine.captured_nodes == 64
    more = np.array([64.0, 65.0, 128.0, 512.0, 1024.0])
    totals = [sum(times) for times in zip(*machine.pass_ms(more, np.full_like(more, 1024.0)))]
    assert totals == sorted(totals) and totals[1] > 1.5 * totals[0]


def test_a_stage_takes_the_slower_of_host_and_device() -> None:
    machine = reference_machine("h200/llama3_1_8b")
    calls, device, comparisons = np.array([2.0, 2.0]), np.array([0.0, 5.0]), np.array([0.0, 2.0])
    expected = [2 * machine.call_ms, 5 + 2 * machine.compare_ms]
    assert machine.stage_ms(calls, device, comparisons) == pytest.approx(expected)


def test_blocks_of_a_smaller_model_stand_for_several() -> None:
    machine = reference_machine("h200/llama3_1_8b")
    small = machine.of_blocks(8)
    assert small.n_layers == 8 and small.call_ms == 4 * machine.call_ms and small.step_ms == machine.step_ms
    assert small.rest_ms(0) == machine.rest_ms(0)
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
    head = machine.head_ms(rows)
    assert head[0] == machine.rest_ms(0) and (np.diff(head) > 0).all()
    assert head == pytest.approx([times.rest_ms for times in machine.latency.passes if times.nodes in rows])


def test_a_reference_machine_times_steps() -> None:
    machine = reference_machine("h200/qwen3_32b")
    assert machine.loop_ms == machine.step_ms
    speedup = Steps(machine, machine.n_layers).speedup(Acceptance.of(0.96, None, 10), 0.5)
    (row,) = [row for row in result("qwen3_32b")["rows"] if row["alpha"] == 0.961]
    assert speedup == pytest.approx(row["speedup"], rel=0.03)
