"""The decode loop: propose, draft, verify, accept, commit, observe, trace.

Knows no method by name. Invariant at the start of a step: the cache holds full-model keys and values of exactly the
c tokens before the root, the newest output token, whose position is c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ssd_bench.core.contract import Contract
from ssd_bench.core.layer_set import LayerSet
from ssd_bench.core.method import Context, Estimate, LayerDraft, Method, Prefill, Probe, Verification
from ssd_bench.core.sampling import Decoding, draw, verify_greedy, verify_sampled, warp
from ssd_bench.core.timing import Clock, Mark
from ssd_bench.core.tree import TokenTree, comb
from ssd_bench.core.window import Window
from ssd_bench.model.decoder import NOTHING, Decoder, Pass
from ssd_bench.model.kv_cache import KVCache

SCRATCH = 160  # cache rows beyond the longest sequence, so that a tree's siblings find room at its end as well


@dataclass
class Step:
    """One step of the trace; times in milliseconds, read when the prompt is finished.

    Attributes:
        index: 1-based; the prefill is step 0.
        context_len: c before the step.
        layer_set: what drafted, None when the candidates came from elsewhere.
        draft_len: k, candidates on the longest path.
        tree_nodes: nodes verified, root included.
        accepted_len: m, accepted candidates that stayed in the output; the target's own token excluded.
        emitted: tokens appended to the output.
        stop_reason: why drafting ended: confidence, length (γ), eos, budget (no room left), none (not a layer draft).
        searched: whether a search chose the layer set, as the method says in its `LayerDraft`.
        estimate: what the method believed after a search event in this step.
        window: the positions that the draft's attentions read, None for all.
    """

    index: int
    context_len: int
    layer_set: LayerSet | None
    draft_len: int
    tree_nodes: int
    accepted_len: int
    emitted: int
    stop_reason: str
    searched: bool | None
    estimate: Estimate | None
    window: Window | None = None
    marks: tuple[Mark, ...] = ()
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    policy_ms: float = 0.0


@dataclass
class Generation:
    """The output of one prompt and its trace; `finish_reason` is eos, length, context or steps."""

    output: list[int]
    finish_reason: str
    prefill_ms: float
    decode_ms: float
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class _Drafted:
    tree: TokenTree
    stop_reason: str
    layer_set: LayerSet | None = None
    # Of every node but the last, [taps + 1, 1, d]: the streams at the taps before the fork, and the one that enters it
    states: list[Tensor] | None = None
    searched: bool | None = None
    window: Window | None = None


class Engine:
    """Decodes prompts one at a time with any method, on one model and one cache.

    Args:
        decoder: the model.
        cache: `SCRATCH` rows longer than the longest prompt with its output.
        decoding: mode, warpers and limits; `max_new_tokens` must be set.
        eos_ids: ids that end an output.
        probe: what methods may ask of the same model and cache.
        context: positions that a sequence may fill; None for all that the cache holds beside its scratch rows.
    """

    def __init__(
        self, decoder: Decoder, cache: KVCache, decoding: Decoding, eos_ids: frozenset[int], probe: Probe,
        context: int | None = None,
    ):  # fmt: skip
        self.decoder, self.cache, self.decoding, self.eos_ids = decoder, cache, decoding, eos_ids
        self.context = context or cache.capacity - SCRATCH
        self.clock = Clock(decoder.device)
        self._contract = Contract(decoder.arch.n_layers, decoder.arch.vocab_size)
        self._waits = decoder.device.type != "cpu"
        self.probe = probe

    @torch.inference_mode()
    def generate(
        self, method: Method, prompt: Sequence[int], seed: int = 0, on_token: Callable[[int], None] | None = None,
        max_new: int | None = None, max_steps: int | None = None,
    ) -> Generation:  # fmt: skip
        """Decode one prompt until EOS (kept), the longest output allowed or the end of the context.

        Args:
            method: what proposes candidates.
            prompt: token ids, at least one, at most `context`.
            seed: of this prompt's generator; the output is a function of it and the prompt.
            on_token: called after every step with the number of tokens so far (progress bars).
            max_new: longest output; None for the decoding's.
            max_steps: end after so many steps; None for as many as it takes.

        Raises:
            ConfigError: the method answered what the contract does not allow.
        """
        max_new = max_new or self.decoding.max_new_tokens
        assert max_new is not None, "the caller resolves decode.max_new_tokens"
        generator = torch.Generator(self.decoder.weights.head.device).manual_seed(seed)
        begin = self.clock.mark()
        tokens = self.decoder.ids(prompt)
        taps = self._contract.taps(method)
        last, tapped = self.decoder.prefill(tokens, self.cache, taps.prefill, taps.prompt_end)
        output = [self._choose(self.decoder.logits(last), generator)]
        shown = output.copy()  # the method's: what it changes there changes nothing here
        prefilled = self.clock.mark()
        steps: list[Step] = []
        self.cache.held = True
        try:
            method.start(Prefill(prompt, tapped))
            started = self.clock.mark()
            while not (reason := "steps" if len(steps) == max_steps else self._finished(output, max_new)):
                steps.append(self._step(method, output, shown, max_new, generator, len(steps) + 1))
                if on_token is not None:
                    on_token(len(output))
        finally:
            self.cache.held = False
        end = self.clock.mark()
        self.clock.settle()
        for step in steps:
            proposed, drafted, verified, observed = (self.clock.ms(*pair) for pair in zip(step.marks, step.marks[1:]))
            step.policy_ms, step.draft_ms, step.verify_ms = proposed + observed, drafted, verified
        if steps:  # what a method does to begin a prompt is policy too
            steps[0].policy_ms += self.clock.ms(prefilled, started)
        return Generation(output, reason, self.clock.ms(begin, prefilled), self.clock.ms(prefilled, end), steps)

    def _finished(self, output: list[int], max_new: int) -> str:
        if output[-1] in self.eos_ids:
            return "eos"
        if len(output) >= max_new:
            return "length"
        return "context" if self.cache.length >= self.context else ""

    def _step(
        self, method: Method, output: list[int], shown: list[int], max_new: int, generator: torch.Generator, index: int
    ) -> Step:
        start, clock = self.cache.length, self.clock
        room = min(max_new - len(output), self.context - start) - 1
        marks = [clock.mark()]
        proposal = method.propose(Context(index, start, shown, room))
        marks.append(clock.mark())
        proposal, taps = self._contract.proposal(method, proposal, output[-1]), self._contract.taps(method).verify
        if isinstance(proposal, LayerDraft):
            reuse = method.reuse_prefix if self.decoding.reuse_prefix is None else self.decoding.reuse_prefix
            drafted = self._draft(proposal, output[-1], room, reuse, taps, generator)
        else:
            drafted = _Drafted(proposal.trimmed(room, self.cache.capacity - start), "none")
        marks.append(clock.mark())
        tree = drafted.tree
        logits, hidden = self._verify(drafted, taps)
        path, bonus = self.accept(tree, logits, generator)
        emitted = [tree.tokens[node] for node in path[1:]] + [bonus]
        first_eos = next((i for i, token in enumerate(emitted) if token in self.eos_ids), len(emitted))
        emitted = emitted[: min(first_eos + 1, max_new - len(output))]
        self.cache.commit(path)
        output.extend(emitted)
        shown.extend(emitted)
        accepted, count = min(len(path) - 1, len(emitted)), len(emitted)
        marks.append(clock.mark())
        last = bool(self._finished(output, max_new))
        seen = Verification(index, tree, path, emitted, self.cache.length, logits, hidden, last)
        estimate = self._contract.estimate(method, method.observe(seen, self.probe))
        marks.append(clock.mark())
        return Step(
            index, start, drafted.layer_set, tree.draft_len, len(tree), accepted, count,
            drafted.stop_reason, drafted.searched, estimate, drafted.window, tuple(marks),
        )  # fmt: skip

    def _draft(
        self, draft: LayerDraft, root: int, room: int, reuse: bool, taps: Sequence[int], generator: torch.Generator
    ) -> _Drafted:
        """Draft token by token; draft keys and values go to scratch rows, in kept attentions only."""
        decoder, start = self.decoder, self.cache.length
        fork = draft.layer_set.first_skipped
        # nothing to reuse when the first sublayer is skipped, nothing left to verify when none is, siblings have no
        # states, and states that a window changed are not the full model's
        window = draft.window
        reuse = reuse and 0 < fork < 2 * decoder.arch.n_layers and not draft.widths and window is None
        levels: list[list[int]] = [[root]]
        states, probs, reason = [], [], "length" if draft.max_len <= room else "budget"
        # before the fork verification runs the last node alone: what taps there want of the others is kept here
        kept, states_at = draft.layer_set.kept, (*(t for t in taps if t < fork), fork) if reuse else ()
        token = decoder.ids([root])
        for depth in range(min(draft.max_len, room)):
            unread = NOTHING if window is None else window.unread(start + depth)
            hidden, tapped = decoder.run(Pass(kept, token, start + depth, taps=states_at, unread=unread), self.cache)
            if tapped is not None:
                states.append(tapped)
            logits = decoder.logits(hidden)
            if not self.decoding.greedy:
                probs.append(warp(logits, self.decoding)[0])
            token, level, confidence = self._candidates(draft, logits[0], probs[-1] if probs else None, generator)
            levels.append(level)
            if level[0] in self.eos_ids:
                reason = "eos"
                break
            if confidence < draft.stop_below:
                reason = "confidence"
                break
        tree = comb(levels, probs or None).trimmed(room, self.cache.capacity - start)
        kept_states = states if reuse and len(levels) > 1 else None
        return _Drafted(tree, reason, draft.layer_set, kept_states, draft.searched, window)

    def _candidates(
        self, draft: LayerDraft, logits: Tensor, probs: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, list[int], float]:
        """The candidates after one drafted position; the host waits for the device once.

        Args:
            logits: [V].
            probs: [V] warped distribution to draw from; None takes the most likely tokens.

        Returns:
            The candidate to go on from, [1] on the device; all of them, that one first; its raw softmax probability
            (1 where nothing asks for it).
        """
        if draft.stop_below <= 0 and not draft.widths:
            token = logits.argmax(-1, keepdim=True) if probs is None else draw(probs, 1, generator)
            return token, token.tolist(), 1.0
        # raw softmax probability of the token just appended, which stays in the draft (card: stop after it)
        raw = logits.softmax(-1)
        # how many are kept is known with the confidence: as many are asked for as any could keep
        most = min(max((k for _, k in draft.widths), default=1), len(logits))
        if probs is None:
            confidence, ids = raw.topk(most) if most > 1 else raw.max(-1, keepdim=True)
        else:
            ids = draw(probs, 1, generator)
            confidence = raw.index_select(0, ids)
            if most > 1:
                ids = torch.cat([ids, draw(probs.index_fill(0, ids, 0), most - 1, generator)])
        level, (sure, *_) = self._fetch(ids, confidence)
        width = next((k for bound, k in draft.widths if sure > bound), 1)
        return ids if most == 1 else ids[:1], [int(token) for token in level if token >= 0][:width], sure

    def _fetch(self, *parts: Tensor) -> list[list[float]]:
        """The values of vectors, which a device hands over in one piece, so that the host waits for it once."""
        if not self._waits:
            return [part.tolist() for part in parts]
        values = torch.cat([part.double() for part in parts]).tolist()  # which holds every token id
        return [[values.pop(0) for _ in range(len(part))] for part in parts]

    def _verify(self, drafted: _Drafted, taps: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Target logits [n, V] at every node, and the tapped states."""
        decoder, tree, start = self.decoder, drafted.tree, self.cache.length
        if drafted.states is not None and drafted.layer_set is not None:
            return self._verify_rest(drafted.states, tree.tokens[-1], drafted.layer_set.first_skipped, taps)
        tokens = decoder.ids(tree.tokens)
        hidden, tapped = decoder.run(Pass(decoder.all_sublayers, tokens, start, tree, taps), self.cache)
        return decoder.logits(hidden), tapped

    def _verify_rest(
        self, states: list[Tensor], last: int, fork: int, taps: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Verification from sublayer `fork` on: before it, drafting ran the full model on all nodes but the last."""
        decoder, start, every = self.decoder, self.cache.length, self.decoder.all_sublayers
        token, before = decoder.ids([last]), len(states[0]) - 1
        early = (*taps[:before], fork)
        _, own = decoder.run(Pass(every[:fork], token, start + len(states), taps=early), self.cache)
        assert own is not None
        kept = torch.cat([*states, own], dim=1)
        hidden, tapped = decoder.run(Pass(every[fork:], kept[-1], start, taps=taps[before:]), self.cache)
        if before:
            tapped = kept[:-1] if tapped is None else torch.cat([kept[:-1], tapped])
        return decoder.logits(hidden), tapped

    def accept(self, tree: TokenTree, logits: Tensor, generator: torch.Generator) -> tuple[list[int], int]:
        """Accepted nodes of a verified tree, root first, and the target's token after them, from logits [n, V]."""
        if self.decoding.greedy:
            return verify_greedy(tree, logits.argmax(-1).tolist())
        return verify_sampled(tree, warp(logits, self.decoding), generator)

    def _choose(self, logits: Tensor, generator: torch.Generator) -> int:
        """The token after a single position, from [1, V] logits."""
        return self.accept(TokenTree((0,), (-1,)), logits, generator)[1]
