"""Scored part of an answer: the text after a model's thoughts."""

from __future__ import annotations

import re

# Model families of the supported architectures: <think> DeepSeek-R1's distillations, QwQ, Qwen3, DeepHermes, Nemotron;
# <thinking> Reflection; <Thought> Marco-o1; <|begin_of_thought|> Sky-T1, OpenThinker, Bespoke-Stratos.
_OPENING = r"<(?:think|thinking|thought)>|<\|begin_of_thought\|>"
_CLOSING = r"</(?:think|thinking|thought)>|<\|end_of_thought\|>"
# An answer may be about such tags. Models open their thoughts at the beginning of a line and never close them in
# quotes; a quoted regular expression may have both tags.
_TAG = re.compile(
    rf"""(?<!\w\w)(["'`])(?:{_OPENING})?[^\n"'`]{{0,8}}(?:{_CLOSING}|{_OPENING})[^\s"'`]{{0,4}}\1(?!\w)"""
    rf"|^[^\S\n]*(?P<opening>{_OPENING})|(?P<closing>{_CLOSING})",
    re.IGNORECASE | re.MULTILINE,
)


def without_thoughts(text: str) -> str:
    """Return the last text outside of thoughts, after the first ones.

    A text without tags is returned as it is. Thoughts may lack their opening tag, which many chat templates put into
    the prompt. Unfinished thoughts leave no answer.
    """
    parts: list[str] = []
    begin, thinking, ended = 0, False, False
    for tag in _TAG.finditer(text):
        if tag["opening"] and not thinking:
            parts.append(text[begin : tag.start()])
            thinking = True
        elif tag["closing"]:
            if not ended:
                parts = []  # what a model says before its first thoughts is no answer either
            elif not thinking:
                parts.append(text[begin : tag.start()])  # a closing tag that the model repeats
            begin, thinking, ended = tag.end(), False, True
    if thinking and not ended:
        return ""
    if not thinking:
        parts.append(text[begin:])
    return next((part for part in reversed(parts) if part.strip()), "")
