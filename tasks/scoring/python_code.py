"""Reader of Python in answers: statements of a text, and the names that they bind and use."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tasks.scoring.fences import fenced_blocks

_CODE = re.compile(
    r"(?:async def|def|class|from|import|if|for|while|with|try|@|[A-Za-z_][\w., \[\]]*(?::.*)?=)(?=\W|$)"
)
_MARGIN = re.compile(r"^(?=[^\s)\]}])", re.MULTILINE)
_CONTINUED = re.compile(r"(?:else|elif|except|finally)\b")
_INDENTED = re.compile(r"(?:^[ \t]+\S.*\n?(?:^[ \t]*\n)*)+", re.MULTILINE)
_MOST_PIECES = 12
"""Most pieces at the margin in one statement among prose: decorators, strings over several lines."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
# Statements that prose can be read as are left out: `Note: this` is an annotation, `Sure` a name.
_CERTAIN = (*_DEFINITIONS, *_IMPORTS, ast.Assign, ast.AugAssign, ast.If, ast.For, ast.While, ast.With, ast.Try)
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class Code:
    """A Python text, with its statements at the margin."""

    text: str
    body: Sequence[ast.stmt]

    @property
    def bound(self) -> set[str]:
        """Names bound at the margin."""
        return {name for statement in self.body for name in bound_names(statement)}

    @property
    def returns(self) -> bool:
        """Whether it returns outside of any function."""
        return any(isinstance(node, ast.Return) for statement in self.body for node in _of_scope(statement))

    def defines(self, name: str) -> bool:
        """Return whether the name is bound to more than a stub (docstring, `pass`, `raise`, import)."""
        return any(name in bound_names(statement) and not _is_stub(statement) for statement in self.body)

    def source(self, statements: Iterable[ast.stmt]) -> str:
        lines = self.text.split("\n")
        return "".join("\n".join(lines[first - 1 : last]) + "\n" for first, last in map(_lines, statements))

    def without(self, statements: Iterable[ast.stmt]) -> Code:
        """Return the code with some statements blanked; one that shares a line with others stays."""
        gone = list(statements)
        kept = {n for s in self.body if s not in gone for n in range(_lines(s)[0], _lines(s)[1] + 1)}
        blank = {n for s in gone for n in range(_lines(s)[0], _lines(s)[1] + 1)} - kept
        lines = ["" if number in blank else line for number, line in enumerate(self.text.split("\n"), 1)]
        return Code("\n".join(lines), [s for s in self.body if s not in gone or _lines(s)[0] in kept])


def parse_python(text: str) -> Code | None:
    """Return the text as code, or None if it is not Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in an answer
        try:
            return Code(text, ast.parse(text).body)
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
            return None


def python_blocks(answer: str) -> list[str]:
    return fenced_blocks(answer, lambda code: parse_python(_at_margin(code)) is not None)


def code_of(text: str) -> Code | None:
    """Return the Python in a text: all of it, or the statements at the margin between lines of prose, or None."""
    text = _at_margin(text)
    code = parse_python(text)
    if code is not None:
        return code if code.body else None
    kept = "".join(_statements(text))
    return parse_python(kept) if kept else None


def defining_code(answer: str, names: Iterable[str], predefined: Iterable[str] = ()) -> Code | None:
    """Return an answer's code that defines all names, or None.

    It is the first fenced block that does, else the answer without prose, else a run of indented lines; code that
    defines more than a stub is preferred. Definitions and imports that it uses from other blocks are put ahead.
    Statements that only call what is defined are left out: a wrong example would end the program.

    Args:
        predefined: names bound before the code runs.
    """
    wanted = set(names)
    blocks = [code for block in python_blocks(answer) if (code := code_of(block))]
    unfenced = (code for text in (answer, *_INDENTED.findall(answer)) if (code := code_of(text)))
    binding = [code for code in (*blocks, *unfenced) if wanted <= code.bound]
    if not wanted or not binding:
        return None
    chosen = next((code for code in binding if all(map(code.defines, wanted))), binding[0])
    ahead = _needed(chosen, [code for code in blocks if code is not chosen], set(predefined) | _BUILTINS)
    chosen = _without_examples(chosen, wanted)
    return (parse_python(f"{ahead}{chosen.text}") or chosen) if ahead else chosen


def future_first(ahead: str, text: str) -> str:
    """Return both texts as one program, beginning with the second's imports of `__future__`."""
    code = parse_python(text) if "__future__" in text else None
    if code is None:
        return ahead + text
    future = [s for s in code.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    return f"{code.source(future)}{ahead}{code.without(future).text}"


def bound_names(statement: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds in its own scope, not within functions and classes."""
    for node in _of_scope(statement):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.alias():
                yield node.asname or node.name.partition(".")[0]
            case ast.Name(ctx=ast.Store()):
                yield node.id


def _of_scope(statement: ast.AST) -> Iterator[ast.AST]:
    nodes = [statement]  # no recursion: a tree may be deeper than Python's stack
    while nodes:
        node = nodes.pop()
        yield node
        if not isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            nodes += ast.iter_child_nodes(node)


def used_names(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load)}


def _needed(chosen: Code, blocks: Sequence[Code], predefined: set[str]) -> str:
    """Return other blocks' definitions and imports that the chosen code uses and nothing else binds."""
    ahead = ""
    bound, wanted = predefined | _every_name_bound(chosen.body), {n for s in chosen.body for n in used_names(s)}
    definitions = [
        (code, s) for code in blocks for s in code.body if isinstance(s, (*_DEFINITIONS, *_IMPORTS, ast.Assign))
    ]
    while lacking := wanted - bound:
        pair = next(((code, s) for code, s in definitions if lacking & set(bound_names(s))), None)
        if pair is None:
            break
        code, statement = pair
        ahead = code.source([statement]) + ahead
        bound |= {*bound_names(statement), *_every_name_bound([statement])}
        wanted |= used_names(statement)
    return ahead


def _every_name_bound(body: Iterable[ast.stmt]) -> set[str]:
    nodes = [node for statement in body for node in ast.walk(statement)]
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return arguments | {name for node in nodes for name in bound_names(node)}


def _without_examples(code: Code, names: set[str]) -> Code:
    """Return the code without calls of its definitions on which no definition depends."""
    calling, examples = set(names), []
    inner = {n for s in code.body if isinstance(s, _DEFINITIONS) for n in used_names(s) - _every_name_bound([s])}
    for statement in code.body:
        if isinstance(statement, _IMPORTS) or not used_names(statement) & calling:
            continue
        binds = set(bound_names(statement))
        calling |= binds
        if not isinstance(statement, _DEFINITIONS) and not binds & (names | inner) and not _sets_part(statement):
            examples.append(statement)
    return code.without(examples)


def _sets_part(statement: ast.stmt) -> bool:
    nodes = (node for node in ast.walk(statement) if isinstance(node, ast.Attribute | ast.Subscript))
    return any(isinstance(node.ctx, ast.Store) for node in nodes)


def _is_stub(statement: ast.stmt) -> bool:
    if isinstance(statement, _IMPORTS):  # an example that begins `from solution import add`
        return True
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return all(
        isinstance(s, (ast.Pass, ast.Raise, *_IMPORTS))
        or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in statement.body
    )


def _statements(text: str) -> Iterator[str]:
    """Yield the statements at the margin of a text with prose, each the shortest Python run of pieces."""
    starts = [margin.start() for margin in _MARGIN.finditer(text)]
    pieces = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)])]
    i = 0
    while i < len(pieces):
        length = _statement_length(pieces[i:]) if _CODE.match(pieces[i]) or "(" in pieces[i] else 0
        if length:
            yield "".join(pieces[i : i + length]).rstrip("\n") + "\n"
        i += max(length, 1)


def _statement_length(pieces: Sequence[str]) -> int:
    """Return the number of pieces of the first statement; 0: none."""
    length = 0
    for count in range(1, min(len(pieces), _MOST_PIECES) + 1):
        code = parse_python("".join(pieces[:count]))
        if code is not None and all(map(_is_certain, code.body)):
            length = count
            if count == len(pieces) or not _CONTINUED.match(pieces[count]):
                break
        elif length:
            break
    return length


def _is_certain(statement: ast.stmt) -> bool:
    """Return whether no prose reads like the statement; of expressions, a call of a module's function (`sys.f(1)`)."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value is not None
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call) and isinstance(statement.value.func, ast.Attribute)
    return isinstance(statement, _CERTAIN)


def _at_margin(text: str) -> str:
    return textwrap.dedent(text) if text.lstrip("\n")[:1] in (" ", "\t") else text


def _lines(statement: ast.stmt) -> tuple[int, int]:
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
    return first, statement.end_lineno or first
