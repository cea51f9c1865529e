"""Scope of a claim: lengths, searches, models and devices of the runs that can decide it.

A claim about long outputs says nothing about short ones, and a search that scored one layer set did not choose. So a
comparison counts only if its runs have what the claim `needs`; else the claim is undecided.

A search must have scored the required number of layer sets on the claim's subject, and on the other side if that
searched. An online search scores one set per event, an offline search one per evaluation. A search whose sets are kept
for later prompts must have ended within the run, unless the claim is about the search itself; if stopped by a lower
limit of the scale, it has not ended below `CUT_SETS` scored sets. A claim on search time needs searches not cut short
by the scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ssd_bench.papers.claims.claims import STATISTICS, Claim
from ssd_bench.papers.claims.comparisons import ClaimComparison, Side, cell_name
from ssd_bench.papers.claims.statistics import count_loops, count_sets
from ssd_bench.papers.ours import values
from ssd_bench.papers.ours.cells import Cell
from ssd_bench.papers.ours.ran import scaled_settings
from ssd_bench.results.evidence import search_ended, shares_search
from ssd_bench.results.models import ModelRan
from ssd_bench.results.rows import arm_rows

LENGTHS_OF_SEARCH = ("search.iterations", "max_steps", "max_iterations")
"""Options that limit the sets scored by a search."""
CUT_SETS = 100
"""Layer sets that a search stopped by a scale must have scored: a tenth of the 1,000 of most papers."""
LENGTHS = {"new_tokens": "outputs", "prompt_tokens": "prompts"}


class Lack(NamedTuple):
    """Why runs cannot decide a claim, and the runs that could."""

    reason: str
    decided_by: str


class RunScope(NamedTuple):
    """Facts of a run that decide its scope: mean lengths, layer sets scored, its search, prompts that loop."""

    new_tokens: float
    prompt_tokens: float
    sets: int
    shares_search: bool
    search_ended: bool
    loops: int


def run_scope(cell: Cell) -> RunScope:
    def measure() -> RunScope:
        run = cell.run
        rows = arm_rows(run.prompts, "method")
        new_tokens, prompt_tokens = (float(rows[name].mean()) for name in ("new_tokens", "prompt_len"))
        shared, ended = shares_search(run), search_ended(run)
        return RunScope(new_tokens, prompt_tokens, values.scored_sets(run), shared, ended, count_loops(cell))

    return cell.remember("scope", measure)


def split_scope(claim: Claim, comparisons: Sequence[ClaimComparison]) -> tuple[list[ClaimComparison], Lack | None]:
    """Return the comparisons in a claim's scope, and why the first of the others is not."""
    lacks = [_lack(claim, comparison) for comparison in comparisons]
    in_scope = [comparison for comparison, lack in zip(comparisons, lacks) if lack is None]
    return in_scope, next(filter(None, lacks), None)


def model_lack(claim: Claim, models: Sequence[ModelRan]) -> Lack | None:
    """Return why these models are too few for a claim that compares models; else None."""
    needed = claim.needs.get("models", 1)
    if len(models) >= needed:
        return None
    ran = ", ".join(model.name for model in models)
    return Lack(f"the claim compares at least {needed} models; the runs have {len(models)}: {ran}", f"{needed} models")


def planted_lack(claim: Claim, models: Sequence[ModelRan]) -> Lack | None:
    """Return why a model's training decides a claim's effect; else None."""
    planted = [model.name for model in models if model.name in claim.planted]
    if not planted:
        return None
    name = planted[0]
    return Lack(
        f"planted by training: the recipe of {name} causes this effect",
        f"a model that was not trained for it, such as {name}_plain",
    )


def _lack(claim: Claim, comparison: ClaimComparison) -> Lack | None:
    """Return why a comparison is out of scope; else None."""
    cells = comparison.cells
    lacks = [lack(claim.needs, cell) for lack in (_length_lack, _gpu_lack) for cell in cells]
    if claim.required_sets:
        lacks += [_search_lack(claim, side, side is comparison.subject) for side in comparison.sides]
    lacks += [lack(claim, cell) for cell in cells for lack in (_unended_lack, _loops_lack)]
    return next(filter(None, lacks), None)


def _length_lack(needs: Mapping[str, int], cell: Cell) -> Lack | None:
    """Return why a run's outputs or prompts are too short; None if either length is enough."""
    needed = {key: needs[key] for key in LENGTHS if key in needs}
    if not needed:
        return None
    found: dict[str, float] = {key: getattr(run_scope(cell), key) for key in needed}
    if any(found[key] >= needed[key] for key in needed):
        return None
    name = cell_name(cell)
    means = " and ".join(f"{LENGTHS[key]} of {found[key]:,.0f} tokens" for key in needed)
    least = " or ".join(f"{LENGTHS[key]} of at least {needed[key]:,} tokens" for key in needed)
    return Lack(f"out of scope: {name} has {means} on average; {least} are needed", f"runs with {least}")


def _gpu_lack(needs: Mapping[str, int], cell: Cell) -> Lack | None:
    gpus = len(cell.header.provenance.device.gpus) if cell.header.model.device.startswith("cuda") else 0
    if gpus >= needs.get("gpus", 0):
        return None
    return Lack("out of scope: needs a GPU; on a CPU the memory is that of the process", "runs on a GPU")


def _search_lack(claim: Claim, side: Side, is_subject: bool) -> Lack | None:
    """Return why a side's search scored too few layer sets; else None, also for a reference without a search."""
    scored = [run_scope(cell).sets for cell in side.cells]
    searched = [sets for sets in scored if sets or is_subject or STATISTICS[claim.statistic].of_search]
    required = claim.required_sets
    if not searched or min(searched) >= required:
        return None
    scope = "out of scope: " if "sets" in claim.needs else ""
    return Lack(
        f"{scope}the search of {side.name} scored {count_sets(min(searched))}; at least {required} are required",
        f"runs in which each search scores at least {required} sets",
    )


def _unended_lack(claim: Claim, cell: Cell) -> Lack | None:
    """Return why a search was cut short where that decides the effect; else None."""
    statistic = STATISTICS[claim.statistic]
    name = cell_name(cell)
    scaled = scaled_settings(cell.overrides, cell.paper_overrides)
    cut = [text for text in scaled if text.startswith(LENGTHS_OF_SEARCH)]
    short = Lack(f"out of scope: the scale cut the search of {name} short: {', '.join(cut)}", "searches in full")
    if claim.statistic == "search_s" and cut:
        return short
    if statistic.any_set or statistic.of_search or "search" in {*claim.of, *claim.over}:
        return None
    scope = run_scope(cell)
    if not scope.shares_search:
        return None
    if not scope.search_ended:
        return Lack(f"out of scope: the search of {name} had not ended by the run's last prompt", "longer runs")
    # a search that ended below its limit ended by itself
    limits = [int(text.split()[1]) for text in cut]
    return short if scope.sets < CUT_SETS and any(scope.sets >= limit for limit in limits) else None


def _loops_lack(claim: Claim, cell: Cell) -> Lack | None:
    """Return why too few prompts have answers without loops; else None."""
    loops, prompts = run_scope(cell).loops, cell.summary.n_prompts
    if STATISTICS[claim.statistic].any_answer or not loops or prompts - loops >= claim.prompts:
        return None
    reason = f"out of scope: {cell_name(cell)}: answers to {loops} of {prompts} prompts loop"
    needed = f"{claim.prompts} prompts without a loop"
    return Lack(f"{reason}; {needed} are required", f"at least {needed}")


def rests_on_searches(claim: Claim, comparisons: Sequence[ClaimComparison]) -> bool:
    """Return whether seeds are a claim's sample: a run gives one number, or its prompts share one search's sets."""
    statistic = STATISTICS[claim.statistic]
    if statistic.any_set:
        return False
    cells = [cell for comparison in comparisons for cell in comparison.cells]
    return statistic.once_per_run or any(run_scope(cell).shares_search for cell in cells)
