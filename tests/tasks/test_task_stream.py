"""The mixed-task stream: order against Eq. 8 and the released code, prompts, scores and spare items."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, pairwise
from statistics import mean

import pytest
from scipy import stats

from ssd_bench.contract.task import Prompt, Task
from ssd_bench.data.prompts import calibration_prompts, encode_all
from ssd_bench.errors import ConfigError
from ssd_bench.model.checkpoint import ModelSource
from tasks.gsm8k import GSM8K
from tasks.selection import CONTEXT
from tasks.stream import code_order, markov_order
from tests.tasks.test_tasks import SAMPLE, composed, make

FIVE = ("cnn_dm", "gsm8k", "wmt16", "spider2", "tinystories")
STREAMS, ITEMS = 400, 40
Order = Callable[[Sequence[str], int, float, str | None, random.Random], list[str]]


def switches(order: Sequence[str]) -> float:
    return mean(a != b for a, b in pairwise(order))


@cache
def made(order: Order, ratio: float, first: str | None = None) -> list[list[str]]:
    return [order(FIVE, ITEMS, ratio, first, random.Random(seed)) for seed in range(STREAMS)]


@pytest.mark.parametrize(("ratio", "rate"), [(0.0, 0.020), (0.3, 0.304), (0.7, 0.695), (1.0, 0.987)])
def test_the_released_order_switches_as_often_as_the_released_code(ratio: float, rate: float) -> None:
    """Card: the mean switch rate of 400 streams of 5 x 40; R itself but where tasks run out (R = 1) or end."""
    streams = made(code_order, ratio)
    realised = mean(map(switches, streams))
    assert realised == pytest.approx(rate, abs=0.003)
    assert realised == pytest.approx({0.0: 0.02, 1.0: 0.99}.get(ratio, ratio), abs=0.01)
    for stream in streams:
        assert Counter(stream) == dict.fromkeys(FIVE, ITEMS)


@pytest.mark.parametrize(("ratio", "typical", "longest"), [(0.3, 8.2, 28), (0.7, 4.9, 22), (1.0, 3.5, 14)])
def test_tasks_that_run_out_leave_a_long_last_run(ratio: float, typical: float, longest: int) -> None:
    runs = [len([list(group) for _, group in groupby(stream)][-1]) for stream in made(code_order, ratio)]
    assert mean(runs) == pytest.approx(typical, abs=0.7)
    assert max(runs) == pytest.approx(longest, abs=8)


def test_without_mixing_and_with_full_mixing_tasks_are_blocks_and_single_prompts() -> None:
    blocks = {tuple(name for name, _ in groupby(stream)) for stream in made(code_order, 0.0)}
    assert all(sorted(block) == sorted(FIVE) for block in blocks)
    assert len(blocks) > 100  # of 120
    # with full mixing a task follows itself only where it alone is left
    for stream in made(code_order, 1.0):
        equal = [i for i, (a, b) in enumerate(pairwise(stream)) if a == b]
        assert not equal or set(stream[equal[0] :]) == {stream[-1]}


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.7, 1.0])
def test_the_markov_order_is_equation_8(ratio: float) -> None:
    """Chi-square of all moves against its transition matrix, given how often each task was left; and Markov at all."""
    moves: Counter[tuple[str, str]] = Counter()
    twice: Counter[tuple[bool, bool]] = Counter()
    for stream in made(markov_order, ratio):
        assert len(stream) == len(FIVE) * ITEMS
        moves.update(pairwise(stream))
        twice.update(pairwise(a != b for a, b in pairwise(stream)))
    statistic, freedom = 0.0, 0
    for name in FIVE:
        left = sum(n for (a, _), n in moves.items() if a == name)
        expected = {other: left * (1 - ratio if other == name else ratio / (len(FIVE) - 1)) for other in FIVE}
        assert all(moves[name, other] == 0 for other, n in expected.items() if n == 0)
        statistic += sum((moves[name, other] - n) ** 2 / n for other, n in expected.items() if n)
        freedom += sum(n > 0 for n in expected.values()) - 1
    assert statistic == 0 if freedom == 0 else stats.chi2.sf(statistic, freedom) > 0.01
    if 0 < ratio < 1:  # whether the next prompt is of another task does not depend on whether this one was
        assert stats.chi2_contingency([[twice[a, b] for b in (False, True)] for a in (False, True)]).pvalue > 0.01


@pytest.mark.parametrize("order", [code_order, markov_order])
def test_the_first_task_is_drawn_or_given(order: Order) -> None:
    drawn = Counter(stream[0] for stream in made(order, 0.7))
    assert all(drawn[name] == pytest.approx(STREAMS / 5, rel=0.4) for name in FIVE)
    given = made(order, 0.7, first="spider2")
    assert {stream[0] for stream in given} == {"spider2"}
    assert len({stream[1] for stream in given}) == len(FIVE)
    if order is code_order:
        assert all(Counter(stream) == dict.fromkeys(FIVE, ITEMS) for stream in given)


def test_the_order_is_its_own_seeds_and_no_other() -> None:
    random.seed(1)
    one = make("stream").prompts(SAMPLE, "chat", None, seed=0)
    random.seed(2)
    assert make("stream").prompts(SAMPLE, "chat", None, seed=0) == one
    other = make("stream").prompts(SAMPLE, "chat", None, seed=5)
    assert [p.domain for p in other] == [p.domain for p in one] and [p.id for p in other] != [p.id for p in one]
    moved = make("stream", order_seed=1).prompts(SAMPLE, "chat", None, seed=0)
    assert [p.domain for p in moved] != [p.domain for p in one]
    assert sorted(p.id for p in moved) == sorted(p.id for p in one)


@pytest.mark.parametrize("template", ["plain", "chat"])
def test_the_default_is_the_papers_and_every_prompt_is_its_own_tasks(template: str) -> None:
    stream = make("stream")
    prompts = stream.prompts(SAMPLE, template, None, seed=3)
    assert Counter(p.domain for p in prompts) == dict.fromkeys(FIVE, 40)
    assert len({p.id for p in prompts}) == 200
    assert (stream.name, stream.max_new_tokens) == ("stream", 128)
    for name in FIVE:
        alone = make(name).prompts(SAMPLE, template, 40, seed=3)
        assert [p for p in prompts if p.domain == name] == [labelled(name, p) for p in alone]
        files = [replace(spec, place=None) for spec in stream.files(template)]
        assert all(replace(spec, place=None) in files for spec in make(name).files(template))


def labelled(name: str, prompt: Prompt) -> Prompt:
    return replace(prompt, id=f"{name}/{prompt.id}", max_new_tokens=128 if name == "tinystories" else 64)


def test_each_part_has_the_new_tokens_of_its_paper_unless_one_number_is_given() -> None:
    prompts = make("stream").prompts(SAMPLE, "chat", None, seed=0)
    assert {(p.domain == "tinystories", p.max_new_tokens) for p in prompts} == {(True, 128), (False, 64)}
    assert {p.max_new_tokens for p in make("stream", max_new_tokens=64).prompts(SAMPLE, "chat", None, 0)} == {64}


LISTED = {"stream_swift": "cnn_dm gsm8k alpaca wmt14 natural_questions", "stream_shift": "cnn_dm gsm8k wmt14 alpaca"}


@pytest.mark.parametrize("name", LISTED)
def test_streams_task_by_task_come_as_listed(name: str) -> None:
    stream = make(name, items=3)
    prompts = stream.prompts(SAMPLE, "chat", None, seed=0)
    parts = list(composed(name).task.parts)
    assert parts == LISTED[name].split()
    assert [p.domain for p in prompts] == [part for part in parts for _ in range(3)]
    assert (stream.name, {p.max_new_tokens for p in prompts}) == (name, {512})
    assert stream.prompts(SAMPLE, "chat", None, seed=0) == prompts


def test_a_limit_is_the_beginning_of_the_stream() -> None:
    for options in ({}, {"order": "markov", "items": 20}):
        stream = make("stream", **options)
        whole = stream.prompts(SAMPLE, "chat", None, seed=0)
        assert stream.prompts(SAMPLE, "chat", 7, seed=0) == whole[:7]
        assert stream.prompts(SAMPLE, "chat", 999, seed=0) == whole


def test_no_prompt_comes_twice_in_a_markov_stream_and_a_part_without_enough_is_refused() -> None:
    prompts = make("stream", order="markov", items=20).prompts(SAMPLE, "chat", None, seed=0)
    assert len(prompts) == len({p.id for p in prompts}) == 100
    assert max(Counter(p.domain for p in prompts).values()) > 20
    with pytest.raises(ConfigError, match=r"task\.items=61 .*takes 61 prompts of \w+, which has 60"):
        make("stream", items=61).prompts(SAMPLE, "chat", None, seed=0)
    with pytest.raises(ConfigError, match=r"task\.items=20 .*takes 100 prompts of gsm8k, which has 60"):
        make("stream", order="markov", items=20, mix_ratio=0, first="gsm8k").prompts(SAMPLE, "chat", None, seed=0)


@dataclass
class Searching:
    calibration: int


def test_a_method_calibrates_on_each_parts_next_items() -> None:
    for options, limit in (({"items": 30}, None), ({}, 100), ({"order": "markov", "items": 20}, None)):
        stream = make("stream", **options)
        evaluated = stream.prompts(SAMPLE, "chat", limit, seed=0)
        others = calibration_prompts(evaluated, stream.pool(SAMPLE, "chat", 0), Searching(4))
        met = list(dict.fromkeys(p.domain for p in evaluated))
        assert [p.domain for p in others] == [name for name in met for _ in range(4)]
        for name in met:
            asked = sum(p.domain == name for p in evaluated)
            after = make(name).prompts(SAMPLE, "chat", None, seed=0)[asked : asked + 4]
            assert [p.id for p in others if p.domain == name] == [f"{name}/{p.id}" for p in after]
    every = make("stream", items=60)
    with pytest.raises(ConfigError, match=r"300 prompts, 0 of .* left"):
        calibration_prompts(every.prompts(SAMPLE, "chat", None, seed=0), every.pool(SAMPLE, "chat", 0), Searching(1))


def test_an_answer_is_scored_by_its_own_task() -> None:
    stream = make("stream")
    assert stream.metric == "rougeL of cnn_dm, tinystories; exact_match of gsm8k, spider2; chrF of wmt16"
    for prompt in stream.prompts(SAMPLE, "chat", 20, seed=0):
        assert stream.score(prompt, prompt.reference) == 1.0
        for text in ("42", "none of it"):
            assert stream.score(prompt, text) == make(prompt.domain).score(prompt, text)
    assert {p.domain for p in stream.prompts(SAMPLE, "chat", 20, seed=0)} == set(FIVE)


def test_each_prompt_is_clipped_by_its_own_tasks_rule() -> None:
    rules = {p.domain: (p.max_tokens, p.clip_reserve) for p in make("stream").prompts(SAMPLE, "chat", None, seed=0)}
    clipped = dict.fromkeys(("cnn_dm", "tinystories"), (CONTEXT, 250))
    assert rules == dict.fromkeys(("gsm8k", "wmt16", "spider2"), (None, 0)) | clipped
    model = ModelSource("miniature", "plain", embedded="miniature")
    room = ([64, 64], model, model.open(), 512)
    article = Prompt("c", "Article: ", "word " * 500, "\nSummary:", "", "cnn_dm", *rules["cnn_dm"])
    question = Prompt("g", "Question: how many?\nAnswer:", "", "", "", "gsm8k", *rules["gsm8k"])
    encoded = encode_all([article, question], *room)
    assert len(encoded[0].ids) <= 512 - 64 - 250 and encoded[0].clipped > 0 and encoded[1].clipped == 0
    with pytest.raises(ConfigError, match=r"prompt='g' .*gsm8k does not truncate prompts"):
        encode_all([article, replace(question, head=2 * article.body)], *room)


def test_a_higher_version_of_a_part_is_one_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make("stream").version
    monkeypatch.setattr(GSM8K, "version", GSM8K.version + 1)
    assert make("stream").version == before + 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": "xsum"}, r"task\.first='xsum' .*null or one of cnn_dm, gsm8k"),
        ({"order": "listed"}, r"task\.order='listed' .*mix_ratio 0 and first null"),
        ({"parts": {"gsm8k": {"shots": -1}}}, r"task\.shots=-1 .*>= 0"),
        ({"parts": {"gsm8k": "gsm8k"}}, r"task\.parts\.gsm8k='gsm8k' .*settings of a task other than stream"),
    ],
)
def test_options_that_cannot_work_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:  # Hydra wraps what a target raises
        make("stream", **changes)
    assert isinstance(caught.value.__cause__, ConfigError)


def test_a_stream_is_of_several_tasks_and_of_no_stream() -> None:
    part, options = make("gsm8k"), (1, 0.5, "code", 0, None, 8)
    stream: type[Task] = type(make("stream"))
    with pytest.raises(ConfigError, match=r"task\.parts=\['a'\] .*at least two"):
        stream("s", {"a": part}, *options)
    with pytest.raises(ConfigError, match=r"task\.parts\.b=.*other than stream"):
        stream("s", {"a": part, "b": make("stream")}, *options)
