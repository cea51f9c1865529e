"""Scores of SQL, of mathematics and of code, the last by running it within limits."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import pytest

from ssd_bench.data import LocalSource
from ssd_bench.errors import ConfigError
from tasks.completion import program, until_top_level
from tasks.sandbox import Limits, runs_to_the_end
from tasks.sql import sql_match
from tests.test_tasks import make, score

LIMITS = Limits(cpu_seconds=2, wall_seconds=10, memory_mib=512)
QUERY = "SELECT name, COUNT(*) FROM users WHERE city = 'Bern' GROUP BY name;"
PROMPT = 'import math\n\n\ndef add(a, b):\n    """ Add. """\n'
MARGIN = (
    "def g():",
    "class A:",
    'if __name__ == "__main__":',
    "print(f(1))",
    "# next",
    '"""',
    "@cache",
    "x = 1",
    "```",
)
TEST = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(0, 0) == 0\n"


@pytest.mark.parametrize(
    ("text", "equal"),
    [
        (QUERY, True),
        (" select NAME , count( * )\nfrom Users\twhere city='Bern'\ngroup by name ", True),
        (QUERY + ";\n", True),
        (QUERY + "\nInstruction: another one\nSQL Query: SELECT 1", True),
        ("Here:\n\n```sql\n" + QUERY + "\n```\nIt counts.", True),
        ("```\n" + QUERY, True),
        ("-- people\n" + QUERY.replace("FROM", "/* by\nname */ FROM"), True),
        (QUERY.replace("'Bern'", "'bern'"), False),
        (QUERY.replace("'Bern'", "'Bern '"), False),
        (QUERY.replace("'Bern'", "'--Bern'"), False),
        (QUERY.replace("name,", '"name",'), False),
        (QUERY.replace("GROUP BY", "GROUPBY"), False),
        (QUERY + " SELECT 1", False),
        ("The query is " + QUERY, False),
        ("", False),
    ],
)
def test_sql_is_compared_without_white_space_and_case(text: str, equal: bool) -> None:
    assert sql_match(QUERY, text) == float(equal)
    assert score(make("spider2"), QUERY, text) == float(equal)


def test_sql_quotes_hold_what_is_quoted() -> None:
    assert sql_match("SELECT 'it''s; -- A'", "select 'it''s; -- A' ;") == 1.0
    assert sql_match("SELECT 'it''s; -- A'", "select 'it''s; -- a'") == 0.0
    assert sql_match('SELECT `A b` FROM "T"', 'select `A b` from "T"') == 1.0
    assert sql_match('SELECT `A b` FROM "T"', 'select `A b` from "t"') == 0.0
    assert sql_match(";", ";") == 0.0


def test_aime_reads_the_last_box() -> None:
    task = make("aime24")
    assert score(task, "25", r"First \boxed{7}, so the answer is \boxed{025}.") == 1.0
    assert score(task, "25", r"\boxed{7}, not 25") == 0.0


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("    return 1\n", "    return 1\n"),
        ("    x = [\n        1,\n]\n    return x\n\n\ndef g():\n", "    x = [\n        1,\n]\n    return x\n\n\n"),
        *((f"    return 1\n{line}\n    y\n", "    return 1\n") for line in MARGIN),
        ("\n    return 1\n", "\n    return 1\n"),
        ("return 1", ""),
        ("", ""),
    ],
)
def test_a_completion_ends_at_the_first_line_at_the_margin(text: str, kept: str) -> None:
    assert until_top_level(text) == kept


@pytest.mark.parametrize(
    ("answer", "passes"),
    [
        ("    return a + b\n", True),
        ("\treturn a + b\n", True),
        ("\tif a:\n\t    return a + b\n    return b\n", True),
        ("   return a + b\n", True),  # as a SentencePiece tokenizer decodes four spaces
        ("\n    return a + b\n\n\ndef broken(:\n", True),
        ("    return a + b\n\nprint(undefined)\n", True),
        ("    return int(math.fsum((a, b)))\n", True),
        ("Sure:\n\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds.", True),
        ("```python\n\ndef add(a, b):\n\treturn int(math.fsum((a, b)))\n", True),
        ("```\n    return a + b\n```", True),
        ("```python\nprint('unrelated')\n```\nthen\n```python\ndef add(a, b):\n    return a + b\n```", True),
        ("    return a - b\n", False),
        ("    return a +\n", False),
        ("return a + b\n", False),
        ("```python\ndef other(a, b):\n    return a + b\n```", False),
        ("", False),
    ],
)
def test_humaneval_runs_what_an_answer_completes(answer: str, passes: bool) -> None:
    reference = json.dumps({"prompt": PROMPT, "test": TEST, "entry_point": "add"})
    assert score(make("humaneval"), reference, answer) == float(passes)


def test_tabs_and_a_prompt_that_ends_within_a_line() -> None:
    source = program('def f(x):\n\t""" Tab. """\n\treturn', " x\n\t# done\nprint(1)\n", "f", "TEST\n")
    assert source == 'def f(x):\n    """ Tab. """\n    return x\n    # done\n\n\nTEST\n\n\ncheck(f)\n'
    literal = program(PROMPT, '\treturn "a\tb"\n', "add", TEST)
    assert '    return "a\tb"\n' in literal


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "raise SystemExit",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
        "assert False",
        "this is no Python",
        "while True: pass",
        "x = bytearray(1 << 30)",
        "open('large', 'wb').write(bytes(1 << 21))",
        "import torch",
        "input()",
        "x = '\ud800'\nraise ValueError(x)",
        "f = lambda: f()\nf()",
    ],
)
def test_a_program_that_does_not_reach_its_end_fails(source: str) -> None:
    assert not runs_to_the_end(source, LIMITS)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "import os\nassert not os.listdir() and 'HOME' not in os.environ and 'PATH' not in os.environ",
        "open('small', 'w').write('x')\nprint('x' * 10**6)\nimport sys\nprint('y', file=sys.stderr)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()",
        "import collections, decimal, heapq, itertools, math, re, string, typing\nassert __name__ != '__main__'",
    ],
)
def test_a_program_that_reaches_its_end_passes(source: str) -> None:
    began = time.monotonic()
    assert runs_to_the_end(source, LIMITS)
    assert time.monotonic() - began < LIMITS.wall_seconds


def test_the_clock_ends_a_program_that_waits() -> None:
    began = time.monotonic()
    assert not runs_to_the_end("import time\ntime.sleep(60)", Limits(cpu_seconds=2, wall_seconds=1, memory_mib=512))
    assert 1 <= time.monotonic() - began < 10


def test_nothing_is_left_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    note = tmp_path / "pid"
    source = (
        "import os, subprocess, sys\nopen('left', 'w').close()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
    )
    assert runs_to_the_end(source, LIMITS)
    assert list(tmp_path.iterdir()) == [note]
    child = int(note.read_text())
    deadline = time.monotonic() + 5
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    """Whether the process is there and is more than an entry that waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_same_program_runs_once(tmp_path: Path) -> None:
    source = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')"
    assert [runs_to_the_end(source, LIMITS) for _ in range(3)] == [True] * 3
    assert (tmp_path / "runs").read_text() == "x"


def test_the_parent_keeps_its_environment_and_folder() -> None:
    before = (os.getcwd(), dict(os.environ))
    assert runs_to_the_end("import os\nos.chdir('/')\nos.environ['SSD_TEST'] = '1'", LIMITS)
    assert (os.getcwd(), dict(os.environ)) == before


def test_limits_in_which_python_cannot_start_are_refused(tmp_path: Path) -> None:
    row = {"id": "h0", "prompt": PROMPT, "test": TEST, "entry_point": "add"}
    (tmp_path / "humaneval.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match=r"'memory_mib': 1\}.*within which Python starts"):
        make("humaneval", memory_mib=1).prompts(LocalSource(tmp_path), "chat", None, 0)
