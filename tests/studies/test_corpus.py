"""The miniature's corpus: domains, splits, batches, and the tasks' samples from it."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from ssd_bench.compose.build import task_named
from ssd_bench.data import SampleSource
from ssd_bench.model.checkpoint import EMBEDDED, Checkpoint
from studies.miniature import corpus, samples, vocabulary
from studies.miniature.domains import audits, problems, tales
from studies.miniature.domains.item import Item
from studies.miniature.recipe import RECIPES

RECIPE = RECIPES["miniature"]
MIX = {"arithmetic": 0.4, "queries": 0.2, "chats": 0.2, "derivations": 0.2}
CALCULATIONS = re.compile(r"(\d+[-+*/]\d+)=(\d+)")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return Checkpoint(EMBEDDED / "miniature").tokenizer


@pytest.mark.parametrize("domain", corpus.EVERY)
def test_an_item_is_in_one_split_and_its_answer_is_right(domain: str) -> None:
    by_split = {split: corpus.distinct(domain, 30, 7, evaluation=split) for split in (False, True)}
    assert by_split == {split: corpus.distinct(domain, 31, 7, evaluation=split)[:30] for split in (False, True)}
    for split, items in by_split.items():
        assert all(corpus.held_out(item) == split for item in items)
    task = task_named(corpus.EVERY[domain].task)
    scores = [
        task.score(prompt, item.answer)
        for prompt, item in zip(corpus.prompts(domain, by_split[True][:10]), by_split[True][:10], strict=True)
    ]
    # a story's answer is another story; every other answer is the reference itself
    assert all(0 < s < 1 for s in scores) if domain == "tales" else scores == [1.0] * 10


def _walked(problem: str, state: dict[str, int]) -> dict[str, int]:
    """Run a problem's lines from the walk's start until it is home; return the state."""
    walk = re.findall(r"^From (\w+) to (\w+) (\S+)\.$", problem, re.M)
    program = re.findall(r"^At (\w+) (\w) (\w+) (\S+)\.$", problem, re.M)
    rules = {start: (end, "held", rule) for start, end, rule in walk}
    rules |= {start: (end, register, rule) for start, register, end, rule in program}
    table = dict(re.findall(r"^Rule (\w+) (\S+)\.$", problem, re.M))
    place, seen = re.findall(r"begins at (\w+)", problem)[0], 0
    while place != "home":
        place, name, rule = rules[place]
        seen += 1
        rule = table.get(rule, rule)
        before, by = state[name], int(rule[1:])
        state[name] = {"+": before + by, "-": before - by, "*": before * by, "/": before // by}[rule[0]]
        assert rule[0] != "/" or before % by == 0
    assert seen == len(rules) == len(walk) + len(program)  # every line is used, once
    return state


def test_derivations_and_traces_say_what_their_lines_compute() -> None:
    for item in corpus.distinct("derivations", 60, 5):
        problem = item.row["problem"]
        (first,) = re.findall(r"with the number (\d+)\.", problem)
        held = _walked(problem, {"held": int(first)})["held"]
        assert item.row["answer"] == str(held) and item.answer.endswith(rf"\boxed{{{held}}}.")
        assert all(eval(left.replace("/", "//")) == int(right) for left, right in CALCULATIONS.findall(item.answer))
    for item in corpus.distinct("traces", 60, 5):
        question = item.row["question"]
        start = {name: int(value) for name, value in re.findall(r"(\w)=(\d+)", question.partition("\n")[0])}
        state = _walked(question, start)
        (register,) = re.findall(r"the value of (\w)\b", question, re.M)
        options = item.row["options"]
        assert options["ABCDEFGHIJ".index(item.row["answer"])] == str(state[register])
        assert len(set(options)) == len(options)
        assert all(eval(left) == int(right) for left, right in CALCULATIONS.findall(item.answer))


def _followers(text: str) -> dict[tuple[str, str], set[str]]:
    """Return the words after each pair of adjacent words or marks."""
    followers: dict[tuple[str, str], set[str]] = {}
    words = re.findall(r"\w+|[^\w\s]", text)
    for *pair, after in zip(words, words[1:], words[2:]):
        followers.setdefault((pair[0], pair[1]), set()).add(after)
    return followers


TOLD = {
    "audits": ("report", {*audits.FINDINGS, *audits.REGIONS, *map(str, range(11, 99))}),
    "tales": ("text", {*tales.THINGS, *tales.FRIENDS, *tales.COLORS, *tales.HELPER_LOOKS}),
}


@pytest.mark.parametrize("domain", TOLD)
def test_what_a_long_answer_takes_from_its_prompt_follows_two_words_that_tell_it(domain: str) -> None:
    field, taken = TOLD[domain]
    for item in corpus.distinct(domain, 60, 5):
        told = _followers(item.row[field])
        for pair, after in _followers(item.answer).items():
            for word in after & taken:
                # a subject is named again where the sentence before is its own
                assert pair[1] in ("On", "After") or told[pair] == {word}, (pair, word)


def test_a_programs_comments_are_its_steps_and_no_two_steps_can_be_confused() -> None:
    for item in corpus.distinct("programs", 60, 5):
        steps = re.findall(r"^ +(\d+: .*)\.$", item.row["prompt"], re.M)
        assert re.findall(r"# (.*)\.", item.answer) == steps
        # the same letter may stand in two steps
        told = {pair: after for pair, after in _followers(" ".join(steps)).items() if "'" not in pair}
        assert all(len({word for word in after if not word.isdigit()}) <= 1 for after in told.values())


def test_a_queue_is_what_its_pairs_say() -> None:
    queues = [item for item in corpus.distinct("requests", 200, 5) if "before nobody" in item.answer]
    assert len(queues) >= 10
    for item in queues:
        following = dict(re.findall(r"(\w+) before (\w+)", item.row["input"]))
        (name,) = re.findall(r"begins with (\w+)", item.row["instruction"])
        order = [name]
        while order[-1] in following:
            order.append(following[order[-1]])
        assert item.answer == f"It begins with {' before '.join(order)}." and len(order) == len(following) + 1


LONG = {"derivations": (350, 1500), "traces": (350, 1500), "audits": (250, 800), "tales": (300, 700)}


@pytest.mark.parametrize("domain", LONG)
def test_answers_of_growing_domains_are_long_and_begin_short(domain: str, tokenizer: PreTrainedTokenizerBase) -> None:
    lengths, context = {}, RECIPE.size.context
    for scale in (0.12, 0.5, 1.0):
        documents = corpus.documents(domain, corpus.distinct(domain, 30, 3, scale=scale), tokenizer, context)
        assert max(map(len, documents)) < context / 1.4  # room for an answer that does not end
        lengths[scale] = [len(document.answer) for document in documents]
    low, high = LONG[domain]
    assert low <= min(lengths[1.0]) and max(lengths[1.0]) <= high
    assert max(lengths[0.12]) < min(lengths[1.0])
    assert median(lengths[0.12]) < median(lengths[0.5]) < median(lengths[1.0])


def test_a_conversations_answers_all_count(tokenizer: PreTrainedTokenizerBase) -> None:
    (item,) = sampled = corpus.distinct("chats", 1, 0)
    (document,) = corpus.documents("chats", sampled, tokenizer, 512)
    ((start, end),) = document.earlier
    ((message, replied),) = item.further
    assert tokenizer.decode(document.prompt[start:end]) == item.answer + tokenizer.eos_token
    assert tokenizer.decode(document.answer, skip_special_tokens=True) == replied
    (prompt,) = corpus.prompts("chats", sampled)
    conversation = [
        {"role": "user", "content": prompt.head + prompt.body + prompt.tail},
        {"role": "assistant", "content": item.answer},
        {"role": "user", "content": message},
    ]
    rendered = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(document.prompt) == rendered
    batch, _ = corpus.Batches(tokenizer, 512, lambda step: {"chats": 1.0}, 300, 0.2, 0, lambda step: 1.0).at(0, 0)
    assert ((batch.weights == 1).sum(1) > 0).all()


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out items, one in sixteen, are drawn for the last task of a domain; others take the first."""
    turns: dict[str, int] = {}
    for source in samples.sources().values():
        turns[source.domain] = max(source.turn, turns.get(source.domain, 0))
    distinct = cache(corpus.distinct)

    def first(domain: str, n: int, seed: int, evaluation: bool) -> list[Item]:
        most = (turns[domain] + 1) * samples.ITEMS if evaluation else n
        return distinct(domain, most, seed, evaluation)[:n]

    monkeypatch.setattr(corpus, "distinct", first)


def test_samples_are_held_out_items_and_demonstrations_are_not(tmp_path: Path, drawn_once: None) -> None:
    """Write the committed files again; no training batch can hold their items."""
    written = samples.write(tmp_path)
    folder = SampleSource().root
    assert folder is not None and {path.name for path in written} == {path.name for path in folder.glob("*.jsonl")}
    for path in written:
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name
    seen: set[str] = set()
    for task, source in samples.sources().items():
        items, *shots = task_named(task).files("plain")
        rows = {False: [row for spec in shots for row in _rows(tmp_path / f"{spec.name}.jsonl")]}
        rows[True] = _rows(tmp_path / f"{items.name}.jsonl")
        assert len(rows[True]) == samples.ITEMS
        for split, split_rows in rows.items():
            if not split_rows:
                continue
            drawn = corpus.distinct(source.domain, (source.turn + 1) * len(split_rows), 1, split)
            by_row = {json.dumps(source.row(item)): item for item in drawn}
            for row in split_rows:
                item = by_row[json.dumps({key: value for key, value in row.items() if key != "id"})]
                assert corpus.held_out(item) == split
                content = source.domain + json.dumps(dict(item.row))
                assert content not in seen
                seen.add(content)


def test_every_subject_of_math_occurs() -> None:
    folder = SampleSource().root
    assert folder is not None
    assert {row["subject"] for row in _rows(folder / "math500.jsonl")} == set(problems.KINDS)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_split_depends_on_the_content_alone() -> None:
    item = Item({"a": "x", "b": "y"}, "z")
    assert corpus.held_out(item) == corpus.held_out(Item({"b": "y", "a": "x"}, "z"))
    rng = random.Random(0)
    queries = [corpus.DOMAINS["queries"].make(rng) for _ in range(2000)]
    assert sum(map(corpus.held_out, queries)) / 2000 == pytest.approx(corpus.HELD_OUT / 256, abs=0.02)


def test_batches_are_functions_of_seed_and_step(tokenizer: PreTrainedTokenizerBase) -> None:
    batches, again = (corpus.Batches(tokenizer, 1024, lambda step: MIX, 300, 0.2, 3, RECIPE.longest) for _ in range(2))
    tokens = dict.fromkeys(MIX, 0)
    for step in range(60):
        batch, rng = batches.at(step, 1)
        assert batch.tokens.numel() <= 300 or len(batch.tokens) == 1
        assert batch.weights.shape == (batch.tokens.shape[0], batch.tokens.shape[1] - 1)
        assert set(batch.weights.unique().tolist()) <= set(torch.tensor([0.0, 0.2, 1.0]).tolist())
        ends = [row.tolist() for row in batch.tokens]
        assert all(row[0] == tokenizer.bos_token_id and tokenizer.eos_token_id in row for row in ends)
        tokens[batch.domain] += batch.tokens.numel()
        if step < 5:
            repeated, other_rng = again.at(step, 1)
            assert torch.equal(batch.tokens, repeated.tokens) and rng.random() == other_rng.random()
    for domain, share in MIX.items():
        assert tokens[domain] / sum(tokens.values()) == pytest.approx(share, abs=0.2)


def test_an_answers_tokens_weigh_one_and_its_prompt_less(tokenizer: PreTrainedTokenizerBase) -> None:
    sampled = corpus.distinct("queries", 1, 0)
    (document,) = corpus.documents("queries", sampled, tokenizer, 512)
    assert tokenizer.decode(document.answer, skip_special_tokens=True) == sampled[0].answer
    assert document.answer[-1] == tokenizer.eos_token_id
    batches = corpus.Batches(tokenizer, 512, lambda step: {"queries": 1.0}, 300, 0.2, 0, lambda step: 1.0)
    batch, _ = batches.at(0, 0)
    assistant = tokenizer.convert_tokens_to_ids("<|assistant|>")
    for tokens, weights in zip(batch.tokens.tolist(), batch.weights):
        start, end = tokens.index(assistant), tokens.index(tokenizer.eos_token_id)
        assert (weights[:start] == torch.tensor(0.2)).all()
        assert (weights[start:end] == 1).all() and (weights[end:] == 0).all()


def test_the_tokenizer_is_learnt_from_the_corpus(tokenizer: PreTrainedTokenizerBase) -> None:
    learnt = vocabulary.train(RECIPE.mix, RECIPE.size.vocab_size, RECIPE.seed)
    assert learnt.get_vocab() == tokenizer.get_vocab() and learnt.chat_template == tokenizer.chat_template


def test_a_tokenizers_numbers_are_all_of_two_digits(tokenizer: PreTrainedTokenizerBase) -> None:
    numbers = vocabulary.numbers(tokenizer)
    assert set(numbers.values()) == set(range(100))
    assert all(int(tokenizer.convert_ids_to_tokens(i)) == number for i, number in numbers.items())
