"""`python -m ssd_bench coverage [runs_dir=runs/reference/mini] [draws=1000]`: how often intervals cover.

Takes the runs of the experiment `ssd_bench_population`, 60 prompts of four methods each, as populations: draws n of
their prompts, with replacement, makes an interval, and counts how often it holds the population's number. Beside the
interval that every table has stand the ones that it was chosen from. A last table draws the moment as well, from the
runs of `ssd_bench_noise`, which are one trace timed at several moments: its truth is the speedup over all moments.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from ssd_bench import metrics, tables
from ssd_bench.command import count, options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.metrics import Measured, Spread, widen
from ssd_bench.metrics.intervals import LEVEL, Array, measure, ratio_of_ratios, ratio_of_sums
from ssd_bench.papers.cells import MOMENTS, Cell, records, replications
from ssd_bench.paths import local_path
from ssd_bench.records.reader import Run

POPULATION = "ssd_bench_population"
SIZES = (4, 8, 20)
RESAMPLES = 999
SEED = 0
DEFAULTS = {"runs_dir": "runs/reference/mini", "draws": "1000"}

Statistic = Callable[..., Array]
Maker = Callable[..., Measured]


def bootstrap(method: str, statistic: Statistic, *columns: Array) -> Measured:
    """An interval by scipy's bootstrap over prompts: "percentile" or "BCa"."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # a sample of equal prompts has none
        found = stats.bootstrap(
            columns, statistic, paired=True, vectorized=True, n_resamples=RESAMPLES, confidence_level=LEVEL,
            method=method, rng=np.random.default_rng(SEED),
        )  # fmt: skip
    low, high = map(float, found.confidence_interval)
    return Measured(float(statistic(*columns)), low, high, len(columns[0]))


def t_of_logs(statistic: Statistic, *columns: Array) -> Measured:
    """A t-interval on the mean of the prompts' own logarithms: of another number than the ratio of totals."""
    logs = np.log(np.array([statistic(*(column[i : i + 1] for column in columns)) for i in range(len(columns[0]))]))
    reach = float(stats.t.ppf((1 + LEVEL) / 2, len(logs) - 1)) * logs.std(ddof=1) / math.sqrt(len(logs))
    centre = float(statistic(*columns))
    return Measured(centre, math.exp(logs.mean() - reach), math.exp(logs.mean() + reach), len(logs))


MAKERS: Mapping[str, Maker] = {
    "jackknife t on the logarithm (ours)": measure,
    "percentile bootstrap": partial(bootstrap, "percentile"),
    "BCa bootstrap": partial(bootstrap, "BCa"),
    "t on the prompts' logarithms": t_of_logs,
}


def covered(made: Measured, truth: float) -> bool:
    """Whether an interval holds a number; none, where all prompts agree, stands for the value itself."""
    if made.low is None or made.high is None:
        return made.value is not None and math.isclose(made.value, truth)
    return made.low <= truth <= made.high


def coverage(maker: Maker, statistic: Statistic, columns: Sequence[Array], n: int, draws: int) -> tuple[float, float]:
    """How often intervals of n drawn prompts hold the number of all.

    Args:
        columns: of the population, one entry a prompt.

    Returns:
        The share of draws, and the mean width of the intervals over the number.
    """
    rng, truth = np.random.default_rng([SEED, n]), float(statistic(*columns))
    held, widths = 0, []
    for _ in range(draws):
        chosen = rng.integers(0, len(columns[0]), n)
        made = maker(statistic, *(column[chosen] for column in columns))
        held += covered(made, truth)
        if made.low is not None and made.high is not None:
            widths.append((made.high - made.low) / truth)
    return held / draws, float(np.mean(widths)) if widths else math.nan


def over_moments(moments: Sequence[Sequence[Array]], n: int, draws: int) -> tuple[float, float]:
    """How often the speedup over all moments lies in the interval of n prompts at one: without and with the floor.

    The floor is that of the other moments.

    Args:
        moments: columns of `ratio_of_ratios`, one entry a prompt, of runs of one trace.
    """
    statistic: Statistic = ratio_of_ratios
    logs = [math.log(float(statistic(*columns))) for columns in moments]
    truth, rng, held = math.exp(np.mean(logs)), np.random.default_rng([SEED, n]), np.zeros(2)
    for _ in range(draws):
        at = int(rng.integers(len(moments)))
        others = logs[:at] + logs[at + 1 :]
        chosen = rng.integers(0, len(moments[at][0]), n)
        made = measure(statistic, *(column[chosen] for column in moments[at]))
        wide = widen(made, Spread(float(np.std(others, ddof=1)), len(others) - 1))
        held += covered(made, truth), covered(wide, truth)
    without, with_floor = (held / draws).tolist()
    return without, with_floor


def columns_of(run: Run) -> list[Array]:
    """Tokens and milliseconds of the method and of AR, one entry a prompt: what a speedup is made of."""
    arms = [metrics.token_times(metrics.arm_rows(run.prompts, arm)) for arm in ("method", "ar")]
    return [sums[column].to_numpy() for sums in arms for column in ("tokens", "ms")]


def acceptance_of(run: Run) -> list[Array]:
    """Accepted and drafted tokens, one entry a prompt."""
    sums = metrics.arm_rows(run.steps, "method").groupby("prompt_index")[["accepted_len", "draft_len"]].sum()
    return [sums[column].to_numpy(dtype=float) for column in sums]


def cells_of(runs_dir: Path, experiment: str) -> list[Cell]:
    """The cells of an experiment in a folder that have a record.

    Raises:
        ConfigError: there is none.
    """
    found = [one for one in replications(runs_dir, records(runs_dir)) if one.experiment.name == experiment]
    cells = [cell for one in found for cell in one.where()]
    if not cells:
        raise ConfigError("runs_dir", str(runs_dir), f"a folder with runs of -m experiment={experiment} scale=mini")
    return cells


def by_method(cells: Sequence[Cell], draws: int) -> pd.DataFrame:
    """Coverage of the interval of every table, by number of prompts, method and number."""
    rows = []
    for n in SIZES:
        for cell in cells:
            speedup, width = coverage(measure, ratio_of_ratios, columns_of(cell.run), n, draws)
            alpha, _ = coverage(measure, ratio_of_sums, acceptance_of(cell.run), n, draws)
            size = int(cell.run.prompts["prompt_index"].nunique())
            rows.append((str(n), cell["method"], str(size), f"{speedup:.3f}", f"{width:.2f}", f"{alpha:.3f}"))
    return pd.DataFrame(rows, columns=["n", "method", "prompts", "speedup", "width", "α"])


def by_kind(cells: Sequence[Cell], draws: int) -> pd.DataFrame:
    """Coverage of a speedup by kind of interval, over all methods together."""
    rows = []
    for name, maker in MAKERS.items():
        means = []
        for n in SIZES:
            shares = [coverage(maker, ratio_of_ratios, columns_of(cell.run), n, draws)[0] for cell in cells]
            means.append(f"{np.mean(shares):.3f} ({min(shares):.3f})")
        rows.append((name, *means))
    return pd.DataFrame(rows, columns=["interval", *(f"n = {n}" for n in SIZES)])


def by_moment(cells: Sequence[Cell], draws: int) -> pd.DataFrame:
    """The noise floor by length of run, and coverage of a speedup over moments, without and with it."""
    rows = []
    for task in dict.fromkeys(cell["task"] for cell in cells):
        runs = [cell.run for cell in cells if cell["task"] == task]
        level = metrics.run_to_run_variation(runs)[0].levels[0]
        told = f"{level.seconds:.1f} s", f"{level.speedup.sigma:.1%}", f"{level.rate.sigma:.1%}"
        for n in SIZES:
            shares = over_moments([columns_of(run) for run in runs], n, draws)
            rows.append((task, str(len(runs)), *told, str(n), *(f"{share:.3f}" for share in shares)))
    heads = ["task", "moments", "decode", "s of speedup", "of tokens/s", "n", "over prompts", "and moments"]
    return pd.DataFrame(rows, columns=heads)


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, or 2 if there are no such runs or an option cannot work."""
    return tool(_main, __doc__, arguments)


def _main(arguments: Sequence[str]) -> None:
    given = DEFAULTS | options(arguments, tuple(DEFAULTS))
    runs_dir, draws = local_path("runs_dir", given["runs_dir"]), count("draws", given["draws"])
    cells = cells_of(runs_dir, POPULATION)
    print(f"Coverage of 95 % intervals, {draws} draws.\n\nOf ours, by method:\n")
    print(tables.markdown(by_method(cells, draws)))
    print("\nOf a speedup by kind of interval, mean of the methods (the lowest):\n")
    print(tables.markdown(by_kind(cells, draws)))
    try:
        moments = cells_of(runs_dir, MOMENTS)
    except ConfigError:
        return
    print("\nThe noise floor, and coverage of the speedup over moments:\n")
    print(tables.markdown(by_moment(moments, draws)))
