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

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ssd_bench.papers.claims.claims import STATISTICS, Claim
from ssd_bench.papers.claims.comparisons import ClaimComparison, Side, cell_name
from ssd_bench.papers.claims.statistics import count_loops, count_sets
from ssd_bench.papers.ours import values
from ssd_bench.papers.ours.cells import Cell
from ssd_bench.papers.runs.scale import scaled_settings
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
    lacks = [next(_lacks(claim, comparison), None) for comparison in comparisons]
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
    for name in (model.name for model in models if model.name in claim.planted):
        reason = f"planted by training: the recipe of {name} causes this effect"
        return Lack(reason, f"a model that was not trained for it, such as {name}_plain")
    return None


def _lacks(claim: Claim, comparison: ClaimComparison) -> Iterator[Lack]:
    """Yield why a comparison is out of scope."""
    for cell in comparison.cells:
        yield from _short_lengths(claim.needs, cell)
    for cell in comparison.cells:
        gpus = cell.header.provenance.device.gpus if cell.header.model.device.startswith("cuda") else ()
        if len(gpus) < claim.needs.get("gpus", 0):
            yield Lack("out of scope: needs a GPU; on a CPU the memory is that of the process", "runs on a GPU")
    for side in comparison.sides if claim.required_sets else ():
        yield from _short_search(claim, side, side is comparison.subject)
    for cell in comparison.cells:
        yield from _cut_search(claim, cell)
        loops, prompts = run_scope(cell).loops, cell.summary.n_prompts
        if not STATISTICS[claim.statistic].any_answer and loops and prompts - loops < claim.prompts:
            reason = f"out of scope: {cell_name(cell)}: answers to {loops} of {prompts} prompts loop"
            needed = f"{claim.prompts} prompts without a loop"
            yield Lack(f"{reason}; {needed} are required", f"at least {needed}")


def _short_lengths(needs: Mapping[str, int], cell: Cell) -> Iterator[Lack]:
    """Yield why a run's outputs and prompts are too short, unless either length is enough."""
    needed = {key: needs[key] for key in LENGTHS if key in needs}
    found: dict[str, float] = {key: getattr(run_scope(cell), key) for key in needed}
    if needed and all(found[key] < needed[key] for key in needed):
        means = " and ".join(f"{LENGTHS[key]} of {found[key]:,.0f} tokens" for key in needed)
        least = " or ".join(f"{LENGTHS[key]} of at least {needed[key]:,} tokens" for key in needed)
        yield Lack(f"out of scope: {cell_name(cell)} has {means} on average; {least} are needed", f"runs with {least}")


def _short_search(claim: Claim, side: Side, is_subject: bool) -> Iterator[Lack]:
    """Yield why a side's search scored too few layer sets; a reference needs no search."""
    scored = [run_scope(cell).sets for cell in side.cells]
    searched = [sets for sets in scored if sets or is_subject or STATISTICS[claim.statistic].of_search]
    required = claim.required_sets
    if searched and min(searched) < required:
        scope = "out of scope: " if "sets" in claim.needs else ""
        reason = f"{scope}the search of {side.name} scored {count_sets(min(searched))}"
        needed = f"runs in which each search scores at least {required} sets"
        yield Lack(f"{reason}; at least {required} are required", needed)


def _cut_search(claim: Claim, cell: Cell) -> Iterator[Lack]:
    """Yield why a search was cut short, where that decides the effect."""
    statistic, scope, name = STATISTICS[claim.statistic], run_scope(cell), cell_name(cell)
    scaled = scaled_settings(cell.overrides, cell.paper_overrides)
    cut = [text for text in scaled if text.startswith(LENGTHS_OF_SEARCH)]
    short = Lack(f"out of scope: the scale cut the search of {name} short: {', '.join(cut)}", "searches in full")
    if claim.statistic == "search_s" and cut:
        yield short
    if statistic.any_set or statistic.of_search or "search" in {*claim.of, *claim.over} or not scope.shares_search:
        return
    if not scope.search_ended:
        yield Lack(f"out of scope: the search of {name} had not ended by the run's last prompt", "longer runs")
    # a search that ended below its limit ended by itself
    if scope.sets < CUT_SETS and any(scope.sets >= int(text.split()[1]) for text in cut):
        yield short


def rests_on_searches(claim: Claim, comparisons: Sequence[ClaimComparison]) -> bool:
    """Return whether seeds are a claim's sample: a run gives one number, or its prompts share one search's sets."""
    statistic = STATISTICS[claim.statistic]
    if statistic.any_set:
        return False
    cells = [cell for comparison in comparisons for cell in comparison.cells]
    return statistic.once_per_run or any(run_scope(cell).shares_search for cell in cells)
