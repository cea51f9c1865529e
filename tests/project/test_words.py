"""The words of the code and the documents: docstrings, names, formatting exceptions and private terms."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.project.test_structure import PACKAGES as CODE
from tests.project.test_structure import parsed
from tests.runs import ROOT

TESTS = ("tests/hub", "tests/cluster", "tests/studies")
"""Test folders that follow the rules, too."""
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPENERS = words("of as by that whose with what how which where none")
"""First words of fragments: a preposition or a relative clause."""

CLAUSES = OPENERS | words(
    "whether if in at for to from without on after before when while under over between within during until since "
    "because though although wherever"
)
"""First words of a test's docstring that put a clause in front of what it is about."""

NO_VERBS = OPENERS | words("the a an whether if why when who every each all one no nothing those its our")
"""First words of a function's docstring without an action; properties and attributes are noun phrases."""

PRONOUNS = words(
    "found one own made asked known given said other others each alike apart beside whole rest ones mine "
    "ours theirs both either neither such same there these those this that it them what which who"
)
"""Names that say how a value was come by, or point at it, not what it is."""

PRONOUN_SHARE = 0.005
FORMAT_EXCEPTIONS = 10

PRIVATE_TERMS = (
    *(r"rehears\w+", r"noise floor", r"beside (?:AR|it|them|the|its|a|one)\b", r"not to be told from"),
    *(r"a unit of work", r"nodes for the price", r"\bdearer\b", r"spoil(?:ed|t|s)", r"\balike\b", r"\blikewise\b"),
)
"""Expressions that the field does not use, in documents and printed text."""

NO_EXPECTATION = words("it give must only use cannot not without as what there")
"""First words that cannot follow a `ConfigError`'s "expected", which needs a noun phrase or a value."""


@pytest.fixture(scope="module", autouse=True)
def one_process() -> None:
    """The group of a module's fixture: its tests run in one process, which parses each file once."""


def trees(*folders: str) -> dict[Path, ast.Module]:
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return {file: parsed(file) for file in files}


def docstrings(module: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind (module, class, property, function, attribute) and text of every docstring."""
    for node in ast.walk(module):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, _kind(node), text
        if isinstance(node, ast.Module | ast.ClassDef):
            for first, second in pairwise(node.body):
                text = second.value if isinstance(second, ast.Expr) else None
                if isinstance(first, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Constant):
                    yield second.lineno, "attribute", str(text.value)


def _kind(node: ast.AST) -> str:
    if isinstance(node, ast.Module | ast.ClassDef):
        return type(node).__name__.removesuffix("Def").lower()
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]  # type: ignore[attr-defined]
    return "property" if any(name.endswith(("property", ".setter")) for name in decorators) else "function"


def first_word(text: str) -> str:
    return re.sub(r"\W+$", "", text.split()[0].lower())


def fragments(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and first line of every docstring that begins as a fragment, or without an action."""
    for line, kind, text in docstrings(module):
        word = first_word(text)
        if word in (NO_VERBS if kind == "function" else OPENERS) or text.lower().startswith("all that"):
            yield line, text.splitlines()[0]


def bound_names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything assigned, defined or a parameter."""
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def pronouns(module: ast.Module) -> list[tuple[int, str]]:
    return [(line, name) for line, name in bound_names(module) if name.strip("_") in PRONOUNS]


def documents() -> list[Path]:
    """Return the Markdown files that people write: in the root, documentation, settings and packages."""
    files = [file for folder in ("docs", "conf", *CODE) for file in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *(file for file in files if (ROOT / "docs" / "report") not in file.parents)])


def private_terms(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and expression of every private term outside code."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in re.finditer("|".join(PRIVATE_TERMS), re.sub("`[^`]*`", "``", line), re.IGNORECASE):
            yield number, match[0]


def printed(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string of several words that is not a docstring."""
    documentation = {
        id(node.value)
        for parent in ast.walk(module)
        for node in (parent.body if isinstance(parent, DOCUMENTED) else ())
        if isinstance(node, ast.Expr)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield from [(node.lineno, node.value)] if " " in node.value.strip() else []


def expectations(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and beginning of every `ConfigError`'s expectation that is written at the call."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ConfigError":
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            text = keywords.get("expected", node.args[2] if len(node.args) > 2 else None)
            text = text.values[0] if isinstance(text, ast.JoinedStr) else text
            if isinstance(text, ast.Constant) and text.value:
                yield node.lineno, str(text.value)


def test_docstrings_are_sentences() -> None:
    modules = trees(*CODE, *TESTS).items()
    assert not [(str(file.relative_to(ROOT)), *x) for file, module in modules for x in fragments(module)]


def test_docstrings_of_tests_open_with_their_subject() -> None:
    opened = ((file, line, text) for file, module in trees("tests").items() for line, _, text in docstrings(module))
    assert not [(str(file.relative_to(ROOT)), line, text) for file, line, text in opened if first_word(text) in CLAUSES]


def test_names_are_nouns() -> None:
    modules = trees(*CODE, *TESTS).values()
    total = sum(1 for module in modules for _ in bound_names(module))
    seen = Counter(name for module in modules for _, name in pronouns(module))
    assert seen.total() <= PRONOUN_SHARE * total, seen.most_common(20)


def test_one_class_name_is_one_class() -> None:
    nodes = (node for module in trees(*CODE).values() for node in ast.walk(module))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert not [name for name, count in names.items() if count > 1]


def test_the_formatter_wins() -> None:
    files = (file for folder in (*CODE, "tests") for file in (ROOT / folder).rglob("*.py"))
    counts = {file: file.read_text(encoding="utf-8").count("# fmt: " + "skip") for file in files}
    assert sum(counts.values()) <= FORMAT_EXCEPTIONS, {str(f): n for f, n in counts.items() if n}


def test_documents_use_the_fields_terms() -> None:
    assert not [(file.name, *x) for file in documents() for x in private_terms(file.read_text(encoding="utf-8"))]


def test_printed_text_uses_the_fields_terms() -> None:
    texts = ((file.name, line, text) for file, module in trees(*CODE).items() for line, text in printed(module))
    assert not [(name, line, *x) for name, line, text in texts for x in private_terms(text)]


def test_errors_say_what_was_expected() -> None:
    texts = ((file.name, *x) for file, module in trees(*CODE).items() for x in expectations(module))
    assert not [(name, line, text) for name, line, text in texts if text.split()[0].strip(",:") in NO_EXPECTATION]
