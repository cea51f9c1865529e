"""Scorers of Python functions, tested in the sandbox."""

from __future__ import annotations

import builtins
import json
import re
import textwrap
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tasks.scoring.python_code import defining_code, future_first, parse_python, python_blocks, used_names
from tasks.scoring.sandbox import ProgramLimits, runs_to_the_end
from tasks.scoring.scorer import Scorer

# A line that begins at the margin ends a function, unless it closes a bracket that the function opened.
_TOP_LEVEL = re.compile(r"^[^\s)\]}]", re.MULTILINE)
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)
# First line of an answer whose indentation by fours lacks one space.
_SHORT = re.compile(r"\A(\n*)((?: {4})* {3})(?=\S)")
MOST_BLANKS = 2
"""Most blanks before a chat model's first word (Llama 2's answers begin with two)."""
_FENCE = re.compile(r"`{3}|~{3}")
_FENCE_AHEAD = re.compile(r"(?:(?:[-*+]|\d+[.)])[ ]+)*(?:`{3}|~{3})")
_BEGIN, _DONE = (re.compile(rf"^\[{mark}\][ \t]*$", re.MULTILINE) for mark in ("BEGIN", "DONE"))
_FIRST_LINE = re.compile(r"\A(?:[ ]*\n)*( *)(?=\S)")


@dataclass(eq=False)
class Runs(Scorer):
    """1.0 if the program of an answer and its tests runs to its end, else 0.0.

    Attributes:
        required: whether programs need a kernel that can lock the process up.
        parts: keys of a reference (a JSON object), with the types of their values.
    """

    metric = "pass@1"
    parts: ClassVar[Mapping[str, type]]

    limits: ProgramLimits
    required: bool = True

    def item(self, prediction: str, reference: str) -> float | None:
        """Return whether the program runs to its end; None without a reference."""
        if not reference.strip():
            return None
        return float(runs_to_the_end(self._program(prediction, json.loads(reference)), self.limits, self.required))

    def reference_fault(self, reference: str) -> str | None:
        """Return the requirement that a reference fails: JSON with all parts, and tests in Python."""
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
        """Return a requirement on the reference without which no answer could pass."""


class PassesTests(Runs):
    """Score of a completed function; a reference is HumanEval's `prompt`, `test` and `entry_point`."""

    parts: ClassVar = {"prompt": str, "test": str, "entry_point": str}

    def _fault(self, reference: Mapping[str, Any]) -> str | None:
        tests = parse_python(reference["test"])
        if tests is None or "check" not in tests.bound:
            return "a test in Python that defines the function check"
        return None if reference["entry_point"].isidentifier() else "an entry_point that is the name of a function"

    def _program(self, answer: str, reference: Mapping[str, Any]) -> str:
        return program(reference["prompt"], answer, reference["entry_point"], reference["test"])


class PassesAsserts(Runs):
    """Score by MBPP's tests; a reference is their `imports` and the `tests`, lists of statements."""

    parts: ClassVar = {"imports": list, "tests": list}

    def _fault(self, reference: Mapping[str, Any]) -> str | None:
        statements = [*reference["imports"], *reference["tests"]]
        readable = all(isinstance(statement, str) and parse_python(statement) for statement in statements)
        return (
            None if readable and reference["tests"] else "tests, at least one, and imports that are Python statements"
        )

    def _program(self, answer: str, reference: Mapping[str, Any]) -> str:
        imports, tests = ("".join(f"{statement}\n" for statement in reference[key]) for key in ("imports", "tests"))
        return f"{future_first(imports, _solution(_unix(answer), imports, tests))}\n{tests}"


def _solution(answer: str, imports: str, tests: str) -> str:
    """Return the tested functions' definition: a base model's text up to `[DONE]`, or a chat model's code."""
    begin, end = _BEGIN.search(answer), _DONE.search(answer)
    if begin and not (end and end.start() < begin.start()):
        answer = answer[begin.end() :]
    text = answer.partition("[DONE]")[0]
    blocks = python_blocks(answer)
    if not blocks and parse_python(text):
        return text
    imported = _names(imports)
    tested = _called(tests) - imported
    for part in (text, answer) if blocks else (text,):  # prose may mention `[DONE]` before a block
        for names in (tested, *([name] for name in sorted(tested))):
            if code := defining_code(part, names, imported):
                return code.text
    return next((block for block in blocks if "def " in block), text)


def program(prompt: str, answer: str, entry_point: str, test: str) -> str:
    """Return the function that `answer` completes, its tests, and the call that runs them.

    Base models continue the prompt. A chat model's whole function, fenced or not, follows the prompt, whose imports and
    helpers it may use, and replaces the prompt's function. Tabs of an indentation become four spaces, in prompt and
    answer.
    """
    prompt, answer = _spaces(_unix(prompt)), _spaces(_unix(answer))
    code = _complete_program(prompt, answer, entry_point)
    return f"{code}\n\n{test}\n\ncheck({entry_point})\n"


def until_top_level(text: str) -> str:
    """Return the text before the first statement at the margin (def, class, print, #, ...)."""
    match = _TOP_LEVEL.search(text)
    return text[: match.start()] if match else text


def _complete_program(prompt: str, answer: str, entry_point: str) -> str:
    continued = prompt + _continuation(prompt, answer)
    if _goes_on(prompt, answer) or (_may_go_on(prompt, answer) and parse_python(continued)):
        return _up_to_fence(continued)
    complete_prompt = prompt if parse_python(prompt) else f"{prompt}    pass\n"  # a signature alone is no Python
    code = defining_code(answer, [entry_point], _names(complete_prompt))
    if code is not None:
        return future_first(f"{complete_prompt}\n\n", code.text)
    body = next((body for block in python_blocks(answer) if (body := _body(block))), None)
    return continued if body is None else prompt + until_top_level(body)


def _continuation(prompt: str, answer: str) -> str:
    if not prompt.endswith("\n"):  # the answer's first line goes on with the prompt's last one
        line, end, following = answer.partition("\n")
        return line + end + until_top_level(following)
    # Decoding with a SentencePiece tokenizer drops the first space of a text.
    return until_top_level(_SHORT.sub(r"\1\2 ", answer))


def _goes_on(prompt: str, answer: str) -> bool:
    first = _FIRST_LINE.match(answer)
    return first is not None and len(first[1]) > MOST_BLANKS and not _FENCE_AHEAD.match(answer, first.end())


def _may_go_on(prompt: str, answer: str) -> bool:
    """Return whether the answer may continue the prompt's last line, or begins with a few blanks, like some prose."""
    first = _FIRST_LINE.match(answer)
    in_line = not prompt.endswith("\n") and not answer.startswith("\n")
    return in_line or (first is not None and 0 < len(first[1]) <= MOST_BLANKS)


def _body(block: str) -> str | None:
    """Return the block if it is a function's body: indented, or with a return outside of any function."""
    if block.lstrip("\n").startswith(" "):
        return block
    code = parse_python(block)
    return textwrap.indent(block, "    ") if code is not None and code.returns else None


def _up_to_fence(code: str) -> str:
    fence = _FENCE.search(code)
    if fence is None or parse_python(code) or not parse_python(code[: fence.start()]):
        return code
    return code[: fence.start()]


def _names(code: str) -> set[str]:
    statements = parse_python(code)
    return statements.bound if statements else set()


def _called(tests: str) -> set[str]:
    """Return the names that tests use without binding them."""
    code = parse_python(tests)
    used = {name for statement in code.body for name in used_names(statement)} if code else set()
    return used - (code.bound if code else set()) - set(dir(builtins))


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _spaces(code: str) -> str:
    return _INDENT.sub(lambda match: match[0].replace("\t", "    "), code)
