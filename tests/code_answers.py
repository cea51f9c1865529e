"""Forms in which models write a function to complete: from the program to the answer."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import set_start_method

OPPOSITE = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Mod: ast.Mult,
    ast.In: ast.NotIn,
}
"""Operator -> one with other results."""


@dataclass(frozen=True)
class Solution:
    """A function to complete and its body.

    Attributes:
        prompt: imports, helpers, signature, docstring.
        body: what completes it, indented.
        name: of the function.
    """

    prompt: str
    body: str
    name: str

    @property
    def whole(self) -> str:
        """The program, including the prompt."""
        return f"{self.prompt}{self.body}".strip("\n") + "\n"

    def renamed(self, name: str) -> str:
        return re.sub(rf"\b{self.name}\b", name, self.whole)


def _in_list(solution: Solution) -> str:
    code = textwrap.indent(f"```python\n{solution.whole}```\n", "   ")
    return f"1. The function:\n\n{code}\n2. It runs in linear time.\n"


def _wrapped(solution: Solution) -> str:
    code = solution.renamed("_solve")
    return f"```python\n{code}\n{solution.name} = lambda *args, **named: _solve(*args, **named)\n```\n"


def _decorated(solution: Solution) -> str:
    keep = "def keep(function):\n    return function\n\n\n"
    code = re.sub(rf"^def {solution.name}\b", f"@keep\ndef {solution.name}", solution.whole, flags=re.MULTILINE)
    return f"```python\nimport functools\n\n\n{keep}{code}```"


def _helper_after(solution: Solution) -> str:
    code = re.sub(rf"^def {solution.name}\((.*)$", r"def _solve(\1", solution.whole, flags=re.MULTILINE)
    code = re.sub(rf"\b{solution.name}\(", "_solve(", code)
    return f"```python\ndef {solution.name}(*args):\n    return _solve(*args)\n\n\n{code}```"


def _twice(solution: Solution) -> str:
    first = f"def {solution.name}(*args):\n    return 'draft'\n\n\n"
    return f"```python\n{first}{solution.whole}```\n"


def _docstring_twice(solution: Solution) -> str:
    return f"```python\n{solution.prompt}    '''Once more.'''\n{solution.body}```\n"


def _class_before(solution: Solution) -> str:
    return f"```python\nclass Pair:\n    def {solution.name}(self):\n        return 0\n\n\n{solution.whole}```\n"


def _split(solution: Solution) -> str:
    code = solution.renamed("_solve")
    entry = f"def {solution.name}(*args):\n    return _solve(*args)\n"
    return f"A helper:\n```python\n{code}```\nThen the function:\n```python\n{entry}```\n"


def _quoted_first(solution: Solution) -> str:
    return f"You gave me:\n```python\n{solution.prompt}```\nCompleted:\n```python\n{solution.whole}```\n"


def _example_before(solution: Solution) -> str:
    return f"```bash\npython solution.py\n```\n\n```\nprint('unrelated')\n```\n\n```python\n{solution.whole}```\n"


def _examples_after(solution: Solution) -> str:
    wrong = f"result = {solution.name}()\nassert result == 'nothing'\nprint({solution.name}(input()))\n"
    return f"```python\n{solution.whole}\n\nif __name__ == '__main__':\n    {solution.name}()\n{wrong}```\n"


RAW: Mapping[str, Callable[[Solution], str]] = {
    "continuation": lambda s: s.body,
    "continuation, CRLF": lambda s: s.body.replace("\n", "\r\n"),
    "continuation, newline ahead": lambda s: f"\n{s.body}",
    "continuation, next function": lambda s: f"{s.body}\n\ndef _next(x):\n    return x\n",
}
"""Texts that follow the prompt, which the official harness runs as they are."""

CHAT: Mapping[str, Callable[[Solution], str]] = {
    "continuation, tabs": lambda s: s.body.replace("    ", "\t"),
    "fence": lambda s: f"Here it is:\n```python\n{s.whole}```\nIt works.\n",
    "fence without language": lambda s: f"```\n{s.whole}```",
    "py": lambda s: f"```py\n{s.whole}```",
    "Python3": lambda s: f"```Python3\n{s.whole}```",
    "braces": lambda s: f"``` {{.python}}\n{s.whole}```",
    "longer fence": lambda s: f"````python\n{s.whole}````",
    "tildes": lambda s: f"Here:\n~~~python\n{s.whole}~~~\nDone.",
    "list item": _in_list,
    "list mark": lambda s: "- ```python\n" + textwrap.indent(f"{s.whole}```\n", "  "),
    "fence after prose": lambda s: f"The solution: ```python\n{s.whole}```\n",
    "indented opening fence": lambda s: f"  ```python\n{s.whole}  ```\n",
    "fence on the last line": lambda s: f"```python\n{s.whole.rstrip()}```\nIt works.\n\n```\n3\n```\n",
    "tildes on the last line": lambda s: f"~~~\n{s.whole.rstrip()}~~~",
    "never closed": lambda s: f"Here:\n```python\n{s.whole}",
    "opened by the prompt": lambda s: f"{s.whole}```\nIt works.\n",
    "cut off in an example": lambda s: f"```python\n{s.whole}\n\ndef test_it():\n    assert {s.name}(",
    "CRLF": lambda s: f"Here:\n```python\n{s.whole}```\n".replace("\n", "\r\n"),
    "blank ahead": lambda s: f" Here it is:\n```python\n{s.whole}```",
    "two blanks ahead": lambda s: f"  Sure! Here it is:\n```python\n{s.whole}```",
    "no fence": lambda s: s.whole,
    "no fence, prose": lambda s: f"Sure! Here is the function:\n\n{s.whole}\nThis function works.\nNote: fast\n",
    "no fence, CRLF": lambda s: f"Sure:\n\n{s.whole}\nDone.\n".replace("\n", "\r\n"),
    "indented block": lambda s: "Sure:\n\n" + textwrap.indent(s.whole, "    ") + "\nThis is it.\n",
    "body in a fence": lambda s: f"```python\n{s.body}```\n",
    "body at the margin": lambda s: f"```python\n{textwrap.dedent(s.body)}```\n",
    "body, fence on its last line": lambda s: f"{s.body.rstrip()}```\nThat is all.\n",
    "lambda": _wrapped,
    "decorator": _decorated,
    "helper after": _helper_after,
    "twice": _twice,
    "docstring twice": _docstring_twice,
    "class before": _class_before,
    "two blocks": _split,
    "prompt quoted first": _quoted_first,
    "other blocks first": _example_before,
    "examples after": _examples_after,
    "future import": lambda s: f"```python\nfrom __future__ import annotations\n{s.whole}```\n",
}
"""Answers around the program of prompt and body, mostly in chat form; tabs are our prompt's."""


def changed(row: Mapping[str, str]) -> str | None:
    """Return the canonical solution with its first comparison reversed, else its first sum, or None."""
    source = ast.parse(row["prompt"] + row["canonical_solution"])
    functions = [node for node in source.body if isinstance(node, ast.FunctionDef)]
    (function,) = [node for node in functions if node.name == row["entry_point"]]
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITE:
            node.ops[0] = OPPOSITE[type(node.ops[0])]()
            return _body(function)
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp) and type(node.op) in OPPOSITE:
            node.op = OPPOSITE[type(node.op)]()
            return _body(function)
    return None


def _body(function: ast.FunctionDef) -> str:
    return "".join(f"    {line}\n" for part in function.body for line in ast.unparse(part).split("\n"))


def start_by_forks() -> None:
    """Let a spawned process fork others; it is here because this module imports little."""
    set_start_method("fork", force=True)
