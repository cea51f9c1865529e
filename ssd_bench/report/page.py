"""The page: answers first, then every exhibit of every paper one at a time, and counts; it loads its figures alone.

Here is what it shows; how it shows that is `page.html`, with its style and its script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ssd_bench import tables
from ssd_bench.metrics.text import ABSENT
from ssd_bench.papers import audit, reported, select, verdict
from ssd_bench.papers.cells import Record, Replication
from ssd_bench.papers.grid import Experiment
from ssd_bench.papers.match import order_scales
from ssd_bench.papers.rooms import paper_folders, paper_versions, version_name
from ssd_bench.papers.ssd_bench import figures as ours
from ssd_bench.papers.ssd_bench.own import OWN, remarks
from ssd_bench.report import answers, exhibits, predictions, verdicts
from ssd_bench.report.figures import FIGURES, FOREST, NARROW, DrawnFigure
from ssd_bench.report.layout import EXCLUDED, NONE, SAME_RUN, Cells, Column, Entry, layout, paper_label
from ssd_bench.style import unbroken

FOLDER = Path(__file__).parent
AXES = ("model", "task", "method")
FILTERS = {"paper": "Paper", "model": "Model", "task": "Task", "method": "Method"}
KINDS = {"sets": "layer sets", "cases": "case study", "vectors": "hidden vectors"}
STATES = {"filled": "●", "partly filled": "◐", "empty": "○", "elsewhere": "→", "no results": "–"}
COMPLETE = {
    "filled": "are whole", "partly filled": "in part", "empty": "missing", "elsewhere": "have the runs of another",
    "no results": "hold no results",
}  # fmt: skip
PART = {verdict.ALGORITHMIC: "algorithmic", verdict.SPEED: "speed", "": "not compared"}
LABELS = {"alpha": "α", "tpt": "TPT", "_pct": "", "rouge2": "ROUGE-2", "_": " "}  # of metrics
MARKS = {  # signs that differ in form, not by colour alone
    verdict.AGREES: ("✓", "agrees"),
    verdict.DIFFERS: ("✗", "differs"),
    verdict.BY_DEFINITION: ("≡", "definition"),
    verdict.OTHER_MODEL: ("○", "model"),
    verdict.OTHER_SCALE: ("◇", "scale"),
    verdict.OTHER_HARDWARE: ("△", "hardware"),
    verdict.VOID: ("∅", "void"),
}
MEANING = {
    verdict.AGREES: "the paper's own model and prompts (for speed: its hardware too), and its value lies in our 95 % "
    "interval, widened by rounding and a tolerance",
    verdict.DIFFERS: "the same, and it does not",
    verdict.BY_DEFINITION: "1 for plain decoding, here as there",
    verdict.OTHER_MODEL: "ours is of another model, so the values say nothing about each other; the order may",
    verdict.OTHER_SCALE: "the paper's model, but fewer or other prompts",
    verdict.OTHER_HARDWARE: "a speed on a machine that the paper does not name: no verdict",
    verdict.VOID: "a run behind it decides nothing: no search ran in it, or it has the trace of another cell; neither "
    "ranked nor counted as filled",
    "no run yet": "the command that is named makes it",
    "not run": "the experiment leaves it out and says why",
    "undefined": "the runs are there, but they do not define it",
    "not measurable": "no run of ours can give it: a claim, a cited number, or a quantity that is not recorded",
}


@dataclass(frozen=True)
class Exhibit:
    """What the page shows of one exhibit.

    Attributes:
        frame: its numbers beside ours; None where the paper prints none.
        replications: of its experiments, ours.
        drawn: figures by experiment.
    """

    paper: str
    exhibit: str
    frame: pd.DataFrame | None
    replications: Sequence[Replication] = field(repr=False)
    drawn: Mapping[str, Sequence[DrawnFigure]] = field(repr=False)

    @cached_property
    def experiments(self) -> tuple[Experiment, ...]:
        """Whose runs fill it."""
        return select.experiments().get((self.paper, self.exhibit), ())

    @cached_property
    def listed(self) -> Mapping[str, str]:
        """Its row of the list of exhibits; empty for a passage of the text."""
        rows = reported.exhibits(self.paper, self.exhibit)
        return {} if rows.empty else {str(key): str(value) for key, value in rows.iloc[0].items()}

    @property
    def anchor(self) -> str:
        """Of its article."""
        return exhibits.file_stem(self.paper, self.exhibit)

    @property
    def title(self) -> str:
        """With its paper."""
        return exhibits.title(self.paper, self.exhibit)

    @property
    def name(self) -> str:
        """Without its paper."""
        what = self.listed.get("title", "Numbers of the text" if self.exhibit != "abstract" else "Numbers")
        return f"{self.exhibit[:1].upper()}{self.exhibit[1:]}: {what}"

    @property
    def short(self) -> str:
        """As the contents have it."""
        return self.exhibit.replace("Table ", "T").replace("Figure ", "F").replace("text ", "")

    @property
    def kind(self) -> str:
        """A word or two on what it is."""
        if self.experiments:
            return KINDS.get(self.experiments[0].kind, self.experiments[0].kind)
        if not self.listed:
            return "text"
        return "features" if not self._features.empty else "diagram"

    @cached_property
    def _features(self) -> pd.DataFrame:
        return reported.features(self.paper, self.exhibit)

    @property
    def features(self) -> str:
        """Of methods, where it is a table of such."""
        if self._features.empty:
            return ""
        body = self._features.pivot(index="method", columns="feature", values="value").fillna("")
        names = list(dict.fromkeys(self._features["feature"]))
        return tables.html(body.loc[list(dict.fromkeys(self._features["method"])), names], self.title)

    @cached_property
    def figures(self) -> list[DrawnFigure]:
        """That have an image; those of another version of the paper are shown there."""
        own = [one for one in self.experiments if one.paper == self.paper]
        return [drawn for one in own for drawn in self.drawn.get(one.name, ()) if drawn.image is not None]

    @cached_property
    def state(self) -> str:
        """Filled, partly, empty, or nothing to fill."""
        wanted = [one for one in self.experiments if one.name in FIGURES and one.paper == self.paper]
        have = {drawn.name for drawn in self.figures}
        parts = [one.name in have for one in wanted]
        if self.frame is not None:
            parts += self.frame["ours"].notna().tolist()
        if not parts:
            return "elsewhere" if self.experiments else "no results"
        return "filled" if all(parts) else "partly filled" if any(parts) else "empty"

    @cached_property
    def scales(self) -> list[str]:
        """Of the runs that are there, the nearest to the paper's first; else the papers' own."""
        names = {one.name for one in self.experiments}
        found = {r.scale for r in self.replications if r.experiment.name in names and any(x.record for x in r.cells)}
        if self.frame is not None:
            found |= {scale for scale in self.frame["scale"] if scale}
        return order_scales(dict.fromkeys(found)) or ["paper"]

    @property
    def badges(self) -> list[tuple[str, str]]:
        """What it is, whether it is filled and at which scale, each with a style."""
        scale = [(f"scale {', '.join(self.scales)}", "")] if self.state in ("filled", "partly filled") else []
        return [(self.kind, ""), (self.state, f" s-{self.state.replace(' ', '-')}"), *scale]

    @property
    def labels(self) -> dict[str, str]:
        """What the filters know of it: the papers' names on each axis, of its numbers and jobs."""
        return {axis: join_values(self.values(axis)) for axis in AXES}

    def values(self, axis: str) -> Iterator[str]:
        """The papers' names on an axis."""
        if self.frame is not None:
            yield from self.frame[axis]
        for experiment in self.experiments:
            yield from (job.labels[axis] for job in experiment.jobs)

    @property
    def summary(self) -> Iterator[str]:
        """Sentences on what it is in the paper, and how ours stands to it."""
        if content := self.listed.get("content"):
            yield f"In the paper: {content}."
        if self.frame is not None:
            yield exhibits.describe_results(self.frame)
            yield from exhibits.verdict_sentences(self.frame)
            yield from exhibits.speedup_sentences(self.frame)
        elif not self.experiments:
            yield "It holds no results, but " + (
                "a diagram." if self._features.empty else "marks, unknown where the paper's text lost them."
            )
        for one in self.experiments:
            if one.paper != self.paper:
                yield f"It has the runs of {version_name(one.paper)}, {one.exhibit}" + (
                    ", whose figure is there." if one.name in FIGURES else "."
                )

    @property
    def numbers(self) -> dict[str, Any] | None:
        """Its tables in the paper's layout, those of the paper's models without any number of ours in `lacking`."""
        if self.frame is None:
            return None
        have = self.frame["ours"].notna() | (self.frame["verdict"] == verdict.VOID)
        compared = have.groupby(self.frame["model"]).transform("any")
        there, lacking = self.frame[compared], self.frame[~compared]
        return {"there": _tables(there), "lacking": _tables(lacking), "without": len(lacking)}

    @property
    def missing(self) -> list[str]:
        """Why numbers, figures and parts are not there."""
        lines = exhibits.scale_notes(self.paper, self.exhibit, self.replications)
        if self.frame is not None:
            lines += exhibits.missing_reasons(self.frame)
        for one in self.experiments:
            if one.paper != self.paper:
                continue
            lines += [f"{entry['what']}: {entry['why']}" for entry in one.not_run if not entry.get("numbers")]
            tried = self.drawn.get(one.name, ())
            lines += [f"No figure at scale {drawn.scale}: {drawn.reason}" for drawn in tried if drawn.image is None]
            if one.name in FIGURES and not tried:
                lines.append(f"No figure yet: experiment={one.name} was not run at any scale.")
        return lines

    @property
    def commands(self) -> list[str]:
        """That make its runs."""
        return exhibits.commands(self.paper, self.exhibit, pd.DataFrame({"scale": self.scales}))

    @property
    def runs(self) -> list[str]:
        """Names of the records behind numbers and figures."""
        found = exhibits.run_ids(self.frame) if self.frame is not None else []
        shown = {(drawn.name, drawn.scale) for drawn in self.figures}
        for one in self.replications:
            if (one.experiment.name, one.scale) in shown:
                found += [cell.path.name for cell in one.recorded_cells()]
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Sheet:
    """A table beside the exhibits, with what stands around it.

    Attributes:
        title: for the filters and for those who hear the page.
        labels: what the filters know of it, as an exhibit's.
        name: its head.
        lines: sentences; reasons: a list of what is missing.
    """

    anchor: str
    title: str
    paper: str
    labels: Mapping[str, str]
    name: str = ""
    table: str = ""
    lines: Sequence[str] = ()
    reasons: Sequence[str] = ()
    figure: DrawnFigure | None = None
    command: str = ""


def render(
    replications: Sequence[Replication],
    frames: Mapping[tuple[str, str], pd.DataFrame],
    drawn: Mapping[str, Sequence[DrawnFigure]],
    predicted: pd.DataFrame,
    checks: pd.DataFrame,
    judged: pd.DataFrame,
    records: Sequence[Record] = (),
) -> str:
    """The whole page; the same text for the same records.

    Args:
        frames: as `exhibits.everything` makes them.
        drawn: as `figures.draw` makes them, with `figures.FOREST` where methods were compared.
        predicted: as `predictions.predictions` makes it.
        checks: as `audit.audit` makes it.
        judged: as `verdicts.table` makes it.
        records: all of the folder, for the methods of no experiment.
    """
    everything = pd.concat(frames.values(), ignore_index=True)
    shown = {paper: list(_exhibits(paper, replications, frames, drawn)) for paper in paper_versions()}
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"joined": join_values, "unbroken": unbroken}
    style, script = (Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("style.css", "script.js"))
    compared = answers.comparison(replications)
    return environment.get_template("page.html").render(
        style=style, script=script, papers=shown, name_of=version_name, states=STATES,
        originals=[folder.versions[folder.latest] for folder in paper_folders() if folder.numbers],
        standing=answers.describe_records(replications, len(exhibits.distinct_results(everything))), cards=answers.cards(judged),
        rule=verdicts.RULE.replace("*", "").replace("`", ""),
        forest=next(iter(drawn.get(FOREST, ())), None), narrow=next(iter(drawn.get(NARROW, ())), None),
        noise=compared is not None and any(cell.variation is not None for cell in compared.recorded_cells()),
        compared="" if compared is None else f"{ours.COMPARISON}_{compared.scale}",
        advice=[
            (list(answers.advice(one, records)), answers.conditions(one, records))
            for one in answers.comparisons(replications)
        ],
        complete=completeness(replications, frames, drawn),
        verdicts=exhibits.verdict_sentences(everything), counts=_counts(everything),
        legend=[(*MARKS.get(word, ("–", "none")), word, MEANING[word]) for word in verdict.VERDICTS],
        filters=_filters([one for own in shown.values() for one in own]),
        comparison=list(_own(replications, drawn)),
        predicted=list(_predictions(predicted)), audits=list(_audits(checks, predictions.machine_needs(predicted))),
    ) + "\n"  # fmt: skip


def completeness(
    replications: Sequence[Replication],
    frames: Mapping[tuple[str, str], pd.DataFrame],
    drawn: Mapping[str, Sequence[DrawnFigure]],
) -> str:
    """Return a sentence: how many tables and figures of the papers are whole or in part, by runs and distinct results.

    Passages of the text are left out.
    """
    every = [one for paper in paper_versions() for one in _exhibits(paper, replications, frames, drawn) if one.listed]
    counted = Counter(one.state for one in every)
    parts = ", ".join(f"{counted[state]} {word}" for state, word in COMPLETE.items() if counted[state])
    numbers = pd.concat(frames.values(), ignore_index=True)
    numbers = numbers[numbers["ours"].notna()]
    runs = {cell.path for one in replications for cell in one.recorded_cells()}
    return (
        f"Of {len(every)} tables and figures of the papers {parts}. Behind them: "
        f"{exhibits.count_phrase(list(runs), 'run')}, {exhibits.count_phrase(exhibits.distinct_results(numbers), 'distinct result')} "
        f"for {len(numbers)} numbers of the papers."
    )


def join_values(values: Iterable[str]) -> str:
    """The distinct values of a data attribute, as the script takes them apart; lists of tasks are taken apart here."""
    return "|".join(dict.fromkeys(part for value in values for part in value.split(", ") if part))


def _tables(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Lay a long table out, models of the paper that have no column in common in tables of their own."""
    groups: list[tuple[set[Column], list[pd.DataFrame]]] = []
    for _, rows in frame.groupby("model", sort=False):
        used = set(zip(rows["task"], rows["metric"]))
        near = [group for group in groups if group[0] & used]
        groups = [group for group in groups if group not in near]
        groups.append((used.union(*(own for own, _ in near)), [*(one for _, own in near for one in own), rows]))
    return [_table(pd.concat(own).sort_index()) for _, own in groups]


def _table(frame: pd.DataFrame) -> dict[str, Any]:
    """Return metrics by task, and of every method and setting its rows, each with the label of whose numbers it has."""
    columns, groups = layout(frame)
    tasks: dict[str, list[str]] = {}
    for task, metric in columns:
        for written, shown in LABELS.items():
            metric = metric.replace(written, shown)
        tasks.setdefault(task, []).append(metric)
    bodies = [
        {
            "method": group.method, "setting": group.setting,
            "ours": [(label, _cells(cells, columns)) for label, cells in group.ours.items() if label != NONE],
            "paper": [(paper_label(model), model, _cells(cells, columns)) for model, cells in group.paper.items()],
        }
        for group in groups
    ]  # fmt: skip
    return {"tasks": tasks, "width": len(columns) + 1, "groups": bodies}


def _cells(cells: Cells, columns: Sequence[Column]) -> list[tuple[str, list[dict[str, str]]]]:
    return [(column[0], [_part(entry) for entry in cells.get(column, ())]) for column in columns]


def _part(entry: Entry) -> dict[str, str]:
    """Return a number in parts that look different; a number of the paper has the verdict."""
    number = entry.number
    if entry.ours:
        value, _, rest = (entry.text, "", "") if entry.text in (SAME_RUN, ABSENT) else entry.text.partition(" [")
        title = f"the result of {number.repeats}" if entry.text == SAME_RUN else ""
        style = "void" if entry.text == EXCLUDED else "ours"
        return {"ours": value, "rest": rest and f"[{rest}", "title": title, "style": style}
    sign, style = MARKS.get(number.verdict, ("", "none"))
    ran = f"; ours: {number.model_ran}" if number.model_ran else ""
    title = f"{number.kind or 'not compared'}: {number.verdict}{ran}" + (f"; {number.reason}" if number.reason else "")
    return {
        "id": number.id, "theirs": entry.text, "sign": sign, "style": style, "title": title, "verdict": number.verdict,
    }  # fmt: skip


def _exhibits(
    paper: str,
    replications: Sequence[Replication],
    frames: Mapping[tuple[str, str], pd.DataFrame],
    drawn: Mapping[str, Sequence[DrawnFigure]],
) -> Iterator[Exhibit]:
    """Everything of a paper: its tables and figures in their order, then abstract and text."""
    listed = [(paper, exhibit) for exhibit in reported.exhibits(paper)["exhibit"]]
    for key in dict.fromkeys([*listed, *(key for key in (*frames, *select.experiments()) if key[0] == paper)]):
        yield Exhibit(*key, frames.get(key), replications, drawn)


def _counts(everything: pd.DataFrame) -> str:
    """Return the numbers with each verdict by paper, speed separate from the others, and our results behind them."""
    shown = (verdict.AGREES, verdict.DIFFERS, *set(everything["verdict"]))
    columns = [word for word in verdict.VERDICTS if word in shown]
    rows = {}
    for paper in (*paper_versions(), ""):
        own = everything[everything["paper"] == paper] if paper else everything
        for kind in (kind for kind in PART if kind in set(own["kind"])):
            found = own.loc[own["kind"] == kind, "verdict"].value_counts()
            key = version_name(paper) if paper else "All", PART[kind]
            ours = own[own["kind"] == kind]
            behind = [str(len(exhibits.distinct_results(ours))), str(len(exhibits.run_ids(ours)))]
            rows[key] = [str(found.get(word, 0) or "·") for word in columns] + [str(found.sum()), *behind]
    index = pd.MultiIndex.from_tuples(rows, names=["paper", "numbers that are"])
    frame = pd.DataFrame(list(rows.values()), index, [*columns, "all", "distinct results of ours", "runs"])
    return tables.html(frame, "Numbers by paper, kind and verdict", "counts")


def _filters(shown: Sequence[Exhibit]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Of each axis its name, its label, and the values and names that occur."""
    options = {"paper": [(paper, version_name(paper)) for paper in paper_versions()]}
    for axis in AXES:
        names = {part for one in shown for value in one.values(axis) for part in value.split(", ") if part}
        options[axis] = [(name, name) for name in sorted(names, key=lambda name: (name.lower(), name))]
    return [(axis, label, options[axis]) for axis, label in FILTERS.items()]


def _own(replications: Sequence[Replication], drawn: Mapping[str, Sequence[DrawnFigure]]) -> Iterator[Sheet]:
    """Yield the tables of our own experiments, one a scale with runs; without any, a sentence on how to make them."""
    for own in OWN:
        made = [one for one in replications if one.experiment.name == own.experiment]
        frames = [(one, own.table(one)) for one in made if any(one.recorded_cells())]
        shown = [(one, frame) for one, frame in frames if len(frame)]
        if not shown:
            yield Sheet(own.experiment, own.title, "", {}, lines=[own.not_run])
        images = {one.scale: one for one in drawn.get(own.experiment, ())}
        for one, frame in shown:
            title, image = f"{own.title}, {one.models_ran}, scale {one.scale}", images.get(one.scale)
            labels = {axis: join_values(cell[axis] for cell in one.cells) for axis in AXES}
            yield Sheet(
                f"{own.experiment}_{one.scale}", title, "", labels, title, tables.html(frame, title),
                [own.note(), *remarks(one)], reasons=[image.reason] if image and image.reason else [],
                figure=image if image and image.image is not None else None, command=one.command,
            )  # fmt: skip


def _predictions(predicted: pd.DataFrame) -> Iterator[Sheet]:
    """One a paper; the first says what they are, and how good."""
    lines = [predictions.introduction(predicted)]
    for paper, rows in predicted.groupby("paper", sort=False):
        title = f"Predictions for {version_name(str(paper))}"
        failed = [f"Not predicted: {reason}" for reason in dict.fromkeys(rows["reason"]) if reason]
        labels = {axis: join_values(rows[axis]) for axis in AXES}
        body = tables.html(predictions.readable_table(rows).fillna(""), title)
        yield Sheet(
            f"predictions_{exhibits.file_stem(str(paper), '')}", title, str(paper), labels, title, body, lines, failed
        )
        lines = []


def _audits(checks: pd.DataFrame, needs: Mapping[str, str]) -> Iterator[Sheet]:
    """One a paper: how many comparisons came out how, what machine its speedups need, and every finding."""
    entries = audit.group_findings(checks).rename(columns={"verdict": "finding", "count": "numbers", "source": "from"})
    for paper in paper_versions():
        name = version_name(paper)
        found = checks.loc[checks["paper"] == paper, "verdict"].value_counts()
        parts = ", ".join(f"{found[word]} {word}" for word in audit.VERDICTS if word in found)
        whole = f"The paper's numbers recomputed from one another, without any run of ours. {found.sum()} comparisons: "
        rows = entries.loc[entries["paper"] == paper].drop(columns="paper").set_index("finding")
        yield Sheet(
            f"audit_{exhibits.file_stem(paper, '')}", f"Audit of {name}", paper, dict.fromkeys(AXES, ""),
            f"What the numbers of {name} imply",
            tables.html(rows, f"Findings in {name}", "audit"),
            [line for line in (f"{whole}{parts}.", needs.get(paper)) if line],
        )  # fmt: skip
