"""The prompts of a run: how many tokens each may be answered with, their ids, and those that a method calibrates on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ssd_bench.core.method import Calibrated
from ssd_bench.data.prompting import Encoded, encode, room
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import Checkpoint, ModelSource
from ssd_bench.task import Prompt


def limits(prompts: Sequence[Prompt], asked: int | None, default: int) -> list[int]:
    """Most new tokens of each prompt: those asked for (`decode.max_new_tokens`), else its own, else its task's."""
    return [asked or prompt.max_new_tokens or default for prompt in prompts]


def encode_all(
    prompts: Sequence[Prompt], new_tokens: Sequence[int], model: ModelSource, checkpoint: Checkpoint, context: int
) -> list[Encoded]:
    """Token ids of all prompts, clipped where the paper of their task clips.

    A clipped prompt leaves room for its whole answer. One that is not clipped only has to fit the context itself: its
    answer ends at the context's end, if it gets there, with `finish_reason=context`.

    Args:
        new_tokens: most new tokens of each prompt.
        context: positions that the model has.

    Raises:
        ConfigError: a prompt, or a conversation with its answers, cannot be made to fit, or has a token that the model
            lacks.
    """
    encoded = []
    if any(prompt.turns for prompt in prompts):
        model.prompting.check_conversation(checkpoint.tokenizer)
    for prompt, asked in zip(prompts, new_tokens, strict=True):
        fitting, reserve = prompt.max_tokens, prompt.clip_reserve
        if fitting is not None:
            if context - asked - reserve < 1:
                allowed = f"at most {context - reserve - 1}, so that a clipped prompt of {prompt.domain} fits: "
                allowed += f"context {context}" + (f" less a reserve of {reserve}" if reserve else "")
                raise ConfigError("decode.max_new_tokens", asked, allowed)
            fitting = min(fitting, context - asked - reserve)
        encoded.append(encode(prompt, checkpoint.tokenizer, model.prompting, fitting))
        length, top = len(encoded[-1].ids), max(encoded[-1].ids)
        if top >= checkpoint.config.vocab_size:
            allowed = f"tokens below vocab_size {checkpoint.config.vocab_size} of config.json; it has "
            allowed += f"{checkpoint.tokenizer.convert_ids_to_tokens(top)!r}, {top}"
            raise ConfigError("prompt", prompt.id, allowed)
        if prompt.turns and (most := room(prompt, checkpoint.tokenizer, model.prompting, asked)) > context:
            fewer = asked - -(-(most - context) // len(prompt.said))
            if fewer < 1:
                allowed = f"a conversation whose {len(prompt.said)} turns and their answers fit: context {context}"
                raise ConfigError("prompt", prompt.id, allowed)
            allowed = f"at most {fewer}, so that the {len(prompt.said)} turns of {prompt.id} fit: context {context}"
            raise ConfigError("decode.max_new_tokens", asked, allowed)
        if length >= context:
            allowed = f"at most {context - 1} tokens (context {context}); it has {length}, and {prompt.domain} does "
            raise ConfigError("prompt", prompt.id, allowed + "not clip")
    return encoded


def reach(prompt: Prompt, encoded: Encoded, new_tokens: int, model: ModelSource, checkpoint: Checkpoint) -> int:
    """Most positions that a prompt takes with its answers.

    Those of a conversation may be a quarter longer still when they are read again; a turn that then does not fit is not
    asked.
    """
    if prompt.turns:
        most = room(prompt, checkpoint.tokenizer, model.prompting, new_tokens)
        return most + len(prompt.said) * new_tokens // 4
    return len(encoded.ids) + new_tokens


def apart(
    evaluated: Sequence[Prompt], pool: Iterable[Prompt], method: Calibrated, others: bool = False
) -> list[Prompt]:
    """Return the prompts that a method calibrates on: of each evaluated domain the next ones that are not evaluated.

    The pool is read until there are enough of them.

    Args:
        others: of each domain of the pool instead, which is another task's.

    Raises:
        ConfigError: too few are left.
    """
    ids = {prompt.id for prompt in evaluated}
    pool = list(pool) if others else pool
    chosen: dict[str, list[Prompt]] = {prompt.domain: [] for prompt in (pool if others else evaluated)}
    lacking = set(chosen) if method.calibration else set()
    for prompt in pool if lacking else ():
        if prompt.domain in lacking and prompt.id not in ids:
            chosen[prompt.domain].append(prompt)
            if len(chosen[prompt.domain]) == method.calibration:
                lacking.remove(prompt.domain)
                if not lacking:
                    break
    for domain in (domain for domain in chosen if domain in lacking):
        most = f"fewer: the method calibrates on {method.calibration} prompts of {domain} that are not evaluated"
        raise ConfigError("limit", f"{len(evaluated)} prompts, {len(chosen[domain])} of {domain} left", most)
    return [prompt for prompts in chosen.values() for prompt in prompts]
