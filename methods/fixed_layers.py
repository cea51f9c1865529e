"""Drafting with one given layer set: by indices, by ratio and pattern, or by the name of a published set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from methods.draft_stop import DraftStop, StoppedDraft
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.errors import ConfigError
from ssd_bench.model.shape import ModelDims

PUBLISHED = Path(__file__).with_name("published_layer_sets.json")
PATTERNS = ("uniform", "attention", "mlp", "exit")


class FixedLayers(StoppedDraft):
    """Draft every step with the same sublayers (the decoding half of Self-SD, with a fixed exit threshold).

    Exactly one of the three ways to give the set must be used.

    Args:
        name: name in tables.
        skip_attn, skip_mlp: block indices whose attention / MLP is skipped.
        ratio, pattern: skip round(ratio * 2L) sublayers: `uniform` spread evenly over both kinds, `attention` and
            `mlp` spread evenly over one kind, all three within blocks 1..L-2; `exit` the deepest sublayers (an early
            exit).
        published: `paper/model/task`, a set that a paper's authors released.
        draft_len: γ, at least 1.
        stop_below: stop drafting after a token less likely than this.
        reuse_prefix: verify from the first skipped sublayer (pays with `pattern=exit`).
    """

    def __init__(
        self,
        name: str = "fixed_layers",
        skip_attn: Sequence[int] | None = None,
        skip_mlp: Sequence[int] | None = None,
        ratio: float | None = None,
        pattern: str = "uniform",
        published: str | None = None,
        draft_len: int = 8,
        stop_below: float = 0.0,
        reuse_prefix: bool = False,
    ):
        given = [skip_attn is not None or skip_mlp is not None, ratio is not None, published is not None]
        if sum(given) != 1:
            raise ConfigError(
                "method", name, "exactly one of method.skip_attn/skip_mlp, method.ratio and method.published"
            )
        self._stop = DraftStop(draft_len, stop_below)
        if ratio is not None and not 0 <= ratio <= 1:
            raise ConfigError("method.ratio", ratio, "a share of the 2L sublayers in [0, 1]")
        if pattern not in PATTERNS:
            raise ConfigError("method.pattern", pattern, f"one of {', '.join(PATTERNS)}")
        self.name, self.reuse_prefix = name, reuse_prefix
        self._indices = (list(skip_attn or ()), list(skip_mlp or ()))
        self._ratio, self._pattern, self._published = ratio, pattern, published

    def check(self, dims: ModelDims) -> None:
        """Resolve the set for this model.

        Raises:
            ConfigError: an index out of range, a ratio that the pattern cannot reach, an unknown or misfitting name.
        """
        if self._published is not None:
            self._layer_set = published_set(self._published, dims.n_layers)
        elif self._ratio is not None:
            self._layer_set = pattern_set(self._pattern, self._ratio, dims.n_layers)
        else:
            self._layer_set = LayerSet.skipping(dims.n_layers, *self._indices)


def pattern_set(pattern: str, ratio: float, n_layers: int) -> LayerSet:
    """The layer set that skips round(ratio * 2L) sublayers in a pattern of `FixedLayers`.

    Raises:
        ConfigError: the pattern has fewer sublayers to skip.
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
    # the middle of each of `count` equal stretches
    return LayerSet(n_layers, frozenset(choices[(2 * k + 1) * len(choices) // (2 * count)] for k in range(count)))


@cache
def published_sets() -> dict[str, dict[str, list[int] | int | str]]:
    """Released layer sets by `paper/model/task`, with their L, indices and source file."""
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


def published_set(name: str, n_layers: int) -> LayerSet:
    """A released set by name.

    Raises:
        ConfigError: unknown name (the message lists the known ones), or a set for another number of blocks.
    """
    entry = published_sets().get(name)
    if entry is None:
        raise ConfigError("method.published", name, f"one of {', '.join(sorted(published_sets()))}")
    if entry["n_layers"] != n_layers:
        raise ConfigError("method.published", name, f"a set for {n_layers} blocks; this one is for {entry['n_layers']}")
    return LayerSet.skipping(n_layers, entry["skip_attn"], entry["skip_mlp"])  # type: ignore[arg-type]
