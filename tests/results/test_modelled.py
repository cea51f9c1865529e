"""Modelled numbers of whole runs: the main job's methods at the reference machine's costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ssd_bench.results.digest import summarise
from ssd_bench.results.modelled import REFERENCE
from ssd_bench.results.prompt_table import PromptTable
from tests.runs import executed

SPEEDUPS = {"knapspec": 1.43, "swift": 1.31, "clasp": 1.43, "conflayers": 1.37, "adaptive": 2.03}
"""Modelled speedups of `make run`'s methods, with the reference machine's costs where a method asks for costs."""
EVERYWHERE = ("hardware.isa=generic", "hardware.latency=null", f"hardware.costs={REFERENCE}")  # the same bits
RUN = ("task=aime24", "limit=1", "decode.max_new_tokens=160", *EVERYWHERE)


@pytest.mark.parametrize("method", SPEEDUPS)
def test_the_main_job_has_the_same_modelled_speedup_everywhere(method: str, tmp_path: Path) -> None:
    run = executed(tmp_path, f"method={method}", *RUN)
    summary = summarise(run)
    assert summary.modelled_on == REFERENCE
    assert summary.speedup_modelled.value == pytest.approx(SPEEDUPS[method], abs=0.005)
    # no time of this machine is part of it
    slower = replace(run, steps=run.steps.assign(policy_ms=1e3 * run.steps["policy_ms"]), work=run.work.assign(ms=1.0))
    assert PromptTable.of(slower).number("speedup_modelled") == summary.speedup_modelled
