"""A record's header: missing keys have a default, and others their type."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from ssd_bench.errors import ConfigError
from ssd_bench.records.header import RunHeader
from tests.synthetic import header

KEYS = {field.metadata.get("key", field.name): field.name for field in fields(RunHeader)}


@pytest.mark.parametrize(
    "content",
    [
        {},
        dict.fromkeys(KEYS),
        {"model": {"colour": 5}, "colour": 1},
        {"latency": {"t_mlp_ms": 1.0}},
        {"latency": {"t_mlp_ms": 1.0, "t_attn_slope_ms": 0.1, "t_attn_intercept_ms": 1.0, "passes": [{"colour": 1}]}},
        {"searches": None, "config": {"hardware": "x"}},
    ],
)
def test_what_a_record_lacks_has_its_default(content: dict[str, Any]) -> None:
    read = replace(RunHeader.of(content), config={})
    assert read == RunHeader.of({}) != RunHeader.of(header())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"warnings": 5}, "warnings=5 is invalid: expected a list"),
        ({"warnings": [5]}, "warnings[0]=5 is invalid: expected a text"),
        ({"run_id": -1}, "run_id=-1 is invalid: expected a text"),
        ({"run_id": "\ud800"}, "run_id='\\ud800' is invalid: expected a text"),
        ({"model": 5}, "model=5 is invalid: expected an object"),
        ({"model": {"n_layers": "4"}}, "model.n_layers='4' is invalid: expected an integer"),
        ({"seed": True}, "seed=True is invalid: expected an integer"),
        ({"seed": 10**30}, "is invalid: expected an integer"),
        ({"decode": {"mode": "beam"}}, "expected one of greedy, sample"),
        ({"decode": {"top_p": float("nan")}}, "decode.top_p=nan"),
        ({"decode": {"top_p": 10**400}}, "decode.top_p="),
        ({"config": {"repeats": "x"}}, "config.repeats="),
        ({"latency": {"passes": [{"nodes": "1"}]}}, "latency.passes[0].nodes="),
        ({"latency": {"points": [[1]]}}, "latency.points[0]=[1] is invalid: expected a list of 2"),
        ({"scores": {"ar": {"rouge": "x"}}}, "scores.ar.rouge="),
        ({"warnings": ["x"] * 999, "concurrent_runs": "x" * 999}, '(1001 characters)" is invalid: expected a list'),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_key(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunHeader.of(content)
    assert message in str(caught.value)


def test_the_processor_counts_only_where_it_computes() -> None:
    machine = {"device": {"cpu": "Xeon", "cores": 32, "gpus": ["H100"]}}
    on_cpu, on_gpu = (RunHeader.of(header(provenance=machine, model={"device": device})) for device in ("cpu", "cuda"))
    assert (on_cpu.hardware["cpu"], on_cpu.hardware["cores"], on_cpu.device_name) == ("Xeon", 32, "Xeon")
    assert (on_gpu.hardware["cpu"], on_gpu.hardware["cores"], on_gpu.device_name) == (None, None, "H100")


@pytest.mark.parametrize(
    ("arithmetic", "name"),
    [({"kernels": "native", "isa": "avx2"}, "AMD EPYC (avx2)"), ({"kernels": "torch"}, "AMD EPYC"), (None, "AMD EPYC")],
)
def test_processors_of_one_name_differ_by_instruction_level(arithmetic: dict[str, str] | None, name: str) -> None:
    machine = {"device": {"cpu": "AMD EPYC", "cores": 2, "gpus": []}}
    content = header(provenance=machine, model={"device": "cpu", "arithmetic": arithmetic})
    assert RunHeader.of(content).machine_name == name


def test_settings_of_the_method_are_without_its_class_and_name() -> None:
    method = {"_target_": "methods.swift.Swift", "name": "swift", "interval": 3}
    typed = RunHeader.of(header(config={"method": method, "data": None}))
    assert typed.settings == {"interval": 3} and typed.options("data") == {} == typed.options("model")
