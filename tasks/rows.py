"""Base classes of tasks with one prompt per row; a task file holds only its differences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ssd_bench.contract.task import DataSource, DataSpec, Prompt
from ssd_bench.data.local import LocalSource
from ssd_bench.data.rows import Row, usable
from ssd_bench.errors import ConfigError, shortened
from ssd_bench.settings import check_value, settings
from tasks.scoring.scorer import Scorer
from tasks.scoring.thoughts import without_thoughts
from tasks.selection import first_rows, shuffled
from tasks.settings import Hub, MaxNewTokens, System
from tasks.shots import Shots


class RowTask(ABC):
    """Files, prompts and scores of a task; subclasses define `_prompt`, version and scorer.

    Args:
        items: file of the items.
        max_new_tokens: most tokens of an answer.
        shots: demonstrations ahead of each item with the template `plain` (base models).

    Attributes:
        name: name as in `task=NAME`, and the default domain of all prompts.
        max_prompt_tokens, clip_reserve: `max_tokens` and `clip_reserve` of all prompts; default None and 0.
        in_order: whether items keep the data's order, or are shuffled with the run's seed.
        conversations: whether an item may have several turns.
        reference_hint: advice in the error message on unreadable references.
        file: `name` of the items' `DataSpec`; "": the task's.
        fields, optional, lists, rename: as in `DataSpec`.
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
    file: ClassVar[str] = ""
    fields: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    lists: ClassVar[tuple[str, ...]] = ()
    rename: ClassVar[Mapping[str, str]] = {}
    hub: Mapping[str, Any]

    def __init__(self, items: DataSpec, max_new_tokens: int, shots: Shots | None = None) -> None:
        # set here, not in the class: there they would be defaults of settings
        self.max_prompt_tokens = getattr(self, "max_prompt_tokens", None)
        self.clip_reserve = getattr(self, "clip_reserve", 0)
        self.max_new_tokens = check_value("task.max_new_tokens", MaxNewTokens, max_new_tokens)
        self._items, self._shots = items, shots if shots is not None and shots.count > 0 else None

    def __post_init__(self) -> None:
        """Describe the task's files by its settings."""
        items = DataSpec(self.file or self.name, self.fields, self.hub, self.rename, self.optional, self.lists)
        RowTask.__init__(self, items, self.max_new_tokens, self._shots_from(items))

    def _shots_from(self, items: DataSpec) -> Shots | None:
        """Return the demonstrations; None in a task without any."""
        return None

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """Return the items' file, and the demonstrations' if any."""
        shots = self._shots_of(template)
        return (self._items, shots.file) if shots else (self._items,)

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """Return the first `limit` items, shuffled as in KNN-SSD's and ConfLayers' code unless `in_order`."""
        ordered, prompt_of = self._prepare(source, template, seed)
        prompts = [prompt_of(row) for row in first_rows(ordered, limit)]
        self._check_references(source, prompts)
        return prompts

    def pool(self, source: DataSource, template: str, seed: int) -> Iterator[Prompt]:
        ordered, prompt_of = self._prepare(source, template, seed)
        return (prompt_of(usable(row)) for row in ordered)

    def _prepare(self, source: DataSource, template: str, seed: int) -> tuple[Sequence[Row], Callable[[Row], Prompt]]:
        """Return all items in order, and a function from an item to its prompt with demonstrations."""
        shots = self._shots_of(template)
        rows = list(source.rows(self._items))  # all rows, so that every fault of the file is counted
        items = self._select_items(rows)
        demonstrations = shots.draw(source, rows, seed) if shots else lambda row: ""

        def prompt_of(row: Row) -> Prompt:
            prompt = self._prompt(row)
            return replace(prompt, head=demonstrations(row) + prompt.head, system=self.system)

        return items if self.in_order else list(shuffled(items, seed)), prompt_of

    @property
    def metric(self) -> str:
        return self.scorer.metric

    def score(self, prompt: Prompt, text: str) -> float | None:
        """Score the text after the model's thoughts."""
        return self.scorer.item(without_thoughts(text), prompt.reference)

    def scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> dict[str, float]:
        """Return the scorer's scores over all prompts and, for several domains, `DOMAIN/NAME` over each."""
        answers: dict[str, tuple[list[str], list[str]]] = {}
        for prompt, text in zip(prompts, texts, strict=True):
            for domain in ("", f"{prompt.domain}/"):
                predictions, references = answers.setdefault(domain, ([], []))
                predictions.append(without_thoughts(text))
                references.append(prompt.reference)
        chosen = answers if len(answers) > 2 else {"": answers.get("", ([], []))}
        return {
            f"{domain}{name}": value
            for domain, texts in chosen.items()
            for name, value in self.scorer.corpus(*texts).items()
        }

    def _check_references(self, source: DataSource, prompts: Sequence[Prompt]) -> None:
        """Refuse references that the scorer cannot read: their items would have no score, or always 0."""
        faulty = []
        for prompt in prompts:
            for reference in (prompt.reference, *(turn.reference for turn in prompt.turns)):
                if reference.strip() and (expected := self.scorer.reference_fault(reference)):
                    faulty.append((prompt.id, reference, expected))
        if faulty:
            identity, reference, expected = faulty[0]
            more = f"; {len(faulty)} references are invalid" if len(faulty) > 1 else ""
            place = _place(source, self._items, identity)
            raise ConfigError(f"{place} reference", shortened(reference), f"{expected}{self.reference_hint}{more}")

    def _select_items(self, rows: Sequence[Row]) -> Sequence[Row]:
        return rows

    @abstractmethod
    def _prompt(self, row: Row) -> Prompt:
        """Return a row's prompt without demonstrations; `_make_prompt` builds it."""

    def _make_prompt(
        self, row: Row, head: str, body: str = "", tail: str = "", *, reference: str, domain: str | None = None
    ) -> Prompt:
        clip = (self.max_prompt_tokens, self.clip_reserve)
        return Prompt(row["id"], head, body, tail, reference, domain or self.name, *clip)

    def _shots_of(self, template: str) -> Shots | None:
        return self._shots if template == "plain" else None


@settings("task")
class HubTask(RowTask):
    """A task whose only settings are its data set, the limit of new tokens and a system message."""

    max_new_tokens: MaxNewTokens
    hub: Hub
    system: System = None


class FewShotTask(RowTask):
    """A task with demonstrations in `plain` prompts, by its settings `shots` and `fewshot_hub`.

    Attributes:
        drawn: other settings of `Shots`.
    """

    drawn: ClassVar[Mapping[str, Any]] = {}
    shots: int
    fewshot_hub: Mapping[str, Any]

    def _shots_from(self, items: DataSpec) -> Shots:
        return Shots(items, self.fewshot_hub, self.shots, self._demonstration, **self.drawn)

    @abstractmethod
    def _demonstration(self, row: Row) -> str:
        """Return a row's text with its answer."""


class VariantTask(FewShotTask):
    """A task that several papers use in different formats.

    Args:
        variant: one of `variants`, in a subclass the paper whose format or numbers apply; None: the first.
        shots, max_new_tokens: demonstrations in a `plain` prompt, and most tokens of an answer; per variant or one
            number.
        hub, fewshot_hub: `datasets.load_dataset` arguments of the items and of the demonstrations.

    Attributes:
        zero_shot: variant without demonstrations, or "".
        hub_by_variant: whether `hub` has the arguments of each variant.
    """

    variants: tuple[str, ...]
    zero_shot: str = ""
    hub_by_variant: bool = False

    def __init__(
        self,
        variant: str | None,
        shots: int | Mapping[str, int],
        max_new_tokens: int | Mapping[str, int],
        hub: Mapping[str, Any],
        fewshot_hub: Mapping[str, Any],
        system: str | None = None,
    ) -> None:
        self.variant = self.variants[0] if variant is None else variant
        if self.variant not in self.variants:
            raise ConfigError("task.variant", variant, f"one of {', '.join(self.variants)}")
        place = None
        if self.hub_by_variant:
            place, hub = f"task.hub.{self.variant}", self._own("hub", hub)
        self.in_order = self.variant == "knapspec"
        count = self._own("shots", shots)
        if self.variant == self.zero_shot and count != 0:
            raise ConfigError("task.shots", count, f"0 for the variant {self.variant}, which is zero-shot")
        items = DataSpec(self.file, self.fields, hub, optional=self.optional, place=place)
        limit = self._own("max_new_tokens", max_new_tokens)
        super().__init__(items, limit, Shots(items, fewshot_hub, count, self._demonstration, **self.drawn))
        self.system = check_value("task.system", System, system)

    def _own(self, option: str, values: Any) -> Any:
        """Return this variant's value of an option; without a mapping, the value holds for all."""
        if not isinstance(values, Mapping):
            return values
        if self.variant not in values:
            raise ConfigError(f"task.{option}", dict(values), f"a value for {self.variant}")
        return values[self.variant]


def _place(source: DataSource, spec: DataSpec, identity: str) -> str:
    if isinstance(source, LocalSource):
        for where, row in source.scan(spec):
            if row.get("id") == identity:
                return f"{where} (id {identity})"
    return f"{spec.name} {identity}"
