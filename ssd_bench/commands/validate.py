"""Check records, also of other programs, and list all of their faults.

`python -m ssd_bench validate record=PATH`

  record=PATH   folder of a record, its run.json, a folder of records, or the pack (.zip) of either

Checks run.json against its JSON Schema, every table against its columns (`schema` prints both), the SHA-256 of the
tables, and the rows of all tables against each other. Each fault names file, place and what is expected. Runs without
an end are left out in a folder of records. Exit code: 0 all records are valid, 1 a record has faults, 2 PATH is no
record.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssd_bench.console import options, run_tool
from ssd_bench.errors import NOT_GIVEN, ConfigError
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import find_runs
from ssd_bench.records.schema import SCHEMA_VERSION
from ssd_bench.records.validation import HEADER, record_faults


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code, as in its help."""
    faulty: list[Path] = []
    return run_tool(lambda words: faulty.extend(_faulty_records(words)), __doc__, arguments) or int(bool(faulty))


def _faulty_records(arguments: Sequence[str]) -> list[Path]:
    """Print the faults of all records; return the folders of the records that have some."""
    values = options(arguments, ("record",))
    if "record" not in values:
        raise ConfigError("record", NOT_GIVEN, "record=PATH, a record, a folder of records, or a pack")
    named = Path(values["record"])
    folder = records_folder("record", named.parent if named.name == HEADER else named)
    paths = [folder] if (folder / HEADER).is_file() else find_runs(folder)
    if not paths:
        raise ConfigError("record", str(named), f"a record (a folder with {HEADER}), a folder of records, or a pack")
    faulty = []
    for path in paths:
        name = path.relative_to(folder.parent if path == folder else folder)
        if listed := record_faults(path):
            faulty.append(path)
            print(f"{name}: {len(listed)} {'fault' if len(listed) == 1 else 'faults'}")
            for fault in listed:
                print(f"  {fault}")
    print(f"{len(paths) - len(faulty)} of {len(paths)} records are valid (schema version {SCHEMA_VERSION})")
    return faulty
