"""Replay: the arithmetic of predictions by hand, records made by a latency model given back exactly, refusals."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ssd_bench import metrics
from ssd_bench.commands.replay import main
from ssd_bench.conf import CONF
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.shape import Shape
from ssd_bench.cost import machine as machines
from ssd_bench.cost import roofline
from ssd_bench.cost.latency import Latency, NodeTimes
from ssd_bench.cost.machine import Profile, own_profile
from ssd_bench.cost.roofline import Gpu, SimulatedMachine, simulated_machine, simulated_names
from ssd_bench.cost.shapes import shape_named
from ssd_bench.errors import ConfigError
from ssd_bench.predict import validation
from ssd_bench.predict.replay import predict, step_times, verification_mode
from ssd_bench.predict.workload import map_layer_set, workload
from ssd_bench.records.files import read_header
from ssd_bench.records.header import RunHeader
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import PromptRecord
from ssd_bench.run.plan import plan
from tests.runs import composed
from tests.synthetic import N_LAYERS, unit, write_run

PASSES = tuple(NodeTimes(n, 1e-4 * n, 0.1 + 0.01 * n, 0.2 + 0.02 * n, 0.5 + 0.1 * n) for n in (1, 2, 4, 8, 16, 32, 128))
LATENCY = Latency(
    0.22,
    1e-4,
    0.11,
    "measured",
    passes=PASSES,
    draft_rest_ms=0.4,
    draft_start_ms=0.2,
    tree_token_ms=0.1,
    tree_node_ms=0.01,
)
LOOP_MS, POLICY_MS = 0.05, 0.7
IDEAL = Gpu("ideal", 1e6, 1000, 1e9, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
BIG = shape_named("llama2_13b")


def timed(records: list[PromptRecord], reuse: bool = False) -> list[PromptRecord]:
    """The unit with the times that the latency model gives it, step by step."""
    for record in records:
        for s in record.steps:
            s.policy_ms = POLICY_MS if s.arm == "method" else 0.0
            s.draft_ms = 0.0
            if s.layer_set is not None:
                tokens = (LATENCY.pass_ms(1, s.context_len + i) for i in range(s.draft_len))
                s.draft_ms = sum(
                    s.layer_set.n_attn * attn + s.layer_set.n_mlp * mlp + LATENCY.draft_rest_ms
                    for attn, mlp, _ in tokens
                )
                s.draft_ms += LATENCY.draft_start_ms * (s.draft_len > 0)
            attn, mlp, rest = LATENCY.pass_ms(s.tree_nodes, s.context_len)
            s.verify_ms = N_LAYERS * (attn + mlp) + rest
            if reuse and s.layer_set is not None:
                exact = s.layer_set.first_skipped
                one, one_mlp, _ = LATENCY.pass_ms(1, s.context_len + s.draft_len)
                s.verify_ms += (exact + 1) // 2 * (one - attn) + exact // 2 * (one_mlp - mlp)
                s.draft_ms += s.draft_len * machines.COPY_MS
        row = record.prompt
        for name in ("draft_ms", "verify_ms", "policy_ms"):
            setattr(row, name, sum(getattr(s, name) for s in record.steps))
        row.decode_ms = row.draft_ms + row.verify_ms + row.policy_ms + LOOP_MS * len(record.steps)
    return records


def made(folder: Path, reuse: bool = False, **changes: Any) -> Run:
    """A record whose times are exactly those of LATENCY."""
    config = {"method": {"reuse_prefix": reuse}, "decode": {"reuse_prefix": None}, "hardware": {}}
    units = [timed(unit(i), reuse) for i in range(4)]
    return write_run(folder, units, **{"latency": asdict(LATENCY), "config": config} | changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made(tmp_path_factory.mktemp("replay") / "run")


# --- own profile ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reuse", [False, True])
def test_a_record_made_by_a_latency_model_is_replayed_exactly(tmp_path: Path, reuse: bool) -> None:
    run = made(tmp_path / "run", reuse)
    found = predict(run)
    for arm in ("ar", "method"):
        measured = metrics.tokens_per_s(metrics.arm_rows(run.prompts, arm)).value
        assert found.tokens_per_s[arm] == pytest.approx(measured, rel=1e-9)
    assert found.speedup == pytest.approx(metrics.speedup(run.prompts).value, rel=1e-9)
    assert found.verification == ("saved" if reuse else "whole") and found.policy_scale == pytest.approx(1)
    assert sum(found.shares.values()) == pytest.approx(1)
    keys = ["prompt_index", "repeat", "arm", "step"]
    both = run.steps.merge(step_times(run, own_profile(run)), on=keys, suffixes=("", "_predicted"))
    assert len(both) == len(run.steps)
    for name in ("draft_ms", "verify_ms", "policy_ms"):
        np.testing.assert_allclose(both[f"{name}_predicted"], both[name], rtol=1e-9, atol=1e-12)


def test_the_profile_is_the_latency_model_without_torch() -> None:
    nodes, context = (x.ravel() for x in np.meshgrid([1.0, 2, 3, 8, 20, 32, 33, 100, 128, 200], [1.0, 64, 3000]))
    for latency in (LATENCY, replace(LATENCY, passes=())):
        found = np.array(Profile(latency).pass_ms(nodes, context))
        np.testing.assert_allclose(found.T, [latency.pass_ms(n, c) for n, c in zip(nodes, context)])


def test_whole_verifications_are_told_from_those_on_saved_states(tmp_path: Path) -> None:
    """Asked for, but slower than saved states allow: the method's taps must have ruled them out."""
    run = made(tmp_path / "run")
    asked = replace(run, header=replace(run.header, config={"method": {"reuse_prefix": True}}))
    slower = asked.steps["verify_ms"].where(asked.steps["arm"] == "ar", asked.steps["verify_ms"] * 1.05)
    assert verification_mode(replace(asked, steps=asked.steps.assign(verify_ms=slower))) == "tapped"
    unprofiled = replace(asked.header, latency=replace(LATENCY, passes=()))
    assert verification_mode(replace(asked, header=unprofiled)) == "saved"
    refused = replace(asked.header, config={"method": {"reuse_prefix": True}, "decode": {"reuse_prefix": False}})
    assert verification_mode(replace(asked, header=refused)) == "whole"


def test_a_tree_takes_longer_by_drafted_token_and_by_node(run: Run) -> None:
    steps = run.steps.copy()
    steps["tree_nodes"] += 5
    trees = replace(run, steps=steps)
    flat = Profile(replace(LATENCY, tree_token_ms=0.0, tree_node_ms=0.0))
    found, without = step_times(trees, own_profile(run)), step_times(trees, flat)
    work = workload(trees)
    assert work.tree.all() and work.drafted.max() > 0
    np.testing.assert_allclose(
        found["draft_ms"] - without["draft_ms"], LATENCY.tree_token_ms * work.drafted, atol=1e-12
    )
    np.testing.assert_allclose(found["verify_ms"] - without["verify_ms"], LATENCY.tree_node_ms * work.nodes)


def test_a_profile_from_before_trees_were_timed_is_read(run: Run) -> None:
    old = {
        name: value
        for name, value in asdict(LATENCY).items()
        if name not in ("draft_start_ms", "tree_token_ms", "tree_node_ms")
    }
    header = RunHeader.of(read_header(run.path) | {"latency": old})
    machine = own_profile(replace(run, header=header))
    assert machine.draft_rest_ms == LATENCY.draft_rest_ms
    assert machine.draft_start_ms == machine.tree_token_ms == machine.tree_node_ms == 0


def test_without_a_baseline_ar_is_made_up_from_the_output(run: Run) -> None:
    alone = replace(
        run,
        prompts=metrics.arm_rows(run.prompts, "method"),
        steps=metrics.arm_rows(run.steps, "method").reset_index(drop=True),
    )
    assert predict(alone).tokens_per_s["ar"] == pytest.approx(predict(run).tokens_per_s["ar"], rel=0.02)
    work = workload(alone)
    assert not work.recorded_ar and work.of_arm("ar").sum() == alone.steps["emitted"].sum()


# --- simulated GPUs ---------------------------------------------------------------------------------------------------


def test_ar_on_a_memory_bound_machine_is_bytes_over_bandwidth(run: Run) -> None:
    """By hand: LLaMA-2-13B in half precision at 1 TB/s, every weight but the embedding once, the cache so far."""
    times = step_times(run, SimulatedMachine(IDEAL, BIG))
    first = times[(times["arm"] == "ar") & (times["step"] == 1)].iloc[0]
    context = int(run.steps.loc[(run.steps["arm"] == "ar") & (run.steps["step"] == 1), "context_len"].iloc[0])
    weights = 2 * (40 * (4 * 5120 * 5120 + 3 * 5120 * 13824) + 32000 * 5120)
    cache = 40 * 2 * 5120 * 2 * (context + 2)  # keys and values: c + 1 read, 1 written
    logits = 32000 * 2 * (2 + 4)
    assert first["verify_ms"] == pytest.approx((weights + cache + logits) / 1e12 * 1e3)
    assert first[["draft_ms", "policy_ms", "loop_ms"]].sum() == 0
    assert weights / 2 == BIG.n_params - 32000 * 5120


def test_launches_loop_and_hops_add_up() -> None:
    one, none = np.ones(1), np.zeros(1)
    slow = replace(IDEAL, launch_us=10.0, sync_us=7.0, hop_us=3.0, loop_us=5.0)
    extra = [
        float((a - b)[0]) * 1e3
        for a, b in zip(
            SimulatedMachine(slow, BIG, 3).pass_ms(one, none), SimulatedMachine(IDEAL, BIG).pass_ms(one, none)
        )
    ]
    assert extra == pytest.approx(
        [10 * roofline.ATTN_KERNELS, 10 * roofline.MLP_KERNELS, 10 * roofline.REST_KERNELS + 7 + 2 * 3]
    )
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


@pytest.mark.parametrize("name", ["own", *simulated_names()])
def test_more_kept_sublayers_never_draft_faster(run: Run, name: str) -> None:
    sets = run.layer_sets.copy()
    sets["skip_mlp"] = [np.array([], dtype="int32")] * len(sets)
    machine = own_profile(run) if name == "own" else simulated_machine(name, BIG)
    fewer, more = step_times(run, machine), step_times(replace(run, layer_sets=sets), machine)
    assert (more["draft_ms"] >= fewer["draft_ms"]).all() and more["draft_ms"].sum() > fewer["draft_ms"].sum()


@pytest.mark.parametrize("name", ["own", *simulated_names()])
def test_no_speedup_beyond_m(run: Run, name: str) -> None:
    found = predict(run, name, None if name == "own" else "llama3_8b")
    m = metrics.tokens_per_pass(metrics.arm_rows(run.steps, "method"))
    assert found.ceiling == pytest.approx(m)
    assert found.speedup <= found.speedup_policy_free <= found.ceiling


def test_the_baselines_that_a_paper_printed_are_near() -> None:
    """SWIFT Table 2, AR on RTX A6000s: 20.10 tokens/s with LLaMA-2-13B, 4.32 with 70B, which needs four of them."""
    for model, devices, printed in (("llama2_13b", 1, 20.10), ("llama2_70b", 4, 4.32)):
        shape = shape_named(model)
        machine = simulated_machine("sim_a6000", shape)
        attn, mlp, rest = machine.pass_ms(np.ones(1), np.full(1, 500.0))
        step_ms = float((shape.n_layers * (attn + mlp) + rest)[0]) + machine.loop_ms
        assert machine.devices == devices and 1000 / step_ms == pytest.approx(printed, rel=0.2)


def test_layer_sets_are_mapped_by_relative_depth() -> None:
    recorded = LayerSet.skipping(4, attn=[1], mlp=[3])
    assert map_layer_set(recorded, 4) == recorded
    assert map_layer_set(recorded, 8) == LayerSet.skipping(8, attn=[2, 3], mlp=[6, 7])
    assert map_layer_set(recorded, 2) == LayerSet.skipping(2, attn=[0], mlp=[1])
    assert map_layer_set(LayerSet.exit(16, 8), 40) == LayerSet.exit(40, 20)


def test_policy_is_scaled_held_or_left_out(run: Run) -> None:
    found = predict(run, "sim_a6000", "llama2_70b")
    assert found.policy_scale > 1
    assert found.speedup < found.speedup_policy_held < found.speedup_policy_free
    assert "4 x" in found.machine and "relative depth, 8 blocks to 80" in found.acceptance


# --- descriptions and refusals ----------------------------------------------------------------------------------------


def test_every_gpu_of_the_papers_loads_with_its_source() -> None:
    names = ["sim_3090", "sim_a100", "sim_a6000", "sim_h100", "sim_h200", "sim_mi300x"]
    assert simulated_names() == names
    for name in names:
        path = CONF / "hardware" / f"{name}.yaml"
        assert asdict(roofline.gpu_named(name)) == yaml.safe_load(path.read_text(encoding="utf-8"))["latency"]
        assert "data sheet" in path.read_text(encoding="utf-8") or "whitepaper" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "refused"),
    [([], "hardware.device=.*ssd_bench replay only"), (["hardware.device=cpu"], "hardware.latency=.*null, or exactly")],
)
def test_a_run_on_a_simulated_gpu_is_refused(options: list[str], refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        plan(composed("hardware=sim_h100", *options))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bandwidth_gb_s", 0),
        ("dense_tflops", "fast"),
        ("flops_efficiency", 1.5),
        ("launch_us", -1),
        ("memory_gb", True),
    ],
)
def test_a_description_that_cannot_be_is_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        Gpu(**asdict(IDEAL) | {field: value})


def test_shapes(tmp_path: Path) -> None:
    billions = {"llama2_7b": 6.74, "llama2_70b": 69.0, "llama3_8b": 8.03, "qwen3_32b": 32.8, "yi_34b": 34.4}
    billions |= {"codellama_34b": 33.7, "deepseek_coder_33b": 33.3, "qwen2_5_14b": 14.8, "llama3_2_1b": 1.24}
    for name, size in billions.items():
        assert shape_named(name).n_params == pytest.approx(size * 1e9, rel=0.01), name
    config = tmp_path / "config.json"
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 9,
    }
    config.write_text(json.dumps(sizes), encoding="utf-8")
    assert shape_named(str(config)) == Shape(2, 64, 4, 4, 16, 96, 9)
    for text in ("{}", "[]", "no JSON"):
        config.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="model"):
            shape_named(str(config))


def test_what_cannot_be_replayed_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="sim_h100"):
        predict(run, "cuda")
    with pytest.raises(ConfigError, match="its model and its machine"):
        predict(run, "own", "llama2_7b")
    with pytest.raises(ConfigError, match="expected model=NAME"):
        predict(run, "sim_h100")
    with pytest.raises(ConfigError, match="2 to 80"):
        predict(run, "sim_h100", "llama2_70b", 1)
    stale = replace(run.header, model=replace(run.header.model, name="miniature", n_params=1))
    with pytest.raises(ConfigError, match="another version"):
        predict(replace(run, header=stale), "sim_h100")
    with pytest.raises(ConfigError, match="latency profile"):
        predict(replace(run, header=replace(run.header, latency=None)))
    with pytest.raises(ConfigError, match="two tokens"):
        predict(replace(run, steps=run.steps.iloc[:0]))


# --- validation and command line --------------------------------------------------------------------------------------


def test_validation_sets_predictions_beside_measurements(run: Run, tmp_path: Path) -> None:
    slower = run.prompts.assign(decode_ms=run.prompts["decode_ms"].where(run.prompts["arm"] == "ar", 1e4))
    other = replace(run, prompts=slower, header=replace(run.header, method="other"))
    unprofiled = replace(run, header=replace(run.header, latency=replace(LATENCY, passes=())))
    frame = validation.validate([run, other, unprofiled])
    assert frame["method"].tolist() == ["knapspec", "other"]
    assert frame["speedup_error"].iloc[0] == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(frame["forward_error"], 0, atol=1e-9)
    assert frame["speedup_measured"].iloc[1] == pytest.approx(metrics.speedup(slower).value)
    table = validation.errors_by_method(frame)
    assert table.index.tolist() == ["knapspec", "other", "all runs"] and table.loc["all runs", "size"] == 2


def test_the_command_predicts_and_says_so(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"run={run.path}", "hardware=all", "model=llama2_13b"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PREDICTED, not measured: llama2_13b") and "H200" in out and "MI300X" in out
    assert main([f"run={run.path}", "hardware=own,sim_h100", "model=llama2_13b"]) == 2  # a model for own
    assert main(["validate", f"runs_dir={run.path.parent}"]) == 0
    out = capsys.readouterr().out
    assert "PREDICTED" in out and "all runs" in out and "yes" in out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["run=x"],
        ["hardware=own"],
        ["run=nowhere", "hardware=own"],
        ["run="],
        ["colour=red"],
        ["validate", "run=x"],
        ["validate", "runs_dir=nowhere"],
        ["run=x", "hardware=own", "devices=0"],
        ["run=x", "run=y", "hardware=own"],
    ],
)
def test_bad_options_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")
