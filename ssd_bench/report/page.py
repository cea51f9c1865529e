"""Page of the report: answers, then every table and figure of every paper, and counts. It loads only its figures.

This module collects the content; `page.html`, with its style and script, presents it.
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
from ssd_bench.papers.audit import audit
from ssd_bench.papers.figures.style import unbroken
from ssd_bench.papers.ours import agreement, select
from ssd_bench.papers.ours.cells import Record, Replication
from ssd_bench.papers.ours.match import order_scales
from ssd_bench.papers.printed import reported
from ssd_bench.papers.printed.catalogue import paper_folders, paper_versions, version_name
from ssd_bench.papers.runs.grid import Experiment
from ssd_bench.papers.ssd_bench import figures as own_figures
from ssd_bench.papers.ssd_bench.own import OWN, remarks
from ssd_bench.predict import predictions
from ssd_bench.report import answers, exhibits, verdicts
from ssd_bench.report.figures import FIGURES, FOREST, NARROW, DrawnFigure
from ssd_bench.report.layout import EXCLUDED, NONE, SAME_RUN, Cells, Column, Entry, layout, paper_label

FOLDER = Path(__file__).parent
AXES = ("model", "task", "method")
FILTERS = {"paper": "Paper", "model": "Model", "task": "Task", "method": "Method"}
KINDS = {"sets": "layer sets", "cases": "case study", "vectors": "hidden vectors"}
COMPLETE, PARTIAL, MISSING, SHARED, NO_RESULTS = "complete", "partial", "missing", "shared runs", "no results"
STATES = {COMPLETE: "●", PARTIAL: "◐", MISSING: "○", SHARED: "→", NO_RESULTS: "–"}
STATE_PHRASES = {
    COMPLETE: "complete",
    PARTIAL: "partial",
    MISSING: "missing",
    SHARED: "with the runs of another table or figure",
    NO_RESULTS: "without results in the paper",
}
PART = {agreement.ALGORITHMIC: "algorithmic", agreement.SPEED: "speed", "": "not compared"}
LABELS = {
    "alpha": "α",
    "tpt": "TPT",
    "_pct": "",
    "rouge2": "ROUGE-2",
    "_": " ",
}  # parts of metric names, and their texts
MARKS = {  # the signs differ in form, not only in colour
    agreement.AGREES: ("✓", "agrees"),
    agreement.DIFFERS: ("✗", "differs"),
    agreement.BY_DEFINITION: ("≡", "definition"),
    agreement.OTHER_MODEL: ("○", "model"),
    agreement.OTHER_SCALE: ("◇", "scale"),
    agreement.OTHER_HARDWARE: ("△", "hardware"),
    agreement.VOID: ("∅", "void"),
}
MEANING = {
    agreement.AGREES: "our run used the paper's model and prompts (for a speed, its hardware too); the paper's value "
    "is in our 95 % interval, widened by rounding and a tolerance",
    agreement.DIFFERS: "our run used the paper's model and prompts (for a speed, its hardware too); the paper's value "
    "is outside this interval",
    agreement.BY_DEFINITION: "plain decoding has the value 1, here and in the paper",
    agreement.OTHER_MODEL: "our run used another model: the values are not comparable, but the ranking may be",
    agreement.OTHER_SCALE: "our run used the paper's model, but fewer or other prompts",
    agreement.OTHER_HARDWARE: "a speed on hardware that the paper does not name: no verdict",
    agreement.VOID: "the run does not count, because no search ran or its trace duplicates another run's; the number "
    "is neither ranked nor counted as complete",
    "no run yet": "not run so far; the command is shown with the table or figure",
    "not run": "the experiment leaves it out and gives the reason",
    "undefined": "the runs exist, but do not define this number",
    "not measurable": "no run can give it: a claim, a cited number, or a quantity that is not recorded",
}


@dataclass(frozen=True)
class Exhibit:
    """Content of the page for one table, figure or passage of a paper.

    Attributes:
        frame: long table of its numbers and ours; None if the paper prints no number.
        replications: our runs.
        drawn: figures by experiment.
    """

    paper: str
    exhibit: str
    frame: pd.DataFrame | None
    replications: Sequence[Replication] = field(repr=False)
    drawn: Mapping[str, Sequence[DrawnFigure]] = field(repr=False)

    @cached_property
    def experiments(self) -> tuple[Experiment, ...]:
        """Experiments whose runs give the numbers."""
        return select.experiments().get((self.paper, self.exhibit), ())

    @cached_property
    def listed(self) -> Mapping[str, str]:
        """Row in the list of tables and figures; empty for a passage of the text."""
        rows = reported.exhibits(self.paper, self.exhibit)
        return {} if rows.empty else {str(key): str(value) for key, value in rows.iloc[0].items()}

    @property
    def anchor(self) -> str:
        """Anchor of the article."""
        return exhibits.file_stem(self.paper, self.exhibit)

    @property
    def title(self) -> str:
        """Title with the name of the paper."""
        return exhibits.title(self.paper, self.exhibit)

    @property
    def name(self) -> str:
        """Title without the name of the paper."""
        title = self.listed.get("title", "Numbers of the text" if self.exhibit != "abstract" else "Numbers")
        return f"{self.exhibit[:1].upper()}{self.exhibit[1:]}: {title}"

    @property
    def short(self) -> str:
        """Short label for the table of contents, e.g. T2 or F4."""
        return self.exhibit.replace("Table ", "T").replace("Figure ", "F").replace("text ", "")

    @property
    def kind(self) -> str:
        """Kind of content, in a word or two."""
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
        """Table of the features of methods as HTML; "" if there are no features."""
        if self._features.empty:
            return ""
        body = self._features.pivot(index="method", columns="feature", values="value").fillna("")
        names = list(dict.fromkeys(self._features["feature"]))
        return tables.html(body.loc[list(dict.fromkeys(self._features["method"])), names], self.title)

    @cached_property
    def figures(self) -> list[DrawnFigure]:
        """Figures with an image, without those of other versions of the paper."""
        experiments = [experiment for experiment in self.experiments if experiment.paper == self.paper]
        attempts = [drawn for experiment in experiments for drawn in self.drawn.get(experiment.name, ())]
        return [drawn for drawn in attempts if drawn.image is not None]

    @cached_property
    def state(self) -> str:
        """Availability of our results, a key of `STATES`."""
        experiments = [experiment for experiment in self.experiments if experiment.paper == self.paper]
        drawn_names = {drawn.name for drawn in self.figures}
        parts = [experiment.name in drawn_names for experiment in experiments if experiment.name in FIGURES]
        if self.frame is not None:
            parts += self.frame["ours"].notna().tolist()
        if not parts:
            return SHARED if self.experiments else NO_RESULTS
        return COMPLETE if all(parts) else PARTIAL if any(parts) else MISSING

    @cached_property
    def scales(self) -> list[str]:
        """Scales of the available runs, the nearest to the paper's scale first; without runs, the paper's scale."""
        names = {experiment.name for experiment in self.experiments}
        scales = {r.scale for r in self.replications if r.experiment.name in names and any(x.record for x in r.cells)}
        if self.frame is not None:
            scales |= {scale for scale in self.frame["scale"] if scale}
        return order_scales(dict.fromkeys(scales)) or ["paper"]

    @property
    def badges(self) -> list[tuple[str, str]]:
        """Badges with their styles: kind, state and scale."""
        scale = [(f"scale {', '.join(self.scales)}", "")] if self.state in (COMPLETE, PARTIAL) else []
        return [(self.kind, ""), (self.state, f" s-{self.state.replace(' ', '-')}"), *scale]

    @property
    def labels(self) -> dict[str, str]:
        """Values for the filters: the papers' names on each axis, from the numbers and jobs."""
        return {axis: join_values(self.values(axis)) for axis in AXES}

    def values(self, axis: str) -> Iterator[str]:
        """Yield the papers' names on an axis."""
        if self.frame is not None:
            yield from self.frame[axis]
        for experiment in self.experiments:
            yield from (job.labels[axis] for job in experiment.jobs)

    @property
    def summary(self) -> Iterator[str]:
        """Sentences on the content in the paper, and on our numbers."""
        if content := self.listed.get("content"):
            yield f"In the paper: {content}."
        if self.frame is not None:
            yield exhibits.describe_results(self.frame)
            yield from exhibits.verdict_sentences(self.frame)
            yield from exhibits.speedup_sentences(self.frame)
        elif not self.experiments:
            yield "It contains no results, " + (
                "only a diagram."
                if self._features.empty
                else "only marks; a mark that our copy of the paper lost is shown as unknown."
            )
        for experiment in self.experiments:
            if experiment.paper != self.paper:
                yield f"It uses the runs of {version_name(experiment.paper)}, {experiment.exhibit}" + (
                    ", which also shows the figure." if experiment.name in FIGURES else "."
                )

    @property
    def numbers(self) -> dict[str, Any] | None:
        """Tables in the paper's layout; `lacking` has the tables of models without any result of ours."""
        if self.frame is None:
            return None
        has_own = self.frame["ours"].notna() | (self.frame["verdict"] == agreement.VOID)
        compared = has_own.groupby(self.frame["model"]).transform("any")
        with_own, without_own = self.frame[compared], self.frame[~compared]
        return {"there": _tables(with_own), "lacking": _tables(without_own), "without": len(without_own)}

    @property
    def missing(self) -> list[str]:
        """Reasons why numbers, figures and parts are missing."""
        lines = exhibits.scale_notes(self.paper, self.exhibit, self.replications)
        if self.frame is not None:
            lines += exhibits.missing_reasons(self.frame)
        for experiment in self.experiments:
            if experiment.paper != self.paper:
                continue
            lines += [f"{entry['what']}: {entry['why']}" for entry in experiment.not_run if not entry.get("numbers")]
            attempts = self.drawn.get(experiment.name, ())
            lines += [f"No figure at scale {drawn.scale}: {drawn.reason}" for drawn in attempts if drawn.image is None]
            if experiment.name in FIGURES and not attempts:
                lines.append(f"No figure yet: experiment={experiment.name} was not run at any scale.")
        return lines

    @property
    def commands(self) -> list[str]:
        """Commands that start the runs."""
        return exhibits.commands(self.paper, self.exhibit, pd.DataFrame({"scale": self.scales}))

    @property
    def runs(self) -> list[str]:
        """Names of the records behind numbers and figures."""
        names = exhibits.run_ids(self.frame) if self.frame is not None else []
        shown = {(drawn.name, drawn.scale) for drawn in self.figures}
        for replication in self.replications:
            if (replication.experiment.name, replication.scale) in shown:
                names += [cell.path.name for cell in replication.recorded_cells()]
        return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Sheet:
    """A table that is not in a paper, with its text.

    Attributes:
        title: text for the filters and for screen readers.
        labels: values for the filters, as in `Exhibit`.
        name: heading.
        lines: sentences.
        reasons: reasons why parts are missing.
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
    """Return the page as HTML; the same text for the same records.

    Args:
        frames: result of `exhibits.long_tables`.
        drawn: result of `figures.draw_figures`, with `figures.FOREST` if methods were compared.
        predicted: result of `predictions.predictions`.
        checks: result of `audit.audit`.
        judged: result of `verdicts.table`.
        records: all records of the folder, for methods outside the experiments.
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
    return (
        environment.get_template("page.html").render(
            style=style,
            script=script,
            papers=shown,
            name_of=version_name,
            states=STATES,
            originals=[folder.versions[folder.latest] for folder in paper_folders() if folder.numbers],
            description=answers.describe_records(replications, len(exhibits.distinct_results(everything))),
            cards=answers.cards(judged),
            rule=verdicts.RULE.replace("*", "").replace("`", ""),
            forest=next(iter(drawn.get(FOREST, ())), None),
            narrow=next(iter(drawn.get(NARROW, ())), None),
            has_variation=compared is not None
            and any(cell.variation is not None for cell in compared.recorded_cells()),
            compared="" if compared is None else f"{own_figures.COMPARISON}_{compared.scale}",
            advice=[
                (list(answers.advice(comparison, records)), answers.conditions(comparison, records))
                for comparison in answers.comparisons(replications)
            ],
            complete=completeness(replications, frames, drawn),
            verdicts=exhibits.verdict_sentences(everything),
            counts=_counts(everything),
            legend=[
                (*MARKS.get(word, ("–", "none")), exhibits.printed_verdict(word), MEANING[word])
                for word in agreement.VERDICTS
            ],
            filters=_filters([exhibit for listed in shown.values() for exhibit in listed]),
            comparison=list(_own_sheets(replications, drawn)),
            predicted=list(_prediction_sheets(predicted)),
            audits=list(_audit_sheets(checks, predictions.machine_needs(predicted))),
        )
        + "\n"
    )


def completeness(
    replications: Sequence[Replication],
    frames: Mapping[tuple[str, str], pd.DataFrame],
    drawn: Mapping[str, Sequence[DrawnFigure]],
) -> str:
    """Return sentences on the coverage of the papers' tables and figures, and on our runs.

    Passages of the text do not count.
    """
    everything = (exhibit for paper in paper_versions() for exhibit in _exhibits(paper, replications, frames, drawn))
    listed = [exhibit for exhibit in everything if exhibit.listed]
    states = Counter(exhibit.state for exhibit in listed)
    parts = ", ".join(f"{states[state]} {phrase}" for state, phrase in STATE_PHRASES.items() if states[state])
    numbers = pd.concat(frames.values(), ignore_index=True)
    numbers = numbers[numbers["ours"].notna()]
    runs = {cell.path for replication in replications for cell in replication.recorded_cells()}
    return (
        f"Tables and figures of the papers: {len(listed)} in total, {parts}. "
        f"Our results: {exhibits.count_phrase(len(runs), 'run')}, "
        f"{exhibits.count_phrase(len(exhibits.distinct_results(numbers)), 'distinct result')}, "
        f"compared with {len(numbers)} numbers of the papers."
    )


def join_values(values: Iterable[str]) -> str:
    """Join the distinct values of a data attribute with "|", which the script splits; split lists of tasks."""
    return "|".join(dict.fromkeys(part for value in values for part in value.split(", ") if part))


def _tables(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Lay out a long table; models of the paper without a common column get separate tables."""
    groups: list[tuple[set[Column], list[pd.DataFrame]]] = []
    for _, rows in frame.groupby("model", sort=False):
        used = set(zip(rows["task"], rows["metric"]))
        near = [group for group in groups if group[0] & used]
        groups = [group for group in groups if group not in near]
        columns = used.union(*(near_columns for near_columns, _ in near))
        groups.append((columns, [*(part for _, parts in near for part in parts), rows]))
    return [_table(pd.concat(parts).sort_index()) for _, parts in groups]


def _table(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the metrics by task, and the labelled rows of every method and setting."""
    columns, groups = layout(frame)
    tasks: dict[str, list[str]] = {}
    for task, metric in columns:
        for written, shown in LABELS.items():
            metric = metric.replace(written, shown)
        tasks.setdefault(task, []).append(metric)
    bodies = [
        {
            "method": group.method,
            "setting": group.setting,
            "ours": [(label, _cells(cells, columns)) for label, cells in group.own_rows.items() if label != NONE],
            "paper": [(paper_label(model), model, _cells(cells, columns)) for model, cells in group.paper_rows.items()],
        }
        for group in groups
    ]
    return {"tasks": tasks, "width": len(columns) + 1, "groups": bodies}


def _cells(cells: Cells, columns: Sequence[Column]) -> list[tuple[str, list[dict[str, str]]]]:
    return [(column[0], [_number_parts(entry) for entry in cells.get(column, ())]) for column in columns]


def _number_parts(entry: Entry) -> dict[str, str]:
    """Return the parts of a number that the page styles separately; a number of the paper carries the verdict."""
    number = entry.number
    if entry.is_own:
        value, _, bounds = (entry.text, "", "") if entry.text in (SAME_RUN, ABSENT) else entry.text.partition(" [")
        title = f"same result as {number.repeats}" if entry.text == SAME_RUN else ""
        style = "void" if entry.text == EXCLUDED else "ours"
        return {"ours": value, "rest": bounds and f"[{bounds}", "title": title, "style": style}
    sign, style = MARKS.get(number.verdict, ("", "none"))
    ran = f"; ours: {number.model_ran}" if number.model_ran else ""
    word = exhibits.printed_verdict(number.verdict)
    title = f"{number.kind or 'not compared'}: {word}{ran}" + (f"; {number.reason}" if number.reason else "")
    return {
        "id": number.id,
        "theirs": entry.text,
        "sign": sign,
        "style": style,
        "title": title,
        "verdict": word,
    }


def _exhibits(
    paper: str,
    replications: Sequence[Replication],
    frames: Mapping[tuple[str, str], pd.DataFrame],
    drawn: Mapping[str, Sequence[DrawnFigure]],
) -> Iterator[Exhibit]:
    """Yield the tables and figures of a paper in their order, then abstract and text."""
    listed = [(paper, exhibit) for exhibit in reported.exhibits(paper)["exhibit"]]
    for key in dict.fromkeys([*listed, *(key for key in (*frames, *select.experiments()) if key[0] == paper)]):
        yield Exhibit(*key, frames.get(key), replications, drawn)


def _counts(everything: pd.DataFrame) -> str:
    """Return a table of verdicts by paper and kind (algorithmic or speed), with the numbers of our results and runs."""
    shown = (agreement.AGREES, agreement.DIFFERS, *set(everything["verdict"]))
    columns = [word for word in agreement.VERDICTS if word in shown]
    rows = {}
    for paper in (*paper_versions(), ""):
        rows_of_paper = everything[everything["paper"] == paper] if paper else everything
        for kind in (kind for kind in PART if kind in set(rows_of_paper["kind"])):
            totals = rows_of_paper.loc[rows_of_paper["kind"] == kind, "verdict"].value_counts()
            key = version_name(paper) if paper else "All", PART[kind]
            rows_of_kind = rows_of_paper[rows_of_paper["kind"] == kind]
            behind = [str(len(exhibits.distinct_results(rows_of_kind))), str(len(exhibits.run_ids(rows_of_kind)))]
            rows[key] = [str(totals.get(word, 0) or "·") for word in columns] + [str(totals.sum()), *behind]
    index = pd.MultiIndex.from_tuples(rows, names=["paper", "kind of number"])
    heads = [*map(exhibits.printed_verdict, columns), "total", "distinct results of ours", "runs"]
    frame = pd.DataFrame(list(rows.values()), index, heads)
    return tables.html(frame, "Numbers by paper, kind and verdict", "counts")


def _filters(shown: Sequence[Exhibit]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return for each axis its name, its label, and its values with their names."""
    options = {"paper": [(paper, version_name(paper)) for paper in paper_versions()]}
    for axis in AXES:
        names = {part for exhibit in shown for value in exhibit.values(axis) for part in value.split(", ") if part}
        options[axis] = [(name, name) for name in sorted(names, key=lambda name: (name.lower(), name))]
    return [(axis, label, options[axis]) for axis, label in FILTERS.items()]


def _own_sheets(replications: Sequence[Replication], drawn: Mapping[str, Sequence[DrawnFigure]]) -> Iterator[Sheet]:
    """Yield the tables of our experiments, one per scale with runs; without runs, a sentence with the command."""
    for table in OWN:
        matching = [replication for replication in replications if replication.experiment.name == table.experiment]
        frames = [
            (replication, table.table(replication)) for replication in matching if any(replication.recorded_cells())
        ]
        shown = [(replication, frame) for replication, frame in frames if len(frame)]
        if not shown:
            yield Sheet(table.experiment, table.title, "", {}, lines=[table.not_run])
        images = {figure.scale: figure for figure in drawn.get(table.experiment, ())}
        for replication, frame in shown:
            title = f"{table.title}, {replication.models_ran}, scale {replication.scale}"
            image = images.get(replication.scale)
            labels = {axis: join_values(cell[axis] for cell in replication.cells) for axis in AXES}
            yield Sheet(
                f"{table.experiment}_{replication.scale}",
                title,
                "",
                labels,
                title,
                tables.html(frame, title),
                [table.note(), *remarks(replication)],
                reasons=[image.reason] if image and image.reason else [],
                figure=image if image and image.image is not None else None,
                command=replication.command,
            )


def _prediction_sheets(predicted: pd.DataFrame) -> Iterator[Sheet]:
    """Yield the predictions for each paper; the first sheet has the introduction."""
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


def _audit_sheets(checks: pd.DataFrame, needs: Mapping[str, str]) -> Iterator[Sheet]:
    """Yield the audit of each paper: counts of comparisons, the machine that its speedups need, and all findings."""
    entries = audit.group_findings(checks).rename(columns={"verdict": "finding", "count": "numbers", "source": "from"})
    for paper in paper_versions():
        name = version_name(paper)
        totals = checks.loc[checks["paper"] == paper, "verdict"].value_counts()
        parts = ", ".join(f"{totals[word]} {word}" for word in audit.VERDICTS if word in totals)
        introduction = (
            f"The paper's numbers are recomputed from one another, without any run. {totals.sum()} comparisons: "
        )
        rows = entries.loc[entries["paper"] == paper].drop(columns="paper").set_index("finding")
        yield Sheet(
            f"audit_{exhibits.file_stem(paper, '')}",
            f"Audit of {name}",
            paper,
            dict.fromkeys(AXES, ""),
            f"Consistency of the numbers of {name}",
            tables.html(rows, f"Findings in {name}", "audit"),
            [line for line in (f"{introduction}{parts}.", needs.get(paper)) if line],
        )
