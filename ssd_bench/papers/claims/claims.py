"""Claims of the papers, as statements that data can refute: `claims.yaml` of each paper.

Verdicts say if their claim was written after the runs.

A claim compares two sides, or one side with a threshold, by one statistic of the cells of a table or figure. A
comparison has the same model, task, method and setting on both sides except for those named by the sides (a part of a
stream counts as its task). Each comparison has an effect; effects are pooled: geometric mean of ratios, arithmetic mean
of differences and values. With `every` the worst effect counts instead. Each label of the claim's subject gives a
separate comparison; if the other side has several cells in it, the best counts.

A statistic of speed uses modelled times, at the costs of one reference machine (`results.modelled`); the effect by
measured times is shown next to it.

The verdict follows from the effect and its 95 % interval (`effect`), widened by `noise` at both ends unless times are
modelled: a record always gives the same modelled times. The first verdict that applies counts:

* *not run*: the needed runs do not exist: none at all, too few models (`needs.models`), or none that records the
  statistic;
* *cannot say*: a cell is excluded (no search ran, or its trace duplicates another cell's), sides were timed on
  different machines, no comparison is in the claim's scope (`scope` has the rule), a cell has fewer than `prompts`
  prompts, the effect rests on fewer than `SEARCHES` searches, or the training of the model decides it (`planted`);
* *holds*: the whole interval reaches the threshold: it lies at or above `at_least`, or at or below `at_most`;
* *equivalent*: the 90 % interval lies inside the `margin` around `none`, the value of no effect (two one-sided tests at
  5 %). Only for claims that state a difference: `at_least` >= `none`, or a ratio with `at_most` < 1;
* *fails*: the whole interval is below `at_least`, or above `at_most`;
* *cannot say* otherwise.

On a real model a verdict on speed needs both times: *depends on the machine* if they decide differently, *cannot say*
if only one decides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from fnmatch import filter as filter_names
from functools import cache
from pathlib import Path
from typing import Any

from ssd_bench.conf import read_yaml
from ssd_bench.errors import ConfigError
from ssd_bench.papers.printed.catalogue import PaperFolder, paper_folders
from ssd_bench.papers.printed.reported import numbers
from ssd_bench.papers.runs import grid
from ssd_bench.papers.runs.grid import Job
from ssd_bench.papers.runs.scale import Scale
from ssd_bench.results.effect import equivalence_bounds

PROMPTS = 8
"""Fewest prompts on which a claim is judged, unless it states another number."""
SEARCHES = 5
"""Fewest searches, each with another seed, on which a claim about searched layer sets is judged."""
RULE_WRITTEN = "2026-11-27T23:45:00+00:00"
"""Time (UTC, ISO 8601) at which the verdicts' rule got its present form; change it with the rule."""


@dataclass(frozen=True)
class ClaimStatistic:
    """Statistic of claims; `statistics` defines it on the records.

    Attributes:
        meaning: in words.
        timed: judged by modelled times where all records have them.
        variation: field of the run-to-run variation of its measured times: "speedup" or "rate"; "" for none.
        pooled: the runs of all methods together give one number, unless a claim is `per_method`.
        once_per_run: a run gives one number, however many prompts it has.
        of_search: it measures a search, which must have scored at least two layer sets.
        is_share: a share of prompts, with an exact binomial interval over all comparisons.
        is_count: a count of outputs over all comparisons, without interval.
        any_answer: looping answers count, too.
        any_set: independent of the layer set that a search found.
        unrecorded: why no record has it, or "".
    """

    meaning: str
    timed: bool = False
    variation: str = ""
    lower_is_better: bool = False
    pooled: bool = False
    once_per_run: bool = False
    of_search: bool = False
    is_share: bool = False
    is_count: bool = False
    any_answer: bool = False
    any_set: bool = False
    unrecorded: str = ""


STATISTICS = {
    name: ClaimStatistic(**entry) for name, entry in read_yaml(Path(__file__).with_name("statistics.yaml")).items()
}
PARTS = {  # parts of a run that a side may be restricted to
    "context": ("first third", "last third"),  # draft steps by context length, in thirds of the run's range
    "search": ("first", "last"),  # draft steps with the first or last set that the online search scored
    "stream": ("first half", "last half"),  # prompts by their position in the run
    "domain": ("own", "other"),  # prompts of the domain that the layer set was searched on, or of all other domains
}
EFFECTS = ("ratio", "difference", "distance", "value")
STATISTIC = "statistic"  # key of a side with another statistic than the claim's
NEEDS = ("models", "new_tokens", "prompt_tokens", "sets", "gpus")
MARGIN = 0.03
"""Default margin of equivalence of ratios and speedups: within 1 / 1.03 to 1.03 of no effect."""


@dataclass(frozen=True)
class Claim:
    """Claim of a paper; fields from `exhibit` on are under `test` in its file.

    Attributes:
        id: `paper/name`.
        theirs: ids, with wildcards, of the paper's numbers for it; may be empty.
        exhibit: experiment whose cells decide it.
        statistic, effect: of `STATISTICS` and `EFFECTS`.
        of: axis or part -> labels of the claim's subject; or `STATISTIC`.
        over: axis or part -> labels of the other side; empty for a value.
        cells: axis -> labels; other cells of the exhibit do not count.
        at_least, at_most: threshold: smallest or largest allowed effect; exactly one of them.
        none: value of no effect: 1 for a ratio, 0 for a difference, in the file for a value.
        noise: expected difference between identical runs, in the effect's unit.
        prompts: fewest prompts in each cell. Below eight, the coverage of our intervals was not measured.
        margin: largest difference that counts as no effect; None: `MARGIN` for ratios and speedups.
        needs: smallest values for keys of `NEEDS`: different models; mean tokens of outputs or prompts (of both, one is
            enough); layer sets scored by each search; GPUs.
        planted: names of models whose training decides the effect.
        every: the worst comparison counts, not the mean.
        per_method: compute a statistic that pools methods for each.
        given: statistic in which a reference must reach the subject to count; "": all count.
        written: time (UTC, ISO 8601) of the present statement, section and test.
        sha256: first 12 digits of the SHA-256 of statement, section and test, and of the rule's time.
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
    prompts: int = PROMPTS
    margin: float | None = None
    needs: Mapping[str, int] = field(default_factory=dict)
    planted: Sequence[str] = ()
    every: bool = False
    per_method: bool = False
    given: str = ""
    refuted_by: str = ""
    written: str = ""
    sha256: str = ""

    @property
    def is_ratio(self) -> bool:
        return self.effect == "ratio" or self.statistic.startswith("speedup")

    @property
    def no_effect(self) -> float:
        return self.none if self.none is not None else 1.0 if self.effect == "ratio" else 0.0

    @property
    def threshold(self) -> float:
        bound = self.at_least if self.at_least is not None else self.at_most
        assert bound is not None, "a claim has one of the two"
        return bound

    @property
    def is_pooled(self) -> bool:
        """Whether all methods' runs together give one number."""
        return STATISTICS[self.statistic].pooled and not self.per_method

    @property
    def required_sets(self) -> int:
        """Fewest layer sets that a search must have scored; 0: any."""
        measures_search = STATISTICS[self.statistic].of_search or "search" in {*self.of, *self.over}
        return self.needs.get("sets", 2 if measures_search else 0)

    @property
    def equivalence(self) -> tuple[float, float] | None:
        """Effects between which sides count as equivalent; None for a claim that states no difference."""
        states_difference = (
            self.at_least >= self.no_effect if self.at_least is not None else self.is_ratio and self.threshold < 1
        )
        margin = self.margin if self.margin is not None else MARGIN if self.is_ratio else None
        if not states_difference or margin is None:
            return None
        return equivalence_bounds(margin, self.no_effect, self.is_ratio)


@cache
def claims() -> tuple[Claim, ...]:
    """Return all claims, paper by paper.

    Raises:
        ConfigError: an invalid `claims.yaml`; names file, claim and key.
    """
    return tuple(claim for folder in paper_folders() for claim in read_claims(folder))


def read_claims(folder: PaperFolder) -> list[Claim]:
    """Return the claims of one paper; empty without `claims.yaml`.

    Raises:
        ConfigError: as `claims`.
    """
    path = folder.path / "claims.yaml"
    content = read_yaml(path) if path.is_file() else {}
    return [_parse_claim(folder, name, entry) for name, entry in content.items()]


def claim_jobs(claim: Claim) -> list[Job]:
    """Return the jobs that decide a claim: with labels of `cells` and of either side."""
    sides = [side for side in (claim.of, claim.over) if side] or [{}]
    return [
        job
        for job in grid.load(claim.exhibit).jobs
        if has_labels(job.labels, claim.cells) and any(has_labels(job.labels, side) for side in sides)
    ]


def claim_ranks(scale: Scale) -> dict[tuple[str, ...], int]:
    """Return every job's overrides at a scale -> index of the first claim that reads it."""
    ranks: dict[tuple[str, ...], int] = {}
    for rank, claim in enumerate(claims()):
        for job in claim_jobs(claim):
            ranks.setdefault(scale.map_job(job), rank)
    return ranks


def has_labels(labels: Mapping[str, str], side: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a job or cell with these labels is of a claim's side."""
    return all(labels[axis] in allowed for axis, allowed in side.items() if axis in grid.AXES)


def _parse_claim(folder: PaperFolder, name: str, content: Mapping[str, Any]) -> Claim:
    location, sha256 = f"{folder.name}/claims.yaml {name}", _digest(content)
    content = {key: value for key, value in content.items() if key != "test"} | content.get("test", {})
    is_required = {field.name: field.default is MISSING and field.default_factory is MISSING for field in fields(Claim)}
    required = {key for key, must in is_required.items() if must} - {"id"} | {"refuted_by", "written"}
    if not required <= content.keys() <= is_required.keys() - {"id", "sha256"}:
        raise ConfigError(
            location,
            sorted(content),
            f"keys among {', '.join(is_required)}, with at least {', '.join(sorted(required))}",
        )
    identity = {"id": f"{folder.latest}/{name}", "exhibit": f"{folder.name}_{content['exhibit']}"}
    claim = Claim(**{**content, **identity, "sha256": sha256})
    _check_claim(claim, location)
    return claim


def _digest(entry: Mapping[str, Any]) -> str:
    content = {key: entry.get(key) for key in ("says", "section", "test")} | {"rule": RULE_WRITTEN}
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:12]


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _check_claim(claim: Claim, location: str) -> None:
    """Refuse a claim that no data could decide."""
    number_ids = [number.id for number in numbers()]
    checks: Sequence[tuple[str, object, str]] = (
        ("says", claim.says.endswith("."), "a sentence"),
        ("written", _is_time(claim.written), "a time with its offset from UTC, in ISO 8601"),
        ("refuted_by", claim.refuted_by.endswith("."), "a sentence"),
        ("theirs", all(filter_names(number_ids, pattern) for pattern in claim.theirs), "ids of reported numbers"),
        ("exhibit", claim.exhibit in grid.names(), "a table or figure with runs, such as table2"),
        ("statistic", claim.statistic in STATISTICS, f"one of {', '.join(STATISTICS)}"),
        ("effect", claim.effect in EFFECTS, f"one of {', '.join(EFFECTS)}"),
        (
            "over",
            bool(claim.over) == (claim.effect != "value"),
            "the other side of a ratio, difference or distance, and nothing for a value",
        ),
        ("at_least", (claim.at_least is None) != (claim.at_most is None), "a number, if at_most is not set"),
        (
            "none",
            (claim.none is None) == (claim.effect != "value" or claim.at_least is None),
            "a number, for a value with at_least",
        ),
        ("noise", claim.noise >= 0, "at least 0"),
        ("prompts", claim.prompts >= 2, "at least 2"),
        (
            "needs",
            claim.needs.keys() <= {*NEEDS} and all(type(value) is int and value > 0 for value in claim.needs.values()),
            f"integers >= 1 for {', '.join(NEEDS)}",
        ),
        ("margin", claim.margin is None or claim.margin > 0, "a number > 0"),
        ("given", not claim.given or claim.given in STATISTICS, f"one of {', '.join(STATISTICS)}"),
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
