r"""Answers in a \boxed{}: equal and different ones, limits of math-verify, and the process that runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tasks.scoring.math_answer import MathAnswer
from tasks.scoring.worker import Worker
from tests.math_answers import DIFFERENT, EQUAL, KNOWN_LIMITS
from tests.runs import python


@pytest.fixture(scope="module")
def scorer() -> MathAnswer:
    return MathAnswer(seconds=30.0)  # what is tested here is the verdict, on however busy a machine


def boxed(answer: str) -> str:
    return rf"So the answer is $\boxed{{{answer}}}$."


VERDICTS = [*((*pair, 1.0) for pair in EQUAL), *((*pair, 0.0) for pair in DIFFERENT), *KNOWN_LIMITS]


@pytest.mark.parametrize(("reference", "answer", "verdict"), VERDICTS)
def test_equal_and_different_answers(scorer: MathAnswer, reference: str, answer: str, verdict: float) -> None:
    assert scorer.item(boxed(answer), reference) == verdict


@pytest.mark.parametrize(
    ("text", "reference", "expected"),
    [
        (r"\boxed{3}, no: \boxed{4}", "4", 1.0),
        (r"\boxed {4}", r"$\boxed{4}$", 1.0),
        (r"4 in \boxed{}", "4", 0.0),
        (r"$\boxed{3}$ and $\boxed{5}$", "3, 5", 1.0),
        (r"$\boxed{3}$, so it is $\boxed{5}$", "5", 1.0),
        (r"$\boxed{4}$, $\boxed{4}$", "4", 1.0),
        (r"$$\boxed{(1, 2)} \quad \text{and} \quad \boxed{(3, 4)}$$", "(1,2), (3,4)", 1.0),
        (r"\(\boxed{3}\) or \(\boxed{5}\)", r"$\boxed{5}$ and $\boxed{3}$", 1.0),
        (r"\boxed{3} of \boxed{5}", "3, 5", 0.0),
        (r"First $\boxed{200}$. Final Answer: The final answer is $10,455$.", "10455", 1.0),
        (r"First $\boxed{200}$. Final Answer: The final answer is $10,455$.", "200", 0.0),
        (r"It is $\boxed{200}$. The final answer is above.", "200", 1.0),
        (r"The answer is \$32,\!348.", r"\$32,\!348", 1.0),
        (r"the final answer is $\frac{1}{2}$.", "0.5", 1.0),
        ("The answer is 42.", "43", 0.0),
        (r"The answer is $1+\frac{1}{\mathrm{e}}$.", r"1-\frac{1}{\mathrm{e}}", 0.0),
        (r"The answer is $1-\frac{1}{e}$.", r"1-\frac{1}{\mathrm{e}}", 1.0),
        (r"Thus \[4+\heartsuit\]", "4", 0.0),
        (r"so it is \(4\sqrt(2)\).", r"4\sqrt{2}", 1.0),
        ("The answer is **42**.", "42", 1.0),
        ("no idea", "42", 0.0),
        ("\\boxed{4}\n\nQuestion: What is 2+3?\nAnswer: \\boxed{5}", "4", 1.0),
        ("\\boxed{4}\nQ: What is 2+3?\nA: \\boxed{5}", "5", 0.0),
        (r"\boxed{4}", " ", None),
        (r"\boxed{4}", r"\boxed{}", None),
    ],
)
def test_which_answer_counts(scorer: MathAnswer, text: str, reference: str, expected: float | None) -> None:
    assert scorer.item(text, reference) == expected


def test_unread_answers_are_counted(scorer: MathAnswer) -> None:
    texts = [r"\boxed{1}", r"\boxed{2}", "no idea", r"\boxed{}", "", r"\boxed{1}"]
    references = ["1", "1", "1", "1", "1", ""]
    assert [scorer.item(*pair) for pair in zip(texts, references)] == [1.0, 0.0, 0.0, 0.0, 0.0, None]
    assert scorer.corpus(texts, references) == {"unread": 3 / 5}
    assert scorer.corpus(["1"], [""]) == {}


# Finds everything equal, but hangs or dies where the answer asks for it.
FAKE = r"""
import json, os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    answer = json.loads(line)[1]
    if "hang" in answer:
        time.sleep(600)
    if "die" in answer:
        os._exit(1)
    print("true", flush=True)
"""


# SymPy would compute all of its digits.
HANGING = r"\boxed{10000000!}"


def fake(seconds: float = 30.0, program: str = FAKE) -> MathAnswer:
    return MathAnswer(seconds, [sys.executable, "-S", "-c", program])


def pid_of(scorer: MathAnswer) -> int:
    assert scorer.worker._process is not None
    return scorer.worker._process.pid


def gone(pid: int, within: float = 10.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        # Where nothing reaps orphans, they stay as zombies.
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_answers_that_are_written_alike_start_no_process() -> None:
    scorer = fake()
    assert scorer.item(r"\boxed{ \dfrac{1}{2}\,x. }", r"\frac{1}{2}x") == 1.0
    assert scorer.worker._process is None


def test_a_hanging_answer_scores_zero_within_its_time_and_the_next_one_works() -> None:
    scorer = fake(seconds=0.5)
    began = time.monotonic()
    assert scorer.item(r"\boxed{hang}", "1") == 0.0
    assert time.monotonic() - began < 8.0  # the start of the process included
    assert scorer.corpus([r"\boxed{hang}"], ["1"]) == {"unread": 1.0}  # and is not compared again
    assert scorer.worker._process is None
    scorer.worker.seconds = 30.0
    assert scorer.item(r"\boxed{2}", "1") == 1.0


def test_an_answer_that_is_never_read_scores_zero_too() -> None:
    scorer = fake(0.5, "import time; print('ready', flush=True); time.sleep(600)")
    assert scorer.item("x" * 1_000_000, "1") == 0.0


def test_math_verify_itself_is_killed_and_started_again() -> None:
    scorer = MathAnswer(seconds=2.0)
    assert scorer.item(HANGING, "1") == 0.0
    assert scorer.worker._process is None
    scorer.worker.seconds = 30.0
    assert scorer.item(r"\boxed{1+1}", "2") == 1.0
    pid = pid_of(scorer)
    del scorer
    assert gone(pid)


def test_a_dead_process_costs_one_answer_at_most_and_one_that_died_idle_none() -> None:
    scorer = fake()
    assert [scorer.item(rf"\boxed{{{text}}}", "1") for text in ("2", "die", "3")] == [1.0, 0.0, 1.0]
    first = pid_of(scorer)
    os.kill(first, signal.SIGKILL)
    assert gone(first)
    assert scorer.item(r"\boxed{4}", "1") == 1.0
    assert pid_of(scorer) != first


def test_one_process_serves_all_answers_and_ends_with_the_scorer() -> None:
    scorer = fake()
    pids = set()
    for answer in "234":
        scorer.item(rf"\boxed{{{answer}}}", "1")
        pids.add(pid_of(scorer))
    assert len(pids) == 1
    del scorer
    assert gone(pids.pop())


def test_threads_take_turns() -> None:
    echo = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print(line, end='', flush=True)"
    worker = Worker([sys.executable, "-S", "-c", echo], 30.0)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(worker.ask, range(100))) == list(range(100))


def test_a_program_that_does_not_start_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not start"):
        fake(program="raise SystemExit(1)").item(r"\boxed{2}", "1")


def run(program: str) -> list[int]:
    """Numbers printed by a program, which begins with a scorer that has answered once."""
    begin = "import os, sys\nfrom tasks.scoring.math_answer import MathAnswer\n"
    begin += "scorer = MathAnswer(30.0, [sys.executable, '-S', '-c', sys.argv[1]])\nscorer.item('2', '1')\n"
    made = python("-c", f"{begin}{program}", FAKE)
    assert made.stdout, made.stderr
    return [int(word) for word in made.stdout.split()]


@pytest.mark.parametrize("end", ["raise SystemExit", "os.kill(os.getpid(), 9)"])
def test_no_process_outlives_its_parent(end: str) -> None:
    [pid] = run(f"print(scorer.worker._process.pid, flush=True)\n{end}")
    assert gone(pid)


def test_a_fork_starts_its_own_process_and_leaves_the_parents_alone() -> None:
    first, forked, forked_score, last, last_score = run(
        "print(scorer.worker._process.pid, flush=True)\n"
        "child = os.fork()\n"
        "if child:\n    os.waitpid(child, 0)\n"
        "score = scorer.item('3', '1')\n"
        "print(scorer.worker._process.pid, int(score), flush=True)\n"
    )
    assert first == last != forked
    assert forked_score == last_score == 1
    assert gone(first)
    assert gone(forked)


def test_math_verify_ends_by_itself_where_nobody_is_left_to_kill_it() -> None:
    command = MathAnswer(seconds=1.0).worker.command
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    process.communicate(json.dumps(["$1$", HANGING]).encode() + b"\n", timeout=60)
    assert process.returncode == -signal.SIGXCPU
