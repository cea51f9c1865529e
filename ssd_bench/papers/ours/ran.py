"""Settings that ran, where a scale replaced the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ssd_bench.conf import config_file, read_yaml
from ssd_bench.papers.printed.catalogue import NAMES
from ssd_bench.papers.runs import grid

MISSING = object()


def setting_ran(setting: str, options: Mapping[str, Any]) -> str:
    """Return a paper's setting (`key=value` pairs, separated by ";") with the values of the record's options."""
    parts = (part.partition("=") for part in setting.split(";"))
    return ";".join(f"{key}{sign}{_value_ran(key, value, options)}" for key, sign, value in parts)


def _value_ran(key: str, value: str, options: Mapping[str, Any]) -> str:
    """Return the value that ran for a number in a setting; words stay."""
    try:
        planned = float(value)
        ran = options[NAMES["options"][key]]
    except (ValueError, KeyError):
        return value
    if ran is None:
        return "none"
    return value if not isinstance(ran, int | float) or float(ran) == planned else f"{ran:g}"


def scaled_settings(overrides: Sequence[str], paper_overrides: Sequence[str]) -> list[str]:
    """Return the method's settings replaced by a scale: `interval 32 for 64`."""
    paper_values = {grid.key_of(override): override.partition("=")[2] for override in paper_overrides}
    texts = []
    for override in overrides:
        key, value = grid.key_of(override), override.partition("=")[2]
        if key.startswith("method.") and paper_values.get(key) != value:
            of_preset = _preset_value(grid.choice(paper_overrides, "method"), key.split(".")[1:])
            texts.append(f"{key.removeprefix('method.')} {value} for {paper_values.get(key, of_preset)}")
    return texts


def _preset_value(method: str, keys: Sequence[str]) -> Any:
    path = config_file("method", method)
    content: Any = read_yaml(path) if path else {}
    value = content
    for key in keys:
        value = value.get(key, MISSING) if isinstance(value, Mapping) else MISSING
    if value is not MISSING:
        return "the paper's rule" if value is None else value
    parents = [name for name in content.get("defaults", ()) if isinstance(name, str) and name != "_self_"]
    return next((value for parent in parents if (value := _preset_value(parent, keys)) is not None), None)
