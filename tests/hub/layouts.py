"""Small data sets in the tasks' repository layouts: file names, columns, cards.

Contents are the project's own samples. Layouts follow the repositories' listings in public code and pages;
`kmfoda/booksum`, `xlangai/spider2-lite`, `nvidia/SPEED-Bench` and `EdinburghNLP/xsum` at its pin are not confirmed.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow
import pyarrow.parquet

from ssd_bench.data import SampleSource
from tasks.math500 import SUBJECTS, known_subject
from tests.hub.server import Hub

Rows = Sequence[Mapping[str, Any]]
Files = dict[str, bytes | str]
OTHER = "0" * 39 + "1"  # a commit that no task pins, which `main` points to where a task pins one


def sample(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file of `tasks/sample`, without ids."""
    folder = SampleSource().root
    assert folder is not None
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "id"} for line in lines]


def parquet(rows: Rows) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), sink)
    return sink.getvalue()


def jsonl(rows: Rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def table(rows: Rows) -> str:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue()


def card(configs: Mapping[str, Mapping[str, str]], **more: object) -> str:
    """Return a README that lists files by configuration and split."""
    listed = [
        {"config_name": name, "data_files": [{"split": split, "path": path} for split, path in splits.items()]}
        for name, splits in configs.items()
    ]
    return f"---\n{json.dumps({'configs': listed} | more)}\n---\n# A data set\n"


def shards(folder: str, split: str, rows: Rows, count: int = 1) -> Files:
    size = -(-len(rows) // count)
    parts = [rows[at : at + size] for at in range(0, len(rows), size)]
    return {f"{folder}/{split}-{i:05}-of-{len(parts):05}.parquet": parquet(part) for i, part in enumerate(parts)}


def grouped(folders: Mapping[str, Mapping[str, Rows]]) -> Files:
    """Return a repository with a folder for each configuration, and a card that lists them."""
    files: Files = {}
    for folder, splits in folders.items():
        for split, rows in splits.items():
            files |= shards(folder, split, rows, count=2 if split == "train" else 1)
    listed = {folder: {split: f"{folder}/{split}-*" for split in splits} for folder, splits in folders.items()}
    return files | {"README.md": card(listed), ".gitattributes": "*.parquet filter=lfs"}


def renamed(rows: Rows, drop: Iterable[str] = (), **names: str) -> list[dict[str, Any]]:
    """Return rows with the repository's column names, `column=field`."""
    column_of = {field: column for column, field in names.items()}
    return [{column_of.get(k, k): v for k, v in row.items() if k not in {*drop}} for row in rows]


def numbered(rows: Rows, **more: Any) -> list[dict[str, Any]]:
    """Return rows with columns that no task reads, including a numeric `id`."""
    return [{"id": 60 + i, **row, **more} for i, row in enumerate(rows)]


def translated(name: str) -> list[dict[str, Any]]:
    """Return pairs of sentences in the nested column of the WMT data sets."""
    return [{"translation": {"de": row["source_de"], "en": row["target_en"]}} for row in sample(name)]


def xsum_train() -> list[dict[str, Any]]:
    """Return the other news' demonstrations: XSum has no sample."""
    return renamed(sample("cnndm.fewshot"), document="article", summary="highlights")


def by_subject(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    return {subject: [row for row in rows if known_subject(dict(row)) == subject] for subject in SUBJECTS}


def wmt(name: str, **splits: list[dict[str, Any]]) -> Files:
    """Return a WMT repository, whose card also states features and numbers of rows."""
    languages = {"dtype": {"translation": {"languages": ["de", "en"]}}, "name": "translation"}
    stated = [{"name": split, "num_bytes": 1, "num_examples": len(rows)} for split, rows in splits.items()]
    info = [{"config_name": "de-en", "features": [languages], "splits": stated}]
    files = grouped({"de-en": splits, "cs-en": {"test": translated(name)[:2]}})
    configs = {"de-en": {split: f"de-en/{split}-*" for split in splits}, "cs-en": {"test": "cs-en/test-*"}}
    return files | {"README.md": card(configs, dataset_info=info)}


def repositories() -> dict[str, Files]:
    gsm8k, math = sample("gsm8k"), renamed(sample("math500.fewshot"), ["answer"], type="subject")
    aime25, stories = renamed(sample("aime25"), question="problem"), sample("tinystories")
    booksum, mbpp = numbered(sample("booksum"), is_aggregate=False), renamed(sample("mbpp"), ["test_imports"])
    subjects = by_subject([row | {"subject": row["type"]} for row in math])
    algebra = {name: {"train": renamed(rows, ["subject"])} for name, rows in subjects.items()}
    news = {"test": numbered(sample("cnndm")), "train": numbered(sample("cnndm.fewshot"))}
    return {
        "openai/gsm8k": grouped(
            {
                "main": {"train": sample("gsm8k.fewshot"), "test": gsm8k},
                "socratic": {"test": gsm8k[:3]},
            }
        ),
        "HuggingFaceH4/MATH-500": {
            "README.md": "---\nlicense: mit\n---\n",
            "test.jsonl": jsonl([row | {"level": 3, "unique_id": f"u{i}"} for i, row in enumerate(sample("math500"))]),
        },
        "EleutherAI/hendrycks_math": grouped(algebra),
        "HuggingFaceH4/aime_2024": shards("data", "train", numbered(sample("aime24"), year="2024"))
        | {"README.md": card({"default": {"train": "data/train-*"}})},
        "opencompass/AIME2025": {
            "README.md": card({f"AIME2025-{part}": {"test": f"aime2025-{part}.jsonl"} for part in ("I", "II")}),
            "aime2025-I.jsonl": jsonl(aime25[:30]),
            "aime2025-II.jsonl": jsonl(aime25[30:]),
        },
        "TIGER-Lab/MMLU-Pro": shards("data", "validation", numbered(sample("mmlu_pro"), cot_content=""))
        | shards("data", "test", sample("mmlu_pro")[:5])
        | {"README.md": card({"default": {"test": "data/test-*", "validation": "data/validation-*"}})},
        "ccdv/govreport-summarization": grouped({"document": {"test": sample("govreport")}}),
        "emozilla/pg19": shards("data", "train", sample("pg19"), 6) | shards("data", "test", sample("pg19"), 2),
        "kmfoda/booksum": {
            f"{split}.csv": table(booksum if split == "test" else booksum[:2])
            for split in ("train", "validation", "test")
        },
        "abisee/cnn_dailymail": grouped(dict.fromkeys(("1.0.0", "3.0.0"), news)),
        "EdinburghNLP/xsum": {  # a commit of the converted branch, without a card
            "default/test/0000.parquet": parquet(numbered(sample("xsum"))),
            "default/train/0000.parquet": parquet(numbered(xsum_train())),
        },
        "roneneldan/TinyStories": shards("data", "validation", stories)
        | shards("data", "train", stories[:4], 4)
        | {
            "TinyStories-train.txt": "a story\n",
            "TinyStories_all_data.tar.gz": b"no archive",
            "README.md": "---\nlicense: cdla-sharing-1.0\n---\n",
        },
        "wmt/wmt16": wmt("wmt16_deen", test=translated("wmt16_deen"), train=translated("wmt16_deen.fewshot")),
        "wmt/wmt14": wmt("wmt14_deen", test=translated("wmt14_deen"), train=translated("wmt14_deen")[:9]),
        "google-research-datasets/nq_open": grouped({"nq_open": {"validation": sample("natural_questions")}}),
        "xlangai/spider": grouped(
            {
                "spider": {
                    "train": renamed(sample("spider.fewshot"), ["schema"]),
                    "validation": renamed(sample("spider"), ["schema"]),
                }
            }
        ),
        "xlangai/spider2-lite": {
            "spider2-lite.jsonl": jsonl(
                [
                    {"instance_id": f"bq{i}", "db": "shop", "question": row["question"], "external_knowledge": None}
                    for i, row in enumerate(sample("spider2_lite"))
                ]
            )
        },
        "openai/openai_humaneval": grouped({"openai_humaneval": {"test": sample("humaneval")}}),
        "tatsu-lab/alpaca": {"data/train-00000-of-00001-a09b74b3ef9c3b56.parquet": parquet(sample("alpaca"))},
        "google-research-datasets/mbpp": grouped(
            {
                "full": {"test": mbpp[:1]},
                "sanitized": {"test": mbpp, "prompt": sample("mbpp.fewshot"), "train": mbpp[:2]},
            }
        ),
        "HuggingFaceH4/mt_bench_prompts": shards("data", "train", renamed(sample("mt_bench"), prompt="turns"))
        | {"raw/question.jsonl": jsonl(sample("mt_bench")[:1])},
        "nvidia/SPEED-Bench": grouped(
            {"qualitative": {"test": sample("speed_bench")}, "throughput_1k": {"test": sample("speed_bench")[:2]}}
        ),
        "somebody/prompts": {"data/test.jsonl": jsonl(sample("jsonl"))},
    }


def publish(hub: Hub, pins: Mapping[str, str]) -> None:
    """Give a hub all repositories.

    Args:
        pins: commit or branch of each; a pinned repository's `main` is another, unreadable commit.
    """
    for name, files in repositories().items():
        repository = hub.dataset(name)
        if (pin := pins.get(name, "main")) == "main":
            repository.commit(files)
        else:
            repository.commit(files, sha=pin, branch=None)
            repository.commit({"README.md": "moved"}, sha=OTHER)


def local_rows(file: str, split: str) -> list[dict[str, Any]]:
    """Return the rows of a local file with the same items, under a hub's ids."""
    rows = xsum_train() if file == "xsum.fewshot" else sample({"alpaca.fewshot": "alpaca"}.get(file, file))
    if file == "math500.fewshot":
        rows = [dict(row) for group in by_subject(rows).values() for row in group]
    elif file.startswith("alpaca"):
        tenth = len(rows) // 10
        rows = {"train": rows, "train[:10%]": rows[:tenth], "train[10%:]": rows[tenth:]}[split]
    elif file.startswith("spider"):
        kept = {"spider2_lite": {"question"}}.get(file, {"question", "query"})
        rows = [{key: value for key, value in row.items() if key in kept} for row in rows]
    return [row | {"id": f"{file.partition('.')[0]}-{split}-{i}"} for i, row in enumerate(rows)]
