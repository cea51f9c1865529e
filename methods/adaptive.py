"""Adaptive: KnapSpec's search with every cost measured, a shrunk acceptance rate, and AR among the candidates.

On small models the released codes are slower than AR: their cost models leave out head, embedding and the growth of
verification with its nodes; they take the largest of dozens of rates from few tokens, an overestimate; they ignore the
draft length they compute, draft in every step, and forget everything after each prompt. This method is a multi-armed
bandit over layer sets (not a record's arms, `ar` and `method`):

* Copies. Every step has a candidate from prompt lookup: the continuation of the newest tokens in earlier text. Its
  acceptance rate follows from that text (`methods/match_model.py`). It is verified only if it promises more tokens per
  millisecond than the step without it. Drafts with rounded weights check copies themselves, several tokens in a pass
  (`methods/nested_draft.py`).
* Arms. Early exits, uniform sets and results of searches; in long contexts a window of the cache; with `int8` and
  `int4` rounded weights, alone and with the layer set in use. Every verified draft updates its arm's posterior of
  acceptance by draft confidence (`methods/arms.py`).
* Plans. Every few steps a plan chooses the arm, draft length γ and stop threshold with the most expected tokens per
  millisecond, or AR if no arm beats it by a margin.
* Evaluations and searches. An arm never drafts only to be explored: evaluating it on the last r output tokens takes one
  or two AR steps. KnapSpec's knapsack proposes new arms (`methods/arm_pool.py`).
* Losses. A ledger (`methods/ledger.py`) counts the gains of drafting and the costs of exploration in AR steps, and
  bounds the losses. A search waits until it is affordable, twice as long after a useless one.

All times come from the latency profile; the method reads no clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import numpy as np
from torch import Tensor

from methods.arm_pool import ArmPool, last_states
from methods.arms import Arm, ArmChoice, Costs
from methods.knapsack import integer_weights
from methods.ledger import Ledger
from methods.match_model import MatchModel, guess_ms
from methods.settings import DraftLen, DraftWindows, Name, ReusePrefix, Thresholds
from ssd_bench.contract.generation import Estimate
from ssd_bench.contract.layer_set import LayerSet
from ssd_bench.contract.method import Context, LayerDraft, Method, Prefill, Probe, Sample, Taps, Verification
from ssd_bench.contract.shape import ModelDims
from ssd_bench.contract.tree import TokenTree
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


Inner = Annotated[float, Range(above=0, below=1, what="a share")]
NotNegative = Annotated[float, Range(0)]


@settings("method")
class Adaptive(Method):
    """Choice of layer set, draft length and stop threshold, or AR, by expected tokens per millisecond."""

    name: Name = "adaptive"
    draft_len: DraftLen = 10
    """Longest γ of a layer set."""
    lookup_len: Whole = 16
    """Longest draft copied from earlier text; 0: none."""
    lookup_memory: Whole = 32_768
    """Newest tokens of earlier prompts and outputs searched for copies; 0: each prompt starts anew."""
    thresholds: Thresholds = (0.3, 0.5, 0.7, 0.85)
    """Stop thresholds to choose from; drafting without one is always considered."""
    exits: Annotated[Sequence[Inner], Fits("at least one share in (0, 1)", len)] = (0.125, 0.25, 0.375, 0.5, 0.625)
    """Early exits among the first arms, as shares of the blocks."""
    uniform: Sequence[Inner] = (0.25, 0.45)
    """Uniform sets among the first arms, as shares of skipped sublayers; shares beyond the inner blocks are left
    out."""
    windows: DraftWindows = ((4, 508),)
    """Windows of the cache among the first arms, with all sublayers and with the layer set in use; considered in
    contexts of at least twice their positions."""
    int8: bool = False
    """Add 8-bit weights to the first arms, with all sublayers and with the layer set in use."""
    int4: bool = False
    """The same with 4-bit weights."""
    interval: Count = 16
    """Steps between plans while drafting."""
    rows: Count = 12
    """r, last output tokens for evaluations and searches."""
    budget: Annotated[float, Range(above=0, most=1, what="a share")] = 0.6
    """Share of all sublayers' weight that a search may skip."""
    min_similarity: Cosine = 0.5
    """τ of the search."""
    weight_cap: Count | None = 1
    """Largest integer weight of a sublayer in the search; null: no cap."""
    hoped: Annotated[float, Range(above=0, below=1, what="a rate")] = 0.95
    """A search runs only if skipping the whole budget would pay at this acceptance rate."""
    shortlist: Count = 2
    """Most arms that a search adds."""
    pool: int = 14
    """Most arms; beyond it the least promising ones from searches are dropped."""
    prior: Annotated[float, Range(above=0, what="a number of tokens")] = 2.5
    """Weight of the prior, in tokens."""
    selected: Annotated[float, Range(0, 1, what="a weight")] = 0.25
    """Weight of a token that selected the arm; other tokens weigh 1."""
    memory: float = 256
    """Largest weight of a posterior, in tokens."""
    forget: Share = 0.02
    """Share by which posteriors move back to the prior at the start of a prompt."""
    optimism: NotNegative = 1.0
    """Posterior standard deviations added to an arm's acceptance to judge an evaluation."""
    margin: NotNegative = 0.05
    """Share by which drafting must beat AR, and an arm's optimistic throughput the present one for an evaluation."""
    stake: Annotated[float, Range(0, what="a number of AR steps")] = 6
    """Allowed loss of drafting and exploration, in AR steps."""
    regret: Inner = 0.01
    """Share of the output tokens by which the allowed loss grows."""
    profit: Annotated[float, Range(0, below=1, what="a share")] = 0.03
    """Share of the gain of layer sets and windows available for exploration."""
    overhead: Annotated[float, Range(above=0)] = 1.5
    """Factor on the predicted time of exploration, for cosines and copies that the profile leaves out."""
    reuse_prefix: ReusePrefix = True

    def __post_init__(self) -> None:
        self.bits = [bits for bits, used in ((8, self.int8), (4, self.int4)) if used]
        if self.pool <= len(self.exits) + len(self.uniform) + len(self.windows) + len(self.bits):
            raise ConfigError("method.pool", self.pool, "more than exits, uniform, windows, int8 and int4 together")
        if self.memory <= self.prior:
            raise ConfigError("method.memory", self.memory, f"more than method.prior={self.prior}")
        self.taps = Taps()

    def check(self, dims: ModelDims) -> None:
        """Make the first arms for this model.

        Raises:
            ConfigError: a one-block model, which has no exit.
        """
        n_layers = dims.n_layers
        if n_layers < 2:
            raise ConfigError("model.n_layers", n_layers, "at least 2 blocks: an exit comes before the last one")
        self._n_layers, self._pool = n_layers, ArmPool(self, n_layers)
        self._latency: Latency | None = None
        self._costs: dict[int, Costs] = {}
        self._ledger = Ledger(self.stake, self.regret, self.profit)
        self._choice: ArmChoice | None = None  # the last plan's choice; None: AR
        self._step_choice: ArmChoice | None = None  # the choice that drafts in this step; None: a copy or AR
        self._copied = False  # whether this step verifies a copy
        self._passes = 0.0  # of this step's draft with guesses; a pass over guesses counts by its time
        self._match_model = MatchModel(self.lookup_memory, self.prior, self.memory)
        self._copy_ms: list[float] = []  # milliseconds to verify 0, 1, .. copied tokens, at the last plan's context
        self._base_rate = self._ar_ms = 0.0  # tokens per millisecond without copies; milliseconds of an AR step
        self._pace_tokens = self._pace_ms = 0.0  # decayed sums over the last steps, copies included
        self._goal = ""  # exploration for which states are kept: "evaluate", "search", or "" for none
        self._steps_left = 0  # steps until the next plan

    def prepare(self, probe: Probe, samples: Sequence[Sample]) -> None:
        self._set_latency(probe.latency)

    def start(self, prefill: Prefill) -> None:
        """Begin a prompt: keep arms, ledger and a pending wait, but not the states."""
        self._pool.forget()
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
        """Propose a copy of earlier text if it promises more than the last plan's choice; else that draft or AR."""
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
        self._cap, self._passes = min(self._step_choice.draft.max_len, context.max_draft), 0.0
        return self._step_choice.draft

    def observe(self, verification: Verification, probe: Probe) -> Estimate | None:
        """Update ledger, posterior and pace; explore once enough states are kept; plan when due.

        After exploration return the estimate for the next plan's choice (AR: γ = 0).
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
        arms, left = self._pool.state(), self._steps_left if self._is_waiting() else 0
        saved = {"arms": arms, "ledger": asdict(self._ledger), "left": left, "copies": self._match_model.state()}
        return json.dumps(saved | {"nested": self._pool.nested}).encode()

    def restore(self, state: bytes) -> None:
        saved = json.loads(state)
        self._pool.restore(saved["arms"])
        self._pool.nested = saved["nested"]
        self._ledger = Ledger(**saved["ledger"])
        self._steps_left = saved["left"]
        self._match_model.restore(saved["copies"])

    def _is_waiting(self) -> bool:
        """Return whether AR runs until exploration is affordable."""
        return self._choice is None and not self._goal and self._steps_left > 0

    def _set_latency(self, latency: Latency) -> None:
        if latency is not self._latency:
            self._latency, self._costs = latency, {}

    def _learn(self, choice: ArmChoice, verification: Verification) -> float:
        """Learn from a draft, stop drafting once the allowed loss is used up, and return the step's profiled ms."""
        drafted, accepted = verification.tree.draft_len, len(verification.path) - 1
        passes = float(drafted)
        if choice.guess_ms is not None:
            passes = self._passes
            self._pool.learn_guesses(passes, drafted)
        step_ms = passes * choice.draft_ms + choice.verify_ms[drafted]
        gain = len(verification.emitted) - step_ms / choice.ar_ms  # AR takes one step per token
        self._ledger.gain += gain
        self._ledger.layer_gain += gain
        self._pool.outcomes.append((choice.arm, drafted, accepted, choice.threshold, drafted >= self._cap))
        if self._ledger.is_exhausted():
            self._choice = None
        return step_ms

    def _guess(self, drafted: Sequence[int], longest: int) -> list[int]:
        """Return a copy that a pass of this step's draft checks, and count the pass."""
        assert self._step_choice is not None and self._step_choice.guess_ms is not None
        prices = self._step_choice.guess_ms
        tokens = self._match_model.guess(drafted, longest, prices)
        self._passes += prices[len(tokens)] / prices[0]
        return tokens

    def _plan(self, length: int) -> None:
        pool, costs = self._pool, self._costs_at(length)
        pool.learn()
        # 1) throughputs of all arms, thresholds and lengths: expected, and with optimistic acceptance rates
        rates, best, optimistic = pool.throughputs(costs, length)
        arms, base_rate = pool.arms, 1 / costs.ar_ms
        # 2) draft with an evaluated arm, if the best one beats AR by the margin; else AR
        self._choice = None
        if best.max() > base_rate * (1 + self.margin) and not self._ledger.is_exhausted():
            # of the arms within the margin of the best take the most optimistic one: its drafts show how good it is
            close = (best > base_rate * (1 + self.margin)) & (best >= best.max() / (1 + self.margin))
            index = int(np.where(close, optimistic, 0.0).argmax())
            threshold, length_index = divmod(int(rates[index].argmax()), self.draft_len)
            stop_below = float(pool.prior.thresholds[threshold - 1]) if threshold else 0.0
            arm, (draft_ms, verify_ms) = arms[index], pool.times(costs)
            base_rate, guesses, guess = float(best.max()), None, None
            if pool.nests(arm.layer_set):
                guesses, guess = guess_ms(costs.latency, arm.layer_set, costs.context, self.lookup_len), self._guess
            draft = LayerDraft(arm.layer_set, length_index + 1, stop_below, searched=True, guess=guess)
            times = float(draft_ms[index]), verify_ms[index].tolist(), costs.ar_ms
            self._choice = ArmChoice(arm, threshold, draft, *times, base_rate, guesses)
            if arm.search_number and arm.search_number == self._ledger.searches:  # the last search paid
                self._ledger.failures = 0
        self._price_copies(costs)
        # 3) keep the pool small: drop the arms of searches and combinations with the least optimistic throughput
        used_arm = None if self._choice is None else self._choice.arm
        ranked = [(optimistic[i], arms[i]) for i in np.argsort(-optimistic, kind="stable") if arms[i] is not used_arm]
        pool.shrink([arm for _, arm in ranked])
        if used_arm is not None:
            pool.combine(used_arm, length)
        # 4) explore arms that would come into use if their optimistic rate were true
        needed_rate = base_rate * (1 + self.margin)
        promising = [arm for rate, arm in ranked if rate > needed_rate and arm in pool.arms]
        self._plan_exploration(costs, promising, needed_rate)

    def _price_copies(self, costs: Costs) -> None:
        self._copy_ms, self._ar_ms = costs.copy_ms, costs.ar_ms
        self._base_rate = 1 / costs.ar_ms if self._choice is None else self._choice.rate

    def _plan_exploration(self, costs: Costs, promising: Sequence[Arm], needed_rate: float) -> None:
        """Choose an affordable exploration (promising arms, else a search, else none) and the next plan's step.

        Args:
            promising: arms to evaluate, best first.
            needed_rate: tokens per millisecond that a search must be able to reach.
        """
        credit, prices = self._ledger.credit() - COLLECT_COST, [self._evaluation_price(arm, costs) for arm in promising]
        self._queue = [arm for arm, price in zip(promising, prices) if price <= credit]
        self._goal, needed, boundaries = "", float("inf"), set[int]()
        if promising:
            self._goal, needed = "evaluate" if self._queue else "", min(prices)
            boundaries = {arm.layer_set.first_changed for arm in self._queue}
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
        return STATE_COST * self.rows + self.overhead * costs.evaluation_ms(arm.layer_set) / costs.ar_ms

    def _search_price(self, costs: Costs) -> float:
        """Return the cost of a search, with its states and evaluations, in AR steps."""
        weights = integer_weights(costs.latency, costs.context, self.weight_cap)
        search = self.overhead * costs.search_ms(self.budget, weights) / costs.ar_ms
        largest = Arm(LayerSet(self._n_layers, frozenset([0])), self._pool.prior.counts)  # the most that a set can run
        evaluations = self.shortlist * self._evaluation_price(largest, costs)
        return STATE_COST * self.rows * (2 * self._n_layers + 1) + search + evaluations

    def _costs_at(self, length: int) -> Costs:
        """Return the costs at the nearest grid context, the same in a resumed run."""
        assert self._latency is not None
        grid_index = round(math.log(max(length, 1)) / math.log1p(GRID_STEP))
        if grid_index not in self._costs:
            context = round((1 + GRID_STEP) ** grid_index)
            lengths = self.draft_len, self.reuse_prefix, self.rows, self.lookup_len
            self._costs[grid_index] = Costs(self._latency, self._n_layers, context, *lengths)
        return self._costs[grid_index]

    def _drop_states(self) -> None:
        self._verifications: list[Verification] = []
        self._n_states = 0

    def _explore(self, length: int, probe: Probe) -> None:
        self._pool.learn()
        states, target = last_states(self._verifications, self.rows)
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
                self._pool.evaluate(arm, states[boundaries.index(arm.layer_set.first_changed)], target, length, probe)

    def _search(self, states: Tensor, length: int, probe: Probe) -> None:
        costs, weights = self._costs_at(length), integer_weights(probe.latency, length, self.weight_cap)
        self._ledger.explored += self.overhead * costs.search_ms(self.budget, weights) / costs.ar_ms
        self._ledger.searches += 1
        self._ledger.failures += 1  # until an arm of this search comes into use (`_plan`)
        self._pool.search(states, length, probe, costs, self._ledger.searches)

    def _estimate(self, length: int) -> Estimate:
        """Return the choice's expected throughput; AR is the full model at γ = 0."""
        if self._choice is not None:
            choice = self._choice
            return Estimate(choice.arm.acceptance, choice.draft.max_len, 1000 * choice.rate)
        return Estimate(1.0, 0, 1000 / self._costs_at(length).ar_ms)
