"""Checks of SWIFT and its first version: E(speedup), versions, sentences, released sets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from operator import truediv
from pathlib import Path

from ssd_bench.conf import read_yaml
from ssd_bench.papers.audit.arithmetic import (
    CONSISTENT,
    CONTRADICTION,
    DEFINITIONAL,
    EPSILON,
    ROUNDING,
    UNCLEAR,
    Check,
    check_expected_speedup,
    check_formula,
    check_upper_bound,
    new_check,
    rounding_verdict,
)
from ssd_bench.papers.printed.reported import Number, find_number, find_numbers, layer_sets, settings, share_skipped

VERSIONS = ("swift", "swift-v1")
TABLES: Mapping[str, Mapping[str, str]] = {
    paper: {content: f"Table {number}" for content, number in numbers.items()}
    for paper, numbers in read_yaml(Path(__file__).with_name("tables.yaml")).items()
}
"""Version -> content of a table -> its name."""
FORMULA = "E = M alpha / ((M - 1) c + alpha), c = 1 - r (§B.3 Eq. 6)"
RUN = {"model": "LLaMA-2-13B", "method": "SWIFT", "task": "CNN/DM"}  # the configuration of the analyses
WITHOUT_LAYERS = ("Vanilla", "Parallel", "Lookahead")  # methods that skip no layers: E(speedup) is not defined


def checks() -> Iterator[Check]:
    """Yield both versions' checks that `checks.yaml` cannot state."""
    for paper in VERSIONS:
        yield from check_measured(paper)
        yield check_skip_ratio_34b(paper)
    yield from check_versions()
    for paper in VERSIONS:
        yield check_token_share(paper)
        yield from check_ablation(paper)
        yield from check_search_end(paper)
    yield from check_optimisation()
    yield from check_comparisons()
    yield from check_released_sets()


def check_measured(paper: str) -> Iterator[Check]:
    """Check measured speedups of layer-skipping methods against E(speedup) of their M, alpha and r."""
    for content, table in TABLES[paper].items():
        if content == "expected":
            continue
        for cell in find_numbers(paper, table, metric="speedup"):
            if cell.method in WITHOUT_LAYERS or cell.task == "Overall":
                continue
            m = _row_number(cell, table, "M")
            acceptance = _row_number(cell, TABLES[paper]["expected"] if content == "main" else table, "alpha")
            if m and acceptance:
                yield check_expected_speedup(cell, m, acceptance, _skip_ratio(cell), FORMULA)


def _row_number(cell: Number, table: str, metric: str) -> Number | None:
    """Return another metric of the same row, else None; the setting r may be in only one of the tables."""
    rows = find_numbers(cell.paper, table, model=cell.model, method=cell.method, task=cell.task, metric=metric)
    wanted = {**cell.settings, "skip_ratio": ""}
    return next((n for n in rows if {**n.settings, "skip_ratio": ""} == wanted), None)


def _skip_ratio(cell: Number) -> float:
    ratio = _row_number(cell, cell.exhibit, "skip_ratio")
    if ratio:
        return ratio.value
    return float(cell.settings["skip_ratio"]) if "skip_ratio" in cell.settings else stated_skip_ratio(cell.model)


def stated_skip_ratio(model: str) -> float:
    """Return r of §B.2 by model size: 0.45 for 13B, 0.5 for 34B and 70B."""
    rows = settings("swift", "Table 2").set_index("key")["value"]
    size = re.search(r"(\d+B)", model)
    assert size is not None
    # a part is "0.5 for 34B and 70B"; 33B models count as 34B
    wanted = {"33B": "34B"}.get(size[1], size[1])
    return next(float(part.split(" for ")[0]) for part in rows["skip_ratio"].split(";") if wanted in part)


def check_skip_ratio_34b(paper: str) -> Check:
    """Check r in the Yi-34B table's caption against §B.2; other captions replace its r too (LLaMA-3, Table 5)."""
    cell = find_number(paper, TABLES[paper]["yi"], model="Yi-34B", method="SWIFT", task="Overall", metric="speedup")
    stated, implied = float(cell.settings["skip_ratio"]), stated_skip_ratio("34B")
    text = f"{cell.exhibit}, caption: r = {stated:g} for Yi-34B; §B.2 fixes r = {implied:g} for 34B models"
    where = (f"{paper}/{cell.exhibit.lower().replace(' ', '')}#skip ratio", paper, cell.exhibit, "skip ratio")
    return Check(*where, text, stated, implied, "§B.2", UNCLEAR)


def check_versions() -> Iterator[Check]:
    """Check every table number of the first version against the ICLR version."""
    renamed = {first: TABLES["swift"][content] for content, first in TABLES["swift-v1"].items()}
    for number in find_numbers("swift-v1"):
        table = {**renamed, "Table 1": "Table 1"}.get(number.exhibit)
        if table is None:
            continue
        where = {"model": number.model, "method": number.method, "task": number.task}
        later = find_number("swift", table, setting=number.setting, metric=number.metric, **where)
        text = f"the ICLR version prints {later.printed} ({table})"
        result = "consistent" if later.printed == number.printed else CONTRADICTION
        yield new_check(number, "version", text, later.value, f"ICLR version, {table}", result)


def check_token_share(paper: str) -> Check:
    """Check drafted tokens' share of the output (§5.3) against Table 2's mean M."""
    m = [n for n in find_numbers(paper, "Table 2", method="SWIFT", metric="M") if n.task != "Overall"]
    share = find_number(paper, "text §5.3", metric="output_token_share_pct")
    implied = 100 * (1 - len(m) / sum(n.value for n in m))
    text = f'1 - 1 / (mean M of Table 2) is {implied:.1f} % (the text says "nearly")'
    fits = ROUNDING if abs(implied - share.value) < 2 else CONTRADICTION
    return new_check(share, "share of M", text, implied, "drafted tokens are M - 1 of M", fits)


def check_ablation(paper: str) -> Iterator[Check]:
    """Check §D.1: gains by optimisation and early stopping, in percent; its numbers are points."""
    table = TABLES[paper]["ablation"]
    for metric, removed in (("speedup", "w/o optimization"), ("alpha", "w/o early-stopping")):
        stated = find_number(paper, "text §D.1", metric=f"{metric}_improvement_pct")
        full, cut = (find_number(paper, table, metric=metric, ablation=kind, **RUN) for kind in ("none", removed))
        relative, points = 100 * (full.value / cut.value - 1), 100 * (full.value - cut.value)
        text = f"{full.printed} / {cut.printed} is a gain of {relative:.1f} %, a difference of {points:.1f} points"
        fits = DEFINITIONAL if rounding_verdict(stated, points) == CONSISTENT else CONTRADICTION
        verdict = rounding_verdict(stated, relative, otherwise=fits)
        yield new_check(stated, "improvement", text, relative, table, verdict)


def check_search_end(paper: str) -> Iterator[Check]:
    """Check Figure 6: the optimisation's final matchness against the threshold of §B.2."""
    stated = find_number(paper, "Figure 6", metric="matchness", point="termination")
    rule = settings(paper, "Table 2").set_index("key")["value"]["opt_early_stop"]
    threshold = re.search(r"matchness above (\d\.\d+)", rule)
    assert threshold is not None
    text = f"§B.2 stops the search once matchness exceeds {threshold[1]}: consistent only if the score jumped past it"
    yield new_check(stated, "search end", text, float(threshold[1]), "§B.2", UNCLEAR)


def check_optimisation() -> Iterator[Check]:
    """Check search costs of the ICLR version: reductions, step latency, numbers of steps."""
    swift = find_number("swift", "Table 12", metric="optimization_latency_s", **RUN)
    self_ssd = find_number("swift", "text §5.3", metric="optimization_latency_s", method="Self-SD")
    stated = find_number("swift", "text §5.3", metric="optimization_time_reduction")
    how = f"{self_ssd.value / 3600:g} h / {swift.printed} s (Table 12)"
    yield check_formula(stated, "reduction", how, "ratio of latencies", truediv, self_ssd, swift)
    minutes = find_number("swift", "Table 11", metric="optimization_latency_s", method="SWIFT").value / 60
    hours = find_number("swift", "Table 11", metric="optimization_latency_s", method="Self-SD").value / 3600
    implied, low, high = (60 * h / m for h, m in ((hours, minutes), (hours - 0.05, minutes + 0.5), (hours + 0.05, 1.5)))
    text = f"~{hours:g} h / ~{minutes:g} min is {implied:.0f}; with rounding, {low:.0f} to {high:.0f}"
    for place in ("Table 11", "text §D.3"):  # §D.3 has "approximately" the table's ratio
        stated = find_number("swift", place, metric="optimization_time_reduction")
        verdict = rounding_verdict(stated, implied, low, high)
        yield new_check(stated, "reduction", text, implied, "ratio of latencies", verdict)
    steps = {
        kind: find_number("swift", "Table 12", metric="iterations", optimizer=kind, **RUN)
        for kind in ("random", "bayesian")
    }
    total = sum(n.value for n in steps.values())
    step = find_number("swift", "Table 9", metric="step_latency_ms", gamma="32")
    implied = 1000 * swift.value / total
    text = f"{total:.0f} steps in {swift.printed} s (Table 12) give {implied:.0f} ms per step: the unit must be s"
    yield new_check(step, "unit", text, implied, "Table 12")
    text = f"one step in 25 (§B.2) of {total:.0f} is {total // 25:.0f}"
    yield new_check(steps["bayesian"], "steps", text, total // 25, "§B.2")


def check_comparisons() -> Iterator[Check]:
    """Check §D.4 and §D.5: how much longer and faster than other methods."""
    slow = find_number("swift", "Figure 11", metric="optimization_latency_s", method="Self-SD", iterations="100")
    swift = find_number("swift", "Figure 11", metric="optimization_latency_s", method="SWIFT")
    stated = find_number("swift", "text §D.4", metric="optimization_latency_ratio")
    how = f"{slow.printed} s / {swift.printed} s"
    yield check_formula(stated, "ratio", how, "ratio of latencies", truediv, slow, swift)

    stated = find_number("swift", "text §D.4", metric="speedup_improvement_pct")
    rows = {n.method: n for n in find_numbers("swift", "Table 12", metric="speedup")}
    gains = [
        100 * (rows["SWIFT"].value / rows[f"{name} w/ dynamic ver."].value - 1) for name in ("Self-SD", "Self-SD_c")
    ]
    text = (
        f"the gain over Self-SD w/ dynamic ver. is {gains[0]:.1f} %, that over Self-SD_c w/ dynamic ver. "
        f"{gains[1]:.1f} %"
    )
    yield new_check(stated, "improvement", text, gains[0], "Table 12", UNCLEAR)

    overall = {(n.model, n.method): n.value for n in find_numbers("swift", "Table 2", task="Overall", metric="speedup")}
    gain = {m: 100 * (overall[m, "SWIFT"] / overall[m, "Lookahead"] - 1) for m, how in overall if how == "SWIFT"}
    low, high = (
        find_number("swift", "text §D.5", metric="speedup_improvement_pct", bound=bound) for bound in ("low", "high")
    )
    text = "the overall speedups of Table 2 give " + ", ".join(f"{m} {value:.1f} %" for m, value in gain.items())
    least, most = min(gain.values()), max(gain.values())
    # each gain is a ratio of two numbers with two decimals: half a percent of rounding
    fits = CONSISTENT if least >= low.value - 0.5 else CONTRADICTION
    yield new_check(low, "lower bound", text, least, "Table 2", fits)
    yield check_upper_bound(high, most, f"the largest gain in Table 2 is {most:.1f} %", "Table 2")


def check_released_sets() -> Iterator[Check]:
    """Check r of §B.2 against the released sets, and r of Self-SD against its set.

    Eq. 6 needs the skipped share of all sublayers; in the code a set has the share nearest to r of skippable ones.
    """
    for name, entry in layer_sets().items():
        paper, model, task = name.split("/")
        if paper != "swift":
            continue
        stated = stated_skip_ratio(model.upper())
        share, inner = share_skipped(paper, model, task), share_skipped(paper, model, task, inner=True)
        text = (
            f"§B.2 fixes r = {stated:g} for {model}; the released set for {task} skips {share:.3f} of all sublayers, "
            f"as Eq. 6 counts, and {inner:.3f} of the sublayers that may be skipped"
        )
        nearest = abs(inner - stated) <= 0.5 / (2 * (entry["n_layers"] - 2)) + EPSILON  # half a sublayer
        # two decimals are printed
        fits = CONSISTENT if abs(share - stated) <= 0.005 + EPSILON else DEFINITIONAL if nearest else CONTRADICTION
        where = (f"swift/{model}/{task}/skip_ratio#released set", "swift", "Table 2", "released set")
        yield Check(*where, text, stated, share, "§B.3 Eq. 6; skip sets of the repository", fits)
    row = find_number("swift", "Table 10", method="Self-SD", metric="skip_ratio")
    skipped = share_skipped("self_ssd", row.model, "all")
    text = f"the set of Self-SD's repository skips {skipped:.3f}"
    yield new_check(row, "released set", text, skipped, "repository")
