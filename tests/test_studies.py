"""Quick checks that the code in `studies/` still makes the committed files; `make studies` runs all of its tests."""

from __future__ import annotations

import csv
import hashlib
import json

import pytest

from ssd_bench.compose.build import task_names
from ssd_bench.data import SampleSource
from ssd_bench.model.checkpoint import EMBEDDED
from studies.miniature import corpus, samples
from studies.miniature.recipe import RECIPES
from studies.miniature.train import LOG, SUMMARY


@pytest.mark.parametrize("name", RECIPES)
def test_the_weights_are_those_of_the_log(name: str) -> None:
    folder = EMBEDDED / name
    summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    weights = (folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == summary["weights_sha256"] and len(weights) <= 12e6
    assert summary["recipe"] == json.loads(json.dumps(RECIPES[name].as_dict())) and summary["parameters"] <= 6e6
    rows = list(csv.DictReader((folder / LOG).open()))
    assert [int(row["step"]) for row in rows] == list(range(RECIPES[name].steps))
    assert int(rows[-1]["tokens"]) == summary["tokens"]


def test_the_first_sample_of_a_task_is_the_first_held_out_item() -> None:
    source, folder = samples.sources()["gsm8k"], SampleSource().root
    assert folder is not None and set(samples.sources()) <= set(task_names())
    (item,) = corpus.distinct(source.domain, 1, 1, evaluation=True)
    first = json.loads((folder / "gsm8k.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert source.row(item).items() <= first.items()
