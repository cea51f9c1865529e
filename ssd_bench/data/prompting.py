"""Tokenisation of a `Prompt`: the chat or plain template, and truncation of the body."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from ssd_bench.contract.task import Prompt
from ssd_bench.errors import ConfigError
from ssd_bench.model.template import Template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SLACK = 64
"""Tokens by which an answer in a conversation may grow when it is tokenised again as text."""

THOUGHTS = "<think>"
"""Tag at the end of chat templates that make the model think first."""


@dataclass(frozen=True)
class Encoded:
    """A prompt as the model reads it.

    Attributes:
        ids: token ids, with special tokens and template; never empty.
        clipped: number of truncated tokens.
    """

    ids: tuple[int, ...]
    clipped: int

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(",".join(map(str, self.ids)).encode()).hexdigest()


def encode(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, template: Template, max_tokens: int | None) -> Encoded:
    """Return the ids of `head + body + tail`; truncate the body's end beyond `max_tokens` (None: no limit).

    The cut falls between two tokens of the body and keeps as many as fit. Head and tail are never cut (KNN-SSD and
    ConfLayers code cut just before the end marker).

    Raises:
        ConfigError: a prompt that is empty or cannot fit.
    """
    conversation = template.with_system(prompt.system)

    def ids_of(body: str) -> list[int]:
        return conversation.ids(tokenizer, [prompt.head + body + prompt.tail])

    ids = ids_of(prompt.body)
    if not ids:
        raise ConfigError("prompt", prompt.id, "a prompt of at least one token")
    if max_tokens is None or len(ids) <= max_tokens:
        return Encoded(tuple(ids), clipped=0)
    kept = _clip(prompt, tokenizer, ids_of, len(ids), max_tokens)
    return Encoded(tuple(kept), clipped=len(ids) - len(kept))


def encode_turn(
    prompt: Prompt, answers: Sequence[str], tokenizer: PreTrainedTokenizerBase, template: Template
) -> Encoded:
    """Return the ids of a conversation up to its next answer, with the answers to all earlier turns."""
    conversation = template.with_system(prompt.system)
    return Encoded(tuple(conversation.ids(tokenizer, prompt.user_texts[: len(answers) + 1], answers)), clipped=0)


def scored_text(prompt: Prompt, turn: int, text: str, tokenizer: PreTrainedTokenizerBase, template: Template) -> str:
    """Return an answer as tasks score it: after the `<think>` at its prompt's end.

    The chat templates of DeepSeek-R1, QwQ and Qwen3-Thinking open the thoughts in the prompt; without that tag, an
    answer that ends before `</think>` would be scored on its thoughts.
    """
    rendered = template.with_system(prompt.system).text(tokenizer, prompt.user_texts[: turn + 1], ["."] * turn)
    return f"{THOUGHTS}\n{text}" if rendered.rstrip().endswith(THOUGHTS) else text


def conversation_length(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, template: Template, new_tokens: int) -> int:
    """Return the most positions of a conversation with answers of `new_tokens`."""
    encoded = encode_turn(prompt, ["."] * len(prompt.turns), tokenizer, template)
    return len(encoded.ids) + len(prompt.user_texts) * (new_tokens + SLACK)


def _clip(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase, ids_of: Callable[[str], list[int]], total: int, limit: int
) -> list[int]:
    """Return the ids with the longest beginning of the body, in whole tokens, within `limit`.

    Tokens may merge at the cut and at the template's edges, so guess from the sum of the parts' lengths, then search
    outwards.
    """
    ends = _token_ends(prompt.body, tokenizer)
    cuts = sorted(set(ends) | {len(prompt.body)})

    @cache
    def ids_with(cut: int) -> list[int]:
        return ids_of(prompt.body[: cuts[cut]])

    def fits(cut: int) -> bool:
        return len(ids_with(cut)) <= limit

    body_limit = limit - (total - len(ends))
    guess = bisect_left(cuts, ends[body_limit - 1]) if 0 < body_limit <= len(ends) else 0
    # Invariant of the search below: `low` fits, `high` does not. The last cut is the whole body, which does not fit.
    low, high, step = guess, min(guess + 1, len(cuts) - 1), 1
    while low >= 0 and not fits(low):
        low, high, step = (max(low - step, 0) if low else -1), low, 2 * step
    if low < 0:
        why = "this prompt is never truncated" if not prompt.body else "its head and tail alone are longer"
        remedy = "lower decode.max_new_tokens or the task's number of shots, or use a model with a longer context"
        raise ConfigError("prompt", prompt.id, f"at most {limit} tokens; it has {total} and {why}: {remedy}")
    while fits(high):
        low, high, step = high, min(high + step, len(cuts) - 1), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return ids_with(low)


def _token_ends(body: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the end of each token in `body`, in characters; tokens may share an end."""
    if not body:
        return []
    if not tokenizer.is_fast:
        raise ConfigError("model", type(tokenizer).__name__, "a fast tokenizer, which truncating a prompt needs")
    encoding = tokenizer(body, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [end for start, end in encoding["offset_mapping"] if end > start]
