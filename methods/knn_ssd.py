"""KNN-SSD: one layer set per domain; a prompt drafts with the set of its nearest anchor's domain (Song et al., 2025).

A prompt's feature is its prefill's hidden states after the final norm, pooled over the prompt.

1. Before the run, K-means over the features of a domain's calibration prompts gives its anchors.
2. Before the run, Self-SD's search (`methods.layer_search`) gives every domain a layer set.
3. The anchor most similar (cosine) to a prompt's feature determines the domain.
4. Its set drafts at most 12 tokens, until a token less likely than 0.8 (§4; mbsong/KNN-SSD).

`methods/fidelity.md` has the differences between the paper and the released code, the switch of each, and what the
presets follow.
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

KMEANS_SEED, KMEANS_RUNS = 42, 10  # values of knn_utils.py:51-58


@settings("method")
class KNNSSD(StoppedDraft):
    """Drafting with the layer set of the nearest anchor's domain."""

    searched = True

    search: SearchSettings
    """Settings of every domain's search; `reuse` (domain: name of a set) takes stored or published sets instead."""
    name: Name = "knn_ssd"
    calibration: Calibration = 16
    """m, calibration prompts per domain, for anchors and search."""
    anchors: Literal["centroids_per_task", "nearest_samples", "global_kmeans"] = "centroids_per_task"
    """Choice of anchors. `centroids_per_task`: centroids of K-means within each domain. `nearest_samples`: the prompts
    nearest to them. `global_kmeans`: K-means over all prompts; its clusters (`cluster-0`, ...) replace the domains, and
    the prompts nearest to a centroid are its anchors."""
    anchors_per_domain: Count = 10
    """k, anchors per domain, at most one per prompt."""
    groups: Count | None = None
    """n, clusters of `global_kmeans`; null: the number of domains."""
    pooling: Literal["mean", "last_token"] = "mean"
    """Feature of a prompt: mean of the last layer's states over all positions, or the last token's state."""
    search_prompts: Count = 8
    """Most prompts on which a domain's search scores its sets."""
    search_on: Literal["first", "representative"] = "first"
    """Prompts of a search: the domain's first, or those nearest to the centroids of `search_prompts` clusters."""
    draft_len: DraftLen = 12
    stop_below: StopBelow = 0.8
    reuse_prefix: ReusePrefix = False

    def __post_init__(self) -> None:
        if self.groups is not None and self.anchors != "global_kmeans":
            raise ConfigError("method.groups", self.groups, "null, or method.anchors=global_kmeans")
        if isinstance(self.search.reuse, str):
            expected = "null, or a name for every domain: {gsm8k: NAME, ...}"
            raise ConfigError("method.search.reuse", self.search.reuse, expected)
        self._stop = DraftStop(self.draft_len, self.stop_below, reading=self._reading)

    def check(self, dims: ModelDims) -> None:
        """Tap the states before the final norm; draft with the full model until `prepare`.

        Raises:
            ConfigError: an unknown published set, or one for another model.
        """
        self.search.check(dims.n_layers)
        # boundary 2L: the stream that enters the final norm
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
        domains, clusters = [sample.domain for sample in samples], None
        if self.anchors == "global_kmeans":  # Eq. 2: clusters of all prompts take the place of the domains
            clusters = Clusters.fit(features, self.groups or len(set(domains)))
            domains = [f"cluster-{label}" for label in clusters.labels]
        rows_by_domain = {name: [i for i, d in enumerate(domains) if d == name] for name in dict.fromkeys(domains)}
        self._check_reuse(rows_by_domain)  # before the first search, which is long
        anchors: list[Tensor] = []
        self._anchor_domains: list[str] = []
        for domain, rows in rows_by_domain.items():
            anchors += self._make_anchors(features, rows, clusters)
            self._anchor_domains += [domain] * (len(anchors) - len(self._anchor_domains))
            self._sets[domain] = self._find_set(domain, [samples[i] for i in rows], features[rows], probe)
        self._anchors = torch.stack(anchors)
        self._figure_arrays = {
            "vectors": features.float().cpu().numpy(),
            "labels": np.array([sample.domain for sample in samples]),
            "anchors": self._anchors.float().cpu().numpy(),
            "anchor_labels": np.array(self._anchor_domains),
        }

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the calibration prompts' features [n, d], the anchors, and all domains (Figures 5, 6)."""
        return {"vectors": self._figure_arrays}

    def start(self, prefill: Prefill) -> None:
        assert prefill.hidden is not None, "check() sets the taps"
        self._layer_set = self._sets[self._anchor_domains[nearest(self._anchors, self._feature(prefill.hidden[0]))]]

    def _feature(self, states: Tensor) -> Tensor:
        """Return the feature [d] float32 of states [P, d] before the final norm."""
        if self.pooling == "last_token":
            states = states[-1:]  # the mean over one position is its state
        return self._probe.final_norm(states).mean(0)

    def _check_reuse(self, domains: Mapping[str, Any]) -> None:
        if isinstance(self.search.reuse, Mapping):
            missing = [domain for domain in domains if domain not in self.search.reuse]
            if missing:
                expected = f"a set for every domain of the run; missing: {', '.join(missing)}"
                raise ConfigError("method.search.reuse", dict(self.search.reuse), expected)

    def _make_anchors(self, features: Tensor, rows: list[int], global_clusters: Clusters | None) -> Tensor:
        """Return a domain's anchors [k, d].

        Args:
            features: [n, d] of all prompts.
            rows: indices of the domain's prompts.
            global_clusters: clusters that replace the domains; None: domains are the tasks'.
        """
        domain_features = features[rows]
        if global_clusters is not None:
            centre = global_clusters.centres[global_clusters.labels[rows[0]]]  # all rows are of one cluster
            return domain_features[_order_by_distance(domain_features, centre)[: self.anchors_per_domain]]
        clusters = Clusters.fit(domain_features, self.anchors_per_domain)
        if self.anchors == "nearest_samples":
            return domain_features[clusters.representatives(domain_features)]
        return clusters.centres

    def _find_set(self, domain: str, samples: Sequence[Sample], features: Tensor, probe: Probe) -> LayerSet:
        """Look up a domain's set in `search.reuse`, or search it on some of its samples, with features [n, d]."""
        if isinstance(self.search.reuse, Mapping):
            return named_set(self.search.reuse[domain], probe)
        indices = list(range(min(self.search_prompts, len(samples))))
        if self.search_on == "representative":
            indices = Clusters.fit(features, self.search_prompts).representatives(features)
        return search(self.search, probe, [samples[i] for i in indices], domain, self._reading).best.layer_set


@dataclass(frozen=True)
class Clusters:
    """Result of K-means over features: centroids [k, d] in their device and dtype, and each feature's cluster."""

    centres: Tensor
    labels: list[int]

    @classmethod
    def fit(cls, features: Tensor, k: int) -> Clusters:
        """Cluster features [n, d] into min(k, n) clusters, with the seed of the released code."""
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning

        kmeans = KMeans(min(k, len(features)), random_state=KMEANS_SEED, n_init=KMEANS_RUNS)
        with warnings.catch_warnings():
            # scikit-learn warns if features are equal: it then finds fewer clusters, and some centres are equal
            warnings.simplefilter("ignore", ConvergenceWarning)
            kmeans.fit(features.cpu().numpy().astype(np.float64))
        return cls(torch.from_numpy(kmeans.cluster_centers_).to(features), kmeans.labels_.tolist())

    def representatives(self, features: Tensor) -> list[int]:
        """Return the index of the feature nearest to the centre, for each non-empty cluster of `features` [n, d]."""
        indices = []
        for label, centre in enumerate(self.centres):
            rows = [i for i, cluster in enumerate(self.labels) if cluster == label]
            if rows:
                indices.append(rows[_order_by_distance(features[rows], centre)[0]])
        return indices


def nearest(anchors: Tensor, feature: Tensor) -> int:
    """Return the index of the anchor [n, d] most similar (cosine) to a feature [d]."""
    return int(F.cosine_similarity(anchors, feature[None], dim=-1).argmax())


def _order_by_distance(features: Tensor, centre: Tensor) -> list[int]:
    return torch.linalg.vector_norm(features - centre, dim=-1).sort(stable=True).indices.tolist()
