"""`results.parquet` in a run's folder: its content for pandas, and that it can be made again."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from ssd_bench.results.digest import summarise
from ssd_bench.results.numbers import domain_numbers
from ssd_bench.results.prompt_table import PromptTable
from ssd_bench.results.quantity import QUANTITIES
from ssd_bench.results.table_file import RESULTS, results_table
from tests.runs import executed
from tests.synthetic import unit, with_work, write_run

NUMBERS = ["M", "alpha", "speedup", "speedup_modelled", "tpt_predicted"]


def test_pandas_reads_the_numbers_of_a_fresh_run_in_one_line(tmp_path: Path) -> None:
    options = "method=fixed_layers", "task=gsm8k", "limit=2", "decode.max_new_tokens=24"
    run = executed(tmp_path, *options)
    frame = pd.read_parquet(run.path / RESULTS).set_index("level")
    summary = summarise(run)
    assert list(frame.loc["run", NUMBERS]) == [summary.row[name] for name in NUMBERS]
    assert frame.loc["run", "speedup_low"] == summary.speedup.low
    assert len(frame.loc["prompt"]) == 2 and frame.loc["prompt", "M"].notna().all()
    made_again = results_table(run).to_pandas().set_index("level")
    pd.testing.assert_frame_equal(made_again, frame)
    (run.path / RESULTS).unlink()  # as if the job had been killed before it wrote this file
    executed(tmp_path, *options)
    pd.testing.assert_frame_equal(pd.read_parquet(run.path / RESULTS).set_index("level"), frame)


def test_domains_and_prompts_have_the_definitions_of_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [with_work(unit(i)) for i in range(6)])
    run.prompts["domain"] = ["ab"[index % 2] for index in run.prompts["prompt_index"]]
    frame = results_table(run).to_pandas()
    domains = frame[frame["level"] == "domain"].set_index("domain")
    for summary in domain_numbers(run):
        assert domains.loc[summary.domain, "speedup"] == summary.speedup.value
        assert domains.loc[summary.domain, "alpha_low"] == pytest.approx(summary.alpha.low)
    prompts = frame[frame["level"] == "prompt"].set_index("prompt_index")
    for index in prompts.index:
        own = PromptTable.of(run).restrict([index])
        for key in own.defined:
            value = own.value(key)
            assert prompts.loc[index, key] == pytest.approx(math.nan if value is None else value, nan_ok=True)
    assert (prompts["n_prompts"] == 1).all() and set(QUANTITIES) < set(frame)
