"""Drafts with 8-bit weights: products, lossless decoding, records, costs; every backend against PyTorch's operators."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from hydra.utils import get_class, instantiate
from torch import Tensor
from transformers import LlamaConfig

from methods import knn_ssd
from methods.arms import Costs
from methods.draft_stop import ModelDraft
from methods.fixed_layers import FixedLayers
from methods.int8_draft import Int8Draft
from methods.knapsack import EXECUTE, INT8, SKIP, Knapsack, mixed_weights
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Method, Probe
from ssd_bench.contract.optional import Quantised
from ssd_bench.contract.window import Window
from ssd_bench.cost import profiling
from ssd_bench.cost.latency import Latency, NodeTimes
from ssd_bench.cost.machine import Profile
from ssd_bench.cost.reference import reference_machine, reference_names
from ssd_bench.cost.roofline import simulated_machine
from ssd_bench.cost.work import work_ms
from ssd_bench.errors import ConfigError
from ssd_bench.exchange import layers
from ssd_bench.model.arithmetic import available_levels
from ssd_bench.model.backend import select
from ssd_bench.model.backends.cpu import native_problem
from ssd_bench.model.checkpoint import Checkpoint
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.operators import Int8Matrix
from ssd_bench.model.weights import MATRICES
from ssd_bench.predict.acceptance import Steps
from ssd_bench.predict.break_even import kinds_of_drafts
from ssd_bench.records.reader import load_run
from ssd_bench.results.digest import summarise
from ssd_bench.results.evidence import trace
from tests.conftest import LAYERS, SIZES, VOCAB, rope, save_model
from tests.interpreted import NARROW_LANES, TOLERANCE, load
from tests.lossless import DIMS, PROFILE, Load, check_greedy, check_sampled, decode, engine_for, loaded, method_of
from tests.runs import config, executed, local_model
from tests.test_draft_windows import SMALL, maker, windowed
from tests.test_knapspec import LENGTH, history
from tests.test_replay import BIG

CPU = torch.device("cpu")
NATIVE_LEVELS = [level.name for level in available_levels()]


def tokens(n: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (n,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="session")
def quantised(decoders: Load) -> Load:
    """Loads a family's tiny decoder with an 8-bit copy of its weights, not the one that other tests use."""
    loaded: dict[tuple[Any, ...], Decoder] = {}

    def load(*key: Any) -> Decoder:
        if key not in loaded:
            original = decoders(*key)
            loaded[key] = type(original)(original.arithmetic, original.weights)
            loaded[key].quantise()
        return loaded[key]

    return load


def dequantised(decoder: Decoder) -> Decoder:
    """The decoder whose loaded weights are the numbers that the 8-bit copy stands for."""
    assert isinstance(decoder.int8.head, Int8Matrix)

    def wide(matrix: Int8Matrix) -> Tensor:
        return matrix.values.double() * matrix.scale.double().unsqueeze(1)

    blocks = [
        replace(block, **{name: wide(getattr(block, name)) for name in MATRICES}) for block in decoder.int8.blocks
    ]
    weights = replace(decoder.weights, blocks=blocks, head=wide(decoder.int8.head))
    return type(decoder)(decoder.arithmetic, weights)


# ---- rounding and products


def test_rounding_is_to_the_nearest_of_255_values_of_a_row() -> None:
    weights = torch.randn(70, 33, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights[3] = 0.0
    weights[5, 7] = 40.0
    matrix = Int8Matrix.of(weights.split(32))
    error = (weights - matrix.values.double() * matrix.scale.double().unsqueeze(1)).abs()
    assert (error <= matrix.scale.double().unsqueeze(1) * 0.5001).all()
    assert matrix.values.abs().max() == 127 and not matrix.values[3].any() and matrix.scale[3] == 0
    negative = Int8Matrix.of([-weights])
    assert torch.equal(negative.values, -matrix.values) and torch.equal(negative.scale, matrix.scale)


@pytest.mark.parametrize("family", ["llama_bias", "qwen2", "qwen3"])
def test_an_8_bit_pass_is_a_pass_of_the_rounded_weights(family: str, quantised: Load) -> None:
    """Of all sublayers, of some of them, with a window, with the head in either precision; float64."""
    decoder = quantised(family)
    every, rounded = decoder.all_sublayers, dequantised(decoder)
    mixed = replace(rounded.weights, blocks=[*rounded.weights.blocks[:1], *decoder.weights.blocks[1:]])
    some = type(decoder)(decoder.arithmetic, mixed)
    for int8, expected in ((every, rounded), (every[:2], some)):
        results = []
        for model, chosen in ((decoder, int8), (expected, ())):
            cache = model.new_cache(40)
            cache.reserve(20)
            # both read the same prefix: that of the full model
            decoder.prefill(tokens(9), cache)
            hidden, _ = model.run(Pass(every, tokens(5, 1), 9, int8=chosen), cache)
            results.append(hidden.clone())
        torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-6)
        logits = decoder.logits(results[0], int8=True), rounded.logits(results[0])
        torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
        assert not torch.equal(logits[0], decoder.logits(results[0]))


def passes(decoder: Decoder, counts: Sequence[Sequence[int]] = ((1, 5, 17, 70),) * 3) -> Iterator[Tensor]:
    """Logits of 8-bit passes over one node and over several, with some or all sublayers in 8 bits.

    Args:
        counts: numbers of nodes with all sublayers in 8 bits, with every second, and with the first three.
    """
    cache, every = decoder.new_cache(8 + max(map(max, filter(None, counts)))), decoder.all_sublayers
    decoder.prefill(tokens(6), cache)
    for int8, sizes in zip((every, every[1::2], every[:3]), counts, strict=True):
        for n in sizes:
            hidden, _ = decoder.run(Pass(every, tokens(n, n), cache.length, int8=int8), cache)
            yield decoder.logits(hidden.clone(), int8=True)
    kept = (0, 2, 3)
    yield decoder.logits(decoder.run(Pass(kept, tokens(3), cache.length, int8=(3,), taps=(2,)), cache)[0].clone())


@pytest.mark.parametrize("isa", NATIVE_LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_compiled_products_are_pytorchs(isa: str, dtype: torch.dtype, quantised: Load) -> None:
    if problem := native_problem(isa):
        pytest.skip(f"level {isa} is not tested: {problem}")
    pairs = zip(passes(quantised("qwen2", dtype, "torch", isa)), passes(quantised("qwen2", dtype, "native", isa)))
    for expected, computed in pairs:
        assert (expected - computed).abs().max() <= (TOLERANCE if dtype == torch.float32 else 0.03)


@pytest.mark.parametrize("isa", NATIVE_LEVELS)
def test_a_node_has_the_same_bits_in_every_pass(isa: str, quantised: Load) -> None:
    if problem := native_problem(isa):
        pytest.skip(f"level {isa} is not tested: {problem}")
    decoder = quantised("qwen3", torch.bfloat16, "native", isa)
    cache, every, ids = decoder.new_cache(320), decoder.all_sublayers, tokens(140)
    decoder.prefill(tokens(9), cache)
    for int8 in (every, every[::2]):
        alone = []
        for i in range(len(ids)):
            hidden, _ = decoder.run(Pass(every, ids[i : i + 1], 9 + i, int8=int8), cache)
            alone.append(decoder.logits(hidden.clone(), int8=True))
        for n in (2, 11, 12, 13, 24, 25, 100, len(ids)):
            hidden, _ = decoder.run(Pass(every, ids[:n], 9, int8=int8), cache)
            assert torch.equal(decoder.logits(hidden.clone(), int8=True), torch.cat(alone[:n])), n


def test_captured_passes_are_pytorchs(short_checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from ssd_bench.model.backends import graphs

    folder = short_checkpoints["qwen2"]
    expected_of = load(folder, "torch", torch.float32)
    expected_of.quantise()
    monkeypatch.setattr(graphs, "LANES", NARROW_LANES)
    # graphs of the first lane, of the second, and larger passes, each once: the interpreter takes seconds for a pass.
    # The streams, too, have the dtype of the weights, thus 11 bits in float16
    for dtype, tolerance, counts in (
        (torch.float32, TOLERANCE, ((1,), (17,), (20,))),
        (torch.float16, 0.15, ((5,), (), (17,))),
    ):
        decoder = load(folder, "graphs", dtype)
        decoder.quantise()
        for expected, computed in zip(passes(expected_of, counts), passes(decoder, counts), strict=True):
            assert (expected - computed).abs().max() <= tolerance


def test_rounding_twice_is_rounding_once(quantised: Load) -> None:
    decoder = quantised("llama")
    copy = decoder.int8
    decoder.quantise()
    assert decoder.int8 is copy and copy.nbytes < decoder.weights.nbytes / 4


# ---- decoding


@pytest.mark.parametrize("preset", windowed())
def test_every_method_is_lossless_with_8_bit_weights(
    preset: str, quantised: Load, rests: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knn_ssd, "KMEANS_RUNS", 1)  # of two prompts each domain

    def drawn(rng: random.Random) -> dict[str, Any]:
        return {"draft_weights": "int8"} | ({"draft_window": [1, 2]} if rng.random() < 0.3 else {})

    assert check_greedy(maker(preset, drawn), quantised, 40) > 0
    assert not rests, "states of a draft with 8-bit weights are not the full model's"


def test_int8_draft_is_lossless(quantised: Load) -> None:
    def make(rng: random.Random) -> Int8Draft:
        return Int8Draft(draft_len=rng.choice([1, 3, 8]), stop_below=rng.choice([0.0, 0.3]))

    assert check_greedy(make, quantised, cases=200) > 0


def test_8_bit_weights_keep_the_sampled_distribution(quantised: Load) -> None:
    check_sampled(lambda: Int8Draft(draft_len=3), quantised)


class Mixed(Method):
    """Drafts with full weights in the first sublayers and 8-bit weights in others, verified from the first of these."""

    name, reuse_prefix, int8 = "mixed", True, True

    def __init__(self, layer_set: LayerSet):
        self.layer_set = layer_set

    def propose(self, context: Context) -> LayerDraft:
        return LayerDraft(self.layer_set, 3)


def test_mixed_sets_reuse_the_states_before_the_first_8_bit_sublayer(quantised: Load, rests: list[int]) -> None:
    def make(rng: random.Random) -> Mixed:
        first = rng.choice([2, 3])
        int8 = frozenset(range(first, 2 * LAYERS + 1)) - {4}
        return Mixed(LayerSet(LAYERS, frozenset([4]) if rng.random() < 0.5 else frozenset(), int8))

    assert check_greedy(make, quantised, 60) > 0
    assert {2, 3} <= set(rests)


def test_a_draft_in_8_bits_without_a_copy_is_refused(decoders: Load) -> None:
    original = decoders("llama")
    plain = type(original)(original.arithmetic, original.weights)
    with pytest.raises(ConfigError, match="int8"):
        decode(plain, Mixed(LayerSet.full(LAYERS).in_8_bits), [4, 5], 9)


def test_sets_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="not skipped"):
        LayerSet(4, frozenset([3]), frozenset([3]))
    with pytest.raises(ConfigError, match=r"\[0, 8\]"):
        LayerSet(4, int8=frozenset([9]))


def test_sizes_of_a_set_in_8_bits() -> None:
    layer_set = LayerSet(4, frozenset([2, 5]))
    rounded = layer_set.in_8_bits
    assert rounded.kept_in_8_bits == rounded.kept == layer_set.kept and rounded.head_in_8_bits
    assert (rounded.n_attn_int8, rounded.n_mlp_int8) == (rounded.n_attn, rounded.n_mlp) == (3, 3)
    assert (rounded.first_changed, layer_set.first_changed, LayerSet.full(4).first_changed) == (0, 2, 8)
    assert LayerSet(4, frozenset([5]), frozenset([3, 8])).first_changed == 3
    assert rounded != layer_set and rounded.skip_ratio == layer_set.skip_ratio


@pytest.mark.parametrize("preset", [*windowed(), "int8_draft"])
def test_every_draft_of_a_method_reads_8_bit_weights(preset: str, quantised: Load) -> None:
    method = instantiate(config(preset), draft_weights="int8", **SMALL.get(preset, {}))
    assert isinstance(method, Quantised) and method.int8
    generation = decode(quantised("llama"), method, [5, 6, 7, 8, 9], 40)
    sets = {step.layer_set for step in generation.steps if step.layer_set}
    assert sets and all(layer_set == layer_set.in_8_bits for layer_set in sets)
    drafts = [work for step in generation.steps for work in step.work if work.part == "draft"]
    assert all(
        (work.attentions, work.mlps, work.heads) == (work.int8_attentions, work.int8_mlps, work.int8_heads)
        for work in drafts
    )
    verified = [work for step in generation.steps for work in step.work if work.part == "verify"]
    assert not any(work.int8_attentions or work.int8_mlps or work.int8_heads for work in verified)


@pytest.mark.parametrize("preset", windowed())
def test_presets_read_full_weights(preset: str) -> None:
    settings = config(preset)
    assert settings["draft_weights"] == "full" and not get_class(settings["_target_"]).int8.fget(instantiate(settings))


# ---- the router


def test_the_router_uses_8_bit_weights_where_they_pay(quantised: Load) -> None:
    """With a profile in which 8 bits cost a fifth, and other drafts hardly less than AR."""
    fast = tuple(replace(times, attn_intercept_ms=0.05, mlp_ms=0.05) for times in PROFILE.int8_passes)
    decoder = loaded(quantised, "qwen3", compiled=True)
    used = {}
    for int8 in (True, False):
        options = {"lookup_len": 0, "rows": 4, "interval": 2, "stake": 50, "exits": [0.9], "uniform": [], "int8": int8}
        method = instantiate(config("adaptive"), **options)
        engine = engine_for(decoder, 300, 200, frozenset())
        engine.probe.latency = replace(PROFILE, int8_passes=fast)
        method.check(DIMS)
        method.prepare(engine.probe, [])
        generation = engine.generate(method, [5, 6, 7, 8, 9])
        used[int8] = {step.layer_set for step in generation.steps if step.layer_set}
        assert generation.output == decode(decoder, instantiate(config("ar")), [5, 6, 7, 8, 9], 200).output
        again = instantiate(config("adaptive"), **options)
        again.check(DIMS)
        again.prepare(engine.probe, [])
        again.restore(method.state())
        assert again.state() == method.state()
    assert any(layer_set.int8 for layer_set in used[True]) and not any(layer_set.int8 for layer_set in used[False])


# ---- records


@pytest.fixture
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles of few repeats, made once: which times there are is tested, not how exact they are."""
    for name, value in {"ROUNDS": profiling.LEAST, "NODE_REPEATS": 2, "ATTEMPTS": 1}.items():
        monkeypatch.setattr(profiling, name, value)


@pytest.mark.usefixtures("few_rounds")
def test_a_record_has_the_weights_of_its_drafts(small_checkpoint: Path, tmp_path: Path) -> None:
    short = [*local_model(small_checkpoint), "task=gsm8k", "limit=2", "decode.max_new_tokens=12"]
    short += ["hardware.latency=null"]  # a given profile has no times of 8-bit weights
    line = [*short, "method=fixed_layers", "method.ratio=0.25", "method.draft_weights=int8"]
    run = executed(tmp_path / "a", *line)
    layer_set = run.layer_set(0)
    assert layer_set == layer_set.in_8_bits and set(run.prompts["lossless"].dropna()) == {"identical"}
    assert run.header.model.int8_bytes and run.header.latency and run.header.latency.int8_passes
    assert run.header.latency.int8_draft_rest_ms > 0
    drafts = run.work[run.work["part"] == "draft"]
    assert (drafts["int8_mlps"] == drafts["mlps"]).all() and (drafts["int8_heads"] == 1).all()
    summary = summarise(run)
    assert summary.tpt_predicted and summary.number("speedup_modelled").value
    entry = layers.set_with_origin(run, 0)
    options = [option for option in entry["overrides"] if option != "method=fixed_layers"]
    again = executed(tmp_path / "b", *short, "method=fixed_layers", *options, "method.stop_below=0.7")
    assert again.layer_set(0) == layer_set
    with pytest.raises(ConfigError, match="full weights"):
        layers.released_entry(run, 0)
    plain = executed(tmp_path / "c", *short, "method=fixed_layers", "method.ratio=0.25")
    assert plain.header.model.int8_bytes is None and plain.header.latency and not plain.header.latency.int8_passes
    assert plain.layer_set(0).int8 == frozenset() and trace(plain) != trace(run)


@pytest.mark.parametrize(
    ("table", "column", "value", "text"),
    [
        ("layer_sets", "int8", [99], "layer set 0 reads 8-bit weights"),
        ("layer_sets", "int8", [1], "its draft reads other attentions in 8 bits than its set"),
        ("work", "int8_mlps", 99, "more is in 8 bits than is read"),
        ("work", "int8_heads", 0.0, "its draft reads other heads in 8 bits than its set"),
    ],
)
def test_an_edited_record_is_refused(
    table: str, column: str, value: object, text: str, small_checkpoint: Path, tmp_path: Path
) -> None:
    options = [*local_model(small_checkpoint), "task=gsm8k", "limit=1", "decode.max_new_tokens=12"]
    run = executed(tmp_path / "a", *options, "method=int8_draft")
    file = run.path / f"{table}.parquet"
    stored = pq.read_table(file)
    rows = stored.to_pylist()
    changed = next(i for i, row in enumerate(rows) if table == "layer_sets" or row["part"] == "draft")
    rows[changed][column] = value
    pq.write_table(type(stored).from_pylist(rows, schema=stored.schema), file)
    with pytest.raises(ConfigError, match=text):
        load_run(run.path)


# ---- costs


@pytest.mark.usefixtures("few_rounds")
def test_a_profile_has_times_of_8_bit_weights(quantised: Load) -> None:
    decoder = quantised("llama", torch.float32)
    latency = profiling.measure(decoder, decoder.new_cache(300))
    assert [times.nodes for times in latency.int8_passes] == [times.nodes for times in latency.passes]
    assert latency.int8_draft_rest_ms > 0 and min(latency.int8_pass_ms(1, 100)) > 0
    assert Latency.read({"t_mlp_ms": 1.0, "t_attn_slope_ms": 0.1, "t_attn_intercept_ms": 1.0}).int8_passes == ()


def test_a_profile_without_them_is_refused_for_such_drafts() -> None:
    rounded = LayerSet.full(4).in_8_bits
    with pytest.raises(ConfigError, match="8-bit weights"):
        Latency(1.0, 0.1, 1.0).draft_ms(rounded, 100)


def test_a_drafted_token_costs_what_its_sublayers_read() -> None:
    profile = replace(Latency(2.0, 0.01, 1.0), int8_passes=(NodeTimes(1, 0.01, 0.5, 0.75, 0.0),))
    full = LayerSet(10, frozenset([0, 3]))
    mixed = replace(full, int8=frozenset([1, 2, 4, 20]))
    for window, read in ((None, 100), (Window(4, 16), 20)):
        attn, int8_attn = 1.0 + 0.01 * read, 0.5 + 0.01 * read
        assert profile.draft_ms(replace(full, window=window), 100) == pytest.approx(9 * attn + 9 * 2.0)
        assert profile.draft_ms(replace(mixed, window=window), 100) == pytest.approx(
            7 * attn + 2 * int8_attn + 8 * 2.0 + 0.75
        )
    measured = replace(profile, passes=(NodeTimes(1, 0.01, 1.0, 2.0, 3.0),), draft_rest_ms=1.0, int8_draft_rest_ms=0.25)
    costs = Costs(measured, 10, 100, 4, False)
    assert costs.draft_ms(mixed) == pytest.approx(profile.draft_ms(mixed, 100) + 0.25)
    assert costs.draft_ms(full) == pytest.approx(profile.draft_ms(full, 100) + 1.0)


@pytest.mark.parametrize("name", reference_names())
def test_reference_machines_read_8_bit_weights_faster(name: str) -> None:
    machine = reference_machine(name)
    assert any(key.startswith("int8_passes") for key in machine.fitted), "no 8-bit product was measured on a GPU"
    steps = Steps(machine, machine.n_layers)
    ratio = steps.draft_ms(0.0, int8=True) / steps.draft_ms(0.0)
    assert 0.45 < ratio < 0.95
    small = machine.of_blocks(machine.n_layers // 2)
    assert Steps(small, machine.n_layers // 2).draft_ms(0.0, int8=True) == pytest.approx(steps.draft_ms(0.0, int8=True))


def test_machines_charge_recorded_work_for_its_weights(small_checkpoint: Path, tmp_path: Path) -> None:
    options = [*local_model(small_checkpoint), "task=gsm8k", "limit=1", "decode.max_new_tokens=12"]
    run = executed(tmp_path / "a", *options, "method=int8_draft")
    work = run.work
    full = work.assign(int8_attentions=0, int8_mlps=0, int8_heads=0.0)
    blocks = run.header.model.n_layers
    assert run.header.latency is not None
    machines = [
        reference_machine("h200/llama3_1_8b").of_blocks(blocks),
        simulated_machine("sim_h100", BIG).of_blocks(blocks),
        Profile(replace(PROFILE, passes=(NodeTimes(1, 1e-3, 0.5, 0.5, 0.0),))),
    ]
    drafts = (work["part"] == "draft").to_numpy()
    for machine in machines:
        cheaper, dearer = work_ms(work, machine), work_ms(full, machine)
        assert (cheaper[drafts] < dearer[drafts]).all() and (cheaper[~drafts] == dearer[~drafts]).all()


def test_advice_names_8_bit_weights() -> None:
    drafts = kinds_of_drafts(Steps(reference_machine("h200/llama3_1_8b"), 32))
    assert drafts["8-bit weights"].cost < drafts["30% skipped"].cost < 1


def test_fixed_layers_with_nothing_skipped_is_int8_draft(quantised: Load) -> None:
    results = [
        decode(quantised("llama"), method, [5, 6, 7], 30)
        for method in (Int8Draft(draft_len=3), FixedLayers(ratio=0.0, draft_len=3, draft_weights="int8"))
    ]
    steps = [[(s.layer_set, s.draft_len, s.accepted_len) for s in result.steps] for result in results]
    assert steps[0] == steps[1]


# ---- mixed sets


def similarities(probe: Probe, states: Tensor, prefix_len: int, layer_set: LayerSet) -> Tensor:
    """Mean cosine of a set's stream with the full model's, after the last sublayer."""
    hidden = states[0][None]
    for i in layer_set.kept:
        hidden = probe.apply_sublayer(i, hidden, prefix_len, i in layer_set.int8)
    return torch.cosine_similarity(hidden[0], states[-1], dim=-1).mean()


def test_a_mixed_knapsack_finds_no_better_set_than_brute_force(tmp_path: Path) -> None:
    """For every weight, the branch's cosine is that of its set, and at most the best of all sets of this weight.

    Three blocks have 729 sets, four have 6,561.
    """
    blocks = 3
    save_model(LlamaConfig(**SIZES | {"num_hidden_layers": blocks}, rope_parameters=rope(5e4)), tmp_path)
    decoder = select("cpu", torch.float64, "torch", "auto").load(Checkpoint(tmp_path), torch.float64, [CPU])
    decoder.quantise()
    states, probe = history(decoder)
    weights, int8_weights = (2, 4), (1, 2)
    knapsack = Knapsack(
        states.float(), LENGTH - states.shape[1], weights, 1.0, -1.0, True, False, states.dtype, int8_weights
    )
    prefix_len, n_sub, head = LENGTH - states.shape[1], 2 * blocks, frozenset([2 * blocks])
    best: dict[int, float] = {}
    for choices in product((EXECUTE, INT8, SKIP), repeat=n_sub):
        skipped = frozenset(i for i, choice in enumerate(choices) if choice == SKIP)
        int8 = frozenset(i for i, choice in enumerate(choices) if choice == INT8)
        saved = sum(weights[i % 2] for i in skipped) + sum(int8_weights[i % 2] for i in int8)
        cosine = float(similarities(probe, states, prefix_len, LayerSet(blocks, skipped, int8 | head)))
        best[saved] = max(best.get(saved, -1.0), cosine)
    branches = knapsack.run(probe)
    assert len(branches) == len(best)
    kinds = set()
    for branch in branches:
        cosine = float(similarities(probe, states, prefix_len, branch.layer_set))
        assert branch.similarity == pytest.approx(cosine, abs=1e-5) and cosine <= best[branch.weight] + 1e-6
        kinds |= {"int8"} if branch.layer_set.kept_in_8_bits else set()
        kinds |= {"skip"} if branch.layer_set.skipped else set()
    assert kinds == {"int8", "skip"}


def test_weights_of_a_mixed_knapsack() -> None:
    profile = replace(Latency(3.0, 0.0, 1.0), int8_passes=(NodeTimes(1, 0.0, 0.5, 1.0, 0.0),))
    assert mixed_weights(profile, 100, None) == ((2, 6), (1, 4))
    slower = replace(profile, int8_passes=(NodeTimes(1, 0.0, 2.0, 0.001, 0.0),))
    assert mixed_weights(slower, 100, None) == ((2, 6), (1, 5))


def test_mixed_sets_are_lossless_and_are_exported(quantised: Load) -> None:
    def make(rng: random.Random) -> ModelDraft:
        method: ModelDraft = method_of(
            "knapspec", draft_weights="mixed", interval=2, capture_steps=1, min_similarity=-1
        )
        return method

    assert check_greedy(make, quantised, 60) > 0
    method = make(random.Random(0))
    generation = decode(quantised("llama"), method, [5, 6, 7, 8, 9], 40)
    mixed = [step.layer_set for step in generation.steps if step.layer_set and step.layer_set.kept_in_8_bits]
    assert mixed
    options = dict(option.removeprefix("method.").split("=") for option in layers.overrides(mixed[-1])[1:])
    lists = {name: None if value == "null" else json.loads(value) for name, value in options.items()}
    repeated = FixedLayers(**lists, draft_len=3)
    repeated.check(DIMS)
    assert repeated.int8 and repeated._layer_set == mixed[-1]


def test_a_knapsack_without_8_bit_weights_has_none(quantised: Load) -> None:
    states, probe = history(quantised("llama"))
    probe.latency = PROFILE
    for weights in ("full", "int8"):
        method = method_of("knapspec", draft_weights=weights, min_similarity=-1.0)
        method.check(DIMS)
        assert not method.search(states, LENGTH, probe).layer_set.int8
