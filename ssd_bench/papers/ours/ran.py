"""Models that ran our runs, and their sizes, by their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ssd_bench.contract.shape import Shape
from ssd_bench.records.header import RunHeader

UNKNOWN = "size not recorded"


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
        return cls(header.model.name, params, header.model.rehearsal)

    @property
    def text(self) -> str:
        """Name and size: `miniature, 2.9 M`."""
        return f"{self.name}, {size_text(self.params)}"


def _params(shape: Mapping[str, Any] | None) -> int | None:
    """Return the number of parameters of the sizes in a config, None where these are incomplete.

    Records without `model.n_params`, from before that key existed, have nothing else.
    """
    shape_fields = {field.name for field in fields(Shape)}
    try:
        return Shape(**{key: value for key, value in (shape or {}).items() if key in shape_fields}).n_params
    except TypeError:
        return None


def size_text(params: int | None) -> str:
    """Return a number of parameters as text: `2.9 M`, `134.5 M`, `70.6 B`."""
    if params is None:
        return UNKNOWN
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if params >= unit:
            return f"{params / unit:.1f} {letter}"
    return str(params)


def model_names(models: Iterable[ModelRan]) -> str:
    """Return the distinct models as text, each with its size."""
    return "; ".join(dict.fromkeys(model.text for model in models))


def parameter_counts(models: Iterable[ModelRan]) -> str:
    """Return the parameters of the distinct models for a column of numbers; "" if all are unknown."""
    params_by_model = {model.name: model.params for model in models}
    texts = ["" if params is None else str(params) for params in params_by_model.values()]
    return "; ".join(texts) if any(texts) else ""
