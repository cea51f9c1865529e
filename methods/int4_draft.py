"""4-bit drafts: all sublayers draft, but they and the LM head read weights that were rounded to 4 bits.

As `methods.int8_draft`, with a float16 scale and minimum per 32 inputs: 5 bits per weight.
"""

from __future__ import annotations

from methods.draft_stop import WholeDraft
from methods.settings import DraftWeights, Name
from ssd_bench.settings import settings


@settings("method", kw_only=True)
class Int4Draft(WholeDraft):
    """Drafting with all sublayers and 4-bit weights in every step."""

    name: Name = "int4_draft"
    draft_weights: DraftWeights = "int4"
