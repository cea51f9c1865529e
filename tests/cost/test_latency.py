"""The latency profile: a fit that is never negative, given numbers, real steps, caching, outside load."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.cost import profiling
from ssd_bench.cost.latency import Latency, NodeTimes, fit_line
from ssd_bench.engine.engine import SCRATCH
from ssd_bench.engine.load import LoadWatch
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import Decoder

Load = Callable[..., Decoder]


def test_a_line_is_recovered() -> None:
    line = fit_line([(n, 0.002 * n + 0.3) for n in (64, 128, 1024, 8000)])
    assert line == pytest.approx((0.002, 0.3, 1))


def test_no_time_is_negative() -> None:
    """A free line would start below zero through the convex points, and fall through the falling ones."""
    convex, falling = [(64, 0.001), (1024, 0.5), (4096, 4.0), (8192, 16.0)], [(64, 1.0), (1024, 0.9), (8192, 0.5)]
    for points in (convex, falling):
        slope, intercept, _ = fit_line(points)
        assert slope >= 0 and intercept >= 0


def test_costs_of_a_set() -> None:
    profile = Latency(2.0, 0.01, 1.0)
    assert profile.target_ms(10, 100) == pytest.approx(10 * (2 + 2))
    assert profile.draft_ms(LayerSet.skipping(10, attn=[1, 2], mlp=[3]), 100) == pytest.approx(8 * 2 + 9 * 2)


def test_a_pass_grows_with_its_nodes() -> None:
    """Linear between and beyond the measured numbers of nodes; a given profile has the paper's passes."""
    passes = NodeTimes(1, 0.01, 1.0, 2.0, 3.0), NodeTimes(4, 0.04, 4.0, 2.6, 3.0), NodeTimes(8, 0.08, 8.0, 4.6, 7.0)
    profile = Latency(2.0, 0.01, 1.0, passes=passes)
    expected = {1: (2, 2, 3), 2: (4, 2.2, 3), 4: (8, 2.6, 3), 6: (12, 3.6, 5), 16: (32, 8.6, 15)}
    for nodes, times in expected.items():
        assert profile.pass_ms(nodes, 100) == pytest.approx(times)
    assert Latency(2.0, 0.01, 1.0).pass_ms(6, 100) == pytest.approx((2, 2, 0))


def test_corrected_passes_take_as_long_as_real_verifications() -> None:
    """Times match at the observed context; between node counts the smaller's growth holds."""
    passes = tuple(NodeTimes(n, 1e-3 * n, 0.1 * n, 0.3 + 0.1 * n, 0.5 + 0.01 * n) for n in (1, 2, 4, 8))
    believed = Latency(0.4, 1e-3, 0.1, passes=passes)
    verified = {1: (20.0, 9.0), 2: (25.0, 9.5), 8: (40.0, 31.0), 5: (30.0, 99.0)}
    corrected = replace(believed, passes=profiling._grown(believed, 6, 1.5, verified))
    for nodes in (1, 2, 8):
        context, real = verified[nodes]
        attn, mlp, rest = corrected.pass_ms(nodes, context)
        assert 6 * (attn + mlp) + rest == pytest.approx(real)
    one, two, four = ((n.mlp_ms, n.attn_intercept_ms) for n in corrected.passes[:3])
    assert one == pytest.approx((1.5 * 0.4, 1.5 * 0.1))
    assert [b - a for a, b in zip(one, four)] == pytest.approx([3 * (b - a) for a, b in zip(one, two)])


def test_steps_that_profile_have_room_for_a_whole_proposal(decoders: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "ROUNDS", 2)
    decoder = decoders()
    probe = ModelProbe(decoder, decoder.new_cache(60 + SCRATCH))
    proposals = profiling._proposals(decoder.arch.n_layers, [1, 4, 64])
    found = profiling._steps(probe, proposals, LoadWatch())
    sizes = {name: {(step.draft_len, step.tree_nodes) for step in steps} for name, steps in found.items()}
    length = profiling.DRAFT_LEN
    assert sizes["whole"] == {(length, length + 1)} and sizes["siblings"] == {(length, profiling.TREE_NODES)}
    assert sizes[1] == {(0, 1)} and sizes[4] == {(3, 4)} and 64 not in sizes


LEAST = {"ATTEMPTS": 1, "WARMUP": 1, "REPEATS": 1, "NODE_REPEATS": 1, "ROUNDS": 1, "STEPS": 2, "CALL_ROWS": (1, 16)}
"""Settings of a measurement whose precision does not matter."""
GIVEN = Latency(1.0, 0.0, 1.0, "measured", passes=(NodeTimes(1, 0.0, 1.0, 1.0, 1.0),))


@pytest.mark.parametrize("given", [(-1, 0, 1), (1, -0.1, 1), (1, 0, float("nan")), (0, 0, 1), (1, 0, 0)])
def test_impossible_numbers_are_refused(given: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match=r"hardware\.latency"):
        Latency(*given)


def test_measured_once_and_kept_unless_the_machine_was_busy(
    decoders: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, least in LEAST.items():
        monkeypatch.setattr(profiling, name, least)
    decoder = decoders()
    cache = decoder.new_cache(200 + SCRATCH)
    path = tmp_path / "profile.json"
    with monkeypatch.context() as patch:
        patch.setattr(LoadWatch, "other_share", lambda self: 0.5)
        assert profiling.load_or_measure(decoder, cache, path).loaded and not path.exists()
    monkeypatch.setattr(LoadWatch, "other_share", lambda self: 0.0)
    first = profiling.load_or_measure(decoder, cache, path)
    assert not first.loaded and first.source == "measured" and first.points[-1][0] == cache.capacity - 1
    assert [times.nodes for times in first.passes] == list(profiling.NODES)
    # a busy machine may make a difference of two times nothing, but none negative
    assert min(first.draft_rest_ms, first.draft_start_ms, first.tree_token_ms, first.tree_node_ms) >= 0
    for nodes in profiling.NODES:
        for context in (1, 64, cache.capacity):
            parts = first.pass_ms(nodes, context)
            assert min(parts) >= 0 and sum(parts) > 0
    path.write_text('{"t_mlp_ms": 1.0, "t_attn_slope_ms": 0, "t_attn_intercept_ms": 1, "points": []}', encoding="utf-8")
    monkeypatch.setattr(profiling, "measure", lambda *_: GIVEN)
    # a file from before passes were measured does not count
    assert profiling.load_or_measure(decoder, cache, path).passes == GIVEN.passes
    monkeypatch.setattr(profiling, "measure", lambda *a: pytest.fail("measured again"))
    assert profiling.load_or_measure(decoder, cache, path).passes == GIVEN.passes


def test_of_simultaneous_runs_one_measures(decoders: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoders()
    cache, measuring = decoder.new_cache(8), []

    def measure(*_: object) -> Latency:
        measuring.append(True)
        time.sleep(0.3)
        return GIVEN

    monkeypatch.setattr(profiling, "measure", measure)
    with ThreadPoolExecutor(8) as together:
        path = tmp_path / "new" / "profile.json"
        found = set(together.map(lambda _: profiling.load_or_measure(decoder, cache, path), range(8)))
    assert len(found) == len(measuring) == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["profile.json"]


def test_contexts_reach_the_end_of_the_cache() -> None:
    assert profiling.contexts(300) == [64, 128, 256, 299]
    assert profiling.contexts(50) == [49]
