"""KNN-SSD's figures: streams by task, last hidden vectors, our layer sets next to the released ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from ssd_bench.papers.figures import cases, layers, streams, style
from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.papers.printed import reported
from ssd_bench.papers.printed.reported import released_set
from ssd_bench.results.definitions import main_set

VECTORS = "vectors.npz"
"""File in a record's folder: `vectors` [n, d], `labels` [n]; optionally `anchors` [k, d] and `anchor_labels` [k]."""

PERPLEXITY = 30
"""t-SNE's usual number of neighbours, also the fewest vectors per domain: else neighbours are of other domains."""

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Vectors:
    """Features of prompts and anchors [n, d] and [k, d], k perhaps 0, with their domains."""

    vectors: Array
    labels: list[str]
    anchors: Array
    anchor_labels: list[str]


def load_vectors(path: Path) -> Vectors:
    """Read a run's `VECTORS`."""
    with np.load(path) as file:
        vectors, labels = file["vectors"], [str(label) for label in file["labels"]]
        anchors = file["anchors"] if "anchors" in file else vectors[:0]
        owners = [str(label) for label in file["anchor_labels"]] if "anchors" in file else []
    return Vectors(vectors, labels, anchors, owners)


def nearest_accuracy(vectors: Array, labels: list[str]) -> float:
    """Return the share of vectors whose nearest neighbour by cosine has the same label (leave-one-out 1-NN)."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    names = np.asarray(labels)
    return float((names[similarity.argmax(axis=1)] == names).mean())


def tsne_embedding(vectors: Array) -> Array:
    """Embed the vectors in two dimensions [n, 2], by t-SNE on cosine distances with a fixed seed."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, metric="cosine", init="random", random_state=0, method="exact")
    return np.asarray(tsne.fit_transform(vectors.astype(np.float64)))


def scatter_figure(features: Vectors) -> tuple[Figure, str]:
    """Draw the vectors by t-SNE, a mark per domain, hollow for anchors; return figure and caption."""
    points, anchors, alone = _plane_positions(features)
    figure, body = common.new_figure(style.COLUMN, 3.3)
    axes = body.subplots()
    labels, owners = np.asarray(features.labels), np.asarray(features.anchor_labels)
    domains = common.unique(features.labels)
    for i, label in enumerate(domains):
        mark = style.MARKS[i % len(style.MARKS)]
        look = common.point_style(mark) | {"markersize": 3}
        axes.plot(*points[labels == label].T, label=streams.domain_title(label), **look)
    for i, owner in enumerate(common.unique(features.anchor_labels)):
        # a cluster without a domain has a number
        shape = style.MARKS[domains.index(owner) % len(style.MARKS)].marker if owner in domains else f"${i + 1}$"
        look = {"color": "black", "linestyle": "", "marker": shape, "markersize": 6.5, "markeredgewidth": 0.6}
        axes.plot(*anchors[owners == owner].T, markerfacecolor="none", label="_" if i else "anchor", **look)
    axes.set_xlabel("t-SNE, first dimension (no unit)")
    axes.set_ylabel("t-SNE, second dimension (no unit)")
    axes.set_xticks([])
    axes.set_yticks([])
    accuracy = nearest_accuracy(features.vectors, features.labels)
    caption = (
        f"Last hidden vectors of calibration prompts, {_per_domain(features.labels)}, with "
        f"{features.vectors.shape[1]} dimensions. For {accuracy:.1%} of them, the nearest other vector by cosine has "
        "the same domain (leave-one-out 1-NN)."
    )
    if len(anchors):
        caption += f" {alone} of {len(anchors)} anchors equal the vector of a single prompt."
    return figure, caption


def _per_domain(labels: Sequence[str]) -> str:
    """Return the number of vectors per domain as text: `40 of each of 5 domains`."""
    counts = sorted(Counter(labels).values())
    spread = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    return f"{spread} of each of {len(counts)} domains"


def _plane_positions(features: Vectors) -> tuple[Array, Array, int]:
    """Return vectors and anchors in the plane, and the number of anchors equal to a vector, whose position they get."""
    if not len(features.anchors):
        return tsne_embedding(features.vectors), features.anchors, 0
    distances = cdist(features.anchors, features.vectors)
    alone = distances.min(axis=1) < 1e-4 * np.linalg.norm(features.anchors, axis=1)
    points = tsne_embedding(np.concatenate([features.vectors, features.anchors[~alone]]))
    anchors = points[distances.argmin(axis=1)]
    anchors[~alone] = points[len(features.vectors) :]
    return points[: len(features.vectors)], anchors, int(alone.sum())


def figure5(replication: Replication) -> Figure | NotDrawable:
    """Draw Figures 5 and 6: last hidden vectors of the prompts behind the anchors."""
    cell = next((cell for cell in replication.shown_cells() if (cell.path / VECTORS).is_file()), None)
    if cell is None:
        return NotDrawable("No run stored the vectors of its calibration prompts.")
    features = load_vectors(cell.path / VECTORS)
    if min(Counter(features.labels).values()) < PERPLEXITY:
        settings = reported.settings(replication.experiment.paper, replication.experiment.exhibit)
        in_paper = "; ".join(settings.loc[settings["key"] == "n_vectors", "value"])
        return NotDrawable(
            f"This figure needs at least {PERPLEXITY} vectors of each domain; the run has "
            f"{_per_domain(features.labels)}{f' (paper: {in_paper})' if in_paper else ''}."
        )
    figure, caption = scatter_figure(features)
    return common.finish(figure, replication, [cell], caption, sample=f"{len(features.labels)} vectors")


def figure9(replication: Replication) -> Figure | NotDrawable:
    """Draw Figures 9 and 10: sets of the run's domains next to the released sets of the paper's model."""
    cell = replication.shown_cells()[0]
    domains = common.unique(str(name) for name in streams.stream_rows(cell.run)["domain"])
    paper_model = replication.cells[0]["model"]
    run_panels, released_panels = [], []
    for name in domains:
        title, layer_set = streams.domain_title(name), main_set(cell.run, name)
        run_panels.append(layers.Panel.of(title, layer_set, "nothing drafted", bool(cell.exclusion)))
        released_panels.append(layers.Panel.of(title, released_set("knn_ssd", paper_model, title), "none released"))
    figure, body = common.new_figure(style.PAGE, layers.map_height(len(domains)) + 0.25)
    model = cell["model"].removesuffix(" parameters")  # next to the title of another panel
    run_panels[0] = replace(run_panels[0], title=f"This run, {model}\n{run_panels[0].title}")
    released_panels[0] = replace(released_panels[0], title=f"Released, {paper_model}\n{released_panels[0].title}")
    layers.draw_maps(body, [run_panels, released_panels])
    note = "Left: for each domain, the set that drafted most of its tokens."
    return common.finish(figure, replication, [cell], note)


figure1 = figure7 = partial(streams.stream_figure, quantities=("speedup",), dashed="KNN-SSD")
figure2 = streams.transfer_figure
figure4 = partial(streams.stream_figure, quantities=("M", "alpha"), dashed="KNN-SSD")
figure6 = figure5
figure8 = cases.stream_outputs_figure
figure10 = figure9
