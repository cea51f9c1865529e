"""Adaptive: KnapSpec's search with every cost measured, a shrunk acceptance rate, and AR among the candidates.

The project's own method. The released codes lose on small models for five reasons. Their cost models leave out head,
embedding and the growth of verification with its nodes. Their acceptance rate is the largest of dozens, each from a few
tokens. The draft length that they find is not used. They always draft. Every prompt starts from nothing. Here:

* In every step the continuation of the newest tokens, copied from earlier prompts and outputs, is a candidate (prompt
  lookup). It needs no pass of the model, and its acceptance is known from the text alone (`methods/match_model.py`). It
  is verified only if its expected tokens are worth the added nodes, at the throughput of the alternative.
* The other arms are layer sets: early exits, uniform sets and results of searches; in long contexts also a window of
  the cache, alone and with the layer set in use. Each has a posterior of its acceptance by draft confidence
  (`methods/arms.py`), which every verified draft updates and which lasts from prompt to prompt.
* Every few steps a plan chooses the arm, draft length γ and stop threshold of most expected tokens per millisecond. AR
  is one candidate: an arm must beat it by a margin.
* An arm never drafts only to be explored. It is evaluated instead: one teacher-forced pass of its sublayers over the
  last r output tokens, whose full-model states and predictions exist already. It gives r outcomes for the time of one
  or two AR steps.
* KnapSpec's knapsack proposes new arms. The tokens that selected an arm count little for it, and it drafts only after
  an evaluation on other tokens.
* A ledger (`methods/ledger.py`) counts, in AR steps, the gains of drafting and the costs of evaluations and searches,
  and bounds the losses. A search waits until it is affordable; after each search without a useful arm the next one must
  be affordable twice over.

All times come from the latency profile; the method reads no clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from methods.arms import (
    Arm,
    Array,
    Costs,
    Prior,
    Pull,
    evaluate_arm,
    optimistic_counts,
    throughput,
    throughput_by_matches,
)
from methods.fixed_layers import pattern_set
from methods.knapsack import AcceptanceRates, Knapsack, weights
from methods.ledger import Ledger
from methods.match_model import MatchModel
from methods.settings import DraftLen, Name, ReusePrefix, is_window
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Context, Estimate, LayerDraft, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.core.tree import TokenTree
from ssd_bench.core.window import Window
from ssd_bench.cost.latency import Latency
from ssd_bench.errors import ConfigError
from ssd_bench.model.shape import ModelDims
from ssd_bench.settings import Cosine, Count, Fits, Range, Share, Whole, settings

# costs in AR steps, as on the miniature (less on larger models): keeping one state of one token, collecting the states
TAPPED, COLLECTED = 0.005, 0.7
LONGEST_WAIT = 256  # steps after which AR checks again whether exploration is affordable
PACE, PACE_STEPS = 0.97, 16  # decay of the pace per step; steps of plain decoding that it starts with
NEAR = 0.1  # costs are computed at contexts that grow by this share


def are_windows(pairs: Sequence[Sequence[int]]) -> bool:
    """Return whether each pair can be a window."""
    return all(is_window(pair) for pair in pairs)


def are_thresholds(thresholds: Sequence[float]) -> bool:
    """Return whether the numbers are ascending probabilities in (0, 1)."""
    return all(low < high for low, high in zip([0.0, *thresholds], [*thresholds, 1.0]))


Inner = Annotated[float, Range(above=0, below=1, what="a share")]
NotNegative = Annotated[float, Range(0)]


@settings("method")
class Adaptive:
    """A choice of layer set, draft length and stop threshold by expected tokens per millisecond, or of AR."""

    greedy_only = False

    name: Name = "adaptive"
    draft_len: DraftLen = 10
    """Longest γ of a layer set."""
    lookup_len: Whole = 16
    """Longest draft copied from earlier text; 0: none."""
    lookup_memory: Whole = 32_768
    """Newest tokens of earlier prompts and outputs that are searched for copies; 0: each prompt starts anew."""
    thresholds: Annotated[Sequence[float], Fits("ascending probabilities in (0, 1)", are_thresholds)] = (
        0.3,
        0.5,
        0.7,
        0.85,
    )
    """Stop thresholds to choose from; drafting without a threshold is always considered, too."""
    exits: Annotated[Sequence[Inner], Fits("at least one share in (0, 1)", len)] = (0.125, 0.25, 0.375, 0.5, 0.625)
    """Early exits among the first arms, as shares of the blocks."""
    uniform: Sequence[Inner] = (0.25, 0.45)
    """Uniform sets among the first arms, as shares of skipped sublayers; a share that the inner blocks cannot reach is
    left out."""
    windows: Annotated[Sequence[Sequence[int]], Fits("pairs of sinks >= 0 and recent >= 1", are_windows)] = ((4, 508),)
    """Windows of the cache among the first arms, with all sublayers and with the layer set in use; a window is
    considered in contexts of at least twice its positions."""
    interval: Count = 16
    """Steps between plans while drafting."""
    rows: Count = 12
    """r, last output tokens on which arms are evaluated and searches run."""
    budget: Annotated[float, Range(above=0, most=1, what="a share")] = 0.6
    """Skipped weight that a search allows, as a share of the weight of all sublayers."""
    min_similarity: Cosine = 0.5
    """τ of the search."""
    weight_cap: Count | None = 1
    """Largest integer weight of a sublayer in the search; null for no cap."""
    hoped: Annotated[float, Range(above=0, below=1, what="a rate")] = 0.95
    """Acceptance rate at which a set that skips the whole budget would have to pay for a search to run."""
    shortlist: Count = 2
    """Largest number of arms that a search adds."""
    pool: int = 14
    """Largest number of arms; beyond it the least promising ones from searches are dropped."""
    prior: Annotated[float, Range(above=0, what="a number of tokens")] = 2.5
    """Weight of the prior, in tokens."""
    selected: Annotated[float, Range(0, 1, what="a weight")] = 0.25
    """Weight of a token on which the arm was selected; any other token weighs 1."""
    memory: float = 256
    """Largest weight of a posterior, in tokens."""
    forget: Share = 0.02
    """Share by which every posterior moves back to the prior at the start of a prompt."""
    optimism: NotNegative = 1.0
    """Posterior standard deviations added to an arm's acceptance to decide whether its evaluation may pay."""
    margin: NotNegative = 0.05
    """Share by which drafting must beat AR, and an arm's optimistic throughput that of the choice in use."""
    stake: Annotated[float, Range(0, what="a number of AR steps")] = 6
    """Allowed loss of drafting and exploration, in AR steps."""
    regret: Inner = 0.01
    """Share of the output tokens by which the allowed loss grows."""
    profit: Annotated[float, Range(0, below=1, what="a share")] = 0.03
    """Share of the gain of layer sets and windows that may be spent on exploration."""
    overhead: Annotated[float, Range(above=0)] = 1.5
    """Ratio of measured to predicted time of an evaluation or search, whose cosines and copies are not profiled."""
    reuse_prefix: ReusePrefix = True

    def __post_init__(self) -> None:
        if self.pool <= len(self.exits) + len(self.uniform) + len(self.windows):
            raise ConfigError(
                "method.pool", self.pool, "more than the number of method.exits, method.uniform and method.windows"
            )
        if self.memory <= self.prior:
            raise ConfigError("method.memory", self.memory, f"more than method.prior={self.prior}")
        self.taps = Taps()
        self._prior = Prior(self.thresholds, self.prior)

    def check(self, dims: ModelDims) -> None:
        """Make the first arms for this model.

        Raises:
            ConfigError: a model of one block, which has no exit.
        """
        n_layers = dims.n_layers
        if n_layers < 2:
            raise ConfigError("model.n_layers", n_layers, "at least 2 blocks: an exit comes before the last one")
        sets = [LayerSet.exit(n_layers, min(max(1, round(e * n_layers)), n_layers - 1)) for e in self.exits]
        fitting = [u for u in self.uniform if 1 <= round(u * 2 * n_layers) <= 2 * n_layers - 4]
        sets += [pattern_set("uniform", u, n_layers) for u in fitting]
        self._n_layers = n_layers
        self._arms = [Arm(layer_set, self._prior.counts.copy()) for layer_set in dict.fromkeys(sets)]
        self._windows = [Window(*pair) for pair in self.windows]
        full = LayerSet.full(n_layers)
        self._arms += [Arm(full, self._prior.counts.copy(), window=window) for window in self._windows]
        self._latency: Latency | None = None
        self._costs: dict[int, Costs] = {}
        self._tables: dict[int, tuple[Array, Array]] = {}
        self._ledger = Ledger(self.stake, self.regret, self.profit)
        self._choice: Pull | None = None
        self._drafted: Pull | None = None
        self._copied = False
        self._copies = MatchModel(self.lookup_memory, self.prior, self.memory)
        self._copy_ms: list[float] = []  # milliseconds to verify 0, 1, .. copied tokens, at the last plan's context
        self._in_use = self._ar_ms = 0.0  # tokens per millisecond without copies; milliseconds of an AR step
        self._pace_tokens = self._pace_ms = 0.0  # decayed sums over the last steps, copies included
        self._goal, self._left = "", 0
        self._outcomes: list[tuple[Arm, int, int, int, bool]] = []

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Take the latency profile."""
        self._use(probe.latency)

    def start(self, prefill: Prefill) -> None:
        """Begin a prompt: arms, ledger and a wait for the allowance last, the states for an evaluation do not."""
        self._settle()
        for arm in self._arms:
            arm.forget(self._prior, self.forget)
        self._drop_states()
        if self.lookup_len:
            self._copies.start(prefill.prompt, self.forget)
        length = len(prefill.prompt)
        if self._waiting():
            self._price_copies(self._costs_at(length))
        else:
            self._choice, self._goal, self._left = None, "", 0
            if self._latency is not None:
                self._plan(length)
        self._pace_ms, self._pace_tokens = PACE_STEPS * self._ar_ms, PACE_STEPS * self._ar_ms * self._in_use

    def propose(self, context: Context) -> LayerDraft | TokenTree:
        """Propose a copy of earlier text if it is worth more than the last plan's draft; else that draft or AR."""
        self._copied, self._drafted = False, None
        if self.lookup_len:
            self._copies.extend(context.output[self._copies.output_len :])
            longest = min(self.lookup_len, context.max_draft)
            if longest and self._pace_ms and not self._ledger.ruined():
                # a copy ends where its next token brings less than the pace of the last steps
                pace = max(self._in_use, self._pace_tokens / self._pace_ms)
                tokens, expected = self._copies.draft(longest, self._copy_ms, pace)
                if tokens and expected > (1 + self.margin) * self._in_use * self._copy_ms[len(tokens)]:
                    self._copied = True
                    return TokenTree.chain([context.output[-1], *tokens])
        self._drafted = self._choice if context.max_draft else None
        if self._drafted is None:
            return TokenTree((context.output[-1],), (-1,))
        self._cap = min(self._drafted.draft.max_len, context.max_draft)
        return self._drafted.draft

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Count the step; evaluate arms or search if enough states are there; plan anew when it is time.

        Returns:
            After an evaluation or search, the estimate of the choice that followed; AR is the full model at γ = 0.
        """
        self._ledger.tokens += len(verification.emitted)
        ms = self._ar_ms
        if self._drafted is not None:
            ms = self._learn(self._drafted, verification)
        elif self._copied:
            ms = self._copy_ms[verification.tree.draft_len]
            self._ledger.gain += len(verification.emitted) - ms / self._ar_ms
        self._pace_tokens = PACE * self._pace_tokens + len(verification.emitted)
        self._pace_ms = PACE * self._pace_ms + ms
        if verification.last and self.lookup_len:
            self._copies.extend(verification.emitted)
        if verification.hidden is not None:
            self._seen.append(verification)
            self._kept += len(verification.path)
        self._left -= 1
        explored = bool(self._goal) and self._kept >= self.rows
        if explored:
            self._explore(verification.length, probe)
        if explored or self._left <= 0:
            self._use(probe.latency)
            self._plan(verification.length)
        return self._estimate(verification.length) if explored else None

    def state(self) -> bytes:
        """Return arms, ledger and the text for copies, as JSON."""
        self._settle()
        windows = [None if arm.window is None else (arm.window.sinks, arm.window.recent) for arm in self._arms]
        arms = [
            (sorted(arm.layer_set.skipped), arm.counts.tolist(), arm.tried, arm.born, window, arm.derived)
            for arm, window in zip(self._arms, windows)
        ]
        left = self._left if self._waiting() else 0
        kept = {"arms": arms, "ledger": asdict(self._ledger), "left": left, "copies": self._copies.state()}
        return json.dumps(kept).encode()

    def restore(self, state: bytes) -> None:
        """Continue with the arms, ledger and text of `state`."""
        kept = json.loads(state)
        self._arms = [
            Arm(
                LayerSet(self._n_layers, frozenset(skipped)),
                np.array(counts),
                tried,
                born,
                window and Window(*window),
                d,
            )
            for skipped, counts, tried, born, window, d in kept["arms"]
        ]
        self._tables.clear()
        self._ledger = Ledger(**kept["ledger"])
        self._left = kept["left"]
        self._copies.restore(kept["copies"])

    def _waiting(self) -> bool:
        """Return whether AR runs until the allowance has grown; nothing else could change that, so no plan is due."""
        return self._choice is None and not self._goal and self._left > 0

    def _use(self, latency: Latency) -> None:
        """Take a profile; discard the costs that were computed from another one."""
        if latency is not self._latency:
            self._latency, self._costs, self._tables = latency, {}, {}

    def _learn(self, choice: Pull, verification: Verification) -> float:
        """Note the outcome of a draft and update the ledger; stop drafting once the allowed loss is used up.

        Returns:
            The milliseconds of the step by the profile.
        """
        drafted, accepted = verification.tree.draft_len, len(verification.path) - 1
        spent = drafted * choice.draft_ms + choice.verify_ms[drafted]
        gain = len(verification.emitted) - spent / choice.ar_ms
        self._ledger.gain += gain
        self._ledger.layer_gain += gain
        self._outcomes.append((choice.arm, drafted, accepted, choice.threshold, drafted >= self._cap))
        if self._ledger.ruined():
            self._choice = None
        return spent

    def _settle(self) -> None:
        """Update the arms by the noted outcomes; not in every step, since steps of a small model are short."""
        for arm, drafted, accepted, threshold, capped in self._outcomes:
            arm.learn(drafted, accepted, threshold, capped)
            arm.limit(self.memory)
        self._outcomes.clear()

    def _plan(self, length: int) -> None:
        """Choose the draft at this context length, and what to explore next."""
        self._settle()
        costs = self._costs_at(length)
        draft_ms, verify_ms = self._tables_of(costs)
        counts = np.array([arm.counts for arm in self._arms])
        all_counts = np.concatenate([counts, optimistic_counts(counts, self.optimism)])
        values = throughput(all_counts, draft_ms, verify_ms)
        rates, hopes = values[: len(counts)], values[len(counts) :].max((1, 2))
        usable = [arm.window is None or 2 * arm.window.count_read(length) <= length for arm in self._arms]
        hopes = np.where(usable, hopes, 0.0)
        tried = [arm.tried for arm in self._arms]
        best, in_use = np.where(np.logical_and(tried, usable), rates.max((1, 2)), 0.0), 1 / costs.ar_ms
        self._choice = None
        if best.max() > in_use * (1 + self.margin) and not self._ledger.ruined():
            # of arms within the margin of the best, the most promising one: drafting with it tells them apart
            equal = (best > in_use * (1 + self.margin)) & (best >= best.max() / (1 + self.margin))
            index = int(np.where(equal, hopes, 0.0).argmax())
            threshold, shorter = divmod(int(rates[index].argmax()), self.draft_len)
            stop_below = float(self._prior.thresholds[threshold - 1]) if threshold else 0.0
            arm = self._arms[index]
            draft = LayerDraft(arm.layer_set, shorter + 1, stop_below, searched=True, window=arm.window)
            in_use = float(best.max())
            times = float(draft_ms[index]), verify_ms[index].tolist(), costs.ar_ms
            self._choice = Pull(arm, threshold, draft, *times, in_use)
            if self._choice.arm.born and self._choice.arm.born == self._ledger.searches:
                self._ledger.failures = 0
        self._price_copies(costs)
        used_arm = None if self._choice is None else self._choice.arm
        ranked = [(hopes[i], self._arms[i]) for i in np.argsort(-hopes, kind="stable") if self._arms[i] is not used_arm]
        worth = in_use * (1 + self.margin)
        surplus = len(self._arms) - self.pool
        if surplus > 0:
            dropped = {id(arm) for arm in [arm for _, arm in ranked if arm.born or arm.derived][-surplus:]}
            self._arms = [arm for arm in self._arms if id(arm) not in dropped]
            self._tables.clear()
        self._derive(length)
        self._aim(costs, [arm for hope, arm in ranked if hope > worth and arm in self._arms], worth)

    def _derive(self, length: int) -> None:
        """Combine the layer set in use, for the next plan, with each window that the context is long enough for.

        Each window keeps one combination; that of a layer set that is no longer in use is replaced.
        """
        arm = None if self._choice is None else self._choice.arm
        if arm is None or arm.window is not None:
            return
        for window in self._windows:
            old = next((a for a in self._arms if a.derived and a.window == window), None)
            if 2 * window.count_read(length) > length or (old is not None and old.layer_set == arm.layer_set):
                continue
            counts = self._prior.counts.copy()
            combined = Arm(arm.layer_set, counts, born=arm.born, window=window, derived=True)
            self._arms = [a for a in self._arms if a is not old] + [combined]
            self._tables.clear()

    def _price_copies(self, costs: Costs) -> None:
        """Set the costs of verifying a copy near this context, and the throughput that it must beat."""
        self._copy_ms, self._ar_ms = costs.copy_ms, costs.ar_ms
        self._in_use = 1 / costs.ar_ms if self._choice is None else self._choice.rate

    def _aim(self, costs: Costs, hopeful: Sequence[Arm], worth: float) -> None:
        """Choose what to explore if it is affordable, promising arms or else a search, and when to plan again.

        Args:
            hopeful: arms that an evaluation may bring into use, the best first.
            worth: tokens per millisecond that the exploration must promise.
        """
        credit, prices = self._ledger.credit() - COLLECTED, [self._evaluation_price(arm, costs) for arm in hopeful]
        self._queue = [arm for arm, price in zip(hopeful, prices) if price <= credit]
        self._goal, needed, wanted = "", float("inf"), set[int]()
        if hopeful:
            self._goal, needed = "evaluate" if self._queue else "", min(prices)
            wanted = {arm.first_changed for arm in self._queue}
        elif costs.best_rate(self.budget, self.hoped) > worth:
            needed = self._search_price(costs) * 2**self._ledger.failures
            if needed <= credit:
                self._goal, wanted = "search", set(range(2 * self._n_layers + 1))
        self._left, before = self.interval, self.taps
        self.taps = Taps(verify=tuple(sorted(wanted)))
        if self.taps != before:
            self._drop_states()
        if not self._goal and self._choice is None:  # nothing changes before the allowance has grown by what is missing
            wait = (needed - credit) / (self.regret / 2)
            self._left = int(min(max(wait, self.interval), LONGEST_WAIT))

    def _evaluation_price(self, arm: Arm, costs: Costs) -> float:
        """Return the AR steps that an evaluation costs, keeping its states included."""
        return TAPPED * self.rows + self.overhead * costs.evaluation_ms(arm.layer_set, arm.window) / costs.ar_ms

    def _search_price(self, costs: Costs) -> float:
        """Return the AR steps that a search costs, keeping its states and evaluating its arms included."""
        pair = weights(costs.latency, costs.context, self.weight_cap)
        search = self.overhead * costs.search_ms(self.budget, pair) / costs.ar_ms
        largest = Arm(LayerSet(self._n_layers, frozenset([0])), self._prior.counts)  # the most that a set can run
        evaluations = self.shortlist * self._evaluation_price(largest, costs)
        return TAPPED * self.rows * (2 * self._n_layers + 1) + search + evaluations

    def _costs_at(self, length: int) -> Costs:
        """Return the costs near a context length; they depend on the length alone, so a resumed run has the same."""
        assert self._latency is not None
        near = round(math.log(max(length, 1)) / math.log1p(NEAR))
        if near not in self._costs:
            context = round((1 + NEAR) ** near)
            longest, reuse = self.draft_len, self.reuse_prefix
            self._costs[near] = Costs(
                self._latency, self._n_layers, context, longest, reuse, self.rows, self.lookup_len
            )
        return self._costs[near]

    def _tables_of(self, costs: Costs) -> tuple[Array, Array]:
        """Return milliseconds of a drafted token and of verifying 0, 1, .. of them, for the arms listed twice.

        Returns:
            [2 arms] and [2 arms, draft_len + 1]: `_plan` evaluates posterior means and optimistic counts together.
        """
        if costs.context not in self._tables:
            draft_ms = [costs.draft_ms(arm.layer_set, arm.window) for arm in self._arms]
            verify_ms = [costs.verify_ms(arm.layer_set, arm.window) for arm in self._arms]
            self._tables[costs.context] = np.array(draft_ms * 2), np.array(verify_ms * 2)
        return self._tables[costs.context]

    def _drop_states(self) -> None:
        self._seen: list[Verification] = []
        self._kept = 0

    def _explore(self, length: int, probe: Probe) -> None:
        """Evaluate arms or search, on the last r tokens, and charge the cost to the ledger."""
        self._settle()
        states, target = self._last_states()
        tapped, costs = self.taps.verify, self._costs_at(length)
        self._drop_states()
        self._ledger.explored += COLLECTED
        if self._goal == "search":
            self._ledger.explored += TAPPED * self.rows * len(tapped)
            self._search(states, length, probe)
            return
        for arm in self._queue:
            if (price := self._evaluation_price(arm, costs)) <= self._ledger.credit():
                self._ledger.explored += price
                before = states[tapped.index(arm.first_changed)]
                arm.counts += evaluate_arm(probe, self._prior, arm, before, target, length)
                arm.limit(self.memory)
                arm.tried = True

    def _last_states(self) -> tuple[Tensor, Tensor]:
        """Return states [taps, r, d] and the full model's predictions [r] of the last r committed tokens."""
        states, targets = [], []
        for seen in self._seen:
            assert seen.hidden is not None
            rows = torch.tensor(seen.path, device=seen.hidden.device)
            states.append(seen.hidden.index_select(1, rows))
            targets.append(seen.logits.index_select(0, rows.to(seen.logits.device)))
        return torch.cat(states, dim=1)[:, -self.rows :], torch.cat(targets).argmax(-1)[-self.rows :]

    def _search(self, states: Tensor, length: int, probe: Probe) -> None:
        """Run KnapSpec's knapsack; the candidates of highest throughput, with shrunk rates, become arms."""
        costs, rows, prior = self._costs_at(length), states.shape[1], self._prior
        pair = weights(probe.latency, length, self.weight_cap)
        self._ledger.explored += self.overhead * costs.search_ms(self.budget, pair) / costs.ar_ms
        self._ledger.searches += 1
        self._ledger.failures += 1
        knapsack = Knapsack(
            states.float(), length - rows, pair, self.budget, self.min_similarity, True, False, states.dtype
        )
        old_sets = {arm.layer_set for arm in self._arms if arm.window is None} | {LayerSet.full(self._n_layers)}
        candidates = [candidate for candidate in knapsack.run(probe) if candidate.layer_set not in old_sets]
        if not candidates:
            return
        values = [
            throughput_by_matches(prior, self.selected, costs, candidate.layer_set, rows) for candidate in candidates
        ]
        acceptance = AcceptanceRates(probe, states[-1], torch.stack([candidate.hidden for candidate in candidates]))
        for i in acceptance.leaders(lambda i, rate: float(values[i][round(rate * rows)]), self.shortlist):
            predicted, confidence = probe.predict_confident(candidates[i].hidden)
            tally = prior.tally(predicted == acceptance.target, confidence)
            arm = Arm(candidates[i].layer_set, prior.counts + self.selected * tally, False, self._ledger.searches)
            self._arms.append(arm)
        self._tables.clear()

    def _estimate(self, length: int) -> Estimate:
        if self._choice is not None:
            choice = self._choice
            return Estimate(choice.arm.acceptance, choice.draft.max_len, 1000 * choice.rate)
        return Estimate(1.0, 0, 1000 / self._costs_at(length).ar_ms)
