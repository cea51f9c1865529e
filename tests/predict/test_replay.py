"""Replay: predictions by hand, a latency model's records given back exactly, refusals."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ssd_bench.commands.replay import main
from ssd_bench.cost import machine as machines
from ssd_bench.cost.latency import Latency, NodeTimes
from ssd_bench.cost.machine import Array, Profile
from ssd_bench.cost.reference import ReferenceMachine, reference_machine
from ssd_bench.cost.roofline import SimulatedMachine, simulated_machine, simulated_names
from ssd_bench.cost.shapes import shape_named
from ssd_bench.cost.work import Machine
from ssd_bench.errors import ConfigError
from ssd_bench.predict import replay
from ssd_bench.predict.replay import code_ms, has_baseline, own_profile, predict, step_times, with_baseline
from ssd_bench.records.reader import Run
from ssd_bench.records.schema import PromptRecord, WorkRow
from ssd_bench.results.modelled import STEP, modelled_steps
from ssd_bench.results.prompt_table import PromptTable, of_steps
from ssd_bench.results.rows import arm_rows
from tests.cost.test_roofline import BIG, IDEAL
from tests.synthetic import N_LAYERS, NOT_ROUNDED, unit, write_run

PASSES = tuple(NodeTimes(n, 1e-4 * n, 0.1 + 0.01 * n, 0.2 + 0.02 * n, 0.5 + 0.1 * n) for n in (1, 2, 4, 8, 16, 32, 128))
CORRECTIONS = {"draft_rest_ms": 0.4, "draft_start_ms": 0.2, "tree_token_ms": 0.1, "tree_node_ms": 0.01}
LATENCY = Latency(0.22, 1e-4, 0.11, "measured", passes=PASSES, **CORRECTIONS)
LOOP_MS, POLICY_MS = 0.05, 0.7
CALLS, ROWS, CALLS_MS = 3, 20, 0.4
"""Calls of a search in every step of the method, their rows, and their total recorded time."""
COMPARISONS = 2  # comparisons of streams in every step of the method
REFERENCE = "h200/llama3_1_8b"


def timed(records: list[PromptRecord], reuse: bool = False) -> list[PromptRecord]:
    """The unit with the latency model's times, step by step."""
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
                exact = s.layer_set.first_changed
                one, one_mlp, _ = LATENCY.pass_ms(1, s.context_len + s.draft_len)
                s.verify_ms += (exact + 1) // 2 * (one - attn) + exact // 2 * (one_mlp - mlp)
                s.draft_ms += s.draft_len * machines.COPY_MS
        row = record.prompt
        for name in ("draft_ms", "verify_ms", "policy_ms"):
            setattr(row, name, sum(getattr(s, name) for s in record.steps))
        row.decode_ms = row.draft_ms + row.verify_ms + row.policy_ms + LOOP_MS * len(record.steps)
    return records


def count_work(records: list[PromptRecord], reuse: bool, searching: bool) -> list[PromptRecord]:
    """The unit with its steps' work as the engine counts it; with a search in every step of the method."""
    for record in records:
        for s in record.steps:
            key = {name: getattr(s, name) for name in STEP}
            context, fork = float(s.context_len), 0
            if s.layer_set is not None and s.draft_len:
                kept = (s.layer_set.n_attn, s.layer_set.n_mlp, 1.0)
                for i in range(s.draft_len):
                    record.work.append(work_row(key, "draft", 1, 1, kept, context + i))
                if reuse:
                    fork = s.layer_set.first_changed
            early = (fork + 1) // 2, fork // 2
            if fork:
                record.work.append(work_row(key, "verify", 1, 1, (*early, 0.0), context + s.draft_len))
            rest = (N_LAYERS - early[0], N_LAYERS - early[1], 1.0)
            record.work.append(work_row(key, "verify", 1, s.tree_nodes, rest, context))
            if s.arm == "method" and searching:
                record.work.append(work_row(key, "overhead", CALLS, ROWS, (1, 0, 0.0), context, CALLS_MS))
                record.work.append(work_row(key, "overhead", COMPARISONS, ROWS, (0, 0, 0.0), 0.0, 0.1))
    return records


def work_row(
    key: dict[str, Any],
    part: str,
    calls: int,
    rows: int,
    kinds: tuple[int, int, float],
    context: float,
    ms: float | None = None,
) -> WorkRow:
    attentions, mlps, heads = kinds
    counts = {"calls": calls, "rows": rows, "attentions": attentions, "mlps": mlps, "heads": heads}
    launches = max(1, (attentions + mlps > 0) + (heads > 0))
    return WorkRow(**key, **counts, **NOT_ROUNDED, part=part, launches=launches, context=context, ms=ms)


def made(folder: Path, reuse: bool = False, searching: bool = False, **changes: Any) -> Run:
    """A record with exactly LATENCY's times."""
    config = {"method": {"reuse_prefix": reuse}, "decode": {"reuse_prefix": None}, "hardware": {}}
    units = [count_work(timed(unit(i), reuse), reuse, searching) for i in range(4)]
    return write_run(folder, units, **{"latency": asdict(LATENCY), "config": config} | changes)


def call_costs(machine: Machine, context: Array, heads: float = 0.0) -> Array:
    """Every step's search on a machine, by hand: attentions over rows, perhaps an LM head each, and launches."""
    rows = np.full_like(context, ROWS)
    if isinstance(machine, ReferenceMachine):  # the slower of host and device; a head is not of a block
        attn, _, head = machine.eager_ms(rows, context)
        each = np.maximum(machine.call_ms, attn)
        each += (heads > 0) * np.maximum(machine.call_ms / machine.block_factor, heads * head)
        return CALLS * each + COMPARISONS * machine.compare_ms
    attn, _, rest = machine.pass_ms(rows, context)
    head = machine.rest_ms(0) + rest - machine.pass_ms(np.ones_like(rows), context)[2]
    launch, comparison = getattr(machine, "call_ms", 0.0), getattr(machine, "compare_ms", 0.0)
    return CALLS * (attn + heads * head + launch) + COMPARISONS * comparison


def overhead_ms(run: Run, machine: str = "own", model: str | None = None) -> float:
    times = step_times(run, replay._machine(run, machine, model, None))
    return float(arm_rows(times, "method")["policy_ms"].sum())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made(tmp_path_factory.mktemp("replay") / "run")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made(tmp_path_factory.mktemp("counted") / "run", searching=True)


@pytest.mark.parametrize("reuse", [False, True])
def test_a_record_made_by_a_latency_model_is_replayed_exactly(tmp_path: Path, reuse: bool) -> None:
    run = made(tmp_path / "run", reuse)
    found = predict(run)
    for arm in ("ar", "method"):
        measured = PromptTable(run.prompts).value(f"{arm}_tokens_per_s")
        assert found.tokens_per_s[arm] == pytest.approx(measured, rel=1e-9)
    assert found.speedup == pytest.approx(PromptTable(run.prompts).value("speedup"), rel=1e-9)
    assert found.overhead == "own"
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


def test_the_machine_of_the_record_adds_the_recorded_time_of_the_methods_code(counted: Run) -> None:
    """The search's calls are predicted; the method's other time is as recorded, and left out elsewhere."""
    steps = arm_rows(counted.steps, "method")
    context = steps["context_len"].to_numpy(dtype=float)
    own, reference = own_profile(counted), reference_machine(REFERENCE)
    np.testing.assert_allclose(code_ms(counted, counted.steps), np.where(counted.steps["arm"] == "ar", 0.0, 0.3))
    here = arm_rows(step_times(counted, own), "method")["policy_ms"]
    np.testing.assert_allclose(here, call_costs(own, context) + POLICY_MS - CALLS_MS)
    there = arm_rows(step_times(counted, reference), "method")["policy_ms"]
    np.testing.assert_allclose(there, call_costs(reference.of_blocks(N_LAYERS), context))
    assert predict(counted).overhead == "own" and predict(counted, REFERENCE).overhead == "calls"
    assert overhead_ms(counted) == pytest.approx(call_costs(own, context).sum() + len(steps) * (POLICY_MS - CALLS_MS))
    untimed = replace(counted, work=counted.work.assign(ms=np.nan))  # as on a GPU
    assert predict(untimed).overhead == "calls"
    assert overhead_ms(untimed) == pytest.approx(call_costs(own, context).sum())


@pytest.mark.parametrize("machine", ["own", "sim_h100", REFERENCE])
def test_a_planted_fault_costs_what_it_computes(counted: Run, machine: str) -> None:
    """A search that runs twice, or asks for an LM head at every exit, raises the overhead by its cost."""
    model = "llama3_1_8b" if machine.startswith("sim_") else None
    steps, work = arm_rows(counted.steps, "method"), counted.work
    context, calls = steps["context_len"].to_numpy(dtype=float), work["part"] == "overhead"
    timed_by = own_profile(counted) if machine == "own" else reference_machine(REFERENCE).of_blocks(N_LAYERS)
    if model is not None:
        timed_by = simulated_machine(machine, shape_named(model)).of_blocks(N_LAYERS)
    exits = calls & (work["attentions"] > 0)
    twice = replace(counted, work=work.assign(calls=work["calls"].where(~calls, 2 * work["calls"])))
    more_heads = work.assign(heads=work["heads"].where(~exits, 1.0), launches=work["launches"] + exits)
    heads = replace(counted, work=more_heads)
    base = predict(counted, machine, model)
    without, with_heads = (call_costs(timed_by, context, share).sum() for share in (0.0, 1.0))
    for faulty, extra in ((twice, without), (heads, with_heads - without)):
        prediction = predict(faulty, machine, model)
        more = overhead_ms(faulty, machine, model) - overhead_ms(counted, machine, model)
        assert extra > 0 and more == pytest.approx(extra)
        assert prediction.speedup < base.speedup and prediction.speedup_frozen == pytest.approx(base.speedup_frozen)


def test_a_tree_takes_longer_by_drafted_token_and_by_node(run: Run) -> None:
    steps = run.steps.copy()
    steps["tree_nodes"] += 5
    trees = replace(run, steps=steps)
    flat = Profile(replace(LATENCY, tree_token_ms=0.0, tree_node_ms=0.0))
    found, without = step_times(trees, own_profile(run)), step_times(trees, flat)
    drafted = steps["draft_len"].where(steps["layer_set_id"].notna(), 0)
    assert drafted.max() > 0
    np.testing.assert_allclose(found["draft_ms"] - without["draft_ms"], LATENCY.tree_token_ms * drafted, atol=1e-12)
    np.testing.assert_allclose(found["verify_ms"] - without["verify_ms"], LATENCY.tree_node_ms * steps["tree_nodes"])


def test_without_a_baseline_ar_is_made_up_from_the_output(run: Run, counted: Run) -> None:
    for record in (run, counted):
        alone = replace(
            record,
            prompts=arm_rows(record.prompts, "method"),
            steps=arm_rows(record.steps, "method").reset_index(drop=True),
            work=record.work[record.work["arm"] == "method"].reset_index(drop=True),
        )
        paired = predict(record)
        assert predict(alone).tokens_per_s["ar"] == pytest.approx(paired.tokens_per_s["ar"], rel=0.02)
        assert overhead_ms(alone) == pytest.approx(overhead_ms(record), rel=0.02)
        complete = with_baseline(alone)
        assert not has_baseline(alone) and (complete.steps["arm"] == "ar").sum() == alone.steps["emitted"].sum()
        assert not complete.steps.duplicated(STEP).any()


def test_ar_on_a_memory_bound_machine_is_bytes_over_bandwidth(run: Run) -> None:
    """LLaMA-2-13B by hand: half precision at 1 TB/s, every weight but the embedding once, the cache so far."""
    times = step_times(run, SimulatedMachine(IDEAL, BIG))
    first = times[(times["arm"] == "ar") & (times["step"] == 1)].iloc[0]
    context = int(run.steps.loc[(run.steps["arm"] == "ar") & (run.steps["step"] == 1), "context_len"].iloc[0])
    weights = 2 * (40 * (4 * 5120 * 5120 + 3 * 5120 * 13824) + 32000 * 5120)
    cache = 40 * 2 * 5120 * 2 * (context + 2)  # keys and values: c + 1 read, 1 written
    logits = 32000 * 2 * (2 + 4)
    assert first["verify_ms"] == pytest.approx((weights + cache + logits) / 1e12 * 1e3)
    assert first[["draft_ms", "policy_ms", "loop_ms"]].sum() == 0
    assert weights / 2 == BIG.n_params - 32000 * 5120


@pytest.mark.parametrize("name", ["own", *simulated_names()])
def test_more_kept_sublayers_never_draft_faster(run: Run, name: str) -> None:
    work = run.work.assign(mlps=run.work["mlps"].where(run.work["part"] != "draft", N_LAYERS))
    machine = own_profile(run) if name == "own" else simulated_machine(name, BIG)
    fewer, more = step_times(run, machine), step_times(replace(run, work=work), machine)
    assert (more["draft_ms"] >= fewer["draft_ms"]).all() and more["draft_ms"].sum() > fewer["draft_ms"].sum()


@pytest.mark.parametrize("name", ["own", *simulated_names()])
def test_no_speedup_beyond_m(run: Run, name: str) -> None:
    found = predict(run, name, None if name == "own" else "llama3_8b")
    m = of_steps("M", arm_rows(run.steps, "method"))
    assert found.ceiling == pytest.approx(m)
    assert found.speedup <= found.speedup_frozen <= found.ceiling


def test_blocks_of_another_size_count_by_relative_depth(run: Run) -> None:
    """A block of the record's 8 stands for 5 of 40: sublayers and launches of a search, but not the head."""
    machine = simulated_machine("sim_a100", BIG)
    nodes, context = np.array([1.0, 4.0]), np.array([100.0, 2000.0])
    smaller, whole = machine.of_blocks(N_LAYERS), machine.pass_ms(nodes, context)
    for part, factor, ms in zip(smaller.pass_ms(nodes, context), (5, 5, 1), whole):
        np.testing.assert_allclose(part, factor * ms)
    assert smaller.call_ms == pytest.approx(5 * machine.call_ms) and smaller.of_blocks(40) == machine
    plain = step_times(run, machine).query("arm == 'ar'")
    context = arm_rows(run.steps, "ar")["context_len"].to_numpy(dtype=float)
    attn, mlp, rest = machine.pass_ms(np.ones_like(context), context)
    np.testing.assert_allclose(plain["verify_ms"], 40 * (attn + mlp) + rest)


def test_a_reference_machine_times_a_record_of_a_smaller_model(counted: Run) -> None:
    prediction, machine = predict(counted, REFERENCE), reference_machine(REFERENCE)
    assert (prediction.machine, prediction.model) == (REFERENCE, "llama3_1_8b")
    assert "8 stand for 32" in prediction.acceptance and machine.n_layers == 32
    context = arm_rows(counted.steps, "ar")["context_len"].to_numpy(dtype=float)
    attn, mlp, rest = machine.pass_ms(np.ones_like(context), context)
    ms = float((32 * (attn + mlp) + rest + machine.loop_ms).mean())
    assert prediction.tokens_per_s["ar"] == pytest.approx(1000 / ms)
    modelled = modelled_steps(counted, machine.of_blocks(N_LAYERS))["policy_ms"].sum()
    assert modelled == pytest.approx(overhead_ms(counted, REFERENCE))


def test_what_cannot_be_replayed_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="sim_h100"):
        predict(run, "cuda")
    for machine in ("own", REFERENCE):
        with pytest.raises(ConfigError, match="one model and one machine"):
            predict(run, machine, "llama2_7b")
    with pytest.raises(ConfigError, match="h200/qwen3_8b"):
        predict(run, "h200/gpt2")
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


def test_the_command_predicts_and_says_so(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"run={run.path}", "hardware=all", "model=llama2_13b"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PREDICTED, not measured: llama2_13b") and "H200" in out and "MI300X" in out
    assert main([f"run={run.path}", f"hardware=own,{REFERENCE}"]) == 0
    assert "PREDICTED, not measured: llama3_1_8b" in capsys.readouterr().out
    assert main([f"run={run.path}", "hardware=own,sim_h100", "model=llama2_13b"]) == 2  # a model for own


BAD = ["", "run=x", "hardware=own", "run=nowhere hardware=own", "run=", "colour=red"]
BAD += ["run=x hardware=own devices=0", "run=x run=y hardware=own"]


@pytest.mark.parametrize("words", BAD)
def test_bad_options_exit_with_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr().err.startswith("error: ")
