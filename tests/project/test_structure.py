"""The structure of the code: imports go to lower layers without circles, files and functions are short, no code is
repeated, and only code that makes a record marks it as stale.
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
from tests.planted_faults import read_faults
from tests.runs import ROOT

# From low to high, as in ssd_bench/README.md; a module belongs to the layer of the longest name that it begins with.
LAYERS = (
    (
        *("errors", "settings", "stopping", "paths", "quoting", "plug_ins", "conf", "console", "tables"),
        *("run_warnings", "lease"),
    ),
    ("contract",),
    ("model",),
    ("engine",),
    ("cost", "data", "compose"),
    ("records",),
    ("methods", "tasks"),
    ("results",),
    ("papers.printed",),
    ("papers.runs",),
    ("papers.audit",),
    ("papers.ours",),
    ("papers.claims",),
    ("papers.figures",),
    ("papers",),  # one folder per paper
    ("run",),
    ("predict",),
    ("report",),
    ("sweep", "bench", "compare", "reproduce"),
    ("commands",),
    ("cli", "__main__", "hydra_plugins"),
    ("studies",),  # makes committed files; nothing imports it
)
PACKAGES = ("ssd_bench", "methods", "tasks", "hydra_plugins", "studies")
FILE_LINES = 400
FUNCTION_LINES = 60
PARAMETERS = 7
REPEATED_LINES = 6  # so many equal lines in two places are a copy


@pytest.fixture(scope="module", autouse=True)
def one_process() -> None:
    """The group of a module's fixture: its tests run in one process, which parses each file once."""


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, ast.Module]:
    """Return every project module's syntax tree."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {module_name(file): parsed(file) for file in files}


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree's nodes, except under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        only_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        for statement in child.orelse if isinstance(child, ast.If) and only_types else [child]:
            yield statement
            yield from executed(statement)


@cache
def imports(of_types: bool = False) -> dict[str, set[str]]:
    """Map each module to the project's modules that it imports, at any place and time.

    Args:
        of_types: include imports under `if TYPE_CHECKING`.
    """
    trees, taken = modules(), {}
    for module, tree in trees.items():
        names = set()
        for node in ast.walk(tree) if of_types else executed(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
        names &= set(trees)
        packages = {name for name in names if any(longer.startswith(name + ".") for longer in names)}
        taken[module] = names - packages - {module}  # of an imported module, its package does not count
    return taken


def layer(module: str) -> int:
    short = module.removeprefix("ssd_bench.")
    numbers = {name: number for number, row in enumerate(LAYERS) for name in row if f"{short}.".startswith(f"{name}.")}
    assert numbers, f"{module} has no layer"
    return numbers[max(numbers, key=len)]


def test_imports_go_to_lower_layers_only() -> None:
    up = [
        f"{module} imports {name}"
        for module, names in imports().items()
        for name in names
        if module != "ssd_bench" and layer(name) > layer(module)
    ]
    assert not up


def package(module: str) -> str:
    """Return a module's package within the project, or the module itself."""
    return module.removeprefix("ssd_bench.").partition(".")[0]


def test_no_two_packages_import_each_other() -> None:
    pairs = {(package(module), package(name)) for module, names in imports().items() for name in names}
    assert not [pair for pair in pairs if pair[0] < pair[1] and pair[::-1] in pairs]


def test_no_paper_imports_another() -> None:
    papers = {path.parent.name for path in (ROOT / "ssd_bench" / "papers").glob("*/paper.yaml")}
    start = "ssd_bench.papers."
    folders = [
        {name.removeprefix(start).partition(".")[0] for name in (module, imported) if name.startswith(start)}
        for module, imported_modules in imports().items()
        for imported in imported_modules
    ]
    assert papers and not [pair for pair in folders if len(pair) == 2 and pair <= papers]


@pytest.mark.parametrize("start", ["ssd_bench.run.run", "ssd_bench.report.closing", "ssd_bench.report.frame"])
def test_a_run_its_closing_table_and_load_runs_need_no_paper(start: str) -> None:
    reached, pending = set[str](), [start]
    while pending:
        reached.add(module := pending.pop())
        pending += imports()[module] - reached
    assert not [module for module in reached if module.startswith("ssd_bench.papers")]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Nor for types only: two modules that need each other's types are one, or need a third below them."""
    try:
        TopologicalSorter(imports(of_types=True)).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_module_imports_private_names() -> None:
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
                assert not [alias.name for alias in node.names if alias.name.startswith("_")], module


def test_files_are_short() -> None:
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    lengths = {module_name(file): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {module: length for module, length in lengths.items() if length > FILE_LINES} == {}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for module, tree in modules().items():
        yield from ((module, node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_functions_are_short() -> None:
    """Parameters, often a line each, do not count."""
    for module, function in functions():
        assert (function.end_lineno or 0) - function.body[0].lineno < FUNCTION_LINES, f"{module}.{function.name}"


def parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    stars = [star for star in (arguments.vararg, arguments.kwarg) if star]
    names = (argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *stars))
    return [name for name in names if name not in ("self", "cls")]


def test_functions_have_few_parameters() -> None:
    """Except for GPU kernels: Triton's language passes no objects."""
    for module, function in functions():
        if "triton.jit" not in map(ast.unparse, function.decorator_list):
            assert len(parameters(function)) <= PARAMETERS, f"{module}.{function.name}"


def test_a_file_of_commands_has_one_command() -> None:
    """It is `main` of a module without sub-modules; no command imports another one."""
    package = "ssd_bench.commands"
    mains = sorted(name for name, function in functions() if name.startswith(package) and function.name == "main")
    files = sorted(name for name in modules() if name.startswith(f"{package}."))
    assert mains == files and {name.count(".") for name in files} == {2}
    assert not [module for module in files if any(name.startswith(package) for name in imports()[module])]


def code_lines(file: Path) -> list[tuple[int, str]]:
    """Return numbers and stripped texts of lines, without imports, docstrings, parameters, comments, punctuation."""
    text = file.read_text(encoding="utf-8")
    nodes: list[ast.AST] = [parsed(file)]
    excluded: set[int] = set()
    for node in nodes:  # grows by the statements within; expressions hold none
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
        value = node.value if isinstance(node, ast.Expr) else None
        documents = isinstance(value, ast.Constant) and isinstance(value.value, str)
        if isinstance(node, ast.stmt) and (documents or isinstance(node, ast.Import | ast.ImportFrom)):
            excluded.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, ast.FunctionDef):  # an interface that several functions have repeats its parameters
            excluded.update(range(node.lineno + 1, node.body[0].lineno))
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if number not in excluded)
    return [(number, line) for number, line in lines if any(map(str.isalnum, line)) and not line.startswith("#")]


def test_no_lines_are_repeated() -> None:
    places: dict[tuple[str, ...], str] = {}
    copies = []
    for file in sorted(file for package in (*PACKAGES, "tests") for file in (ROOT / package).rglob("*.py")):
        lines = code_lines(file)
        for at in range(len(lines) - REPEATED_LINES + 1):
            place = f"{file.relative_to(ROOT)}:{lines[at][0]}"
            first = places.setdefault(tuple(line for _, line in lines[at : at + REPEATED_LINES]), place)
            if first != place:
                copies.append(f"{first} and {place}")
    assert not copies, f"move what they share to a module that both can import: {', '.join(copies)}"


STALE = dict.fromkeys(("papers/swift/figures.py", "records/reader.py", "cost/roofline.py"), False)
STALE |= dict.fromkeys(
    ("records/writer.py", "cost/latency.py", "engine/engine.py", "model/backends/cpu/linear.h"), True
)


@pytest.mark.parametrize(("file", "stale"), STALE.items())
def test_only_changed_code_that_makes_records_marks_a_run_as_stale(
    file: str, stale: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = tmp_path / "changed"
    changed.write_text("// another line", encoding="utf-8")
    sources = list(provenance._sources())
    before, path = provenance.code_hash(), ROOT / "ssd_bench" / file
    assert path.is_file() and (path in sources) == stale
    edited = [changed if source == path else source for source in sources]
    monkeypatch.setattr(provenance, "_sources", lambda: iter(edited))
    assert (provenance.code_hash() != before) == stale


def test_the_code_layout_names_every_package_and_module() -> None:
    """The table in ssd_bench/README.md matches the folder."""
    text = (ROOT / "ssd_bench" / "README.md").read_text(encoding="utf-8")
    table = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    packages = {path.parent.name + "/" for path in (ROOT / "ssd_bench").glob("*/__init__.py")}
    modules = {path.name for path in (ROOT / "ssd_bench").glob("[!_]*.py")}
    assert set(re.findall(r"`([\w.]+/?)`", table)) == packages | modules


def test_every_planted_fault_has_its_place() -> None:
    """The text that `python -m tests.planted_faults` changes occurs once, and its tests exist."""
    faults = read_faults()
    assert len({fault.what for fault in faults}) == len(faults) >= 40
    for fault in faults:
        assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.right) == 1, fault.what
        assert fault.right != fault.wrong and all((ROOT / file).is_file() for file in fault.test_files), fault.what
