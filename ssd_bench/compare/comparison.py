"""Comparison of two sets of records: a row for every pair and quantity, and one for all pairs together.

The verdict on b compared with a is from `results.effect.verdict`, or *not compared* if a side lacks the quantity or the
machines differ.

The interval is Student's t on the logarithm (on the difference of scores). Its variance is a jackknife over prompts,
plus the run-to-run variation of measured speeds (docs/evidence.md). The row of all pairs is their geometric mean; a
prompt shared by several pairs is left out of all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ssd_bench.compare.pairing import ConfigurationPair, RecordSet, check_pair, pairs
from ssd_bench.compare.variation import Variation
from ssd_bench.records.reader import Run
from ssd_bench.results.effect import INCONCLUSIVE, PairEffect, pair_effect, pooled_effect, verdict
from ssd_bench.results.evidence import Steadiness
from ssd_bench.results.quality import lossless_counts
from ssd_bench.results.quantity import QUANTITIES, Quantity, Spread
from ssd_bench.results.shared_prompts import SharedPrompts, shared_prompts

NOT_COMPARED = "not compared"
MACHINE = ("device", "cpu", "cores", "gpus")
"""Parts of `RunHeader.hardware` that identify a machine; threads and kernels may be what is compared."""
ALL_PAIRS = "all pairs"
A_A, A_B = "A/A", "A/B"


def same_work(quantity: Quantity) -> bool:
    """Return whether both sides do the same work by definition, which makes the row an A/A comparison."""
    return "method" not in quantity.arms


COMPARED: Mapping[str, Quantity] = {
    quantity.compare: quantity
    # times first, quantities independent of the method last
    for quantity in sorted(QUANTITIES.values(), key=lambda q: (same_work(q), not (q.variation or q.times)))
    if quantity.compare
}
"""Name (also in options and files) -> quantity, in the order of the table."""


@dataclass(frozen=True)
class ComparedRow:
    """A quantity of one pair, or of all pairs.

    Attributes:
        quantity: a key of `COMPARED`.
        kind: "A/A" if both sides did the same work (only machine, code or chance can differ); else "A/B".
        a, b: numbers of the sides; None for all pairs.
        effect: ratio b over a, or the difference b minus a; None if undefined.
        low, high: its 95 % interval, or None.
        n: prompts in all runs of the pair.
        verdict: as `results.effect.verdict`, or `NOT_COMPARED`.
        note: reason for no verdict, or its restrictions.
    """

    pair: str
    quantity: str
    kind: str
    a: float | None
    b: float | None
    effect: float | None
    low: float | None
    high: float | None
    n: int
    verdict: str
    note: str


@dataclass(frozen=True)
class RecordComparison:
    """Result of a comparison.

    Attributes:
        rows: by quantity and pair; with several pairs, the row of all pairs first.
        unpaired: a line per configuration without a partner.
        variation: text on run-to-run variation in the intervals.
    """

    rows: Sequence[ComparedRow]
    unpaired: Sequence[str]
    warnings: Sequence[str]
    variation: str

    def headline(self, quantity: str) -> ComparedRow:
        """Return the decisive row of a quantity: of all pairs, or of the only pair."""
        return next(row for row in self.rows if row.quantity == quantity)


@dataclass(frozen=True)
class _Sample:
    """Effect of a quantity on a pair, with its sources of variation.

    Attributes:
        timing: spread of a timing -> sum over sides of 1 / number of timings.
        lack: why the effect cannot be compared, or "".
        doubt: why the effect decides nothing, or "".
        sources: of the spreads.
    """

    label: str
    kind: str
    effect: PairEffect | None
    timing: Mapping[Spread, float]
    n: int
    lack: str = ""
    doubt: str = ""
    sources: frozenset[str] = frozenset()


def compare(
    a: RecordSet, b: RecordSet, variation: Variation, margin: float, by_method: bool = False
) -> RecordComparison:
    """Compare two sets of records.

    Args:
        margin: margin of equivalence, relative (absolute for scores).
        by_method: as in `pairs`.

    Raises:
        ConfigError: no pair, or a pair with different models, different decoding or no common prompt.
    """
    matched, unpaired = pairs(a, b, by_method)
    samples: dict[str, list[_Sample]] = {name: [] for name in COMPARED}
    warnings: list[str] = []
    for pair in matched:
        check_pair(pair)
        shared = shared_prompts((pair.a.runs, pair.b.runs))
        timing_faults = _machine_difference(pair), _contamination(pair)
        warnings += _warnings(pair)
        for name, quantity in COMPARED.items():
            samples[name].append(_sample(pair, quantity, shared, variation, timing_faults))
    rows = []
    for name, parts in samples.items():
        # the row of all pairs, if there are several, then one per pair
        rows += [_row(name, parts, margin)] if len(parts) > 1 else []
        rows += [_row(name, [sample], margin) for sample in parts]
    sources = sorted({source for parts in samples.values() for sample in parts for source in sample.sources})
    variation_text = "; ".join(sources) or "none: no measured speed was compared"
    return RecordComparison(rows, unpaired, list(dict.fromkeys(warnings)), variation_text)


def _sample(
    pair: ConfigurationPair,
    quantity: Quantity,
    shared: SharedPrompts,
    variation: Variation,
    timing_faults: tuple[str, str],
) -> _Sample:
    """Return the effect of a quantity on a pair, or why it lacks one.

    `timing_faults` are the difference of the machines and the contamination of the times, "" for none.
    """
    machines, doubt = timing_faults
    kind = A_A if shared.same_trace or same_work(quantity) else A_B
    lack = shared.lack(quantity) or (machines if quantity.variation == "rate" else "")
    if lack:
        return _Sample(pair.label, kind, None, {}, len(shared.prompts), lack)
    timing: dict[Spread, float] = {}
    sources = set()
    if quantity.variation:
        for side in (pair.a, pair.b):
            spread, source = variation.spread(side, quantity.variation)
            timing[spread] = timing.get(spread, 0.0) + 1 / len(side.paths)
            sources.add(f"{source} SD {100 * spread.sigma:.1f} % of a {quantity.variation}")
    effect = pair_effect(quantity, [*shared.prompts], shared.columns(quantity))
    doubt = doubt if quantity.variation else ""
    return _Sample(pair.label, kind, effect, timing, len(shared.prompts), "", doubt, frozenset(sources))


def _row(name: str, samples: Sequence[_Sample], margin: float) -> ComparedRow:
    """Return the row of one or several pairs; pairs without the quantity are left out."""
    quantity, usable = COMPARED[name], [sample for sample in samples if sample.effect is not None]
    label = samples[0].label if len(samples) == 1 else ALL_PAIRS
    kind = A_A if all(sample.kind == A_A for sample in samples) else A_B
    if not usable:
        return ComparedRow(label, name, kind, None, None, None, None, None, samples[0].n, NOT_COMPARED, samples[0].lack)
    effects = [sample.effect for sample in usable if sample.effect is not None]
    sides = (_number(effects[0].a), _number(effects[0].b)) if len(samples) == 1 else (None, None)
    n = len({prompt for effect in effects for prompt in effect.deviations})
    effect, reason = pooled_effect(quantity, effects, [sample.timing for sample in usable])
    lacks = [sample.lack for sample in samples if sample.lack]
    notes = [f"{len(lacks)} pairs are left out: {lacks[0]}"] if lacks else []
    doubt = next((sample.doubt for sample in usable if sample.doubt), "")
    if effect is None:
        return ComparedRow(label, name, kind, *sides, None, None, None, n, INCONCLUSIVE, "; ".join([reason, *notes]))
    low, high = effect.interval() if not reason else (None, None)
    decided = INCONCLUSIVE if reason or doubt else verdict(quantity, effect, margin)
    note = "; ".join(filter(None, [reason, doubt, *notes]))
    return ComparedRow(label, name, kind, *sides, effect.value, low, high, n, decided, note)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _machine_difference(pair: ConfigurationPair) -> str:
    """Return how the machines of a pair differ; "" for one machine."""
    texts = []
    for name in MACHINE:
        values = list(dict.fromkeys(str(run.header.hardware[name]) for run in (*pair.a.runs, *pair.b.runs)))
        texts += [f"{name} {' and '.join(values)}"] if len(values) > 1 else []
    return f"timed on different machines ({', '.join(texts)}); speedup compares them" if texts else ""


def _contamination(pair: ConfigurationPair) -> str:
    for run in (*pair.a.runs, *pair.b.runs):
        if reason := Steadiness.of(run).contamination:
            return f"timings of {run.path.name} unreliable: {reason}"
    return ""


def _warnings(pair: ConfigurationPair) -> list[str]:
    """Return other differences between the sides, and mismatches of outputs."""
    lines = []
    for run in (*pair.a.runs, *pair.b.runs):
        if mismatches := lossless_counts(run.prompts)["bug"]:
            lines.append(f"{run.path.name}: {mismatches} outputs differ from AR's (mismatch)")
    differences = _differences(pair.a.runs[0], pair.b.runs[0])
    return [*lines, *(f"{pair.label}: {text} (a, b)" for text in differences)]


def _differences(a: Run, b: Run) -> list[str]:
    facts = []
    for header in (a.header, b.header):
        code = header.provenance.code or {}
        hardware = {name: value for name, value in header.hardware.items() if name not in MACHINE}
        settings = {f"method.{name}": value for name, value in header.settings.items()}
        facts.append({"method": header.method, **settings, **hardware, "code": str(code.get("sha256"))[:10]})
    if facts[0]["method"] != facts[1]["method"]:
        facts = [{name: fact[name] for name in fact if not name.startswith("method.")} for fact in facts]
    names = dict.fromkeys((*facts[0], *facts[1]))
    return [
        f"{name} {facts[0].get(name)}, {facts[1].get(name)}"
        for name in names
        if facts[0].get(name) != facts[1].get(name)
    ]
