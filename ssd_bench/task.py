"""The contract of a task: what a file in tasks/ offers and what the runner does with it (types only)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from ssd_bench.errors import ConfigError


@dataclass(frozen=True)
class DataSpec:
    """Where one file of a task comes from, in each world.

    Attributes:
        name: stem of the JSONL file (`NAME.jsonl`) that `data=local` and `data=sample` read.
        fields: the fields every row must have, under their local names: non-empty strings, but for `lists`.
        hub: arguments of `datasets.load_dataset` (path, name, split, revision) for `data=hub`; a list of names is read
            one after the other; `rows`, if not null, is the number of rows that there must be.
        rename: hub column, or name in the authors' own file -> local field, where they differ; `a.b` is the entry b of
            a nested column a. A local file may have either.
        optional: fields that a row may lack or leave empty; such a row has "" there, or no entry of a list.
        lists: those of `fields` that are lists, neither they nor their strings empty, and of `optional`.
        either: those of `lists` where a string is a list of it alone.
        numbered: a row of a local file without `id` is called by its line.
        place: option that `hub` comes from; None: `task.hub`, and `task.PART_hub` of a file NAME.PART.
    """

    name: str
    fields: tuple[str, ...]
    hub: Mapping[str, Any]
    rename: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    either: tuple[str, ...] = ()
    numbered: bool = False
    place: str | None = None

    @property
    def option(self) -> str:
        """Option that `hub` comes from, as a user types it."""
        part = self.name.partition(".")[2]
        return self.place or (f"task.{part}_hub" if part else "task.hub")


class DataSource(Protocol):
    """One of the three worlds that rows come from (`conf/data`)."""

    def rows(self, spec: DataSpec) -> Sequence[dict[str, Any]]:
        """Return all rows in source order, with the fields of `spec` under their local names and an `id`.

        A row with faults is in its place, and raises its first fault where a task reads a field that it lacks; `usable`
        of `ssd_bench.data.rows` raises it for a row that is used.

        Raises:
            ConfigError: the file, a column or every row cannot be used (named with its line).
        """
        ...

    def fingerprint(self, spec: DataSpec) -> str:
        """Return what identifies the content that `rows` reads for `spec`, for the record."""
        ...


@runtime_checkable
class Examined(Protocol):
    """A data source that tells of the rows that it read and no run can use."""

    def unusable(self) -> Mapping[str, Sequence[ConfigError]]:
        """Return the faults of all rows that were read so far, by file or split."""
        ...


@dataclass(frozen=True)
class Turn:
    """What the user says once the model has answered.

    Attributes:
        text: all of it.
        reference: what `Task.score` compares the answer with; "" where there is none.
    """

    text: str
    reference: str = ""


@dataclass(frozen=True)
class Prompt:
    """One item, before tokenisation. The text that the model reads is `head + body + tail`.

    Attributes:
        id: unique within the task, stable over runs.
        head, body, tail: only `body` may be shortened (from its end) when the prompt is clipped.
        reference: what `Task.score` compares with; "" where there is none.
        domain: label for per-domain methods and tables.
        max_tokens: a longer prompt is clipped to this, or to the context where that is less, as the paper of its task
            does; None: never clipped, refused where it does not fit.
        clip_reserve: tokens kept free of the context besides the new tokens when a prompt is clipped to fit it.
        max_new_tokens: most tokens of each answer where `decode.max_new_tokens` is null; None: the task's.
        turns: of a conversation, what is said after the first answer; it is never clipped.
        system: message of the system ahead of it, for a chat template; None: what `model.template.system` says.
    """

    id: str
    head: str
    body: str
    tail: str
    reference: str
    domain: str
    max_tokens: int | None = None
    clip_reserve: int = 0
    max_new_tokens: int | None = None
    turns: tuple[Turn, ...] = ()
    system: str | None = None

    def __post_init__(self) -> None:
        if self.turns and self.max_tokens is not None:
            raise ValueError(f"{self.id}: a conversation is never clipped")

    @property
    def said(self) -> list[str]:
        """What the user says, in turn."""
        return [self.head + self.body + self.tail, *(turn.text for turn in self.turns)]

    def at(self, turn: int) -> Prompt:
        """This prompt with the reference of a turn, counted from 0."""
        return replace(self, reference=self.turns[turn - 1].reference) if turn else self


@runtime_checkable
class Sourced(Protocol):
    """A task that may bring its rows itself.

    Attributes:
        source: of its rows; None: the one of the run.
    """

    source: DataSource | None


class Task(Protocol):
    """A task: prompts from a data source, and a score of the text that a model answers.

    Attributes:
        name: as in `task=NAME`.
        metric: name of what `score` returns ("exact_match", "rougeL"), the headline in every table.
        version: raised when prompts or scores change; part of a run's content key.
        max_new_tokens: the paper's limit, used when `decode.max_new_tokens` is null.
    """

    name: str
    version: int
    max_new_tokens: int

    @property
    def metric(self) -> str: ...

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """The files that `prompts` reads for this template; their fingerprints go into the record."""
        ...

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """What a run evaluates: the first `limit` items (None: all) for a `chat` or `plain` template, in its order."""
        ...

    def pool(self, source: DataSource, template: str, seed: int) -> Iterable[Prompt]:
        """Yield all there is to draw from, also what no run of this task evaluates; a domain in the order of `prompts`.

        A `Calibrated` method gets prompts of it that the run does not evaluate. Reading ends with the last that it
        needs, so that a row after it stops no run.
        """
        ...

    def score(self, prompt: Prompt, text: str) -> float | None:
        """Score in [0, 1] of one answer to a prompt of this task; None where the prompt has no reference.

        Of a conversation each answer is scored with `Prompt.at` its turn.
        """
        ...

    def scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> dict[str, float]:
        """What else there is to say of many answers, by name, in [0, 1], beside the mean of `score` (ROUGE-2, BLEU).

        Args:
            prompts: as often as answered.
            texts: one answer to each.
        """
        ...
