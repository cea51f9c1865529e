"""Check a record, run it again from its own config, and say part by part what was reproduced.

`python -m ssd_bench reproduce record=PACK_OR_DIR [sample=N] [out=FILE.json] [keep=DIR] [hardware.threads=N] …`
    record: folder of a run, folder of runs, or the pack of either
    sample: run only the first N prompts again; 0: check the record without running it
    out: file for the report as JSON
    keep: folder for the second record; default: a temporary one
    hardware.device, threads, isa, kernels, dtype; model.path, data.root, task.path: another machine, and where the
        weights and prompts are on it

Exit code: 0 reproduced, 1 a part was not reproduced or the record has a fault, 2 an option is invalid.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from ssd_bench.console import options, tool
from ssd_bench.errors import ConfigError, shortened
from ssd_bench.paths import local_path
from ssd_bench.records.files import write_output
from ssd_bench.reproduce.recorded_config import PLACES
from ssd_bench.reproduce.report import record_folders, report_text, reproduce

JSON_VERSION = 1
"""Raised whenever a key of the JSON report changes its meaning."""


@tool(__doc__)
def main(arguments: Sequence[str]) -> int:
    """Reproduce the records; return 1 if one is not reproduced or has a fault, else 0."""
    names = ("record", "sample", "out", "keep", *PLACES)
    values = options(arguments, names, record="record=PACK_OR_DIR, the folder or the pack of a run")
    sample = _sample(values["sample"]) if "sample" in values else None
    places = {name: value for name, value in values.items() if name in PLACES}
    folders, faults = record_folders(values["record"])
    with ExitStack() as stack:
        if "keep" in values:
            runs_dir = local_path("keep", values["keep"])
        else:
            runs_dir = Path(stack.enter_context(TemporaryDirectory(prefix="ssd-bench-reproduce-")))
        reports = [*faults]
        for report in faults:
            print(report_text(report))
        for folder in folders:
            reports.append(reproduce(folder, sample, places, runs_dir))
            print(report_text(reports[-1]), flush=True)
    is_reproduced = all(report.is_reproduced for report in reports)
    if len(reports) > 1:
        print(f"{sum(report.is_reproduced for report in reports)} of {len(reports)} records are reproduced")
    if "out" in values:
        content = {"version": JSON_VERSION, "records": [report.plain for report in reports]}
        out = local_path("out", values["out"])
        write_output("out", out, json.dumps(content, indent=2, default=str, ensure_ascii=False) + "\n")
        print(out, file=sys.stderr)
    return int(not is_reproduced)


def _sample(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ConfigError("sample", shortened(text), "an integer >= 0; 0 checks the record without running it")
    return int(text)
