"""Contract of a task: the interface of a file in tasks/ to the runner (types only)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from ssd_bench.errors import ConfigError


@dataclass(frozen=True)
class DataSpec:
    """One file of a task, and where each data source finds it.

    Attributes:
        name: stem of the JSONL file (`NAME.jsonl`) that `data=local` and `data=sample` read.
        fields: required fields, under their local names; non-empty strings, except in `lists`.
        hub: arguments of `datasets.load_dataset` (path, name, split, revision) for `data=hub`; several names are read
            in turn; `rows`, if not null, is the expected number of rows.
        rename: hub column, or name in the authors' own file -> local field; `a.b` is the entry b of a nested column a.
            A local file may use both names.
        optional: fields that a row may lack; then "", or an empty list.
        lists: those of `fields` that are non-empty lists of non-empty strings, and those of `optional` that are lists.
        singles: those of `lists` in which a single string stands for a list of it.
        numbered: whether a local file's line number stands for a missing `id`.
        place: option that has the value of `hub`; None: `task.hub`, or `task.PART_hub` for a file NAME.PART.
    """

    name: str
    fields: tuple[str, ...]
    hub: Mapping[str, Any]
    rename: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    singles: tuple[str, ...] = ()
    numbered: bool = False
    place: str | None = None

    @property
    def option(self) -> str:
        """Option that has the value of `hub`, as a user types it."""
        part = self.name.partition(".")[2]
        return self.place or (f"task.{part}_hub" if part else "task.hub")


class DataSource(Protocol):
    """A source of rows (`conf/data`): the hub, a folder of JSONL files, or the samples."""

    def rows(self, spec: DataSpec) -> Sequence[dict[str, Any]]:
        """Return all rows in source order, with the fields of `spec` under their local names and an `id`.

        A row with faults stays in its place and raises its first fault when a task reads a field that it lacks, or
        calls `ssd_bench.data.rows.usable`.

        Raises:
            ConfigError: the file, a column or every row cannot be used (the message names the line).
        """

    def fingerprint(self, spec: DataSpec) -> str:
        """Return a text that identifies the content that `rows` reads."""


@runtime_checkable
class Examined(Protocol):
    """A data source that lists the unusable rows that it has read."""

    def unusable(self) -> Mapping[str, Sequence[ConfigError]]:
        """Return the faults of all rows that were read so far, by file or split."""


@dataclass(frozen=True)
class Turn:
    """A user's message after an answer of the model, with the reference for `Task.score`, or "" for none."""

    text: str
    reference: str = ""


@dataclass(frozen=True)
class Prompt:
    """One item before tokenisation, with the text `head + body + tail`.

    Attributes:
        id: unique within the task, stable over runs.
        head, body, tail: parts of the text; truncation shortens only `body`, from its end.
        reference: text with which `Task.score` compares the answer; "": none.
        domain: label for per-domain methods and tables.
        max_tokens: length to which a longer prompt is truncated (or to a shorter context), as in the task's paper;
            None: a prompt that does not fit is refused.
        clip_reserve: tokens of the context that truncation leaves free besides the new tokens.
        max_new_tokens: most tokens of each answer if `decode.max_new_tokens` is null; None: the task's.
        turns: messages of a conversation, never truncated, after the first answer.
        system: system message ahead of the prompt, for a chat template; None: that of `model.template.system`.
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
            raise ValueError(f"{self.id}: a conversation is never truncated")

    @property
    def user_texts(self) -> list[str]:
        """Messages of the user, in turn."""
        return [self.head + self.body + self.tail, *(turn.text for turn in self.turns)]

    def at(self, turn: int) -> Prompt:
        """Return this prompt with the reference of a turn, counted from 0."""
        return replace(self, reference=self.turns[turn - 1].reference) if turn else self


@runtime_checkable
class Sourced(Protocol):
    """A task that may have its own data source; None: the run's."""

    source: DataSource | None


class Task(Protocol):
    """A task: prompts from a data source, and a score of the model's answers.

    Attributes:
        metric: name of what `score` returns ("exact_match", "rougeL"), the headline in every table.
        version: rises when prompts or scores change; part of a run's content key.
        max_new_tokens: the paper's limit, used if `decode.max_new_tokens` is null.
    """

    name: str
    version: int
    max_new_tokens: int

    @property
    def metric(self) -> str: ...

    def files(self, template: str) -> tuple[DataSpec, ...]:
        """Return the files that `prompts` reads for this template; their fingerprints go into the record."""

    def prompts(self, source: DataSource, template: str, limit: int | None, seed: int) -> Sequence[Prompt]:
        """Return the prompts of a run: the first `limit` items (None: all) for a `chat` or `plain` template."""

    def pool(self, source: DataSource, template: str, seed: int) -> Iterable[Prompt]:
        """Yield all items, also those that no run of this task evaluates; within a domain in the order of `prompts`.

        A `Calibrated` method gets items that the run does not evaluate. Reading stops with the last needed item, so
        that a faulty row after it stops no run.
        """

    def score(self, prompt: Prompt, text: str) -> float | None:
        """Return the score in [0, 1] of one answer to a prompt of this task; None if the prompt has no reference.

        In a conversation, the answer to a turn is scored with `Prompt.at` of that turn.
        """

    def scores(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> dict[str, float]:
        """Return further scores of many answers, by name, in [0, 1], besides the mean of `score` (ROUGE-2, BLEU).

        A prompt may occur several times.
        """
