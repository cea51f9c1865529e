"""Drafts with rounded weights: products, losslessness, records, costs; every backend against PyTorch."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from torch import Tensor
from transformers import LlamaConfig

from methods import knn_ssd
from methods.ar import AR
from methods.arms import Costs
from methods.draft_stop import ModelDraft
from methods.fixed_layers import FixedLayers
from methods.int4_draft import Int4Draft
from methods.int8_draft import Int8Draft
from methods.knapsack import CHOICE_BITS, EXECUTE, SKIP, Knapsack, mixed_weights
from ssd_bench.commands import export
from ssd_bench.conf import read_yaml
from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.contract.method import LayerDraft, Method, Probe
from ssd_bench.contract.optional import Quantised
from ssd_bench.contract.window import Window
from ssd_bench.cost import profiling
from ssd_bench.cost.latency import Latency, NodeTimes
from ssd_bench.cost.machine import LatencyTimes, Profile
from ssd_bench.cost.reference import COSTS, reference_machine, reference_names
from ssd_bench.cost.roofline import simulated_machine
from ssd_bench.cost.work import work_ms
from ssd_bench.errors import ConfigError
from ssd_bench.model.arithmetic import available_levels
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.operators import GROUP, RoundedMatrix
from ssd_bench.model.weights import MATRICES
from ssd_bench.predict.acceptance import Steps
from ssd_bench.predict.break_even import kinds_of_drafts
from ssd_bench.records.reader import Run, load_run
from ssd_bench.records.schema import ROUNDED
from ssd_bench.results.digest import summarise
from ssd_bench.results.evidence import trace
from ssd_bench.run import loading
from tests.conftest import FAMILIES, LAYERS, SIZES, rope, save_model
from tests.interpreted import TOLERANCE, load
from tests.lossless import (
    DIMS,
    PROFILE,
    Drafting,
    Load,
    check_greedy,
    check_sampled,
    decode,
    engine_for,
    loaded,
    method_of,
)
from tests.methods.test_draft_windows import SMALL, maker, windowed
from tests.methods.test_knapspec import LENGTH, history
from tests.model.test_model import tokens
from tests.predict.test_replay import BIG
from tests.runs import config, executed, local_model

NATIVE_LEVELS = [level.name for level in available_levels()]
DRAFTS = {8: Int8Draft, 4: Int4Draft}


@pytest.fixture(scope="session")
def quantised(decoders: Load) -> Load:
    """Loads a family's tiny decoder with rounded copies of its weights, separate from other tests'."""
    loaded: dict[tuple[Any, ...], Decoder] = {}

    def load(*key: Any) -> Decoder:
        if key not in loaded:
            original = decoders(*key)
            loaded[key] = type(original)(original.arithmetic, original.weights)
            for bits in BITS:
                loaded[key].quantise(bits)
        return loaded[key]

    return load


def dequantised(decoder: Decoder, bits: int) -> Decoder:
    """The decoder with the numbers of a rounded copy as its loaded weights."""
    copy = decoder.in_bits(bits)

    def wide(matrix: RoundedMatrix) -> Tensor:
        return matrix.floats(torch.float64)

    blocks = [replace(block, **{name: wide(getattr(block, name)) for name in MATRICES}) for block in copy.blocks]
    weights = replace(decoder.weights, blocks=blocks, head=wide(copy.head))
    return type(decoder)(decoder.arithmetic, weights)


# ---- rounding and products


def test_rounding_is_to_the_nearest_of_255_values_of_a_row() -> None:
    weights = torch.randn(70, 33, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights[3] = 0.0
    weights[5, 7] = 40.0
    matrix = RoundedMatrix.of(weights.split(32), 8)
    error = (weights - matrix.values.double() * matrix.scale.double().unsqueeze(1)).abs()
    assert (error <= matrix.scale.double().unsqueeze(1) * 0.5001).all()
    assert matrix.values.abs().max() == 127 and not matrix.values[3].any() and matrix.scale[3] == 0
    negative = RoundedMatrix.of([-weights], 8)
    assert torch.equal(negative.values, -matrix.values) and torch.equal(negative.scale, matrix.scale)


def test_rounding_is_to_the_nearest_of_16_values_of_a_group() -> None:
    weights = torch.randn(70, 80, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights[3], weights[4] = 0.0, 0.25
    weights[5, 7] = 40.0
    matrix = RoundedMatrix.of(weights.split(32), 4)
    assert matrix.minimum is not None and matrix.scale.shape == matrix.minimum.shape == (70, 3)
    rounded, step = matrix.floats(torch.float64), matrix.scale.double().repeat_interleave(GROUP, 1)[:, :80]
    # scale and minimum have the 11 bits of float16
    assert ((weights - rounded).abs() <= 0.51 * step + 2**-9 * weights.abs().amax(1, keepdim=True)).all()
    assert torch.equal(rounded[3:5, :64], weights[3:5, :64])  # the last group is padded with zeros
    assert torch.equal(torch.cat([part.floats(torch.float64) for part in matrix.split(9)]), rounded)
    assert matrix.nbytes == 70 * 3 * (16 + 4)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("family", ["llama_bias", "qwen2", "qwen3"])
def test_a_pass_is_one_of_the_rounded_weights(family: str, bits: int, quantised: Load) -> None:
    """Passes of all or some sublayers, and the head in either precision; float64."""
    decoder = quantised(family)
    every, rounded = decoder.all_sublayers, dequantised(decoder, bits)
    mixed = replace(rounded.weights, blocks=[*rounded.weights.blocks[:1], *decoder.weights.blocks[1:]])
    some = type(decoder)(decoder.arithmetic, mixed)
    for sublayers, expected in ((every, rounded), (every[:2], some)):
        results = []
        for model, chosen in ((decoder, dict.fromkeys(sublayers, bits)), (expected, None)):
            cache = model.new_cache(40)
            cache.reserve(20)
            # both read the same prefix: that of the full model
            decoder.prefill(tokens(9), cache)
            hidden, _ = model.run(Pass(every, tokens(5, 1), 9, bits=chosen), cache)
            results.append(hidden.clone())
        torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-6)
        logits = decoder.logits(results[0], bits=bits), rounded.logits(results[0])
        torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
        assert not torch.equal(logits[0], decoder.logits(results[0]))


def passes(decoder: Decoder, kinds: Iterable[tuple[int, dict[int, int]]]) -> Iterator[Tensor]:
    """Logits by each rounded head of passes over so many nodes with these bits, and those of one with taps."""
    cache, every = decoder.new_cache(80), decoder.all_sublayers
    decoder.prefill(tokens(2), cache)
    for n, bits in kinds:
        hidden = decoder.run(Pass(every, tokens(n, n), cache.length, bits=bits), cache)[0].clone()
        yield from [decoder.logits(hidden, bits=of_head) for of_head in BITS]
    kept = Pass((0, 2, 3), tokens(2), cache.length, bits={3: 8}, taps=(2,))
    yield decoder.logits(decoder.run(kept, cache)[0].clone())


@pytest.mark.parametrize("isa", NATIVE_LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_compiled_passes_are_pytorchs(isa: str, dtype: torch.dtype, quantised: Load) -> None:
    """Passes in 4 bits differ, since only compiled products round the inputs."""
    every = range(2 * LAYERS)
    rounded = [
        *(dict.fromkeys(every, bits) for bits in BITS),
        dict.fromkeys(every[1::2], 8),
        dict.fromkeys(every[:3], 4),
    ]
    kinds = [*product((1, 5, 17, 70), rounded)]
    made = (passes(quantised("qwen2", dtype, kernels, isa), kinds) for kernels in ("torch", "native"))
    in_4_bits = [4 in (of_head, *bits.values()) for _, bits in kinds for of_head in BITS]
    for expected, computed, nearly in zip(*made, [*in_4_bits, False], strict=True):
        tolerance = 0.2 if nearly else TOLERANCE if dtype == torch.float32 else 0.03
        assert (expected - computed).abs().max() <= tolerance


@pytest.mark.parametrize("isa", NATIVE_LEVELS)
def test_compiled_products_in_4_bits_round_their_inputs(isa: str, quantised: Load) -> None:
    """Inputs become one of 255 values in groups: multiples of the largest magnitude over 127."""
    ops = quantised("qwen2", torch.float32, "native", isa)._ops
    generator = torch.Generator().manual_seed(1)
    for n, (rows, width) in product((1, 2, 13, 70), ((50, 80), (16, 32), (67, 160))):
        W, x = (torch.randn(size, width, generator=generator) for size in (rows, n))
        x[0, :32] = 0.0
        groups = F.pad(x, (0, -width % GROUP)).unflatten(1, (-1, GROUP))
        most = groups.abs().amax(-1, keepdim=True)
        rounded = ((groups * (127 / most.clamp_min(1e-30))).round() * (most / 127)).flatten(1)[:, :width].double()
        expected = F.linear(rounded, RoundedMatrix.of([W], 4).floats(torch.float64))
        computed = ops.linear(x, ops.round(ops.pack(W), 4))
        torch.testing.assert_close(computed.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", NATIVE_LEVELS)
def test_a_node_has_the_same_bits_in_every_pass(isa: str, quantised: Load) -> None:
    decoder = quantised("qwen3", torch.bfloat16, "native", isa)
    cache, every, ids = decoder.new_cache(320), decoder.all_sublayers, tokens(140)
    decoder.prefill(tokens(9), cache)
    for of_attention, of_mlp in (BITS, BITS[::-1]):
        rounded = {i: of_mlp if i % 2 else of_attention for i in every[1:]}
        alone = []
        for i in range(len(ids)):
            hidden, _ = decoder.run(Pass(every, ids[i : i + 1], 9 + i, bits=rounded), cache)
            alone.append(decoder.logits(hidden.clone(), bits=of_mlp))
        for n in (2, 11, 12, 13, 24, 25, 100, len(ids)):
            hidden, _ = decoder.run(Pass(every, ids[:n], 9, bits=rounded), cache)
            assert torch.equal(decoder.logits(hidden.clone(), bits=of_mlp), torch.cat(alone[:n])), n


FIRST, LAST = ({0: one, 1: one, 2: other, 3: other} for one, other in (BITS, BITS[::-1]))
# the streams, too, have the dtype of the weights, thus 11 bits in float16, which may round to another of 16 values
CAPTURED = [
    (torch.float32, (2, 18), [(1, FIRST), (3, LAST)], TOLERANCE),
    (torch.float32, (1,), [(2, FIRST)], TOLERANCE),
    (torch.float16, (2, 18), [(2, FIRST), (3, LAST)], 0.3),
]


@pytest.mark.parametrize(("dtype", "lanes", "kinds", "tolerance"), CAPTURED)
def test_captured_passes_are_pytorchs(
    dtype: torch.dtype,
    lanes: tuple[int, ...],
    kinds: list[tuple[int, dict[int, int]]],
    tolerance: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Passes of the first lane, of the second, and larger ones; every kind of matrix in both roundings."""
    pytest.importorskip("triton")
    from ssd_bench.model.backends import graphs

    monkeypatch.setattr(graphs, "LANES", lanes)
    config = FAMILIES["qwen2"](num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    folder = save_model(config, tmp_path)
    decoders = load(folder, "torch", torch.float32), load(folder, "graphs", dtype)
    for decoder, bits in product(decoders, BITS):
        decoder.quantise(bits)
    for expected, computed in zip(*(passes(decoder, kinds) for decoder in decoders), strict=True):
        assert (expected - computed).abs().max() <= tolerance


def test_rounding_twice_is_rounding_once(quantised: Load) -> None:
    decoder = quantised("llama")
    copies = [decoder.in_bits(bits) for bits in BITS]
    for bits, copy, share in zip(BITS, copies, (4, 5)):
        decoder.quantise(bits)
        assert decoder.in_bits(bits) is copy and copy.nbytes < decoder.weights.nbytes / share


# ---- decoding


@pytest.mark.parametrize("preset", windowed())
def test_every_method_is_lossless_with_rounded_weights(
    preset: str, quantised: Load, rests: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knn_ssd, "KMEANS_RUNS", 1)  # of two prompts each domain

    def drawn(rng: random.Random) -> dict[str, Any]:
        return {"draft_weights": f"int{rng.choice(BITS)}"} | ({"draft_window": [1, 2]} if rng.random() < 0.3 else {})

    assert check_greedy(maker(preset, drawn), quantised, 40) > 0
    assert not rests, "states of a draft with rounded weights are not the full model's"


@pytest.mark.parametrize("bits", BITS)
def test_a_rounded_draft_is_lossless(bits: int, quantised: Load) -> None:
    def make(rng: random.Random) -> ModelDraft:
        return DRAFTS[bits](draft_len=rng.choice([1, 3, 8]), stop_below=rng.choice([0.0, 0.3]))

    assert check_greedy(make, quantised, cases=200) > 0


def test_rounded_weights_keep_the_sampled_distribution(quantised: Load) -> None:
    check_sampled(lambda: Int4Draft(draft_len=3), quantised)


class Mixed(Drafting):
    """Drafts that may read rounded weights, verified from the first sublayer that does."""

    bits = BITS


def mixed(skipped: Iterable[int], rounded: Mapping[int, int]) -> Mixed:
    layer_set = LayerSet(LAYERS, frozenset(skipped), frozenset(rounded.items()))
    return Mixed(LayerDraft(layer_set, 3), reuse_prefix=True)


def test_mixed_sets_reuse_the_states_before_the_first_rounded_sublayer(quantised: Load, rests: list[int]) -> None:
    def make(rng: random.Random) -> Mixed:
        first = rng.choice([2, 3])
        rounded = {i: rng.choice(BITS) for i in range(first, 2 * LAYERS + 1) if i != 4}
        return mixed([4] if rng.random() < 0.5 else [], rounded)

    assert check_greedy(make, quantised, 60) > 0
    assert {2, 3} <= set(rests)


def test_a_rounded_draft_without_its_copy_is_refused(decoders: Load) -> None:
    original = decoders("llama")
    other = type(original)(original.arithmetic, original.weights)
    other.quantise(8)
    with pytest.raises(ConfigError, match="bits"):
        decode(other, mixed([], {8: 4}), [4, 5], 9)


def test_sets_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="not skipped"):
        LayerSet(4, frozenset([3]), frozenset([(3, 8)]))
    with pytest.raises(ConfigError, match=r"\[0, 8\]"):
        LayerSet(4, rounded=frozenset([(9, 8)]))
    for pairs in ([(1, 5)], [(1, 4), (1, 8)]):
        with pytest.raises(ConfigError, match="bits"):
            LayerSet(4, rounded=frozenset(pairs))


@pytest.mark.parametrize("bits", BITS)
def test_sizes_of_a_rounded_set(bits: int) -> None:
    layer_set = LayerSet(4, frozenset([2, 5]))
    rounded = layer_set.in_bits(bits)
    assert rounded.sublayers_in(bits) == [*layer_set.kept, 8] and rounded.head_bits == bits
    assert rounded.n_rounded == {bits: (rounded.n_attn, rounded.n_mlp)} == {bits: (3, 3)}
    assert (rounded.first_changed, layer_set.first_changed, LayerSet.full(4).first_changed) == (0, 2, 8)
    assert LayerSet(4, frozenset([5])).in_bits(bits, [3, 8]).first_changed == 3
    assert rounded != layer_set and rounded.skip_ratio == layer_set.skip_ratio
    assert f"{bits}-bit weights" in rounded.text


@pytest.mark.parametrize(("preset", "bits"), [*((preset, 4) for preset in windowed()), ("int8_draft", 8)])
def test_every_draft_of_a_method_reads_rounded_weights(preset: str, bits: int, quantised: Load) -> None:
    method = instantiate(config(preset), draft_weights=f"int{bits}", **SMALL.get(preset, {}))
    assert isinstance(method, Quantised) and [*method.bits] == [bits]
    generation = decode(quantised("llama"), method, [5, 6, 7, 8, 9], 40)
    sets = {step.layer_set for step in generation.steps if step.layer_set}
    assert sets and all(layer_set == layer_set.in_bits(bits) for layer_set in sets)
    drafts = [work for step in generation.steps for work in step.work if work.part == "draft"]
    assert all(
        (work.attentions, work.mlps, work.heads)
        == tuple(getattr(work, f"int{bits}_{name}") for name in ("attentions", "mlps", "heads"))
        for work in drafts
    )
    verified = [work for step in generation.steps for work in step.work if work.part == "verify"]
    assert not any(getattr(work, name) for work in verified for name in ROUNDED)


def test_presets_read_full_weights() -> None:
    assert not any([*instantiate(config(preset)).bits] for preset in windowed())


# ---- the router


@pytest.mark.parametrize("bits", BITS)
def test_the_router_uses_rounded_weights_where_they_pay(bits: int, quantised: Load) -> None:
    """The profile gives them a fifth of the cost, and other drafts hardly less than AR's."""
    fast = tuple(replace(times, attn_intercept_ms=0.05, mlp_ms=0.05) for times in PROFILE.int8_passes)
    decoder = loaded(quantised, "qwen3", compiled=True)
    used = {}
    for rounds in (True, False):
        options = {"lookup_len": 0, "rows": 4, "interval": 2, "stake": 50, "exits": [0.9], "uniform": []}
        options[f"int{bits}"] = rounds
        engine = engine_for(decoder, 300, 200, frozenset())
        engine.probe.latency = replace(PROFILE, **{f"int{bits}_passes": fast})
        method, again = (instantiate(config("adaptive"), **options) for _ in range(2))
        for each in (method, again):
            each.check(DIMS)
            each.prepare(engine.probe, [])
        generation = engine.generate(method, [5, 6, 7, 8, 9])
        used[rounds] = {step.layer_set for step in generation.steps if step.layer_set}
        assert generation.output == decode(decoder, AR(), [5, 6, 7, 8, 9], 200).output
        again.restore(method.state())
        assert again.state() == method.state()
    assert any(layer_set.sublayers_in(bits) for layer_set in used[True])
    assert not any(layer_set.rounded for layer_set in used[False])


# ---- records


@pytest.fixture(scope="module")
def short_runs(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    """A run of the preset for each number of bits."""
    options = [*local_model(small_checkpoint), "task=gsm8k", "limit=1", "decode.max_new_tokens=12"]
    return {bits: executed(tmp_path_factory.mktemp("runs"), *options, f"method=int{bits}_draft") for bits in BITS}


def test_a_record_has_the_weights_of_its_drafts(
    small_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its profile has their times: new ones, of few repeats."""
    monkeypatch.setattr(loading, "cache_dir", lambda: tmp_path)
    for name, value in {"ROUNDS": profiling.LEAST, "NODE_REPEATS": 2, "ATTEMPTS": 1}.items():
        monkeypatch.setattr(profiling, name, value)
    short = [*local_model(small_checkpoint), "task=gsm8k", "limit=2", "decode.max_new_tokens=12"]
    short += ["hardware.latency=null", "method=fixed_layers"]
    plain = executed(tmp_path, *short, "method.ratio=0.25")
    assert plain.header.latency and not LatencyTimes(plain.header.latency).bits and not plain.layer_set(0).rounded
    for bits, other in (BITS, BITS[::-1]):
        name = f"int{bits}"
        run = executed(tmp_path, *short, "method.ratio=0.25", f"method.draft_weights={name}")
        layer_set = run.layer_set(0)
        assert layer_set == layer_set.in_bits(bits) and set(run.prompts["lossless"].dropna()) == {"identical"}
        latency = run.header.latency
        assert latency is not None and LatencyTimes(latency).bits == [bits]
        assert [times.nodes for times in latency.passes_in(bits)] == [times.nodes for times in latency.passes]
        assert getattr(run.header.model, f"{name}_bytes") and getattr(run.header.model, f"int{other}_bytes") is None
        drafts = run.work[run.work["part"] == "draft"]
        assert (drafts[f"{name}_mlps"] == drafts["mlps"]).all() and (drafts[f"{name}_heads"] == 1).all()
        summary = summarise(run)
        assert summary.tpt_predicted and summary.number("speedup_modelled").value
        assert trace(plain) != trace(run)
    again = executed(tmp_path, *short, *export.set_with_origin(run, 0)["overrides"][1:], "method.stop_below=0.7")
    assert again.layer_set(0) == layer_set


def test_an_edited_record_is_refused(short_runs: dict[int, Run], tmp_path: Path) -> None:
    cases: list[tuple[str, str, object, str]] = [
        ("layer_sets", "int8", [99], "layer set 0 reads 8-bit weights"),
        ("layer_sets", "int8", [1], "its draft reads other attentions in 8 bits than its set"),
        ("work", "int8_mlps", 99, "more is rounded than is read"),
        ("work", "int8_heads", 0.0, "its draft reads other heads in 8 bits than its set"),
        ("layer_sets", "int4", [2], "layer set 0 reads 4-bit weights"),
        ("work", "int4_mlps", 1, "more is rounded than is read"),
    ]
    for i, (table, column, value, text) in enumerate(cases):
        folder = Path(shutil.copytree(short_runs[8].path, tmp_path / str(i)))
        stored = pq.read_table(folder / f"{table}.parquet")
        rows = stored.to_pylist()
        changed = next(row for row in rows if table == "layer_sets" or row["part"] == "draft")
        changed[column] = value
        pq.write_table(type(stored).from_pylist(rows, schema=stored.schema), folder / f"{table}.parquet")
        with pytest.raises(ConfigError, match=text):
            load_run(folder)


# ---- costs


def test_a_profile_without_them_is_refused_for_such_drafts() -> None:
    for bits in BITS:
        with pytest.raises(ConfigError, match=f"{bits}-bit weights"):
            Latency(1.0, 0.1, 1.0).draft_ms(LayerSet.full(4).in_bits(bits), 100)
    older = Latency.read({"t_mlp_ms": 1.0, "t_attn_slope_ms": 0.1, "t_attn_intercept_ms": 1.0})
    assert older.int8_passes == older.int4_passes == ()


def test_a_drafted_token_costs_what_its_sublayers_read() -> None:
    passes = {"int8_passes": (NodeTimes(1, 0.01, 0.5, 0.75, 0.0),), "int4_passes": (NodeTimes(1, 0.01, 0.4, 0.5, 0.0),)}
    profile = replace(Latency(2.0, 0.01, 1.0), **passes)
    full = LayerSet(10, frozenset([0, 3]))
    mixed = full.in_bits(8, [1, 2, 4, 20]).in_bits(4, [5])
    for window, read in ((None, 100), (Window(4, 16), 20)):
        attn, int8_attn = 1.0 + 0.01 * read, 0.5 + 0.01 * read
        assert profile.draft_ms(replace(full, window=window), 100) == pytest.approx(9 * attn + 9 * 2.0)
        assert profile.draft_ms(replace(mixed, window=window), 100) == pytest.approx(
            7 * attn + 2 * int8_attn + 7 * 2.0 + 0.75 + 0.5
        )
    measured = replace(profile, passes=(NodeTimes(1, 0.01, 1.0, 2.0, 3.0),), draft_rest_ms=1.0, int8_draft_rest_ms=0.25)
    costs = Costs(measured, 10, 100, 4, False)
    assert costs.draft_ms(mixed) == pytest.approx(profile.draft_ms(mixed, 100) + 0.25)
    assert costs.draft_ms(full) == pytest.approx(profile.draft_ms(full, 100) + 1.0)


@pytest.mark.parametrize("name", reference_names())
def test_reference_machines_read_rounded_weights_faster(name: str) -> None:
    machine = reference_machine(name)
    steps, small = Steps(machine, machine.n_layers), machine.of_blocks(machine.n_layers // 2)
    sources = read_yaml(COSTS / f"{name}.yaml")["sources"]
    assert [*machine.bits] == [*BITS]
    for bits, least in zip(BITS, (0.45, 0.25)):
        assert sources[f"int{bits}_passes"].startswith("fitted"), "no rounded product was measured on a GPU"
        assert least < steps.draft_ms(0.0, bits=bits) / steps.draft_ms(0.0) < 0.95
        scaled = Steps(small, machine.n_layers // 2).draft_ms(0.0, bits=bits)
        assert scaled == pytest.approx(steps.draft_ms(0.0, bits=bits))
    assert steps.draft_ms(0.0, bits=4) < steps.draft_ms(0.0, bits=8)


@pytest.mark.parametrize("bits", BITS)
def test_machines_charge_recorded_work_for_its_weights(bits: int, short_runs: dict[int, Run]) -> None:
    work, blocks = short_runs[bits].work, short_runs[bits].header.model.n_layers
    full = work.assign(**dict.fromkeys(ROUNDED, 0))
    machines = [
        reference_machine("h200/llama3_1_8b").of_blocks(blocks),
        simulated_machine("sim_h100", BIG).of_blocks(blocks),
        Profile(replace(PROFILE, passes=(NodeTimes(1, 1e-3, 0.5, 0.5, 0.0),))),
    ]
    drafts = (work["part"] == "draft").to_numpy()
    for machine in machines:
        cheaper, dearer = work_ms(work, machine), work_ms(full, machine)
        assert (cheaper[drafts] < dearer[drafts]).all() and (cheaper[~drafts] == dearer[~drafts]).all()


def test_advice_names_rounded_weights() -> None:
    drafts = kinds_of_drafts(Steps(reference_machine("h200/llama3_1_8b"), 32))
    four, eight, skipping = (drafts[name] for name in ("4-bit weights", "8-bit weights", "30% skipped"))
    assert four.token < eight.token < skipping.token < skipping.steps.plain_ms


@pytest.mark.parametrize("bits", BITS)
def test_fixed_layers_with_nothing_skipped_is_a_rounded_draft(bits: int, quantised: Load) -> None:
    methods = DRAFTS[bits](draft_len=3), FixedLayers(ratio=0.0, draft_len=3, draft_weights=f"int{bits}")
    results = [decode(quantised("llama"), method, [5, 6, 7], 30) for method in methods]
    steps = [[(s.layer_set, s.draft_len, s.accepted_len) for s in result.steps] for result in results]
    assert steps[0] == steps[1]


# ---- mixed sets


def similarities(probe: Probe, states: Tensor, prefix_len: int, layer_set: LayerSet) -> Tensor:
    """Mean cosine of a set's stream with the full model's, after the last sublayer."""
    hidden = states[0][None]
    for i in layer_set.kept:
        hidden = probe.apply_sublayer(i, hidden, prefix_len, layer_set.bits.get(i, 0))
    return torch.cosine_similarity(hidden[0], states[-1], dim=-1).mean()


def test_a_mixed_knapsack_finds_no_better_set_than_brute_force(tmp_path: Path) -> None:
    """Every branch's cosine is its set's, and at most the best of all sets of its weight.

    Two blocks have 256 sets, three have 4,096.
    """
    blocks = 2
    save_model(LlamaConfig(**SIZES | {"num_hidden_layers": blocks}, rope_parameters=rope(5e4)), tmp_path)
    decoder = load(tmp_path, "torch", torch.float64)
    for bits in BITS:
        decoder.quantise(bits)
    states, probe = history(decoder)
    weights, rounded_weights = (3, 6), {8: (1, 2), 4: (2, 3)}
    knapsack = Knapsack(
        states.float(), LENGTH - states.shape[1], weights, 1.0, -1.0, True, False, states.dtype, rounded_weights
    )
    prefix_len, n_sub = LENGTH - states.shape[1], 2 * blocks
    best: dict[int, float] = {}
    for choices in product((EXECUTE, *CHOICE_BITS, SKIP), repeat=n_sub):
        skipped = frozenset(i for i, choice in enumerate(choices) if choice == SKIP)
        rounded = frozenset((i, CHOICE_BITS[choice]) for i, choice in enumerate(choices) if choice in CHOICE_BITS)
        saved = sum(weights[i % 2] for i in skipped) + sum(rounded_weights[bits][i % 2] for i, bits in rounded)
        cosine = float(similarities(probe, states, prefix_len, LayerSet(blocks, skipped, rounded)))
        best[saved] = max(best.get(saved, -1.0), cosine)
    branches = knapsack.run(probe)
    assert len(branches) == len(best)
    kinds = set()
    for branch in branches:
        cosine = float(similarities(probe, states, prefix_len, branch.layer_set))
        assert branch.similarity == pytest.approx(cosine, abs=1e-5) and cosine <= best[branch.weight] + 1e-6
        kinds |= {*branch.layer_set.n_rounded} | ({SKIP} if branch.layer_set.skipped else set())
        assert branch.layer_set.head_bits == 4
    assert kinds >= {8, SKIP}


def test_weights_of_a_mixed_knapsack() -> None:
    profile = replace(Latency(3.0, 0.0, 1.0), int8_passes=(NodeTimes(1, 0.0, 0.5, 1.0, 0.0),))
    assert mixed_weights(profile, 100, None, [8]) == ((2, 6), {8: (1, 4)})
    slower = replace(profile, int8_passes=(NodeTimes(1, 0.0, 2.0, 0.001, 0.0),))
    assert mixed_weights(slower, 100, None, [8]) == ((2, 6), {8: (1, 5)})
    both = replace(profile, int4_passes=(NodeTimes(1, 0.0, 0.3, 0.6, 0.0),))
    assert mixed_weights(both, 100, None, BITS) == ((3, 9), {8: (2, 6), 4: (2, 7)})


def test_mixed_sets_are_lossless_and_are_exported(quantised: Load) -> None:
    def make(_: random.Random | None = None) -> Method:
        settings = {"interval": 2, "capture_steps": 1, "min_similarity": -1}
        return method_of("knapspec", draft_weights="mixed", **settings)

    assert check_greedy(make, quantised, 60) > 0
    generation = decode(quantised("llama"), make(), [5, 6, 7, 8, 9], 40)
    mixed = [step.layer_set for step in generation.steps if step.layer_set and step.layer_set.n_rounded]
    assert mixed
    options = dict(option.removeprefix("method.").split("=") for option in export.overrides(mixed[-1])[1:])
    lists = {name: None if value == "null" else json.loads(value) for name, value in options.items()}
    repeated = FixedLayers(**lists, draft_len=3)
    repeated.check(DIMS)
    assert repeated.bits and repeated._layer_set == mixed[-1]


def test_a_knapsack_without_rounded_weights_has_none(quantised: Load) -> None:
    states, probe = history(quantised("llama"))
    probe.latency = PROFILE
    for weights in ("full", "int8", "int4"):
        method = method_of("knapspec", draft_weights=weights, min_similarity=-1.0)
        method.check(DIMS)
        assert not method.search(states, LENGTH, probe)[0].rounded
