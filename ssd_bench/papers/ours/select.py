"""Runs for a reported number, by the paper's names; numbers that prose repeats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, TypeVar

from omegaconf import OmegaConf

from ssd_bench.conf import config_file
from ssd_bench.papers.ours.cells import Cell
from ssd_bench.papers.ours.values import BASELINES
from ssd_bench.papers.printed.catalogue import folder_of, paper_folders
from ssd_bench.papers.printed.reported import Number, find_numbers
from ssd_bench.papers.runs import grid

AVERAGES = ("Overall", "Average")
UNSAID = "a claim in the text, which does not say which runs it refers to"
SETTING = "a setting, not a result"
# keys of settings that select one of several runs of a table
NARROWING = ("aggregate", "vs", "component", "when", "aspect")
ALL_TASKS = ("", *AVERAGES, "other tasks")


LabelledItem = grid.Job | Cell
T = TypeVar("T", grid.Job, Cell)


@cache
def experiments() -> Mapping[tuple[str, str], tuple[grid.Experiment, ...]]:
    """Return all experiments by (paper, exhibit); some serve two versions of a paper."""
    by_exhibit: dict[tuple[str, str], tuple[grid.Experiment, ...]] = {}
    for experiment in map(grid.load, grid.names()):
        for exhibit in ((experiment.paper, experiment.exhibit), *experiment.also):
            by_exhibit[exhibit] = (*by_exhibit.get(exhibit, ()), experiment)
    return by_exhibit


def why_not_run(number: Number, exhibit_experiments: Iterable[grid.Experiment]) -> str | None:
    """Return the stated reason why no experiment has a job for the number, or None.

    Ids in `not_run` may be of the version that the experiment names first.
    """
    for experiment in exhibit_experiments:
        name = number.id.replace(f"{number.paper}/", f"{experiment.paper}/", 1)
        for entry in experiment.not_run:
            if any(fnmatchcase(name, pattern) for pattern in entry.get("numbers", ())):
                return str(entry["why"])
    return None


@cache
def stream_parts(task: str) -> tuple[str, ...]:
    """Return the parts of a stream, the domains of its prompts; () if the task is no stream."""
    path = config_file("task", task)
    content: Any = OmegaConf.load(path) if path else {}
    defaults = content.get("defaults", [])
    return tuple(entry.partition("@parts.")[2] for entry in defaults if "@parts." in str(entry))


@cache
def task_choices() -> Mapping[str, str]:
    """Return the papers' task names -> choices of `task=`."""
    jobs = [job for of_exhibit in experiments().values() for experiment in of_exhibit for job in experiment.jobs]
    # tasks that occur only as parts of streams
    stream_tasks = {name: task for folder in paper_folders() for name, task in folder.tasks.items()}
    return stream_tasks | {job.labels["task"]: grid.choice(job.overrides, "task") for job in jobs}


def matching_items(number: Number, candidates: Iterable[T]) -> list[T]:
    """Return the jobs or cells of an exhibit for one of its numbers.

    A number of plain decoding is about all runs, as each has an AR arm.
    """
    all_models = ("", *folder_of(number.paper).all_models)
    items = [item for item in candidates if number.model in all_models or item.labels["model"] == number.model]
    all_methods = ("", *BASELINES)
    items = [item for item in items if number.method in all_methods or item.labels["method"] == number.method]
    return _with_setting([item for item in items if _on_task(item, number)], number)


def _on_task(item: LabelledItem, number: Number) -> bool:
    name = number.task
    if name in (*ALL_TASKS, *folder_of(number.paper).all_tasks, item.labels["task"]):
        return True
    parts = stream_parts(grid.choice(item.overrides, "task"))
    tasks = name.split(", ")
    return item.labels["task"] in tasks or task_choices().get(tasks[0], "") in parts


def _with_setting(items: Sequence[T], number: Number) -> list[T]:
    """Return the items sharing most of the number's setting, else those that it summarises."""
    wanted = distinguishing_settings(number)
    settings = [(set(filter(None, item.labels["setting"].split(";"))), item) for item in items]
    largest = max((len(setting) for setting, _ in settings if setting <= wanted), default=None)
    if largest is not None:
        return [item for setting, item in settings if setting <= wanted and len(setting) == largest]
    return [item for setting, item in settings if wanted <= setting]


def distinguishing_settings(number: Number) -> set[str]:
    """Return the number's setting in the experiments' form; empty for an average over settings."""
    return {
        f"pass@{text}" if key == "pass@k" else f"{key}={text}"
        for key, text in number.settings.items()
        if key in folder_of(number.paper).telling and text != "overall"
    }


def domains(number: Number, item: LabelledItem) -> list[str | None]:
    """Return the parts of the item's stream for a number; [None] for the whole run.

    A number along a stream is about all parts, or those on one side of the domain shift.
    """
    parts = stream_parts(grid.choice(item.overrides, "task"))
    tasks, first = number.task.split(", "), first_domain(item)
    if parts and "stream" in number.settings and item.labels["task"] == number.task:
        point = number.settings.get("point")
        return [part for part in parts if point is None or (part == first) == (point == "before domain shift")]
    if not parts or number.task in ("", *AVERAGES) or item.labels["task"] in tasks:
        return [None]
    if number.task == "other tasks":
        return [part for part in parts if part != first]
    return [part for part in parts if part in {task_choices().get(name) for name in tasks}]


def first_domain(item: LabelledItem) -> str:
    """Return the first part of a stream, on which methods with one search run it; "" if no stream."""
    first_part = next(iter(stream_parts(grid.choice(item.overrides, "task"))), "")
    return grid.choice(item.overrides, "task.first") or first_part


# --- numbers of prose, abstracts and summaries ----------------------------------------------------------------------


def repeated_numbers(number: Number) -> tuple[list[Number], str]:
    """Return the numbers of an exhibit that a number in the text repeats, or of which it is a bound, and "".

    Without a match return no numbers and the reason.
    """
    if number.metric == "skip_ratio" and not number.bound and not number.note.startswith("repeats"):
        return [], SETTING
    if number.settings.keys() & set(NARROWING) and not number.metric.startswith("optimization"):
        return [], UNSAID
    for exhibit in (*_tables_in_note(number), *_exhibits_of_passage(number.paper, number.exhibit)):
        candidates = find_numbers(number.paper, exhibit, metric=number.metric, method=number.method)
        candidates = [
            candidate for candidate in candidates if _same_model(number, candidate) and _same_task(number, candidate)
        ]
        if same_numbers := _same_numbers(number, candidates):
            return same_numbers, ""
    return [], UNSAID


def source_exhibits(paper: str, exhibit: str) -> list[str]:
    """Return the exhibits that a passage's numbers may be about."""
    tables_in_notes = [table for number in find_numbers(paper, exhibit) for table in _tables_in_note(number)]
    return list(dict.fromkeys([*tables_in_notes, *_exhibits_of_passage(paper, exhibit)]))


def _exhibits_of_passage(paper: str, passage: str) -> Sequence[str]:
    return folder_of(paper).prose.get(paper, {}).get(passage, ())


def _tables_in_note(number: Number) -> list[str]:
    """Return the tables named as source in the note: "repeats Table 12", "prose on Table 4"."""
    return re.findall(r"(?:repeats|prose on|refers to|are) (Table \d+)", number.note)


def _same_numbers(number: Number, candidates: Sequence[Number]) -> list[Number]:
    """Return the candidates restated by a number in the text.

    A bound is about all rows except averages, or averages only; other numbers about the row with the same value.
    """
    if number.bound:
        averages = [c for c in candidates if c.task in AVERAGES or c.settings.get("mix_ratio") == "overall"]
        of_averages = "Overall" in number.note
        return [c for c in candidates if not c.bound and (c in averages) == of_averages]
    equal = [
        candidate for candidate in candidates if abs(candidate.value - number.value) <= candidate.half + number.half
    ]
    return equal[:1] if equal else list(candidates if len(candidates) == 1 else ())


def _same_model(number: Number, candidate: Number) -> bool:
    """Return whether the candidate has the number's model, or one of that series."""
    if series := folder_of(number.paper).series.get(number.model):
        return candidate.model in series
    if number.model.endswith(" series"):
        return candidate.model.startswith(number.model.removesuffix(" series"))
    return number.model in ("", candidate.model)


def _same_task(number: Number, candidate: Number) -> bool:
    return (
        "" in (number.task, candidate.task)
        or candidate.task in number.task.split(", ")
        or number.task == "out-of-domain"
    )
