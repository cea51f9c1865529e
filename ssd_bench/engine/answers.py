"""Checks of what a method returns, before a pass runs on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from numbers import Integral

from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import LayerDraft, Method, Taps
from ssd_bench.contract.tree import TokenTree
from ssd_bench.contract.window import Window
from ssd_bench.errors import ConfigError

EXCERPT_LEN = 200  # characters of a wrong answer that an error message quotes


class Contract:
    """Checks of methods against one model."""

    def __init__(self, n_layers: int, vocab_size: int, bits: Collection[int] = ()):
        self._n_layers, self._vocab_size, self._bits = n_layers, vocab_size, frozenset(bits)
        self._checked_taps = Taps()

    def check_taps(self, method: Method) -> Taps:
        """Return a method's taps.

        Raises:
            ConfigError: no `Taps`, or a boundary that the model lacks.
        """
        taps = method.taps
        if taps is self._checked_taps:  # the usual case: called in every step, and taps rarely change
            return taps
        if not isinstance(taps, Taps):
            raise _config_error(method, "taps", taps, "an object Taps")
        for name, boundaries in (("prefill", taps.prefill), ("verify", taps.verify)):
            if not _are_integers(boundaries) or any(not 0 <= i <= 2 * self._n_layers for i in boundaries):
                expected = f"a tuple of boundaries in [0, {2 * self._n_layers}]"
                raise _config_error(method, f"taps.{name}", boundaries, expected)
        self._checked_taps = taps
        return taps

    def check_proposal(self, method: Method, proposal: object, root: int) -> LayerDraft | TokenTree:
        """Return a method's proposal for an output that ends with `root`.

        Raises:
            ConfigError: no proposal, or a misfit with this model or output.
        """
        if isinstance(proposal, TokenTree):
            tokens = proposal.tokens
            if type(tokens) is tuple and len(tokens) == 1 and tokens[0] == root:  # AR's proposal: nothing else to check
                return proposal
            # min and max are defined: `TokenTree` refuses an empty tree
            if not _are_integers(tokens) or min(tokens) < 0 or max(tokens) >= self._vocab_size:
                expected = f"a tuple of token ids, integers from 0 to {self._vocab_size - 1}"
                raise _config_error(method, "propose: TokenTree.tokens", tokens, expected)
            if tokens[0] != root:
                expected = f"a tree that begins with its root, context.output[-1], here {root}"
                raise _config_error(method, "propose: TokenTree.tokens", tokens, expected)
            return proposal
        if not isinstance(proposal, LayerDraft):
            expected = "a TokenTree or a LayerDraft; to draft nothing, the root alone"
            raise _config_error(method, "propose", proposal, expected)
        layer_set = proposal.layer_set
        if not isinstance(layer_set, LayerSet) or layer_set.n_layers != self._n_layers:
            expected = f"a LayerSet of this model: n_layers={self._n_layers}"
            raise _config_error(method, "propose: LayerDraft.layer_set", layer_set, expected)
        if layer_set.rounded and not self._bits.issuperset(layer_set.bits.values()):
            expected = "sublayers with full weights, or a method whose attribute bits names theirs"
            raise _config_error(method, "propose: LayerDraft.layer_set.rounded", sorted(layer_set.rounded), expected)
        if not isinstance(proposal.max_len, Integral) or proposal.max_len < 0:
            raise _config_error(method, "propose: LayerDraft.max_len", proposal.max_len, "an integer of at least 0")
        if layer_set.window is not None and not _is_window(layer_set.window):
            expected = "None, or a Window of at least 0 sinks and at least 1 recent position, integers"
            raise _config_error(method, "propose: LayerDraft.layer_set.window", layer_set.window, expected)
        return proposal

    def check_estimate(self, method: Method, estimate: object) -> Estimate | None:
        """Return the result of `observe`, or raise ConfigError."""
        if estimate is not None and not isinstance(estimate, Estimate):
            raise _config_error(method, "observe", estimate, "an Estimate after a search, or None")
        return estimate


def _are_integers(values: object) -> bool:
    """Return whether an object is a sequence of integers, NumPy's included; fast, since every step calls it."""
    if type(values) is not tuple and not isinstance(values, Sequence):
        return False
    kinds = {*map(type, values)}
    return kinds <= {int} or all(issubclass(kind, Integral) for kind in kinds)


def _is_window(window: object) -> bool:
    if not isinstance(window, Window) or not _are_integers((window.sinks, window.recent)):
        return False
    return window.sinks >= 0 and window.recent >= 1


def _config_error(method: Method, place: str, value: object, expected: str) -> ConfigError:
    text = repr(value)
    excerpt = value if len(text) <= EXCERPT_LEN else f"{text[:EXCERPT_LEN]}…"
    return ConfigError(f"{method.name}.{place}", excerpt, expected)
