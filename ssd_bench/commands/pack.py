"""Pack the complete runs of a folder and their searches into one file.

`python -m ssd_bench pack runs_dir=DIR out=FILE.zip`: one file in git replaces hundreds of small ones. `DIR.zip` next to
the folder `DIR` replaces it: commands that read runs unpack the file once, and refuse the folder of an older file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence

from ssd_bench.console import options, tool
from ssd_bench.paths import local_path
from ssd_bench.records.pack import SUFFIX, pack, records_folder


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Pack the runs."""
    expected = f"runs_dir=DIR out=FILE{SUFFIX}"
    values = options(arguments, ("runs_dir", "out"), runs_dir=expected, out=expected)
    out = local_path("out", values["out"])
    runs = pack(records_folder("runs_dir", values["runs_dir"]), out)
    with zipfile.ZipFile(out) as archive:
        files = len(archive.namelist())
    print(f"{out}: {runs} runs, {files} files, {out.stat().st_size / 1e6:.1f} MB")
