"""Parallel (Jacobi) decoding: greedy decoding as a fixed-point iteration over a block (Santilli et al., ACL 2023).

A block of b tokens to find starts as filler y_1 .. y_b. A step feeds the root and y_1 .. y_{b-1}; g_i, the target's
argmax at the i-th of these b inputs, is AR's token as long as y_1 .. y_{i-1} are. With m leading guesses y_i = g_i the
step emits g_1 .. g_{m+1}, the last of them is the next root, and g_{m+2} .. g_b are the guesses of the next step.

The paper's modes differ in the block: PJ takes all tokens that are left, PGJ blocks of b one after the other, HGJ PGJ
up to an assumed length and AR from there; `sliding` fills the block up again at every step (not in the paper).

Two things differ from the released code (teelinsan/parallel-decoding), which is for encoder-decoder translation:

* its frontier moves one token per iteration, and a block ends early only after an iteration that changed nothing; here
  the frontier moves past every guess that came true, which never takes more passes and gives the same text;
* it decodes up to the length of AR's own answer; here the end is EOS or the length limit, as for every method.

There is no sampling mode.
"""

from __future__ import annotations

from collections.abc import Sequence

from ssd_bench.core.method import Context, Estimate, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.core.tree import TokenTree
from ssd_bench.errors import ConfigError, refuse
from ssd_bench.model.shape import ModelDims

MODES = ("PJ", "PGJ", "HGJ", "sliding")
FILLERS = ("pad", "last")


class Jacobi:
    """Guesses are the target's own predictions of the step before.

    Args:
        name: name in tables.
        mode: PJ, PGJ, HGJ or sliding.
        block: b, tokens of a block, the token after the last guess included (1: AR); PJ does without it.
        filler: guesses of a new block: `pad`, the id `pad_id`; `last`, the newest output token.
        pad_id: token id of `pad`; it is a guess like any other, whatever it means to the model.
        assumed_len: output tokens after which HGJ decodes as AR; None in every other mode.

    Raises:
        ConfigError: an unknown mode or filler, a number out of range, `assumed_len` without HGJ or HGJ without it.
    """

    taps = Taps()
    reuse_prefix = False
    greedy_only = True

    def __init__(
        self,
        name: str = "jacobi",
        mode: str = "PGJ",
        block: int = 5,
        filler: str = "pad",
        pad_id: int = 0,
        assumed_len: int | None = None,
    ):
        if mode == "HGJ":
            fits, assumed = assumed_len is not None and assumed_len >= 1, "at least 1, with method.mode=HGJ"
        else:
            fits, assumed = assumed_len is None, f"null with method.mode={mode}"
        checks = (
            ("mode", mode in MODES, mode, f"one of {', '.join(MODES)}"),
            ("block", block >= 1, block, "at least 1"),
            ("filler", filler in FILLERS, filler, f"one of {', '.join(FILLERS)}"),
            ("pad_id", pad_id >= 0, pad_id, "a token id"),
            ("assumed_len", fits, assumed_len, assumed),
        )
        refuse("method", checks)
        self.name = name
        self._mode, self._block, self._assumed_len = mode, block, assumed_len
        self._filler, self._pad_id = filler, pad_id

    def check(self, dims: ModelDims) -> None:
        """Refuse a filler that is no token of this model.

        Raises:
            ConfigError: `pad_id` outside the vocabulary.
        """
        if self._filler == "pad" and self._pad_id >= dims.vocab_size:
            raise ConfigError("method.pad_id", self._pad_id, f"an id below {dims.vocab_size}, the vocabulary's size")

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Nothing to prepare."""

    def start(self, prefill: Prefill) -> None:
        """No block is open."""
        self._guesses: list[int] = []

    def propose(self, context: Context) -> TokenTree:
        """The root and the block's guesses but the last, which no input follows."""
        root, size = context.output[-1], self._size(context)
        filler = self._pad_id if self._filler == "pad" else root
        guesses = self._guesses[: size - 1]
        return TokenTree.chain([root, *guesses, *[filler] * (size - 1 - len(guesses))])

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Keep the predictions beyond the emitted tokens: g_{m+2} .. g_b."""
        self._guesses = verification.logits[len(verification.path) :].argmax(-1).tolist()
        return None

    def _size(self, context: Context) -> int:
        """b of this step: what is left of the open block, or a new one, within the tokens that may still come."""
        left = context.max_draft + 1
        if self._assumed_len is not None:
            left = min(left, max(1, self._assumed_len - len(context.output)))
        if self._mode == "sliding":
            return min(self._block, left)
        return min(len(self._guesses) or (left if self._mode == "PJ" else self._block), left)
