"""Window drafts: all sublayers draft, but their attentions read only the first and the last positions.

StreamingLLM (Xiao et al., arXiv:2309.17453): predictions hardly change if attentions read only a few first positions,
the sinks, and a window at the end. MagicDec (Chen et al., arXiv:2408.11049) drafts so, at a cost independent of the
context.

Differences from both: `methods/fidelity.md`.
"""

from __future__ import annotations

from methods.draft_stop import WholeDraft
from methods.settings import DraftWindow, Name
from ssd_bench.settings import settings


@settings("method", kw_only=True)
class WindowDraft(WholeDraft):
    """Drafting with all sublayers and a window of the cache in every step."""

    name: Name = "window_draft"
    draft_window: DraftWindow = (4, 252)
