"""`ssd-bench compare`: verdicts on simulated and recorded pairs, pairing, refusals, exit code."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from ssd_bench.compare.comparison import COMPARED, compare
from ssd_bench.compare.pairing import RecordSet
from ssd_bench.compare.variation import ASSUMED, read_variation
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.reader import load_run
from ssd_bench.records.schema import PromptRecord
from ssd_bench.results.effect import EQUIVALENT, INCONCLUSIVE, Effect, pair_effect, pooled_effect, verdict
from ssd_bench.results.evidence import RunTiming, run_to_run_variation
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quantity import QUANTITIES, Array, Spread
from tests.runs import REFERENCE, ROOT, program
from tests.synthetic import unit, with_work, write_record, write_run

DRAWS = 200
MOST_FALSE = 16
"""Most false verdicts in `DRAWS` at a rate of 5 %: exceeded once in 40 such samples."""
SHORT, LONG = "HumanEval, 4 problems", "HumanEval, 20 problems"
RUN_SD = 0.04
TIMES = ("ms", "base_ms")


# --- simulated pairs --------------------------------------------------------------------------------------------------


class Population:
    """Recorded times of one trace in eight timings, split into prompts, runs and the rest.

    Args:
        timings: columns of every timing, one row per prompt.
    """

    def __init__(self, timings: Sequence[pd.DataFrame]) -> None:
        self.timings = timings
        logs = {name: np.log([timing[name].to_numpy() for timing in timings]) for name in TIMES}
        self.base = {name: np.exp(log.mean(axis=0)) for name, log in logs.items()}
        self.rest = {
            name: (log - log.mean(axis=0) - log.mean(axis=1, keepdims=True) + log.mean()).ravel()
            for name, log in logs.items()
        }

    def side(self, rng: np.random.Generator, prompts: Array, factor: float) -> pd.DataFrame:
        """Draw a run's columns: prompt times, each with some recorded time's deviation."""
        columns = {name: self.timings[0][name].to_numpy()[prompts] for name in ("tokens", "base_tokens")}
        for name in TIMES:
            deviations = self.rest[name][rng.integers(len(self.rest[name]), size=len(prompts))]
            columns[name] = self.base[name][prompts] * np.exp(deviations)
        return pd.DataFrame(columns).assign(ms=lambda frame: frame["ms"] * factor)

    def power(self, n: int, slower: float) -> float:
        """Return the power of a two-sided t-test of a rate at 5 %, by the delta method from the recorded times."""
        base, noise = self.base["ms"], np.exp(self.rest["ms"])
        variance = 2 * (base**2).mean() * noise.var() / noise.mean() ** 2 / (n * base.mean() ** 2)
        shift, bound = math.log(slower) / math.sqrt(variance), stats.t.ppf(0.975, n - 1)
        return float(stats.nct.sf(bound, n - 1, shift) + stats.nct.cdf(-bound, n - 1, shift))


@pytest.fixture(scope="module")
def populations() -> Mapping[str, Population]:
    """Return the committed repeated timings, by task."""
    folder = unpacked_folder(REFERENCE / "mini")
    cells = json.loads((folder / "replication/ssd_bench_noise.mini.json").read_text(encoding="utf-8"))["cells"]
    taken = {}
    for task in (SHORT, LONG):
        names = [cell["run"] for cell in cells if cell["labels"]["task"] == task]
        prompts = [load_run(folder / name).prompts for name in names]
        taken[task] = Population([PromptTable(one).frame(QUANTITIES["speedup"]) for one in prompts])
    return taken


def decided(name: str, a: pd.DataFrame, b: pd.DataFrame, timing: Mapping[Spread, float]) -> str:
    """Return the verdict on two sides with these columns."""
    quantity, prompts = COMPARED[name], [str(i) for i in range(len(a))]
    sides = ([side[column].to_numpy() for column in quantity.columns] for side in (a, b))
    effect, reason = pooled_effect(quantity, [pair_effect(quantity, prompts, sides)], [timing])
    assert effect is not None and not reason
    return verdict(quantity, effect, 0.01)


def differing_share(
    population: Population, name: str, n: int, run_sd: float = 0.0, slower: float = 1.0
) -> tuple[float, float]:
    """Return the shares of simulated pairs that differ, with and without run-to-run variation from eight timings.

    Args:
        run_sd: standard deviation between runs.
        slower: factor of the times of b.
    """
    rng, counts = np.random.default_rng([7, n]), np.zeros(2)
    for _ in range(DRAWS):
        prompts = rng.integers(len(population.base["ms"]), size=n)
        factors = np.exp(rng.normal(0.0, run_sd, 10))
        a, b = (population.side(rng, prompts, factor) for factor in (factors[0], factors[1] * slower))
        repeated = [RunTiming("machine", "trace", 1.0, factor, factor, False) for factor in factors[2:]]
        level = run_to_run_variation(repeated)[0].at(1.0)
        timings: tuple[Mapping[Spread, float], ...] = ({level.speedup: 2.0}, {})
        counts += [decided(name, a, b, timing) in ("faster", "slower") for timing in timings]
    with_variation, without = (counts / DRAWS).tolist()
    return with_variation, without


@pytest.mark.parametrize(
    ("name", "task", "n", "different", "without"),
    [("decode", SHORT, 20, 7, 131), ("speedup", LONG, 20, 8, 24), ("speedup", SHORT, 8, 14, 90)],
)
def test_at_most_a_twentieth_of_equal_pairs_differ(
    name: str, task: str, n: int, different: int, without: int, populations: Mapping[str, Population]
) -> None:
    """The figures of docs/compare.md; without run-to-run variation the interval is too narrow."""
    shares = differing_share(populations[task], name, n, RUN_SD)
    assert [round(DRAWS * share) for share in shares] == [different, without]
    assert different <= MOST_FALSE < without


def test_the_simulated_times_have_heavy_tails(populations: Mapping[str, Population]) -> None:
    assert stats.kurtosis(populations[LONG].rest["ms"]) > 5 < stats.kurtosis(populations[SHORT].rest["ms"])


@pytest.mark.parametrize(("task", "n"), [(SHORT, 20), (LONG, 150)])
def test_three_percent_is_noticed_as_often_as_a_power_calculation_says(
    task: str, n: int, populations: Mapping[str, Population]
) -> None:
    promised = populations[task].power(n, 1.03)
    share, _ = differing_share(populations[task], "decode", n, slower=1.03)
    assert 0.2 < promised < 0.9
    assert abs(share - promised) < 3 * math.sqrt(promised * (1 - promised) / DRAWS)


def test_recorded_timings_of_one_trace_differ_by_more_than_prompts_say(populations: Mapping[str, Population]) -> None:
    """The figures of docs/compare.md: pairs of timings that differ, without and with assumed variation."""
    timings = populations[LONG].timings
    for name, different in (("decode", 17), ("speedup", 5)):
        kind = COMPARED[name].variation
        pairs = list(combinations(timings, 2))
        over_prompts = sum(decided(name, a, b, {}) in ("faster", "slower") for a, b in pairs)
        with_assumed = sum(decided(name, a, b, {ASSUMED[kind]: 2.0}) in ("faster", "slower") for a, b in pairs)
        assert (len(pairs), over_prompts, with_assumed) == (28, different, 0)


# --- rule -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "sd", "expected"),
    [
        ("decode", 1.1, 0.03, "faster"),
        ("decode", 1 / 1.1, 0.03, "slower"),
        ("decode", 1.1, 0.06, INCONCLUSIVE),
        ("decode", 1.003, 0.003, EQUIVALENT),
        ("decode", 1.003, 0.001, EQUIVALENT),  # surely above 1, but within the margin
        ("decode", 1.003, 0.006, INCONCLUSIVE),
        ("M", 1.2, 0.05, "higher"),
        ("alpha", 0.8, 0.05, "lower"),
        ("score", -0.1, 0.04, "lower"),
        ("score", 0.002, 0.002, EQUIVALENT),
        ("modelled", 1.0, 0.0, EQUIVALENT),
        ("modelled", 1.02, 0.0, "faster"),
    ],
)
def test_verdict_on_an_effect(name: str, value: float, sd: float, expected: str) -> None:
    quantity = COMPARED[name]
    effect = Effect(value, ((sd**2, 1000.0),) if sd else (), not quantity.difference)
    assert verdict(quantity, effect, 0.01) == expected


# --- records ----------------------------------------------------------------------------------------------------------

Units = list[list[PromptRecord]]
Compare = Callable[..., dict[str, Any]]


def units(prompts: Iterable[int], factor: float = 1.0, arms: Sequence[str] = ("method",), **options: Any) -> Units:
    """Return units of these prompts, with some arms' times multiplied by a factor."""
    records = [with_work(unit(index, **options)) for index in prompts]
    for record in (record for part in records for record in part if record.prompt.arm in arms):
        for row in (record.prompt, *record.steps):
            for name in ("prefill_ms", "decode_ms", "draft_ms", "verify_ms", "policy_ms"):
                if hasattr(row, name):
                    setattr(row, name, getattr(row, name) * factor)
    return records


def write_pair(prompts: Sequence[int], factor: float, **changes: Any) -> None:
    """Write records a and b, whose method takes as many times as long."""
    write_record(Path("a"), units(prompts), run_id="a")
    write_record(Path("b"), units(prompts, factor), run_id="b", **changes)


def row_of(result: Mapping[str, Any], quantity: str) -> dict[str, Any]:
    return next(row for row in result["rows"] if row["quantity"] == quantity)


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Return a function that runs the command in a folder and returns its file; `code` is its exit code."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0) -> dict[str, Any]:
        Path("out.json").unlink(missing_ok=True)
        done = program("compare", *words, "out=out.json")
        assert done.returncode == code, done.stdout + done.stderr
        result = json.loads(Path("out.json").read_text(encoding="utf-8")) if Path("out.json").exists() else {}
        return {**result, "text": done.stdout, "error": done.stderr}

    return call


def test_times_of_one_side_scale_its_ratio_alone(compared: Compare) -> None:
    write_pair(range(6), 1.25)
    result = compared("a", "b", "variation=0")
    for name in ("decode", "end_to_end", "speedup", "speedup_e2e"):
        row = row_of(result, name)
        assert (row["effect"], row["verdict"], row["n"]) == (pytest.approx(0.8), "slower", 6)
    for name, effect in {"modelled": 1.0, "M": 1.0, "alpha": 1.0, "ar_decode": 1.0, "score": 0.0}.items():
        assert (row_of(result, name)["effect"], row_of(result, name)["verdict"]) == (effect, EQUIVALENT)
    assert {row["kind"] for row in result["rows"]} == {"A/A"}  # equal traces: only times can differ
    reverse = compared("b", "a", "variation=0.02")
    forward = compared("a", "b", "variation=0.02")
    for name in ("decode", "speedup"):
        there, back = row_of(forward, name), row_of(reverse, name)
        assert there["effect"] * back["effect"] == pytest.approx(1) == there["low"] * back["high"]
        # 1.96 standard deviations of the difference of two runs
        assert math.log(there["high"] / there["effect"]) == pytest.approx(1.96 * math.sqrt(2) * 0.02, rel=1e-3)


def test_a_slower_machine_cancels_in_the_speedup(compared: Compare, tmp_path: Path) -> None:
    write_record(tmp_path / "a", units(range(6)), run_id="a")
    device = {"provenance": {"device": {"cpu": "Imaginary 100", "cores": 2, "gpus": []}}}
    write_record(tmp_path / "b", units(range(6), 3.0, ("ar", "method"), accept=0.9), run_id="b", **device)
    result = compared("a", "b", "variation=0", "on=speedup", "fail_if=slower")
    assert [row_of(result, name)["verdict"] for name in ("decode", "end_to_end", "ar_decode")] == ["not compared"] * 3
    assert "Imaginary 9000 and Imaginary 100" in row_of(result, "decode")["note"]
    assert row_of(result, "speedup")["verdict"] == "faster" and row_of(result, "M")["verdict"] == "higher"
    assert row_of(result, "speedup")["kind"] == "A/B" and row_of(result, "ar_decode")["kind"] == "A/A"
    failed = compared("a", "b", "fail_if=slower", code=2)
    assert "different machines" in failed["error"] and "on=NAME" in failed["error"]


def test_only_prompts_of_both_sides_count(compared: Compare, tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", units(range(8)), run_id="a")
    second = write_run(tmp_path / "b", units(range(3, 12), accept=0.5), run_id="b")
    result = compared("a", "b")
    sums = []
    for run in (first, second):
        shared = run.steps[(run.steps["arm"] == "method") & run.steps["prompt_index"].between(3, 7)]
        sums.append((shared["emitted"].sum() / len(shared), shared["accepted_len"].sum() / shared["draft_len"].sum()))
    for number, name in enumerate(("M", "alpha")):
        row = row_of(result, name)
        assert (row["a"], row["b"]) == pytest.approx((sums[0][number], sums[1][number])) and row["n"] == 5


def test_other_positions_of_the_prompts_do_not_matter(tmp_path: Path) -> None:
    """Prompts are known by id and tokens, not by position in the stream."""
    a = write_run(tmp_path / "a", units([0, 1, 2]), run_id="a")
    swapped = [replace(record, prompt=replace(record.prompt)) for part in units([0, 1, 2]) for record in part]
    for record in swapped:
        index = 2 - record.prompt.prompt_index
        for row in (record.prompt, *record.steps, *record.work):
            row.prompt_index = index
    b = write_run(tmp_path / "b", [swapped[4:6], swapped[2:4], swapped[0:2]], run_id="b")
    assert list(a.prompts["prompt_id"]) != list(b.prompts["prompt_id"])
    sets = [RecordSet.read(name, str(tmp_path / name)) for name in "ab"]
    comparison = compare(sets[0], sets[1], read_variation("0", []), 0.01)
    assert {row.verdict for row in comparison.rows} == {EQUIVALENT} and {row.n for row in comparison.rows} == {3}


@pytest.mark.parametrize(
    ("changes", "first_prompt", "message"),
    [
        ({}, 20, "none of its 4 prompts is among the 4"),
        ({"model": {"weights": "w1"}}, 0, "model.weights is 'w0' in a and 'w1' here"),
        ({"model": {"dtype": "bfloat16"}}, 0, "model.dtype is 'float32' in a and 'bfloat16' here"),
        ({"decode": {"max_new_tokens": 64}}, 0, "decode.max_new_tokens is 48 in a and 64 here"),
        ({"decode": {"mode": "sample"}}, 0, "decode.mode is 'greedy' in a and 'sample' here"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(
    changes: dict[str, Any],
    first_prompt: int,
    message: str,
    compared: Compare,
    tmp_path: Path,
) -> None:
    write_record(tmp_path / "a", units(range(4)), run_id="a")
    write_record(tmp_path / "b", units(range(first_prompt, first_prompt + 4)), run_id="b", **changes)
    assert message in compared("a", "b", code=2)["error"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "a", "a"], "two paths, A and B"),
        (["a", "nosuch"], "an existing folder of runs"),
        (["a", "a", "margin=1%"], "a number between 0 and 1"),
        (["a", "a", "on=speed"], "one of decode"),
        (["a", "a", "fail_if=lower"], "faster, slower"),
        (["a", "a", "variation=2"], "a standard deviation from 0 to 1"),
        (["a", "a", "variation=a"], "two runs of one trace"),
        (["a", "method_a=knapspec", "method_b=swift"], "one of the methods of b: knapspec"),
        (["a", "a", "limit=3"], "limit=3"),
    ],
)
def test_bad_options_are_refused(words: list[str], message: str, compared: Compare, tmp_path: Path) -> None:
    write_record(tmp_path / "a", units(range(2)))
    assert message in compared(*words, code=2)["error"]


def method(name: str, **settings: Any) -> dict[str, Any]:
    """Return a method's names in a header."""
    return {"method": name, "config": {"method": {"name": name, **settings}}}


def test_folders_are_paired_by_configuration(compared: Compare, tmp_path: Path) -> None:
    for side, factor in (("a", 1.0), ("b", 1.1)):
        for number, name in enumerate(("swift", "knapspec")):
            prompts = range(10 * number, 10 * number + 5)
            write_record(tmp_path / side / name, units(prompts, factor), run_id=f"{side}{name}", **method(name))
    write_record(tmp_path / "a/clasp", units(range(5)), run_id="clasp", **method("clasp"))
    write_record(tmp_path / "b/swift_4", units(range(5)), run_id="swift_4", **method("swift", draft_len=4))
    result = compared("a", "b", "variation=0.001", "fail_if=slower", code=1)
    assert [row["pair"] for row in result["rows"] if row["quantity"] == "decode"] == [
        "all pairs",
        *sorted(("swift on toy", "knapspec on toy"), key=lambda label: result["text"].index(label)),
    ]
    assert row_of(result, "decode")["effect"] == pytest.approx(1 / 1.1) and row_of(result, "decode")["n"] == 10
    assert sorted(line.rpartition("(")[2] for line in result["unpaired"]) == ["clasp)", "swift_4)"]
    program("pack", "runs_dir=a", "out=packed.zip")
    packed = compared("packed.zip", "b", "variation=0.001")
    assert packed["rows"] == result["rows"]


def test_the_row_of_all_pairs_is_their_mean_and_counts_shared_prompts_once(compared: Compare, tmp_path: Path) -> None:
    for name in ("swift", "knapspec"):
        write_record(tmp_path / "a" / name, units(range(6)), run_id=f"a{name}", **method(name))
        write_record(tmp_path / "b" / name, units(range(6), accept=0.5), run_id=f"b{name}", **method(name))
    rows = [row for row in compared("a", "b")["rows"] if row["quantity"] == "M"]
    # both pairs are the same data, so together they say no more than each
    for key in ("effect", "low", "high", "n"):
        assert rows[0][key] == pytest.approx(rows[1][key]) == rows[2][key]


def test_two_methods_of_one_folder(compared: Compare, tmp_path: Path) -> None:
    write_record(tmp_path / "runs/swift", units(range(5)), run_id="swift", **method("swift"))
    write_record(tmp_path / "runs/knapspec", units(range(5), 2.0), run_id="knapspec", **method("knapspec", tau=1))
    result = compared("runs", "method_a=swift", "method_b=knapspec", "variation=0", "fail_if=faster,slower", code=1)
    assert row_of(result, "decode")["effect"] == pytest.approx(0.5)
    assert "knapspec on toy against swift on toy" in result["text"]


def test_repeated_runs_of_a_side_measure_variation_and_are_averaged(compared: Compare, tmp_path: Path) -> None:
    factors = {"a": (1.0, 1.02, 0.98), "b": (1.5, 1.53, 1.47)}
    for side, of_side in factors.items():
        for number, factor in enumerate(of_side):
            write_record(tmp_path / side / str(number), units(range(6), factor), run_id=f"{side}{number}")
    shutil.copytree(tmp_path / "a/0", tmp_path / "a/copy")  # no further timing
    result = compared("a", "b")
    row = row_of(result, "decode")
    # pooled within sides: a difference between the sides is in question and measures nothing
    logs = [np.log(of_side) for of_side in factors.values()]
    sigma = math.sqrt(sum(((log - log.mean()) ** 2).sum() for log in logs) / 4)
    assert f"measured SD {100 * sigma:.1f} % of a rate" in result["variation"] and 0.01 < sigma < 0.03
    half_width = stats.t.ppf(0.975, 4) * sigma * math.sqrt(1 / 3 + 1 / 3)
    assert math.log(row["high"] / row["effect"]) == pytest.approx(half_width, rel=1e-6)
    assert row["effect"] == pytest.approx(sum(factors["a"]) / sum(factors["b"]), rel=1e-6)
    assert row["verdict"] == "slower"


def test_contaminated_times_decide_nothing(compared: Compare) -> None:
    write_pair(range(5), 2.0, others_share=0.5)
    result = compared("a", "b", "variation=0", "fail_if=slower")
    assert row_of(result, "decode")["verdict"] == INCONCLUSIVE
    assert "other processes used 50 %" in row_of(result, "decode")["note"]
    assert row_of(result, "modelled")["verdict"] == EQUIVALENT


def test_one_prompt_decides_nothing(compared: Compare) -> None:
    write_pair([0], 2.0)
    result = compared("a", "b", "variation=0")
    assert {row["verdict"] for row in result["rows"]} == {INCONCLUSIVE}
    assert "only one prompt" in row_of(result, "decode")["note"]


def test_csv_has_the_rows_of_json(compared: Compare, tmp_path: Path) -> None:
    write_record(tmp_path / "a", units(range(4)))
    result = compared("a", "a")
    assert program("compare", "a", "a", "out=out.csv").returncode == 0
    with open("out.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [{name: "" if value is None else str(value) for name, value in row.items()} for row in result["rows"]]
    assert rows == texts and len(rows) == len(COMPARED)


def test_the_documented_recipe_fails_for_a_slower_run(compared: Compare) -> None:
    text = (ROOT / "docs/compare.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^\tpython -m ssd_bench compare (before after .*)", text, re.MULTILINE)
    write_record(Path("before"), units(range(6)), run_id="before")
    for factor, code in ((1.3, 1), (1.0, 0)):
        shutil.rmtree("after", ignore_errors=True)
        write_record(Path("after"), units(range(6), factor), run_id="after")
        compared(*recipe.split(), code=code)
