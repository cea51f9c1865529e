"""Autoregressive decoding: one token per full forward pass, the baseline of every comparison."""

from __future__ import annotations

from methods.settings import Name
from ssd_bench.contract.method import Context, Method
from ssd_bench.contract.tree import TokenTree
from ssd_bench.settings import settings


@settings("method")
class AR(Method):
    """No candidates: the tree is the root alone, so a step is one plain forward pass (M = 1)."""

    name: Name = "ar"

    def propose(self, context: Context) -> TokenTree:
        """Propose the root alone."""
        return TokenTree((context.output[-1],), (-1,))
