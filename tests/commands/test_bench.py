"""The benchmark end to end on a tiny model: every key means what it says; limits by hand."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssd_bench.bench import bench as module
from ssd_bench.bench import limits, measures
from ssd_bench.bench.limits import MachineLimits, Model, Traffic
from ssd_bench.cli import dispatch
from ssd_bench.commands import bench as bench_command
from ssd_bench.contract.layer_set import BITS
from ssd_bench.contract.shape import Shape
from ssd_bench.cost.latency import Latency
from ssd_bench.model.arithmetic import decide
from ssd_bench.model.backend import select
from ssd_bench.model.backends.cpu import extension, native_problem
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.model.decoder import PREFILL_CHUNK
from tests.conftest import SIZES
from tests.runs import local_model

CPU = torch.device("cpu")
SMALL: dict[Any, dict[str, Any]] = {
    measures: {
        "ROUNDS": 1,
        "PREFILL_ROUNDS": 1,
        "NEW_TOKENS": 6,
        "NODES": (1, 8),
        "CONTEXTS": (16, 32, 64),
        "EDGES": (2, 9),
        "PREFILLS": (16, 9999),
        "POLICY_TOKENS": 60,
    },
    limits: {"ROUNDS": 1, "READ_BYTES": 1, "SUMMED_BYTES": {"cpu": 4000}, "PRODUCT_STEPS": 1, "MATRIX": {"cpu": 8}},
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for part, constants in SMALL.items():
        for name, value in constants.items():
            monkeypatch.setattr(part, name, value)


def options(checkpoint: Path, runs_dir: Path) -> list[str]:
    machine = ("hardware=cpu", "hardware.dtype=float32", "hardware.threads=1")
    return [*local_model(checkpoint), f"runs_dir={runs_dir}", *machine]


def figures(written: dict[str, Any]) -> list[dict[str, float]]:
    found = written["figures"]
    return [
        found["ar"],
        *(figure for row in found["forward"].values() for figure in row.values()),
        *found["prefill"].values(),
        *(search["figure"] for search in written["search"].values()),
    ]


@pytest.mark.usefixtures("small")
def test_bench_writes_its_figures(small_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["bench", *options(small_checkpoint, tmp_path), "record=true"]) == 0
    (file,) = (tmp_path / "bench").rglob("*.json")
    written, shown = json.loads(file.read_text(encoding="utf-8")), capsys.readouterr().out
    assert written["ar_over_hf"] == pytest.approx(written["ar_tokens_per_s"] / written["hf_generate_tokens_per_s"])
    assert written["same_output"] == written["prompts"] == 2
    assert written["step_ms"].keys() == {"16", "32", "64"} and written["step_ms"]["16"].keys() == {"1", "8"}
    assert written["ar_4k_over_128"] == written["ar_ms_by_context"]["64"] / written["ar_ms_by_context"]["16"]
    assert 0 < written["outside_forward_share"] < 1 and 0 <= written["knapspec_policy_share"] < 1
    for found in written["search"].values():
        assert found["tokens"] >= 1 and found["ratio"] == pytest.approx(found["search_ms"] / found["plain_ms"])
        assert found["figure"]["ms"] == found["search_ms"]
    assert written["search"].keys() == {"knapspec", "clasp"}
    for times in (times for bits in BITS for times in written[f"int{bits}_drafts"].values()):
        assert min(times["ar_ms"], times["draft_ms"], times["ratio"]) > 0
    assert written["int4_drafts"].keys() == {"16", "64"} and "a token drafted with 4-bit weights" in shown
    assert 0.1 < written["int4_over_full_bytes"] < written["int8_over_full_bytes"] < 0.5
    assert written["edges"].keys() == {"2", "9"} and all(ratio > 0 for ratio in written["edges"].values())
    assert written["figures"]["prefill"].keys() == {"16", "4096"}  # the model's context
    assert written["figures"]["forward"]["32"]["8"]["ms"] == written["step_ms"]["32"]["8"]
    for figure in figures(written):
        reading = figure["bytes"] / written["limits"]["bandwidth_bytes_per_s"] * 1e3
        computing = figure["flops"] / written["limits"]["peak_flops"] * 1e3
        assert figure["limit_ms"] >= max(reading, computing) * (1 - 1e-9)  # of several passes more, never less
        assert figure["share"] == pytest.approx(figure["limit_ms"] / figure["ms"]) and figure["share"] > 0
        assert figure["bound_by"] == ("memory" if reading >= computing else "arithmetic")
    assert written["provenance"]["command"].startswith("python -m ssd_bench bench record=true model=local")
    machine = "".join(c if c.isascii() and c.isalnum() else " " for c in written["machine"].lower())
    assert file.parent == tmp_path / "bench" / "-".join(machine.split())
    assert file.stem == f"{written['model']}-float32-{written['kernels']}-{written['isa']}"
    for text in ("AR over Hugging Face", "bound by", "prefill of 4096 tokens", "8 nodes at context 64", str(file)):
        assert text in shown


def test_a_search_does_the_work_of_its_sublayers(small_checkpoint: Path) -> None:
    """Weights and prefix are read once a call, for any number of branches."""
    decoder = select("cpu", torch.float32, "torch").load(Checkpoint(small_checkpoint), torch.float32, [CPU])
    cache = decoder.new_cache(64)
    decoder.prefill(torch.arange(20), cache)
    counting, width = measures._CountingProbe(decoder, cache, Latency(1.0, 0.0, 1.0)), SIZES["hidden_size"]
    with torch.inference_mode():
        counting.apply_sublayer(2, torch.zeros(3, 5, width), 10)
        counting.apply_sublayer(3, torch.zeros(3, 5, width), 10)
    attn = 32 * 4 * 8 * 2 + 32 * 2 * 8 * 2  # q and output of 4 heads, k and v of 2
    assert counting.passes == [(2, 15), (3, 15)]
    assert counting.work == [
        Traffic(4 * attn + 4 * 2 * 2 * 8 * 10, 2 * attn * 15 + 4 * 15 * 4 * 8 * (10 + 3)),
        Traffic(4 * 3 * 32 * 48, 2 * 3 * 32 * 48 * 15),
    ]


def test_the_work_of_a_pass_by_hand() -> None:
    shape = Shape(n_layers=3, width=8, n_heads=4, n_kv_heads=2, head_dim=2, intermediate=16, vocab_size=100)
    model = Model(shape, value_bytes=2)
    weights = 3 * (8 * 2 * (4 + 2 + 2 + 4) + 3 * 8 * 16) + 100 * 8  # the embedding is looked up, not read
    cache = 3 * 2 * 2 * 2 * 2 * 50  # blocks, keys and values, heads, dimensions, bytes, rows
    seen = 51 + 52 + 53 + 54  # by each of four nodes: the context, those before it, itself
    assert model.forward(1, 0) == Traffic(2 * weights, 2 * weights + 3 * 4 * 4 * 2)
    assert model.forward(4, 50) == Traffic(2 * weights + cache, 2 * weights * 4 + 3 * 4 * 4 * 2 * seen)
    first, last = model.prefill(PREFILL_CHUNK + 4)
    assert first == model.forward(PREFILL_CHUNK, 0, predicted=0) and first.n_bytes == 2 * (weights - 800)
    assert last.flops == model.forward(4, PREFILL_CHUNK).flops - 3 * 2 * 800  # the head over one position of four
    assert len(model.prefill(PREFILL_CHUNK)) == 1


def test_a_limit_is_the_slower_of_memory_and_arithmetic() -> None:
    machine = MachineLimits("by hand", {"slow": 50.0, "fast": 100.0}, {"one": 1000.0})
    reads, computes = Traffic(200, 1000), Traffic(100, 5000)  # 2 s and 1 s, 1 s and 5 s
    limit = {"limit_ms": 2e3, "share": 0.5, "bound_by": "memory"}
    assert machine.figure(4e3, [reads]) == {"ms": 4e3, "bytes": 200, "flops": 1000} | limit
    both = machine.figure(3.5e3, [reads, computes], count=2)
    assert both["limit_ms"] == 3.5e3 and both["share"] == 1 and both["bound_by"] == "arithmetic"
    assert both["bytes"] == 150 and both["flops"] == 3000
    named = machine.named()
    assert named["bandwidth_bytes_per_s"] == 100 and named["bandwidth_by"] == "fast" and named["peak_flops"] == 1000


@pytest.mark.skipif(bool(native_problem()), reason=native_problem())
@pytest.mark.parametrize(("isa", "huge"), [("auto", False), ("auto", True), ("amx_emulated", True)])
def test_compiled_kernels_measure_a_machine(isa: str, huge: bool) -> None:
    """They raise if a sum is wrong, so a kernel that does less than it says is no limit."""
    compiled = extension(decide(CPU, torch.float32, "native", isa))
    reads = compiled.read_speeds(3 * 2**22 + 5, huge, 2)
    products = compiled.product_speeds(100, 2)
    for speeds in (*(reads or {"no huge pages": [1.0, 1.0]}).values(), *products.values()):
        assert len(speeds) == 2 and all(speed > 0 and math.isfinite(speed) for speed in speeds)
    assert len(products) > 1 and (huge or len(reads) > 1)
    assert any("tiles" in name for name in products) == (compiled.__name__.split("_")[3] == "amx")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_limits_say_who_measured_them(kernels: str, small_checkpoint: Path) -> None:
    decoder = select("cpu", torch.float32, kernels).load(Checkpoint(small_checkpoint), torch.float32, [CPU])
    found = limits.measure(decoder)
    compiled = decoder.arithmetic.kernels == "native"
    assert found.by == (f"compiled kernels ({decoder.arithmetic.isa})" if compiled else "PyTorch")
    assert set(found.reads) == {"sum", "max", "dot"} or compiled
    assert all(math.isfinite(speed) and speed > 0 for speed in (*found.reads.values(), *found.products.values()))


@pytest.mark.parametrize("arguments", [["record=maybe"], ["record="], ["record=true", "record=false"]])
def test_record_is_true_or_false(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["bench", *arguments]) == 2
    given = " ".join(argument.partition("=")[2] for argument in arguments)
    assert f"record={given!r} is invalid: expected true or false, once" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "record"), [([], False), (["record=false"], False), (["record=true"], True)])
def test_hydra_does_not_see_record(arguments: list[str], record: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_command, "bench", lambda *options: options)
    monkeypatch.setattr(bench_command, "command", lambda work, remaining: (work(None, True, None), remaining))
    assert dispatch(["bench", "limit=1", *arguments]) == ((None, record, ["limit=1"]), ["limit=1"])


def test_results_replace_only_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two benches of one second are two files."""
    now = SimpleNamespace(now=lambda _: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    monkeypatch.setattr(module, "datetime", now)
    results = {"machine": "A(R) CPU, 2 threads", "model": "m", "dtype": "float32", "kernels": "torch", "isa": None}
    made = [
        write(results | {"n": n}, tmp_path)
        for n in (1, 2)
        for write in (module._write_by_time, module._write_by_machine)
    ]
    by_machine = "a-r-cpu-2-threads/m-float32-torch.json"
    names = ["20260102T030405Z.json", by_machine, "20260102T030405Z-2.json", by_machine]
    assert [str(path.relative_to(tmp_path)) for path in made] == names
    assert [json.loads(path.read_text(encoding="utf-8"))["n"] for path in made] == [1, 2, 2, 2]
