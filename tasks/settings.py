"""Settings that several tasks share: their types, with the allowed values and the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from ssd_bench.settings import Count, Whole

System = Annotated[str | None, "System message ahead of every prompt, for chat templates; null: none."]
MaxNewTokens = Annotated[Count, "Largest number of tokens of an answer."]
ClipReserve = Annotated[Whole, "Tokens kept free besides prompt and answer when a prompt is truncated."]
ShotCount = Annotated[Whole, "Demonstrations in a plain prompt; a chat prompt has none."]
Hub = Annotated[Mapping[str, Any], "Arguments of datasets.load_dataset for the items."]
FewshotHub = Annotated[
    Mapping[str, Any], "Arguments of datasets.load_dataset for the demonstrations; {}: the hub has none."
]
