"""Adaptive: KnapSpec's search with every cost measured, a shrunk acceptance rate, and AR among the candidates.

The project's own method. On small models the released codes are slower than AR, for five reasons. Their cost models
leave out head, embedding and the growth of verification with its nodes. They use the largest of dozens of acceptance
rates, each measured on a few tokens, which is too high. They do not use the draft length that they compute. They draft
in every step. They forget everything after each prompt. This method works as a multi-armed bandit, whose arms are layer
sets (not the arms of a record, `ar` and `method`):

* Copies. In every step the continuation of the newest tokens, copied from earlier prompts and outputs, is a candidate
  (prompt lookup). It needs no pass of the model, and its acceptance rate is known from the text alone
  (`methods/match_model.py`). It is verified only if it promises more tokens per millisecond than the step without it.
* Arms. The layer sets are early exits, uniform sets and results of searches; in long contexts also a window of the
  cache, alone and with the layer set in use. Each arm has a posterior of its acceptance by draft confidence
  (`methods/arms.py`). Every verified draft updates it, and it lasts from prompt to prompt.
* Plans. Every few steps a plan chooses the arm, draft length γ and stop threshold with the most expected tokens per
  millisecond. If no arm beats AR by a margin, it chooses AR.
* Evaluations. An arm never drafts only to be explored. Instead one teacher-forced pass runs its sublayers over the last
  r output tokens, whose full-model states and predictions exist already. This gives r outcomes for the time of one or
  two AR steps.
* Searches. KnapSpec's knapsack proposes new arms. The tokens that selected an arm have little weight in its posterior,
  and it drafts only after an evaluation on other tokens.
* Losses. A ledger (`methods/ledger.py`) counts, in AR steps, the gains of drafting and the costs of evaluations and
  searches, and bounds the losses. A search waits until it is affordable. After each search without a useful arm, twice
  as much is needed for the next one.

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
    ArmChoice,
    Array,
    Costs,
    Prior,
    evaluate_arm,
    optimistic_counts,
    throughput,
    throughput_by_matches,
)
from methods.fixed_layers import pattern_set
from methods.knapsack import AcceptanceRates, Knapsack, integer_weights
from methods.ledger import Ledger
from methods.match_model import MatchModel
from methods.settings import DraftLen, Name, ReusePrefix, is_window
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.contract.tree import TokenTree
from ssd_bench.contract.window import Window
from ssd_bench.cost.latency import Latency
from ssd_bench.errors import ConfigError
from ssd_bench.settings import Cosine, Count, Fits, Range, Share, Whole, settings

# costs in AR steps, measured on the miniature (lower on larger models)
STATE_COST = 0.005  # keeping one state of one token
COLLECT_COST = 0.7  # collecting the kept states for an evaluation or search
LONGEST_WAIT = 256  # steps after which AR checks again whether exploration is affordable
PACE_DECAY = 0.97  # weight that the pace, the mean throughput of the last steps, keeps in a step
PACE_STEPS = 16  # weight of the pace at the start of a prompt, in AR steps
GRID_STEP = 0.1  # costs are computed at contexts 1.1^i, rounded


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
    """A search runs only if a set that skips the whole budget would pay at this acceptance rate."""
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
    """Share by which drafting must beat AR, and by which an arm's optimistic throughput must exceed the present one for
    an evaluation."""
    stake: Annotated[float, Range(0, what="a number of AR steps")] = 6
    """Allowed loss of drafting and exploration, in AR steps."""
    regret: Inner = 0.01
    """Share of the output tokens by which the allowed loss grows."""
    profit: Annotated[float, Range(0, below=1, what="a share")] = 0.03
    """Share of the gain of layer sets and windows that may be spent on exploration."""
    overhead: Annotated[float, Range(above=0)] = 1.5
    """Factor on the predicted time of an evaluation or search, for cosines and copies, which the profile leaves out."""
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
        self._choice: ArmChoice | None = None  # the last plan's choice; None: AR
        self._step_choice: ArmChoice | None = None  # the choice that drafts in this step; None: a copy or AR
        self._copied = False  # whether this step verifies a copy
        self._match_model = MatchModel(self.lookup_memory, self.prior, self.memory)
        self._copy_ms: list[float] = []  # milliseconds to verify 0, 1, .. copied tokens, at the last plan's context
        self._base_rate = self._ar_ms = 0.0  # tokens per millisecond without copies; milliseconds of an AR step
        self._pace_tokens = self._pace_ms = 0.0  # decayed sums over the last steps, copies included
        self._goal = ""  # exploration for which states are kept: "evaluate", "search", or "" for none
        self._steps_left = 0  # steps until the next plan
        self._outcomes: list[tuple[Arm, int, int, int, bool]] = []

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        """Take the latency profile."""
        self._set_latency(probe.latency)

    def start(self, prefill: Prefill) -> None:
        """Begin a prompt: keep the arms, the ledger and a wait of the last prompt, but not its states."""
        self._apply_outcomes()
        for arm in self._arms:
            arm.forget(self._prior, self.forget)
        self._drop_states()
        if self.lookup_len:
            self._match_model.start(prefill.prompt, self.forget)
        length = len(prefill.prompt)
        if self._is_waiting():
            self._price_copies(self._costs_at(length))
        else:
            self._choice, self._goal, self._steps_left = None, "", 0
            if self._latency is not None:
                self._plan(length)
        # the pace starts at the throughput without copies
        self._pace_ms, self._pace_tokens = PACE_STEPS * self._ar_ms, PACE_STEPS * self._ar_ms * self._base_rate

    def propose(self, context: Context) -> LayerDraft | TokenTree:
        """Propose a copy of earlier text if it promises more than the last plan's draft; else that draft or AR."""
        self._copied, self._step_choice = False, None
        if self.lookup_len:
            self._match_model.extend(context.output[self._match_model.output_len :])
            longest = min(self.lookup_len, context.max_draft)
            if longest and self._pace_ms and not self._ledger.is_exhausted():
                # one more copied token must be worth its verification time, at the pace of the last steps ...
                pace = max(self._base_rate, self._pace_tokens / self._pace_ms)
                tokens, expected = self._match_model.draft(longest, self._copy_ms, pace)
                # ... and the whole copy must beat the step without it
                if tokens and expected > (1 + self.margin) * self._base_rate * self._copy_ms[len(tokens)]:
                    self._copied = True
                    return TokenTree.chain([context.output[-1], *tokens])
        self._step_choice = self._choice if context.max_draft else None
        if self._step_choice is None:
            return TokenTree((context.output[-1],), (-1,))
        self._cap = min(self._step_choice.draft.max_len, context.max_draft)
        return self._step_choice.draft

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Update ledger, posterior and pace; explore once enough states are kept; plan again when a plan is due.

        Returns:
            After an evaluation or search, the estimate for the choice of the plan that follows; AR: γ = 0.
        """
        self._ledger.tokens += len(verification.emitted)
        step_ms = self._ar_ms
        if self._step_choice is not None:
            step_ms = self._learn(self._step_choice, verification)
        elif self._copied:
            step_ms = self._copy_ms[verification.tree.draft_len]
            self._ledger.gain += len(verification.emitted) - step_ms / self._ar_ms  # AR takes one step per token
        self._pace_tokens = PACE_DECAY * self._pace_tokens + len(verification.emitted)
        self._pace_ms = PACE_DECAY * self._pace_ms + step_ms
        if verification.last and self.lookup_len:  # no `propose` follows that would add these tokens
            self._match_model.extend(verification.emitted)
        if verification.hidden is not None:
            self._verifications.append(verification)
            self._n_states += len(verification.path)
        self._steps_left -= 1
        explores = bool(self._goal) and self._n_states >= self.rows
        if explores:
            self._explore(verification.length, probe)
        if explores or self._steps_left <= 0:
            self._set_latency(probe.latency)
            self._plan(verification.length)
        return self._estimate(verification.length) if explores else None

    def state(self) -> bytes:
        """Return arms, ledger and the text for copies, as JSON."""
        self._apply_outcomes()
        windows = [None if arm.window is None else (arm.window.sinks, arm.window.recent) for arm in self._arms]
        arms = [
            (sorted(arm.layer_set.skipped), arm.counts.tolist(), arm.evaluated, arm.search_number, window, arm.derived)
            for arm, window in zip(self._arms, windows)
        ]
        left = self._steps_left if self._is_waiting() else 0
        saved = {"arms": arms, "ledger": asdict(self._ledger), "left": left, "copies": self._match_model.state()}
        return json.dumps(saved).encode()

    def restore(self, state: bytes) -> None:
        """Continue with the arms, ledger and text of `state`."""
        saved = json.loads(state)
        self._arms = [
            Arm(
                LayerSet(self._n_layers, frozenset(skipped)),
                np.array(counts),
                evaluated,
                search_number,
                window and Window(*window),
                derived,
            )
            for skipped, counts, evaluated, search_number, window, derived in saved["arms"]
        ]
        self._tables.clear()
        self._ledger = Ledger(**saved["ledger"])
        self._steps_left = saved["left"]
        self._match_model.restore(saved["copies"])

    def _is_waiting(self) -> bool:
        """Return whether AR runs until an exploration is affordable; a plan before that would choose AR again."""
        return self._choice is None and not self._goal and self._steps_left > 0

    def _set_latency(self, latency: Latency) -> None:
        """Take a profile; discard the costs that were computed from another one."""
        if latency is not self._latency:
            self._latency, self._costs, self._tables = latency, {}, {}

    def _learn(self, choice: ArmChoice, verification: Verification) -> float:
        """Note the outcome of a draft and update the ledger; stop drafting once the allowed loss is used up.

        Returns:
            The milliseconds of the step by the profile.
        """
        drafted, accepted = verification.tree.draft_len, len(verification.path) - 1
        step_ms = drafted * choice.draft_ms + choice.verify_ms[drafted]
        gain = len(verification.emitted) - step_ms / choice.ar_ms  # AR takes one step per token
        self._ledger.gain += gain
        self._ledger.layer_gain += gain
        self._outcomes.append((choice.arm, drafted, accepted, choice.threshold, drafted >= self._cap))
        if self._ledger.is_exhausted():
            self._choice = None
        return step_ms

    def _apply_outcomes(self) -> None:
        """Update the arms by the noted outcomes; not in every step, since steps of a small model are short."""
        for arm, drafted, accepted, threshold, capped in self._outcomes:
            arm.learn(drafted, accepted, threshold, capped)
            arm.limit(self.memory)
        self._outcomes.clear()

    def _plan(self, length: int) -> None:
        """Choose the draft at this context length, and what to explore next."""
        self._apply_outcomes()
        costs = self._costs_at(length)
        # 1) throughputs of all arms, thresholds and lengths: expected, and with optimistic acceptance rates
        draft_ms, verify_ms = self._times_of_arms(costs)
        counts = np.array([arm.counts for arm in self._arms])
        all_counts = np.concatenate([counts, optimistic_counts(counts, self.optimism)])
        values = throughput(all_counts, draft_ms, verify_ms)
        rates, optimistic = values[: len(counts)], values[len(counts) :].max((1, 2))
        usable = [arm.window is None or 2 * arm.window.count_read(length) <= length for arm in self._arms]
        optimistic = np.where(usable, optimistic, 0.0)
        evaluated = [arm.evaluated for arm in self._arms]
        best, base_rate = np.where(np.logical_and(evaluated, usable), rates.max((1, 2)), 0.0), 1 / costs.ar_ms
        # 2) draft with an evaluated arm, if the best one beats AR by the margin; else AR
        self._choice = None
        if best.max() > base_rate * (1 + self.margin) and not self._ledger.is_exhausted():
            # of the arms within the margin of the best take the most optimistic one: its drafts show how good it is
            close = (best > base_rate * (1 + self.margin)) & (best >= best.max() / (1 + self.margin))
            index = int(np.where(close, optimistic, 0.0).argmax())
            threshold, length_index = divmod(int(rates[index].argmax()), self.draft_len)
            stop_below = float(self._prior.thresholds[threshold - 1]) if threshold else 0.0
            arm = self._arms[index]
            draft = LayerDraft(arm.layer_set, length_index + 1, stop_below, searched=True, window=arm.window)
            base_rate = float(best.max())
            times = float(draft_ms[index]), verify_ms[index].tolist(), costs.ar_ms
            self._choice = ArmChoice(arm, threshold, draft, *times, base_rate)
            if arm.search_number and arm.search_number == self._ledger.searches:  # the last search paid
                self._ledger.failures = 0
        self._price_copies(costs)
        # 3) keep the pool small: drop the arms of searches and combinations with the least optimistic throughput
        used_arm = None if self._choice is None else self._choice.arm
        order = [i for i in np.argsort(-optimistic, kind="stable") if self._arms[i] is not used_arm]
        ranked = [(optimistic[i], self._arms[i]) for i in order]
        surplus = len(self._arms) - self.pool
        if surplus > 0:
            dropped = {id(arm) for arm in [arm for _, arm in ranked if arm.search_number or arm.derived][-surplus:]}
            self._arms = [arm for arm in self._arms if id(arm) not in dropped]
            self._tables.clear()
        self._combine_with_windows(length)
        # 4) explore arms that would come into use if their optimistic rate were true
        needed_rate = base_rate * (1 + self.margin)
        promising = [arm for rate, arm in ranked if rate > needed_rate and arm in self._arms]
        self._plan_exploration(costs, promising, needed_rate)

    def _combine_with_windows(self, length: int) -> None:
        """Combine the layer set in use with each window for which the context is long enough, for the next plan.

        A window has at most one combination: when another layer set comes into use, its combination is replaced.
        """
        arm = None if self._choice is None else self._choice.arm
        if arm is None or arm.window is not None:
            return
        for window in self._windows:
            old = next((a for a in self._arms if a.derived and a.window == window), None)
            if 2 * window.count_read(length) > length or (old is not None and old.layer_set == arm.layer_set):
                continue
            counts = self._prior.counts.copy()
            combined = Arm(arm.layer_set, counts, search_number=arm.search_number, window=window, derived=True)
            self._arms = [a for a in self._arms if a is not old] + [combined]
            self._tables.clear()

    def _price_copies(self, costs: Costs) -> None:
        """Set the costs of verifying a copy near this context, and the throughput that it must beat."""
        self._copy_ms, self._ar_ms = costs.copy_ms, costs.ar_ms
        self._base_rate = 1 / costs.ar_ms if self._choice is None else self._choice.rate

    def _plan_exploration(self, costs: Costs, promising: Sequence[Arm], needed_rate: float) -> None:
        """Choose an affordable exploration: promising arms, else a search, else none; and when to plan again.

        Args:
            promising: arms that an evaluation may bring into use, the best first.
            needed_rate: tokens per millisecond that the result of a search must be able to reach.
        """
        credit, prices = self._ledger.credit() - COLLECT_COST, [self._evaluation_price(arm, costs) for arm in promising]
        self._queue = [arm for arm, price in zip(promising, prices) if price <= credit]
        self._goal, needed, boundaries = "", float("inf"), set[int]()
        if promising:
            self._goal, needed = "evaluate" if self._queue else "", min(prices)
            boundaries = {arm.first_changed for arm in self._queue}
        elif costs.best_rate(self.budget, self.hoped) > needed_rate:
            needed = self._search_price(costs) * 2**self._ledger.failures
            if needed <= credit:
                self._goal, boundaries = "search", set(range(2 * self._n_layers + 1))
        self._steps_left, old_taps = self.interval, self.taps
        self.taps = Taps(verify=tuple(sorted(boundaries)))
        if self.taps != old_taps:
            self._drop_states()
        if not self._goal and self._choice is None:
            # AR until the missing credit has grown, by regret / 2 per token (`Ledger.credit`)
            wait = (needed - credit) / (self.regret / 2)
            self._steps_left = int(min(max(wait, self.interval), LONGEST_WAIT))

    def _evaluation_price(self, arm: Arm, costs: Costs) -> float:
        """Return the cost of an evaluation in AR steps, keeping its states included."""
        return STATE_COST * self.rows + self.overhead * costs.evaluation_ms(arm.layer_set, arm.window) / costs.ar_ms

    def _search_price(self, costs: Costs) -> float:
        """Return the cost of a search in AR steps, keeping its states and evaluating its arms included."""
        weights = integer_weights(costs.latency, costs.context, self.weight_cap)
        search = self.overhead * costs.search_ms(self.budget, weights) / costs.ar_ms
        largest = Arm(LayerSet(self._n_layers, frozenset([0])), self._prior.counts)  # the most that a set can run
        evaluations = self.shortlist * self._evaluation_price(largest, costs)
        return STATE_COST * self.rows * (2 * self._n_layers + 1) + search + evaluations

    def _costs_at(self, length: int) -> Costs:
        """Return the costs at the grid context nearest to a length; a resumed run computes the same costs."""
        assert self._latency is not None
        grid_index = round(math.log(max(length, 1)) / math.log1p(GRID_STEP))
        if grid_index not in self._costs:
            context = round((1 + GRID_STEP) ** grid_index)
            longest, reuse = self.draft_len, self.reuse_prefix
            self._costs[grid_index] = Costs(
                self._latency, self._n_layers, context, longest, reuse, self.rows, self.lookup_len
            )
        return self._costs[grid_index]

    def _times_of_arms(self, costs: Costs) -> tuple[Array, Array]:
        """Return milliseconds of one drafted token [2 arms] and of verifying 0, 1, .. of them [2 arms, draft_len + 1].

        All arms are listed twice: `_plan` computes expected and optimistic throughputs together.
        """
        if costs.context not in self._tables:
            draft_ms = [costs.draft_ms(arm.layer_set, arm.window) for arm in self._arms]
            verify_ms = [costs.verify_ms(arm.layer_set, arm.window) for arm in self._arms]
            self._tables[costs.context] = np.array(draft_ms * 2), np.array(verify_ms * 2)
        return self._tables[costs.context]

    def _drop_states(self) -> None:
        self._verifications: list[Verification] = []
        self._n_states = 0

    def _explore(self, length: int, probe: Probe) -> None:
        """Evaluate arms or search, on the last r tokens, and charge the cost to the ledger."""
        self._apply_outcomes()
        states, target = self._last_states()
        boundaries, costs = self.taps.verify, self._costs_at(length)
        self._drop_states()
        self._ledger.explored += COLLECT_COST
        if self._goal == "search":
            self._ledger.explored += STATE_COST * self.rows * len(boundaries)
            self._search(states, length, probe)
            return
        for arm in self._queue:
            if (price := self._evaluation_price(arm, costs)) <= self._ledger.credit():
                self._ledger.explored += price
                arm_states = states[boundaries.index(arm.first_changed)]
                arm.counts += evaluate_arm(probe, self._prior, arm, arm_states, target, length)
                arm.limit(self.memory)
                arm.evaluated = True

    def _last_states(self) -> tuple[Tensor, Tensor]:
        """Return states [taps, r, d] and the full model's predictions [r] of the last r committed tokens."""
        states, logits = [], []
        for verification in self._verifications:
            assert verification.hidden is not None
            rows = torch.tensor(verification.path, device=verification.hidden.device)
            states.append(verification.hidden.index_select(1, rows))
            logits.append(verification.logits.index_select(0, rows.to(verification.logits.device)))
        return torch.cat(states, dim=1)[:, -self.rows :], torch.cat(logits).argmax(-1)[-self.rows :]

    def _search(self, states: Tensor, length: int, probe: Probe) -> None:
        """Run KnapSpec's knapsack; the candidates of highest throughput, with shrunk rates, become arms."""
        costs, rows, prior = self._costs_at(length), states.shape[1], self._prior
        weights = integer_weights(probe.latency, length, self.weight_cap)
        self._ledger.explored += self.overhead * costs.search_ms(self.budget, weights) / costs.ar_ms
        self._ledger.searches += 1
        self._ledger.failures += 1  # until an arm of this search comes into use (`_plan`)
        knapsack = Knapsack(
            states.float(), length - rows, weights, self.budget, self.min_similarity, True, False, states.dtype
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
            # weight below 1: the arm was selected because it matched these tokens, so they favour it
            counts = prior.counts + self.selected * tally
            self._arms.append(Arm(candidates[i].layer_set, counts, False, self._ledger.searches))
        self._tables.clear()

    def _estimate(self, length: int) -> Estimate:
        """Return the expected throughput of the present choice; AR is the full model at γ = 0."""
        if self._choice is not None:
            choice = self._choice
            return Estimate(choice.arm.acceptance, choice.draft.max_len, 1000 * choice.rate)
        return Estimate(1.0, 0, 1000 / self._costs_at(length).ar_ms)
