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
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssd_bench.console import options, tool
from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.errors import ConfigError
from ssd_bench.paths import display_path, local_path
from ssd_bench.records.files import write_output
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import Run, load_run
from ssd_bench.results.definitions import main_set_id
from ssd_bench.results.prompt_table import of_steps
from ssd_bench.results.quantity import divide
from ssd_bench.results.rows import arm_rows


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Write the file."""
    values = options(arguments, ("run", "to", "force", "set"), run="the folder of a record", to="the file to write")
    force = values.get("force", "false")
    if force not in ("true", "false"):
        raise ConfigError("force", force, "true or false")
    to = _writable_path(local_path("to", values["to"]), force == "true")
    run = load_run(records_folder("run", values["run"]))
    set_id = find_set_id(run, values.get("set"))
    layer_set = run.layer_set(set_id)
    write_output("to", to, f"{json.dumps(set_with_origin(run, set_id), indent=1, ensure_ascii=False)}\n")
    print(f"{display_path(to)}: set {set_id} of {layer_set.n_layers} blocks, which {layer_set.text}; to draft with it:")
    print(f"  python -m ssd_bench {shlex.join(overrides(layer_set))}")


def _writable_path(to: Path, force: bool) -> Path:
    """Return the path of a file; refuse one that may not be replaced, a folder, and one in no folder."""
    if to.is_dir() or not to.parent.is_dir():
        raise ConfigError("to", str(to), "a file in an existing folder")
    if to.exists() and not force:
        raise ConfigError("to", str(to), "a file that does not exist; force=true replaces this one")
    return to


def find_set_id(run: Run, set_option: str | None) -> int:
    """Return the id of the run's set `set_option`, by default the set that drafted most tokens.

    Raises:
        ConfigError: no layers drafted, or no such set.
    """
    set_ids = [int(set_id) for set_id in run.layer_sets["layer_set_id"]]
    main = main_set_id(run)
    if main is None:
        raise ConfigError("run", str(run.path), "a run that drafted with layer sets; this one did not")
    if set_option is None:
        return main
    if not set_option.isdecimal() or int(set_option) not in set_ids:
        raise ConfigError("set", set_option, f"one of the layer_set_id of the run, {set_ids[0]} to {set_ids[-1]}")
    return int(set_option)


def overrides(layer_set: LayerSet) -> list[str]:
    """Return the options for drafting with a set by `method=fixed_layers`, as lists of skipped sublayers."""
    lists = {"skip_attn": layer_set.skip_attn, "skip_mlp": layer_set.skip_mlp}
    if layer_set.window is not None:
        lists["draft_window"] = (layer_set.window.sinks, layer_set.window.recent)
    lists |= {f"int{bits}_sublayers": tuple(of) for bits in BITS if (of := layer_set.sublayers_in(bits))}
    options = [f"method.{name}=[{','.join(map(str, blocks))}]" for name, blocks in lists.items()]
    return ["method=fixed_layers", "method.ratio=null", *options]


def set_with_origin(run: Run, set_id: int) -> dict[str, Any]:
    """Return a set with its window, the options to draft with it, and its origin."""
    header, layer_set = run.header, run.layer_set(set_id)
    window = layer_set.window
    method = arm_rows(run.steps, "method")
    steps = method[(method["layer_set_id"] == set_id).fillna(False).astype(bool)]
    by_layers = method.loc[method["layer_set_id"].notna(), "draft_len"].sum()
    return {
        "n_layers": layer_set.n_layers,
        "skip_attn": list(layer_set.skip_attn),
        "skip_mlp": list(layer_set.skip_mlp),
        "window": None if window is None else [window.sinks, window.recent],
        **{f"int{bits}": layer_set.sublayers_in(bits) for bits in BITS},
        "overrides": overrides(layer_set),
        "model": {key: getattr(header.model, key) for key in ("name", "weights", "commit", "dtype")},
        "method": header.method,
        "settings": header.settings,
        "task": header.task.name,
        "run_id": header.run_id,
        "layer_set_id": set_id,
        "alpha": of_steps("alpha", steps),
        "M": of_steps("M", steps),
        "drafted_tokens": int(steps["draft_len"].sum()),
        "draft_share": divide(steps["draft_len"].sum(), by_layers),
        "code": header.provenance.code,
        "finished_at": header.finished_at,
    }
