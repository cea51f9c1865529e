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

from ssd_bench.compose.build import task_named
from ssd_bench.contract.task import DataSpec, Prompt
from ssd_bench.data.prompting import encode
from ssd_bench.model.template import Template
from studies.miniature.domains import (
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
)
from studies.miniature.domains.item import Item

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HELD_OUT = 16  # of 256 values of a hash's first byte: 1 item in 16 is held out
TEMPLATE = "chat"
SHORTER = 0.25  # share of batches with shorter items than the step allows


@dataclass(frozen=True)
class Domain:
    """A generator of items, and the task whose format they have.

    Attributes:
        task: choice of `task=NAME`.
        make: the generator; takes a random generator and, if it grows, a scale in (0, 1] of the items' length.
        grows: whether items are short at the beginning of a training.
        row: returns an item's fields as the task reads them. The split of an item depends on the field names of the
            generator, so these stay the same when the task's names change.
    """

    task: str
    make: Callable[..., Item]
    grows: bool = False
    row: Callable[[Item], Mapping[str, Any]] = lambda item: item.row

    def item(self, rng: random.Random, scale: float) -> Item:
        """Make one item, of this share of its full length if the domain grows."""
        return self.make(rng, scale) if self.grows else self.make(rng)


# Domains that the miniature is trained on.
DOMAINS: Mapping[str, Domain] = {
    "derivations": Domain("aime24", derivations.make, grows=True),
    "traces": Domain("mmlu_pro", traces.make, grows=True),
    "arithmetic": Domain("gsm8k", arithmetic.make),
    "articles": Domain("cnn_dm", articles.make),
    "briefs": Domain("xsum", articles.brief),
    "audits": Domain("govreport", audits.make, grows=True),
    "tales": Domain("tinystories", tales.make, grows=True),
    "translation": Domain("wmt16", translation.make),
    "queries": Domain("spider2", queries.make, row=queries.row),
    "programs": Domain("humaneval", programs.make, grows=True),
    "requests": Domain("alpaca", requests.make),
    "chats": Domain("alpaca", chats.make),
    "choices": Domain("mmlu_pro", choices.make),
}

# Domains without training: their items are samples of tasks only.
UNTRAINED: Mapping[str, Domain] = {
    "problems": Domain("math", problems.make),
    "questions": Domain("natural_questions", questions.make),
}

EVERY = {**DOMAINS, **UNTRAINED}


def held_out(item: Item) -> bool:
    """Return whether an item is in the held-out split; its content alone decides, so that no item is in both splits."""
    content = json.dumps([dict(item.row), item.answer], sort_keys=True)
    return hashlib.sha256(content.encode()).digest()[0] < HELD_OUT


def items(domain: str, rng: random.Random, evaluation: bool = False, scale: float = 1.0) -> Iterator[Item]:
    """Yield items of one split of a domain without end, of this share of their full length if the domain grows."""
    while True:
        item = EVERY[domain].item(rng, scale)
        if held_out(item) == evaluation:
            yield item


def distinct(domain: str, n: int, seed: int, evaluation: bool = True, scale: float = 1.0) -> list[Item]:
    """Return the first n different items of a split."""
    rng = random.Random(f"{seed}/{domain}/{'held out' if evaluation else 'train'}")
    found_items: dict[str, Item] = {}
    for item in items(domain, rng, evaluation, scale):
        found_items.setdefault(json.dumps(dict(item.row), sort_keys=True), item)
        if len(found_items) == n:
            break
    return list(found_items.values())


class Rows:
    """A data source of numbered rows."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]):
        self._rows = [dict(row) | {"id": str(i)} for i, row in enumerate(rows)]

    def rows(self, spec: DataSpec) -> list[dict[str, Any]]:
        """Return the rows, with their number as `id`, and "" for missing optional fields."""
        return [dict.fromkeys(spec.optional, "") | row for row in self._rows]

    def fingerprint(self, spec: DataSpec) -> str:
        """Return a hash of the rows."""
        return hashlib.sha256(json.dumps(self.rows(spec)).encode()).hexdigest()


def prompts(domain: str, sampled: Sequence[Item]) -> list[Prompt]:
    """Return the items' prompts, built by the code of the task, in the order of the items."""
    rows = Rows(map(EVERY[domain].row, sampled))
    task_prompts = task_named(EVERY[domain].task).prompts(rows, TEMPLATE, None, 0)
    return sorted(task_prompts, key=lambda prompt: int(prompt.id))


@dataclass(frozen=True)
class Document:
    """Token ids of a conversation.

    Attributes:
        prompt: everything before the last answer, earlier answers included.
        answer: the last answer, with its end marker.
        earlier: start and end of every answer within the prompt.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    earlier: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.prompt) + len(self.answer)


def documents(domain: str, sampled: Sequence[Item], tokenizer: PreTrainedTokenizerBase, context: int) -> list[Document]:
    """Return each item as token ids; a prompt that leaves no room for its answer is truncated."""

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    encoded_documents = []
    for prompt, item in zip(prompts(domain, sampled), sampled, strict=True):
        answer = (*ids(item.answer), tokenizer.eos_token_id)
        prompt_ids, earlier = encode(prompt, tokenizer, Template(TEMPLATE), context - len(answer)).ids, []
        for message, reply in item.further:
            conversation = [{"role": "user", "content": message}]
            turn = str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True))
            earlier.append((len(prompt_ids), len(prompt_ids) + len(answer)))
            prompt_ids = (*prompt_ids, *answer, *ids(turn.removeprefix(str(tokenizer.bos_token))))
            answer = (*ids(reply), tokenizer.eos_token_id)
        encoded_documents.append(Document(prompt_ids, answer, tuple(earlier)))
    return encoded_documents


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
    """Training batches; each depends only on the seed, the step and its number, so that a run can resume.

    Args:
        mix: step -> domain -> share of the tokens.
        budget: most tokens of a batch, padding included; a longer document is a batch of its own.
        prompt_weight: weight of a prompt's tokens in the loss.
        longest: step -> longest items of growing domains, as a share of their full length.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        context: int,
        mix: Callable[[int], Mapping[str, float]],
        budget: int,
        prompt_weight: float,
        seed: int,
        longest: Callable[[int], float],
    ):
        self._tokenizer, self._context, self._seed = tokenizer, context, seed
        self._mix, self._budget, self._prompt_weight, self._longest = mix, budget, prompt_weight, longest
        self._sizes: dict[tuple[str, float], int] = {}

    def _typical(self, domain: str, scale: float) -> int:
        """Return the mean tokens of a document, with the scale rounded up to eighths."""
        key = (domain, math.ceil(8 * scale) / 8 if EVERY[domain].grows else 1.0)
        if key not in self._sizes:
            sampled = distinct(domain, 32, seed=self._seed, evaluation=False, scale=key[1])
            typical_documents = documents(domain, sampled, self._tokenizer, self._context)
            self._sizes[key] = round(sum(map(len, typical_documents)) / len(sampled))
        return self._sizes[key]

    def at(self, step: int, number: int) -> tuple[Batch, random.Random]:
        """Return a batch, and its random generator, for layer dropout and the exit."""
        rng = random.Random(f"{self._seed}/{step}/{number}")
        mix, scale = self._mix(step), self._longest(step)
        if rng.random() < SHORTER:
            scale *= rng.uniform(0.2, 1.0)
        # Domains are drawn per batch, but shares are of tokens: divide by the tokens of a typical batch of the domain.
        shares = [share / max(self._budget, self._typical(name, scale)) for name, share in mix.items()]
        domain = rng.choices(list(mix), shares)[0]
        # Draw twice the documents that fit and keep neighbours in length, from a random start: little padding, no bias.
        n_documents = max(1, self._budget // self._typical(domain, scale))
        source = items(domain, rng, scale=scale)
        candidates = documents(domain, [next(source) for _ in range(2 * n_documents)], self._tokenizer, self._context)
        candidates.sort(key=len)
        start = rng.randrange(len(candidates))
        chosen: list[Document] = []
        for document in candidates[start:] + candidates[:start][::-1]:
            longest = max(map(len, [*chosen, document]))
            if chosen and longest * (len(chosen) + 1) > self._budget:
                break
            chosen.append(document)
        return self._padded(domain, chosen), rng

    def _padded(self, domain: str, chosen: Sequence[Document]) -> Batch:
        longest = max(map(len, chosen))
        tokens = torch.full((len(chosen), longest), self._tokenizer.eos_token_id)
        weights = torch.zeros(len(chosen), longest - 1)
        for row, document in enumerate(chosen):
            tokens[row, : len(document)] = torch.tensor(document.prompt + document.answer)
            weights[row, : len(document.prompt) - 1] = self._prompt_weight
            for start, end in (*document.earlier, (len(document.prompt), len(document))):
                weights[row, start - 1 : end - 1] = 1.0
        return Batch(domain, tokens, weights)
