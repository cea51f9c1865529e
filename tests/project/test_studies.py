"""Quick checks that `studies/` still makes the committed files; `make studies` runs all of its tests."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

import pytest

from ssd_bench.compose.build import task_names
from ssd_bench.data import SampleSource
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import EMBEDDED
from ssd_bench.papers.ssd_bench import plane
from ssd_bench.papers.ssd_bench.plane import Plane, Point, Use
from studies import frontier
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


def test_a_plane_is_read_as_written(tmp_path: Path) -> None:
    points = (Point((1, 4), 0.5, 0.75, (Use("run", "method", 1.0),), (4, 60)), Point((), 1.0, 1.0))
    written = Plane("m", "t", 4, "beam of 2", 9, 70, 12.5, (1.0, 1.1), points[1:], points)
    path = frontier.write(tmp_path, written)
    assert plane.read(path) == written
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"chosen": 1}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"frontier=.*m\.t\.json"):
        plane.read(path)
