"""Times of one attention and one MLP sublayer, t_attn(n) over context length n and t_mlp, and of passes over nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.window import Window
from ssd_bench.errors import ConfigError


@dataclass(frozen=True)
class NodeTimes:
    """Times in milliseconds of one pass over `nodes` nodes at once.

    Attributes:
        nodes: as many see a context of n.
        attn_slope_ms, attn_intercept_ms: one attention sublayer over all of them, slope * n + intercept.
        mlp_ms: one MLP sublayer over all of them.
        rest_ms: what a verification does beside its sublayers: embedding, final norm, LM head, softmax, choice of
            tokens, and the decode loop's own work.
    """

    nodes: int
    attn_slope_ms: float
    attn_intercept_ms: float
    mlp_ms: float
    rest_ms: float


@dataclass(frozen=True)
class Latency:
    """Latency model of KnapSpec (§3.2): t_attn(n) = slope * n + intercept, t_mlp constant, all in milliseconds.

    LM head, embedding and passes over several nodes are outside that model, as in the paper; `pass_ms` has them.

    Attributes:
        t_mlp_ms: one MLP sublayer over one token, norm and residual included.
        t_attn_slope_ms, t_attn_intercept_ms: one attention sublayer over one token at context n.
        source: `given` or `measured`.
        r2: share of the variance of the measured t_attn(n) that the line explains; None when given.
        loaded: other processes used more than 10 % of the machine in both attempts, so the times may be too long.
        points: measured (n, t_attn in ms).
        passes: measured times by number of nodes, ascending from 1; empty when given.
        draft_rest_ms: what a drafted token takes beside its sublayers; 0 when given.
        draft_start_ms: what a draft takes beside its tokens; 0 when given.
        tree_token_ms: what a drafted token takes longer whose siblings are candidates as well; 0 when given.
        tree_node_ms: what a node of a tree takes longer in a verification than one of a chain; 0 when given.
    """

    t_mlp_ms: float
    t_attn_slope_ms: float
    t_attn_intercept_ms: float
    source: str = "given"
    r2: float | None = None
    loaded: bool = False
    points: tuple[tuple[int, float], ...] = ()
    passes: tuple[NodeTimes, ...] = ()
    draft_rest_ms: float = 0.0
    draft_start_ms: float = 0.0
    tree_token_ms: float = 0.0
    tree_node_ms: float = 0.0

    def __post_init__(self) -> None:
        for field in ("t_mlp_ms", "t_attn_slope_ms", "t_attn_intercept_ms"):
            if not getattr(self, field) >= 0:
                raise ConfigError(f"hardware.latency.{field}", getattr(self, field), "a time in ms, not negative")
        if self.t_mlp_ms == 0 or self.t_attn_slope_ms + self.t_attn_intercept_ms == 0:
            raise ConfigError("hardware.latency", 0.0, "an attention and an MLP that take time")

    def attn_ms(self, context: float) -> float:
        """t_attn(n): one attention sublayer at context n."""
        return self.t_attn_slope_ms * context + self.t_attn_intercept_ms

    def draft_ms(self, layer_set: LayerSet, context: float, window: Window | None = None) -> float:
        """Return t_draft(S): the sublayers of S over one token, whose attentions read a window of the context."""
        read = context if window is None else window.positions(context)
        return layer_set.n_attn * self.attn_ms(read) + layer_set.n_mlp * self.t_mlp_ms

    def target_ms(self, n_layers: int, context: float) -> float:
        """t_target: all 2L sublayers over one token."""
        return n_layers * (self.attn_ms(context) + self.t_mlp_ms)

    def pass_ms(self, nodes: float, context: float) -> tuple[float, float, float]:
        """One attention, one MLP, and all that is not a sublayer, of a verification of some nodes at context n.

        Linear between the measured numbers of nodes and beyond the largest. Without measured passes the paper's model:
        a pass takes as long as one over one node, and nothing beside its sublayers.
        """
        if not self.passes:
            return self.attn_ms(context), self.t_mlp_ms, 0.0
        at = next((i for i, times in enumerate(self.passes) if times.nodes >= nodes), len(self.passes) - 1)
        high, low = self.passes[at], self.passes[max(0, at - 1)]
        share = (nodes - low.nodes) / (high.nodes - low.nodes) if at else 0.0
        return between(low, high, share, context, max)


def between(low: NodeTimes, high: NodeTimes, share: Any, context: Any, larger: Callable[[float, Any], Any]) -> Any:
    """One attention, one MLP, and the rest of a pass over so many nodes, in milliseconds: numbers or arrays alike.

    Args:
        low, high: measured passes of fewer and of more nodes.
        share: of the way from `low` to `high`; beyond 1 for more nodes than were measured.
        context: n.
        larger: the larger of two numbers, `max` or NumPy's.
    """

    def at(a: Any, b: Any) -> Any:
        return larger(0.0, a + share * (b - a))

    attn = (times.attn_slope_ms * context + times.attn_intercept_ms for times in (low, high))
    return at(*attn), at(low.mlp_ms, high.mlp_ms), at(low.rest_ms, high.rest_ms)


def fit(
    points: Sequence[tuple[int, float]], t_mlp_ms: float, loaded: bool = False, passes: Sequence[NodeTimes] = ()
) -> Latency:
    """The latency model of measured (n, t_attn), by `line`."""
    slope, intercept, r2 = line(points)
    return Latency(t_mlp_ms, slope, intercept, "measured", r2, loaded, tuple(points), tuple(passes))


def line(points: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """Slope, intercept and r2 of least squares over (n, t), slope and intercept held at or above zero.

    A free fit can turn negative at short contexts (the intercept of a steep, slightly convex curve), and a negative
    time would make the knapsack prefer attention for nothing.
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
