"""Arms of a run: the method, AR, and Hugging Face `generate` decode every prompt from the same input."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

from methods.ar import AR
from ssd_bench.contract.generation import Generation, Step
from ssd_bench.contract.method import Method
from ssd_bench.data.prompting import Encoded, encode_turn, scored_text
from ssd_bench.engine import lossless
from ssd_bench.engine.engine import Engine
from ssd_bench.engine.sampling import Decoding
from ssd_bench.records.schema import PromptRecord, PromptRow, StepRow, WorkRow
from ssd_bench.run.hugging_face import HFProcess
from ssd_bench.run.plan import Plan

WARMUP_TOKENS = 16


@dataclass(frozen=True)
class TurnInput:
    """Input of every arm: a prompt, or one turn of a conversation after the earlier turns and answers."""

    index: int
    repeat: int
    turn: int
    encoded: Encoded


@dataclass(frozen=True)
class Arms:
    """Arms of a run, loaded."""

    plan: Plan
    engine: Engine
    hf_arm: HFProcess | None

    def warm_up(self) -> None:
        """Generate a few tokens per arm, with every shape in use; only a copy of the method learns."""
        plan, engine, longest = self.plan, self.engine, self.plan.decoding.max_new_tokens
        assert longest is not None, "the plan resolves decode.max_new_tokens"
        short_decoding = Decoding(**plan.config["decode"] | {"max_new_tokens": min(WARMUP_TOKENS, longest)})
        warm_up_engine = Engine(engine.decoder, engine.cache, short_decoding, engine.eos_ids, engine.probe)
        prompt = plan.prompts.shortest.ids
        method = deepcopy(plan.method, {id(engine.probe): engine.probe})  # not copied: the probe is the model
        for _ in range(plan.machine.hardware.warmup):
            for arm in [method, *([AR()] if "ar" in plan.arms else [])]:
                warm_up_engine.generate(arm, prompt)
            if self.hf_arm is not None:
                self.hf_arm.generate(prompt, max_new=short_decoding.max_new_tokens)

    def decode(self, index: int, repeat: int, on_token: Callable[[int], None]) -> list[PromptRecord]:
        """Decode one prompt with every arm; of a conversation, every turn that fits into the context.

        Later turns follow AR's answers in every arm, so that all arms read the same text.
        """
        plan, checkpoint = self.plan, self.plan.model.checkpoint
        prompt, encoded = plan.prompts.items[index], plan.prompts.encoded[index]
        records: list[PromptRecord] = []
        answers: list[str] = []
        for turn in range(len(prompt.user_texts)):
            if turn:
                encoded = encode_turn(prompt, answers, checkpoint.tokenizer, checkpoint.template)
                if len(encoded.ids) >= plan.prompts.context:
                    break
            records += self._decode_turn(TurnInput(index, repeat, turn, encoded), on_token)
            answers.append({record.prompt.arm: record.prompt.text for record in records}[plan.answering_arm])
        return records

    def _decode_turn(self, inputs: TurnInput, on_token: Callable[[int], None]) -> list[PromptRecord]:
        """Decode one input with every arm, in random order, so that drift of the machine favours no arm.

        In greedy runs with AR, the method's record has the verdict on losslessness.
        """
        plan, run_seed = self.plan, self.plan.config["seed"]
        names, turn_suffix = sorted(plan.arms), f":{inputs.turn}" if inputs.turn else ""
        random.Random(f"{run_seed}:{inputs.repeat}:{inputs.index}{turn_suffix}").shuffle(names)
        seed = _prompt_seed(run_seed, plan.prompts.items[inputs.index].id + turn_suffix, inputs.repeat)
        generations = {name: self._generate(name, inputs, seed, on_token) for name in names}
        verdict = self._verdict(inputs, generations) if "ar" in generations and plan.decoding.greedy else None
        return [
            self._record(inputs, name, order, generations[name], verdict if name == "method" else None)
            for order, name in enumerate(names)
        ]

    def _generate(self, arm: str, inputs: TurnInput, seed: int, on_token: Callable[[int], None]) -> Generation:
        ids, max_new = inputs.encoded.ids, self.plan.prompts.new_tokens[inputs.index]
        if arm == "hf":
            assert self.hf_arm is not None, "a run with this arm has loaded it"
            return self.hf_arm.generate(ids, seed, max_new)
        method: Method = self.plan.method if arm == "method" else AR()
        return self.engine.generate(method, ids, seed, on_token, max_new)

    def _verdict(self, inputs: TurnInput, generations: Mapping[str, Generation]) -> lossless.Verdict:
        reference = generations["ar"].output

        def gap_at(position: int) -> float:
            # top-2 logit gap of the full model at an output position: within the tolerance, a difference is a near-tie
            return self.engine.probe.top2_gap([*inputs.encoded.ids, *reference[:position]])

        return lossless.classify(generations["method"].output, reference, gap_at, self.plan.machine.tie_tolerance)

    def _record(
        self, inputs: TurnInput, arm: str, order: int, generation: Generation, verdict: lossless.Verdict | None
    ) -> PromptRecord:
        plan, encoded = self.plan, inputs.encoded
        prompt = plan.prompts.items[inputs.index].at(inputs.turn)
        keys: dict[str, Any] = {"prompt_index": inputs.index, "repeat": inputs.repeat, "turn": inputs.turn, "arm": arm}
        text = plan.model.checkpoint.text(generation.output)
        hf_arm = self.hf_arm if arm == "hf" else None  # it runs in a process of its own
        row = PromptRow(
            **keys,
            prompt_id=prompt.id,
            domain=prompt.domain,
            order=order,
            prompt_sha256=encoded.sha256,
            prompt_len=len(encoded.ids),
            clipped_tokens=encoded.clipped,
            new_tokens=len(generation.output),
            prefill_ms=generation.prefill_ms,
            decode_ms=generation.decode_ms,
            draft_ms=sum(s.draft_ms for s in generation.steps),
            verify_ms=sum(s.verify_ms for s in generation.steps),
            policy_ms=sum(s.policy_ms for s in generation.steps),
            peak_bytes=plan.machine.hardware.peak_bytes() if hf_arm is None else hf_arm.peak_bytes,
            finish_reason=generation.finish_reason,
            output_ids=generation.output,
            text=text,
            score=None if arm == "hf" else plan.task.score(prompt, task_text(plan, inputs.index, inputs.turn, text)),
            divergence_index=verdict.index if verdict else None,
            divergence_gap=verdict.gap if verdict else None,
            lossless=verdict.verdict if verdict else None,
        )
        spent = [(0, generation.prefill_work), *((step.index, step.work) for step in generation.steps)]
        work = [WorkRow(**keys, step=step, **asdict(part)) for step, parts in spent for part in parts]
        return PromptRecord(row, [_step_row(keys, step) for step in generation.steps], work)


def load_hf_arm(plan: Plan) -> AbstractContextManager[HFProcess | None]:
    """Return the Hugging Face arm, in its own process; None for a run without it."""
    if "hf" not in plan.arms:
        return nullcontext()
    checkpoint = plan.model.checkpoint
    return HFProcess(checkpoint.folder, plan.machine.hardware, plan.decoding, checkpoint.eos_ids, plan.prompts.context)


def task_text(plan: Plan, index: int, turn: int, text: str) -> str:
    """Return the part of an answer that the task scores."""
    checkpoint = plan.model.checkpoint
    return scored_text(plan.prompts.items[index], turn, text, checkpoint.tokenizer, checkpoint.template)


def _step_row(keys: Mapping[str, Any], step: Step) -> StepRow:
    estimate = step.estimate
    return StepRow(
        **keys,
        step=step.index,
        context_len=step.context_len,
        layer_set=step.layer_set,
        draft_len=step.draft_len,
        tree_nodes=step.tree_nodes,
        accepted_len=step.accepted_len,
        emitted=step.emitted,
        stop_reason=step.stop_reason,
        searched=step.searched,
        draft_ms=step.draft_ms,
        verify_ms=step.verify_ms,
        policy_ms=step.policy_ms,
        est_alpha=estimate.alpha if estimate else None,
        est_draft_len=estimate.draft_len if estimate else None,
        est_tokens_per_s=estimate.tokens_per_s if estimate else None,
    )


def _prompt_seed(seed: int, prompt_id: str, repeat: int) -> int:
    """Return a sampling seed of 63 bits, the same for every arm."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{prompt_id}:{repeat}".encode()).digest()[:8], "big") >> 1
