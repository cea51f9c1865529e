"""What a reported number is about: runs, by the names that the paper gives them, or other numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Protocol, TypeVar

from omegaconf import OmegaConf

from ssd_bench.command import CONF
from ssd_bench.papers import grid
from ssd_bench.papers.reported import Number, numbers
from ssd_bench.papers.rooms import room_of, rooms
from ssd_bench.papers.values import BASELINES

AVERAGES = ("Overall", "Average")
UNSAID = "a claim of the text; it does not say of which runs"
SETTING = "a setting, not a result"
# settings that say which of several runs a number is of, where a table has more than one
NARROWING = ("aggregate", "vs", "component", "when", "aspect")
ALL_TASKS = ("", *AVERAGES, "other tasks")


class Labelled(Protocol):
    """A job or a cell."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Axis -> the paper's own name."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """Of the command line."""


T = TypeVar("T", bound=Labelled)


@cache
def experiments() -> Mapping[tuple[str, str], tuple[grid.Experiment, ...]]:
    """All experiments by (paper, exhibit), which may have more than one; one may serve two versions of a paper."""
    found: dict[tuple[str, str], tuple[grid.Experiment, ...]] = {}
    for experiment in map(grid.load, grid.names()):
        for exhibit in ((experiment.paper, experiment.exhibit), *experiment.also):
            found[exhibit] = (*found.get(exhibit, ()), experiment)
    return found


def not_run(number: Number, among: Iterable[grid.Experiment]) -> str | None:
    """Why an experiment has no job for the number; ids may be those of the version of the paper that it names first."""
    for experiment in among:
        name = number.id.replace(f"{number.paper}/", f"{experiment.paper}/", 1)
        for entry in experiment.not_run:
            if any(fnmatchcase(name, glob) for glob in entry.get("numbers", ())):
                return str(entry["why"])
    return None


@cache
def parts_of(task: str) -> tuple[str, ...]:
    """The parts of a stream, which are the domains of its prompts; none for another task."""
    path = CONF / "task" / f"{task}.yaml"
    content: Any = OmegaConf.load(path) if path.is_file() else {}
    defaults = content.get("defaults", [])
    return tuple(entry.partition("@parts.")[2] for entry in defaults if "@parts." in str(entry))


@cache
def task_choices() -> Mapping[str, str]:
    """The papers' names of tasks -> choices of `task=`."""
    jobs = [job for found in experiments().values() for experiment in found for job in experiment.jobs]
    only = {name: task for room in rooms() for name, task in room.tasks.items()}  # tasks that only streams have
    return only | {job.labels["task"]: grid.choice(job.overrides, "task") for job in jobs}


def about(number: Number, among: Iterable[T]) -> list[T]:
    """The jobs or results that a number of their exhibit is about; of plain decoding, all with its AR arm."""
    all_models = ("", *room_of(number.paper).all_models)
    found = [one for one in among if number.model in all_models or one.labels["model"] == number.model]
    anyone = ("", *BASELINES)
    found = [one for one in found if number.method in anyone or one.labels["method"] == number.method]
    return _with_setting([one for one in found if _on_task(one, number)], number)


def _on_task(one: Labelled, number: Number) -> bool:
    """Whether it gives numbers of the number's task, or of one of several, perhaps as a part of its stream."""
    name = number.task
    if name in (*ALL_TASKS, *room_of(number.paper).all_tasks, one.labels["task"]):
        return True
    parts = parts_of(grid.choice(one.overrides, "task"))
    listed = name.split(", ")
    return one.labels["task"] in listed or task_choices().get(listed[0], "") in parts


def _with_setting(found: Sequence[T], number: Number) -> list[T]:
    """Those of the number's own setting, as much of it as they have, else those that it sums up."""
    wanted = telling(number)
    own = [(set(filter(None, one.labels["setting"].split(";"))), one) for one in found]
    most = max((len(setting) for setting, _ in own if setting <= wanted), default=None)
    if most is not None:
        return [one for setting, one in own if setting <= wanted and len(setting) == most]
    return [one for setting, one in own if wanted <= setting]


def telling(number: Number) -> set[str]:
    """The number's setting as experiments write theirs; an average over settings has none."""
    return {
        f"pass@{text}" if key == "pass@k" else f"{key}={text}"
        for key, text in number.settings.items()
        if key in room_of(number.paper).telling and text != "overall"
    }


def domains(number: Number, one: Labelled) -> list[str | None]:
    """The parts of its stream that a number is about; [None]: the run as a whole."""
    parts = parts_of(grid.choice(one.overrides, "task"))
    listed = number.task.split(", ")
    if not parts or number.task in ("", *AVERAGES) or one.labels["task"] in listed:
        return [None]
    first = first_domain(one)
    if number.task == "other tasks":
        return [part for part in parts if part != first]
    return [part for part in parts if part in {task_choices().get(name) for name in listed}]


def first_domain(one: Labelled) -> str:
    """The part that a stream begins with, on which methods that search once do so."""
    stated = next((o.partition("=")[2] for o in one.overrides if o.lstrip("+").startswith("task.first=")), "")
    return stated or next(iter(parts_of(grid.choice(one.overrides, "task"))), "")


# --- numbers of prose, abstracts and summaries ----------------------------------------------------------------------


def twins(number: Number) -> tuple[list[Number], str]:
    """The numbers of a table or figure that a number of the prose repeats or bounds.

    Returns:
        The numbers, of which a bound is the smallest or largest, and "", or none and why.
    """
    if number.metric == "skip_ratio" and not number.bound and not number.note.startswith("repeats"):
        return [], SETTING
    if number.settings.keys() & set(NARROWING) and not number.metric.startswith("optimization"):
        return [], UNSAID
    for exhibit in (*_named(number), *_about(number.paper, number.exhibit)):
        found = [other for other in numbers() if other.paper == number.paper and other.exhibit == exhibit]
        found = [other for other in found if other.metric == number.metric and other.method == number.method]
        found = _narrowed(number, [other for other in found if _model(number, other) and _task(number, other)])
        if found:
            return found, ""
    return [], UNSAID


def sources(paper: str, exhibit: str) -> list[str]:
    """The tables and figures that the numbers of a passage may be about."""
    own = [number for number in numbers() if (number.paper, number.exhibit) == (paper, exhibit)]
    named = [table for number in own for table in _named(number)]
    return list(dict.fromkeys([*named, *_about(paper, exhibit)]))


def _about(paper: str, passage: str) -> Sequence[str]:
    return room_of(paper).prose.get(paper, {}).get(passage, ())


def _named(number: Number) -> list[str]:
    """The tables that the note names as the number's own: "repeats Table 12", "prose on Table 4"."""
    return re.findall(r"(?:repeats|prose on|refers to|are) (Table \d+)", number.note)


def _narrowed(number: Number, found: Sequence[Number]) -> list[Number]:
    """A bound is about all rows but averages, or about averages only; another number about the one that it equals."""
    if number.bound:
        whole = "Overall" in number.note
        return [other for other in found if not other.bound and _is_average(other) == whole]
    same = [other for other in found if abs(other.value - number.value) <= other.half + number.half]
    return same[:1] if same else list(found if len(found) == 1 else ())


def _is_average(number: Number) -> bool:
    return number.task in AVERAGES or number.settings.get("mix_ratio") == "overall"


def _model(number: Number, other: Number) -> bool:
    if series := room_of(number.paper).series.get(number.model):
        return other.model in series
    if number.model.endswith(" series"):
        return other.model.startswith(number.model.removesuffix(" series"))
    return number.model in ("", other.model)


def _task(number: Number, other: Number) -> bool:
    return "" in (number.task, other.task) or other.task in number.task.split(", ") or number.task == "out-of-domain"
