"""The house's rules: imports go down, in no circle; functions are short, no code stands twice; a figure's code makes no
run stale.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from ssd_bench.records import provenance
from tests.runs import ROOT

# From the ground up, as ssd_bench/README.md has it; a longer name stands on its own floor.
FLOORS = (
    (
        "errors",
        "settings",
        "stopping",
        "paths",
        "quoting",
        "conf",
        "console",
        "tables",
        "run_warnings",
        "lease",
    ),
    ("contract",),
    ("model",),
    ("engine",),
    ("records", "cost", "data", "compose"),
    ("methods", "tasks"),
    ("metrics",),
    ("papers.printed",),
    ("papers.runs",),
    ("papers.audit",),
    ("papers.ours",),
    ("papers.claims",),
    ("papers.figures",),
    ("papers",),  # one folder per paper
    ("run", "miniature"),
    ("predict",),
    ("report",),
    ("sweep", "bench", "exchange"),
    ("commands",),
    ("cli", "__main__", "hydra_plugins"),
)
PACKAGES = ("ssd_bench", "methods", "tasks", "hydra_plugins")
LONGEST = 60  # lines of a function
TWICE = 6  # lines that may not stand twice


@cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            name = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = ast.parse(file.read_text(encoding="utf-8"))
    return found


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """A tree's nodes without what stands under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            children: list[ast.stmt] = child.orelse
        else:
            yield child
            yield from executed(child)
            continue
        for other in children:
            yield other
            yield from executed(other)


@cache
def imports() -> dict[str, set[str]]:
    """Module -> the modules of this project that it imports, at any place and time."""
    trees, found = modules(), {}
    for name, tree in trees.items():
        asked = set()
        for node in executed(tree):
            if isinstance(node, ast.Import):
                asked |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                asked |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        whole = {f"{part}" for part in asked if part in trees}
        # of a package whose module is taken only the module counts
        found[name] = {m for m in whole if not any(o.startswith(m + ".") for o in whole)} - {name}
    return found


def floor(module: str) -> int:
    """The floor of a module: of the longest name that it, or what it stands in, has."""
    own = module.removeprefix("ssd_bench.")
    names = {name: number for number, row in enumerate(FLOORS) for name in row}
    best = max((name for name in names if own == name or own.startswith(name + ".")), key=len, default=None)
    assert best is not None, f"{module} has no floor"
    return names[best]


def test_imports_go_down_only() -> None:
    up = [
        f"{module} takes from {other}"
        for module, taken in imports().items()
        for other in taken
        if module != "ssd_bench" and floor(other) > floor(module)
    ]
    assert not up


def test_no_paper_imports_another() -> None:
    papers = {path.parent.name for path in (ROOT / "ssd_bench" / "papers").glob("*/paper.yaml")}
    start = "ssd_bench.papers."
    folders = [
        {name.removeprefix(start).partition(".")[0] for name in (module, imported) if name.startswith(start)}
        for module, imported_modules in imports().items()
        for imported in imported_modules
    ]
    assert papers and not [pair for pair in folders if len(pair) == 2 and pair <= papers]


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        pytest.fail(" takes from ".join(reversed(error.args[1])))


def test_no_method_takes_a_siblings_private_parts() -> None:
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
                assert not [a.name for a in node.names if a.name.startswith("_")], name


def test_functions_are_short() -> None:
    """Parameters, one a line where they are many, do not count."""
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.body[0].lineno < LONGEST, f"{name}.{node.name}"


def code_lines(file: Path) -> list[tuple[int, str]]:
    """Return numbers and stripped texts of lines but for imports, docstrings, parameters, comments, punctuation."""
    text = file.read_text(encoding="utf-8")
    nodes: list[ast.AST] = [ast.parse(text)]
    other: set[int] = set()
    for node in nodes:  # grows by the statements within; expressions hold none
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
        value = node.value if isinstance(node, ast.Expr) else None
        documents = isinstance(value, ast.Constant) and isinstance(value.value, str)
        if isinstance(node, ast.stmt) and (documents or isinstance(node, ast.Import | ast.ImportFrom)):
            other.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, ast.FunctionDef):  # an interface that several functions have repeats its parameters
            other.update(range(node.lineno + 1, node.body[0].lineno))
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if number not in other)
    return [(number, line) for number, line in lines if any(map(str.isalnum, line)) and not line.startswith("#")]


def test_no_lines_stand_twice() -> None:
    first: dict[tuple[str, ...], str] = {}
    twice = []
    for file in sorted(file for package in (*PACKAGES, "tests") for file in (ROOT / package).rglob("*.py")):
        lines = code_lines(file)
        for at in range(len(lines) - TWICE + 1):
            place = f"{file.relative_to(ROOT)}:{lines[at][0]}"
            known = first.setdefault(tuple(line for _, line in lines[at : at + TWICE]), place)
            if known != place:
                twice.append(f"{known} and {place}")
    assert not twice, f"move what they share to where both may take it: {', '.join(twice)}"


@pytest.mark.parametrize(
    ("file", "stale"),
    [
        ("papers/swift/figures.py", False),
        ("metrics/definitions.py", False),
        ("records/header.py", True),
        ("records/reader.py", False),
        ("records/writer.py", True),
        ("cost/roofline.py", False),
        ("cost/latency.py", True),
        ("engine/engine.py", True),
        ("model/backends/cpu/linear.h", True),
    ],
)
def test_a_run_is_stale_where_its_code_has_changed(
    file: str, stale: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where only what reads its record has."""
    changed = tmp_path / "changed"
    changed.write_text("// another line", encoding="utf-8")
    sources = list(provenance._sources())
    before, path = provenance.code_hash(), ROOT / "ssd_bench" / file
    assert path.is_file() and (path in sources) == stale
    edited = [changed if source == path else source for source in sources]
    monkeypatch.setattr(provenance, "_sources", lambda: iter(edited))
    assert (provenance.code_hash() != before) == stale


def test_the_code_layout_names_every_package_and_module() -> None:
    """The table in ssd_bench/README.md and the folder have the same packages and modules."""
    text = (ROOT / "ssd_bench" / "README.md").read_text(encoding="utf-8")
    table = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    packages = {path.parent.name + "/" for path in (ROOT / "ssd_bench").glob("*/__init__.py")}
    modules = {path.name for path in (ROOT / "ssd_bench").glob("[!_]*.py")}
    assert set(re.findall(r"`([\w.]+/?)`", table)) == packages | modules
