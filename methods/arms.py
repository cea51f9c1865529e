"""Expected throughput of drafting with a layer set: the posterior of its acceptance, and the costs of a step's parts.

An arm of the bandit `methods.adaptive` is a layer set, perhaps with a window, and a Dirichlet posterior over a drafted
token's outcomes: accepted or rejected, by bin of its draft probability, the confidence. The posterior and the times of
passes over 1, 2, .. nodes give the expected tokens per millisecond of every draft length and stop threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from methods.knapsack import n_columns
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import LayerDraft, Probe
from ssd_bench.cost.latency import Latency

Array = NDArray[np.float64]


class Prior:
    """Prior of an arm: a calibrated draft, whose acceptance rate equals its confidence.

    Args:
        thresholds: ascending probabilities in (0, 1), the borders of the confidence bins.
        strength: weight in tokens, spread evenly over the bins.

    Attributes:
        counts: [2, bins] parameters of the Dirichlet: row 0 rejected, row 1 accepted.
    """

    def __init__(self, thresholds: Sequence[float], strength: float):
        self.thresholds = np.array(thresholds)
        borders = np.array([0.0, *thresholds, 1.0])
        accepted = (borders[:-1] + borders[1:]) / 2  # calibrated: the acceptance rate of a bin is its middle
        self.counts = strength / len(accepted) * np.stack([1 - accepted, accepted])

    def tally(self, match: Tensor, confidence: Tensor) -> Array:
        """Count r tokens as [2, bins] by match [r] and confidence [r]."""
        counts = np.zeros_like(self.counts)
        bins = np.digitize(confidence.double().cpu().numpy(), self.thresholds)
        np.add.at(counts, (match.cpu().numpy().astype(int), bins), 1)
        return counts


@dataclass(eq=False)
class Arm:
    """A layer set and the posterior of its acceptance.

    Attributes:
        counts: [2, bins] Dirichlet parameters: rejected and accepted tokens by confidence bin, including the prior.
        evaluated: whether it was evaluated on tokens that did not select it (those favour it).
        search_number: the search that found it; 0 for an initial arm.
        derived: whether it combines another arm's layer set with a window or rounded weights.
    """

    layer_set: LayerSet
    counts: Array
    evaluated: bool = False
    search_number: int = 0
    derived: bool = False

    @property
    def acceptance(self) -> float:
        """Posterior mean acceptance of a token after accepted ones."""
        return float(self.counts[1].sum() / self.counts.sum())

    def learn(self, drafted: int, accepted: int, threshold: int, capped: bool) -> None:
        """Add a verified draft to the counts, up to the first rejected token.

        Of a token's confidence only the side of the threshold is known, so the token is spread over that side's bins in
        proportion to their counts. (A rejected EOS counts as an end by confidence.)

        Args:
            drafted, accepted: k >= 1 and m.
            threshold: index of the stop threshold, 0 for none: tokens in bins below it end a draft.
            capped: whether the draft reached its cap, so that its last token may be on either side.
        """
        counts = self.counts.tolist()  # a step of a small model is short: for a few floats, lists are faster than NumPy

        def add(outcome: int, tokens: int, first: int, end: int) -> None:
            row = counts[outcome]
            factor = 1 + tokens / sum(row[first:end])
            row[first:end] = [factor * value for value in row[first:end]]

        n_bins = len(counts[0])
        # 1) accepted tokens except the draft's last one: drafting went on after them, so they reached the threshold
        add(1, min(accepted, drafted - 1), threshold, n_bins)
        # 2) the first rejected token (later ones are not tested), or the draft's last token
        if accepted < drafted - 1:  # rejected before the last one: drafting went on after it, too
            add(0, 1, threshold, n_bins)
        elif threshold and not capped:  # the last token ended the draft by its confidence: below the threshold
            add(int(accepted == drafted), 1, 0, threshold)
        else:  # the last token may be in any bin
            add(int(accepted == drafted), 1, 0, n_bins)
        self.counts = np.array(counts)

    def limit(self, memory: float) -> None:
        """Scale the counts down to `memory` tokens, so that the posterior follows the text."""
        self.counts *= min(1.0, memory / float(self.counts.sum()))

    def forget(self, prior: Prior, share: float) -> None:
        """Move the counts towards the prior by a share."""
        self.counts += share * (prior.counts - self.counts)


@dataclass(frozen=True)
class ArmChoice:
    """A plan's choice of arm, draft length and stop threshold, used until the next plan.

    Attributes:
        threshold: index of the stop threshold; 0: none.
        draft_ms, verify_ms, ar_ms: milliseconds of a drafted token, of verifying 0, 1, .. of them, and of an AR step.
        rate: expected tokens per millisecond.
        guess_ms: milliseconds of a draft's pass over 0, 1, .. guesses; None: drafts have no guesses.
    """

    arm: Arm
    threshold: int
    draft: LayerDraft
    draft_ms: float
    verify_ms: list[float]
    ar_ms: float
    rate: float
    guess_ms: list[float] | None = None


def optimistic_counts(counts: Array, deviations: float) -> Array:
    """Return counts [arms, 2, bins] with acceptance rates raised by posterior standard deviations, at most to 1."""
    total, accepted = counts.sum((1, 2)), counts[:, 1].sum(1)
    mean = accepted / total
    # the acceptance rate has a Beta posterior: variance mean (1 - mean) / (total + 1)
    raised = np.minimum(1.0, mean + deviations * np.sqrt(mean * (1 - mean) / (total + 1)))
    scales = np.stack([(1 - raised) / (1 - mean), raised / mean], axis=1)
    return counts * scales[:, :, None]


def throughput(counts: Array, draft_ms: Array, verify_ms: Array) -> Array:
    """Return the expected tokens per millisecond of a step, [arms, thresholds, lengths]: index t, γ - 1.

    Tokens are assumed independent. A draft ends after γ tokens or a token in a bin below the threshold. For one token
    let s be the probability that drafting goes on, a that it is accepted, b that both hold, and v_j the time to verify
    j drafted tokens:

        E[tokens] = 1 + a (1 + b + ... + b^(γ-1)),  E[ms] = v_0 + sum_(j = 1..γ) s^(j-1) (t_draft + v_j - v_(j-1)).

    Without a threshold, s = 1 and b = a. If v is also constant, this is KnapSpec's Eq. 4.

    Args:
        counts: [arms, 2, bins].
        draft_ms: [arms] t_draft.
        verify_ms: [arms, lengths + 1] v_0, v_1, ...
    """
    mass = counts / counts.sum((1, 2), keepdims=True)
    above = mass[:, :, ::-1].cumsum(2)[:, :, ::-1]  # [arms, 2, t]: outcomes in bin t or a higher one
    exponents = np.arange(verify_ms.shape[1] - 1)
    reached = above.sum(1)[..., None] ** exponents  # s^(j-1), the probability that token j is drafted
    accepted = above[:, 1, :, None] ** exponents  # b^(j-1); a is b without a threshold: above[:, 1, 0]
    growth = draft_ms[:, None] + np.diff(verify_ms, axis=1)  # t_draft + v_j - v_(j-1)
    tokens = 1 + above[:, 1, :1, None] * accepted.cumsum(2)
    return tokens / (verify_ms[:, :1, None] + (reached * growth[:, None, :]).cumsum(2))


class Costs:
    """Milliseconds of every part of a step at one context length.

    Args:
        latency: its measured passes include head, embedding and the growth with the nodes.
        longest: most drafted tokens.
        reuse: reuse draft states before the first skipped sublayer in the verification.
        rows: r, tokens for evaluations and searches.
        copied: most tokens of a copied draft.

    Attributes:
        ar_ms: time of an AR step.
        copy_ms: times of verifying 0, 1, .. copied tokens.
    """

    def __init__(
        self, latency: Latency, n_layers: int, context: int, longest: int, reuse: bool, rows: int = 1, copied: int = 0
    ):
        self.latency, self.n_layers, self.context, self._reuse, self._rows = latency, n_layers, context, reuse, rows
        table = np.array([latency.pass_ms(n, context) for n in range(1, longest + 2)])
        self._attn_ms, self._mlp_ms, self._rest_ms = table.T
        self.ar_ms = float(n_layers * (self._attn_ms[0] + self._mlp_ms[0]) + self._rest_ms[0])
        copies = [latency.pass_ms(n, context) for n in range(1, copied + 2)]
        self.copy_ms = [n_layers * (attn + mlp) + rest_ms for attn, mlp, rest_ms in copies]
        self._rows_ms = latency.pass_ms(rows, context)
        self._start_ms = np.where(np.arange(longest + 1) > 0, latency.draft_start_ms, 0.0)

    def draft_ms(self, layer_set: LayerSet) -> float:
        """Return the time of one drafted token; attentions with a window take the time of a context of its size."""
        attn, read, window = self._attn_ms[0], self.context, layer_set.window
        if window is not None:
            read = window.count_read(self.context)
            attn = self.latency.pass_ms(1, read)[0]
        total = float(layer_set.n_attn * attn + layer_set.n_mlp * self._mlp_ms[0] + self.latency.draft_rest_ms)
        for bits, (n_attn, n_mlp) in layer_set.n_rounded.items():
            rounded_attn, rounded_mlp, _ = self.latency.pass_ms(1, read, bits)
            total += n_attn * (rounded_attn - attn) + n_mlp * (rounded_mlp - self._mlp_ms[0])
        if layer_set.head_bits:
            total += self.latency.rest_ms(layer_set.head_bits) - self.latency.draft_rest_ms
        return total

    def verify_ms(self, layer_set: LayerSet) -> Array:
        """Return the times [longest + 1] of verifying 0, 1, .. drafted tokens, including a draft's fixed time.

        With reuse, the sublayers before the first changed one run only on the last node.
        """
        reused = layer_set.first_changed if self._reuse else 0
        attn, mlp = (reused + 1) // 2, reused // 2  # even sublayers are attentions, so they come first
        one_node_ms = attn * self._attn_ms[0] + mlp * self._mlp_ms[0]
        other_ms = self._rest_ms + self._start_ms
        return one_node_ms + (self.n_layers - attn) * self._attn_ms + (self.n_layers - mlp) * self._mlp_ms + other_ms

    def evaluation_ms(self, layer_set: LayerSet) -> float:
        """Return the time of `evaluate_arm` over r tokens, from the first changed sublayer on."""
        (attn, mlp, rest_ms), window = self._rows_ms, layer_set.window
        read = self.context if window is None else window.count_read(self.context)
        if window is not None:
            attn = self.latency.pass_ms(self._rows, read)[0]
        for bits in layer_set.n_rounded:  # the sublayers of an arm of `adaptive` all have the same bits
            attn, mlp, _ = self.latency.pass_ms(self._rows, read, bits)
        unchanged = layer_set.first_changed
        n_attn, n_mlp = layer_set.n_attn - (unchanged + 1) // 2, layer_set.n_mlp - unchanged // 2
        return n_attn * attn + n_mlp * mlp + rest_ms

    def search_ms(self, budget: float, weights: tuple[int, int]) -> float:
        """Return the longest time of a knapsack over r tokens: sublayers over all branches, and LM heads."""
        n_sub, columns, total_ms = 2 * self.n_layers, 1, 0.0
        width = n_columns(budget, weights, n_sub)
        for b in range(n_sub):  # before sublayer b at most `columns` skipped weights have a branch
            total_ms += self.latency.pass_ms(self._rows * min(columns, width), self.context)[b % 2]
            columns += weights[b % 2]
        return total_ms + 3 * self._rows_ms[2]  # LM heads of `AcceptanceRates`: full model, first bounds, settled rates

    def best_rate(self, budget: float, acceptance: float) -> float:
        """Return the most tokens per millisecond, over γ, of a set that skips the whole budget; `acceptance` < 1."""
        sublayers_ms = self.ar_ms - self._rest_ms[0]
        draft_ms = (1 - budget) * sublayers_ms + self.latency.draft_rest_ms
        lengths = np.arange(len(self._rest_ms))
        verify_ms = self.n_layers * (self._attn_ms + self._mlp_ms) + self._rest_ms + self._start_ms
        tokens = (1 - acceptance ** (lengths + 1)) / (1 - acceptance)  # 1 + a + ... + a^γ
        return float((tokens / (lengths * draft_ms + verify_ms)).max())


def evaluate_arm(probe: Probe, prior: Prior, arm: Arm, states: Tensor, target: Tensor, length: int) -> Array:
    """Count an arm's rejected and accepted predictions [2, bins] at the last r committed tokens.

    One teacher-forced pass, without decoding; the head reads full weights, even for an arm with rounded weights.

    Args:
        states: [r, d] full-model states at the boundary `arm.layer_set.first_changed`.
        target: [r] full-model predictions.
        length: committed positions, including the r tokens.
    """
    sublayers = [i for i in arm.layer_set.kept if i >= arm.layer_set.first_changed]
    bits = arm.layer_set.bits or None
    hidden = probe.run_sublayers(sublayers, states, length - len(states), arm.layer_set.window, bits)
    predicted, confidence = probe.predict_confident(hidden)
    return prior.tally(predicted == target, confidence)


def throughput_by_matches(prior: Prior, weight: float, costs: Costs, layer_set: LayerSet, rows: int) -> Array:
    """Return a set's expected tokens per ms [r + 1] at 0 .. r matches in r = `rows` tokens, each of this weight."""
    matches = np.arange(rows + 1.0)
    # posterior without confidence bins: the prior's counts plus the weighted mismatches and matches
    shrunk = prior.counts.sum(1) + weight * np.stack([rows - matches, matches], axis=1)
    draft_ms = np.full(rows + 1, costs.draft_ms(layer_set))
    verify_ms = np.tile(costs.verify_ms(layer_set), (rows + 1, 1))
    return throughput(shrunk[:, :, None], draft_ms, verify_ms).max((1, 2))
