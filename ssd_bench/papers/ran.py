"""The models behind our numbers: which one ran, and how large it is, as the record says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ssd_bench.model.shape import Shape

UNKNOWN = "size not recorded"


@dataclass(frozen=True)
class ModelRan:
    """A model that ran.

    Attributes:
        name: as in the record.
        params: number of parameters; None where the record has no sizes.
        toy: whether this project trained it.
    """

    name: str
    params: int | None
    toy: bool = False

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> ModelRan:
        """Read the model of a record's run.json."""
        model = header.get("model") or {}
        params = model.get("n_params") or _params(((header.get("config") or {}).get("model") or {}).get("shape"))
        return cls(str(model.get("name")), params, bool(model.get("rehearsal")))

    @property
    def text(self) -> str:
        """Name and size: `miniature, 2.9 M`."""
        return f"{self.name}, {size(self.params)}"


def _params(shape: Mapping[str, Any] | None) -> int | None:
    """Count the parameters of the sizes in a config, None where these are incomplete.

    Records before `model.n_params` have nothing else.
    """
    known = {one.name for one in fields(Shape)}
    try:
        return Shape(**{key: value for key, value in (shape or {}).items() if key in known}).n_params
    except TypeError:
        return None


def size(params: int | None) -> str:
    """Return a number of parameters as text: `2.9 M`, `134.5 M`, `70.6 B`."""
    if params is None:
        return UNKNOWN
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if params >= unit:
            return f"{params / unit:.1f} {letter}"
    return str(params)


def named(models: Iterable[ModelRan]) -> str:
    """Return the distinct models as text, each with its size."""
    return "; ".join(dict.fromkeys(model.text for model in models))


def sizes(models: Iterable[ModelRan]) -> str:
    """Return the parameters of the distinct models for a column of numbers; "" where none is known."""
    known = {model.name: model.params for model in models}
    texts = ["" if params is None else str(params) for params in known.values()]
    return "; ".join(texts) if any(texts) else ""
