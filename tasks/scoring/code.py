"""Answers that are Python functions: from an answer to the program that tests it, which runs in the sandbox."""

from __future__ import annotations

import builtins
import json
import re
import textwrap
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from tasks.scoring.python_code import defining_code, future_first, parsed, python_blocks, used_names
from tasks.scoring.sandbox import Limits, runs_to_the_end
from tasks.scoring.scorer import Scorer

# A line that begins at the margin ends a function, unless it closes a bracket that the function opened.
_TOP_LEVEL = re.compile(r"^[^\s)\]}]", re.MULTILINE)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
# The first line of an answer, where one space is missing of its indentation by fours.
_SHORT = re.compile(r"\A(\n*)((?: {4})* {3})(?=\S)")
MOST_BLANKS = 2
"""Most blanks ahead of a chat model's first word (Llama 2's answers begin with two)."""
_FENCE = re.compile(r"`{3}|~{3}")
_FENCE_AHEAD = re.compile(r"(?:(?:[-*+]|\d+[.)])[ ]+)*(?:`{3}|~{3})")
_BEGIN, _DONE = (re.compile(rf"^\[{mark}\][ \t]*$", re.MULTILINE) for mark in ("BEGIN", "DONE"))
_FIRST_LINE = re.compile(r"\A(?:[ ]*\n)*( *)(?=\S)")


class Runs(Scorer):
    """1.0 where the program of an answer and its tests runs to its end, else 0.0.

    Args:
        limits: of the process that runs it.
        required: whether nothing runs on a kernel that cannot lock the process up.

    Attributes:
        parts: the keys of a reference, a JSON object, and the types of their values.
    """

    metric = "pass@1"
    parts: ClassVar[Mapping[str, type]]

    def __init__(self, limits: Limits, required: bool = True) -> None:
        self.limits, self.required = limits, required

    def item(self, prediction: str, reference: str) -> float | None:
        """Return whether it does; None without a reference."""
        if not reference.strip():
            return None
        return float(runs_to_the_end(self._program(prediction, json.loads(reference)), self.limits, self.required))

    def reference_fault(self, reference: str) -> str | None:
        """Refuse a reference that is no JSON, lacks a part or has tests that are no Python."""
        try:
            parts = json.loads(reference)
        except ValueError:
            parts = None
        if not isinstance(parts, dict) or not all(isinstance(parts.get(key), kind) for key, kind in self.parts.items()):
            return f"a JSON object of {', '.join(self.parts)}"
        return self._fault(parts)

    @abstractmethod
    def _program(self, answer: str, reference: Mapping[str, Any]) -> str:
        """Return the program of an answer and its tests."""

    @abstractmethod
    def _fault(self, reference: Mapping[str, Any]) -> str | None:
        """Say what the parts of a reference must be, where no answer could pass by them."""


class PassesTests(Runs):
    """The function that an answer completes; a reference is HumanEval's `prompt`, `test` and `entry_point`."""

    parts: ClassVar = {"prompt": str, "test": str, "entry_point": str}

    def _fault(self, reference: Mapping[str, Any]) -> str | None:
        tests = parsed(reference["test"])
        if tests is None or "check" not in tests.bound:
            return "a test in Python that defines the function check"
        return None if reference["entry_point"].isidentifier() else "an entry_point that is the name of a function"

    def _program(self, answer: str, reference: Mapping[str, Any]) -> str:
        return program(reference["prompt"], answer, reference["entry_point"], reference["test"])


class PassesAsserts(Runs):
    """The program that an answer is, and MBPP's tests; a reference is their `imports` and the `tests`, statements."""

    parts: ClassVar = {"imports": list, "tests": list}

    def _fault(self, reference: Mapping[str, Any]) -> str | None:
        statements = [*reference["imports"], *reference["tests"]]
        readable = all(isinstance(statement, str) and parsed(statement) for statement in statements)
        return (
            None if readable and reference["tests"] else "tests, at least one, and imports that are Python statements"
        )

    def _program(self, answer: str, reference: Mapping[str, Any]) -> str:
        imports, tests = ("".join(f"{statement}\n" for statement in reference[key]) for key in ("imports", "tests"))
        return f"{future_first(imports, _solution(_unix(answer), imports, tests))}\n{tests}"


def _solution(answer: str, imports: str, tests: str) -> str:
    """Return what defines the tested functions: a base model's text up to `[DONE]`, a chat model's code in it."""
    begin, end = _BEGIN.search(answer), _DONE.search(answer)
    if begin and not (end and end.start() < begin.start()):
        answer = answer[begin.end() :]
    text = answer.partition("[DONE]")[0]
    blocks = python_blocks(answer)
    if not blocks and parsed(text):
        return text
    imported = _names(imports)
    tested = _called(tests) - imported
    for part in (text, answer) if blocks else (text,):  # prose may speak of `[DONE]` ahead of a block
        for names in (tested, *([name] for name in sorted(tested))):
            if code := defining_code(part, names, imported):
                return code.text
    return next((block for block in blocks if "def " in block), text)


def program(prompt: str, answer: str, entry_point: str, test: str) -> str:
    """Return the function that `answer` completes, its tests, and the call that runs them.

    Base models answer with what follows the prompt. Chat models also write the whole function, into a fenced block or
    without one; it then stands after the prompt, whose imports and helpers it may use, and takes the place of the
    prompt's function. Indentation by tabs becomes indentation by four spaces, in the prompt as in the answer.
    """
    prompt, answer = _spaces(_unix(prompt)), _spaces(_unix(answer))
    code = _completed(prompt, answer, entry_point)
    return f"{code}\n\n{test}\n\ncheck({entry_point})\n"


def until_top_level(text: str) -> str:
    """The text up to the first line that begins a new statement at the margin (def, class, if, print, #, ...)."""
    found = _TOP_LEVEL.search(text)
    return text[: found.start()] if found else text


def _completed(prompt: str, answer: str, entry_point: str) -> str:
    """Return the prompt and what follows it in the program."""
    continued = prompt + _continuation(prompt, answer)
    if _goes_on(prompt, answer) or (_may_go_on(prompt, answer) and parsed(continued)):
        return _up_to_fence(continued)
    whole = prompt if parsed(prompt) else f"{prompt}    pass\n"  # a signature alone is no Python
    code = defining_code(answer, [entry_point], _names(whole))
    if code is not None:
        return future_first(f"{whole}\n\n", code.text)
    body = next((body for block in python_blocks(answer) if (body := _body(block))), None)
    return continued if body is None else prompt + until_top_level(body)


def _continuation(prompt: str, answer: str) -> str:
    """Return the part of a text after the prompt that belongs to the prompt's function."""
    if not prompt.endswith("\n"):  # the answer's first line goes on with the prompt's last one
        line, end, rest = answer.partition("\n")
        return line + end + until_top_level(rest)
    # Decoding with a SentencePiece tokenizer drops the first space of a text.
    return until_top_level(_SHORT.sub(r"\1\2 ", answer))


def _goes_on(prompt: str, answer: str) -> bool:
    """Return whether the answer begins as the body of the prompt's function does; a fence may be indented, too."""
    first = _FIRST_LINE.match(answer)
    return first is not None and len(first[1]) > MOST_BLANKS and not _FENCE_AHEAD.match(answer, first.end())


def _may_go_on(prompt: str, answer: str) -> bool:
    """Return whether the answer may go on with the prompt's last line, or begins with a few blanks, like some prose."""
    first = _FIRST_LINE.match(answer)
    in_line = not prompt.endswith("\n") and not answer.startswith("\n")
    return in_line or (first is not None and 0 < len(first[1]) <= MOST_BLANKS)


def _body(block: str) -> str | None:
    """Return the body of a function, if a block is one: it is indented, or returns outside of any function."""
    if block.lstrip("\n").startswith(" "):
        return block
    code = parsed(block)
    return textwrap.indent(block, "    ") if code is not None and code.returns else None


def _up_to_fence(code: str) -> str:
    """Return the code up to a fence that ends it, also one on the last line of code."""
    fence = _FENCE.search(code)
    if fence is None or parsed(code) or not parsed(code[: fence.start()]):
        return code
    return code[: fence.start()]


def _names(code: str) -> set[str]:
    """Return the names that the statements at the margin bind."""
    statements = parsed(code)
    return statements.bound if statements else set()


def _called(tests: str) -> set[str]:
    """Return the names that tests use and do not bind."""
    code = parsed(tests)
    used = {name for statement in code.body for name in used_names(statement)} if code else set()
    return used - (code.bound if code else set()) - set(dir(builtins))


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _spaces(code: str) -> str:
    """The code with every tab of an indentation as four spaces."""
    return _INDENT.sub(lambda found: found[0].replace("\t", "    "), code)
