"""Shards: one record of a run whose prompts several jobs share (`shard=3/8`), merged once all are done."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from ssd_bench.errors import ConfigError
from ssd_bench.lease import Lease, LeaseHeld, hold_lease
from ssd_bench.records.files import read_header
from ssd_bench.records.writer import SHARD, RunWriter, clear_leftovers
from ssd_bench.results.table_file import complete_results
from ssd_bench.run.plan import Plan, Shard
from ssd_bench.run.run import is_on_record, measure, open_record, task_scores
from ssd_bench.run_warnings import WarningLog

SUMMED = ("load_ms", "profile_ms", "prepare_ms", "warmup_ms", "wall_s")
WORST = ("base_bytes", "others_share")
PER_SHARD = ("provenance", "latency", "model", "prepare_work", *SUMMED)
"""Keys of the header that the record keeps for every shard."""


def execute_shard(plan: Plan, wait: bool = True, log: WarningLog | None = None) -> Path | None:
    """Run one shard of a plan, as `run.execute`; return the record's folder once all shards are merged, else None."""
    run_dir, shard_dir = plan.identity.run_dir, plan.identity.folder
    if is_on_record(plan):
        clear_shards(plan)
        clear_leftovers(run_dir)
        complete_results(run_dir)
        return run_dir
    with open_record(plan, wait, log) as (writer, stopping):
        is_done = writer.header["status"] == SHARD and writer.done.issuperset(plan.work_items)
        if not is_on_record(plan) and not is_done:
            measure(plan, writer, writer.finish_shard, stopping, log)
    if merge_shards(plan):
        complete_results(run_dir)
        return run_dir
    print(f"shard {shard_dir.name} is done; the record is written once all shards are done: {shard_dir.parent}")
    return None


def merge_shards(plan: Plan) -> bool:
    """Merge all shards of a plan's run into its record and remove them; false if some are not done.

    If several jobs end at once, one merges and the others find the record. It has the sums of the shards' times of
    loading, searching and warming up, and the maxima of base memory and of other processes' CPU share.

    Raises:
        ConfigError: a shard's file is damaged.
    """
    shard, run_dir = plan.identity.shard, plan.identity.run_dir
    assert shard is not None, "only shards are merged"
    folders = [Shard(number, shard.of).folder(run_dir) for number in range(1, shard.of + 1)]
    with _merge_lock(plan):
        if not plan.identity.folder.exists():  # another job has merged and removed it
            return True
        if not plan.is_recorded():
            headers = [header for folder in folders if (header := _finished_header(plan, folder)) is not None]
            if len(headers) < len(folders):
                return False
            first = {**headers[0], "config": headers[0]["config"] | {"shard": None}}
            with RunWriter(run_dir, first, fresh=plan.config["force"], wait=True) as writer:
                if not writer.complete:
                    writer.adopt(folders, plan.run_items)
                    for arrays in folders[0].glob("*.npz"):
                        shutil.copy(arrays, run_dir)
                    writer.finish(_merged_header(headers) | {"scores": task_scores(plan, writer)})
        _remove(plan)
    return True


def clear_shards(plan: Plan) -> None:
    """Remove recorded shards that a killed process left behind."""
    folder = _shards_folder(plan)
    if folder.is_dir() or folder.with_name(f"{folder.name}.lease").exists():
        with _merge_lock(plan):
            _remove(plan)


def _shards_folder(plan: Plan) -> Path:
    return plan.identity.folder.parent


def _merge_lock(plan: Plan) -> AbstractContextManager[None]:
    """Lock out processes that merge or delete these shards; the lock is next to their folder, which is deleted."""
    folder = _shards_folder(plan)
    return hold_lease(folder.parent, f"{folder.name}.lease")


def _remove(plan: Plan) -> None:
    """Delete a recorded run's shards, except shards in use or repeated (force=true) after the record."""
    shards = _shards_folder(plan)
    for folder in [path for path in shards.glob("*") if path.is_dir()]:
        with suppress(LeaseHeld, FileNotFoundError), Lease(folder, wait=False):
            if not _forced_since(plan, folder, _header(folder)):
                shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        shards.rmdir()


def _finished_header(plan: Plan, folder: Path) -> Mapping[str, Any] | None:
    """Return the header of a mergeable shard, else None; with force=true the shard must have been repeated."""
    header = _header(folder)
    current = not plan.config["force"] or _forced_since(plan, folder, header)
    return header if current and header.get("status") == SHARD else None


def _forced_since(plan: Plan, folder: Path, header: Mapping[str, Any]) -> bool:
    """Return whether a shard was or is being repeated with force=true since the record was written."""
    record, shard_file = (path / "run.json" for path in (plan.identity.run_dir, folder))
    forced = bool((header.get("config") or {}).get("force"))
    return forced and (not record.exists() or shard_file.stat().st_mtime_ns > record.stat().st_mtime_ns)


def _header(folder: Path) -> Mapping[str, Any]:
    try:
        return read_header(folder)
    except ConfigError:
        return {}


def _merged_header(headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    summed = {key: sum(header[key] for header in headers) for key in SUMMED}
    worst = {key: max((header[key] for header in headers if header[key] is not None), default=None) for key in WORST}
    lists = ("warnings", "searches", "concurrent_runs", "prepare_work")
    joined = {key: [entry for header in headers for entry in header.get(key) or ()] for key in lists}
    # one shard searched, the others found its result
    searches = {entry["name"]: entry for entry in sorted(joined["searches"], key=lambda entry: entry["new"])}
    neighbours = {tuple(entry.items()): entry for entry in joined["concurrent_runs"]}
    return {
        **summed,
        **worst,
        "warnings": [*dict.fromkeys(joined["warnings"])],
        "searches": [*searches.values()],
        "concurrent_runs": [*neighbours.values()],
        "prepare_work": joined["prepare_work"],
        "shards": [{key: header.get(key) for key in PER_SHARD} for header in headers],
    }
