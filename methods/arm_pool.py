"""The arms of `methods.adaptive`: the first ones, and what drafts, evaluations and searches add to them.

An evaluation runs an arm's sublayers over the last r output tokens in one teacher-forced pass and gives r outcomes;
full-model states and predictions exist already. A search is KnapSpec's knapsack over these tokens. Because they
selected the new arms, they weigh little in the posteriors, and a new arm drafts only after an evaluation on other
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from methods.arms import Arm, Array, Costs, Prior, evaluate_arm, optimistic_counts, throughput, throughput_by_matches
from methods.fixed_layers import pattern_set
from methods.knapsack import AcceptanceRates, Knapsack, integer_weights
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Probe, Verification
from ssd_bench.contract.window import Window

NESTED_DECAY = 0.97  # weight that the passes and tokens of drafts with guesses keep in a draft
NESTED_TOKENS = 32.0  # weight of one pass per token, as without guesses, in tokens


class ArmSettings(Protocol):
    """Settings of `methods.adaptive` used by its arms."""

    lookup_len: int
    thresholds: Sequence[float]
    exits: Sequence[float]
    uniform: Sequence[float]
    windows: Sequence[Sequence[int]]
    bits: list[int]
    budget: float
    min_similarity: float
    weight_cap: int | None
    shortlist: int
    pool: int
    prior: float
    selected: float
    memory: float
    forget: float
    optimism: float


class ArmPool:
    """Arms for one model, kept across prompts.

    Args:
        n_layers: L, at least 2.

    Attributes:
        arms: first the settings' exits, uniform sets, windows and rounded weights, then searched and combined arms.
        outcomes: drafts that `learn` adds to the posteriors: an arm and the arguments of `Arm.learn`.
        nested: passes and tokens of the drafts with guesses, decayed; a pass over guesses counts by its time.
    """

    def __init__(self, settings: ArmSettings, n_layers: int):
        self._settings, self._n_layers = settings, n_layers
        self.prior = Prior(settings.thresholds, settings.prior)
        sets = [LayerSet.exit(n_layers, min(max(1, round(e * n_layers)), n_layers - 1)) for e in settings.exits]
        fitting = [u for u in settings.uniform if 1 <= round(u * 2 * n_layers) <= 2 * n_layers - 4]
        sets += [pattern_set("uniform", u, n_layers) for u in fitting]
        self._windows, full = [Window(*pair) for pair in settings.windows], LayerSet.full(n_layers)
        self.arms = [Arm(layer_set, self.prior.counts.copy()) for layer_set in dict.fromkeys(sets)]
        self.arms += [Arm(replace(full, window=window), self.prior.counts.copy()) for window in self._windows]
        self.arms += [Arm(full.in_bits(bits), self.prior.counts.copy()) for bits in settings.bits]
        self.outcomes: list[tuple[Arm, int, int, int, bool]] = []
        self.nested = [NESTED_TOKENS, NESTED_TOKENS]
        self._times: dict[Costs, tuple[Array, Array]] = {}

    def learn_guesses(self, passes: float, tokens: int) -> None:
        """Learn how many passes the drafted tokens of a draft with guesses took."""
        self.nested = [NESTED_DECAY * old + new for old, new in zip(self.nested, (passes, tokens))]

    def learn(self) -> None:
        """Update the arms by the outcomes; not in every step, since steps of small models are short."""
        for arm, drafted, accepted, threshold, capped in self.outcomes:
            arm.learn(drafted, accepted, threshold, capped)
            arm.limit(self._settings.memory)
        self.outcomes.clear()

    def forget(self) -> None:
        """Move every posterior towards the prior at the start of a prompt."""
        self.learn()
        for arm in self.arms:
            arm.forget(self.prior, self._settings.forget)

    def times(self, costs: Costs) -> tuple[Array, Array]:
        """Return milliseconds of one drafted token [2 arms] and of verifying 0, 1, .. of them [2 arms, draft_len + 1].

        Arms are listed twice, for expected and optimistic `throughputs`.
        """
        if costs not in self._times:
            draft_ms = [costs.draft_ms(arm.layer_set) for arm in self.arms]
            verify_ms = [costs.verify_ms(arm.layer_set) for arm in self.arms]
            self._times[costs] = np.array(draft_ms * 2), np.array(verify_ms * 2)
        return self._times[costs]

    def throughputs(self, costs: Costs, length: int) -> tuple[Array, Array, Array]:
        """Return expected tokens per millisecond at a context length.

        Returns:
            All arms' [arms, thresholds, lengths]; the best per arm, 0 if it must not draft; the best with an optimistic
            acceptance rate.
        """
        counts = np.array([arm.counts for arm in self.arms])
        all_counts = np.concatenate([counts, optimistic_counts(counts, self._settings.optimism)])
        draft_ms, verify_ms = self.times(costs)
        nests = np.array([self.nests(arm.layer_set) for arm in self.arms] * 2)
        values = throughput(all_counts, draft_ms * np.where(nests, self.nested[0] / self.nested[1], 1.0), verify_ms)
        rates, optimistic = values[: len(counts)], values[len(counts) :].max((1, 2))
        usable = [_fits(arm.layer_set.window, length) for arm in self.arms]
        evaluated = [arm.evaluated for arm in self.arms]
        best = np.where(np.logical_and(evaluated, usable), rates.max((1, 2)), 0.0)
        return rates, best, np.where(usable, optimistic, 0.0)

    def nests(self, layer_set: LayerSet) -> bool:
        """Return whether a draft takes guesses: its states serve no verification, and its window does not move."""
        return self._settings.lookup_len > 0 and bool(layer_set.rounded) and layer_set.window is None

    def shrink(self, ranked: Sequence[Arm]) -> None:
        """Drop surplus arms from searches and combinations; `ranked` is in descending order."""
        surplus = len(self.arms) - self._settings.pool
        if surplus > 0:
            dropped = [arm for arm in ranked if arm.search_number or arm.derived][-surplus:]
            self._replace([arm for arm in self.arms if arm not in dropped])

    def combine(self, arm: Arm, length: int) -> None:
        """Combine the layer set in use with rounded weights and every window that suits the context.

        Each window and number of bits has at most one combination, replaced when another layer set comes into use.
        """
        if arm.layer_set.window is not None:
            return
        fitting = [window for window in self._windows if _fits(window, length)]
        combinations = [replace(arm.layer_set, window=window) for window in fitting]
        if not arm.layer_set.rounded:
            combinations += [arm.layer_set.in_bits(bits) for bits in self._settings.bits]
        for layer_set in combinations:
            changes = layer_set.window, set(layer_set.bits.values())
            derived = [a for a in self.arms if a.derived]
            old = next((a for a in derived if (a.layer_set.window, set(a.layer_set.bits.values())) == changes), None)
            if old is not None and old.layer_set == layer_set:
                continue
            counts = self.prior.counts.copy()
            combined = Arm(layer_set, counts, search_number=arm.search_number, derived=True)
            self._replace([a for a in self.arms if a is not old] + [combined])

    def evaluate(self, arm: Arm, states: Tensor, target: Tensor, length: int, probe: Probe) -> None:
        """Add the outcomes of an evaluation to an arm, which may then draft; arguments as in `evaluate_arm`."""
        arm.counts += evaluate_arm(probe, self.prior, arm, states, target, length)
        arm.limit(self._settings.memory)
        arm.evaluated = True

    def search(self, states: Tensor, length: int, probe: Probe, costs: Costs, number: int) -> None:
        """Run KnapSpec's knapsack; the candidates of highest shrunk throughput become arms.

        Args:
            states: [2L+1, r, d] states of the last r tokens.
            length: committed positions, including those tokens.
        """
        settings, rows = self._settings, states.shape[1]
        weights = integer_weights(probe.latency, length, settings.weight_cap)
        budget, least = settings.budget, settings.min_similarity
        knapsack = Knapsack(states.float(), length - rows, weights, budget, least, True, False, states.dtype)
        old_sets = {arm.layer_set for arm in self.arms} | {LayerSet.full(self._n_layers)}
        candidates = [candidate for candidate in knapsack.run(probe) if candidate.layer_set not in old_sets]
        if not candidates:
            return
        sets, hidden = [candidate.layer_set for candidate in candidates], [candidate.hidden for candidate in candidates]
        values = [throughput_by_matches(self.prior, settings.selected, costs, s, rows) for s in sets]
        acceptance, arms = AcceptanceRates(probe, states[-1], torch.stack(hidden)), list(self.arms)
        for i in acceptance.leaders(lambda i, rate: float(values[i][round(rate * rows)]), settings.shortlist):
            predicted, confidence = probe.predict_confident(hidden[i])
            tally = self.prior.tally(predicted == acceptance.target, confidence)
            # weight below 1: the arm was selected because it matched these tokens, so they favour it
            arms.append(Arm(sets[i], self.prior.counts + settings.selected * tally, False, number))
        self._replace(arms)

    def state(self) -> list[Any]:
        """Return all arms for JSON."""
        self.learn()
        windows = [arm.layer_set.window for arm in self.arms]
        return [
            (
                (sorted(arm.layer_set.skipped), sorted(arm.layer_set.rounded)),
                arm.counts.tolist(),
                arm.evaluated,
                arm.search_number,
                window and (window.sinks, window.recent),
                arm.derived,
            )
            for arm, window in zip(self.arms, windows)
        ]

    def restore(self, state: list[Any]) -> None:
        arms = []
        for (skipped, rounded), counts, evaluated, number, pair, derived in state:
            window = pair and Window(*pair)
            layer_set = LayerSet(self._n_layers, frozenset(skipped), frozenset(map(tuple, rounded)), window)
            arms.append(Arm(layer_set, np.array(counts), evaluated, number, derived))
        self._replace(arms)

    def _replace(self, arms: list[Arm]) -> None:
        self.arms = arms
        self._times.clear()


def last_states(verifications: Sequence[Verification], rows: int) -> tuple[Tensor, Tensor]:
    """Return states [taps, r, d] and predictions [r] of the last r = `rows` tokens, from steps with equal taps."""
    states, logits = [], []
    for verification in verifications:
        assert verification.hidden is not None
        path = torch.tensor(verification.path, device=verification.hidden.device)
        states.append(verification.hidden.index_select(1, path))
        logits.append(verification.logits.index_select(0, path.to(verification.logits.device)))
    return torch.cat(states, dim=1)[:, -rows:], torch.cat(logits).argmax(-1)[-rows:]


def _fits(window: Window | None, length: int) -> bool:
    """Return whether a window leaves out at least half of the context; None fits."""
    return window is None or 2 * window.count_read(length) <= length
