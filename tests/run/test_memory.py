"""Models that do not fit into memory are refused before they load."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from ssd_bench.errors import ConfigError
from ssd_bench.run import memory
from ssd_bench.run.loading import load_model
from tests.runs import planned


@pytest.mark.parametrize(("method", "copies"), [("ar", []), ("int8_draft", [8]), ("int4_draft", [4])])
def test_the_estimate_is_a_close_lower_bound_of_what_is_loaded(method: str, copies: list[int], tmp_path: Path) -> None:
    plan = planned(tmp_path / "runs", "model=miniature", "task=gsm8k", f"method={method}", "limit=1")
    decoder, cache = load_model(plan)
    parts = memory.needed_bytes(decoder.arch, plan.machine.hardware.dtype.itemsize, copies, cache.capacity)
    loaded = decoder.weights.nbytes + cache.capacity * decoder.arch.n_layers * decoder.arch.cache_row * 4
    loaded += sum(decoder.in_bits(bits).nbytes for bits in copies)
    assert len(parts) == 2 + len(copies) and 0.8 * loaded < sum(parts.values()) <= loaded


def test_a_model_that_does_not_fit_is_refused_unloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path / "runs", "model=miniature", "task=gsm8k", "method=int8_draft", "limit=1")
    monkeypatch.setattr(memory, "free_bytes", lambda hardware: 1000)
    backend = type(plan.machine.backend)
    monkeypatch.setattr(backend, "load", lambda *arguments: pytest.fail("the weights were loaded"))
    with pytest.raises(
        ConfigError, match=r"one that fits into cpu: it needs .* GB \(weights .*, a copy in 8 bits .*, cache"
    ):
        load_model(plan)


@pytest.mark.parametrize(
    ("limit", "free"),
    [("max", None), ("1000000", 1_000_000 - 600_000 + 50_000 + 20_000), ("not a number", None)],
)
def test_the_limit_of_a_container_counts(
    limit: str, free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "memory.max": limit,
        "memory.current": "600000",
        "memory.stat": "anon 5\nactive_file 50000\ninactive_file 20000",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content + "\n", encoding="ascii")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    plan = planned(tmp_path / "runs", "model=miniature", "task=gsm8k", "method=ar", "limit=1")
    got = memory.free_bytes(plan.machine.hardware)
    assert got == free if free is not None else got > psutil.virtual_memory().available / 2


def test_memory_that_an_earlier_run_has_left_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path / "runs", "model=miniature", "task=gsm8k", "method=ar", "limit=1")
    gpu = replace(plan.machine.hardware, devices=(torch.device("cuda", 0), torch.device("cuda", 1)))
    for name, value in {"mem_get_info": (10, 100), "memory_reserved": 60, "memory_allocated": 20}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert memory.free_bytes(gpu) == 2 * (10 + 60 - 20)
    collected: list[int] = []
    monkeypatch.setattr(memory.gc, "collect", lambda: collected.append(1))
    monkeypatch.setattr(memory, "free_bytes", lambda hardware: 10**12 if collected else 0)
    memory.check_memory(plan, 100)
    assert collected == [1]
