"""Layer search: objective by formula, exhaustive search, exact continuation, budgets, artifacts and their names."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from methods import fixed_layers, layer_search
from methods.bayesian import confidence_bound, fit_process, suggest
from methods.layer_search import Objective, SearchSettings, layer_set_of, named_set, point_of, propose, search
from ssd_bench.commands import searches
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Probe, Sample, SearchUse
from ssd_bench.cost.latency import Latency
from ssd_bench.engine.probe import ModelProbe
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import Decoder
from ssd_bench.records import search_store
from ssd_bench.records.search_store import Evaluation, SearchRecord
from ssd_bench.results.definitions import expected_speedup
from tests.conftest import LAYERS
from tests.lossless import probe_in

FULL = LayerSet.full(LAYERS)
PROMPTS = [[5, 6, 7], [40, 41]]
SAMPLES = [Sample(prompt, "a") for prompt in PROMPTS]
SMALL = SearchSettings(iterations=3, new_tokens=8, draft_len=3, stop_below=0.0, target_rate=None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random points instead of the optimiser's, where it does not matter."""

    def propose(evaluations: Sequence[Evaluation], n_layers: int, seed: int) -> tuple[float, ...]:
        return tuple(np.random.RandomState([seed, len(evaluations)]).random(2 * n_layers))

    monkeypatch.setattr(layer_search, "propose", propose)


def counted(monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None) -> list[LayerSet]:
    """The sets evaluated from now on; the process is killed at the given one."""
    seen: list[LayerSet] = []
    original = Objective.__call__

    def call(self: Objective, layer_set: LayerSet) -> float:
        if len(seen) == stop_at:
            raise KeyboardInterrupt
        seen.append(layer_set)
        return original(self, layer_set)

    monkeypatch.setattr(Objective, "__call__", call)
    return seen


def content(artifact: SearchRecord) -> list[tuple[Sequence[float], LayerSet, float]]:
    return [(e.point, e.layer_set, e.score) for e in artifact.evaluations]


def test_full_model_scores_one(probe: Probe) -> None:
    """Everything is accepted and nothing saved: K + 1 tokens for K + 1 passes."""
    assert Objective(SMALL, probe, PROMPTS)(FULL) == pytest.approx(1.0, abs=1e-12)


def test_score_is_the_expected_speedup(probe: Probe) -> None:
    """M, α and a measured c in E(speedup), where no context makes c differ."""
    layer_set, flat = LayerSet.skipping(LAYERS, [1, 2], [2]), Latency(3.0, 0.0, 2.0)
    trial = layer_search._Trial(layer_set, SMALL.draft_stop())
    steps = [step for prompt in PROMPTS for step in probe.trial(trial, prompt, SMALL.new_tokens).steps]
    m = sum(step.emitted for step in steps) / len(steps)
    alpha = sum(step.accepted_len for step in steps) / sum(step.draft_len for step in steps)
    c = (2 * 2.0 + 3 * 3.0) / (4 * 2.0 + 4 * 3.0)
    assert 0 < alpha < 1
    expected = expected_speedup(m, alpha, 1 - c)
    assert Objective(SMALL, probe, PROMPTS, flat)(layer_set) == pytest.approx(expected)
    other = Objective(SMALL, probe, PROMPTS, Latency(3.0, 1.0, 2.0))(layer_set)
    assert other != pytest.approx(expected)


def test_sets_are_scored_greedily_and_past_eos(decoder: Decoder, tmp_path: Path) -> None:
    """A run that samples, or whose model says EOS at once, searches on the same decoding."""
    layer_set = LayerSet.skipping(LAYERS, [1], [2])
    scores = set()
    for options in ({}, {"mode": "sample", "temperature": 2.0}):
        probe = probe_in(tmp_path, decoder, **options)
        assert len(probe.trial(layer_search._Trial(layer_set, SMALL.draft_stop()), PROMPTS[0], 8).output) == 8
        scores.add(Objective(SMALL, probe, PROMPTS)(layer_set))
    assert len(scores) == 1


def test_wallclock_is_tokens_per_second(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """All prompts after one uncounted decoding."""
    made = []
    original = ModelProbe.trial
    monkeypatch.setattr(ModelProbe, "trial", lambda *a: made.append(original(*a)) or made[-1])
    objective = Objective(replace(SMALL, objective="wallclock"), probe, PROMPTS)
    score = objective(FULL)
    assert len(made) == 1 + len(PROMPTS)
    tokens = sum(len(each.output) for each in made[1:])
    assert score == pytest.approx(1e3 * tokens / sum(each.prefill_ms + each.decode_ms for each in made[1:]))
    objective(FULL)
    assert len(made) == 1 + 2 * len(PROMPTS)


def test_search_stays_below_exhaustive_search(probe: Probe) -> None:
    """Scores are those of the table of all 2^2L sets, the best at most the table's, and above the mean."""
    settings = replace(SMALL, new_tokens=5, iterations=8)
    objective = Objective(settings, probe, PROMPTS[:1])
    table = {s: objective(s) for s in map(layer_set_of, product((0.0, 1.0), repeat=2 * LAYERS))}
    assert len(table) == 4**LAYERS
    found = search(settings, probe, SAMPLES[:1], "a")
    assert len(found.evaluations) == 9
    assert all(e.score == table[e.layer_set] for e in found.evaluations)
    assert mean(table.values()) < found.best.score <= max(table.values())
    assert found.best.score == max(e.score for e in found.evaluations)


def test_killed_search_goes_on_as_if_it_had_not_been(
    decoder: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in an evaluation and again in a write; points, scores and sets equal an uninterrupted search's."""
    whole = search(SMALL, probe_in(tmp_path / "whole", decoder), SAMPLES, "a")
    probe = probe_in(tmp_path / "killed", decoder)
    with monkeypatch.context() as patch:
        counted(patch, stop_at=2)
        with pytest.raises(KeyboardInterrupt):
            search(SMALL, probe, SAMPLES, "a")
    [folder] = (tmp_path / "killed").iterdir()
    assert len(search_store.load(folder).evaluations) == 2
    with open(folder / search_store.EVALUATIONS, "ab") as file:
        file.write(b'{"score": 0.7, "seco')
    assert len(search_store.load(folder).evaluations) == 2
    resumed = search(SMALL, probe, SAMPLES, "a")
    assert content(resumed) == content(whole) == content(search_store.load(folder))
    assert resumed.name == whole.name and resumed.seconds > 0


def test_budget_reads_a_beginning_or_continues(
    probe: Probe, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    seen = counted(monkeypatch)
    long = search(replace(SMALL, iterations=5), probe, SAMPLES, "a")
    assert len(seen) == 6
    short = search(replace(SMALL, iterations=1), probe, SAMPLES, "a")
    assert content(short) == content(long)[:2] and len(seen) == 6
    assert "0 of them in this run" in capsys.readouterr().err
    longer = search(replace(SMALL, iterations=6), probe, SAMPLES, "a")
    assert content(longer)[:6] == content(long) and len(seen) == 7
    in_time = search(replace(SMALL, iterations=5, max_seconds=1e-9), probe, SAMPLES, "a")
    assert content(in_time) == content(long)[:1]  # what is begun in time is finished


def test_seconds_end_a_search(probe: Probe, quick: None) -> None:
    assert len(search(replace(SMALL, iterations=50, max_seconds=1e-9), probe, SAMPLES, "a").evaluations) == 1


def test_set_that_came_up_before_is_not_decoded_again(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless its time counts."""
    monkeypatch.setattr(layer_search, "propose", lambda evaluations, *_: (0.2 + 0.01 * len(evaluations),) * 2 * LAYERS)
    seen = counted(monkeypatch)
    assert len(search(SMALL, probe, SAMPLES, "a").evaluations) == 4 and len(seen) == 1
    search(replace(SMALL, objective="wallclock"), probe, SAMPLES, "a")
    assert len(seen) == 5


def test_same_seed_same_points_and_a_random_first_one() -> None:
    """Proposals are a function of seed and scores; about half of the first point is skipped."""
    runs = []
    for seed in (1, 1, 2):
        first = propose([], 3, seed)
        twice = [Evaluation(first, layer_set_of(first), score, 0.0) for score in (1.0, 0.5)]  # twice is allowed
        runs.append((first, propose(twice, 3, seed)))
    assert runs[0] == runs[1] != runs[2]
    many = [sum(x > 0.5 for x in propose([], 40, seed)) for seed in range(20)]
    assert 35 < mean(many) < 45


def test_found_again_by_settings(probe: Probe, quick: None) -> None:
    """Budgets do not matter, everything that a score depends on does."""
    settings = replace(SMALL, iterations=0)
    known = search(settings, probe, SAMPLES, "a").name
    for same in ({}, {"iterations": 1}, {"max_seconds": 60.0}):
        assert search(replace(settings, **same), probe, SAMPLES, "a").name == known
    for other in ({"new_tokens": 5}, {"random_state": 2}, {"objective": "wallclock"}, {"draft_len": 2}):
        assert search(replace(settings, **other), probe, SAMPLES, "a").name != known


def test_found_again_by_origin_and_prompts(probe: Probe, quick: None) -> None:
    """Weights, dtype, machine, task and tokens matter; the run's seed, the domain's name and a new profile do not."""
    settings = replace(SMALL, iterations=0)
    known = search(settings, probe, SAMPLES, "a").name
    origin, latency = probe.origin, probe.latency
    for field in ("weights", "dtype", "machine", "task", "model"):
        probe.origin = replace(origin, **{field: "other"})
        assert search(settings, probe, SAMPLES, "a").name != known
    probe.origin = replace(origin, seed=7)
    assert search(settings, probe, SAMPLES, "b").name == known
    assert search(settings, probe, SAMPLES[:1], "a").name != known
    probe.latency = replace(latency, t_mlp_ms=9.0)
    assert search(settings, probe, SAMPLES, "a").name != known
    probe.latency = replace(latency, source="measured")
    measured = search(settings, probe, SAMPLES, "a")
    probe.latency = replace(probe.latency, t_mlp_ms=9.0)
    assert content(search(settings, probe, SAMPLES, "a")) == content(measured)


def test_artifact_says_where_it_comes_from(probe: Probe, quick: None) -> None:
    found = search(SMALL, probe, SAMPLES, "a b/c")
    header = json.loads((found.path / search_store.HEADER).read_text(encoding="utf-8"))
    assert found.name.startswith("tiny-a-b-c-") and found.name.endswith(header["content_key"][:10])
    assert {"model", "weights", "task", "domain", "dtype", "machine", "seed", "settings", "latency"} <= set(header)
    assert header["provenance"]["code"]["sha256"] and header["prompts"] == 2
    assert found.seconds == pytest.approx(sum(e.seconds for e in found.evaluations))


def test_a_search_is_reported_to_the_run(probe: ModelProbe, quick: None) -> None:
    """Even a reused one."""
    first, again = (search(SMALL, probe, SAMPLES, "a") for _ in range(2))
    count = len(first.evaluations)
    assert probe.searches == [SearchUse(x.name, count, new, x.seconds) for x, new in ((first, count), (again, 0))]


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> str:
    entry = {"n_layers": LAYERS, "skip_attn": [1], "skip_mlp": [0, 2]}
    monkeypatch.setattr(fixed_layers, "published_sets", lambda: {"x/tiny/all": entry, "x/big/all": {"n_layers": 9}})
    return "x/tiny/all"


def test_initial_sets_come_first(probe: Probe, quick: None, published: str) -> None:
    """Named sets replace the random point."""
    found = search(replace(SMALL, init_sets=[published], iterations=2), probe, SAMPLES, "a")
    assert len(found.evaluations) == 3
    assert found.evaluations[0].layer_set == LayerSet.skipping(LAYERS, [1], [0, 2])
    cold = search(replace(SMALL, iterations=2), probe, SAMPLES, "a")
    assert len(cold.evaluations) == 3 and cold.name != found.name


def test_sets_by_name(probe: Probe, quick: None, published: str) -> None:
    """A search's or a published one; unknown names are refused with the known ones."""
    found = search(SMALL, probe, SAMPLES, "a")
    assert named_set(found.name, probe) == found.best.layer_set
    assert named_set(published, probe) == LayerSet.skipping(LAYERS, [1], [0, 2])
    with pytest.raises(ConfigError, match=rf"method\.search\.reuse='nothing'.*{found.name}"):
        named_set("nothing", probe)
    probe.n_layers = 9
    with pytest.raises(ConfigError, match="a search on 9 blocks; this one is on 4"):
        named_set(found.name, probe)
    for bad in (replace(SMALL, reuse="x/none/all"), replace(SMALL, reuse={"a": "x/big/all"})):
        with pytest.raises(ConfigError, match=r"method\.search\.reuse"):
            bad.check(LAYERS)
    with pytest.raises(ConfigError, match=r"method\.search\.init_sets='x/big/all'"):
        replace(SMALL, init_sets=["x/big/all"]).check(LAYERS)


def test_points_and_sets() -> None:
    """The first L variables are attentions, the others MLPs; 0.5 itself is kept."""
    assert layer_set_of([0.6, 0.5, 0.0, 0.51]) == LayerSet.skipping(2, [0], [1])
    for skipped in ((), (0, 3, 5), range(8)):
        layer_set = LayerSet(LAYERS, frozenset(skipped))
        assert layer_set_of(point_of(layer_set)) == layer_set


HEADER = {
    "content_key": "0123456789abcdef",
    "n_layers": LAYERS,
    "model": "tiny",
    "task": "t",
    "domain": "d",
    "settings": {"objective": "expected"},
}


def evaluation(score: float, seconds: float = 1.0) -> Evaluation:
    return Evaluation((0.1,) * 8, LayerSet.skipping(LAYERS, [0], [1, 2]), score, seconds)


def test_store_lists_and_finds(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """`python -m ssd_bench searches` prints a line for each, or says what is missing."""
    assert searches.main([str(tmp_path)]) == 2 and "a folder with searches" in capsys.readouterr().err
    with search_store.open_search(tmp_path, "tiny-d", HEADER, "") as artifact:
        assert searches.main([str(tmp_path)]) == 0  # nothing evaluated yet
        artifact.add(evaluation(1.0, 2.0))
        artifact.add(evaluation(1.5, 0.5))
    capsys.readouterr()
    assert searches.main([str(tmp_path)]) == 0
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line == ["tiny-d-0123456789", "tiny", "t/d", "expected", "2", "1.5000", "2.5", "1+2", "of", "8"]
    assert search_store.find(tmp_path, "tiny-d-0123456789", "f") == artifact
    assert searches.main(["a", "b"]) == 2 and searches.main(["--help"]) == 0


def test_trace_best_and_budget_of_an_artifact(tmp_path: Path) -> None:
    artifact = SearchRecord(tmp_path, HEADER, [evaluation(score) for score in (0.5, 2.0, 1.0, 2.0)])
    assert artifact.best is artifact.evaluations[1]
    assert [len(artifact.cut_to_budget(9, seconds).evaluations) for seconds in (0.5, 1.0, 1.5, 99.0)] == [1, 1, 2, 4]
    assert len(artifact.cut_to_budget(3, 99.0).evaluations) == 3
    with pytest.raises(ConfigError, match="at least one layer set"):
        _ = SearchRecord(tmp_path, HEADER, []).best


def test_damage_is_named(tmp_path: Path) -> None:
    with search_store.open_search(tmp_path, "x", HEADER, "") as artifact:
        artifact.add(evaluation(1.0))
    other = search_store.open_search(tmp_path, "x", HEADER | {"content_key": "0123456789other"}, "")
    with pytest.raises(ConfigError, match="move the other one away"), other:
        pass
    (artifact.path / search_store.EVALUATIONS).write_bytes(b"{}\n")
    with pytest.raises(ConfigError, match="x-0123456789"):
        search_store.load(artifact.path)


def test_second_process_waits_and_finds_the_first_ones_work(tmp_path: Path) -> None:
    found: list[int] = []

    def other() -> None:
        with search_store.open_search(tmp_path, "x", HEADER, "") as artifact:
            found.append(len(artifact.evaluations))

    thread = threading.Thread(target=other)
    with search_store.open_search(tmp_path, "x", HEADER, "") as artifact:
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        artifact.add(evaluation(1.0))
    thread.join(10)
    assert found == [1]


# ---- the optimiser


KAPPA = 2.5


def known(n: int, dims: int) -> tuple[list[NDArray[np.float64]], list[float]]:
    """n points, inside the cube and at its corners, and scores from half of the dimensions."""
    random = np.random.RandomState(0)
    points = [random.rand(dims) if i % 2 else random.randint(2, size=dims).astype(float) for i in range(n)]
    weights = random.randn(dims) * (random.rand(dims) < 0.5)
    return points, [float(point @ weights + 0.1 * random.randn()) for point in points]


@pytest.mark.filterwarnings("ignore:The optimal value found")  # equal scores: the longest scale
@pytest.mark.parametrize(("n", "dims"), [(1, 4), (2, 1), (9, 8), (40, 32)])
@pytest.mark.parametrize("scored", ["differently", "equally", "twice"])
def test_gradient_is_that_of_the_processs_bound(n: int, dims: int, scored: str) -> None:
    """Central differences agree inside, at a corner, near and on a known point; even at the longest scale."""
    points, scores = known(n, dims)
    if scored == "equally":
        scores = [0.5] * n
    elif scored == "twice":
        points, scores = points * 2, scores + [score + 0.3 for score in scores]
    process = fit_process(points, scores, np.random.RandomState(0))
    random, spread = np.random.RandomState(1), np.std(scores) or 1.0
    for point in (random.rand(dims), random.rand(dims), np.ones(dims), points[0] + 0.01, points[0]):
        bound, gradient = confidence_bound(process, point, KAPPA)
        mean, deviation = process.predict(point[None], return_std=True)
        assert bound == pytest.approx((mean[0] + KAPPA * deviation[0] - np.mean(scores)) / spread, abs=1e-9)
        beside = 1e-5 * np.eye(dims)
        values = [[confidence_bound(process, point + sign * step, KAPPA)[0] for sign in (1, -1)] for step in beside]
        assert gradient == pytest.approx(-np.diff(values)[:, 0] / 2e-5, abs=1e-5, rel=1e-5)


@pytest.mark.parametrize(("n", "dims"), [(1, 6), (12, 6), (50, 32)])
def test_suggestion_is_a_maximum_of_the_bound(n: int, dims: int) -> None:
    """Nothing in the cube rises from it, and no random or known point is above it."""
    points, scores = known(n, dims)
    process = fit_process(points, scores, np.random.RandomState(3))
    found = suggest(points, scores, np.random.RandomState(3), KAPPA)
    assert found.shape == (dims,) and (found >= 0).all() and (found <= 1).all()
    best, gradient = confidence_bound(process, found, KAPPA)
    rising = np.where(found == 1, np.minimum(gradient, 0), np.where(found == 0, np.maximum(gradient, 0), gradient))
    assert np.abs(rising).max() < 1e-3
    others = [*np.random.RandomState(4).rand(500, dims), *points]
    assert best >= max(confidence_bound(process, other, KAPPA)[0] for other in others)


def test_suggestion_does_not_depend_on_the_unit_of_scores() -> None:
    """Tokens per second or speedup: a power of two, for equal rounding."""
    points, scores = known(20, 8)
    made = [suggest(points, [c * s for s in scores], np.random.RandomState(0), KAPPA) for c in (1.0, 2.0**9)]
    assert np.array_equal(made[0], made[1])


def test_suggestion_has_the_same_bits_on_any_number_of_threads() -> None:
    """The maximum is inside the cube, with rounded coordinates; BLAS would share the matrices out."""
    points, scores = known(200, 8)
    made = []
    for threads in (1, 4):
        with threadpool_limits(threads):
            made.append(suggest([0.2 + 0.6 * p for p in points], scores, np.random.RandomState(0), KAPPA))
    assert ((made[0] > 0) & (made[0] < 1)).any() and np.array_equal(made[0], made[1])
