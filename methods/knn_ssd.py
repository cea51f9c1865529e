"""KNN-SSD: a layer set per domain; a prompt's domain is that of its nearest anchor (Song et al., 2025).

Before the run every domain gets anchors, by K-means over the features of its prompts, and a layer set, by Self-SD's
search (`methods.layer_search`). The feature of a prompt comes from its prefill: the hidden states after the final norm,
pooled over the prompt. The domain is that of the nearest anchor by cosine, the first among equals. This domain's set
drafts up to 12 tokens, and ends after one less likely than 0.8 (§4; mbsong/KNN-SSD).

Paper and code differ in anchors and in the prompts of the search. `knn_ssd` follows the code, from which the released
sets and vectors come, `knn_ssd_paper` the paper. The paper's "last hidden vector" of a prompt can be read as the last
layer's states, pooled as in the code (`knn_ssd_paper`), or as those of the last token (`knn_ssd_last_token`).
Decided here:

* a search maximises a speedup computed from measured times; `knn_ssd_wallclock` measures every set, as both do;
* a domain without a set is an error; the code takes every other layer there;
* sampling works as in every method here; the code ignores its sampling options.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from methods.draft_stop import DraftStop, StoppedDraft
from methods.layer_search import SearchSettings, named_set, search
from methods.settings import Calibration, DraftLen, Name, ReusePrefix, StopBelow
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Prefill, Probe, Sample, Taps
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, settings

KMEANS_SEED, KMEANS_RUNS = 42, 10  # those of knn_utils.py:51-58


@dataclass(frozen=True)
class Anchors:
    """Anchors, the vectors with which prompts are compared.

    Attributes:
        vectors: [n, d] float32.
        domains: domain of each anchor.
    """

    vectors: Tensor
    domains: Sequence[str]

    def nearest(self, feature: Tensor) -> str:
        """Return the domain of the anchor of highest cosine to a feature [d], the first among equals."""
        return self.domains[int(F.cosine_similarity(self.vectors, feature[None], dim=-1).argmax())]


@settings("method")
class KNNSSD(StoppedDraft):
    """Drafting with the layer set of the domain whose anchors are nearest to the prompt's states."""

    searched = True

    search: SearchSettings
    """Settings of each domain's search, or in `reuse` the name of a set for every domain."""
    name: Name = "knn_ssd"
    calibration: Calibration = 16
    """m, prompts of each domain for anchors and search."""
    anchors: Literal["centroids_per_task", "nearest_samples", "global_kmeans"] = "centroids_per_task"
    """Anchors: the centroids of K-means within each domain; the prompts nearest to these centroids; or, with clusters
    from K-means over all prompts as domains (`cluster-0`, ...), the prompts nearest to each cluster's centroid."""
    anchors_per_domain: Count = 10
    """k; a domain with fewer prompts gets as many anchors as it has."""
    groups: Count | None = None
    """n, clusters of `global_kmeans`; null: as many as the prompts have domains."""
    pooling: Literal["mean", "last_token"] = "mean"
    """Feature of a prompt from the last layer's states: their mean over the positions, or the last token's."""
    search_prompts: Count = 8
    """Largest number of a domain's prompts that its search uses."""
    search_on: Literal["first", "representative"] = "first"
    """Prompts of a search: the first ones, or representative ones (nearest to the centroids of as many clusters)."""
    draft_len: DraftLen = 12
    stop_below: StopBelow = 0.8
    reuse_prefix: ReusePrefix = False

    def __post_init__(self) -> None:
        if self.groups is not None and self.anchors != "global_kmeans":
            raise ConfigError("method.groups", self.groups, "null without method.anchors=global_kmeans")
        if isinstance(self.search.reuse, str):
            expected = "null, or a name for every domain: {gsm8k: NAME, ...}"
            raise ConfigError("method.search.reuse", self.search.reuse, expected)
        self._stop = DraftStop(self.draft_len, self.stop_below, window=self._window)

    def check(self, dims: ModelDims) -> None:
        """Ask for the states before the final norm; draft with the full model until `prepare`.

        Raises:
            ConfigError: a published set that is unknown or for another model.
        """
        self.search.check(dims.n_layers)
        self.taps = Taps(prefill=(2 * dims.n_layers,), prompt_end=1 if self.pooling == "last_token" else None)
        self._layer_set = LayerSet.full(dims.n_layers)
        self._sets: dict[str, LayerSet] = {}

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Compute anchors and a set for every domain.

        Raises:
            ConfigError: a domain without a set to reuse, or an unknown set.
        """
        self._probe = probe
        states = (probe.prompt_states(sample.prompt, self.taps.prefill)[0] for sample in samples)
        features = torch.stack([self._feature(state) for state in states])
        domains, grouping = [sample.domain for sample in samples], None
        if self.anchors == "global_kmeans":
            grouping = Clusters.fit(features, self.groups or len(set(domains)))
            domains = [f"cluster-{label}" for label in grouping.labels]
        members = {domain: [i for i, d in enumerate(domains) if d == domain] for domain in dict.fromkeys(domains)}
        self._check_names(members)
        vectors, owners = [], []
        for domain, rows in members.items():
            anchors = self._anchors(features, rows, grouping)
            vectors.append(anchors)
            owners += [domain] * len(anchors)
            self._sets[domain] = self._set(domain, [samples[i] for i in rows], features[rows], probe)
        self._anchor = Anchors(torch.cat(vectors), owners)
        self._shown = {
            "vectors": features.float().cpu().numpy(),
            "labels": np.array([sample.domain for sample in samples]),
            "anchors": torch.cat(vectors).float().cpu().numpy(),
            "anchor_labels": np.array(owners),
        }

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the features [n, d] of the calibration prompts, the anchors, and their domains (Figures 5, 6)."""
        return {"vectors": self._shown}

    def start(self, prefill: Prefill) -> None:
        """Route the prompt to a domain; nothing else is kept between prompts."""
        assert prefill.hidden is not None, "the taps ask for it"
        self._layer_set = self._sets[self._anchor.nearest(self._feature(prefill.hidden[0]))]

    def _feature(self, states: Tensor) -> Tensor:
        """Return the feature [d] float32 of a prompt's states [P, d] before the final norm."""
        if self.pooling == "last_token":
            states = states[-1:]
        return self._probe.final_norm(states).mean(0)

    def _check_names(self, domains: Mapping[str, Any]) -> None:
        """Refuse a reuse that leaves a domain without a set."""
        if isinstance(self.search.reuse, Mapping):
            missing = [domain for domain in domains if domain not in self.search.reuse]
            if missing:
                expected = f"a set for every domain of the run; there is none for {', '.join(missing)}"
                raise ConfigError("method.search.reuse", dict(self.search.reuse), expected)

    def _anchors(self, features: Tensor, rows: list[int], grouping: Clusters | None) -> Tensor:
        """Return the anchors [k, d] of the domain with these rows of features [n, d]."""
        members = features[rows]
        if grouping is not None:
            centre = grouping.centres[grouping.labels[rows[0]]]
            return members[_order(members, centre)[: self.anchors_per_domain]]
        clusters = Clusters.fit(members, self.anchors_per_domain)
        return members[clusters.representatives(members)] if self.anchors == "nearest_samples" else clusters.centres

    def _set(self, domain: str, samples: Sequence[Sample], features: Tensor, probe: Probe) -> LayerSet:
        """Search or look up the set of a domain, by its samples and their features [n, d]."""
        if isinstance(self.search.reuse, Mapping):
            return named_set(self.search.reuse[domain], probe)
        chosen = list(range(min(self.search_prompts, len(samples))))
        if self.search_on == "representative":
            chosen = Clusters.fit(features, self.search_prompts).representatives(features)
        return search(self.search, probe, [samples[i] for i in chosen], domain, self._window).best.layer_set


@dataclass(frozen=True)
class Clusters:
    """Clusters of features, by K-means.

    Attributes:
        centres: [k, d], with device and dtype of the features.
        labels: cluster of each feature.
    """

    centres: Tensor
    labels: list[int]

    @classmethod
    def fit(cls, features: Tensor, k: int) -> Clusters:
        """Return min(k, n) clusters of features [n, d], with the seed of the released code."""
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning

        means = KMeans(min(k, len(features)), random_state=KMEANS_SEED, n_init=KMEANS_RUNS)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", ConvergenceWarning
            )  # equal prompts give fewer clusters, and some anchors twice
            means.fit(features.cpu().numpy().astype(np.float64))
        return cls(torch.from_numpy(means.cluster_centers_).to(features), means.labels_.tolist())

    def representatives(self, features: Tensor) -> list[int]:
        """Return the member nearest to the centre of each non-empty cluster, as indices of features [n, d]."""
        indices = []
        for label, centre in enumerate(self.centres):
            rows = [i for i, cluster in enumerate(self.labels) if cluster == label]
            if rows:
                indices.append(rows[_order(features[rows], centre)[0]])
        return indices


def _order(features: Tensor, centre: Tensor) -> list[int]:
    """Return the indices of features [n, d] by Euclidean distance from a centre [d], stable among equals."""
    return torch.linalg.vector_norm(features - centre, dim=-1).sort(stable=True).indices.tolist()
