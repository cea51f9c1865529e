"""KNN-SSD: losslessness, all kinds of anchors, routing by cosine, a set for every domain, refusals."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor

from methods import knn_ssd
from methods.knn_ssd import KNNSSD, Clusters, nearest
from methods.layer_search import SearchSettings
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Origin, Sample
from ssd_bench.contract.optional import Calibrated
from ssd_bench.engine.engine import Engine
from ssd_bench.errors import ConfigError
from ssd_bench.model.decoder import Decoder, Pass
from tests.conftest import LAYERS
from tests.lossless import DIMS, Load, check_greedy, engine_for, method_of
from tests.runs import config, executed, local_model

PRESETS = ("knn_ssd", "knn_ssd_paper", "knn_ssd_last_token", "knn_ssd_wallclock")
SEARCH = SearchSettings(iterations=0, new_tokens=4)
SETS = {"low": LayerSet.skipping(LAYERS, [1]), "high": LayerSet.skipping(LAYERS, [2], [1])}


def prompts(domain: str, count: int, seed: int = 0) -> list[list[int]]:
    """Prompts of tokens that no other domain has."""
    rng = random.Random(f"{domain}{seed}")
    tokens = (3, 4) if domain == "low" else (50, 51)
    return [[rng.choice(tokens) for _ in range(rng.randint(6, 12))] for _ in range(count)]


def samples(count: int) -> list[Sample]:
    return [Sample(prompt, domain) for domain in SETS for prompt in prompts(domain, count)]


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> SearchSettings:
    """A search with known sets by the domain's name, or a cluster's."""
    known = SETS | {"cluster-0": SETS["low"], "cluster-1": SETS["high"]}
    monkeypatch.setattr(knn_ssd, "named_set", lambda name, probe: known[name])
    return replace(SEARCH, reuse={name: name for name in known})


def prepared(decoder: Decoder, method: KNNSSD, items: Sequence[Sample], folder: Path = Path()) -> Engine:
    engine = engine_for(decoder, 40, 12, frozenset())
    engine.probe.origin = Origin(folder, "tiny", "w", "none", "float64", "cpu", 0, "")
    method.check(DIMS)
    with torch.inference_mode():
        method.prepare(engine.probe, items)
    return engine


def features(decoder: Decoder, items: Sequence[Sample], pooling: str = "mean") -> Tensor:
    """Features by hand, each from its own forward."""
    found = []
    for item in items:
        cache = decoder.new_cache(64)
        with torch.inference_mode():
            hidden = decoder.embed(torch.tensor(item.prompt))
            hidden, _ = decoder.run(Pass(decoder.all_sublayers, hidden, 0), cache)
            normed = decoder.final_norm(hidden)
        found.append(normed.mean(0) if pooling == "mean" else normed[-1])
    return torch.stack(found)


def test_presets_are_lossless(decoders: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """50 random cases, each with its own sets and a threshold that these models reach."""
    monkeypatch.setattr(knn_ssd, "KMEANS_RUNS", 1)  # of two prompts each domain

    def make(rng: random.Random) -> KNNSSD:
        search = {"iterations": 0, "new_tokens": 2, "random_state": rng.randrange(1000)}
        return method_of(rng.choice(PRESETS), calibration=2, stop_below=rng.choice([0.0, 0.2, 0.8]), search=search)

    assert check_greedy(make, decoders) > 12


def test_presets_hold_the_published_settings() -> None:
    code, paper, last, timed = (config(preset) for preset in PRESETS)
    for preset in (code, paper, last, timed):
        assert (preset.draft_len, preset.stop_below, preset.anchors_per_domain) == (12, 0.8, 10)
        assert (preset.search.draft_len, preset.search.stop_below, preset.search.target_rate) == (12, 0.8, None)
        assert (preset.search.iterations, preset.search.new_tokens, preset.search_prompts) == (1000, 32, 8)
    assert (code.anchors, code.pooling, code.search_on) == ("centroids_per_task", "mean", "first")
    assert (paper.anchors, paper.pooling, paper.search_on) == ("global_kmeans", "mean", "representative")
    assert last == OmegaConf.merge(paper, {"name": last.name, "pooling": "last_token"})
    assert code.search.objective == paper.search.objective == "expected"
    assert timed == OmegaConf.merge(code, {"name": timed.name, "search": {"objective": "wallclock"}})
    assert isinstance(instantiate(code), Calibrated)


@pytest.mark.parametrize("kind", ["centroids_per_task", "nearest_samples"])
@pytest.mark.parametrize(("count", "k"), [(12, 5), (3, 10)])
def test_anchors_of_tasks(kind: str, count: int, k: int, decoders: Load, reused: SearchSettings) -> None:
    """(n·k, d), with k at most the prompts; centroids are means of prompts, or the prompts nearest to them."""
    method, items = KNNSSD(reused, anchors=kind, anchors_per_domain=k), samples(count)
    prepared(decoders(), method, items)
    expected = features(decoders(), items)
    each = min(count, k)
    assert method._anchors.shape == (2 * each, decoders().arch.width)
    assert method._anchor_domains == ["low"] * each + ["high"] * each
    if kind == "nearest_samples" or count <= k:
        distances = torch.cdist(method._anchors, expected)
        assert bool((distances.amin(1) < 1e-5).all()) and len(set(distances.argmin(1).tolist())) == 2 * each
    for domain, rows in (("low", slice(0, count)), ("high", slice(count, None))):
        clusters = Clusters.fit(expected[rows], k)
        own = method._anchors[[d == domain for d in method._anchor_domains]]
        means = [expected[rows][[label == i for label in clusters.labels]].mean(0) for i in range(each)]
        torch.testing.assert_close(clusters.centres, torch.stack(means), atol=1e-5, rtol=1e-4)
        if kind == "centroids_per_task":
            torch.testing.assert_close(own, clusters.centres, atol=1e-5, rtol=1e-4)


def test_anchors_of_global_clusters(decoders: Load, reused: SearchSettings) -> None:
    """Domains are clusters; their anchors the k prompts nearest to the centre."""
    method, items = KNNSSD(reused, anchors="global_kmeans", anchors_per_domain=3), samples(6)
    prepared(decoders(), method, items)
    expected = features(decoders(), items)
    clusters = Clusters.fit(expected, 2)
    for label, centre in enumerate(clusters.centres):
        own = expected[[i == label for i in clusters.labels]]
        nearest = own[(own - centre).norm(dim=-1).argsort()[:3]]
        anchors = method._anchors[[d == f"cluster-{label}" for d in method._anchor_domains]]
        torch.testing.assert_close(anchors, nearest, atol=1e-5, rtol=1e-4)


def test_number_of_global_clusters(decoders: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """`groups` also splits prompts of one domain (Table 5)."""
    monkeypatch.setattr(knn_ssd, "named_set", lambda name, probe: SETS["low"])
    names = {f"cluster-{i}": "x" for i in range(3)}
    method = KNNSSD(replace(SEARCH, reuse=names), anchors="global_kmeans", groups=3)
    prepared(decoders(), method, samples(6)[:6])
    assert set(method._anchor_domains) == set(names)


@pytest.mark.parametrize(("family", "pooling"), [("llama", "mean"), ("qwen2", "last_token"), ("qwen3", "mean")])
def test_feature_of_the_prefill_is_that_of_a_forward(
    family: str, pooling: str, decoders: Load, reused: SearchSettings
) -> None:
    """No extra pass at inference: `start` reads features as by hand, and as for the anchors."""
    method, items = KNNSSD(reused, pooling=pooling), samples(4)
    engine = prepared(decoders(family), method, items)
    seen = []
    original = method._feature
    method._feature = lambda states: seen.append(original(states)) or seen[-1]  # type: ignore[method-assign]
    for item in items:
        engine.generate(method, item.prompt)
    torch.testing.assert_close(torch.stack(seen), features(decoders(family), items, pooling), atol=1e-6, rtol=1e-5)
    assert bool((torch.cdist(torch.stack(seen), method._anchors).amin(1) < 1e-4).all())


def test_leave_one_out_routing(decoders: Load, reused: SearchSettings) -> None:
    """An anchor's nearest other anchor is always of its own domain."""
    method = KNNSSD(reused, anchors_per_domain=5)
    prepared(decoders("qwen3"), method, samples(12))
    domains = method._anchor_domains
    for i, anchor in enumerate(method._anchors):
        others = [j for j in range(len(domains)) if j != i]
        assert domains[others[nearest(method._anchors[others], anchor)]] == domains[i]


def test_prompts_are_routed_and_nothing_is_kept(decoders: Load, reused: SearchSettings) -> None:
    """Uncalibrated prompts, even of one token, draft with their domain's set, in any order."""
    method = KNNSSD(reused, stop_below=0.0)
    engine = prepared(decoders(), method, samples(8))
    for domain in ("low", "high", "low"):
        for prompt in [*prompts(domain, 2, seed=1), [3] if domain == "low" else [50]]:
            assert {step.layer_set for step in engine.generate(method, prompt).steps} == {SETS[domain]}


def test_ties_go_to_the_lowest_anchor() -> None:
    """Cosine ignores length, so scaled anchors tie."""
    rows = torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    for first in (0, 5, 38):
        vectors = torch.cat([-rows[:first], rows[first:][:1].repeat(40 - first, 1)])
        assert nearest(vectors, rows[first] * 2) == first


def test_nearest_is_by_cosine() -> None:
    assert nearest(torch.tensor([[1.0, 0.0], [5.0, 5.0]]), torch.tensor([1.0, 0.9])) == 1
    generator = torch.Generator().manual_seed(1)
    vectors, feature = torch.randn(30, 8, generator=generator), torch.randn(8, generator=generator)
    by_hand = max(range(30), key=lambda i: float(F.normalize(vectors[i], dim=0) @ F.normalize(feature, dim=0)))
    assert nearest(vectors, feature) == by_hand


@pytest.mark.parametrize("search_on", ["first", "representative"])
def test_every_domain_is_searched_on_its_own_prompts(
    search_on: str, decoders: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones, or one of each cluster; every search is an artifact, and found again."""
    seen: list[tuple[str, list[Sample]]] = []
    original = knn_ssd.search

    def search(settings: SearchSettings, probe: Any, items: Sequence[Sample], domain: str, window: None) -> Any:
        seen.append((domain, list(items)))
        return original(settings, probe, items, domain, window)

    monkeypatch.setattr(knn_ssd, "search", search)
    method, items = KNNSSD(SEARCH, search_prompts=3, search_on=search_on), samples(5)
    for _ in range(2):
        prepared(decoders(), method, items, tmp_path)
    assert [domain for domain, _ in seen] == ["low", "high"] * 2 and seen[:2] == seen[2:]
    for domain, chosen in seen[:2]:
        own = [item for item in items if item.domain == domain]
        assert len(chosen) == 3 and all(item in own for item in chosen)
        if search_on == "first":
            assert chosen == own[:3]
    assert sorted(path.name.rsplit("-", 1)[0] for path in tmp_path.iterdir()) == ["tiny-high", "tiny-low"]


def test_domain_without_a_set_is_refused(decoders: Load, reused: SearchSettings) -> None:
    partial = replace(reused, reuse={"low": "low"})
    with pytest.raises(ConfigError, match="missing: high"):
        prepared(decoders(), KNNSSD(partial), samples(2))


def test_equal_prompts_are_anchors_too(decoders: Load, reused: SearchSettings) -> None:
    """Fewer clusters than asked for, without a warning."""
    items = [Sample([5, 6], "low")] * 4 + [Sample([50, 51], "high")] * 4
    for kind in ("centroids_per_task", "nearest_samples"):
        method = KNNSSD(reused, anchors=kind)
        engine = prepared(decoders(), method, items)
        assert {step.layer_set for step in engine.generate(method, [50, 51]).steps} == {SETS["high"]}


def test_skipped_sublayers_do_not_run(decoders: Load, reused: SearchSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafted token runs 2L - |z| sublayers, by a counter in the model, and predicts something else."""
    method, ran = KNNSSD(reused, stop_below=0.0, draft_len=3), [0]
    engine = prepared(decoders("qwen2"), method, samples(4))
    for name in ("_attention", "_mlp"):
        original = getattr(Decoder, name)

        def count(self: Decoder, *arguments: Any, _run: Callable[..., None] = original) -> None:
            ran[0] += 1
            _run(self, *arguments)

        monkeypatch.setattr(Decoder, name, count)
    made = engine.generate(method, prompts("high", 1)[0])
    drafted = sum(step.draft_len for step in made.steps)
    assert ran[0] == (1 + len(made.steps)) * 2 * LAYERS + drafted * (2 * LAYERS - 2)
    assert sum(step.accepted_len for step in made.steps) < drafted


def test_vectors_of_knn_ssd_stand_beside_its_record(small_checkpoint: Path, tmp_path: Path) -> None:
    search = ("method.search.iterations=2", "method.search.new_tokens=4", "method.search_prompts=1")
    options = ("method=knn_ssd", "method.calibration=3", "method.anchors_per_domain=2", *search)
    stream = ("task=stream", "task.items=2", "decode.max_new_tokens=4", "limit=5")
    run = executed(tmp_path, *local_model(small_checkpoint), *options, *stream)
    domains = set(run.prompts["domain"])
    with np.load(run.path / "vectors.npz") as kept:
        assert kept["vectors"].shape == (3 * len(domains), 32) and len(kept["labels"]) == 3 * len(domains)
        assert set(kept["labels"]) == set(kept["anchor_labels"]) == domains
        assert kept["anchors"].shape == (2 * len(domains), 32) and np.isfinite(kept["anchors"]).all()
