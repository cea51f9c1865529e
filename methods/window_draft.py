"""Window drafts: all sublayers draft, but their attentions read only the first and the last positions.

StreamingLLM (Xiao et al., arXiv:2309.17453) found that a model's predictions hardly change if its attentions read only
a few positions at the beginning, the sinks, and a window at the end. MagicDec (Chen et al., arXiv:2408.11049) drafts in
this way: the cost of a drafted token no longer grows with the context.

Differences from MagicDec: positions keep their place in the text, so that one cache serves draft and verification;
StreamingLLM and MagicDec renumber the positions that are read. The window moves with every drafted token.
"""

from __future__ import annotations

from methods.draft_stop import DraftStop, StoppedDraft
from methods.settings import DraftLen, DraftWindow, Name, StopBelow
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.shape import ModelDims
from ssd_bench.settings import settings


@settings("method")
class WindowDraft(StoppedDraft):
    """Drafting with all sublayers and a window of the cache in every step."""

    name: Name = "window_draft"
    draft_window: DraftWindow = (4, 252)
    draft_len: DraftLen = 4
    stop_below: StopBelow = 0.0

    def __post_init__(self) -> None:
        self._stop = DraftStop(self.draft_len, self.stop_below, window=self._window)

    def check(self, dims: ModelDims) -> None:
        """Take all sublayers of this model."""
        self._layer_set = LayerSet.full(dims.n_layers)
