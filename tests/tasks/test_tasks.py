"""Tasks: prompts byte for byte, order, demonstrations, scores, refusals, and each run end to end."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from pathlib import Path

import datasets
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from ssd_bench.conf import CONF
from ssd_bench.contract.task import DataSpec, Prompt, Task
from ssd_bench.data import SampleSource
from ssd_bench.errors import ConfigError
from ssd_bench.results.digest import summarise
from tasks.scoring.numbers import FinalNumber, final_number
from tasks.scoring.rouge import Rouge
from tasks.selection import shuffled
from tests.runs import ROOT, executed

SAMPLE = SampleSource()
HUB = {"path": "p", "name": "n", "split": "s", "revision": "r"}


@cache
def composed(name: str) -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "conf")):
        return compose(f"task/{name}")


def make(name: str, **changes: object) -> Task:
    task: Task = instantiate(OmegaConf.merge(composed(name), {"task": changes}).task)
    return task


def score(task: Task, reference: str, text: str) -> float | None:
    return task.score(Prompt("p", "", "", "", reference, task.name), text)


def sample_rows(name: str, *fields: str) -> list[dict[str, str]]:
    return SAMPLE.rows(DataSpec(name, fields, HUB))


class FakeSource:
    """Rows from memory; remembers which files were read."""

    def __init__(self, **rows: list[dict[str, str]]) -> None:
        self.files = {name.replace("_", "."): value for name, value in rows.items()}
        self.read: list[str] = []

    def rows(self, spec: DataSpec) -> list[dict[str, str]]:
        self.read.append(spec.name)
        return self.files[spec.name]

    def fingerprint(self, spec: DataSpec) -> str:
        return spec.name


def problem(identity: str, answer: str = "#### 1") -> dict[str, str]:
    return {"id": identity, "question": f"question {identity}", "answer": answer}


TRAY = (
    "A bakery bakes 14 trays of rolls each morning with 12 rolls on a tray. It sells three quarters of the rolls "
    "before noon and gives 9 of the remaining rolls to the staff. How many rolls are left?"
)
MARBLES = "Lena has 6 bags with 8 marbles in each. She gives 13 marbles to a friend. How many marbles does she keep?"


def only_first_shot() -> FakeSource:
    tray = {"id": "tray", "question": TRAY, "answer": "14*12=<<14*12=168>>168 rolls, 42-9=<<42-9=33>>33 left.\n#### 33"}
    solution = "Lena has 6*8=<<6*8=48>>48 marbles.\nShe keeps 48-13=<<48-13=35>>35 marbles.\n#### 35"
    return FakeSource(gsm8k=[tray], gsm8k_fewshot=[{"id": "marbles", "question": MARBLES, "answer": solution}])


@pytest.mark.parametrize(
    ("variant", "template", "text"),
    [
        (
            "knn_ssd",
            "plain",
            f"Question: {MARBLES}\nAnswer: Lena has 6*8=<<6*8=48>>48 marbles.She keeps 48-13=<<48-13=35>>35 marbles."
            f"#### 35\nQuestion: {TRAY}\nAnswer:",
        ),
        (
            "conflayers",
            "plain",
            f"Q: {MARBLES}\nA: Lena has 6*8=<<6*8=48>>48 marbles.\nShe keeps 48-13=<<48-13=35>>35 marbles."
            f"\n#### 35\n\nQ: {TRAY}\nA:",
        ),
        ("knn_ssd", "chat", f"Question: {TRAY}\nAnswer:"),
        ("conflayers", "chat", f"Q: {TRAY}\nA:"),
    ],
)
def test_gsm8k_prompt_is_the_papers_byte_for_byte(variant: str, template: str, text: str) -> None:
    (prompt,) = make("gsm8k", variant=variant, shots=1).prompts(only_first_shot(), template, None, seed=0)
    assert prompt.head + prompt.body + prompt.tail == text
    assert (prompt.id, prompt.body, prompt.reference, prompt.domain) == ("tray", "", "33", "gsm8k")


def test_govreport_prompt_is_the_papers_byte_for_byte() -> None:
    row = sample_rows("govreport", "report", "summary")[0]
    prompt = make("govreport").prompts(SAMPLE, "plain", 1, seed=0)[0]
    assert prompt.head + prompt.body + prompt.tail == f"Summarize the following text:\n\n{row['report']}\n\nSummary:"
    assert (prompt.id, prompt.body, prompt.reference) == (row["id"], row["report"], row["summary"])
    assert make("govreport").prompts(SAMPLE, "chat", 1, seed=5)[0] == prompt


def test_gsm8k_order_is_the_shuffle_of_the_released_code() -> None:
    rows = [problem(str(i)) for i in range(50)]
    for seed in (0, 42, 2024):
        theirs = datasets.Dataset.from_list(rows).shuffle(seed=seed)["id"]
        assert [row["id"] for row in shuffled(rows, seed)] == list(theirs)


def test_gsm8k_items_depend_on_the_seed_and_a_limit_takes_the_first() -> None:
    task = make("gsm8k")
    ids = [[p.id for p in task.prompts(SAMPLE, "plain", None, seed)] for seed in (0, 0, 1)]
    assert ids[0] == ids[1] != ids[2]
    assert sorted(ids[0]) == sorted(f"gsm8k-held-out-{i}" for i in range(60))
    assert task.prompts(SAMPLE, "plain", 3, 0) == task.prompts(SAMPLE, "plain", None, 0)[:3]
    assert len(task.prompts(SAMPLE, "plain", 100, 0)) == 60


def test_govreport_keeps_the_order_of_the_data() -> None:
    for seed in (0, 1):
        ids = [p.id for p in make("govreport").prompts(SAMPLE, "plain", None, seed)]
        assert ids == [f"govreport-held-out-{i}" for i in range(60)]


def test_gsm8k_demonstrations_are_five_the_same_for_all_and_drawn_by_seed() -> None:
    pool = [problem(f"shot{i}") for i in range(16)]
    source = FakeSource(gsm8k=[problem("a"), problem("b")], gsm8k_fewshot=pool)
    drawn = []
    for seed in (0, 0, 1):
        prompts = make("gsm8k").prompts(source, "plain", None, seed)
        heads = {prompt.head.rpartition("Question: ")[0] for prompt in prompts}
        assert len(heads) == 1
        drawn.append(re.findall(r"question (\w+)\n", heads.pop()))
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 5


def test_gsm8k_demonstrations_are_never_test_items() -> None:
    pool = [problem("a"), problem("b") | {"question": " question c "}, *(problem(f"shot{i}") for i in range(5))]
    source = FakeSource(gsm8k=[problem("a"), problem("c")], gsm8k_fewshot=pool)
    for seed in range(10):
        for prompt in make("gsm8k").prompts(source, "plain", 1, seed):
            shown = re.findall(r"question (\w+)", prompt.head)[:-1]
            assert sorted(shown) == [f"shot{i}" for i in range(5)]
    with pytest.raises(ConfigError, match=r"task\.shots=6 .*at most 5, the demonstrations of gsm8k\.fewshot"):
        make("gsm8k", shots=6).prompts(source, "plain", 1, 0)


@pytest.mark.parametrize(
    ("template", "shots", "files"),
    [("plain", 5, ["gsm8k", "gsm8k.fewshot"]), ("plain", 0, ["gsm8k"]), ("chat", 5, ["gsm8k"])],
)
def test_gsm8k_reads_only_the_files_it_needs(template: str, shots: int, files: list[str]) -> None:
    task = make("gsm8k", shots=shots)
    source = FakeSource(gsm8k=[problem("a")], gsm8k_fewshot=[problem(f"s{i}") for i in range(5)])
    task.prompts(source, template, None, 0)
    assert source.read == files == [spec.name for spec in task.files(template)]


def test_the_papers_limits() -> None:
    assert make("gsm8k").max_new_tokens == 64
    assert make("gsm8k", variant="conflayers").max_new_tokens == 512
    gov = make("govreport")
    assert (gov.max_new_tokens, gov.max_prompt_tokens, gov.clip_reserve) == (1024, 16384, 250)
    for name, version in (("gsm8k", 3), ("govreport", 2)):
        task = make(name)
        assert (task.name, task.version) == (name, version)


def test_a_limit_and_a_template_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"limit=0 .*>= 1"):
        make("govreport").prompts(SAMPLE, "plain", 0, 0)
    for name in ("gsm8k", "govreport"):
        with pytest.raises(ConfigError, match=r"model\.template='raw' .*chat, plain"):
            make(name).prompts(SAMPLE, "raw", 1, 0)


@pytest.mark.parametrize("answer", ["forty-two", "42", "#### many"])
def test_a_gsm8k_row_without_a_final_number_is_refused(answer: str) -> None:
    source = FakeSource(gsm8k=[problem("a", answer)])
    with pytest.raises(ConfigError, match=r"gsm8k a answer=.*#### and a number"):
        make("gsm8k").prompts(source, "chat", None, 0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("48-13=<<48-13=35>>35 marbles.#### 35", 35),
        ("#### 70,000\n", 70000),
        ("#### $1,234.50.", "1234.5"),
        ("####-7", -7),
        ("#### \u22127", -7),
        ("#### -$7", -7),
        ("#### $-7", -7),
        ("#### 20%", 20),
        ("5 + 5 = 10\n#### 10\nQuestion: 3 and 4?\nAnswer: 7\n#### 7", 10),
        ("It is 12.\n\nQ: How many are 9?\nA: 9", 12),
        ("Question: restated 5?\nAnswer: 6", 6),
        ("#### 5 apples, not 6", 5),
        ("#### about five\nor 6", 6),
        (r"so 3 of 4, thus \boxed{18}. Check: 18 > 2", 18),
        (r"first \boxed{1}, then \boxed{\$1{,}250}", 1250),
        (r"\boxed{70.00\text{ dollars}}", 70),
        (r"\boxed{\frac{1}{2}}", "1/2"),
        (r"\boxed{x} and 5", None),
        ("The answer is 18.", 18),
        ("The answer is **18**", 18),
        ("He pays $70.00.", 70),
        ("1,000,000 people, 50% of 2,000,000", 2000000),
        ("ids 1234,567", 567),
        ("10-5", 5),
        ("10 - 5", 5),
        ("(4)-5", 5),
        ("It fell to -5 degrees", -5),
        ("x = -3.25", "-3.25"),
        ("half is .5", "1/2"),
        ("She keeps 3.The answer is:18", 18),
        ("- 5 apples", 5),
        ("7 liters of H2O", 7),
        ("He has 3 apples and 4.", 4),
        ("none at all", None),
        ("", None),
    ],
)
def test_final_number(text: str, number: int | str | None) -> None:
    assert final_number(text) == (None if number is None else Fraction(number))


def test_exact_match_compares_values() -> None:
    assert FinalNumber().item("so he paid $70.00.", "70") == 1.0
    assert FinalNumber().item("#### 1,000", "1000") == 1.0
    assert FinalNumber().item("so he paid $71.", "70") == 0.0
    assert FinalNumber().item("", "70") == 0.0
    assert score(make("gsm8k"), "33", "42-9=<<42-9=33>>33#### 33") == 1.0


def test_rouge_l_is_the_stemmed_f1() -> None:
    assert Rouge().item("the ferry was repaired", "the ferries were repaired") == pytest.approx(3 / 4)
    assert Rouge().item("the office", "the office found delays") == pytest.approx(2 * 1.0 * 0.5 / 1.5)
    assert Rouge().item("", "anything") == 0.0
    summary = sample_rows("govreport", "summary")[0]["summary"]
    assert score(make("govreport"), summary, summary) == 1.0


def test_sample_arithmetic_is_right() -> None:
    rows = [row for name in ("gsm8k", "gsm8k.fewshot") for row in sample_rows(name, "answer")]
    assert len(rows) == 60 + 8
    for row in rows:
        steps = re.findall(r"<<([\d+*/-]+)=(\d+)>>(\d+)", row["answer"])
        assert len(steps) == row["answer"].count("<<") > 0
        for expression, value, shown in steps:
            assert eval(expression) == int(value) == int(shown)  # digits and operators only, by the pattern above
        assert row["answer"].endswith(f"\n#### {steps[-1][1]}")


# ---- every task on the miniature and its sample: decoded twice, scored, audited, recorded


TASKS = sorted(path.stem for path in (CONF / "task").glob("*.yaml"))
WITHOUT_REFERENCE = {"pg19", "mt_bench", "spec_bench", "speed_bench", "jsonl"}
NEW_TOKENS = 24
PARTS = {  # measures beside the mean score
    "cnn_dm": ["rouge1", "rouge2"],
    "gsm8k": ["unread"],
    "wmt16": ["corpus chrF", "BLEU"],
    "tinystories": ["rouge1", "rouge2"],
}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_runs_scored_and_lossless(task: str, tmp_path: Path) -> None:
    options = ["task.items=2"] if task.startswith("stream") else ["limit=2"]
    if task in ("humaneval", "mbpp"):
        options.append("task.sandbox=best_effort")  # also where the kernel has no Landlock
    if task == "jsonl":
        options.append(f"task.path={SAMPLE.root}/jsonl.jsonl")
    run = executed(tmp_path, f"task={task}", f"decode.max_new_tokens={NEW_TOKENS}", "method=layerskip", *options)
    prompts = run.prompts
    assert set(prompts["arm"]) == {"ar", "method"} and prompts["new_tokens"].between(1, NEW_TOKENS).all()
    assert set(prompts.loc[prompts["arm"] == "method", "lossless"]) == {"identical"}
    assert prompts["prompt_sha256"].str.fullmatch("[0-9a-f]{64}").all()
    scores = run.header.scores
    assert scores["ar"] == scores["method"]
    if task in WITHOUT_REFERENCE:
        assert prompts["score"].isna().all() and not scores["ar"]
    else:
        assert prompts["score"].between(0, 1).all()
        assert all(0 <= value <= 1 for value in scores["ar"].values())
    summary = summarise(run).row
    assert summary["ar_score"] == summary["method_score"]
    assert (summary["output_rouge2"], summary["output_exact"]) == (1.0, 1.0)


def test_a_streams_record_holds_its_order_and_scores_by_part(tmp_path: Path) -> None:
    options = ("task=stream", "task.items=2", "task.mix_ratio=0.7", "decode.max_new_tokens=8")
    runs = [executed(tmp_path, *options, f"method={method}") for method in ("layerskip", "jacobi")]
    orders = [run.prompts.drop_duplicates("prompt_index")[["prompt_id", "domain", "prompt_sha256"]] for run in runs]
    assert orders[0].equals(orders[1])  # the same for every method
    assert runs[0].header.domains == orders[0]["domain"].tolist()
    assert set(orders[0]["domain"]) == {"cnn_dm", "gsm8k", "wmt16", "spider2", "tinystories"}
    names = {part: [n.partition("/")[2] for n in runs[0].header.scores["ar"] if n.startswith(part)] for part in PARTS}
    assert names == PARTS
