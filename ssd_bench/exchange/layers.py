"""Export of a run's layer set, for other runs and for released implementations."""

from __future__ import annotations

import shlex
from typing import Any

from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.errors import ConfigError
from ssd_bench.records.reader import Run
from ssd_bench.results.definitions import main_set_id
from ssd_bench.results.prompt_table import of_steps
from ssd_bench.results.quantity import divide
from ssd_bench.results.rows import arm_rows


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


def draft_command(layer_set: LayerSet) -> str:
    """Return the command with the `overrides`, quoted for a shell."""
    return f"python -m ssd_bench {shlex.join(overrides(layer_set))}"


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
