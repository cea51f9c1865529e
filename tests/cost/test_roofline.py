"""Simulated GPUs: times by their data sheets, and models' shapes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from ssd_bench.conf import CONF
from ssd_bench.contract.shape import Shape
from ssd_bench.cost import roofline
from ssd_bench.cost.roofline import Gpu, SimulatedMachine, simulated_machine, simulated_names
from ssd_bench.cost.shapes import shape_named
from ssd_bench.errors import ConfigError
from ssd_bench.run.plan import plan
from tests.runs import composed

IDEAL = Gpu("ideal", 1e6, 1000, 1e9, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
BIG = shape_named("llama2_13b")


def test_launches_loop_and_hops_add_up() -> None:
    one, none = np.ones(1), np.zeros(1)
    slow = replace(IDEAL, launch_us=10.0, sync_us=7.0, hop_us=3.0, loop_us=5.0)
    parts, ideal = SimulatedMachine(slow, BIG, 3).pass_ms(one, none), SimulatedMachine(IDEAL, BIG).pass_ms(one, none)
    launches = [10 * kernels for kernels in (roofline.ATTN_KERNELS, roofline.MLP_KERNELS, roofline.REST_KERNELS)]
    launches[2] += 7 + 2 * 3
    assert [float((a - b)[0]) * 1e3 for a, b in zip(parts, ideal)] == pytest.approx(launches)
    assert SimulatedMachine(slow, BIG).loop_ms == pytest.approx(0.005)


@pytest.mark.parametrize("name", simulated_names())
def test_more_work_is_never_faster(name: str) -> None:
    machine = simulated_machine(name, BIG)
    nodes, context = np.array([1.0, 2, 8, 64, 256, 1024]), np.array([1.0, 100, 4096, 32768])
    for part in machine.pass_ms(nodes, np.full_like(nodes, 500)):
        assert (np.diff(part) >= 0).all()
    for part in machine.pass_ms(np.ones_like(context), context):
        assert (np.diff(part) >= 0).all()
    many = np.array([1e5])
    computing = 2 * 1e5 * BIG.mlp_params / (machine.gpu.dense_tflops * 1e12 * machine.gpu.flops_efficiency) * 1e3
    assert machine.pass_ms(many, many)[1][0] == pytest.approx(computing, rel=0.01)  # many nodes are compute-bound


def test_the_baselines_that_a_paper_printed_are_near() -> None:
    """SWIFT Table 2, AR on RTX A6000s: 20.10 tokens/s with LLaMA-2-13B, 4.32 with 70B, which needs four of them."""
    for model, devices, printed in (("llama2_13b", 1, 20.10), ("llama2_70b", 4, 4.32)):
        shape = shape_named(model)
        machine = simulated_machine("sim_a6000", shape)
        attn, mlp, rest = machine.pass_ms(np.ones(1), np.full(1, 500.0))
        step_ms = float((shape.n_layers * (attn + mlp) + rest)[0]) + machine.loop_ms
        assert machine.devices == devices and 1000 / step_ms == pytest.approx(printed, rel=0.2)


def test_every_gpu_of_the_papers_loads_with_its_source_and_what_was_fitted_on_one() -> None:
    names = ["sim_3090", "sim_a100", "sim_a6000", "sim_h100", "sim_h200", "sim_mi300x"]
    assert simulated_names() == names
    fitted = ("bandwidth_efficiency", "launch_us", "sync_us", "loop_us", "call_us", "compare_us")
    measured = roofline.gpu_named("sim_h200")
    for name in names:
        gpu, text = roofline.gpu_named(name), (CONF / "hardware" / f"{name}.yaml").read_text(encoding="utf-8")
        assert asdict(gpu) == yaml.safe_load(text)["latency"]
        assert ("data sheet" in text or "whitepaper" in text) and "fitted on H200 measurements" in text
        assert name == "sim_mi300x" or all(getattr(gpu, field) == getattr(measured, field) for field in fitted)


@pytest.mark.parametrize(
    ("options", "refused"),
    [([], "hardware.device=.*ssd_bench replay only"), (["hardware.device=cpu"], "hardware.latency=.*null, or exactly")],
)
def test_a_run_on_a_simulated_gpu_is_refused(options: list[str], refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        plan(composed("hardware=sim_h100", *options))


def test_a_description_that_cannot_be_is_refused() -> None:
    values = {"bandwidth_gb_s": 0, "dense_tflops": "fast", "flops_efficiency": 1.5, "launch_us": -1, "memory_gb": True}
    for field, value in values.items():
        with pytest.raises(ConfigError, match=field):
            Gpu(**asdict(IDEAL) | {field: value})


def test_shapes(tmp_path: Path) -> None:
    billions = {"llama2_7b": 6.74, "llama2_70b": 69.0, "llama3_8b": 8.03, "qwen3_32b": 32.8, "yi_34b": 34.4}
    billions |= {"codellama_34b": 33.7, "deepseek_coder_33b": 33.3, "qwen2_5_14b": 14.8, "llama3_2_1b": 1.24}
    for name, size in billions.items():
        assert shape_named(name).n_params == pytest.approx(size * 1e9, rel=0.01), name
    config = tmp_path / "config.json"
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
    sizes["vocab_size"] = 9
    config.write_text(json.dumps(sizes), encoding="utf-8")
    assert shape_named(str(config)) == Shape(2, 64, 4, 4, 16, 96, 9)
    for text in ("{}", "[]", "no JSON"):
        config.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="model"):
            shape_named(str(config))
