"""Skipped shares of sublayers by source: a paper, its authors' script, or their layer sets; none is assumed."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from ssd_bench.conf import config_file, read_yaml
from ssd_bench.papers.printed.catalogue import PaperFolder
from ssd_bench.papers.printed.reported import released_set, share_skipped


@dataclass(frozen=True)
class Share:
    """Skipped share of all 2L sublayers, and its source."""

    value: float
    source: str


def stated_share(
    folder: PaperFolder, model: str, method: str, n_layers: int, printed: float | None = None
) -> Share | None:
    """Return the share that a method's drafts skip in a paper's results; None if no source states it.

    Args:
        folder: `imposed` has the sources.
        model: in the paper's words.
        printed: skip ratio r printed with the drafts, over the sublayers in `folder.skip_ratio`.
    """
    if printed is not None:
        counted = 2 * (n_layers - 2 if folder.skip_ratio == "inner" else n_layers)
        return Share(round(printed * counted) / (2 * n_layers), folder.imposed["drafts"])
    entry = folder.imposed.get("skipped", {}).get(method)
    if entry is None or model not in entry.get("models", [model]):
        return None
    if "preset" in entry:
        value = _preset_share(entry["preset"], n_layers)
    else:
        names = entry["sets"]
        released = all(released_set(folder.name, model, name) for name in names)
        value = fmean(share_skipped(folder.name, model, name) for name in names) if released else None
    return None if value is None else Share(value, entry["source"])


def _preset_share(name: str, n_layers: int) -> float | None:
    path = config_file("method", name)
    assert path is not None, f"paper.yaml names {name}, which is no choice of conf/method"
    blocks = read_yaml(path)["skip_by_layers"].get(n_layers)
    return None if blocks is None else float(blocks / n_layers)
