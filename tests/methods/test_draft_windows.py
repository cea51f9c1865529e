"""Drafts with a window of the cache: lossless with every method, recorded, charged for what they read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from hydra.utils import get_class

from methods import knn_ssd
from methods.draft_stop import ModelDraft, Reading
from methods.fixed_layers import FixedLayers
from methods.layer_search import SearchSettings, search
from ssd_bench.commands import export
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Probe, Sample
from ssd_bench.contract.window import Window
from ssd_bench.cost.latency import Latency
from ssd_bench.cost.roofline import simulated_machine
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import Decoder
from ssd_bench.predict.replay import own_profile, step_times
from ssd_bench.records.files import read_header
from ssd_bench.records.reader import load_run
from ssd_bench.records.schema import DIGESTS
from ssd_bench.records.writer import RunWriter
from ssd_bench.results.definitions import predicted_tpt
from ssd_bench.results.digest import summarise
from ssd_bench.results.evidence import trace
from tests.lossless import DIMS, Load, check_greedy, decode, loaded, method_of
from tests.methods.test_fidelity import PRESETS
from tests.methods.test_knapspec import LENGTH, history
from tests.predict.test_replay import BIG
from tests.run.test_shards import equal
from tests.runs import executed, local_model
from tests.synthetic import HEADER, header, unit, with_work, write_run

SIZES = [(0, 1), (1, 1), (2, 3), (0, 8), (4, 300)]
WINDOWS = (None, Window(1, 4), Window(0, 9))
SEARCH = {"iterations": 0, "new_tokens": 2}
SMALL: dict[str, dict[str, Any]] = {
    "clasp": {"interval": 2},
    "conflayers": {"context_window": 1, "interval": 2},
    "fixed_layers": {"ratio": 0.25, "stop_below": 0.0},
    "knapspec": {"interval": 2, "capture_steps": 1},
    "knn_ssd": {"calibration": 2, "search": SEARCH},
    "layerskip_swept": {"calibration": 1, "new_tokens": 4},
    "oracle": {"calibration": 1, "new_tokens": 2, "skipped": 1},
    "self_ssd": {"calibration": 1, "search": SEARCH},
    "swift": {"context_window": 2, "bayes_interval": 3},
}
"""Settings with which a method searches on a tiny model and a few tokens."""


def windowed() -> list[str]:
    """The first preset of every method that drafts with layers and full weights."""
    made: dict[type, str] = {}
    for preset, settings in PRESETS.items():
        method = get_class(settings["_target_"])
        if issubclass(method, ModelDraft) and settings.get("draft_weights") == "full":
            made.setdefault(method, preset)
    return sorted(made.values())


def maker(preset: str, drawn: Callable[[random.Random], dict[str, Any]]) -> Callable[[random.Random], ModelDraft]:
    """Makes the method for a case: small searches, reused states and drawn settings."""
    reuse = {"reuse_prefix": True} if "reuse_prefix" in PRESETS[preset] else {}

    def make(rng: random.Random) -> ModelDraft:
        small = SMALL.get(preset, {})
        if "search" in small:
            small = small | {"search": small["search"] | {"random_state": rng.randrange(99)}}
        method: ModelDraft = method_of(preset, **drawn(rng), **reuse, **small)
        return method

    return make


# ---- decoding


@pytest.mark.parametrize("preset", windowed())
def test_every_method_is_lossless_with_a_window(
    preset: str, decoders: Load, rests: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knn_ssd, "KMEANS_RUNS", 1)  # of two prompts each domain
    make = maker(preset, lambda rng: {"draft_window": list(rng.choice(SIZES))})
    assert check_greedy(make, decoders, 25) > 0
    assert not rests, "states of a draft with a window are not the full model's"


def test_a_draft_has_its_length_whatever_its_confidence(decoder: Decoder) -> None:
    made = decode(decoder, method_of("window_draft", draft_window=[0, 2]), [5, 6, 7], 40)
    assert {step.draft_len for step in made.steps if step.stop_reason == "length"} == {4}
    assert {step.stop_reason for step in made.steps} <= {"length", "budget"}


@pytest.mark.parametrize("preset", windowed())
def test_every_layer_draft_of_a_method_has_its_window(preset: str, decoder: Decoder) -> None:
    method = method_of(preset, draft_window=[1, 2], **SMALL.get(preset, {}))
    made = decode(decoder, method, [5, 6, 7, 8, 9], 40)
    assert {step.layer_set.window for step in made.steps if step.layer_set} == {Window(1, 2)}


@pytest.mark.parametrize(("family", "preset"), [("llama", "swift"), ("qwen3", "clasp")])
def test_a_window_of_the_whole_text_changes_nothing(family: str, preset: str, decoders: Load) -> None:
    decoder, steps = loaded(decoders, family, compiled=True), []
    for window in (None, [0, 45], [40, 5], [0, 2]):
        made = decode(decoder, method_of(preset, draft_window=window, **SMALL[preset]), [5, 6, 7, 8, 9], 40).steps
        steps.append([(s.layer_set and s.layer_set.skipped, s.draft_len, s.accepted_len) for s in made])
    assert steps[0] == steps[1] == steps[2] != steps[3]


def test_presets_read_all_positions() -> None:
    assert {PRESETS[name]["draft_window"] for name in windowed() if name != "window_draft"} == {None}


@pytest.mark.parametrize("window", [[1], [-1, 2], [0, 0], [1, 2, 3]])
def test_windows_that_cannot_be_are_refused(window: list[int]) -> None:
    with pytest.raises(ConfigError, match=r"method\.draft_window"):
        FixedLayers(ratio=0.25, draft_window=window)


def test_a_search_with_a_window_is_a_search_of_its_own(probe: Probe) -> None:
    """Its trials draft with the window and are priced by it; without one, a search is unchanged."""
    settings = SearchSettings(iterations=1, new_tokens=12, draft_len=3, stop_below=0.0, target_rate=None)
    samples = [Sample([5, 6, 7, 8], "a")]
    with torch.inference_mode():
        windows = None, Window(0, 1), Window(4, 100)
        made = {window: search(settings, probe, samples, "a", Reading(window)) for window in windows}
    assert len({one.header["content_key"] for one in made.values()}) == 3
    assert made[None].header["settings"] == settings.scoring
    assert made[Window(0, 1)].header["settings"] == settings.scoring | {"window": [0, 1]}
    scores = {window: [each.score for each in one.evaluations] for window, one in made.items()}
    assert scores[None] == scores[Window(4, 100)] != scores[Window(0, 1)]


def test_knapspecs_estimate_is_of_what_drafts_read(decoders: Load) -> None:
    states, probe = history(decoders("qwen3"))
    probe.latency = Latency(1.0, 1.0, 0.1)
    speeds = []
    for window in ([0, 1], [1, 3], [0, LENGTH], None):
        options = {"weight_cap": 1, "min_similarity": -1.0, "draft_len_grid": [4, 4], "draft_window": window}
        method = method_of("knapspec", **options)
        method.check(DIMS)
        speeds.append(method.search(states, LENGTH, probe)[1].tokens_per_s)
    assert speeds[0] > speeds[1] > speeds[2] == speeds[3]


# ---- records


def test_a_row_of_layer_sets_is_a_set_with_its_window(tmp_path: Path) -> None:
    """Resuming a run changes none of its sets."""
    units = [with_work(unit(i, windows=WINDOWS)) for i in range(3)]
    for number, records in enumerate(units):
        with RunWriter(tmp_path / "run", header()) as writer:
            writer.add(number, 0, records, None)
    with RunWriter(tmp_path / "run", header()) as writer:
        writer.finish({})
    run = load_run(tmp_path / "run")
    equal(run, write_run(tmp_path / "whole", units))
    added = [step for records in units for step in records[1].steps]
    stored = run.steps[run.steps["arm"] == "method"]
    for set_id, step in zip(stored["layer_set_id"], added, strict=True):
        assert pd.isna(set_id) == (step.layer_set is None)
        if step.layer_set is not None:
            assert run.layer_set(int(set_id)) == step.layer_set
    sets = dict.fromkeys(step.layer_set for step in added if step.layer_set)
    assert len(run.layer_sets) == len(sets) > len({layer_set.skipped for layer_set in sets})


def test_a_record_without_the_columns_reads_all_positions(tmp_path: Path) -> None:
    """Programs without windows write such records."""
    run = write_run(tmp_path / "run", [unit(i) for i in range(3)])
    summary, before = summarise(run), trace(run)
    file = run.path / "layer_sets.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["sinks", "recent"]), file)
    kept = {key: value for key, value in read_header(run.path).items() if key != DIGESTS}
    (run.path / "run.json").write_text(json.dumps(kept), encoding="utf-8")
    old = load_run(run.path)
    equal(old, run)
    assert [old.layer_set(int(i)).window for i in old.layer_sets["layer_set_id"]] == [None] * len(old.layer_sets)
    assert (summarise(old), trace(old)) == (summary, before)


def test_traces_differ_where_windows_do(tmp_path: Path) -> None:
    windows = None, Window(1, 4), Window(1, 5), Window(2, 4), Window(1, 4)
    traces = [trace(write_run(tmp_path / str(i), [unit(0, windows=[one])])) for i, one in enumerate(windows)]
    assert traces[1] == traces[4] and len(set(traces)) == 4


def test_windows_that_cannot_be_are_faults_of_a_record(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [unit(0, windows=WINDOWS)])
    file = run.path / "layer_sets.parquet"
    table = pq.read_table(file)
    for sinks, recent in ((None, 4), (1, None), (1, 0), (-1, 4)):
        rows = table.to_pylist()
        rows[0] |= {"sinks": sinks, "recent": recent}
        pq.write_table(type(table).from_pylist(rows, schema=table.schema), file)
        with pytest.raises(ConfigError, match="layer set 0 reads"):
            load_run(run.path)


def test_an_exported_set_drafts_with_its_window(small_checkpoint: Path, tmp_path: Path) -> None:
    short = [*local_model(small_checkpoint), "task=gsm8k", "limit=2", "decode.max_new_tokens=12"]
    short += ["hardware.kernels=torch"]
    first = executed(tmp_path / "a", *short, "method=fixed_layers", "method.ratio=0.25", "method.draft_window=[2,5]")
    assert first.layer_set(0).window == Window(2, 5) and set(first.prompts["lossless"].dropna()) == {"identical"}
    kept = export.set_with_origin(first, export.find_set_id(first, None))
    assert kept["window"] == [2, 5]
    options = [option for option in kept["overrides"] if option != "method=fixed_layers"]
    second = executed(tmp_path / "b", *short, "method=fixed_layers", *options, "method.stop_below=0.7")
    equal(second, first)


# ---- costs


def test_a_drafted_token_costs_what_it_reads() -> None:
    profile, layer_set = Latency(2.0, 0.01, 1.0), LayerSet.skipping(10, attn=[1, 2], mlp=[3])
    for context in (0, 1, 7, 100, 5000):
        whole = profile.draft_ms(layer_set, context)
        windows = [Window(4, recent) for recent in (1, 3, 96, 97, 5000, 9999)]
        times = [profile.draft_ms(replace(layer_set, window=window), context) for window in windows]
        assert times == sorted(times) and times[-1] == whole and times[0] <= whole
        assert times[2] == profile.draft_ms(layer_set, min(context, 100))


def test_costs_of_a_record_fall_with_its_windows(tmp_path: Path) -> None:
    """TPT and replays, on the record's machine and a simulated one; wide windows change nothing."""
    windows = [None, Window(0, 2000), Window(4, 30), Window(4, 16), Window(0, 1)]
    runs = [
        write_run(tmp_path / str(i), [unit(p, windows=[window]) for p in range(3)]) for i, window in enumerate(windows)
    ]
    predicted = [predicted_tpt(run) for run in runs]
    assert predicted[0] == predicted[1] and predicted == sorted(predicted) and len(set(predicted)) == 4
    for machine in (own_profile(runs[0]), simulated_machine("sim_h100", BIG)):
        times = [step_times(run, machine) for run in runs]
        pd.testing.assert_frame_equal(times[0], times[1])
        for wider, narrower in zip(times[1:], times[2:]):
            assert (narrower["draft_ms"] <= wider["draft_ms"]).all()
            assert narrower["draft_ms"].sum() < wider["draft_ms"].sum()
            pd.testing.assert_series_equal(narrower["verify_ms"], wider["verify_ms"])


def test_a_replay_charges_each_step_for_its_own_window(tmp_path: Path) -> None:
    records = unit(0, windows=WINDOWS)
    run, latency = write_run(tmp_path / "run", [records]), HEADER["latency"]
    times = step_times(run, own_profile(run))
    predicted = times.loc[times["arm"] == "method", "draft_ms"]
    for step, ms in zip(records[1].steps, predicted, strict=True):
        seen = [step.context_len + j for j in range(step.draft_len)]
        if step.layer_set is not None and step.layer_set.window is not None:
            seen = [step.layer_set.window.count_read(n) for n in seen]
        profile = Latency(latency["t_mlp_ms"], latency["t_attn_slope_ms"], latency["t_attn_intercept_ms"])
        whole = step.layer_set and replace(step.layer_set, window=None)
        assert ms == pytest.approx(sum(profile.draft_ms(whole, n) for n in seen) if whole else 0.0)
