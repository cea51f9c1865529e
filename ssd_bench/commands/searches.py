"""List the layer searches on disk, one line each.

`python -m ssd_bench searches [FOLDER=runs/searches]`
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssd_bench.console import tool
from ssd_bench.errors import ConfigError
from ssd_bench.paths import local_path
from ssd_bench.records.pack import unpacked_folder
from ssd_bench.records.search_store import search_names, searches_table

DEFAULT = Path("runs", "searches")


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Print the searches."""
    if len(arguments) > 1:
        raise ConfigError("arguments", list(arguments), "one folder of searches")
    folder = unpacked_folder(local_path("folder", arguments[0]) if arguments else DEFAULT)
    if not search_names(folder):
        raise ConfigError("folder", str(folder), "a folder with searches (method=self_ssd makes one)")
    print(searches_table(folder))
