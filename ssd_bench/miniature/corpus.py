"""The generated corpus: domains, the split into training and held-out items, documents and batches of token ids."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ssd_bench.compose import task_named
from ssd_bench.data.prompting import encode
from ssd_bench.miniature.domains import (
    arithmetic,
    articles,
    audits,
    chats,
    choices,
    derivations,
    problems,
    programs,
    queries,
    questions,
    requests,
    tales,
    traces,
    translation,
)  # fmt: skip
from ssd_bench.miniature.domains.item import Item
from ssd_bench.model.template import Template
from ssd_bench.task import DataSpec, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HELD_OUT = 16  # of 256 values of a hash's first byte: 1 item in 16 is never trained on
TEMPLATE = "chat"
SHORTER = 0.25  # share of the batches whose items are shorter than the longest of their step


@dataclass(frozen=True)
class Domain:
    """A generator of items and the task whose format they have.

    Attributes:
        task: as in `task=NAME`.
        make: the generator, of a random generator and, if it grows, a scale in (0, 1] of the items' length.
        grows: whether its items begin short when a model is trained on them.
        row: an item's fields as the task reads them. Which split an item is in depends on the names that the generator
            gives them, so these stay when the task's change.
    """

    task: str
    make: Callable[..., Item]
    grows: bool = False
    row: Callable[[Item], Mapping[str, Any]] = lambda item: item.row

    def item(self, rng: random.Random, scale: float) -> Item:
        """One item, of this share of its full length where the domain grows."""
        return self.make(rng, scale) if self.grows else self.make(rng)


# What the miniature is trained on.
DOMAINS: Mapping[str, Domain] = {
    "derivations": Domain(derivations.TASK, derivations.make, grows=True),
    "traces": Domain(traces.TASK, traces.make, grows=True),
    "arithmetic": Domain(arithmetic.TASK, arithmetic.make),
    "articles": Domain(articles.TASK, articles.make),
    "briefs": Domain(articles.BRIEF_TASK, articles.brief),
    "audits": Domain(audits.TASK, audits.make, grows=True),
    "tales": Domain(tales.TASK, tales.make, grows=True),
    "translation": Domain(translation.TASK, translation.make),
    "queries": Domain(queries.TASK, queries.make, row=queries.row),
    "programs": Domain(programs.TASK, programs.make, grows=True),
    "requests": Domain(requests.TASK, requests.make),
    "chats": Domain(requests.TASK, chats.make),
    "choices": Domain(choices.TASK, choices.make),
}

# No model is trained on these: their items are samples of tasks only.
UNTRAINED: Mapping[str, Domain] = {
    "problems": Domain(problems.TASK, problems.make),
    "questions": Domain(questions.TASK, questions.make),
}

EVERY = {**DOMAINS, **UNTRAINED}


def named(domain: str) -> Domain:
    """A domain, whether or not models are trained on it."""
    return EVERY[domain]


def held_out(item: Item) -> bool:
    """Whether an item belongs to the held-out split: decided by its content alone, so no item is in both."""
    content = json.dumps([dict(item.row), item.answer], sort_keys=True)
    return hashlib.sha256(content.encode()).digest()[0] < HELD_OUT


def items(domain: str, rng: random.Random, evaluation: bool = False, scale: float = 1.0) -> Iterator[Item]:
    """Endless items of one split of a domain, of this share of their full length where it grows."""
    while True:
        item = named(domain).item(rng, scale)
        if held_out(item) == evaluation:
            yield item


def distinct(domain: str, n: int, seed: int, evaluation: bool = True, scale: float = 1.0) -> list[Item]:
    """The first n different items of a split."""
    rng = random.Random(f"{seed}/{domain}/{'held out' if evaluation else 'train'}")
    found: dict[str, Item] = {}
    for item in items(domain, rng, evaluation, scale):
        found.setdefault(json.dumps(dict(item.row), sort_keys=True), item)
        if len(found) == n:
            break
    return list(found.values())


class Rows:
    """A data source over rows, numbered."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]):
        self._rows = [dict(row) | {"id": str(i)} for i, row in enumerate(rows)]

    def rows(self, spec: DataSpec) -> list[dict[str, Any]]:
        """The rows, with their number as `id` and all optional fields."""
        return [dict.fromkeys(spec.optional, "") | row for row in self._rows]

    def fingerprint(self, spec: DataSpec) -> str:
        """Hash of the rows."""
        return hashlib.sha256(json.dumps(self.rows(spec)).encode()).hexdigest()


def prompts(domain: str, made: Sequence[Item]) -> list[Prompt]:
    """The items' prompts as the task's own code builds them, in the items' order."""
    rows = Rows(map(named(domain).row, made))
    built = task_named(named(domain).task).prompts(rows, TEMPLATE, None, 0)
    return sorted(built, key=lambda prompt: int(prompt.id))


@dataclass(frozen=True)
class Document:
    """Token ids of a conversation.

    Attributes:
        prompt: up to the last answer, answers before it included.
        answer: the last, end marker included.
        earlier: start and end of every answer within the prompt.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    earlier: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def documents(domain: str, made: Sequence[Item], tokenizer: PreTrainedTokenizerBase, context: int) -> list[Document]:
    """Each item as a model reads and answers it; a prompt that leaves no room for its answer is clipped."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    found = []
    for prompt, item in zip(prompts(domain, made), made, strict=True):
        answer = (*ids(item.answer), tokenizer.eos_token_id)
        read, earlier = encode(prompt, tokenizer, Template(TEMPLATE), context - len(answer)).ids, []
        for asked, replied in item.further:
            said = [{"role": "user", "content": asked}]
            turn = str(tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True))
            earlier.append((len(read), len(read) + len(answer)))
            read = (*read, *answer, *ids(turn.removeprefix(str(tokenizer.bos_token))))
            answer = (*ids(replied), tokenizer.eos_token_id)
        found.append(Document(read, answer, tuple(earlier)))
    return found


@dataclass(frozen=True)
class Batch:
    """Documents of one domain, padded at the end.

    Attributes:
        tokens: [B, T] ids.
        weights: [B, T - 1], weight in the loss of predicting `tokens[:, 1:]`; 0 for padding.
    """

    domain: str
    tokens: Tensor
    weights: Tensor


class Batches:
    """Training batches; each is a function of the seed, the step and its number alone, so that a run can resume.

    Args:
        mix: of a step, domain -> share of the tokens.
        budget: tokens of a batch, padding included; at least one document.
        prompt_weight: weight of a prompt's tokens in the loss.
        longest: of a step, share of the full length that items of growing domains have at most.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, context: int, mix: Callable[[int], Mapping[str, float]], budget: int,
        prompt_weight: float, seed: int, longest: Callable[[int], float],
    ):  # fmt: skip
        self._tokenizer, self._context, self._seed = tokenizer, context, seed
        self._mix, self._budget, self._prompt_weight, self._longest = mix, budget, prompt_weight, longest
        self._sizes: dict[tuple[str, float], int] = {}

    def _typical(self, domain: str, scale: float) -> int:
        """Mean tokens of a document; of eight scales, which is near enough."""
        at = (domain, math.ceil(8 * scale) / 8 if named(domain).grows else 1.0)
        if at not in self._sizes:
            made = distinct(domain, 32, seed=self._seed, evaluation=False, scale=at[1])
            found = documents(domain, made, self._tokenizer, self._context)
            self._sizes[at] = round(sum(map(len, found)) / len(made))
        return self._sizes[at]

    def at(self, step: int, number: int) -> tuple[Batch, random.Random]:
        """A batch, and the generator for whatever else is random about it."""
        rng = random.Random(f"{self._seed}/{step}/{number}")
        mix, scale = self._mix(step), self._longest(step)
        if rng.random() < SHORTER:
            scale *= rng.uniform(0.2, 1.0)
        # Domains are drawn by batches, so their shares of the tokens are kept by what a batch of theirs holds.
        shares = [share / max(self._budget, self._typical(name, scale)) for name, share in mix.items()]
        domain = rng.choices(list(mix), shares)[0]
        # Twice the documents that fit, of which neighbours in length are taken: little padding, no bias.
        wanted = max(1, self._budget // self._typical(domain, scale))
        source = items(domain, rng, scale=scale)
        found = documents(domain, [next(source) for _ in range(2 * wanted)], self._tokenizer, self._context)
        found.sort(key=len)
        start = rng.randrange(len(found))
        taken: list[Document] = []
        for document in found[start:] + found[:start][::-1]:
            longest = max(map(len, [*taken, document]))
            if taken and longest * (len(taken) + 1) > self._budget:
                break
            taken.append(document)
        return self._padded(domain, taken), rng

    def _padded(self, domain: str, taken: Sequence[Document]) -> Batch:
        longest = max(map(len, taken))
        tokens = torch.full((len(taken), longest), self._tokenizer.eos_token_id)
        weights = torch.zeros(len(taken), longest - 1)
        for row, document in enumerate(taken):
            tokens[row, : len(document)] = torch.tensor(document.prompt + document.answer)
            weights[row, : len(document.prompt) - 1] = self._prompt_weight
            for start, end in (*document.earlier, (len(document.prompt), len(document))):
                weights[row, start - 1 : end - 1] = 1.0
        return Batch(domain, tokens, weights)
