"""Models that ran, with their sizes, from their records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from ssd_bench.conf import config_file, read_yaml
from ssd_bench.records.header import RunHeader

UNKNOWN = "size not recorded"


@dataclass(frozen=True)
class ModelRan:
    """A model that ran; `params` is None if not recorded, `toy` says that this project trained it."""

    name: str
    params: int | None
    toy: bool = False

    @classmethod
    def of(cls, header: RunHeader) -> ModelRan:
        return cls(header.model.name, header.model.n_params, header.model.toy)

    @property
    def text(self) -> str:
        """Name and size: `miniature, 2.9 million parameters`."""
        return f"{model_title(self.name)}, {size_text(self.params)}"


@cache
def model_title(name: str) -> str:
    """Return a model's name for headings, with the bits of its quantised file, if any."""
    file = config_file("model", name)
    source = read_yaml(file).get("gguf") if file is not None else None
    return f"{name} (from a {source['bits']}-bit file)" if source else name


def size_text(params: int | None) -> str:
    """Return a number of parameters as text: `2.9 million parameters`, `70.6 billion parameters`."""
    if params is None:
        return UNKNOWN
    for unit, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if params >= unit:
            return f"{params / unit:.1f} {word} parameters"
    return f"{params} parameters"


def model_names(models: Iterable[ModelRan]) -> str:
    """Return the distinct models as text, with sizes."""
    return "; ".join(dict.fromkeys(model.text for model in models))


def parameter_counts(models: Iterable[ModelRan]) -> str:
    """Return the distinct models' parameters for a column of numbers; "" if all are unknown."""
    params_by_model = {model.name: model.params for model in models}
    texts = ["" if params is None else str(params) for params in params_by_model.values()]
    return "; ".join(texts) if any(texts) else ""
