"""Claims of the papers, as statements that data can refute: `claims.yaml` of each paper, written before the data.

A claim compares two sides, or one side with a threshold, by one statistic of the cells of a table or figure. A
comparison has the same model, task, method and setting on both sides except for those that the sides name (a part of a
stream counts as its task). Each comparison has an effect; the effects are then pooled: geometric mean of ratios,
arithmetic mean of differences and values. Each label of the side that the claim is about gives a separate comparison;
if the other side has several cells in one comparison, the best of them counts.

A statistic of speed is computed from modelled times, at the costs of one reference machine (`metrics.modelled`), if the
records of all cells count their work; the effect by the measured times is shown next to it. Otherwise it is computed
from the times measured on the machine of the runs.

The verdict follows from the effect and its 95 % interval over prompts, widened by `noise` at both ends unless times are
modelled: the same record always gives the same modelled times. A claim with `at_least`

* *holds* if the effect reaches `at_least` and the interval lies above `none`, the value of no effect; if `at_least` is
  below `none` ("loses at most 5 %"), the interval must lie at or above `at_least` instead;
* *fails* if the whole interval is below `at_least`;
* *cannot say* otherwise, or if a cell has fewer than `prompts` prompts or is excluded (no search ran, or its trace
  duplicates another cell's).

A claim with `at_most` holds if the whole interval is at or below it, and fails if the whole interval is above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from ssd_bench.conf import read_yaml
from ssd_bench.errors import ConfigError
from ssd_bench.papers.printed.catalogue import PaperFolder, paper_folders
from ssd_bench.papers.printed.reported import numbers
from ssd_bench.papers.runs import grid
from ssd_bench.papers.runs.grid import Job
from ssd_bench.papers.runs.scale import Scale


@dataclass(frozen=True)
class ClaimStatistic:
    """A statistic that claims use; `statistics` defines it on the records.

    Attributes:
        meaning: definition in words.
        timed: whether it is judged by modelled times where all records have them.
        variation: field of the run-to-run variation that applies to it if the times are measured: "speedup" or "rate";
            "" if none does.
        lower_is_better: whether a smaller value is better.
        pooled: whether the runs of all methods together give one number.
        once_per_run: whether a run gives one number, however many prompts it has.
    """

    meaning: str
    timed: bool = False
    variation: str = ""
    lower_is_better: bool = False
    pooled: bool = False
    once_per_run: bool = False


STATISTICS = {
    "speedup": ClaimStatistic("decode only, over AR on the same prompts", timed=True, variation="speedup"),
    "speedup_e2e": ClaimStatistic(
        "end to end: with prefill and online search, over AR on the same prompts", timed=True, variation="speedup"
    ),
    "alpha": ClaimStatistic("accepted over drafted tokens"),
    "M": ClaimStatistic("emitted tokens per verification"),
    "overhead": ClaimStatistic("method overhead as a share of the decode time", timed=True, lower_is_better=True),
    "search_s": ClaimStatistic(
        "duration of the search in seconds, offline or online",
        timed=True,
        variation="rate",
        lower_is_better=True,
        once_per_run=True,
    ),
    "attention_skipped": ClaimStatistic("share of attention sublayers skipped while drafting, mean over draft steps"),
    "mlp_skipped": ClaimStatistic("share of MLP sublayers skipped while drafting, mean over draft steps"),
    "matchness": ClaimStatistic("best score of the online search", once_per_run=True),
    "tpt_correlation": ClaimStatistic(
        "Pearson's r of predicted TPT and tokens/s, one point per prompt and method", pooled=True
    ),
    "alpha_correlation": ClaimStatistic("Pearson's r of α and tokens/s, one point per prompt and method", pooled=True),
    "routing": ClaimStatistic("share of prompts drafted with the layer set of their own domain"),
}
PARTS = {  # parts of a run that a side may be restricted to
    "context": ("first third", "last third"),  # draft steps by context length, in thirds of the run's range
    "search": ("first", "last"),  # draft steps with the first or last set that the online search scored
    "domain": ("own", "other"),  # prompts of the domain that the layer set was searched on, or of all other domains
}
EFFECTS = ("ratio", "difference", "value")
STATISTIC = "statistic"  # key of a side with another statistic than the claim's


@dataclass(frozen=True)
class Claim:
    """One claim of a paper; the fields from `exhibit` on are under `test` in its file.

    Attributes:
        id: `paper/name`.
        says: a sentence.
        section: section of the paper that makes the claim.
        theirs: ids, with wildcards, of the paper's numbers for it; empty if the paper prints no number.
        exhibit: name of the experiment whose cells decide it.
        statistic: one of `STATISTICS`.
        effect: one of `EFFECTS`.
        of: axis or part -> labels of the side that the claim is about; or `STATISTIC`.
        over: axis or part -> labels of the other side; empty for a value.
        cells: axis -> labels; other cells of the exhibit do not count.
        at_least, at_most: the threshold: smallest or largest effect that the claim allows; exactly one of them.
        none: value of no effect: 1 for a ratio, 0 for a difference, stated in the file for a value.
        noise: expected difference between identical runs, in the unit of the effect; none with modelled times.
        prompts: smallest number of prompts in each cell.
    """

    id: str
    says: str
    section: str
    theirs: Sequence[str]
    exhibit: str
    statistic: str
    effect: str
    noise: float
    of: Mapping[str, Sequence[str]] = field(default_factory=dict)
    over: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)
    at_least: float | None = None
    at_most: float | None = None
    none: float | None = None
    prompts: int = 20


@cache
def claims() -> tuple[Claim, ...]:
    """Return all claims, paper by paper.

    Raises:
        ConfigError: a `claims.yaml` that does not fit; names file, claim and key.
    """
    return tuple(claim for folder in paper_folders() for claim in read_claims(folder))


def read_claims(folder: PaperFolder) -> list[Claim]:
    """Return the claims of one paper; an empty list if it has no `claims.yaml`.

    Raises:
        ConfigError: as `claims`.
    """
    path = folder.path / "claims.yaml"
    if not path.is_file():
        return []
    content = read_yaml(path)
    return [_parse_claim(folder, name, entry) for name, entry in content.items()]


def claim_jobs(claim: Claim) -> list[Job]:
    """Return the jobs whose cells decide a claim: jobs with labels of `cells` and of either side."""
    sides = [side for side in (claim.of, claim.over) if side] or [{}]
    return [
        job
        for job in grid.load(claim.exhibit).jobs
        if _has_labels(job, claim.cells) and any(_has_labels(job, side) for side in sides)
    ]


def claim_ranks(scale: Scale) -> dict[tuple[str, ...], int]:
    """Return the overrides at a scale of every job that a claim reads -> index of the first claim that reads it."""
    ranks: dict[tuple[str, ...], int] = {}
    for rank, claim in enumerate(claims()):
        for job in claim_jobs(claim):
            ranks.setdefault(scale.map_job(job), rank)
    return ranks


def _has_labels(job: Job, side: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a job has a label of the side on each axis that the side names."""
    return all(job.labels[axis] in labels for axis, labels in side.items() if axis in grid.AXES)


def _parse_claim(folder: PaperFolder, name: str, content: Mapping[str, Any]) -> Claim:
    """Return the claim that an entry of `claims.yaml` describes.

    Raises:
        ConfigError: a key or value does not fit; names file, claim and key.
    """
    location = f"{folder.name}/claims.yaml {name}"
    content = {key: value for key, value in content.items() if key != "test"} | content.get("test", {})
    is_required = {field.name: field.default is MISSING and field.default_factory is MISSING for field in fields(Claim)}
    required = {key for key, must in is_required.items() if must} - {"id"}
    if not required <= content.keys() <= is_required.keys() - {"id"}:
        raise ConfigError(
            location,
            sorted(content),
            f"keys among {', '.join(is_required)}, with at least {', '.join(sorted(required))}",
        )
    claim = Claim(**{**content, "id": f"{folder.latest}/{name}", "exhibit": f"{folder.name}_{content['exhibit']}"})
    number_ids = [number.id for number in numbers()]
    checks: Sequence[tuple[str, object, str]] = (
        ("says", claim.says.endswith("."), "a sentence"),
        (
            "theirs",
            all(any(fnmatchcase(number_id, pattern) for number_id in number_ids) for pattern in claim.theirs),
            "ids of reported numbers",
        ),
        ("exhibit", claim.exhibit in grid.names(), "a table or figure with runs, such as table2"),
        ("statistic", claim.statistic in STATISTICS, f"one of {', '.join(STATISTICS)}"),
        ("effect", claim.effect in EFFECTS, f"one of {', '.join(EFFECTS)}"),
        (
            "over",
            bool(claim.over) == (claim.effect != "value"),
            "the other side of a ratio or difference, and nothing for a value",
        ),
        ("at_least", (claim.at_least is None) != (claim.at_most is None), "a number, if at_most is not set"),
        (
            "none",
            (claim.none is None) == (claim.effect != "value" or claim.at_least is None),
            "a number, for a value with at_least",
        ),
        ("noise", claim.noise >= 0, "at least 0"),
        ("prompts", claim.prompts >= 2, "at least 2"),
    )
    for key, fits, expected in checks:
        if not fits:
            raise ConfigError(f"{location} {key}", getattr(claim, key), expected)
    for key in ("of", "over", "cells"):
        for axis, labels in getattr(claim, key).items():
            labelled = {job.labels.get(axis, "") for job in grid.load(claim.exhibit).jobs}
            known_labels = {*STATISTICS} if axis == STATISTIC else {*PARTS.get(axis, labelled)}
            if not set(labels) <= known_labels:
                raise ConfigError(f"{location} {key}.{axis}", labels, f"labels among {', '.join(sorted(known_labels))}")
    return claim
