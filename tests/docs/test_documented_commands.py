"""Every command in README and docs is run: as it stands, in small, or described by `dry=true`, except those in
`NOT_RUN`, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from omegaconf import DictConfig

from ssd_bench.cli import COMMANDS, dispatch
from ssd_bench.papers.runs import grid
from ssd_bench.records.reader import find_runs, load_run
from ssd_bench.sweep import experiments, overrides, sweep
from tests import exhibit_runs
from tests.runs import CPU, ROOT, executed, exit_code, program, python

DOCUMENTS = ("*.md", *(f"{folder}/**/*.md" for folder in ("docs", "methods", "tasks", "conf", "ssd_bench")))
DOCUMENTS += ("studies/*.md", "tests/*.md")
ELSEWHERE = {
    "CHANGELOG.md": "says what was",
    "docs/tutorials/": "tests/docs/test_tutorials.py and tests/compose/test_plugin.py run them",
}
Capture = pytest.CaptureFixture[str]
PROGRAM = r"(?:python -(?:m \w+|c )|ssd-bench |make [a-z]|pip install )"
SHELL = ("", "sh", "bash", "console", "text")
OURS = ("python -m ssd_bench ", "ssd-bench ")

BESIDE = "its output stands beside it"
INDEX = "installs from an index of packages"
NOT_RUN = {
    "make setup": f"{INDEX}; tests/project/test_package.py runs from the package's files alone",
    'make setup TORCH="torch==2.13.0 --index-url URL"': INDEX,
    "make test": "it runs this test",
    "make fast": "minutes; its tests are among these",
    "make check": "it runs this test",
    "make test-cluster": "minutes, as root, with a Slurm: tests/cluster/test_launchers.py",
    "make lock": f"{INDEX}; tests/project/test_package.py reads what it writes",
    "make test-lowest": INDEX,
    "make notebooks": "it writes into the repository; tests/report/test_notebooks.py executes them",
    "make executed": "tests/report/test_notebooks.py executes them",
    "make tables": "tests/report/test_report.py and tests/report/test_page.py make it",
    "make page": "it writes into the repository; tests/report/test_page.py holds what it made to the records",
    "make weights*": "other packages have them; tests/model/test_packaged.py fetches a small model",
    "python -m ssd_bench weights *": "another package has them; tests/model/test_packaged.py fetches a small model",
    "python -m ssd_bench model=qwen2_5_coder*": "0.5 GB of weights; tests/model/test_packaged.py fetches a small model",
    "make replicate-mini": "44 minutes; tests/sweep/test_replicate.py makes a replication in small",
    "make bench": "minutes, and another package's weights; tests/commands/test_bench.py runs it on a small model",
    "make miniature": "hours; tests/studies/test_miniature.py trains a few steps",
    "pip install*": INDEX,
    "python -m hatchling build -t wheel": "tests/project/test_package.py builds it",
    "python -m pytest -m cluster -s tests/cluster/test_many_runs.py": "half an hour: tests/cluster/test_many_runs.py",
    "python -c *released*": "reads files of others; tests/papers/test_exhibit_figures.py draws such",
    "python -m pytest tests/tasks/test_code_answers.py": "it is among these tests",
    "python -m pytest tests/results/test_compare.py": "it is among these tests",
    "python -m tests.compare_scorers *": "minutes, data of others; tests/tasks/test_code_answers.py compares a part",
    "python -m tests.interval_coverage": "a minute; tests/results/test_interval_coverage.py draws a part",
    "python -m tests.planted_faults": "an hour; tests/project/test_structure.py looks up its faults in the code",
    "python -m ssd_bench method=successors *": "tests/methods/test_methods_readme.py runs it",
    "python -m ssd_bench data fetch *": "needs a network; tests/data/test_data_tool.py fetches from folders",
    "python -m studies.miniature train evaluate": "hours; tests/studies/test_miniature.py trains a few steps",
    "python -m studies.miniature evaluate": "minutes; tests/studies/test_miniature.py asks some of its questions",
    "python -m studies.miniature samples": "it writes into the repository; tests/studies/test_corpus.py elsewhere",
    "python -m studies.frontier *": "minutes; tests/studies/test_frontier.py runs it on a small model",
    "python -m studies.contexts*": "minutes; tests/studies/test_contexts.py runs it on a small model",
    "python -m studies.unrounded *": "0.5 GB of another package; tests/studies/test_unrounded.py moves small tensors",
    "python -m studies.rounding*": "minutes; tests/studies/test_rounding.py scores formats on a small model",
    "python -m studies.costs *": "it writes into the repository; tests/studies/test_costs.py fits the same",
    "python -m ssd_bench shapes": "needs a GPU; tests/cost/test_shapes.py runs it in small",
    "python -m ssd_bench shapes models=llama3_1_8b tokens=96": "needs a GPU; runs/reference/shapes has its record",
    "python -m ssd_bench bench": "minutes; tests/commands/test_bench.py runs it on a small model",
    "python -m ssd_bench bench record=true model=*": BESIDE,
    "python -m ssd_bench bench hardware=cuda *": "needs a GPU; tests/commands/test_bench.py runs it on a small model",
}
"""Command, with a star for any text -> why not here. `make` recipes and the options of `bench` are still looked at."""

RECORD = "miniature-swift-govreport-83a0974387"
FILLED = {
    "task.path=FILE.jsonl": "task.path={0}/prompts.jsonl",
    "model.path=DIR": "model.path={0}/model",
    "data.root=DIR": "data.root={0}/data",
    "check DIR": "check {0}/data",
    "check FILE.jsonl": "check {0}/prompts.jsonl",
    "run=RUN_DIR": "run=runs/NAME",
    "runs/OLD runs/NEW": "runs/NAME runs/NAME",
    "compare A B": "compare runs/NAME runs/NAME",
    "compare runs/reference/mini runs/mini": "compare runs/NAME runs/NAME",
    "record=PACK_OR_DIR": "record=runs/NAME",
    "record=runs/reference/mini.zip": "record=runs/NAME",  # a minute; test_formats checks some
    "runs_dir=DIR": "runs_dir=runs/table",
    "runs_dir=…": "runs_dir=runs/other",
    "runs_dir=/shared/runs": "runs_dir=runs/other",
    "claims runs_dir=runs/reference/mini": "claims",  # of the records that it has
    "claims runs_dir=runs/reference": "claims",
    "report runs_dir=runs/reference/mini": "report runs_dir=runs/table",  # tests/report/test_page.py makes the page
    "TASK": "gsm8k",
    "METHOD": "swift",
    "PRESETS": "swift,knapspec",
    "DTYPE": "bfloat16",
}
"""Placeholder or slow part of a command -> what a user would write; {0} is the folder of `workplace`."""
NAMES = ("to=FILE", "out=FILE.zip", "out=DIR")  # as good as any other
ROOMS = {"advise": "headers", "claims": "judged"}
"""Command -> folder of its runs, if not `runs` of `workplace`."""
SAYS = {
    "acceptance": "M, drafting steps",
    "advise": "Not known to this estimate:",
    "audit": "comparisons:|came back",
    "claims": "claims:",
    "compare": "verdict on b",
    "data": "gsm8k|0 problems",
    "explain": "largest loss:",
    "export": "answers of arm method|to draft with it",
    "pack": r"zip: \d runs",
    "help": "python -m ssd_bench",
    "options": r"method\.\w*window",
    "replay": "PREDICTED",
    "report": "# Report",
    "reproduce": "REPRODUCED",
    "run": "new tokens in all arms",
    "schema": "JSON Schema|json-schema.org",
    "status": "done",
    "searches": "evaluations",
    "shapes": "llama3_1_8b",
    "validate": r"(\d+) of \1 records are valid",
}
"""Command -> expected output."""
NAMED = ("python -m ssd_bench advise", "python -m ssd_bench data")  # in prose, without what they need
SMALL = ("limit=1", "decode.max_new_tokens=8", *CPU)
TOOLS = ("python", "pip", "uv", "ruff", "mypy", "jupyter")  # that recipes start
UNMADE = ("bench", "kernels", "report", "weights")
"""Commands in recipes that are run elsewhere, if at all."""


@dataclass(frozen=True)
class Command:
    """A command line of a document.

    Attributes:
        line: without prompt, comment and `.venv/bin/`.
        files: that have it.
        shown: output lines in the first of them.
    """

    line: str
    files: tuple[str, ...]
    shown: tuple[str, ...] = ()


def documents() -> Iterator[tuple[str, str]]:
    for path in sorted({path for pattern in DOCUMENTS for path in ROOT.glob(pattern)}):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(tuple(ELSEWHERE)):
            yield name, path.read_text(encoding="utf-8")


def command_in(line: str) -> str | None:
    """Return a line's shell command, maybe in quotes to another program."""
    line = re.sub(r"\s+#\s.*", "", line.replace(".venv/bin/", ""))
    found = re.match(rf"(?:\w+=\S+ )*({PROGRAM}.*)", line) or re.search(rf'"({PROGRAM}[^"]*)"', line)
    return " ".join(found[1].split()) if found else None


def in_block(block: str) -> Iterator[tuple[str, list[str]]]:
    """The lines given to a shell, and the output shown under each prompt."""
    known: dict[str, str] = {}
    shown: list[str] = []
    text = re.sub(r"\\\n\s*", " ", block)
    for raw in text.splitlines():
        line = raw.removeprefix("$ ").strip()
        if "\n$ " in f"\n{text}" and not raw.startswith("$ "):
            shown.append(line)
            yield line, []  # a program may name a command
            continue
        if given := re.fullmatch(r'(\w+)="(.*)"', line):
            known[given[1]] = given[2]
            continue
        for name, value in known.items():
            line = line.replace(f"${name} ", f"{value} ")
        loop = re.fullmatch(r"for (\w+) in (.*?); do (.*); done", line)
        shown = []
        for each in [loop[3].replace(f"${loop[1]}", word) for word in loop[2].split()] if loop else [line]:
            yield each, shown


def collected(texts: Iterable[tuple[str, str]]) -> dict[str, Command]:
    found: dict[str, Command] = {}
    for name, text in texts:
        fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        lines = [each for language, block in fences if language in SHELL for each in in_block(block)]
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
        lines += [(span, []) for span in spans if re.match(PROGRAM, span)]
        for raw, shown in lines:
            if line := command_in(raw):
                before = found.get(line, Command(line, ()))
                files = dict.fromkeys((*before.files, name))
                found[line] = Command(line, tuple(files), before.shown or tuple(shown))
    return found


def matches(line: str, entry: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, entry.split("*"))), line) is not None


FOUND = collected(documents())
LEFT = {line for line in FOUND if any(matches(line, entry) for entry in NOT_RUN)}
MADE = [line for line in FOUND if line.startswith("make ")]
RUN = [line for line in FOUND if line not in LEFT and line not in MADE]


def arguments(line: str) -> list[str]:
    return shlex.split(next(line.removeprefix(start) for start in OURS if line.startswith(start)))


def is_run(words: Sequence[str]) -> bool:
    return not words or words[0] == "run" or words[0] not in COMMANDS


@contextmanager
def sparing() -> Iterator[None]:
    """Sweeps compose each choice of a command, not the product; of a pattern two; of experiments the first job.

    tests/sweep/test_experiments.py composes all. Times on record are not asked for: they need this machine's profile.
    """
    whole, product, choices, composed = grid.load, overrides.product, overrides._choices, sweep.Sweep._compose
    asked: list[str] = []

    def first(name: str) -> grid.Experiment:
        asked.append(name)
        found = whole(name)
        return replace(found, jobs=found.jobs[: int(name == asked[0])])

    def few(options: Iterable[overrides.Override]) -> list[overrides.Overrides]:
        jobs, kept, seen = product(options), list[overrides.Overrides](), set[str]()
        while {*(job := max(jobs, key=lambda job: len({*job} - seen)))} - seen:
            kept.append(job)
            seen.update(job)
        return kept

    def two(override: overrides.Override) -> list[str]:
        return choices(override)[: 2 if isinstance(override.value(), overrides.Glob) else None]

    @cache
    def once(self: sweep.Sweep, options: overrides.Overrides) -> DictConfig:
        return composed(self, options)

    fewer = SimpleNamespace(**vars(grid) | {"load": first})
    changes = {"product": few, "Forecast": lambda folders: SimpleNamespace(hours=lambda run: None)}
    patched = patch.object(sweep.Sweep, "_compose", lambda self, options: once(self, tuple(options)))
    in_others = (patch.object(experiments, "grid", fewer), patch.object(overrides, "_choices", two))
    with patched, patch.multiple(sweep, **changes), in_others[0], in_others[1]:
        yield


def described(words: Sequence[str]) -> int:
    """Say what a run or a sweep would be, looking at every option."""
    with sparing():
        return exit_code([*words, "dry=true"])


def unpacked(pack: Path, runs: Path, headers: Path) -> None:
    """Unpack the reference runs and searches that commands read, and all headers."""
    with zipfile.ZipFile(pack) as archive:
        every = archive.namelist()
        indices = [f"replication/ssd_bench_{name}.mini.json" for name in ("noise", "population")]
        needed = {cell["run"] for name in indices for cell in json.loads(archive.read(name))["cells"]} | {RECORD}
        own = (name for name in every if name.partition("/")[0] in {*needed, "searches"})
        archive.extractall(runs, (*indices, *own))
        archive.extractall(headers, (name for name in every if name.endswith("/run.json")))


@pytest.fixture(scope="module")
def workplace(small_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: runs, the reference records, a model, prompts, data."""
    folder = tmp_path_factory.mktemp("workplace")
    runs = folder / "runs"
    unpacked(ROOT / "runs/reference/mini.zip", runs / "reference/mini", folder / "headers/mini")
    (runs / "reference/mini/searches").rename(runs / "searches")
    shutil.copytree(ROOT / "runs/reference/shapes", runs / "reference/shapes")
    made = executed(runs, "method=fixed_layers", "task=gsm8k", *SMALL).path
    shutil.copytree(made, runs / "other/NAME")
    shutil.copytree(runs / "reference/mini" / RECORD, runs / "table" / RECORD)  # it has a profile of its own
    made.rename(runs / "NAME")
    exhibit_runs.make(folder / "judged", "small")
    exhibit_runs.indexed(folder / "judged", "swift_table2", "small", lambda job: "small", own_traces=False)
    (folder / "judged" / "reference").mkdir()
    (folder / "judged" / "reference" / "mini").symlink_to(folder / "judged")
    (folder / "model").symlink_to(small_checkpoint)
    (folder / "data").mkdir()
    shutil.copy(ROOT / "tasks/sample/gsm8k.jsonl", folder / "data")
    (folder / "prompts.jsonl").write_text('{"prompt": "the ferry"}\n', encoding="utf-8")
    return folder


@pytest.fixture
def desk(workplace: Path, no_page: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run a command in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def filled(line: str, folder: Path) -> list[str]:
    """A command's words, with a user's text where it leaves something open."""
    for code in re.findall(r'\$\(python -c "(.*?)"\)', line):
        line = line.replace(f'$(python -c "{code}")', python("-c", code, cwd=Path.cwd()).stdout.strip())
    for left, written in FILLED.items():
        line = re.sub(rf"(?<![\w.]){re.escape(left)}(?!\w)", written.format(folder), line)
    words = arguments(line)
    left_open = [word for word in words if re.search(r"…|(?<![\w/])[A-Z_]{3,}\b", word) and word not in NAMES]
    assert not left_open, f"FILLED does not say what a user would write for {left_open}"
    return words


SAID: dict[tuple[str, ...], str] = {}
"""Words of a command -> its output."""


def told(line: str, folder: Path, capsys: Capture) -> str:
    """Output of a command, which must succeed; one that several documents write in other words runs once."""
    words = tuple(filled(line, folder))
    if words not in SAID:
        SAID[words] = output(words, folder, capsys)
    return SAID[words]


def output(words: Sequence[str], folder: Path, capsys: Capture) -> str:
    name = "run" if is_run(words) else words[0]
    Path("runs").symlink_to(folder / ROOMS.get(name, "runs"))
    capsys.readouterr()
    if any(word.startswith("hydra/launcher=") for word in words):  # some leave a stream behind that is closed later
        with ProcessPoolExecutor(1, get_context("fork")) as apart:
            made = apart.submit(program, *words, by=described).result()
        assert made.returncode == 0, made.stderr
        return made.stdout
    work = described if name == "run" and "--help" not in words else exit_code
    code = work(words)
    said = capsys.readouterr()
    assert code == 0, said.err
    return said.out


def unsaid(shown: Iterable[str], said: str) -> list[str]:
    """Lines that a document shows and a command does not say; dots stand for any."""
    lines = {" ".join(line.split()) for line in said.splitlines()} | {"…"}
    return [line for line in shown if " ".join(line.split()) not in lines]


@pytest.mark.parametrize("line", [line for line in RUN if line.startswith(OURS)], ids=str)
def test_a_command_does_what_its_document_says(line: str, workplace: Path, desk: Path, capsys: Capture) -> None:
    if "set.json'" in line:
        assert dispatch(["export", f"run={workplace}/runs/table/{RECORD}", "to=set.json"]) == 0
    asked = f"{line} --help" if line in NAMED else line
    said = told(asked, workplace, capsys)
    words = arguments(asked)
    name = "help" if "--help" in words else "run" if is_run(words) else words[0]
    assert name in SAYS, "SAYS has to have what stands in its output"
    assert re.search(SAYS[name], said)
    assert not unsaid(FOUND[line].shown, said)


@pytest.mark.parametrize("line", [line for line in RUN if not line.startswith(OURS)], ids=str)
def test_a_program_of_the_users_own_runs(line: str, workplace: Path, desk: Path, capsys: Capture) -> None:
    (desk / "runs").symlink_to(workplace / "runs")
    *start, code = shlex.split(line)
    assert start == ["python", "-c"]
    exec(code, {})
    assert f"[{len(find_runs('runs'))} rows x" in capsys.readouterr().out


def of_make(line: str, folder: Path) -> tuple[int, list[list[str]], str]:
    """Exit code, the project's commands, and errors of `make -n` in an otherwise empty folder.

    Lines with $(MAKE) are executed all the same: their programs are stubs, in `bin`.
    """
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, folder)
    for name in ("bin", "build"):
        (folder / name).mkdir()
    (folder / "build/lowest.txt").touch()  # made by a line that -n only shows
    for tool in TOOLS:
        (folder / "bin" / tool).write_text("#!/bin/sh\n", encoding="utf-8")
        (folder / "bin" / tool).chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    words = ["make", "-n", "BIN=bin", *shlex.split(line)[1:]]
    made = subprocess.run(words, cwd=folder, env=env, capture_output=True, encoding="utf-8", timeout=60)
    ours = re.findall(r"^bin/python -m ssd_bench ([^;\n]*)", made.stdout, re.MULTILINE)
    return made.returncode, [shlex.split(one, comments=True) for one in ours], made.stderr


@pytest.mark.parametrize("line", MADE, ids=str)
def test_make_knows_the_target_and_its_commands_are_the_projects(
    line: str, workplace: Path, desk: Path, tmp_path_factory: pytest.TempPathFactory, capsys: Capture
) -> None:
    code, found, errors = of_make(line, tmp_path_factory.mktemp("make"))
    assert code == 0, errors
    for words in found:
        assert is_run(words) or words[0] in COMMANDS
        if words[0] not in UNMADE:
            assert told(shlex.join([*shlex.split(OURS[0]), *words]), workplace, capsys)


def checked_runs(folder: Path) -> int:
    """Number of runs in a folder, whose outputs must all be AR's."""
    found = [load_run(path).prompts for path in find_runs(folder)]
    for prompts in found:
        assert set(prompts.loc[prompts["arm"] == "method", "lossless"]) == {"identical"}
    return len(found)


README = [line for line in RUN if "README.md" in FOUND[line].files and is_run(arguments(line))]


@pytest.mark.parametrize("line", [line for line in README if "experiment" not in line], ids=str)
def test_what_readme_runs_is_run(line: str, workplace: Path, desk: Path) -> None:
    assert exit_code([*filled(line, workplace), *SMALL, f"runs_dir={desk}/made"]) == 0
    assert checked_runs(desk / "made") == 1


def test_what_make_run_runs_is_run(desk: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    *_, words = of_make("make run", tmp_path_factory.mktemp("make"))[1]
    methods = next(word for word in words if word.startswith("method=")).split(",")
    assert exit_code([*words, *SMALL, f"runs_dir={desk}/made"]) == 0
    assert checked_runs(desk / "made") == len(methods) == 5


@pytest.mark.parametrize("line", [line for line in FOUND if line.startswith(f"{OURS[0]}bench")], ids=str)
def test_the_options_of_a_bench_are_those_of_a_run(line: str, desk: Path) -> None:
    assert described([word for word in arguments(line)[1:] if word != "record=true"]) == 0


def stands_beside(line: str) -> bool:
    """Return whether a block or table follows the command before a document's next heading."""
    words = r"\s+".join(map(re.escape, line.split()))
    return any(
        re.search(rf"{words}(?:(?!\n#).)*?\n\n(?:```|\|)", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
        for name in FOUND[line].files
    )


@pytest.mark.parametrize("entry", NOT_RUN, ids=str)
def test_what_is_not_run_is_asked_for_and_its_reason_is_there(entry: str) -> None:
    lines = [line for line in FOUND if matches(line, entry)]
    assert lines, "no document has it any more"
    why = NOT_RUN[entry]
    places = [ROOT / name for name in re.findall(r"(?:tests|runs)(?:/\w+)+(?:\.py)?", why)]
    assert all(place.exists() for place in places)
    if why == BESIDE:
        assert all(map(stands_beside, lines))
    if why.endswith("has its record"):
        records = [json.loads(path.read_text(encoding="utf-8")) for path in places[-1].rglob("*.json")]
        assert {*lines} <= {record["provenance"]["command"] for record in records}


def test_documents_with_tests_of_their_own_have_them() -> None:
    for name, why in ELSEWHERE.items():
        assert (ROOT / name).exists()
        assert all((ROOT / test).is_file() for test in re.findall(r"tests/[\w/]+\.py", why))


def test_commands_are_found_in_blocks_and_in_prose() -> None:
    assert sum("README.md" in command.files for command in FOUND.values()) >= 9
    assert len(FOUND) >= 120 and len({name for command in FOUND.values() for name in command.files}) >= 18
    page = """
`make all` and `python -m ssd_bench report
runs_dir=DIR`; `python` alone is none.
```sh
python -m ssd_bench task=gsm8k \\
  limit=1    # a comment
R="python -m ssd_bench -m limit=2"
for t in a b; do $R task=$t; done
sbatch --wrap "python -m ssd_bench method=ar"
```
```
$ .venv/bin/python -m ssd_bench audit
a line
$ cat audit.md
```
```python
python -m ssd_bench in_no_shell
```
"""
    found = collected([("page", page)])
    ours = ["task=gsm8k limit=1", "-m limit=2 task=a", "-m limit=2 task=b", "method=ar", "audit"]
    assert [line.removeprefix(OURS[0]) for line in found] == [*ours, "make all", "report runs_dir=DIR"]
    assert found[f"{OURS[0]}audit"].shown == ("a line",)
    assert unsaid(["a  line", "…", "another"], "x\n a line\n") == ["another"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("method.nosuch=1", "method.nosuch"),
        ("-m method=ar,nosuch task=gsm8k", "nosuch"),
        ("-m experiment=swift_table2 scale=tiny", "tiny"),
        ("report out=DIR nosuch=1", "nosuch=1"),
        ("replay run=runs/NAME hardware=nosuch", "nosuch"),
        ("explain run=runs/OTHER", "OTHER"),
        ("task=jsonl task.path=OTHER", "what a user would write"),
    ],
)
def test_a_command_that_does_not_work_fails(
    options: str, message: str, workplace: Path, desk: Path, capsys: Capture
) -> None:
    with pytest.raises(AssertionError, match=message):
        told(OURS[0] + options, workplace, capsys)
