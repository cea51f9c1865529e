"""Page of the report: answers, every table and figure of every paper, and counts. It loads only its figures.

This module collects the content, which `page.html` presents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ssd_bench import tables
from ssd_bench.papers.audit import audit, register
from ssd_bench.papers.claims.claims import claims
from ssd_bench.papers.claims.judge import EVIDENCE_CLASSES
from ssd_bench.papers.figures.style import unbroken
from ssd_bench.papers.ours import agreement
from ssd_bench.papers.ours.cells import Replication
from ssd_bench.papers.printed import reported
from ssd_bench.papers.printed.catalogue import paper_folders, paper_versions, version_name
from ssd_bench.papers.ssd_bench import figures as own_figures
from ssd_bench.papers.ssd_bench.own import OWN, remarks
from ssd_bench.papers.ssd_bench.real import REAL, REAL_MEASURED
from ssd_bench.report import answers, choice, facts, results, verdict_texts
from ssd_bench.report.exhibit import AXES, STATES, Exhibit, all_numbers, completeness
from ssd_bench.report.figures import FOREST, NARROW, DrawnFigure
from ssd_bench.report.layout import EXCLUDED, NONE, SAME_RUN, Cells, Column, Entry, layout, paper_label
from ssd_bench.report.numbers import distinct_results, file_stem, run_ids, verdict_sentences
from ssd_bench.report.questions import questions
from ssd_bench.results.effect import strata
from ssd_bench.results.text import ABSENT

FOLDER = Path(__file__).parent
FILTERS = {"paper": "Paper", "model": "Model", "task": "Task", "method": "Method"}
SIGNS = dict(zip(STATES, "■◧□→–", strict=True))
PART = {agreement.ALGORITHMIC: "algorithmic", agreement.SPEED: "speed", "": "not compared"}
LABELS = {"alpha": "α", "tpt": "TPT", "_pct": "", "rouge2": "ROUGE-2", "_": " "}  # parts of metric names -> texts
MARKS = {  # the signs differ in form, not only in colour
    agreement.AGREES: ("✓", "agrees"),
    agreement.DIFFERS: ("✗", "differs"),
    agreement.BY_DEFINITION: ("≡", "definition"),
    agreement.OTHER_MODEL: ("▽", "model"),
    agreement.OTHER_SCALE: ("◇", "scale"),
    agreement.OTHER_HARDWARE: ("△", "hardware"),
    agreement.EXCLUDED: ("∅", "excluded"),
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
    agreement.EXCLUDED: "the run does not count, because no search ran or its trace duplicates another run's; the "
    "number is neither ranked nor counted as complete",
    "no run yet": "not run so far; the command is shown with the table or figure",
    "not run": "the experiment leaves it out and gives the reason",
    "undefined": "the runs exist, but do not define this number",
    "not measurable": "no run can give it: a claim, a cited number, or a quantity that is not recorded",
}


@dataclass(frozen=True)
class Sheet:
    """Table outside the papers, with its text.

    Attributes:
        title: for filters and screen readers.
        filter_values: names on each axis, as in `Exhibit`.
        name: heading.
        reasons: why parts are missing.
    """

    anchor: str
    title: str
    paper: str
    filter_values: Mapping[str, Iterable[str]]
    name: str = ""
    table: str = ""
    lines: Sequence[str] = ()
    reasons: Sequence[str] = ()
    figure: DrawnFigure | None = None
    command: str = ""


def render(
    exhibits: Sequence[Exhibit],
    replications: Sequence[Replication],
    drawn: Mapping[str, Sequence[DrawnFigure]],
    checks: pd.DataFrame,
    judged: pd.DataFrame,
    all_results: pd.DataFrame,
    gpu_results: Sequence[dict[str, Any]] = (),
) -> str:
    """Return the page as HTML, the same for the same records.

    Args:
        drawn: from `figures.draw_figures`, with `figures.FOREST` if methods were compared.
        checks, judged, all_results: from `audit.audit`, `verdicts.table` and `results.result_table`.
        gpu_results: of `shapes`.
    """
    everything = all_numbers(exhibits)
    style, script = (Markup((FOLDER / name).read_text(encoding="utf-8")) for name in ("style.css", "script.js"))
    names = own_figures.COMPARISON, REAL, REAL_MEASURED
    compared, real, timed = (results.comparison(replications, name) for name in names)
    return (
        _environment()
        .get_template("page.html")
        .render(
            style=style,
            script=script,
            papers={paper: _in_page_order(exhibits, paper) for paper in paper_versions()},
            name_of=version_name,
            signs=SIGNS,
            originals=[folder.versions[folder.latest] for folder in paper_folders() if folder.numbers],
            description=answers.describe_records(replications, len(distinct_results(everything))),
            rule=verdict_texts.RULE.replace("*", "").replace("`", ""),
            forest=next(iter(drawn.get(FOREST, ())), None),
            narrow=next(iter(drawn.get(NARROW, ())), None),
            has_variation=compared is not None
            and any(cell.variation is not None for cell in compared.recorded_cells()),
            real=next(iter(drawn.get(REAL, ())), None),
            real_anchor="" if real is None else f"{REAL}_{real.scale}",
            questions=questions(real, timed, register.read_reports()),
            compared="" if compared is None else f"{own_figures.COMPARISON}_{compared.scale}",
            complete=completeness(exhibits, replications),
            verdicts=verdict_sentences(everything),
            counts=_counts(everything),
            legend=[(*MARKS.get(word, ("–", "none")), word, MEANING[word]) for word in agreement.VERDICTS],
            filters=_filters(exhibits),
            comparison=list(_own_sheets(replications, drawn)),
            audits=[*_audit_sheets(checks), _register_sheet()],
            facts=facts.facts(checks, gpu_results),
            **_answers(judged, all_results),
        )
        + "\n"
    )


def _answers(judged: pd.DataFrame, all_results: pd.DataFrame) -> dict[str, Any]:
    chosen = choice.choice_table(all_results)
    title = "All results: method, task, model, machine; measured or modelled"
    return {
        "classes": EVIDENCE_CLASSES,
        "totals": answers.verdict_totals(judged),
        "undecided": verdict_texts.undecided_claims(judged),
        "expected_errors": verdict_texts.expected_errors(judged),
        "lines": answers.claim_lines(judged),
        "headlines": answers.headline_count(),
        "papers_with_claims": len({claim.id.partition("/")[0] for claim in claims()}),
        "marks": answers.MARKS,
        "toy_marks": [mark for mark in answers.TOY_MARKS.values() if mark not in answers.MARKS.values()],
        "advice": list(choice.recommendations(all_results)),
        "choice": "" if chosen.empty else tables.html(chosen, "The fastest method of every task"),
        "choice_note": choice.note(all_results),
        "results": tables.html(results.readable_results(all_results), title, "sortable"),
        "results_count": len(all_results),
    }


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(joined=join_values, unbroken=unbroken, tables=_tables, html_table=tables.html)
    return environment


def join_values(values: Iterable[str]) -> str:
    """Join the distinct values of a data attribute with "|", where the script splits; split lists of tasks."""
    return "|".join(dict.fromkeys(part for value in values for part in value.split(", ") if part))


def _tables(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Lay out a long table; paper models without a common column get separate tables."""
    columns = pd.Series(list(zip(frame["task"], frame["metric"])), frame.index, dtype=object)
    groups = strata(set(used) for _, used in columns.groupby(frame["model"], sort=False))
    return [_table(frame[columns.isin(group)]) for group in groups]


def _table(frame: pd.DataFrame) -> dict[str, Any]:
    """Return the metrics by task, and each method's and setting's labelled rows."""
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
    """Return the separately styled parts of a number; a number of the paper carries the verdict."""
    number = entry.number
    if entry.is_own:
        value, _, bounds = (entry.text, "", "") if entry.text in (SAME_RUN, ABSENT) else entry.text.partition(" [")
        title = f"same result as {number.repeats}" if entry.text == SAME_RUN else ""
        style = "excluded" if entry.text == EXCLUDED else "ours"
        return {"ours": value, "rest": bounds and f"[{bounds}", "title": title, "style": style}
    sign, style = MARKS.get(number.verdict, ("", "none"))
    ran = f"; ours: {number.model_ran}" if number.model_ran else ""
    title = f"{number.kind or 'not compared'}: {number.verdict}{ran}" + (f"; {number.reason}" if number.reason else "")
    look = {"sign": sign, "style": style, "title": title, "verdict": number.verdict}
    return {"id": number.id, "theirs": entry.text} | look


def _in_page_order(exhibits: Iterable[Exhibit], paper: str) -> list[Exhibit]:
    ranks = {label: rank for rank, label in enumerate(reported.exhibits(paper)["exhibit"])}
    of_paper = [exhibit for exhibit in exhibits if exhibit.paper == paper]
    return sorted(of_paper, key=lambda exhibit: ranks.get(exhibit.label, len(ranks)))


def _counts(everything: pd.DataFrame) -> str:
    """Return a table of verdicts by paper and kind, with the numbers of our results and runs."""
    shown = (agreement.AGREES, agreement.DIFFERS, *set(everything["verdict"]))
    columns = [word for word in agreement.VERDICTS if word in shown]
    rows = {}
    for paper in (*paper_versions(), ""):
        rows_of_paper = everything[everything["paper"] == paper] if paper else everything
        for kind in (kind for kind in PART if kind in set(rows_of_paper["kind"])):
            rows_of_kind = rows_of_paper[rows_of_paper["kind"] == kind]
            totals = rows_of_kind["verdict"].value_counts()
            key = version_name(paper) if paper else "All", PART[kind]
            behind = [str(len(distinct_results(rows_of_kind))), str(len(run_ids(rows_of_kind)))]
            rows[key] = [str(totals.get(word, 0) or "·") for word in columns] + [str(totals.sum()), *behind]
    index = pd.MultiIndex.from_tuples(rows, names=["paper", "kind of number"])
    heads = [*columns, "total", "distinct results of ours", "runs"]
    frame = pd.DataFrame(list(rows.values()), index, heads)
    return tables.html(frame, "Numbers by paper, kind and verdict", "counts")


def _filters(exhibits: Sequence[Exhibit]) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return each axis with its label, and its values with their names."""
    options = {"paper": [(paper, version_name(paper)) for paper in paper_versions()]}
    for axis in AXES:
        values = {value for exhibit in exhibits for value in exhibit.filter_values[axis]}
        names = {part for value in values for part in value.split(", ") if part}
        options[axis] = [(name, name) for name in sorted(names, key=lambda name: (name.lower(), name))]
    return [(axis, label, options[axis]) for axis, label in FILTERS.items()]


def _own_sheets(replications: Sequence[Replication], drawn: Mapping[str, Sequence[DrawnFigure]]) -> Iterator[Sheet]:
    """Yield the tables of our experiments, one per scale with runs; without runs, the command."""
    for table in OWN:
        with_runs = [r for r in replications if r.experiment.name == table.experiment and any(r.recorded_cells())]
        frames = [(replication, table.table(replication)) for replication in with_runs]
        shown = [(replication, frame) for replication, frame in frames if len(frame)]
        if not shown:
            yield Sheet(table.experiment, table.title, "", {}, lines=[table.not_run])
        images = {figure.scale: figure for figure in drawn.get(table.experiment, ())}
        for replication, frame in shown:
            title = f"{table.title}, {replication.models_ran}, scale {replication.scale}"
            image = images.get(replication.scale)
            yield Sheet(
                f"{table.experiment}_{replication.scale}",
                title,
                paper="",
                filter_values={axis: [cell[axis] for cell in replication.cells] for axis in AXES},
                name=title,
                table=tables.html(frame, title),
                lines=[table.note, *remarks(replication)],
                reasons=[image.reason] if image and image.reason else [],
                figure=image if image and image.image is not None else None,
                command=replication.command,
            )


def _audit_sheets(checks: pd.DataFrame) -> Iterator[Sheet]:
    """Yield the audit of each paper: counts of comparisons, kinds of findings."""
    entries = audit.group_findings(checks).rename(columns={"verdict": "finding", "count": "numbers", "source": "from"})
    for paper in paper_versions():
        name = version_name(paper)
        introduction = "The paper's numbers are recomputed from one another, without any run. "
        rows = entries.loc[entries["paper"] == paper].drop(columns=["paper", "others"]).set_index("finding")
        yield Sheet(
            f"audit_{file_stem(paper, '')}",
            f"Audit of {name}",
            paper,
            filter_values=dict.fromkeys(AXES, ()),
            name=f"Consistency of the numbers of {name}",
            table=tables.html(rows, f"Findings in {name}", "audit"),
            lines=[f"{introduction}{audit.verdict_counts(checks, paper)}."],
        )


def _register_sheet() -> Sheet:
    reports, title = register.read_reports(), "Replications by others"
    rows = register.report_table(reports).set_index("paper")
    return Sheet(
        "replications",
        title,
        paper="",
        filter_values={axis: [getattr(report, axis) for report in reports] for axis in AXES},
        name=title,
        table=tables.html(rows, title),
        lines=[register.summary(reports)],
        command="python -m ssd_bench audit replications",
    )
