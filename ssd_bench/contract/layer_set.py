"""Layer sets: what a draft runs and reads of a model's 2L sublayers (2i is the attention of block i, 2i+1 its MLP).

A sublayer reads its weights as loaded, or a copy rounded to 8 or 4 bits; an attention reads the whole prefix, or a
window of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from ssd_bench.contract.window import Window
from ssd_bench.errors import ConfigError

BITS = (8, 4)
"""Bits of the rounded copies of the weights; 0 stands for the weights as loaded."""


@dataclass(frozen=True)
class LayerSet:
    """The sublayers that run in a forward pass, besides embedding, final norm and LM head.

    Args:
        n_layers: L, number of blocks.
        skipped: indices in [0, 2L) of the sublayers that do not run; any collection.
        rounded: pairs (index, bits) of the sublayers with rounded weights (`in_bits`), 2L for the LM head.
        window: the positions that attentions read; None: all.

    Raises:
        ConfigError: an index out of range; a sublayer that is both skipped and rounded, or rounded twice; other bits.
    """

    n_layers: int
    skipped: frozenset[int] = frozenset()
    rounded: frozenset[tuple[int, int]] = frozenset()
    window: Window | None = None

    def __post_init__(self) -> None:
        head = 2 * self.n_layers
        if not isinstance(self.skipped, frozenset):
            object.__setattr__(self, "skipped", frozenset(self.skipped))
        if outside := sorted(i for i in self.skipped if not 0 <= i < head):
            raise ConfigError("skipped sublayers", outside, f"indices in [0, {head})")
        if outside := sorted(i for i in self.bits if not 0 <= i <= head):
            raise ConfigError("rounded sublayers", outside, f"indices in [0, {head}]")
        if len(self.bits) < len(self.rounded) or not {*self.bits.values()} <= {*BITS}:
            raise ConfigError("rounded sublayers", sorted(self.rounded), f"one of {BITS} bits for each")
        if both := sorted(self.skipped & self.bits.keys()):
            raise ConfigError("rounded sublayers", both, "sublayers that are not skipped")

    @classmethod
    def full(cls, n_layers: int) -> LayerSet:
        return cls(n_layers)

    @classmethod
    def exit(cls, n_layers: int, blocks: int) -> LayerSet:
        """Return an early exit, the first `blocks` of L blocks."""
        return cls(n_layers, frozenset(range(2 * blocks, 2 * n_layers)))

    @classmethod
    def skipping(cls, n_layers: int, attn: Iterable[int] = (), mlp: Iterable[int] = ()) -> LayerSet:
        """Return the set that skips the attention of blocks `attn` and the MLP of blocks `mlp` (block indices).

        Raises:
            ConfigError: a block index outside [0, L).
        """
        attn, mlp = list(attn), list(mlp)
        for name, blocks in (("skip_attn", attn), ("skip_mlp", mlp)):
            if outside := sorted(i for i in blocks if not 0 <= i < n_layers):
                expected = f"block indices in [0, {n_layers}) for this model of {n_layers} blocks"
                raise ConfigError(name, outside, expected)
        return cls(n_layers, frozenset([2 * i for i in attn] + [2 * i + 1 for i in mlp]))

    def in_bits(self, bits: int, indices: Iterable[int] | None = None) -> LayerSet:
        """Return the set with some sublayers' weights rounded to 8 or 4 bits; None: all and the head."""
        chosen = (*self.kept, 2 * self.n_layers) if indices is None else indices
        return replace(self, rounded=frozenset((self.bits | dict.fromkeys(chosen, bits)).items()))

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Indices of the sublayers that run, ascending."""
        return tuple(i for i in range(2 * self.n_layers) if i not in self.skipped)

    @cached_property
    def bits(self) -> dict[int, int]:
        """Bits of the sublayers with rounded weights and of the head (index 2L), by index."""
        return dict(self.rounded)

    def sublayers_in(self, bits: int) -> list[int]:
        """Return the indices of the sublayers with weights in `bits` bits, 2L for the LM head, ascending."""
        return sorted(i for i, own in self.rounded if own == bits)

    @cached_property
    def n_rounded(self) -> dict[int, tuple[int, int]]:
        """Numbers of attentions and of MLPs with rounded weights, by bits in use."""
        sublayers = {bits: [i for i in self.sublayers_in(bits) if i < 2 * self.n_layers] for bits in BITS}
        return {b: (sum(i % 2 == 0 for i in of), sum(i % 2 for i in of)) for b, of in sublayers.items() if of}

    @property
    def head_bits(self) -> int:
        """Bits of the weights of the LM head; 0: as loaded."""
        return self.bits.get(2 * self.n_layers, 0)

    @cached_property
    def skip_attn(self) -> tuple[int, ...]:
        """Blocks whose attention is skipped, ascending."""
        return tuple(sorted(i // 2 for i in self.skipped if i % 2 == 0))

    @cached_property
    def skip_mlp(self) -> tuple[int, ...]:
        """Blocks whose MLP is skipped, ascending."""
        return tuple(sorted(i // 2 for i in self.skipped if i % 2 == 1))

    @property
    def n_attn(self) -> int:
        """Number of attention sublayers that run."""
        return self.n_layers - len(self.skip_attn)

    @property
    def n_mlp(self) -> int:
        """Number of MLP sublayers that run."""
        return self.n_layers - len(self.skip_mlp)

    @cached_property
    def first_changed(self) -> int:
        """Index of the first sublayer that is skipped, reads rounded weights or a window; 2L if none.

        Before it, a draft has the full model's states.
        """
        if self.window is not None:
            return 0
        return min((*self.skipped, *self.bits), default=2 * self.n_layers)

    @property
    def text(self) -> str:
        """The set in words, such as `skips 2 attentions, 3 MLPs, reads 4 + 60 positions, 8-bit weights`."""
        read = "" if self.window is None else f", reads {self.window.sinks} + {self.window.recent} positions"
        weights = "".join(f", {bits}-bit weights" for bits in BITS if bits in self.bits.values())
        return f"skips {len(self.skip_attn)} attentions, {len(self.skip_mlp)} MLPs{read}{weights}"

    @property
    def skip_ratio(self) -> float:
        """Skip ratio r = |skipped| / 2L."""
        return len(self.skipped) / (2 * self.n_layers)
