"""Layer sets: what a draft runs and reads of a model's 2L sublayers (2i is the attention of block i, 2i+1 its MLP).

A sublayer that runs reads its weights as they were loaded, or a copy of them that was rounded to 8 bits; its attention
reads the whole prefix, or a window of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from ssd_bench.contract.window import Window
from ssd_bench.errors import ConfigError


@dataclass(frozen=True)
class LayerSet:
    """The sublayers that run in a forward pass; a skipped one leaves the residual stream unchanged.

    Embedding, final norm and LM head always run. Frozen and hashable: a set can be the key of a dictionary.

    Args:
        n_layers: L, number of blocks.
        skipped: indices in [0, 2L) of the sublayers that do not run; any collection.
        int8: indices in [0, 2L] of the sublayers that run with 8-bit weights, 2L for the LM head; any collection.
        window: the positions that attentions read; None: all.

    Raises:
        ConfigError: an index out of range; a sublayer that is both skipped and in `int8`.
    """

    n_layers: int
    skipped: frozenset[int] = frozenset()
    int8: frozenset[int] = frozenset()
    window: Window | None = None

    def __post_init__(self) -> None:
        for name, text, end in (("skipped", "[0, {})", 2 * self.n_layers), ("int8", "[0, {}]", 2 * self.n_layers + 1)):
            indices = getattr(self, name)
            if not isinstance(indices, frozenset):
                object.__setattr__(self, name, frozenset(indices))
            outside = sorted(i for i in indices if not 0 <= i < end)
            if outside:
                raise ConfigError(f"{name} sublayers", outside, f"indices in {text.format(2 * self.n_layers)}")
        if both := sorted(self.skipped & self.int8):
            raise ConfigError("int8 sublayers", both, "sublayers that are not skipped")

    @classmethod
    def full(cls, n_layers: int) -> LayerSet:
        return cls(n_layers)

    @classmethod
    def exit(cls, n_layers: int, blocks: int) -> LayerSet:
        """Return the first `blocks` of L blocks: an early exit."""
        return cls(n_layers, frozenset(range(2 * blocks, 2 * n_layers)))

    @classmethod
    def skipping(cls, n_layers: int, attn: Iterable[int] = (), mlp: Iterable[int] = ()) -> LayerSet:
        """Return the set that skips the attention of blocks `attn` and the MLP of blocks `mlp` (block indices).

        Raises:
            ConfigError: a block index outside [0, L).
        """
        attn, mlp = list(attn), list(mlp)
        for name, blocks in (("skip_attn", attn), ("skip_mlp", mlp)):
            outside = sorted(i for i in blocks if not 0 <= i < n_layers)
            if outside:
                raise ConfigError(
                    name, outside, f"block indices in [0, {n_layers}) for this model of {n_layers} blocks"
                )
        return cls(n_layers, frozenset([2 * i for i in attn] + [2 * i + 1 for i in mlp]))

    @cached_property
    def in_8_bits(self) -> LayerSet:
        """The set with the weights of all its sublayers and of the head in 8 bits."""
        return replace(self, int8=frozenset(self.kept) | {2 * self.n_layers})

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Indices of the sublayers that run, ascending."""
        return tuple(i for i in range(2 * self.n_layers) if i not in self.skipped)

    @cached_property
    def kept_in_8_bits(self) -> tuple[int, ...]:
        """Indices of the sublayers that run with 8-bit weights, ascending."""
        return tuple(sorted(self.int8 - {2 * self.n_layers}))

    @cached_property
    def head_in_8_bits(self) -> bool:
        """Whether the LM head reads 8-bit weights."""
        return 2 * self.n_layers in self.int8

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
    def n_attn_int8(self) -> int:
        """Number of attention sublayers that run with 8-bit weights."""
        return sum(i % 2 == 0 for i in self.kept_in_8_bits)

    @cached_property
    def n_mlp_int8(self) -> int:
        """Number of MLP sublayers that run with 8-bit weights."""
        return len(self.kept_in_8_bits) - self.n_attn_int8

    @cached_property
    def first_changed(self) -> int:
        """Index of the first sublayer that is skipped, reads 8-bit weights or a window; 2L if none.

        Before it, the states of a draft are those of the full model.
        """
        if self.window is not None:
            return 0
        return min((*self.skipped, *self.kept_in_8_bits), default=2 * self.n_layers)

    @property
    def text(self) -> str:
        """The set in words, such as `skips 2 attentions, 3 MLPs, reads 4 + 60 positions, 8-bit weights`."""
        read = "" if self.window is None else f", reads {self.window.sinks} + {self.window.recent} positions"
        weights = ", 8-bit weights" if self.int8 else ""
        return f"skips {len(self.skip_attn)} attentions, {len(self.skip_mlp)} MLPs{read}{weights}"

    @property
    def skip_ratio(self) -> float:
        """Skip ratio r = |skipped| / 2L."""
        return len(self.skipped) / (2 * self.n_layers)
