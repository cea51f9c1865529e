"""Autoregressive decoding: one token per full forward pass, the baseline of every comparison."""

from __future__ import annotations

from methods.settings import Name
from ssd_bench.contract.method import Context, Method
from ssd_bench.contract.tree import TokenTree
from ssd_bench.settings import settings


@settings("method")
class AR(Method):
    """Decoding without candidates: the tree is the root alone (M = 1)."""

    name: Name = "ar"

    def propose(self, context: Context) -> TokenTree:
        return TokenTree((context.output[-1],), (-1,))
