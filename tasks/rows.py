"""What the tasks share that make one prompt of each row: a task file holds only what differs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ssd_bench.data.local import LocalSource
from ssd_bench.data.rows import usable
from ssd_bench.errors import ConfigError, shortened
from ssd_bench.settings import check_value
from ssd_bench.task import DataSource, DataSpec, Prompt
from tasks.scoring.scorer import Scorer
from tasks.scoring.thoughts import without_thoughts
from tasks.selection import (
    Row,
    checked_shots,
    checked_template,
    checked_variant,
    first,
    of_variant,
    shuffled,
)
from tasks.settings import MaxNewTokens
from tasks.shots import Shots


class RowTask(ABC):
    """Files, prompts and scores of a task that says how a row becomes a prompt; it adds its version and scorer.

    Args:
        items: the file of the items.
        max_new_tokens: most tokens of an answer.
        shots: demonstrations ahead of each item where the template is `plain` (base models); `chat` has none.

    Attributes:
        name: as in `task=NAME`, and the domain of all prompts but for tasks that set it by row.
        scorer: what compares answers with references.
        max_prompt_tokens, clip_reserve: `max_tokens` and `clip_reserve` of all prompts; None and 0 of tasks without.
        in_order: whether items come in the data's order; else in a shuffle with the run's seed.
        conversations: whether an item may have several turns.
        reference_hint: how to run items whose references the scorer cannot read.
        system: message of the system ahead of every prompt; None: none.
    """

    name: str
    version: int
    scorer: Scorer
    max_prompt_tokens: int | None
    clip_reserve: int
    in_order: bool = False
    conversations: bool = False
    reference_hint: ClassVar[str] = ""
    system: str | None = None

    def __init__(self, items: DataSpec, max_new_tokens: int, shots: Shots | None = None) -> None:
        # no values of the class, which would be the defaults of settings
        self.max_prompt_tokens = getattr(self, "max_prompt_tokens", None)
        self.clip_reserve = getattr(self, "clip_reserve", 0)
        self.max_new_tokens = check_value("task.max_new_tokens", MaxNewTokens, max_new_tokens)
        self._items, self._shots = items, shots if shots is not None and shots.count > 0 else None

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The file of the items, and that of the demonstrations where the template has any."""
        shots = self._shots_of(template)
        return (self._items, shots.file) if shots else (self._items,)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """Return the first `limit` items; shuffled, unless `in_order`, as KNN-SSD's and ConfLayers' code does."""
        ordered, prompt_of = self._opened(source, template, seed)
        prompts = [prompt_of(row) for row in first(ordered, limit)]
        self._check_references(source, prompts)
        return prompts

    def pool(self, source: DataSource, template: str, seed: int) -> Iterator[Prompt]:
        """Yield all items."""
        ordered, prompt_of = self._opened(source, template, seed)
        return (prompt_of(usable(row)) for row in ordered)

    def _opened(self, source: DataSource, template: str, seed: int) -> tuple[Sequence[Row], Callable[[Row], Prompt]]:
        """Return all items in their order, and a function from an item to its prompt with the demonstrations."""
        shots = self._shots_of(template)
        rows = list(source.rows(self._items))  # all of them, so that every fault of the file is counted
        items = self._asked(rows)
        shown = shots.draw(source, rows, seed) if shots else lambda row: ""

        def prompt_of(row: Row) -> Prompt:
            prompt = self._prompt(row)
            return replace(prompt, head=shown(row) + prompt.head, system=self.system)

        return items if self.in_order else shuffled(items, seed), prompt_of

    @property
    def metric(self) -> str:
        """What the scorer calls the score of one answer."""
        return self.scorer.metric

    def score(self, prompt: Prompt, text: str) -> float | None:
        """Compare what follows the model's thoughts with the reference, as the scorer does."""
        return self.scorer.item(without_thoughts(text), prompt.reference)

    def scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> dict[str, float]:
        """Over all prompts, then `DOMAIN/NAME` over those of each domain where there are several."""
        answered: dict[str, tuple[list[str], list[str]]] = {}
        for prompt, text in zip(prompts, texts, strict=True):
            for domain in ("", f"{prompt.domain}/"):
                predictions, references = answered.setdefault(domain, ([], []))
                predictions.append(without_thoughts(text))
                references.append(prompt.reference)
        chosen = answered if len(answered) > 2 else {"": answered.get("", ([], []))}
        return {
            f"{domain}{name}": value for domain, texts in chosen.items()
            for name, value in self.scorer.corpus(*texts).items()
        }  # fmt: skip

    def _check_references(self, source: DataSource, prompts: Sequence[Prompt]) -> None:
        """Refuse references that the scorer cannot read: their items would have no score, or always 0.

        Raises:
            ConfigError: with the file and line of the first, or its id where the rows are of the hub.
        """
        faulty = []
        for prompt in prompts:
            for reference in (prompt.reference, *(turn.reference for turn in prompt.turns)):
                if reference.strip() and (allowed := self.scorer.reference_fault(reference)):
                    faulty.append((prompt.id, reference, allowed))
        if faulty:
            identity, reference, allowed = faulty[0]
            more = f"; references that cannot be read: {len(faulty)}" if len(faulty) > 1 else ""
            place = _place(source, self._items, identity)
            raise ConfigError(f"{place} reference", shortened(reference), f"{allowed}{self.reference_hint}{more}")

    def _asked(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows that are items: all, but for tasks that leave some out."""
        return rows

    @abstractmethod
    def _prompt(self, row: Row) -> Prompt:
        """A row as a prompt without demonstrations; `_made` builds it."""

    def _made(
        self, row: Row, head: str, body: str = "", tail: str = "", *, reference: str, domain: str | None = None
    ) -> Prompt:
        clip = (self.max_prompt_tokens, self.clip_reserve)
        return Prompt(row["id"], head, body, tail, reference, domain or self.name, *clip)

    def _shots_of(self, template: str) -> Shots | None:
        return self._shots if checked_template(template) == "plain" else None


class VariantTask(RowTask):
    """A task that the code of several papers asks, each in its own format; it adds how a demonstration reads.

    Args:
        variant: one of `variants`; None: the first.
        shots: demonstrations in a `plain` prompt, of each variant or one number for all.
        max_new_tokens: most tokens of an answer, of each variant or one number for all.
        items: the file of the items.
        fewshot_hub: `datasets.load_dataset` arguments of the demonstrations.
        drawn: the other settings of `Shots`.

    Attributes:
        variants: their names.
        zero_shot: the one without demonstrations.
    """

    variants: tuple[str, ...]
    zero_shot: str

    def __init__(
        self, variant: str | None, shots: int | Mapping[str, int], max_new_tokens: int | Mapping[str, int],
        items: DataSpec, fewshot_hub: Mapping[str, Any], **drawn: Any,
    ) -> None:  # fmt: skip
        self.variant = checked_variant(variant, self.variants)
        self.in_order = self.variant == "knapspec"
        count = checked_shots(of_variant("shots", shots, self.variant), self.variant, without=self.zero_shot)
        limit = of_variant("max_new_tokens", max_new_tokens, self.variant)
        super().__init__(items, limit, Shots(items, fewshot_hub, count, self._demonstration, **drawn))

    @abstractmethod
    def _demonstration(self, row: Row) -> str:
        """A row with its answer."""


def _place(source: DataSource, spec: DataSpec, identity: str) -> str:
    """Return where an item is: its file and line, or the file's name and the item's id where it is of the hub."""
    if isinstance(source, LocalSource):
        for line in source.scan(spec):
            if line.row.get("id") == identity:
                return f"{line.where} (id {identity})"
    return f"{spec.name} {identity}"
