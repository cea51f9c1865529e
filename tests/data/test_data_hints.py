"""Options named in messages about data are typed here, and the run gets past the fault."""

from __future__ import annotations

import re
from pathlib import Path

import datasets
import pytest

from ssd_bench.errors import ConfigError
from tests.data.test_data_hub import Rows, qa, repository
from tests.hub.layouts import card
from tests.runs import planned

HINT = re.compile(r"(?:[\s'(;])(\+?(?:task|calibrate|data)[\w.]*=[^\s;,')]+)")
NEWS = [{"article": f"a{i}", "highlights": f"h{i}"} for i in range(9)]
ALPACA = [{"instruction": f"i{i}", "input": "", "output": f"o{i}"} for i in range(9)]


def options(folder: Path, path: str, rows: Rows, place: str, split: str = "test") -> list[str]:
    repository(folder / path, {f"{split}.jsonl": rows})
    return [f"{place}.path={folder / path}", f"{place}.name=null", f"{place}.split={split}", f"{place}.revision=null"]


def cases(folder: Path) -> dict[str, tuple[list[str], str]]:
    """Return refused command lines, each with the option that its message must name."""
    gsm8k, alpaca = options(folder, "qa", qa(*range(9)), "task.hub"), options(folder, "al", ALPACA, "task.hub.knn_ssd")
    train = options(folder, "shots", qa(*range(20, 29)), "task.fewshot_hub", split="train")
    stream = ["task=stream", "~task.parts.wmt16", "~task.parts.spider2", "~task.parts.tinystories", "task.items=1"]
    stream += options(folder, "cnn", NEWS, "task.parts.cnn_dm.hub")
    stream += [*options(folder, "qa", qa(*range(9)), "task.parts.gsm8k.hub"), "task.parts.gsm8k.hub.rows=null"]
    sql = [*options(folder, "sql", [{"question": "q", "db": "d"}], "task.hub"), "task.hub.rows=null"]
    mixed = ["task=stream", *(f"~task.parts.{part}" for part in ("tinystories", "gsm8k", "wmt16")), "task.items=1"]
    mixed += options(folder, "cnn", NEWS, "task.parts.cnn_dm.hub")
    mixed += ["task.parts.cnn_dm.hub.rows=null", "task.parts.cnn_dm.shots=0"]
    shift = ["task=stream_shift", "~task.parts.wmt14", "~task.parts.gsm8k", "task.items=1"]
    shift += [*options(folder, "cnn", NEWS, "task.parts.cnn_dm.hub"), "task.parts.cnn_dm.hub.rows=null"]
    shift += options(folder, "al", ALPACA, "task.parts.alpaca.hub.conflayers")
    school = ["task=gsm8k", *gsm8k, "task.hub.rows=null", "task@calibrate=gsm8k"]
    school += ["method=layerskip_swept", "method.calibration=1"]
    school += [option.replace("task.hub", "calibrate.hub") for option in gsm8k]
    stated = folder / "stated"
    splits = [{"name": "test", "num_bytes": 1, "num_examples": 8}]
    features = [{"name": name, "dtype": "string"} for name in ("question", "answer", "prompt")]
    rows = [row | {"prompt": "p"} for row in qa(*range(9))]
    info = {"config_name": "default", "features": features, "splits": splits}
    repository(stated, {"test.jsonl": rows}, card({"default": {"test": "test.jsonl"}}, dataset_info=[info]))
    described = [f"task.hub.path={stated}", "task.hub.name=default", "task.hub.split=test", "task.hub.revision=null"]
    jsonl = f"+task.hub={{path: {stated}, name: default, split: test, revision: null}}"
    return {
        "rows": (["task=gsm8k", *gsm8k], "task.hub.rows"),
        "rows of demonstrations": (
            ["task=gsm8k", *gsm8k, "task.hub.rows=null", *train, "model.template=plain"],
            "task.fewshot_hub.rows",
        ),
        "rows of a variant": (["task=alpaca", *alpaca], "task.hub.knn_ssd.rows"),
        "rows of a part": (stream, "task.parts.cnn_dm.hub.rows"),
        "rows of a part's variant": (shift, "task.parts.alpaca.hub.conflayers.rows"),
        "rows of calibration": (school, "calibrate.hub.rows"),
        "rows of a card": (["task=gsm8k", *described, "task.hub.rows=null"], "task.hub.rows"),
        "rows of a card, without the option": (["task=gsm8k", *described, "~task.hub.rows"], "+task.hub.rows"),
        "rows of a card, of one's own prompts": (["task=jsonl", jsonl], "+task.hub.rows"),
        "demonstrations": (["task=spider2", *sql, "model.template=plain"], "task.shots"),
        "demonstrations of a part": (
            [*mixed, *(option.replace("task.hub", "task.parts.spider2.hub") for option in sql), "model.template=plain"],
            "task.parts.spider2.shots",
        ),
    }


def outcome(folder: Path, *line: str) -> str:
    try:
        planned(folder, *line)
    except ConfigError as error:
        return str(error)
    return "no refusal"


def test_every_option_that_a_message_names_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, (line, option) in cases(tmp_path).items():
        words = [*line, "data=hub", "limit=1", "decode.max_new_tokens=2"]
        refused = outcome(tmp_path, *words)
        hints = [hint for hint in HINT.findall(refused) if not hint.startswith("data=")]
        assert [hint.partition("=")[0] for hint in hints] == [option], name
        assert outcome(tmp_path, *words, *hints) != refused, name


def test_a_part_of_a_stream_names_its_options(tmp_path: Path) -> None:
    for line, place in (
        ("task=stream task.parts.gsm8k.shots=-1", "task.parts.gsm8k.shots=-1"),
        ("task=stream task.parts.cnn_dm.variant=swift", "task.parts.cnn_dm.variant='swift'"),
        ("task=stream task.items=1 task.parts.gsm8k.shots=9 model.template=plain", "task.parts.gsm8k.shots=9"),
        ("task=gsm8k task@calibrate=gsm8k calibrate.shots=-1 method=layerskip_swept", "calibrate.shots=-1"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(place)} is invalid"):
            planned(tmp_path, *line.split())
