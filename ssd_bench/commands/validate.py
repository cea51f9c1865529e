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

from ssd_bench.console import options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import find_runs
from ssd_bench.records.schema import SCHEMA_VERSION
from ssd_bench.records.validation import HEADER, record_faults


@tool(__doc__)
def main(arguments: Sequence[str]) -> int:
    """Print the faults of all records; return 1 if there are any, else 0."""
    values = options(arguments, ("record",), record="record=PATH, a record, a folder of records, or a pack")
    named = Path(values["record"])
    folder = records_folder("record", named.parent if named.name == HEADER else named)
    paths = [folder] if (folder / HEADER).is_file() else find_runs(folder)
    if not paths:
        raise ConfigError("record", str(named), f"a record (a folder with {HEADER}), a folder of records, or a pack")
    n_faulty = 0
    for path in paths:
        name = path.relative_to(folder.parent if path == folder else folder)
        if listed := record_faults(path):
            n_faulty += 1
            print(f"{name}: {len(listed)} {'fault' if len(listed) == 1 else 'faults'}")
            for fault in listed:
                print(f"  {fault}")
    print(f"{len(paths) - n_faulty} of {len(paths)} records are valid (schema version {SCHEMA_VERSION})")
    return int(n_faulty > 0)
