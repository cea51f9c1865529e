"""The rows of `data=sample`: held-out items of the corpus, and demonstrations from its training split."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd_bench.compose.build import task_named
from studies.miniature import corpus
from studies.miniature.domains import queries
from studies.miniature.domains.item import Item

ITEMS, SHOTS = 60, 8
SEED = 1
# Five demonstrations for each of seven subjects, and some that may be items in a run with other settings.
MORE_SHOTS: Mapping[str, int] = {"math": 80}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """Source of the rows of a task.

    Attributes:
        domain: domain of the corpus.
        turn: number of tasks that take their items from this domain before this task does.
        row: returns an item's fields as the task reads them.
    """

    domain: str
    turn: int
    row: Callable[[Item], Row]


def sources() -> dict[str, Source]:
    """Return the source of every task with samples; for a task of several domains, the first domain."""
    by_task = {domain.task: Source(name, 0, domain.row) for name, domain in reversed(list(corpus.EVERY.items()))}
    return by_task | {
        "aime25": Source("derivations", 1, lambda item: item.row),
        "wmt14": Source("translation", 1, lambda item: item.row),
        "pg19": Source("audits", 1, lambda item: {"text": item.row["report"]}),
        "booksum": Source("audits", 2, _chapter),
        "spider": Source("queries", 1, queries.bare),
        "mt_bench": Source("chats", 0, _conversation),
        "spec_bench": Source("chats", 1, _conversation),
        "speed_bench": Source("chats", 2, _conversation),
        "mbpp": Source("programs", 1, _problem),
        "jsonl": Source("chats", 3, _prompts),
    }


def _chapter(item: Item) -> Row:
    return {"chapter": item.row["report"], "summary_text": item.row["summary"]}


def _conversation(item: Item) -> Row:
    """Return the turns as in the miniature's training: the first is an instruction in the format of Alpaca."""
    category = item.answer.partition(" ")[0].strip(":.").lower().replace("it", "queue")
    first = f"Instruction: {item.row['instruction']}\n{item.row['input']}\nAnswer:"
    return {"category": category, "turns": [first, *(message for message, _ in item.further)]}


def _problem(item: Item) -> Row:
    """Return a task to write a function, with the examples of its docstring as tests."""
    head, _, doc = str(item.row["prompt"]).partition('"""')
    steps, *examples = doc.rstrip().removesuffix('"""').split(">>> ")
    tests = [
        f"assert {call.strip()} == {result.strip()}"
        for call, result in (example.split("\n")[:2] for example in examples)
    ]
    prompt = f"Write {item.row['entry_point']}. {' '.join(steps.split())}"
    return {"prompt": prompt, "code": f"{head.rstrip()}\n{item.row['canonical_solution']}".rstrip(), "test_list": tests}


def _prompts(item: Item) -> Row:
    conversation = _conversation(item)
    return {"prompt": conversation["turns"], "category": conversation["category"]}


def files() -> Iterator[tuple[str, list[Row]]]:
    """Yield stem and rows of every file, a task's items before its demonstrations."""
    for task, source in sources().items():
        items, *shots = task_named(task).files("plain")
        yield items.name, _rows(source, f"{task}-held-out", ITEMS, evaluation=True)
        for spec in shots:
            yield spec.name, _rows(source, f"{task}-train", MORE_SHOTS.get(task, SHOTS), evaluation=False)


def _rows(source: Source, prefix: str, count: int, *, evaluation: bool) -> list[Row]:
    sampled = corpus.distinct(source.domain, (source.turn + 1) * count, SEED, evaluation)[source.turn * count :]
    return [{"id": f"{prefix}-{i}", **source.row(item)} for i, item in enumerate(sampled)]


def write(folder: Path | None = None) -> list[Path]:
    """Write a JSONL file per task, and one of demonstrations if the task uses any.

    Args:
        folder: target; by default the package's `tasks/sample`.

    Returns:
        Paths of the files.
    """
    from importlib import resources

    folder = folder or Path(str(resources.files("tasks.sample")))
    return [_write(folder / f"{name}.jsonl", rows) for name, rows in files()]


def _write(path: Path, rows: Sequence[Row]) -> Path:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
