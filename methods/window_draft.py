"""Window drafts: all sublayers draft, but their attentions read only the first and the last positions.

StreamingLLM (Xiao et al., arXiv:2309.17453) found that a model's predictions hardly change if its attentions read only
a few positions at the beginning, the sinks, and a window at the end. MagicDec (Chen et al., arXiv:2408.11049) drafts in
this way: the cost of a drafted token no longer grows with the context.

Differences from MagicDec: positions keep their place in the text, so that one cache serves draft and verification;
StreamingLLM and MagicDec renumber the positions that are read. The window moves with every drafted token.
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
