"""Latency model: times of one attention, t_attn(n) at context length n, of one MLP, t_mlp, and of passes over nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import BITS, LayerSet
from ssd_bench.cost.tpt import tpt
from ssd_bench.errors import ConfigError

GIVEN, MEASURED = "given", "measured"
"""Values of `Latency.source`: set by options, or measured on the machine of the run."""

NO_ROUNDED = "costs with times of {}-bit weights: measured ones (no hardware.latency), or a reference machine"


@dataclass(frozen=True)
class NodeTimes:
    """Times in milliseconds of one pass over `nodes` nodes at once.

    Attributes:
        nodes: number of nodes, each of which sees a context of n positions.
        attn_slope_ms, attn_intercept_ms: one attention sublayer over all nodes, slope * n + intercept.
        mlp_ms: one MLP sublayer over all nodes.
        rest_ms: a verification without its sublayers: embedding, final norm, LM head, softmax, choice of tokens, and
            the work of the decode loop.
    """

    nodes: int
    attn_slope_ms: float
    attn_intercept_ms: float
    mlp_ms: float
    rest_ms: float


@dataclass(frozen=True)
class Latency:
    """Latency model of KnapSpec (§3.2): t_attn(n) = slope * n + intercept, t_mlp constant, all in milliseconds.

    As in the paper, LM head, embedding and passes over several nodes are left out; `pass_ms` includes them.

    Attributes:
        t_mlp_ms: one MLP sublayer over one token, norm and residual included.
        t_attn_slope_ms, t_attn_intercept_ms: one attention sublayer over one token at context n.
        source: `GIVEN`, `MEASURED`, or the name of a reference machine.
        r2: share of the variance of the measured t_attn(n) that the line explains; None when given.
        loaded: other processes used more than 10 % of the machine in both attempts, so the times may be too long.
        points: measured (n, t_attn in ms).
        passes: measured times by number of nodes, ascending from 1; empty when given.
        calls: measured times of single sublayers and LM heads that a method calls by itself, by number of rows; their
            `rest_ms` is the head. Empty when given.
        int8_passes, int4_passes: as `passes`, with rounded weights of the sublayers (`rest_ms` is 0); empty unless a
            method reads them.
        draft_rest_ms: one drafted token without its sublayers; 0 when given.
        int8_draft_rest_ms, int4_draft_rest_ms: the same with rounded weights of the LM head; 0 unless a method reads
            them.
        draft_start_ms: one draft without its tokens; 0 when given.
        tree_token_ms: extra time of a drafted token with siblings; 0 when given.
        tree_node_ms: extra time of a verified node of a tree, compared with one of a chain; 0 when given.
    """

    t_mlp_ms: float
    t_attn_slope_ms: float
    t_attn_intercept_ms: float
    source: str = GIVEN
    r2: float | None = None
    loaded: bool = False
    points: tuple[tuple[int, float], ...] = ()
    passes: tuple[NodeTimes, ...] = ()
    calls: tuple[NodeTimes, ...] = ()
    int8_passes: tuple[NodeTimes, ...] = ()
    int4_passes: tuple[NodeTimes, ...] = ()
    draft_rest_ms: float = 0.0
    int8_draft_rest_ms: float = 0.0
    int4_draft_rest_ms: float = 0.0
    draft_start_ms: float = 0.0
    tree_token_ms: float = 0.0
    tree_node_ms: float = 0.0

    def __post_init__(self) -> None:
        for field in ("t_mlp_ms", "t_attn_slope_ms", "t_attn_intercept_ms"):
            if not getattr(self, field) >= 0:
                raise ConfigError(f"hardware.latency.{field}", getattr(self, field), "a time in ms, not negative")
        if self.t_mlp_ms == 0 or self.t_attn_slope_ms + self.t_attn_intercept_ms == 0:
            raise ConfigError("hardware.latency", 0.0, "an attention and an MLP that take time")

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Latency:
        """Return the profile that was stored as JSON."""
        values = {field.name: stored[field.name] for field in fields(cls) if stored.get(field.name) is not None}
        points = tuple((int(n), ms) for n, ms in stored.get("points") or ())
        names = ("passes", "calls", *(f"int{bits}_passes" for bits in BITS))
        tables = {name: tuple(NodeTimes(**times) for times in stored.get(name) or ()) for name in names}
        return cls(**values | {"points": points} | tables)

    def attn_ms(self, context: float) -> float:
        """Return t_attn(n), one attention sublayer at context n."""
        return self.t_attn_slope_ms * context + self.t_attn_intercept_ms

    def draft_ms(self, layer_set: LayerSet, context: float) -> float:
        """Return t_draft(S), the sublayers of S over one token; attentions read only the positions of its window.

        Raises:
            ConfigError: the profile has no times of S's rounded sublayers.
        """
        read = context if layer_set.window is None else layer_set.window.count_read(context)
        total_ms = layer_set.n_attn * self.attn_ms(read) + layer_set.n_mlp * self.t_mlp_ms
        for bits, (n_attn, n_mlp) in layer_set.n_rounded.items():
            attn, mlp, _ = self.pass_ms(1, read, bits)
            total_ms += n_attn * (attn - self.attn_ms(read)) + n_mlp * (mlp - self.t_mlp_ms)
        return total_ms

    def target_ms(self, n_layers: int, context: float) -> float:
        """Return t_target, all 2L sublayers over one token."""
        return n_layers * (self.attn_ms(context) + self.t_mlp_ms)

    def estimate(self, alpha: float, draft_len: int, layer_set: LayerSet, context: float) -> Estimate:
        """Return the estimate of a layer set by KnapSpec's Eq. 4, at an acceptance rate and a draft length."""
        draft_ms, target_ms = self.draft_ms(layer_set, context), self.target_ms(layer_set.n_layers, context)
        return Estimate(alpha, draft_len, tpt(alpha, draft_len, draft_ms, target_ms))

    def has_passes(self, bits: int) -> bool:
        """Return whether the profile has times of weights in so many bits; 0: as loaded."""
        return not bits or bool(getattr(self, f"int{bits}_passes"))

    def passes_in(self, bits: int) -> tuple[NodeTimes, ...]:
        """Return `passes` (bits 0) or the passes with rounded weights.

        Raises:
            ConfigError: the profile has none.
        """
        passes: tuple[NodeTimes, ...] = getattr(self, f"int{bits}_passes") if bits else self.passes
        if bits and not passes:
            raise ConfigError("hardware.latency", self.source, NO_ROUNDED.format(bits))
        return passes

    def rest_ms(self, bits: int) -> float:
        """Return the time of one drafted token without its sublayers, by the bits of the head's weights."""
        rest_ms: float = getattr(self, f"int{bits}_draft_rest_ms") if bits else self.draft_rest_ms
        return rest_ms

    def pass_ms(self, nodes: float, context: float, bits: int = 0) -> tuple[float, float, float]:
        """Return the times of one attention, of one MLP and of the rest of a verification of `nodes` at context n.

        The times are linear between the measured numbers of nodes and beyond the largest. Without measured passes the
        paper's model holds: a pass takes as long as over one node, and only its sublayers take time.

        Args:
            bits: bits of the sublayers' weights; 0: as loaded, else the rest is 0.

        Raises:
            ConfigError: as `passes_in`.
        """
        passes = self.passes_in(bits)
        if not passes:
            return self.attn_ms(context), self.t_mlp_ms, 0.0
        return _between(passes, nodes, context)


def _between(passes: Sequence[NodeTimes], nodes: float, context: float) -> tuple[float, float, float]:
    at = next((i for i, times in enumerate(passes) if times.nodes >= nodes), len(passes) - 1)
    high, low = passes[at], passes[max(0, at - 1)]
    share = (nodes - low.nodes) / (high.nodes - low.nodes) if at else 0.0
    times: tuple[float, float, float] = interpolate(low, high, share, context, max)
    return times


def interpolate(low: NodeTimes, high: NodeTimes, share: Any, context: Any, larger: Callable[[float, Any], Any]) -> Any:
    """Return the times of one attention, of one MLP and of the rest of a pass, in milliseconds; numbers or arrays.

    Args:
        low, high: measured passes of fewer and of more nodes.
        share: position between `low` (0) and `high` (1); above 1 beyond the measured nodes.
        larger: `max` or NumPy's.
    """

    def blend(a: Any, b: Any) -> Any:
        return larger(0.0, a + share * (b - a))

    attn = (times.attn_slope_ms * context + times.attn_intercept_ms for times in (low, high))
    return blend(*attn), blend(low.mlp_ms, high.mlp_ms), blend(low.rest_ms, high.rest_ms)


def fit_line(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """Return slope, intercept and r2 of a least-squares line through points (n, t), with slope and intercept >= 0.

    A free fit of a steep, slightly convex curve can have a negative intercept, and negative times at short contexts
    would make the knapsack prefer attentions.
    """
    import numpy as np
    from scipy.optimize import nnls

    n = np.array([p[0] for p in points], dtype=float)
    t = np.array([p[1] for p in points])
    scale = n.max()
    (slope, intercept), _ = nnls(np.stack([n / scale, np.ones_like(n)], axis=1), t)
    residual = t - slope * n / scale - intercept
    spread = float(((t - t.mean()) ** 2).sum())
    r2 = 1 - float((residual**2).sum()) / spread if spread > 0 else 1.0
    return float(slope / scale), float(intercept), r2
