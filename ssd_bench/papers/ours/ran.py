"""Models that ran our runs, and their sizes, by their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from ssd_bench.conf import config_file, read_yaml
from ssd_bench.contract.shape import Shape
from ssd_bench.papers.runs import grid
from ssd_bench.records.header import RunHeader

UNKNOWN = "size not recorded"
MISSING = object()
SETTING_OPTIONS = {
    "S": "max_steps",
    "beta": "bayes_interval",
    "r": "skip_ratio",
    "gamma": "context_window",
    "tau": "min_similarity",
    "opt_interval": "interval",
    "lambda": "lam",
    "clusters": "groups",
}
"""Numbers in the papers' settings -> the options of a method that hold the values that ran."""


@dataclass(frozen=True)
class ModelRan:
    """A model that ran.

    Attributes:
        name: name in the record.
        params: number of parameters; None where the record has no sizes.
        toy: whether this project trained it.
    """

    name: str
    params: int | None
    toy: bool = False

    @classmethod
    def of(cls, header: RunHeader) -> ModelRan:
        """Return the model of a record."""
        params = header.model.n_params or _params(header.options("model").get("shape"))
        return cls(header.model.name, params, header.model.toy)

    @property
    def text(self) -> str:
        """Name and size: `miniature, 2.9 million parameters`."""
        return f"{model_title(self.name)}, {size_text(self.params)}"


@cache
def model_title(name: str) -> str:
    """Return a model's name for headings, with the bits of the file that its weights are from, if it is quantised."""
    bits = file_bits(name)
    return f"{name} (from a {bits}-bit file)" if bits else name


def file_bits(name: str) -> int | None:
    """Return the bits of the GGUF file of a choice of `model=`; None if its weights are from no such file."""
    file = config_file("model", name)
    source = read_yaml(file).get("gguf") if file is not None else None
    return source["bits"] if source else None


def _params(shape: Mapping[str, Any] | None) -> int | None:
    """Return the number of parameters of the sizes in a config, None where these are incomplete.

    Records without `model.n_params`, from before that key existed, have nothing else.
    """
    shape_fields = {field.name for field in fields(Shape)}
    try:
        return Shape(**{key: value for key, value in (shape or {}).items() if key in shape_fields}).n_params
    except TypeError:
        return None


def setting_ran(setting: str, options: Mapping[str, Any]) -> str:
    """Return a setting of a paper with the values that ran: a small scale may replace them.

    Args:
        setting: `key=value` pairs as the paper has them, separated by ";".
        options: options of the method in the record.
    """
    parts = (part.partition("=") for part in setting.split(";"))
    return ";".join(f"{key}{sign}{_value_ran(key, value, options)}" for key, sign, value in parts)


def _value_ran(key: str, value: str, options: Mapping[str, Any]) -> str:
    """Return the value that ran of a number in a setting; words, such as "none", stay as they are."""
    try:
        planned = float(value)
        ran = options[SETTING_OPTIONS[key]]
    except (ValueError, KeyError):
        return value
    if ran is None:
        return "none"
    return value if not isinstance(ran, int | float) or float(ran) == planned else f"{ran:g}"


def scaled_settings(overrides: Sequence[str], paper_overrides: Sequence[str]) -> list[str]:
    """Return the method's settings that a scale replaced: `interval 32 for 64`.

    Args:
        overrides: options of our run.
        paper_overrides: options of the paper's own run.
    """
    paper_values = {grid.key_of(override): override.partition("=")[2] for override in paper_overrides}
    texts = []
    for override in overrides:
        key, value = grid.key_of(override), override.partition("=")[2]
        if key.startswith("method.") and paper_values.get(key) != value:
            of_preset = _preset_value(grid.choice(paper_overrides, "method"), key.split(".")[1:])
            texts.append(f"{key.removeprefix('method.')} {value} for {paper_values.get(key, of_preset)}")
    return texts


def _preset_value(method: str, keys: Sequence[str]) -> Any:
    """Return the value of a nested key in a preset of a method, or in the presets that it extends."""
    path = config_file("method", method)
    content: Any = read_yaml(path) if path else {}
    value = content
    for key in keys:
        value = value.get(key, MISSING) if isinstance(value, Mapping) else MISSING
    if value is not MISSING:
        return "the paper's rule" if value is None else value
    parents = [name for name in content.get("defaults", ()) if isinstance(name, str) and name != "_self_"]
    return next((value for parent in parents if (value := _preset_value(parent, keys)) is not None), None)


def size_text(params: int | None) -> str:
    """Return a number of parameters as text: `2.9 million parameters`, `70.6 billion parameters`."""
    if params is None:
        return UNKNOWN
    for unit, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if params >= unit:
            return f"{params / unit:.1f} {word} parameters"
    return f"{params} parameters"


def model_names(models: Iterable[ModelRan]) -> str:
    """Return the distinct models as text, each with its size."""
    return "; ".join(dict.fromkeys(model.text for model in models))


def parameter_counts(models: Iterable[ModelRan]) -> str:
    """Return the parameters of the distinct models for a column of numbers; "" if all are unknown."""
    params_by_model = {model.name: model.params for model in models}
    texts = ["" if params is None else str(params) for params in params_by_model.values()]
    return "; ".join(texts) if any(texts) else ""
