"""The record of a run whose prompts were shared out to several jobs (`shard=3/8`), made when all of them are done."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ssd_bench.errors import ConfigError
from ssd_bench.plan import Plan
from ssd_bench.records.files import read_header
from ssd_bench.records.lease import Lease, owned
from ssd_bench.records.reader import is_complete
from ssd_bench.records.writer import SHARD, RunWriter

SUMMED = ("load_ms", "profile_ms", "prepare_ms", "warmup_ms", "wall_s")
WORST = ("base_bytes", "others_share")
OF_EACH = ("provenance", "latency", "model", *SUMMED)
"""What stands in the record for every shard."""


def gathered(plan: Plan, scores: Callable[[RunWriter], Mapping[str, Any]]) -> bool:
    """Make the record of a plan's run if all of its shards are done, and remove them; false if they are not.

    Of several that end at once one makes it, and the others find it made.

    Times of loading, searching and warming up are those of all shards together, memory and disturbance the largest.

    Args:
        scores: of what a writer has.

    Raises:
        ConfigError: a shard's file is damaged.
    """
    assert plan.shard is not None, "asked of a shard"
    folders = [plan.folder(shard) for shard in plan.shard.all]
    together = folders[0].parent
    with owned(together.parent, f"{together.name}.lease"):  # not in what is removed, where others wait for it
        if not plan.folder(plan.shard).exists():
            return True
        if not recorded(plan):
            headers = [header for folder in folders if (header := _done(folder)) is not None]
            if len(headers) < len(folders):
                return False
            with RunWriter(plan.run_dir, _common(headers), fresh=plan.config["force"], wait=True) as writer:
                if not writer.complete:
                    writer.adopt(folders, plan.units())
                    for arrays in folders[0].glob("*.npz"):
                        shutil.copy(arrays, plan.run_dir)
                    writer.finish(_together(headers) | {"scores": scores(writer)})
        _remove(folders)
    return True


def recorded(plan: Plan) -> bool:
    """Whether a plan's run is on record and is not to be repeated."""
    return not plan.config["force"] and is_complete(plan.run_dir, plan.content_key)


def _remove(folders: Sequence[Path]) -> None:
    """Shards that are in the record; who waits for one finds none."""
    with ExitStack() as leases:
        for folder in folders:
            if folder.is_dir():
                leases.enter_context(Lease(folder))
        shutil.rmtree(folders[0].parent, ignore_errors=True)  # what comes in meanwhile is another's, who removes it


def _done(folder: Path) -> dict[str, Any] | None:
    try:
        header = read_header(folder)
    except ConfigError:
        return None
    return header if header.get("status") == SHARD else None


def _common(headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the record begins with: the first shard's, as if there were no others."""
    first = headers[0]
    return {**first, "config": {**first["config"], "shard": None}}


def _together(headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summed = {key: sum(header[key] for header in headers) for key in SUMMED}
    worst = {key: max((header[key] for header in headers if header[key] is not None), default=None) for key in WORST}
    warnings = list(dict.fromkeys(one for header in headers for one in header["warnings"]))
    found = sorted((one for header in headers for one in header["searches"]), key=lambda one: one["new"])
    beside = list({tuple(one.items()): one for header in headers for one in header["beside"]}.values())
    searches = list({one["name"]: one for one in found}.values())  # made by one shard, found by the others
    return (
        summed
        | worst
        | {
            "warnings": warnings,
            "searches": searches,
            "beside": beside,
            "shards": [{key: header[key] for key in OF_EACH} for header in headers],
        }
    )
