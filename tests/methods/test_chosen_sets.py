"""Choices of the presets that follow released code are fixed: their sets on a short and a long prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ssd_bench.records.reader import Run
from tests.runs import executed

GOLDEN = Path(__file__).with_name("chosen_sets.json")
TASKS = ("aime24", "govreport")
# On the command line's own kernels at a level that every CPU has; more events than these outputs would see.
OPTIONS = ("hardware.isa=generic", "limit=1", "decode.max_new_tokens=120", "method.interval=4", "baseline=none")


def chosen(run: Run) -> list[list[object]]:
    """[step, skipped attentions, skipped MLPs] of every step with another set than the last."""
    sets = run.layer_sets.set_index("layer_set_id")
    found: list[list[object]] = []
    before = None
    for step, identity in run.steps[["step", "layer_set_id"]].dropna().itertuples(index=False):
        if identity != before:
            row = sets.loc[int(identity)]
            found.append([int(step), list(map(int, row["skip_attn"])), list(map(int, row["skip_mlp"]))])
        before = identity
    return found


@pytest.mark.parametrize("method", ["knapspec_code", "clasp_knapspec"])
def test_sets_under_given_costs_stay_as_they_were(method: str, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))[method]
    made = {task: chosen(executed(tmp_path, f"method={method}", f"task={task}", *OPTIONS)) for task in TASKS}
    assert made == golden
    assert all(len(steps) > 1 for steps in golden.values()), "searches took place"
