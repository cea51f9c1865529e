"""The tables on intervals' coverage in docs/evidence.md, simulated on the reference runs.

    python -m tests.interval_coverage

The populations are the runs of `ssd_bench_population` (four methods, 60 prompts each). The script draws n prompts with
replacement, computes an interval, and counts how often it contains the population's number. It compares the tables'
interval with alternatives. The last table also draws the timing, from the runs of `ssd_bench_noise` (one trace, timed
repeatedly); there the true value is the speedup over all timings.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from scipy import stats

from ssd_bench import tables
from ssd_bench.papers.ours.cells import REPEATED_TIMINGS, Cell, replications
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.reader import Run
from ssd_bench.results.effect import widen
from ssd_bench.results.evidence import RunTiming, run_to_run_variation
from ssd_bench.results.folder import records
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quantity import (
    LEVEL,
    QUANTITIES,
    Array,
    Measured,
    Spread,
    measure,
    ratio_of_sums,
)
from ssd_bench.results.rows import arm_rows
from tests.runs import ROOT

POPULATION = "ssd_bench_population"
SIZES = (4, 8, 20)
RESAMPLES = 999
SEED = 0
DRAWS = 1000
RUNS = ROOT / "runs" / "reference" / "mini"

Statistic = Callable[..., Array]
Maker = Callable[..., Measured]


def bootstrap(method: str, statistic: Statistic, *columns: Array) -> Measured:
    """Return scipy's bootstrap interval over prompts, "percentile" or "BCa"."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the interval of equal prompts is undefined
        result = stats.bootstrap(
            columns,
            lambda *resampled, axis: statistic(*resampled),  # the last axis, as in every quantity
            paired=True,
            vectorized=True,
            n_resamples=RESAMPLES,
            confidence_level=LEVEL,
            method=method,
            rng=np.random.default_rng(SEED),
        )
    low, high = map(float, result.confidence_interval)
    return Measured(float(statistic(*columns)), low, high, len(columns[0]))


def t_of_logs(statistic: Statistic, *columns: Array) -> Measured:
    """Return a t-interval on the mean of the prompts' logarithms, which does not estimate the ratio of totals."""
    logs = np.log(np.array([statistic(*(column[i : i + 1] for column in columns)) for i in range(len(columns[0]))]))
    half_width = float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1)) * logs.std(ddof=1) / math.sqrt(len(logs))
    centre = float(statistic(*columns))
    return Measured(centre, math.exp(logs.mean() - half_width), math.exp(logs.mean() + half_width), len(logs))


MAKERS: Mapping[str, Maker] = {
    "jackknife t on the logarithm (ours)": measure,
    "percentile bootstrap": partial(bootstrap, "percentile"),
    "BCa bootstrap": partial(bootstrap, "BCa"),
    "t on the prompts' logarithms": t_of_logs,
}


def covers(interval: Measured, truth: float) -> bool:
    """Return whether an interval contains a number; for equal prompts, whether the value equals it."""
    if interval.low is None or interval.high is None:
        return interval.value is not None and math.isclose(interval.value, truth)
    return interval.low <= truth <= interval.high


def coverage(maker: Maker, statistic: Statistic, columns: Sequence[Array], n: int, draws: int) -> tuple[float, float]:
    """Return how often intervals from n drawn prompts contain the population's number.

    Args:
        columns: columns of the population, one entry per prompt.

    Returns:
        Share of draws, and the intervals' mean width as a multiple of the number.
    """
    rng, truth = np.random.default_rng([SEED, n]), float(statistic(*columns))
    hits, widths = 0, []
    for _ in range(draws):
        chosen = rng.integers(0, len(columns[0]), n)
        interval = maker(statistic, *(column[chosen] for column in columns))
        hits += covers(interval, truth)
        if interval.low is not None and interval.high is not None:
            widths.append((interval.high - interval.low) / truth)
    return hits / draws, float(np.mean(widths)) if widths else math.nan


def coverage_over_timings(timings: Sequence[Sequence[Array]], n: int, draws: int) -> tuple[float, float]:
    """Return how often the interval from n prompts of one timing contains the speedup over all timings.

    Args:
        timings: per run of one trace, columns of a speedup, one entry per prompt.

    Returns:
        Shares of draws: of the interval over prompts, and of the interval widened by the other timings' variation.
    """
    statistic: Statistic = QUANTITIES["speedup"]
    logs = [math.log(float(statistic(*columns))) for columns in timings]
    truth, rng, hits = math.exp(np.mean(logs)), np.random.default_rng([SEED, n]), np.zeros(2)
    for _ in range(draws):
        position = int(rng.integers(len(timings)))
        other_logs = logs[:position] + logs[position + 1 :]
        chosen = rng.integers(0, len(timings[position][0]), n)
        interval = measure(statistic, *(column[chosen] for column in timings[position]))
        wider = widen(interval, Spread(float(np.std(other_logs, ddof=1)), len(other_logs) - 1))
        hits += covers(interval, truth), covers(wider, truth)
    over_prompts, with_variation = (hits / draws).tolist()
    return over_prompts, with_variation


def columns_of(run: Run) -> list[Array]:
    """Return a speedup's columns, one entry per prompt: tokens and ms of the method, then of AR."""
    arms = [PromptTable(run.prompts).frame(QUANTITIES[f"{arm}_tokens_per_s"]) for arm in ("method", "ar")]
    return [sums[column].to_numpy() for sums in arms for column in ("tokens", "ms")]


def acceptance_of(run: Run) -> list[Array]:
    sums = arm_rows(run.steps, "method").groupby("prompt_index")[["accepted_len", "draft_len"]].sum()
    return [sums[column].to_numpy(dtype=float) for column in sums]


def cells_of(experiment: str) -> list[Cell]:
    """Return an experiment's results with a reference run."""
    folder = unpacked_folder(RUNS)
    return [
        cell
        for replication in replications(folder, records(folder))
        if replication.experiment.name == experiment
        for cell in replication.recorded_cells()
    ]


def by_method(cells: Sequence[Cell]) -> pd.DataFrame:
    """Return a table of the tables' interval coverage, by number of prompts, method and metric."""
    rows = []
    for n in SIZES:
        for cell in cells:
            speedup, width = coverage(measure, QUANTITIES["speedup"], columns_of(cell.run), n, DRAWS)
            alpha, _ = coverage(measure, ratio_of_sums, acceptance_of(cell.run), n, DRAWS)
            size = int(cell.run.prompts["prompt_index"].nunique())
            rows.append((str(n), cell["method"], str(size), f"{speedup:.3f}", f"{width:.2f}", f"{alpha:.3f}"))
    return pd.DataFrame(rows, columns=["n", "method", "prompts", "speedup", "width", "α"])


def by_kind(cells: Sequence[Cell]) -> pd.DataFrame:
    """Return a table of a speedup's coverage by kind of interval: mean and minimum over methods."""
    rows = []
    for name, maker in MAKERS.items():
        means = []
        for n in SIZES:
            shares = [coverage(maker, QUANTITIES["speedup"], columns_of(cell.run), n, DRAWS)[0] for cell in cells]
            means.append(f"{np.mean(shares):.3f} ({min(shares):.3f})")
        rows.append((name, *means))
    return pd.DataFrame(rows, columns=["interval", *(f"n = {n}" for n in SIZES)])


def by_timing(cells: Sequence[Cell]) -> pd.DataFrame:
    """Return a table of run-to-run variation by length of run, and of coverage over timings without and with it."""
    rows = []
    for task in dict.fromkeys(cell["task"] for cell in cells):
        runs = [cell.run for cell in cells if cell["task"] == task]
        level = run_to_run_variation(map(RunTiming.of, runs))[0].levels[0]
        level_texts = f"{level.seconds:.1f} s", f"{level.speedup.sigma:.1%}", f"{level.rate.sigma:.1%}"
        for n in SIZES:
            shares = coverage_over_timings([columns_of(run) for run in runs], n, DRAWS)
            rows.append((task, str(len(runs)), *level_texts, str(n), *(f"{share:.3f}" for share in shares)))
    level_heads = ["decode time", "SD of speedup", "SD of tokens/s"]
    return pd.DataFrame(rows, columns=["task", "timings", *level_heads, "n", "prompts", "prompts and runs"])


def main() -> None:
    cells = cells_of(POPULATION)
    print(f"Coverage of 95 % intervals, {DRAWS} draws.\n\nIntervals of the tables, by method:\n")
    print(tables.markdown(by_method(cells)))
    print("\nSpeedup by kind of interval, mean over methods (lowest method):\n")
    print(tables.markdown(by_kind(cells)))
    print(
        "\nRun-to-run variation (SD: relative standard deviation), and coverage of the speedup over all timings by "
        "intervals over prompts, and over prompts and runs:\n"
    )
    print(tables.markdown(by_timing(cells_of(REPEATED_TIMINGS))))


if __name__ == "__main__":
    main()
