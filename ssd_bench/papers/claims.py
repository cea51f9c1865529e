"""What the papers claim, as statements that data can refute: `claims.yaml` of each paper, written before the data.

A claim compares two sides, or one side with a limit, by one statistic on the cells of an exhibit. Its effect is taken
where all that the sides do not name is equal (model, task, method, setting; a part of a stream is its task), and pooled
over these places: the geometric mean of ratios, the mean of differences and values. Each label of its own side is a
place; where the other side has several at one place, their best counts.

Of the effect's 95 % interval over prompts, widened by `noise` at both ends, a claim with `at_least` says

* *holds*: the effect reaches `at_least`, and the interval lies above `none`, what no effect would be; where `at_least`
  is below that, as of "loses at most 5 %", it reaches no lower than `at_least`;
* *fails*: the whole interval is below `at_least`;
* *cannot say*: anything else, fewer than `prompts` prompts in a cell, and cells that are void: nothing was searched, or
  the trace is another cell's.

With `at_most` likewise from above: it holds where the whole interval is at or below it, fails where it is above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import yaml

from ssd_bench.errors import ConfigError
from ssd_bench.papers import grid
from ssd_bench.papers.grid import Job
from ssd_bench.papers.reported import numbers
from ssd_bench.papers.rooms import Room, rooms


@dataclass(frozen=True)
class Statistic:
    """A number that a claim is about; `samples` has what it is made of.

    Attributes:
        says: what it is.
        noise: what a moment's noise does to it: that of a "speedup", that of a "rate", or "" for nothing.
        lower: whether less is better.
        pooled: whether the runs of all methods give one number together.
        once: a run has one, whatever its prompts.
    """

    says: str
    noise: str = ""
    lower: bool = False
    pooled: bool = False
    once: bool = False


STATISTICS = {
    "speedup": Statistic("decode only, over AR on the same prompts", noise="speedup"),
    "speedup_e2e": Statistic(
        "end to end: with prefill and online search, over AR on the same prompts", noise="speedup"
    ),
    "alpha": Statistic("accepted over drafted tokens"),
    "M": Statistic("tokens a verification"),
    "overhead": Statistic("share of the decode time that the method's own work takes", lower=True),
    "search_s": Statistic(
        "seconds of the search, offline or online, of runs that searched", noise="rate", lower=True, once=True
    ),
    "attention_skipped": Statistic("share of attentions that drafting skips, over draft steps"),
    "mlp_skipped": Statistic("share of MLPs that drafting skips, over draft steps"),
    "matchness": Statistic("the online search's best score", once=True),
    "tpt_correlation": Statistic(
        "Pearson's r of predicted TPT with tokens/s, a point a prompt and method", pooled=True
    ),
    "alpha_correlation": Statistic("Pearson's r of α with tokens/s, a point a prompt and method", pooled=True),
    "routing": Statistic("share of prompts that were drafted with the set of their own domain"),
}
PARTS = {  # of a run, where a side is not whole runs
    "context": ("first third", "last third"),  # of the contexts that its draft steps have
    "search": ("first", "last"),  # sets that the online search scored; what drafted before the first counts as none
    "domain": ("own", "other"),  # prompts of the domain that the set was searched on, or of the others
}
EFFECTS = ("ratio", "difference", "value")
STATISTIC = "statistic"  # of a side: another one than the claim's


@dataclass(frozen=True)
class Claim:
    """One claim of a paper; from `exhibit` on what its file has under `test`.

    Attributes:
        id: `paper/name`.
        says: a sentence.
        section: where the paper says it.
        theirs: ids, with wildcards, of the numbers that the paper gives for it; none where it only draws it.
        exhibit: whose cells decide it, as an experiment.
        statistic: one of `STATISTICS`.
        effect: one of `EFFECTS`.
        of: axis or part -> labels of the side that the claim is about; or `STATISTIC`.
        over: likewise of the other side; none of a value.
        cells: axis -> labels; the others of the exhibit do not count.
        at_least, at_most: the smallest effect that counts, or the largest; one of them.
        none: what no effect would be: 1 of a ratio, 0 of a difference, of a value as it says.
        noise: by which identical runs may differ, in the unit of the effect.
        prompts: of each cell at least.
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
    """All claims, paper by paper.

    Raises:
        ConfigError: a `claims.yaml` that does not fit; names file, claim and key.
    """
    return tuple(claim for room in rooms() for claim in read(room))


def read(room: Room) -> list[Claim]:
    """Those of one paper, none where it has no `claims.yaml`; as `claims`."""
    path = room.folder / "claims.yaml"
    if not path.is_file():
        return []
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [_checked(room, name, said) for name, said in content.items()]


def jobs(claim: Claim) -> list[Job]:
    """Whose cells decide a claim: of its exhibit, with the labels of `cells` and of one of the two sides."""
    sides = [side for side in (claim.of, claim.over) if side] or [{}]
    return [
        job
        for job in grid.load(claim.exhibit).jobs
        if _labelled(job, claim.cells) and any(_labelled(job, side) for side in sides)
    ]


def _labelled(job: Job, side: Mapping[str, Sequence[str]]) -> bool:
    return all(job.labels[axis] in labels for axis, labels in side.items() if axis in grid.AXES)


def _checked(room: Room, name: str, said: Mapping[str, Any]) -> Claim:
    where = f"{room.name}/claims.yaml {name}"
    said = {key: value for key, value in said.items() if key != "test"} | said.get("test", {})
    known = {one.name: one.default is MISSING and one.default_factory is MISSING for one in fields(Claim)}
    needed = {key for key, must in known.items() if must} - {"id"}
    if not needed <= said.keys() <= known.keys() - {"id"}:
        raise ConfigError(where, sorted(said), f"of {', '.join(known)}; {', '.join(sorted(needed))} at least")
    claim = Claim(**{**said, "id": f"{room.latest}/{name}", "exhibit": f"{room.name}_{said['exhibit']}"})
    ids = [number.id for number in numbers()]
    checks: Sequence[tuple[str, object, str]] = (
        ("says", claim.says.endswith("."), "a sentence"),
        ("theirs", all(any(fnmatchcase(i, glob) for i in ids) for glob in claim.theirs), "ids of reported numbers"),
        ("exhibit", claim.exhibit in grid.names(), "an exhibit with runs, as table2"),
        ("statistic", claim.statistic in STATISTICS, f"one of {', '.join(STATISTICS)}"),
        ("effect", claim.effect in EFFECTS, f"one of {', '.join(EFFECTS)}"),
        (
            "over",
            bool(claim.over) == (claim.effect != "value"),
            "another side of a ratio or difference, none of a value",
        ),
        ("at_least", (claim.at_least is None) != (claim.at_most is None), "a number where at_most is none"),
        (
            "none",
            (claim.none is None) == (claim.effect != "value" or claim.at_least is None),
            "a number of a value at_least",
        ),
        ("noise", claim.noise >= 0, "at least 0"),
        ("prompts", claim.prompts >= 2, "at least 2"),
    )
    for key, fine, allowed in checks:
        if not fine:
            raise ConfigError(f"{where} {key}", getattr(claim, key), allowed)
    for key in ("of", "over", "cells"):
        for axis, labels in getattr(claim, key).items():
            labelled = {job.labels.get(axis, "") for job in grid.load(claim.exhibit).jobs}
            there = {*STATISTICS} if axis == STATISTIC else {*PARTS.get(axis, labelled)}
            if not set(labels) <= there:
                raise ConfigError(f"{where} {key}.{axis}", labels, f"of {', '.join(sorted(there))}")
    return claim
