"""What a method answers, held to the contract before a pass runs on it: a fault is named, not decoded."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Estimate, LayerDraft, Method, Taps
from ssd_bench.core.tree import TokenTree
from ssd_bench.core.window import Window
from ssd_bench.errors import ConfigError

SHOWN = 200  # characters of a faulty answer that an error repeats


class Contract:
    """What one model can decode.

    Args:
        n_layers: L.
        vocab_size: V.
    """

    def __init__(self, n_layers: int, vocab_size: int):
        self._n_layers, self._vocab_size = n_layers, vocab_size
        self._known = Taps()

    def taps(self, method: Method) -> Taps:
        """The taps of a method.

        Raises:
            ConfigError: they are none, or of a boundary that the model has not.
        """
        taps = method.taps
        if taps is self._known:  # most methods change them seldom
            return taps
        if not isinstance(taps, Taps):
            raise _fault(method, "taps", taps, "an object Taps")
        for name, boundaries in (("prefill", taps.prefill), ("verify", taps.verify)):
            if not _integers(boundaries) or any(not 0 <= i <= 2 * self._n_layers for i in boundaries):
                allowed = f"a tuple of boundaries in [0, {2 * self._n_layers}]"
                raise _fault(method, f"taps.{name}", boundaries, allowed)
        self._known = taps
        return taps

    def proposal(self, method: Method, proposal: object, root: int) -> LayerDraft | TokenTree:
        """What a method proposed after an output that ends with `root`.

        Raises:
            ConfigError: it is no proposal, or none for this model and this output.
        """
        if isinstance(proposal, TokenTree):
            tokens = proposal.tokens
            if type(tokens) is tuple and len(tokens) == 1 and tokens[0] == root:  # AR, at every step
                return proposal
            if not _integers(tokens) or min(tokens) < 0 or max(tokens) >= self._vocab_size:  # a tree has a root
                allowed = f"a tuple of token ids, integers from 0 to {self._vocab_size - 1}"
                raise _fault(method, "propose: TokenTree.tokens", tokens, allowed)
            if tokens[0] != root:
                allowed = f"a tree that begins with its root, context.output[-1], here {root}"
                raise _fault(method, "propose: TokenTree.tokens", tokens, allowed)
            return proposal
        if not isinstance(proposal, LayerDraft):
            raise _fault(method, "propose", proposal, "a TokenTree or a LayerDraft; to draft nothing, the root alone")
        given = proposal.layer_set
        if not isinstance(given, LayerSet) or given.n_layers != self._n_layers:
            allowed = f"a LayerSet of this model: n_layers={self._n_layers}"
            raise _fault(method, "propose: LayerDraft.layer_set", given, allowed)
        if not isinstance(proposal.max_len, Integral) or proposal.max_len < 0:
            raise _fault(method, "propose: LayerDraft.max_len", proposal.max_len, "an integer of at least 0")
        if proposal.window is not None and not _is_window(proposal.window):
            allowed = "None, or a Window of at least 0 sinks and at least 1 recent position, integers"
            raise _fault(method, "propose: LayerDraft.window", proposal.window, allowed)
        return proposal

    def estimate(self, method: Method, estimate: object) -> Estimate | None:
        """What a method believes after a step.

        Raises:
            ConfigError: it is something else.
        """
        if estimate is not None and not isinstance(estimate, Estimate):
            raise _fault(method, "observe", estimate, "an Estimate after a search, or None")
        return estimate


def _integers(values: object) -> bool:
    if type(values) is not tuple and not isinstance(values, Sequence):
        return False
    kinds = {*map(type, values)}
    return kinds <= {int} or all(issubclass(kind, Integral) for kind in kinds)


def _is_window(window: object) -> bool:
    if not isinstance(window, Window) or not _integers((window.sinks, window.recent)):
        return False
    return window.sinks >= 0 and window.recent >= 1


def _fault(method: Method, place: str, value: object, allowed: str) -> ConfigError:
    text = repr(value)
    shown = value if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return ConfigError(f"{method.name}.{place}", shown, allowed)
