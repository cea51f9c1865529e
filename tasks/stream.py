"""Streams of prompts whose task changes: the mixed-task stream of KNN-SSD (§4.2, Eq. 8), and streams task by task.

With mixing ratio R, the next prompt is from another task, all equally likely, with probability R, else from the same
task. The orders are `code_order`, `markov_order`, or task by task as listed (SWIFT Figure 7, ConfLayers Figure 4).

Unlike in KNN-SSD's code, the order has its own random generator. Python's global one is seeded again by the loaders of
SQL and MATH, so the order would depend on that of the listed tasks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ssd_bench.contract.task import DataSource, DataSpec, Prompt, Sourced, Task
from ssd_bench.errors import ConfigError, naming
from ssd_bench.settings import Count, Probability, Whole, settings
from tasks.selection import first_rows

VERSION = 1


@settings("task")
class Stream:
    """Prompts of several tasks in one stream; each is built, truncated and scored as in its own task.

    A prompt's domain is the name of its part, and the beginning of its id.
    """

    name: str
    """Name, as in task=NAME."""
    parts: Mapping[str, Any]
    """Tasks by name, at least two; a name is a domain."""
    items: Count
    """Prompts of each part (code, listed), or their mean (markov)."""
    mix_ratio: Probability
    """Mixing ratio R; 0 for listed."""
    order: Literal["code", "markov", "listed"]
    """Order of KNN-SSD's code, Eq. 8 as printed, or part by part."""
    order_seed: Whole
    """Seed of the order alone; the items of a part depend on the run's seed."""
    first: str | None
    """Part of the first prompt; null: drawn at random."""
    max_new_tokens: Count | None
    """Most tokens of an answer, for all parts; null: each part's."""

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise ConfigError("task.parts", list(self.parts), "at least two tasks")
        for label, part in self.parts.items():
            if isinstance(part, Stream) or not hasattr(part, "score"):
                expected = f"the settings of a task other than stream; +task@task.parts.{label}=TASK adds one"
                raise ConfigError(f"task.parts.{label}", part, expected)
            if isinstance(part, Sourced) and part.source is not None:
                expected = (
                    "null: the parts of a stream read the run's data, so DIR/jsonl.jsonl with data=local data.root=DIR"
                )
                raise ConfigError(f"task.parts.{label}.path", getattr(part, "path", None), expected)
        if self.first is not None and self.first not in self.parts:
            raise ConfigError("task.first", self.first, f"null or one of {', '.join(self.parts)}")
        if self.order == "listed" and (self.mix_ratio, self.first) != (0, None):
            raise ConfigError("task.order", self.order, "mix_ratio 0 and first null: the parts come as they are listed")
        self._new_tokens = {name: self.max_new_tokens or part.max_new_tokens for name, part in self.parts.items()}
        self.max_new_tokens = max(self._new_tokens.values())
        self.metric = _metrics(self.parts)
        # versions only rise, so the sum rises with the version of any part
        self.version = VERSION + sum(part.version for part in self.parts.values())

    def files(self, template: str) -> tuple[DataSpec, ...]:
        return tuple(
            replace(spec, place=spec.option.replace("task.", f"task.parts.{name}.", 1))
            for name, part in self.parts.items()
            for spec in part.files(template)
        )

    def domains(self) -> list[str]:
        if self.order == "listed":
            return [name for name in self.parts for _ in range(self.items)]
        order = code_order if self.order == "code" else markov_order
        return order(list(self.parts), self.items, self.mix_ratio, self.first, random.Random(self.order_seed))

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """Return the first `limit` prompts of the stream; within a part they have its task's order.

        Raises:
            ConfigError: a part has fewer items than the stream needs.
        """
        domains = first_rows(self.domains(), limit)
        remaining = {}
        for name in dict.fromkeys(domains):
            count = domains.count(name)
            with naming("task", f"task.parts.{name}"):
                prompts = self.parts[name].prompts(source, template, count, seed)
            if len(prompts) < count:
                expected = f"fewer: the stream takes {count} prompts of {name}, which has {len(prompts)}"
                raise ConfigError("task.items", self.items, expected)
            remaining[name] = iter(prompts)
        return [self._labelled(name, next(remaining[name])) for name in domains]

    def pool(self, source: DataSource, template: str, seed: int) -> Iterator[Prompt]:
        """Yield all items of all parts in turn, even outside the stream."""
        pools: dict[str, Iterator[Prompt]] = {}
        for name, part in self.parts.items():
            with naming("task", f"task.parts.{name}"):
                pools[name] = iter(part.pool(source, template, seed))
        while pools:
            for name in list(pools):
                with naming("task", f"task.parts.{name}"):
                    prompt = next(pools[name], None)
                if prompt is None:
                    del pools[name]
                else:
                    yield self._labelled(name, prompt)

    def _labelled(self, name: str, prompt: Prompt) -> Prompt:
        return replace(prompt, id=f"{name}/{prompt.id}", domain=name, max_new_tokens=self._new_tokens[name])

    def score(self, prompt: Prompt, text: str) -> float | None:
        return self.parts[prompt.domain].score(prompt, text)

    def scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> dict[str, float]:
        """Return the scores of each part's task as `PART/NAME`."""
        scores_of_parts: dict[str, float] = {}
        for domain in dict.fromkeys(prompt.domain for prompt in prompts):
            answers = [(prompt, text) for prompt, text in zip(prompts, texts, strict=True) if prompt.domain == domain]
            scores = self.parts[domain].scores([p for p, _ in answers], [text for _, text in answers])
            scores_of_parts |= {f"{domain}/{name}": value for name, value in scores.items()}
        return scores_of_parts


def _metrics(parts: Mapping[str, Task]) -> str:
    scored: dict[str, list[str]] = {}
    for name, part in parts.items():
        scored.setdefault(part.metric, []).append(name)
    return "; ".join(f"{metric} of {', '.join(names)}" for metric, names in scored.items())


def code_order(names: Sequence[str], items: int, mix_ratio: float, first: str | None, rng: random.Random) -> list[str]:
    """Return `items` of each name, as KNN-SSD's released code mixes them.

    Until nothing is left: choose a name with prompts left, other than the last one if possible, and take prompts from
    it until it has none or, after each prompt, with probability `mix_ratio`. So the tail is mixed less. Source:
    `load_multiple_tasks` in `evaluation_llama/utils.py` at mbsong/KNN-SSD cfa8532.
    """
    left, order = dict.fromkeys(names, items), list[str]()
    while any(left.values()):
        candidates = [name for name in names if left[name] and order[-1:] != [name]]
        name = first if first and not order else rng.choice(candidates or order[-1:])
        while left[name]:
            order.append(name)
            left[name] -= 1
            if rng.random() < mix_ratio:
                break
    return order


def markov_order(
    names: Sequence[str], items: int, mix_ratio: float, first: str | None, rng: random.Random
) -> list[str]:
    """Return the order of KNN-SSD Eq. 8, a Markov chain that leaves a name with probability `mix_ratio`.

    The next name, and the first unless given, is drawn uniformly. Names have `items` prompts on average.
    """
    order = [first or rng.choice(names)]
    while len(order) < items * len(names):
        candidates = [name for name in names if name != order[-1]]
        order.append(rng.choice(candidates) if rng.random() < mix_ratio else order[-1])
    return order
