"""8-bit drafts: all sublayers draft, but they and the LM head read weights that were rounded to 8 bits.

At batch 1 a drafted token costs the bytes it reads: half of 16-bit weights' with 8 bits. Activations, cache and
verification stay in full precision. Relatives: `methods/fidelity.md`.
"""

from __future__ import annotations

from methods.draft_stop import WholeDraft
from methods.settings import DraftWeights, Name
from ssd_bench.settings import settings


@settings("method", kw_only=True)
class Int8Draft(WholeDraft):
    """Drafting with all sublayers and 8-bit weights in every step."""

    name: Name = "int8_draft"
    draft_weights: DraftWeights = "int8"
