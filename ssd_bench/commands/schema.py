"""Print the format of records: JSON Schema of run.json, or the columns of the tables.

`python -m ssd_bench schema [of=header|tables] [out=FILE]`

  of=header   (default) JSON Schema (draft 2020-12) of run.json, the header of a record
  of=tables   every table's columns as Markdown: type, nulls, meaning
  out=FILE    file to write instead; an existing file is replaced

Both are made from the code and have the version of the format. `validate` checks records against them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ssd_bench.console import options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.paths import display_path, local_path
from ssd_bench.records.description import header_schema, tables_description
from ssd_bench.records.files import write_output

SUBJECTS = {
    "header": lambda: f"{json.dumps(header_schema(), indent=2, ensure_ascii=False)}\n",
    "tables": tables_description,
}


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Print or write the description."""
    values = options(arguments, ("of", "out"))
    subject = values.get("of", "header")
    if subject not in SUBJECTS:
        raise ConfigError("of", subject, f"one of {', '.join(SUBJECTS)}")
    text = SUBJECTS[subject]()
    if "out" not in values:
        print(text, end="")
        return
    out = local_path("out", values["out"])
    write_output("out", out, text)
    print(display_path(out))
