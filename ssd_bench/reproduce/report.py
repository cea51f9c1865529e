"""Reproduction of one record, from its folder to a report and its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from ssd_bench import tables
from ssd_bench.errors import ConfigError, one_line
from ssd_bench.paths import display_path, local_path
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.reader import find_runs, read_run
from ssd_bench.reproduce.again import Deviations, SecondRun
from ssd_bench.reproduce.check import header_faults, prompt_faults, score_faults, table_faults, text_faults, time_notes
from ssd_bench.reproduce.finding import DIFFERENT, RecordFinding, Report
from ssd_bench.reproduce.verdict import first_prompts, verdicts
from ssd_bench.results.digest import UNCOMPUTABLE

WIDTHS = (None, None, None, None, 50)  # characters of each column of the table of parts
SHOWN = 20  # most lines of a list in the text; the JSON has all


def record_folders(value: str) -> tuple[list[Path], list[Report]]:
    """Return the folders of the records that an option names, and a report on an unreadable pack.

    Raises:
        ConfigError: no such folder or pack, or no complete run in it.
    """
    path = local_path("record", value)
    try:
        folder = unpacked_folder(path)
    except ConfigError as error:
        return [], [Report(str(path), 0, 0, [RecordFinding("pack", str(error))], stopped="the pack cannot be read")]
    if (folder / "run.json").is_file():
        return [folder], []
    if folder.is_dir() and (runs := find_runs(folder)):
        return runs, []
    raise ConfigError("record", str(path), "a folder or pack with at least one complete run")


def reproduce(folder: Path, sample: int | None, places: Mapping[str, str], runs_dir: Path) -> Report:
    """Check a record, run it again, and compare part by part.

    Args:
        sample: number of first prompts to run; None: all.
        places: options of the second run (`recorded_config.PLACES`).
        runs_dir: folder of the second record.

    Raises:
        ConfigError: an option in `places` is invalid.
    """
    try:
        run, stored = read_run(folder)
    except ConfigError as error:
        return Report(str(folder), 0, 0, [RecordFinding("record", str(error))], stopped="the record cannot be read")
    total = len(run.header.domains) or 1 + max(run.prompts["prompt_index"], default=-1)
    report = Report(str(folder), 0, total, [*table_faults(run, stored)], notes=time_notes(run))
    try:
        second = SecondRun.of(run, places, runs_dir)
    except UNCOMPUTABLE as error:
        if isinstance(error, ConfigError) and (error.field in places or error.field == "option"):
            raise
        text = str(error) if isinstance(error, ConfigError) else f"it cannot be planned ({one_line(error)})"
        faults = [*report.faults, RecordFinding("config", text)]
        return replace(report, faults=faults, stopped="no plan for its config")
    prompts = [*prompt_faults(run, second.plan)]
    faults = [*report.faults, *header_faults(stored, second.header), *prompts, *text_faults(run, second.plan)]
    faults += score_faults(run, second.plan)
    notes = [*report.notes, *second.notes]
    report = replace(report, faults=faults, differences=second.differences(stored), notes=notes)
    count = len(second.plan.prompts.items) if sample is None else min(sample, len(second.plan.prompts.items))
    if not count:
        return replace(report, stopped="sample=0: checked without running it")
    if obstacle := second.obstacle(stored, prompts, count):
        return replace(report, faults=[*report.faults, RecordFinding("inputs", obstacle)], stopped=obstacle)
    recorded, again = first_prompts(run, count), second.execute(run.header, count)
    parts = verdicts(recorded, again, Deviations(second.plan, run), count < total)
    return replace(report, prompts=count, parts=parts)


def report_text(report: Report) -> str:
    """Return a report as text for a terminal."""
    lines = [display_path(Path(report.record)), ""]
    lines += _listed("record: whole and consistent", "faults of the record", [str(fault) for fault in report.faults])
    lines += _listed("", "different here", [str(difference) for difference in report.differences])
    lines += _listed("", "notes", list(report.notes))
    if report.parts:
        lines += ["", f"run again: the first {report.prompts} of {report.total} prompts", ""]
        rows = [(part.part, part.verdict, part.recorded, part.again, part.reason) for part in report.parts]
        frame = pd.DataFrame(rows, columns=["part", "verdict", "recorded", "again", "reason"])
        lines.append(tables.terminal(frame, wrap=WIDTHS))
        findings = [str(finding) for part in report.parts for finding in part.findings]
        lines += ["", *_listed("", "not reproduced", findings)] if findings else []
    return "\n".join([*lines, "", _conclusion(report), ""])


def _listed(nothing: str, title: str, entries: list[str]) -> list[str]:
    """Return a titled list, cut to `SHOWN` entries; `nothing` if empty."""
    if not entries:
        return [nothing] if nothing else []
    further = [f"  … {len(entries) - SHOWN} more, in out=FILE.json"] if len(entries) > SHOWN else []
    return [f"{title} ({len(entries)}):", *(f"  {entry}" for entry in entries[:SHOWN]), *further]


def _conclusion(report: Report) -> str:
    failed = [part.part for part in report.parts if part.verdict == DIFFERENT]
    failed += ["the record has faults"] if report.faults else []
    if report.stopped:
        return f"not run: {report.stopped}" + (" (the record has faults)" if report.faults else "")
    return f"NOT REPRODUCED: {', '.join(failed)}" if failed else "REPRODUCED"
