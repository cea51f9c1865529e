"""Answers that are Python functions: from an answer to the program that tests it, which runs in the sandbox."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from tasks.scoring.sandbox import Limits, runs_to_the_end
from tasks.scoring.scorer import Scorer

_BLOCK = re.compile(r"^```[^\n]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)
# A line that begins at the margin ends a function, unless it closes a bracket that the function opened.
_TOP_LEVEL = re.compile(r"^[^\s)\]}]", re.MULTILINE)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
# The first line of an answer, where one space is missing of its indentation by fours.
_SHORT = re.compile(r"\A(\n*)((?: {4})* {3})(?=\S)")


class Runs(Scorer):
    """1.0 where the program of an answer and its tests runs to its end, else 0.0.

    Args:
        limits: of the process that runs it.
        required: whether nothing runs on a kernel that cannot lock the process up.
    """

    metric = "pass@1"

    def __init__(self, limits: Limits, required: bool = True) -> None:
        self.limits, self.required = limits, required

    def item(self, prediction: str, reference: str) -> float | None:
        """Whether it does."""
        return float(runs_to_the_end(self._program(prediction, json.loads(reference)), self.limits, self.required))

    @abstractmethod
    def _program(self, answer: str, reference: Mapping[str, Any]) -> str:
        """The program of an answer and its tests."""


class PassesTests(Runs):
    """The function that an answer completes; a reference is HumanEval's `prompt`, `test` and `entry_point`."""

    def _program(self, answer: str, reference: Mapping[str, Any]) -> str:
        return program(reference["prompt"], answer, reference["entry_point"], reference["test"])


class PassesAsserts(Runs):
    """The program that an answer is, and MBPP's tests; a reference is their `imports` and the `tests`, statements."""

    def _program(self, answer: str, reference: Mapping[str, Any]) -> str:
        blocks = _BLOCK.findall(answer)
        own = next((block for block in blocks if "def " in block), None) or answer.partition("[DONE]")[0]
        return "\n".join([*reference["imports"], own, *reference["tests"]]) + "\n"


def program(prompt: str, answer: str, entry_point: str, test: str) -> str:
    """The function that `answer` completes, its tests, and the call that runs them.

    Base models answer with what follows the prompt. Chat models also write the whole function into a fenced block; it
    then stands after the prompt, whose imports and helpers it may use, and takes the place of the prompt's function.
    Indentation by tabs becomes indentation by four spaces, in the prompt as in the answer.
    """
    prompt = _spaces(prompt)
    return f"{prompt}{_completed(prompt, _spaces(answer), entry_point)}\n\n{test}\n\ncheck({entry_point})\n"


def until_top_level(text: str) -> str:
    """The text up to the first line that begins a new statement at the margin (def, class, if, print, #, ...)."""
    found = _TOP_LEVEL.search(text)
    return text[: found.start()] if found else text


def _completed(prompt: str, answer: str, entry_point: str) -> str:
    """What follows the prompt in the program."""
    if not _is_indented(answer):
        for block in _BLOCK.findall(answer):
            if re.search(rf"^def {entry_point}\(", block, re.MULTILINE):
                return f"\n\n{block}"
            if _is_indented(block):
                return until_top_level(block)
    if not prompt.endswith("\n"):  # the answer's first line goes on with the prompt's last one
        line, end, rest = answer.partition("\n")
        return line + end + until_top_level(rest)
    # Decoding with a SentencePiece tokenizer drops the first space of a text.
    return until_top_level(_SHORT.sub(r"\1\2 ", answer))


def _is_indented(text: str) -> bool:
    return text.lstrip("\n").startswith(" ")


def _spaces(code: str) -> str:
    """The code with every tab of an indentation as four spaces."""
    return _INDENT.sub(lambda found: found[0].replace("\t", "    "), code)
