"""Export a layer set of a run, with the options that draft with it.

`python -m ssd_bench export run=DIR to=FILE`

  run=DIR      the folder of a record
  to=FILE      JSON file to write; an existing file is not replaced
  force=true   replace an existing file
  set=ID       layer_set_id; default: the set that drafted most tokens

docs/exchange.md describes the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ssd_bench.console import options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.exchange import layers
from ssd_bench.paths import display_path, local_path
from ssd_bench.records.files import write_output
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import load_run


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Write the file."""
    values = options(arguments, ("run", "to", "force", "set"), run="the folder of a record", to="the file to write")
    force = values.get("force", "false")
    if force not in ("true", "false"):
        raise ConfigError("force", force, "true or false")
    to = _writable_path(local_path("to", values["to"]), force == "true")
    run = load_run(records_folder("run", values["run"]))
    set_id = layers.find_set_id(run, values.get("set"))
    layer_set = run.layer_set(set_id)
    write_output("to", to, f"{json.dumps(layers.set_with_origin(run, set_id), indent=1, ensure_ascii=False)}\n")
    print(f"{display_path(to)}: set {set_id} of {layer_set.n_layers} blocks, which {layer_set.text}; to draft with it:")
    print(f"  {layers.draft_command(layer_set)}")


def _writable_path(to: Path, force: bool) -> Path:
    """Return the path of a file; refuse one that may not be replaced, a folder, and one in no folder."""
    if to.is_dir() or not to.parent.is_dir():
        raise ConfigError("to", str(to), "a file in an existing folder")
    if to.exists() and not force:
        raise ConfigError("to", str(to), "a file that does not exist; force=true replaces this one")
    return to
