"""The decode loop: propose, draft, verify, accept, commit, observe (`Engine._step`).

The engine knows no method by name. Invariant at the start of a step: the cache holds full-model keys and values of
exactly the c tokens before the root, the newest output token, which is at position c and has not run yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ssd_bench.contract.generation import Generation, Step
from ssd_bench.contract.method import Context, LayerDraft, Method, Prefill, Probe, Verification
from ssd_bench.contract.tree import TokenTree
from ssd_bench.engine.answers import Contract
from ssd_bench.engine.draft import Drafter, DraftResult
from ssd_bench.engine.meter import Meter
from ssd_bench.engine.sampling import Decoding, verify_greedy, verify_sampled, warp
from ssd_bench.model.decoder import Decoder, Pass
from ssd_bench.model.kv_cache import KVCache

SCRATCH = 160  # cache rows beyond the longest sequence: a tree needs one row per node, even where the sequence ends


class Engine:
    """The decode loop on one model and one cache: one prompt at a time, with any method.

    Args:
        cache: `SCRATCH` rows longer than the longest prompt with its output.
        decoding: with `max_new_tokens` set.
        probe: access of methods to the same model and cache.
        context: positions that a sequence may fill; None: the cache's capacity without scratch rows.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        decoding: Decoding,
        eos_ids: frozenset[int],
        probe: Probe,
        context: int | None = None,
    ):
        self.decoder, self.cache, self.decoding, self.eos_ids = decoder, cache, decoding, eos_ids
        self.context = context or cache.capacity - SCRATCH
        self._meter = Meter(decoder)
        self._contract = Contract(decoder.arch.n_layers, decoder.arch.vocab_size, decoder.bits)
        self._drafter = Drafter(decoder, cache, decoding, eos_ids)
        self.probe = probe

    @torch.inference_mode()
    def generate(
        self,
        method: Method,
        prompt: Sequence[int],
        seed: int = 0,
        on_token: Callable[[int], None] | None = None,
        max_new: int | None = None,
        max_steps: int | None = None,
    ) -> Generation:
        """Decode one prompt until EOS (kept), the longest output allowed or the end of the context.

        Args:
            prompt: token ids, from one to `context`.
            seed: of this prompt's random generator; model, method, prompt and seed determine the output.
            on_token: called after every step with the number of tokens so far (progress bars).
            max_new: longest output; None: `decoding.max_new_tokens`.

        Raises:
            ConfigError: the method violates the contract.
        """
        max_new = max_new or self.decoding.max_new_tokens
        assert max_new is not None, "the caller resolves decode.max_new_tokens"
        generator = torch.Generator(self.decoder.weights.head.device).manual_seed(seed)
        meter, steps = self._meter, list[Step]()
        with meter.counting():
            prefill_start = meter.moment()
            tokens = self.decoder.ids(prompt)
            taps = self._contract.check_taps(method)
            last_stream, tapped = self.decoder.prefill(tokens, self.cache, taps.prefill, taps.prompt_end)
            # the prefill yields the first output token, which is the root of step 1
            output = [self._first_token(self.decoder.logits(last_stream), generator)]
            output_copy = output.copy()  # the method sees this list: changing it does not change the output
            prefill_end = meter.moment()
            self.cache.held = True  # until the output ends, `reset` is refused: a method cannot drop the prompt's rows
            try:
                method.start(Prefill(prompt, tapped))
                start_end = meter.moment()
                while not (reason := "steps" if len(steps) == max_steps else self._finish_reason(output, max_new)):
                    steps.append(self._step(method, output, output_copy, max_new, generator, len(steps) + 1))
                    if on_token is not None:
                        on_token(len(output))
            finally:
                self.cache.held = False
            decode_end = meter.moment()
        meter.settle()  # one wait for the device after the last step, none within the loop
        prefill, start = (prefill_start, prefill_end), (prefill_end, start_end)
        for step in steps:
            propose, draft, verify, observe = zip(step.marks, step.marks[1:])
            # a method's `start` counts as its overhead, too
            overhead = [propose, observe] if step.index > 1 else [start, propose, observe]
            step.policy_ms = sum(meter.ms(*span) for span in overhead)
            step.draft_ms, step.verify_ms = meter.ms(*draft), meter.ms(*verify)
            step.work = [*meter.work("draft", draft), *meter.work("verify", verify), *meter.work("overhead", *overhead)]
        prefill_ms, decode_ms = meter.ms(*prefill), meter.ms(prefill_end, decode_end)
        return Generation(output, reason, prefill_ms, decode_ms, steps, meter.work("prefill", prefill))

    def _finish_reason(self, output: list[int], max_new: int) -> str:
        if output[-1] in self.eos_ids:
            return "eos"
        if len(output) >= max_new:
            return "length"
        return "context" if self.cache.length >= self.context else ""

    def _step(
        self,
        method: Method,
        output: list[int],
        output_copy: list[int],
        max_new: int,
        generator: torch.Generator,
        index: int,
    ) -> Step:
        """Run one draft-verify step; append at least one token to the output."""
        start, moment = self.cache.length, self._meter.moment
        # - 1: a step with k candidates in a row emits up to k + 1 tokens (bonus) and fills k + 1 positions (root)
        max_draft = min(max_new - len(output), self.context - start) - 1
        # 1) propose: the method answers with a layer set to draft with, or with a tree of candidates
        marks = [moment()]
        proposal = method.propose(Context(index, start, output_copy, max_draft))
        marks.append(moment())
        proposal = self._contract.check_proposal(method, proposal, output[-1])
        taps = self._contract.check_taps(method).verify
        # 2) draft: token by token with the layer set; a proposed tree needs no draft, only a cut to the limits
        if isinstance(proposal, LayerDraft):
            reuse = method.reuse_prefix if self.decoding.reuse_prefix is None else self.decoding.reuse_prefix
            draft = self._drafter.draft(proposal, output[-1], max_draft, reuse, taps, generator)
        else:
            draft = DraftResult(proposal.trimmed(max_draft, self.cache.capacity - start), "none")
        marks.append(moment())
        # 3) verify: one pass of the full model over all nodes, the root included
        tree = draft.tree
        logits, hidden = self._verify(draft, taps)
        # 4) accept: a path from the root, then one token that the target chooses itself (bonus)
        path, bonus = self.accept(tree, logits, generator)
        emitted = [tree.tokens[node] for node in path[1:]] + [bonus]
        # candidates after EOS or beyond the longest output are removed, also if accepted
        first_eos = next((i for i, token in enumerate(emitted) if token in self.eos_ids), len(emitted))
        emitted = emitted[: min(first_eos + 1, max_new - len(output))]
        # 5) commit: keep the rows of the accepted path, also of removed tokens: the output then ends, and no step
        # reads them. The bonus token has no row yet, it is the next root
        self.cache.commit(path)
        output.extend(emitted)
        output_copy.extend(emitted)
        accepted, count = min(len(path) - 1, len(emitted)), len(emitted)
        marks.append(moment())
        # 6) observe: the method learns from the outcome
        last = bool(self._finish_reason(output, max_new))
        verification = Verification(index, tree, path, emitted, self.cache.length, logits, hidden, last)
        estimate = self._contract.check_estimate(method, method.observe(verification, self.probe))
        marks.append(moment())
        return Step(
            index=index,
            context_len=start,
            layer_set=draft.layer_set,
            draft_len=tree.draft_len,
            tree_nodes=len(tree),
            accepted_len=accepted,
            emitted=count,
            stop_reason=draft.stop_reason,
            searched=draft.searched,
            estimate=estimate,
            marks=tuple(marks),
        )

    def _verify(self, draft: DraftResult, taps: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """Return target logits [n, V] at every node, and the tapped states."""
        decoder, tree, start = self.decoder, draft.tree, self.cache.length
        if draft.states is not None and draft.layer_set is not None:
            return self._verify_from_fork(draft.states, tree.tokens[-1], draft.layer_set.first_changed, taps)
        # node i writes to scratch row start + i and overwrites the draft's keys and values there
        tokens = decoder.ids(tree.tokens)
        hidden, tapped = decoder.run(Pass(decoder.all_sublayers, tokens, start, tree, taps), self.cache)
        return decoder.logits(hidden), tapped

    def _verify_from_fork(
        self, states: list[Tensor], last_token: int, fork: int, taps: Sequence[int]
    ) -> tuple[Tensor, Tensor | None]:
        """Verify a chain from sublayer `fork` on; drafting ran the earlier ones, except for the last node.

        Keys and values before the fork are the full model's and still in the scratch rows; `states` are as in
        `DraftResult`.
        """
        decoder, start, sublayers = self.decoder, self.cache.length, self.decoder.all_sublayers
        token, n_early = decoder.ids([last_token]), len(states[0]) - 1  # n_early: number of taps before the fork
        early_taps = (*taps[:n_early], fork)
        # 1) the last node catches up: sublayers before the fork, in the scratch row after the other nodes'
        _, last_states = decoder.run(Pass(sublayers[:fork], token, start + len(states), taps=early_taps), self.cache)
        assert last_states is not None
        early = torch.cat([*states, last_states], dim=1)  # [n_early + 1, n, d]; the last entry enters the fork
        # 2) all nodes together: sublayers from the fork on
        hidden, tapped = decoder.run(Pass(sublayers[fork:], early[-1], start, taps=taps[n_early:]), self.cache)
        if n_early:
            tapped = early[:-1] if tapped is None else torch.cat([early[:-1], tapped])
        return decoder.logits(hidden), tapped

    def accept(self, tree: TokenTree, logits: Tensor, generator: torch.Generator) -> tuple[list[int], int]:
        """Return a verified tree's accepted nodes, root first, and the target's next token, from logits [n, V]."""
        if self.decoding.greedy:
            return verify_greedy(tree, logits.argmax(-1).tolist())
        return verify_sampled(tree, warp(logits, self.decoding), generator)

    def _first_token(self, logits: Tensor, generator: torch.Generator) -> int:
        # a tree without candidates: its "bonus" token; the ids of the tree itself play no role
        return self.accept(TokenTree((0,), (-1,)), logits, generator)[1]
