"""First questions of visitors, answered from runs of real models and the register of replications.

Speedups are modelled (a run's work at the reference machine's costs, with this model's acceptance) unless the text
says measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ssd_bench.papers.audit.register import ReplicationReport, shares
from ssd_bench.papers.figures import forest
from ssd_bench.papers.figures.shared import prompts_per_run, unique
from ssd_bench.papers.ours.cells import Replication, ShownCell
from ssd_bench.papers.ssd_bench.drafts import LAYERS, kind_of
from ssd_bench.papers.ssd_bench.real import SPEEDUPS
from ssd_bench.report.facts import Fact
from ssd_bench.results.effect import Effect, pair_effect, pooled_effect
from ssd_bench.results.quantity import QUANTITIES
from ssd_bench.results.shared_prompts import shared_prompts
from ssd_bench.results.text import costs_text

WITH, WITHOUT = SPEEDUPS
MEASURED = "speedup"
RIVALS = "SWIFT", "ConfLayers"
"""Methods whose order is disputed: arXiv 2608.28846 against the ConfLayers paper."""


def questions(real: Replication | None, timed: Replication | None, reports: Sequence[ReplicationReport]) -> list[Fact]:
    """Return the answers; without runs of the experiment `real.REAL`, only the register's.

    Args:
        timed: runs of `real.REAL_MEASURED`, whose measured speedups are listed.
    """
    answers: list[Fact | None] = []
    if real is not None:
        cells, measured = ([] if runs is None else _cells(runs) for runs in (real, timed))
        for model in unique(cell["model"] for cell in cells):
            of_model, own = ([cell for cell in every if cell["model"] == model] for every in (cells, measured))
            answers += [_fastest_kind(of_model, own, real.command)]
            answers += [answer(of_model, real.command) for answer in (_layers, _rivals)]
    return [*filter(None, answers), _register(reports)]


def _cells(runs: Replication) -> list[ShownCell]:
    cells = [cell for cell in runs.shown_cells() if cell.is_readable and not cell.exclusion]
    return [cell for cell in cells if cell.summary.speedup_modelled.value is not None]


def _fastest_kind(cells: Sequence[ShownCell], timed: Sequence[ShownCell], command: str) -> Fact | None:
    """Return the fastest method of each kind of draft, by mean speedup over the tasks that every method ran."""
    methods = unique(cell["method"] for cell in cells)
    tasks = set.intersection(*({c["task"] for c in cells if c["method"] == method} for method in methods))
    cells = [cell for cell in cells if cell["task"] in tasks]
    best: dict[str, tuple[str, list[ShownCell]]] = {}
    for method in forest.ranked(cells, WITH):
        of_method = [cell for cell in cells if cell["method"] == method]
        best.setdefault(kind_of(of_method[0]), (method, of_method))
    if len(best) < 2:
        return None
    (kind, (fastest, winner)), *others = best.items()
    listed = [f"{other} {_range(own)}" + ("" if name == other else f" (“{name}”)") for other, (name, own) in others]
    tied = [name for _, (name, own) in others if _overlap(winner, own)]
    return Fact(
        f"{kind}: {_range(winner)}, modelled",
        f"the speed of plain decoding (AR) on {cells[0]['model']}, by task, by the method “{fastest}”. The "
        f"best of each other kind: {', '.join(listed)}. Intervals overlap on every task with "
        f"{' and '.join(f'“{name}”' for name in tied) or 'none'}. {_measured(timed)}",
        _basis(cells),
        command,
        "Which kind of draft is fastest?",
    )


def _measured(cells: Sequence[ShownCell]) -> str:
    """Return the measured speedups of methods that other work did not disturb, the fastest first."""
    disturbed = {cell["method"] for cell in cells if cell.timing.contaminated}
    quiet = [cell for cell in cells if cell["method"] not in disturbed]
    if not quiet:
        return "No run without disturbances was timed."
    by_method = {name: [cell for cell in quiet if cell["method"] == name] for name in forest.ranked(quiet, MEASURED)}
    listed = ", ".join(f"“{name}” {_range(own, MEASURED)}" for name, own in by_method.items())
    rest = "; other work disturbed the times of the other methods" if disturbed else ""
    devices, tasks = unique(cell.header.machine_name for cell in quiet), unique(cell["task"] for cell in quiet)
    where = f"{' and '.join(devices)} ({', '.join(tasks)}; {prompts_per_run(quiet)})"
    return f"Measured on {where}: {listed}{rest}."


def _overlap(a: Sequence[ShownCell], b: Sequence[ShownCell]) -> bool:
    """Return whether the intervals of two methods overlap on every task that both have."""
    ends = [{cell["task"]: _ends(cell) for cell in cells} for cells in (a, b)]
    pairs = [(ends[0][task], ends[1][task]) for task in ends[0].keys() & ends[1].keys()]
    return all(one[0] <= other[1] and other[0] <= one[1] for one, other in pairs)


def _ends(cell: ShownCell) -> tuple[float, float]:
    """Return the ends of a speedup's interval; without one, its value twice."""
    number = cell.summary.speedup_modelled
    low, high = (number.value if end is None else end for end in (number.low, number.high))
    return low or math.nan, high or math.nan


def _layers(cells: Sequence[ShownCell], command: str) -> Fact | None:
    """Return how many layer-skipping methods are faster than AR, with and without search time."""
    skipping = [cell for cell in cells if kind_of(cell) == LAYERS]
    if not skipping:
        return None
    faster = {n: [cell for cell in skipping if (getattr(cell.summary, n).low or 0) > 1] for n in SPEEDUPS}
    slower = sum((cell.summary.speedup_modelled.high or math.inf) < 1 for cell in skipping)
    named = ", ".join(f"{cell['method']} on {cell['task']}" for cell in faster[WITH])
    return Fact(
        f"{len(faster[WITH])} of {len(skipping)}",
        f"pairs of a method and a task, {named or 'none'}, have their whole interval above plain decoding (AR), and "
        f"{slower} below: modelled, on {cells[0]['model']}. With the time of their searches for layers left out "
        f"{len(faster[WITHOUT])} are above. Methods: {', '.join(unique(cell['method'] for cell in skipping))}.",
        _basis(skipping),
        command,
        "Do methods that skip layers beat plain decoding?",
    )


def _rivals(cells: Sequence[ShownCell], command: str) -> Fact | None:
    """Return the effect of the second of `RIVALS` over the first, prompt by prompt, over common tasks."""
    runs = {(cell["task"], cell["method"]): cell for cell in cells if cell["method"] in RIVALS}
    tasks = [task for task in unique(cell["task"] for cell in cells) if all((task, name) in runs for name in RIVALS)]
    pairs = [(runs[task, RIVALS[0]], runs[task, RIVALS[1]]) for task in tasks]
    effects = {number: _paired(pairs, number) for number in SPEEDUPS} if pairs else {}
    searching, frozen = (effects.get(number) for number in SPEEDUPS)
    if searching is None or frozen is None:
        return None
    return Fact(
        f"{_faster(searching)} if search time counts, {_faster(frozen)} if not",
        f"on {cells[0]['model']}, {', '.join(tasks)}: {RIVALS[1]} has {searching} times the speed of {RIVALS[0]}, "
        f"modelled, on the same prompts; {frozen} times with the time of both searches for layers left out.",
        _basis([cell for pair in pairs for cell in pair]),
        command,
        f"Which is faster, {' or '.join(RIVALS)}?",
    )


def _faster(effect: Effect) -> str:
    low, high = effect.interval()
    return RIVALS[1] if low > 1 else RIVALS[0] if high < 1 else "neither"


def _paired(pairs: Sequence[tuple[ShownCell, ShownCell]], number: str) -> Effect | None:
    """Return a number of the second runs over the first's, pooled over pairs on common prompts."""
    quantity = QUANTITIES[number]
    shared = [shared_prompts(([a.run], [b.run])) for a, b in pairs]
    effects = [pair_effect(quantity, [*part.prompts], part.columns(quantity)) for part in shared]
    return pooled_effect(quantity, effects, [{}] * len(effects))[0]


def _register(reports: Sequence[ReplicationReport]) -> Fact:
    got = shares(reports)
    return Fact(
        f"{np.median(got):.0f} % of the gain",
        f"over plain decoding that a paper prints came back to third parties, so that a printed 2× is "
        f"{1 + np.median(got) / 100:.2f}×: the median of {len(got)} reports on the paper's models. They range from "
        f"{min(got):.0f} to {max(got):.0f} %; below 0 is slower than plain decoding.",
        "Reports that somebody chose to publish, not a sample of all attempts.",
        "python -m ssd_bench audit replications",
        "How much of a published speedup comes back elsewhere?",
    )


def _range(cells: Sequence[ShownCell], number: str = WITH) -> str:
    values = [float(getattr(cell.summary, number).value or math.nan) for cell in cells]
    texts = [f"{value:.2f}" for value in (min(values), max(values))]
    return " to ".join(dict.fromkeys(texts)) + "×"


def _basis(cells: Sequence[ShownCell]) -> str:
    """Return the basis of the numbers: costs, tasks, prompts, and outputs equal to AR's."""
    names = ("lossless_identical", "lossless_tie", "n_pairs")
    same, ties, of = (sum(getattr(cell.summary, name) for cell in cells) for name in names)
    costs = " and ".join(unique(costs_text(cell.summary.modelled_on) for cell in cells))
    tied = f", {ties} differ{'s' if ties == 1 else ''} where two tokens nearly tie" if ties else ""
    return (
        f"Modelled at {costs}; {', '.join(unique(cell['task'] for cell in cells))}, "
        f"{prompts_per_run(cells)}; {same} of {of} outputs equal AR's{tied}."
    )
