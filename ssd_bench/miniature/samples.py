"""The rows of `data=sample`: held-out items of the corpus, and demonstrations from its training split."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ssd_bench.miniature import corpus
from ssd_bench.miniature.domains.item import Item

ITEMS, SHOTS = 40, 8
SEED = 1
# Tasks that share a domain with another; theirs are further items of it.
ALSO: Mapping[str, str] = {"aime25": "boxed", "wmt14": "translation"}


def write(folder: Path | None = None) -> list[Path]:
    """Write one JSONL file a task (and one of demonstrations where it shows any) into `folder`.

    Args:
        folder: default: the package's `tasks/sample`.

    Returns:
        The files.
    """
    from importlib.resources import files

    folder = folder or Path(str(files("tasks.sample")))
    domain_of = {domain.task: name for name, domain in corpus.DOMAINS.items()} | dict(ALSO)
    written = []
    for task, domain in domain_of.items():
        items, *shots = corpus.task_named(task).files("plain")
        found = corpus.distinct(domain, 2 * ITEMS, SEED)
        rows = found[ITEMS:] if task in ALSO else found[:ITEMS]
        written.append(_write(folder / f"{items.name}.jsonl", rows, f"{task}-held-out"))
        for spec in shots:
            train = corpus.distinct(domain, SHOTS, SEED, evaluation=False)
            written.append(_write(folder / f"{spec.name}.jsonl", train, f"{task}-train"))
    return written


def _write(path: Path, made: Sequence[Item], prefix: str) -> Path:
    lines = [json.dumps({"id": f"{prefix}-{i}", **item.row}, ensure_ascii=False) for i, item in enumerate(made)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
