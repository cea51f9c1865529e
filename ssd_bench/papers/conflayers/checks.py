"""Checks of ConfLayers: repeats in Figure 4, released sets, and its sentences."""

from __future__ import annotations

from collections.abc import Iterator

from ssd_bench.papers.audit.arithmetic import (
    CONSISTENT,
    CONTRADICTION,
    UNCLEAR,
    Check,
    check_repeat,
    new_check,
    number_in_table,
)
from ssd_bench.papers.printed.reported import Number, find_number, find_numbers, share_skipped

MODELS = ("LLaMA-2-13B", "LLaMA-2-70B", "LLaMA-3-8B", "LLaMA-3-70B")  # of Table 3
TASKS = ("CNN/DM", "GSM8K", "WMT14 DE-EN", "Alpaca")


def checks() -> Iterator[Check]:
    """Yield the checks that `checks.yaml` cannot state."""
    yield from check_faster_than_swift()
    yield from check_prose()
    yield from check_released_sets()
    for number in find_numbers("conflayers", "Figure 4"):
        if number.settings.get("skip_set") == number.task:  # the set of the task itself: Table 3's configuration
            yield check_repeat(number, number_in_table(number, "Table 3"), "repeats")


def _speedup(table: str, model: str, method: str, task: str) -> Number:
    return find_number("conflayers", table, model=model, method=method, task=task, metric="speedup")


def check_faster_than_swift() -> Iterator[Check]:
    """Check that ConfLayers beats SWIFT in every cell of Table 3 (§4.2.1), by up to 1.4x (abstract)."""
    cells = find_numbers("conflayers", "Table 3", method="ConfLayers", metric="speedup")
    for cell in cells:
        swift = _speedup("Table 3", cell.model, "SWIFT", cell.task)
        fits = CONSISTENT if cell.value > swift.value else CONTRADICTION
        yield new_check(cell, "faster", f"SWIFT has {swift.printed}", swift.value, "§4.2.1", fits)
    stated = find_number("conflayers", "abstract", metric="speedup")
    most = max(n.value for n in cells)
    yield new_check(stated, "headline", f"the largest value in Table 3 is {most}", most, "Table 3")


def check_prose() -> Iterator[Check]:
    """Check sentences: windows (Figure 6), skip ranges (§3.2, App. A, App. C)."""
    constant = find_number("conflayers", "Figure 6", model="LLaMA-2-70B", window="20")
    adaptive = _speedup("Table 3", "LLaMA-2-70B", "ConfLayers", "GSM8K")
    text = f"§4.3.2 says that the adaptive window, {adaptive.printed} (Table 3), is faster than both constant windows"
    fits = CONSISTENT if constant.value < adaptive.value else CONTRADICTION
    yield new_check(constant, "window", text, adaptive.value, "§4.3.2; Table 3", fits)
    best = find_number("conflayers", "text §3.2", bound="high", metric="skip_ratio")
    appendix = find_number("conflayers", "Figure 7", bound="high", model="LLaMA-2-13B", metric="skip_ratio")
    text = f"§3.2 refers to App. A, where the range ends at {appendix.printed}"
    yield new_check(best, "best range", text, appendix.value, "App. A")
    ratios = find_numbers("conflayers", "Table 3", method="ConfLayers", metric="skip_ratio")
    for bound, choose in (("low", min), ("high", max)):
        stated = find_number("conflayers", "text App. C", bound=bound, metric="skip_ratio")
        end = choose(n.value for n in ratios)
        inside = end >= stated.value if bound == "low" else end <= stated.value
        text = f"the range in Table 3 ends at {end:g}"
        yield new_check(stated, "skip range", text, end, "Table 3", CONSISTENT if inside else CONTRADICTION)
    for size, models in (("smaller models", ("LLaMA-2-13B", "LLaMA-3-8B")), ("larger models", MODELS[1::2])):
        stated = find_number("conflayers", "text App. C", model=size)
        cells = find_numbers("conflayers", "Table 3", method="SWIFT", metric="skip_ratio")
        ratio_values = {n.value for n in cells if n.model in models}
        text = f"Table 3 has {', '.join(f'{value:g}' for value in sorted(ratio_values))}"
        fits = CONSISTENT if ratio_values == {stated.value} else CONTRADICTION
        yield new_check(stated, "fixed r", text, max(ratio_values), "Table 3", fits)
    overlap = max(find_numbers("conflayers", "Table 2", metric="rouge2"), key=lambda n: n.value)
    text = "the largest in Table 2; §4.2.2 calls the overlap with the target's output high, but lossless output has 1"
    yield new_check(overlap, "overlap", text, 1.0, "§4.2.2", UNCLEAR)


def check_released_sets() -> Iterator[Check]:
    """Check Table 3's skip ratios against the 16 released sets, counted over skippable blocks."""
    for model in MODELS:
        for task in TASKS:
            where = {"model": model, "method": "ConfLayers", "task": task}
            stated = find_number("conflayers", "Table 3", metric="skip_ratio", **where)
            inner, share = (share_skipped("conflayers", model, task, inner=inner) for inner in (True, False))
            text = (
                f"the released set skips {inner:.3f} of the sublayers between the first and the last block, "
                f"{share:.3f} of all"
            )
            yield new_check(stated, "released set", text, inner, "skip sets of the repository")
