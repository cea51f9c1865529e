"""Export a run's acceptance in vLLM's format, or one of its layer sets.

`python -m ssd_bench export run=DIR to=FILE [form=vllm]`

  run=DIR           the folder of a record
  to=FILE           file to write; an existing file is not replaced
  force=true        replace an existing file
  form=vllm         (default) one line of JSON per answer, as vLLM reports acceptance per request (detailed)
    arm=method      method or ar
  form=layer_set    one set with its origin, and the options of method=fixed_layers that draft with it
  form=layer_list   one set in the format of SWIFT's and Self-SD's code (skip_layers.json), and KnapSpec's flags
    set=ID          layer_set_id; default: the set that drafted most tokens

docs/exchange.md describes the fields of each form.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ssd_bench.console import options, tool
from ssd_bench.errors import ConfigError
from ssd_bench.exchange import answers, layers
from ssd_bench.paths import display_path, local_path
from ssd_bench.records.files import write_output
from ssd_bench.records.pack import records_folder
from ssd_bench.records.reader import Run, load_run

SETS = {"layer_set": layers.set_with_origin, "layer_list": layers.released_entry}
OPTIONS_OF = {"vllm": ("arm",), **dict.fromkeys(SETS, ("set",))}
"""Form -> the options that only it uses."""
COMMON = ("run", "to", "form", "force")


@tool(__doc__)
def main(arguments: Sequence[str]) -> None:
    """Write the file."""
    values = options(arguments, (*COMMON, *dict.fromkeys(name for names in OPTIONS_OF.values() for name in names)))
    for name, expected in (("run", "the folder of a record"), ("to", "the file to write")):
        if name not in values:
            raise ConfigError(name, "", expected)
    form, force = values.get("form", "vllm"), values.get("force", "false")
    if form not in OPTIONS_OF:
        raise ConfigError("form", form, f"one of {', '.join(OPTIONS_OF)}")
    if force not in ("true", "false"):
        raise ConfigError("force", force, "true or false")
    for name in values:
        if name not in (*COMMON, *OPTIONS_OF[form]):
            forms = " or ".join(f"form={user}" for user, names in OPTIONS_OF.items() if name in names)
            raise ConfigError(name, values[name], f"{forms} with this option; form={form} does not use it")
    to = _writable_path(local_path("to", values["to"]), force == "true")
    run = load_run(records_folder("run", values["run"]))
    text, summary = _vllm(run, values.get("arm", "method")) if form == "vllm" else _set(run, form, values.get("set"))
    write_output("to", to, text)
    print(f"{display_path(to)}: {summary}")


def _writable_path(to: Path, force: bool) -> Path:
    """Return the path of a file; refuse one that may not be replaced, a folder, and one in no folder."""
    if to.is_dir() or not to.parent.is_dir():
        raise ConfigError("to", str(to), "a file in an existing folder")
    if to.exists() and not force:
        raise ConfigError("to", str(to), "a file that does not exist; force=true replaces this one")
    return to


def _vllm(run: Run, arm: str) -> tuple[str, str]:
    lines = list(answers.answer_lines(run, arm))
    return "".join(f"{line}\n" for line in lines), f"{len(lines)} answers of arm {arm}"


def _set(run: Run, form: str, set_option: str | None) -> tuple[str, str]:
    set_id = layers.find_set_id(run, set_option)
    layer_set = run.layer_set(set_id)
    blocks, command = f"of {layer_set.n_layers} blocks", layers.draft_command(layer_set)
    summary = f"set {set_id} {blocks}, which {layer_set.text}; to draft with it:\n  {command}"
    return f"{json.dumps(SETS[form](run, set_id), indent=1, ensure_ascii=False)}\n", summary
