"""Drafting with one fixed layer set: by indices, by ratio and pattern, or by the name of a published set."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from methods.draft_stop import DraftStop, StoppedDraft
from methods.settings import DraftLen, Name, ReusePrefix, StopBelow
from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.contract.shape import ModelDims
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Range, settings

PUBLISHED = Path(__file__).with_name("published_layer_sets.json")


@settings("method")
class FixedLayers(StoppedDraft):
    """Drafting with the same sublayers in every step (Self-SD's decoding, with a fixed exit threshold).

    The set is specified in exactly one of the three ways.
    """

    name: Name = "fixed_layers"
    skip_attn: Sequence[int] | None = None
    """Blocks whose attention is skipped."""
    skip_mlp: Sequence[int] | None = None
    """Blocks whose MLP is skipped."""
    ratio: Annotated[float, Range(0, 1, what="a share of the 2L sublayers")] | None = None
    """Skip round(ratio * 2L) sublayers."""
    pattern: Literal["uniform", "attention", "mlp", "exit"] = "uniform"
    """Sublayers that `ratio` skips: spread evenly over both kinds (uniform), attentions or MLPs, all three within
    blocks 1..L-2, or the deepest ones (exit)."""
    published: str | None = None
    """Name `paper/model/task` of a published set."""
    int8_sublayers: Sequence[int] | None = None
    """Indices in [0, 2L] of the sublayers with 8-bit weights (2i: attention of block i, 2i + 1: its MLP, 2L: LM head);
    null: as `draft_weights`."""
    int4_sublayers: Sequence[int] | None = None
    """The same list for 4-bit weights."""
    draft_len: DraftLen = 8
    stop_below: StopBelow = 0.0
    reuse_prefix: ReusePrefix = False
    """Verify from the first skipped sublayer (pays with `pattern=exit`)."""

    def __post_init__(self) -> None:
        by_index = self.skip_attn is not None or self.skip_mlp is not None
        if by_index + (self.ratio is not None) + (self.published is not None) != 1:
            expected = "exactly one of method.skip_attn/skip_mlp, method.ratio and method.published"
            raise ConfigError("method", self.name, expected)
        for bits, sublayers in self._sublayers.items():
            if self.draft_weights != "full":
                expected = f"null with method.draft_weights={self.draft_weights}"
                raise ConfigError(f"method.int{bits}_sublayers", sublayers, expected)
        self._stop = DraftStop(self.draft_len, self.stop_below, reading=self._reading)

    @property
    def _sublayers(self) -> dict[int, Sequence[int]]:
        given = {bits: getattr(self, f"int{bits}_sublayers") for bits in BITS}
        return {bits: sublayers for bits, sublayers in given.items() if sublayers is not None}

    @property
    def bits(self) -> Collection[int]:
        """Bits of the rounded weights that drafts read, at least in some sublayers."""
        return super().bits or [bits for bits, sublayers in self._sublayers.items() if sublayers]

    def check(self, dims: ModelDims) -> None:
        """Resolve the set for this model.

        Raises:
            ConfigError: an index out of range, an unreachable ratio, an unknown or misfitting name.
        """
        if self.published is not None:
            self._layer_set = published_set(self.published, dims.n_layers)
        elif self.ratio is not None:
            self._layer_set = pattern_set(self.pattern, self.ratio, dims.n_layers)
        else:
            self._layer_set = LayerSet.skipping(dims.n_layers, self.skip_attn or (), self.skip_mlp or ())
        pairs = frozenset((i, bits) for bits, sublayers in self._sublayers.items() for i in sublayers)
        self._layer_set = replace(self._layer_set, rounded=pairs)


def pattern_set(pattern: str, ratio: float, n_layers: int) -> LayerSet:
    """Return the layer set that skips round(ratio * 2L) sublayers in a pattern of `FixedLayers`.

    Raises:
        ConfigError: too many sublayers for the pattern.
    """
    count = round(ratio * 2 * n_layers)
    inner = range(2, 2 * n_layers - 2)
    choices = {
        "uniform": list(inner),
        "attention": [i for i in inner if i % 2 == 0],
        "mlp": [i for i in inner if i % 2 == 1],
        "exit": list(range(2 * n_layers)),
    }[pattern]
    if count > len(choices):
        most = len(choices) / (2 * n_layers)
        raise ConfigError("method.ratio", ratio, f"at most {most:.3f} with pattern {pattern} and {n_layers} blocks")
    if pattern == "exit":
        return LayerSet(n_layers, frozenset(choices[len(choices) - count :]))
    # the sublayer in the middle of each of `count` equal stretches
    return LayerSet(n_layers, frozenset(choices[(2 * k + 1) * len(choices) // (2 * count)] for k in range(count)))


@cache
def published_sets() -> dict[str, dict[str, list[int] | int | str]]:
    """Return the released layer sets by `paper/model/task`."""
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def published_set(name: str, n_layers: int, option: str = "method.published") -> LayerSet:
    """Return a released set by name.

    Args:
        option: that has the name, for messages.

    Raises:
        ConfigError: unknown name (the message lists all), or a set for another number of blocks.
    """
    entry = published_sets().get(name)
    if entry is None:
        raise ConfigError(option, name, f"one of {', '.join(sorted(published_sets()))}")
    if entry["n_layers"] != n_layers:
        raise ConfigError(option, name, f"a set for {n_layers} blocks; this one is for {entry['n_layers']}")
    return LayerSet.skipping(n_layers, entry["skip_attn"], entry["skip_mlp"])  # type: ignore[arg-type]
