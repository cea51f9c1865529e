"""Parallel (Jacobi) decoding: greedy decoding as a fixed-point iteration over a block (Santilli et al., ACL 2023).

A block of b unknown tokens starts as filler y_1 .. y_b. A step runs the target on the root and y_1 .. y_{b-1}. Its
argmax g_i at the i-th input is AR's token if y_1 .. y_{i-1} are. If the first m guesses are right, y_i = g_i, the step
emits g_1 .. g_{m+1}. The last one is the next root; g_{m+2} .. g_b are the next guesses.

The paper's modes differ in the block: PJ takes all remaining tokens, PGJ successive blocks of b, HGJ is PGJ up to an
assumed length, then AR. `sliding` refills the block at every step (not in the paper).

`methods/fidelity.md` has the differences from the released code (teelinsan/parallel-decoding).
"""

from __future__ import annotations

from typing import Annotated, Literal

from methods.settings import Name
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.method import Context, Method, Prefill, Probe, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.contract.tree import TokenTree
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Count, Range, settings


@settings("method")
class Jacobi(Method):
    """Jacobi decoding: the target's last predictions are the candidates."""

    greedy_only = True

    name: Name = "jacobi"
    mode: Literal["PJ", "PGJ", "HGJ", "sliding"] = "PGJ"
    """Block of a step: all remaining tokens (PJ), b tokens at a time (PGJ), the same up to an assumed length (HGJ), or
    b tokens refilled at every step (sliding)."""
    block: Count = 5
    """b, tokens of a block, including the token after the last guess (1: AR); PJ ignores it."""
    filler: Literal["pad", "last"] = "pad"
    """Guesses of a new block: the id `pad_id`, or the newest output token."""
    pad_id: Annotated[int, Range(0, what="a token id")] = 0
    """Token id of `pad`; any id works as a guess."""
    assumed_len: Count | None = None
    """Output tokens after which HGJ decodes as AR; null in every other mode."""

    def __post_init__(self) -> None:
        if (self.assumed_len is None) == (self.mode == "HGJ"):
            expected = (
                "at least 1, with method.mode=HGJ" if self.mode == "HGJ" else f"null with method.mode={self.mode}"
            )
            raise ConfigError("method.assumed_len", self.assumed_len, expected)

    def check(self, dims: ModelDims) -> None:
        """Raise a ConfigError if `pad_id` is outside the vocabulary."""
        if self.filler == "pad" and self.pad_id >= dims.vocab_size:
            raise ConfigError("method.pad_id", self.pad_id, f"an id below {dims.vocab_size}, the vocabulary's size")

    def start(self, prefill: Prefill) -> None:
        self._guesses: list[int] = []

    def propose(self, context: Context) -> TokenTree:
        """Propose the root and y_1 .. y_{b-1}; the prediction after y_b is outside the block."""
        root, size = context.output[-1], self._size(context)
        filler = self.pad_id if self.filler == "pad" else root
        guesses = self._guesses[: size - 1]
        return TokenTree.chain([root, *guesses, *[filler] * (size - 1 - len(guesses))])

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Keep the predictions beyond the emitted tokens: g_{m+2} .. g_b."""
        self._guesses = verification.logits[len(verification.path) :].argmax(-1).tolist()
        return None

    def _size(self, context: Context) -> int:
        """Return b of this step: the size of the open or a new block, within the remaining tokens."""
        remaining = context.max_draft + 1
        if self.assumed_len is not None:
            remaining = min(remaining, max(1, self.assumed_len - len(context.output)))
        if self.mode == "sliding":
            return min(self.block, remaining)
        return min(len(self._guesses) or (remaining if self.mode == "PJ" else self.block), remaining)
