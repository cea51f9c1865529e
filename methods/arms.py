"""What drafting with a layer set is believed to bring: a posterior of its acceptance, the cost of all parts of a step.

An arm is a layer set, with or without a window of the cache, and a Dirichlet posterior over the outcome of a drafted
token: accepted or rejected, by the confidence bin that the draft's own probability fell into. With the costs of a pass
over 1, 2, .. nodes it gives the expected tokens per millisecond of every draft length and stop threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from methods.knapsack import n_columns
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import LayerDraft, Probe
from ssd_bench.core.window import Window
from ssd_bench.cost.latency import Latency

Array = NDArray[np.float64]


class Prior:
    """The posterior before anything is seen: a calibrated draft, so that a token is accepted as often as it says.

    Args:
        thresholds: ascending probabilities in (0, 1), the borders of the confidence bins.
        strength: tokens that the prior weighs, spread evenly over the bins.
    """

    def __init__(self, thresholds: Sequence[float], strength: float):
        self.thresholds = np.array(thresholds)
        borders = np.array([0.0, *thresholds, 1.0])
        accepted = (borders[:-1] + borders[1:]) / 2
        self.counts = strength / len(accepted) * np.stack([1 - accepted, accepted])

    def tally(self, match: Tensor, confidence: Tensor) -> Array:
        """Counts [2, bins] of tokens: rejected and accepted (match, [r] bool), by confidence [r]."""
        counts = np.zeros_like(self.counts)
        bins = np.digitize(confidence.double().cpu().numpy(), self.thresholds)
        np.add.at(counts, (match.cpu().numpy().astype(int), bins), 1)
        return counts


@dataclass(eq=False)
class Arm:
    """A layer set, a window or none, and the posterior of the two.

    Attributes:
        layer_set: what drafts.
        counts: [2, bins] parameters of the Dirichlet: rejected and accepted tokens by confidence bin, prior included.
        tried: it was judged by tokens that did not choose it; before that its counts favour it.
        born: the search that found it, 0 for a given one.
        window: the positions that its attentions read; None: all.
        derived: it combines another arm's layer set with a window.
    """

    layer_set: LayerSet
    counts: Array
    tried: bool = False
    born: int = 0
    window: Window | None = None
    derived: bool = False

    @property
    def first_changed(self) -> int:
        """Boundary from which on its streams are not the full model's: 0 with a window, else the first skipped."""
        return self.layer_set.first_skipped if self.window is None else 0

    @property
    def acceptance(self) -> float:
        """Posterior mean of the probability that a drafted token is accepted, given that those before it were."""
        return float(self.counts[1].sum() / self.counts.sum())

    def learn(self, drafted: int, accepted: int, threshold: int, capped: bool) -> None:
        """Count a verified draft: its tokens up to the first rejected one.

        Of a token it is known on which side of the threshold it was: it counts in the bins of that side, in
        proportion to their counts. (A draft that ended at a rejected EOS passes for one that ended by confidence.)

        Args:
            drafted, accepted: k >= 1 and m.
            threshold: index of the stop threshold, 0 for none: bins below it end a draft.
            capped: the draft reached its cap, which says nothing about its last token.
        """
        counts = self.counts.tolist()  # a step of a small model is short: a few floats are faster without numpy

        def add(outcome: int, tokens: int, first: int, end: int) -> None:
            row = counts[outcome]
            factor = 1 + tokens / sum(row[first:end])
            row[first:end] = [factor * value for value in row[first:end]]

        n_bins = len(counts[0])
        add(1, min(accepted, drafted - 1), threshold, n_bins)
        if accepted < drafted - 1:
            add(0, 1, threshold, n_bins)
        elif threshold and not capped:
            add(int(accepted == drafted), 1, 0, threshold)
        else:
            add(int(accepted == drafted), 1, 0, n_bins)
        self.counts = np.array(counts)

    def limit(self, memory: float) -> None:
        """Weigh no more than `memory` tokens, so that the posterior follows the text."""
        self.counts *= min(1.0, memory / float(self.counts.sum()))

    def forget(self, prior: Prior, share: float) -> None:
        """Move a share of the way back to the prior."""
        self.counts += share * (prior.counts - self.counts)


@dataclass(frozen=True)
class Pull:
    """What drafts until the next plan: an arm, its stop threshold (index, 0: none), and what the plan expects of it."""

    arm: Arm
    threshold: int
    draft: LayerDraft
    draft_ms: float
    verify_ms: list[float]
    ar_ms: float
    rate: float


def optimistic(counts: Array, deviations: float) -> Array:
    """Counts [arms, 2, bins] moved to an acceptance some posterior standard deviations above the mean, at most 1."""
    total, accepted = counts.sum((1, 2)), counts[:, 1].sum(1)
    mean = accepted / total
    raised = np.minimum(1.0, mean + deviations * np.sqrt(mean * (1 - mean) / (total + 1)))
    scales = np.stack([(1 - raised) / (1 - mean), raised / mean], axis=1)
    return counts * scales[:, :, None]


def throughput(counts: Array, draft_ms: Array, verify_ms: Array) -> Array:
    """Expected tokens per millisecond of a step, [arms, thresholds, lengths]: index t, γ - 1.

    Drafting goes on after a token with probability s (its bin is not below the threshold), each token by itself, and
    ends after γ tokens at the latest. With a the probability of acceptance and b of acceptance and going on,

        E[tokens] = 1 + a (1 + b + ... + b^(γ-1)),  E[ms] = v_0 + sum_(j = 1..γ) s^(j-1) (t_draft + v_j - v_(j-1)),

    v_j the verification of j drafted tokens. Without threshold and growth of v, s = 1 and b = a: KnapSpec's Eq. 4.

    Args:
        counts: [arms, 2, bins].
        draft_ms: [arms] one drafted token.
        verify_ms: [arms, lengths + 1], v_0, v_1, ...
    """
    mass = counts / counts.sum((1, 2), keepdims=True)
    above = mass[:, :, ::-1].cumsum(2)[:, :, ::-1]  # [arms, 2, t]: outcomes in bin t or a higher one
    exponents = np.arange(verify_ms.shape[1] - 1)
    reached = above.sum(1)[..., None] ** exponents
    accepted = above[:, 1, :, None] ** exponents
    growth = draft_ms[:, None] + np.diff(verify_ms, axis=1)
    tokens = 1 + above[:, 1, :1, None] * accepted.cumsum(2)
    return tokens / (verify_ms[:, :1, None] + (reached * growth[:, None, :]).cumsum(2))


class Costs:
    """Milliseconds of every part of a step at one context length.

    Args:
        latency: the profile; with its passes measured, everything counts: head, embedding, growth with the nodes.
        n_layers: L.
        context: n.
        longest: most drafted tokens.
        reuse: drafting leaves the states before the first skipped sublayer to verification.
        rows: tokens of a rehearsal or search, for their costs.
        copied: most tokens of a draft that no layers drafted.

    Attributes:
        ar_ms: one step of AR.
        copy_ms: verification of 0, 1, .. copied tokens.
    """

    def __init__(
        self, latency: Latency, n_layers: int, context: int, longest: int, reuse: bool, rows: int = 1, copied: int = 0
    ):
        self.latency, self.n_layers, self.context, self._reuse, self._rows = latency, n_layers, context, reuse, rows
        table = np.array([latency.pass_ms(n, context) for n in range(1, longest + 2)])
        self._attn, self._mlp, self._rest = table.T
        self.ar_ms = float(n_layers * (self._attn[0] + self._mlp[0]) + self._rest[0])
        copies = [latency.pass_ms(n, context) for n in range(1, copied + 2)]
        self.copy_ms = [n_layers * (attn + mlp) + rest for attn, mlp, rest in copies]
        self._over_rows = latency.pass_ms(rows, context)
        self._draft_rest = latency.draft_rest_ms
        self._start = np.where(np.arange(longest + 1) > 0, latency.draft_start_ms, 0.0)

    def draft_ms(self, layer_set: LayerSet, window: Window | None = None) -> float:
        """One drafted token, whose attentions cost what they cost over as many positions as they read."""
        attn = self._attn[0]
        if window is not None:
            attn = self.latency.pass_ms(1, window.positions(self.context))[0]
        return float(layer_set.n_attn * attn + layer_set.n_mlp * self._mlp[0] + self._draft_rest)

    def verify_ms(self, layer_set: LayerSet, window: Window | None = None) -> Array:
        """[longest + 1] verification of 0, 1, .. drafted tokens, with what a draft takes beside its tokens.

        Before the first skipped sublayer only the last node is left to compute, where states are reused.
        """
        shared = layer_set.first_skipped if self._reuse and window is None else 0
        attn, mlp = (shared + 1) // 2, shared // 2
        once = attn * self._attn[0] + mlp * self._mlp[0]
        rest = self._rest + self._start
        return once + (self.n_layers - attn) * self._attn + (self.n_layers - mlp) * self._mlp + rest

    def rehearsal_ms(self, layer_set: LayerSet, window: Window | None = None) -> float:
        """`rehearse` over r tokens."""
        attn, mlp, rest = self._over_rows
        if window is not None:
            attn = self.latency.pass_ms(self._rows, window.positions(self.context))[0]
        reused = 0 if window is not None else layer_set.first_skipped
        n_attn, n_mlp = layer_set.n_attn - (reused + 1) // 2, layer_set.n_mlp - reused // 2
        return n_attn * attn + n_mlp * mlp + rest

    def search_ms(self, budget: float, weights: tuple[int, int]) -> float:
        """The sublayers of a knapsack over r tokens, with as many branches as may survive, and its heads."""
        n_sub, reached, total = 2 * self.n_layers, 1, 0.0
        width = n_columns(budget, weights, n_sub)
        for b in range(n_sub):
            total += self.latency.pass_ms(self._rows * min(reached, width), self.context)[b % 2]
            reached += weights[b % 2]
        return total + 3 * self._over_rows[2]  # full model, first guesses, settling

    def best_rate(self, budget: float, acceptance: float) -> float:
        """Tokens per millisecond of a set that skips all that the budget allows, at this acceptance below 1."""
        sublayers = self.ar_ms - self._rest[0]
        draft = (1 - budget) * sublayers + self._draft_rest
        nodes = np.arange(len(self._rest))
        verify = self.n_layers * (self._attn + self._mlp) + self._rest + self._start
        tokens = (1 - acceptance ** (nodes + 1)) / (1 - acceptance)
        return float((tokens / (nodes * draft + verify)).max())


def rehearse(probe: Probe, prior: Prior, arm: Arm, states: Tensor, target: Tensor, length: int) -> Array:
    """Counts [2, bins] of what an arm would have drafted for the last r committed tokens: one pass, without decoding.

    Args:
        states: [r, d] the full model's, at the arm's first changed boundary.
        target: [r] its predictions.
        length: committed positions, the r tokens included.
    """
    sublayers = [i for i in arm.layer_set.kept if i >= arm.first_changed]
    hidden = probe.run_sublayers(sublayers, states, length - len(states), arm.window)
    predicted, confidence = probe.predict_confident(hidden)
    return prior.tally(predicted == target, confidence)


def promises(prior: Prior, weight: float, costs: Costs, layer_set: LayerSet, rows: int) -> Array:
    """Tokens per millisecond [r + 1] of a set that agreed on 0, 1, .. r tokens, each of which weighs `weight`."""
    matches = np.arange(rows + 1.0)
    shrunk = prior.counts.sum(1) + weight * np.stack([rows - matches, matches], axis=1)
    draft_ms = np.full(rows + 1, costs.draft_ms(layer_set))
    verify_ms = np.tile(costs.verify_ms(layer_set), (rows + 1, 1))
    return throughput(shrunk[:, :, None], draft_ms, verify_ms).max((1, 2))
