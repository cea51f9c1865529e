"""Checks of KnapSpec, Table 2: TPT against measured speedups, the limit of Eq. 4, and claims about its maxima."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ssd_bench.papers.audit.arithmetic import (
    CONSISTENT,
    CONTRADICTION,
    EPSILON,
    IMPOSSIBLE,
    ROUNDING,
    UNCLEAR,
    Check,
    new_check,
)
from ssd_bench.papers.printed.reported import Number, find_number, find_numbers

METHODS = ("DEL", "SWIFT", "CLaSp", "KnapSpec")
EQ4 = "TPT = (1 - a^(g+1)) / (1 - a) / (g t_draft + t_target) (§3.2 Eq. 4)"


def checks() -> Iterator[Check]:
    """Yield the checks that `checks.yaml` cannot state."""
    for speedup in find_numbers("knapspec", "Table 2", metric="speedup"):
        if speedup.method == "AR":
            yield new_check(speedup, "baseline", "AR is its own baseline", 1.0, "definition")
            continue
        yield check_direction(speedup)
        yield from check_limits(speedup)
        if speedup.method == "KnapSpec":
            yield from check_highest(speedup)
    yield from check_factor_ten()
    yield check_highest_ratio()
    yield from check_prose()


def _cell_number(cell: Number, metric: str, method: str | None = None) -> Number:
    return find_number(
        "knapspec", "Table 2", model=cell.model, task=cell.task, method=method or cell.method, metric=metric
    )


def check_direction(speedup: Number) -> Check:
    """Check that TPT (tokens per unit of time) and measured speedup are on the same side of AR.

    Opposite sides are "unclear". Above AR's (DEL): Eq. 4 has no overhead, so a run may be slower. Below (CLaSp, SWIFT):
    the paper prints no draft length of TPT, and drafts stop early (§3.5), so a run beats Eq. 4 at a long length.
    """
    ratio = _cell_number(speedup, "tpt").value / _cell_number(speedup, "tpt", "AR").value
    opposite = (ratio < 1 and speedup.value > 1) or (ratio > 1 and speedup.value < 1)
    below = ratio < 1
    text = f"TPT, {'of no stated draft length' if below else 'without overhead'}, is {ratio:.3f} times AR's"
    side = "TPT below AR" if below else "TPT above AR"
    return new_check(speedup, side, text, ratio, EQ4, UNCLEAR if opposite else CONSISTENT)


def check_limits(speedup: Number) -> Iterator[Check]:
    """Check TPT and speedup against 1 / (1 - a), the tokens per step of an unlimited draft without cost."""
    alpha, tpt, plain = _cell_number(speedup, "alpha"), _cell_number(speedup, "tpt"), _cell_number(speedup, "tpt", "AR")
    limit, highest = 1 / (1 - alpha.value), 1 / (1 - min(alpha.value + alpha.half, 1 - EPSILON))
    ratio, lowest = tpt.value / plain.value, (tpt.value - tpt.half) / (plain.value + plain.half)
    text = f"{ratio:.3f} times AR's; at alpha {alpha.printed}, drafting without cost gives at most {limit:.3f} times"
    fits = ROUNDING if ratio > limit + EPSILON else CONSISTENT
    yield new_check(tpt, "limit", text, limit * plain.value, EQ4, IMPOSSIBLE if lowest > highest + EPSILON else fits)
    text = f"at alpha {alpha.printed}, drafting without cost gives at most {limit:.3f}"
    fits = ROUNDING if speedup.value > limit + EPSILON else CONSISTENT
    over = speedup.value - speedup.half > highest + EPSILON
    yield new_check(speedup, "limit", text, limit, EQ4, IMPOSSIBLE if over else fits)


def check_highest(cell: Number) -> Iterator[Check]:
    """Check that KnapSpec has the highest TPT and speedup of the cell (§5.1)."""
    for number in (cell, _cell_number(cell, "tpt")):
        competitors = [_cell_number(number, number.metric, method) for method in ("AR", *METHODS[:-1])]
        second = max(competitors, key=lambda n: n.value)
        text = f"the best of the other methods is {second.method} with {second.printed}"
        fits = CONSISTENT if number.value > second.value else CONTRADICTION
        yield new_check(number, "highest", text, second.value, "§5.1", fits)


def check_factor_ten() -> Iterator[Check]:
    """Find acceptance rates far below the method's other cells, but within their range if multiplied by ten."""
    for method in METHODS:
        cells = find_numbers("knapspec", "Table 2", method=method, metric="alpha")
        for cell in cells:
            other_rates = [n.value for n in cells if n is not cell]
            tenfold = 10 * cell.value
            if cell.value < min(other_rates) / 2 and median(other_rates) / 2 < tenfold <= max(other_rates):
                rate_range = f"{min(other_rates):.3f} to {max(other_rates):.3f}"
                text = f"{100 * cell.value:.2f} %; the method's other values are {rate_range}; probably {tenfold:g}"
                yield new_check(cell, "factor ten", text, tenfold, "range of the method's cells", UNCLEAR)


def check_highest_ratio() -> Check:
    """Compare KnapSpec's TPT ratio to AR with its measured speedup, in the cell where they differ most."""
    rows = [
        (_cell_number(n, "tpt").value / _cell_number(n, "tpt", "AR").value, n)
        for n in find_numbers("knapspec", "Table 2", method="KnapSpec", metric="speedup")
    ]
    above = sum(ratio > number.value for ratio, number in rows)
    quotients = [ratio / number.value for ratio, number in rows]
    ratio, number = max(rows, key=lambda row: row[0] / row[1].value)
    text = (
        f"TPT is {ratio:.2f} times AR's; over all cells of KnapSpec, TPT ratio / speedup is {min(quotients):.2f} to "
        f"{max(quotients):.2f}, above 1 in {above} of {len(rows)} cells"
    )
    return new_check(number, "TPT above speedup", text, ratio, EQ4, UNCLEAR)


def check_prose() -> Iterator[Check]:
    """Check Figure 4 and Figure 6."""
    speedups = find_numbers("knapspec", "Table 2", metric="speedup")
    stated = find_number("knapspec", "Figure 4", metric="speedup", tau="0.5")
    cells = [n for n in speedups if n.model == stated.model and n.method == "KnapSpec"]
    text = "the task is not stated; Table 2 has " + ", ".join(f"{n.printed} ({n.task})" for n in cells)
    cell = min(cells, key=lambda n: abs(n.value - stated.value))
    yield new_check(stated, "any task", text, cell.value, "Table 2")
    stated = find_number("knapspec", "Figure 6", metric="tokens_per_s")
    text = "model and task are not named, and no other table or figure prints tokens/s"
    yield new_check(stated, "no model", text, None, "Figure 6, App. B.2", UNCLEAR)
