"""The record of a run whose prompts were shared out to several jobs (`shard=3/8`), made when all of them are done."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from ssd_bench.errors import ConfigError
from ssd_bench.plan import Plan
from ssd_bench.records.files import read_header
from ssd_bench.records.lease import Lease, LeaseHeld, hold_lease
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
    with _alone(plan):
        if not plan.folder(plan.shard).exists():
            return True
        if not recorded(plan):
            headers = [header for folder in folders if (header := _done(plan, folder)) is not None]
            if len(headers) < len(folders):
                return False
            with RunWriter(plan.run_dir, _common(headers), fresh=plan.config["force"], wait=True) as writer:
                if not writer.complete:
                    writer.adopt(folders, plan.units())
                    for arrays in folders[0].glob("*.npz"):
                        shutil.copy(arrays, plan.run_dir)
                    writer.finish(_together(headers) | {"scores": scores(writer)})
        _remove(plan)
    return True


def recorded(plan: Plan) -> bool:
    """Whether a plan's run is on record and is not to be repeated."""
    return not plan.config["force"] and is_complete(plan.run_dir, plan.content_key)


def clear(plan: Plan) -> None:
    """Remove what a process that was killed left of shards that are in the record."""
    together = _together_in(plan) if plan.shard is not None else None
    if together is not None and (together.is_dir() or together.with_name(f"{together.name}.lease").exists()):
        with _alone(plan):
            _remove(plan)


def _together_in(plan: Plan) -> Path:
    """The folder of all shards of the run."""
    return plan.folder(plan.shard).parent


def _alone(plan: Plan) -> AbstractContextManager[None]:
    """Among all that gather or clear this run: not in the folder that they remove, where others would wait for it."""
    folder = _together_in(plan)
    return hold_lease(folder.parent, f"{folder.name}.lease")


def _remove(plan: Plan) -> None:
    """Shards that nobody works on, and that are in the record or of no use since there is one."""
    together = _together_in(plan)
    for folder in [path for path in together.glob("*") if path.is_dir()]:
        with suppress(LeaseHeld, FileNotFoundError), Lease(folder, wait=False):
            if not _forced_since(plan, folder, _header(folder)):
                shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        together.rmdir()


def _done(plan: Plan, folder: Path) -> Mapping[str, Any] | None:
    """The header of a shard that can be gathered; with force=true one of those that are made again."""
    header = _header(folder)
    current = not plan.config["force"] or _forced_since(plan, folder, header)
    return header if current and header.get("status") == SHARD else None


def _forced_since(plan: Plan, folder: Path, header: Mapping[str, Any]) -> bool:
    """Whether a shard was made again, or is being made, since the record was."""
    record, own = (path / "run.json" for path in (plan.run_dir, folder))
    forced = bool((header.get("config") or {}).get("force"))
    return forced and (not record.exists() or own.stat().st_mtime_ns > record.stat().st_mtime_ns)


def _header(folder: Path) -> Mapping[str, Any]:
    try:
        return read_header(folder)
    except ConfigError:
        return {}


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
