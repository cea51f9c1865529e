"""Checks of KNN-SSD: skip ratios implied by expected speedups, and expected against measured speeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ssd_bench.papers.audit.arithmetic import (
    DEFINITIONAL,
    UNCLEAR,
    Check,
    check_upper_bound,
    expected_speedup_at,
    format_value,
    implied_range,
    new_check,
    rounding_verdict,
)
from ssd_bench.papers.printed.reported import Number, find_number, find_numbers, layer_sets, share_skipped, slug

MODELS = ("LLaMA-2-13B", "LLaMA-2-13B-Chat", "Qwen-2.5-14B", "Qwen-2.5-14B-Instruct")
METHODS = ("Self-SD(Fix)", "Self-SD(Mix)", "KNN-SSD")
RATIOS = ("0.0", "0.3", "0.7", "1.0")  # mix ratios of the stream
TASKS = ("CNN/DM", "GSM8K", "WMT16 DE-EN", "TinyStories", "Spider2")  # in equal shares in every stream
FORMULA = "E = M alpha / ((M - 1)(1 - r) + alpha) (§5.1 Eq. 9)"


def implied_skip_ratio(m: float, acceptance: float, speedup: float) -> float:
    """Return the skip ratio r for which Eq. 9 gives this speedup: 1 - r = alpha (M / E - 1) / (M - 1)."""
    return 1 - acceptance * (m / speedup - 1) / (m - 1)


def stream_numbers(model: str, method: str, ratio: str) -> tuple[Number, ...]:
    """Return M and alpha of Table 6 and expected speedup of Table 1, at a mix ratio or "overall"."""
    metrics = {"M": "Table 6", "alpha": "Table 6", "expected_speedup": "Table 1"}
    where = {"model": model, "method": method, "mix_ratio": ratio}
    return tuple(find_number("knn-ssd", table, metric=metric, **where) for metric, table in metrics.items())


def common_skip_ratio(model: str, method: str) -> tuple[float, float]:
    """Return the lowest and highest r that fit all four mix ratios; reversed if no r does."""
    ranges = [implied_range(implied_skip_ratio, *stream_numbers(model, method, ratio)) for ratio in RATIOS]
    return max(low for low, _ in ranges), min(high for _, high in ranges)


def checks() -> Iterator[Check]:
    """Yield the checks that `checks.yaml` cannot state."""
    for model in MODELS:
        yield from check_one_skip_ratio(model)
        yield check_published_sets(model)
        if "LLaMA" in model:
            yield from (check_measured(model, method) for method in METHODS)
    yield from check_prose()
    yield from check_repeated_sets()


def check_one_skip_ratio(model: str) -> Iterator[Check]:
    """Check that one r explains all rows of a model; "unclear" at most, as the paper prints no r."""
    fits = {method: common_skip_ratio(model, method) for method in METHODS}
    low, high = max(low for low, _ in fits.values()), min(high for _, high in fits.values())
    by_method = ", ".join(
        f"{method} {(a + b) / 2:.3f}" + ("" if a <= b else f" (mix ratios disagree by {a - b:.4f})")
        for method, (a, b) in fits.items()
    )
    text = f"Tables 1 and 6, {model}: no single r explains all rows (they disagree by {low - high:.3f}); {by_method}"
    where = (f"knn-ssd/table1/{slug(model)}#one r", "knn-ssd", "Table 1", "one r")
    if low > high:
        yield Check(*where, text, high, low, FORMULA, UNCLEAR)


def check_published_sets(model: str) -> Check:
    """Check KNN-SSD's overall E with the mean r of the five tasks' published sets, in equal shares.

    The verdict is "unclear" at most, as the paper prints neither r, nor its sublayers, nor the shares.
    """
    m, acceptance, stated = stream_numbers(model, "KNN-SSD", "overall")
    ratios = [share_skipped("knn_ssd", model, task) for task in TASKS]
    mean = sum(ratios) / len(ratios)
    formula = expected_speedup_at(mean)
    low, high = common_skip_ratio(model, "KNN-SSD")
    text = (
        f"E is {formula(m.value, acceptance.value):.3f} with the published sets, which skip {min(ratios):.3f} to "
        f"{max(ratios):.3f} (mean {mean:.3f}) of the sublayers; Table 1 needs about {(low + high) / 2:.3f}"
    )
    implied = formula(m.value, acceptance.value)
    result = rounding_verdict(stated, implied, *implied_range(formula, m, acceptance), otherwise=UNCLEAR)
    return new_check(stated, "published sets", text, implied, f"{FORMULA}; skip sets of the repository", result)


def _rate(model: str, method: str) -> Number:
    return find_number("knn-ssd", "Table 1", metric="tokens_per_s", model=model, method=method)


def check_measured(model: str, method: str) -> Check:
    """Check Table 1's tokens/s, "expected" in §5.1, against the speedup that Table 2 measured on that stream."""
    rate, plain = _rate(model, method), _rate(model, "Vanilla")
    actual = find_number("knn-ssd", "Table 2", metric="speedup", model=model, method=method)
    implied = actual.value * plain.value
    low = (actual.value - actual.half) * (plain.value - plain.half)
    high = (actual.value + actual.half) * (plain.value + plain.half)
    text = (
        f"this is {rate.value / plain.value:.2f} times Vanilla's, the expected speedup; with the actual speedup of "
        f"{actual.printed} (Table 2) it would be {format_value(implied)}"
    )
    result = rounding_verdict(rate, implied, low, high, otherwise=DEFINITIONAL)
    return new_check(rate, "measured speed", text, implied, "Table 2", result)


def check_prose() -> Iterator[Check]:
    """Check sentences and captions against tables."""
    actual = find_numbers("knn-ssd", "Table 2", method="KNN-SSD", metric="speedup")
    for bound in ("low", "high"):
        stated = find_number("knn-ssd", "abstract", metric="speedup", bound=bound)
        cell = (min if bound == "low" else max)(actual, key=lambda n: n.value)
        text = (
            f"the actual speedups (Table 2, without Qwen) end at {cell.printed}; the stated range is that of the "
            "expected speedups"
        )
        result = rounding_verdict(stated, cell.value, otherwise=UNCLEAR)
        yield new_check(stated, "headline", text, cell.value, "Table 2", result)
    cells = find_numbers("knn-ssd", "Table 4", method="KNN-SSD", metric="speedup")
    high = find_number("knn-ssd", "text §5.3", metric="speedup", bound="high")
    most = max(cells, key=lambda n: n.value)
    yield check_upper_bound(high, most.value, f"the largest value in Table 4 is {most.printed}", "Table 4")
    about = find_number("knn-ssd", "Figure 7", metric="speedup")
    table = find_number("knn-ssd", "Table 3", method="KNN-SSD", metric="speedup")
    text = f'the caption says "around"; Table 3 prints {table.printed}'
    yield new_check(about, "caption", text, table.value, "Table 3", UNCLEAR)


def check_repeated_sets() -> Iterator[Check]:
    """Find layer sets that KNN-SSD's repository lists under several names."""
    names = defaultdict(list)
    for name, entry in layer_sets().items():
        if name.startswith("knn_ssd/"):
            names[str(entry["skip_attn"]), str(entry["skip_mlp"])].append(name.removeprefix("knn_ssd/"))
    for group in filter(lambda aliases: len(aliases) > 1, names.values()):
        text = f"the repository has the same layer set for {', '.join(group)}"
        where = (f"knn-ssd/{slug(group[0])}#released twice", "knn-ssd", "Figure 9", "released twice")
        yield Check(*where, text, None, None, "skip sets of the repository", UNCLEAR)
