"""Prompts of a run: their token ids, the positions that they need, and calibration prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ssd_bench.contract.optional import Calibrated
from ssd_bench.contract.task import Prompt
from ssd_bench.data.prompting import Encoded, conversation_length, encode
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import Checkpoint, ModelSource


def encode_all(
    prompts: Sequence[Prompt], new_tokens: Sequence[int], model: ModelSource, checkpoint: Checkpoint, context: int
) -> list[Encoded]:
    """Return the token ids of all prompts, truncated if their task's paper truncates.

    A truncated prompt leaves room for its whole answer. Others only have to fit the context, at whose end their answers
    end with `finish_reason=context`.

    Args:
        new_tokens: most new tokens of each prompt.

    Raises:
        ConfigError: a prompt, or a conversation with its answers, that cannot fit, or a token that the model lacks.
    """
    encoded = []
    if any(prompt.turns for prompt in prompts):
        model.prompting.check_conversation(checkpoint.tokenizer)
    for prompt, limit in zip(prompts, new_tokens, strict=True):
        fitting, reserve = prompt.max_tokens, prompt.clip_reserve
        if fitting is not None:
            if context - limit - reserve < 1:
                expected = f"at most {context - reserve - 1}, so that a truncated prompt of {prompt.domain} fits: "
                expected += f"context {context}" + (f" less a reserve of {reserve}" if reserve else "")
                raise ConfigError("decode.max_new_tokens", limit, expected)
            fitting = min(fitting, context - limit - reserve)
        encoded.append(encode(prompt, checkpoint.tokenizer, model.prompting, fitting))
        length, top = len(encoded[-1].ids), max(encoded[-1].ids)
        if top >= checkpoint.config.vocab_size:
            expected = f"tokens below vocab_size {checkpoint.config.vocab_size} of config.json; it has "
            expected += f"{checkpoint.tokenizer.convert_ids_to_tokens(top)!r}, {top}"
            raise ConfigError("prompt", prompt.id, expected)
        turns = len(prompt.user_texts)
        needed = conversation_length(prompt, checkpoint.tokenizer, model.prompting, limit) if prompt.turns else 0
        if needed > context:
            fewer = limit - -(-(needed - context) // turns)  # every answer is shortened by the same number of tokens
            if fewer < 1:
                expected = f"a conversation whose {turns} turns and their answers fit: context {context}"
                raise ConfigError("prompt", prompt.id, expected)
            expected = f"at most {fewer}, so that the {turns} turns of {prompt.id} fit: context {context}"
            raise ConfigError("decode.max_new_tokens", limit, expected)
        if length >= context:  # an untruncated prompt needs one free position
            expected = f"at most {context - 1} tokens (context {context}); it has {length}, and {prompt.domain} does "
            raise ConfigError("prompt", prompt.id, expected + "not truncate prompts")
    return encoded


def positions_needed(
    prompt: Prompt, encoded: Encoded, new_tokens: int, model: ModelSource, checkpoint: Checkpoint
) -> int:
    """Return the most positions of a prompt with its answers.

    Answers of a conversation may become longer when tokenised again: a quarter more is allowed, and a turn that still
    does not fit is left out.
    """
    if prompt.turns:
        needed = conversation_length(prompt, checkpoint.tokenizer, model.prompting, new_tokens)
        return needed + len(prompt.user_texts) * new_tokens // 4
    return len(encoded.ids) + new_tokens


def calibration_prompts(
    evaluated: Sequence[Prompt], pool: Iterable[Prompt], method: Calibrated, separate: bool = False
) -> list[Prompt]:
    """Return a method's calibration prompts: each evaluated domain's next items, or all domains' of another task
    (`separate`). The pool is read until there are enough.

    Raises:
        ConfigError: too few prompts are left.
    """
    ids = {prompt.id for prompt in evaluated}
    pool = list(pool) if separate else pool
    chosen: dict[str, list[Prompt]] = {prompt.domain: [] for prompt in (pool if separate else evaluated)}
    lacking = set(chosen) if method.calibration else set()
    for prompt in pool if lacking else ():
        if prompt.domain in lacking and prompt.id not in ids:
            chosen[prompt.domain].append(prompt)
            if len(chosen[prompt.domain]) == method.calibration:
                lacking.remove(prompt.domain)
                if not lacking:
                    break
    for domain in (domain for domain in chosen if domain in lacking):
        expected = f"fewer: the method calibrates on {method.calibration} prompts of {domain} that are not evaluated"
        raise ConfigError("limit", f"{len(evaluated)} prompts, {len(chosen[domain])} of {domain} left", expected)
    return [prompt for prompts in chosen.values() for prompt in prompts]
