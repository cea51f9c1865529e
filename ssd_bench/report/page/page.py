"""The page: overview, filters, every exhibit of every paper, and the audit, in one file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

import pandas as pd

from ssd_bench.papers import audit, reported, select, verdict
from ssd_bench.papers.cells import Replication
from ssd_bench.papers.rooms import name_of, papers
from ssd_bench.report.exhibits import write
from ssd_bench.report.page.drawn import Drawn
from ssd_bench.report.page.exhibit import AXES, Exhibit
from ssd_bench.report.page.layout import legend
from ssd_bench.report.page.markup import grid, paragraphs, tag

FILTERS = {"paper": "Paper", "model": "Model", "task": "Task", "method": "Method"}
STATES = {"filled": "●", "partly filled": "◐", "empty": "○", "elsewhere": "→", "no results": "–"}
PART = {verdict.ALGORITHMIC: "algorithmic", verdict.SPEED: "speed", "": "not compared"}


def exhibits(
    replications: Sequence[Replication],
    frames: Mapping[tuple[str, str], pd.DataFrame],
    drawn: Mapping[str, Sequence[Drawn]],
) -> list[Exhibit]:
    """Everything of every paper: its tables and figures in their order, then abstract and text."""
    found = []
    for paper in papers():
        listed = [(paper, exhibit) for exhibit in reported.exhibits(paper)["exhibit"]]
        keys = dict.fromkeys([*listed, *(key for key in (*frames, *select.experiments()) if key[0] == paper)])
        found += [Exhibit(*key, frames.get(key), replications, drawn) for key in keys]
    return found


def render(
    shown: Sequence[Exhibit],
    frames: Mapping[tuple[str, str], pd.DataFrame],
    comparison: str,
    predicted: str,
    checks: pd.DataFrame,
) -> str:
    """The whole page; the same text for the same records.

    Args:
        shown: as `exhibits` makes them.
        frames: as `tables.everything` makes them.
        comparison, predicted: as `ours` makes them.
        checks: as `audit.audit` makes it.
    """
    folder = files(__package__ or "ssd_bench.report.page")
    template = Template((folder / "template.html").read_text(encoding="utf-8"))
    everything = pd.concat(frames.values(), ignore_index=True)
    return template.substitute(
        style=(folder / "style.css").read_text(encoding="utf-8"),
        script=(folder / "script.js").read_text(encoding="utf-8"),
        standing=paragraphs([write.standing(everything)], class_="standing"),
        verdicts=paragraphs(write.verdicts(everything)),
        counts=_counts(everything),
        legend=legend(),
        filters=_filters(shown),
        contents=_contents(shown),
        papers="".join(_papers(shown)),
        comparison=comparison,
        predictions=predicted,
        audit_summary=escape(audit.summary(checks)),
        audit="".join(_audit(checks)),
    )


def _counts(everything: pd.DataFrame) -> str:
    """How many numbers have which verdict, by paper, algorithmic ones and speed apart."""
    words = [
        word for word in verdict.VERDICTS if word in (verdict.AGREES, verdict.DIFFERS, *set(everything["verdict"]))
    ]
    head = tag("tr", *(tag("th", escape(word), scope="col") for word in ("paper", "numbers that are", *words, "all")))
    bodies = []
    for paper in (*papers(), ""):
        rows = everything[everything["paper"] == paper] if paper else everything
        kinds = [kind for kind in PART if kind in set(rows["kind"])]
        name = tag("th", escape(name_of(paper) if paper else "All"), scope="rowgroup", rowspan=str(len(kinds)))
        lines: list[str] = []
        for kind in kinds:
            found = rows.loc[rows["kind"] == kind, "verdict"].value_counts()
            cells = [str(found.get(word, 0) or "·") for word in words] + [str(found.sum())]
            label = tag("th", PART[kind], scope="row")
            lines.append(tag("tr", "" if lines else name, label, *(tag("td", cell) for cell in cells)))
        bodies.append(tag("tbody", *lines))
    caption = tag("caption", "Numbers by paper, kind and verdict", class_="hidden")
    return grid(tag("table", caption, tag("thead", head), *bodies, class_="counts"), "Numbers by verdict")


def _filters(shown: Sequence[Exhibit]) -> str:
    """One select an axis, of all names that occur."""
    options = {"paper": [(paper, name_of(paper)) for paper in papers()]}
    for axis in AXES:
        names = {part for one in shown for value in one.values(axis) for part in value.split(", ") if part}
        options[axis] = [(name, name) for name in sorted(names, key=lambda name: (name.lower(), name))]
    parts = []
    for axis, label in FILTERS.items():
        items = [tag("option", escape(f"all {axis}s"), value="")]
        items += [tag("option", escape(text), value=value) for value, text in options[axis]]
        parts.append(tag("label", tag("span", label), tag("select", *items, name=axis, id=f"filter-{axis}")))
    return "".join(parts)


def _contents(shown: Sequence[Exhibit]) -> str:
    """Links to every exhibit with a sign of its state, by paper."""
    parts = []
    for paper in papers():
        links = [
            tag(
                "li",
                tag("a", tag("span", STATES[one.state], aria_hidden="true"), " ", escape(_short(one.exhibit)),
                    href=f"#{one.anchor}", title=f"{write.title(paper, one.exhibit)} ({one.state})"),
            )
            for one in shown if one.paper == paper
        ]  # fmt: skip
        parts.append(tag("div", tag("h3", escape(name_of(paper))), tag("ul", *links), data_paper=paper))
    signs = ", ".join(f"{sign} {state}" for state, sign in STATES.items())
    return tag("div", *parts, class_="contents") + tag("p", escape(signs), class_="signs")


def _short(exhibit: str) -> str:
    return exhibit.replace("Table ", "T").replace("Figure ", "F").replace("text ", "")


def _papers(shown: Sequence[Exhibit]) -> Iterator[str]:
    for paper in papers():
        own = [one for one in shown if one.paper == paper]
        head = tag("h2", escape(name_of(paper)), id=f"paper-{paper}")
        yield tag("section", head, *(one.article() for one in own), aria_labelledby=f"paper-{paper}", class_="paper")


def _audit(checks: pd.DataFrame) -> Iterator[str]:
    """One article a paper: how many comparisons came out how, and every finding."""
    entries = audit.told(checks)
    for paper in papers():
        name = name_of(paper)
        found = checks.loc[checks["paper"] == paper, "verdict"].value_counts()
        parts = ", ".join(f"{found[word]} {word}" for word in audit.VERDICTS if word in found)
        head = tag("tr", *(tag("th", text, scope="col") for text in ("finding", "numbers", "what", "from")))
        rows = _entries(entries[entries["paper"] == paper])
        caption = tag("caption", escape(f"Findings in {name}"), class_="hidden")
        body = grid(tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="audit"), f"Audit of {name}")
        text = paragraphs([f"{found.sum()} comparisons: {parts}."])
        yield tag(
            "article", tag("h3", escape(name)), text, body, id=f"audit_{write.stem(paper, '')}",
            data_exhibit=f"Audit of {name}", data_paper=paper, **dict.fromkeys((f"data_{axis}" for axis in AXES), ""),
        )  # fmt: skip


def _entries(entries: pd.DataFrame) -> Iterable[str]:
    for verdict_, count, what, source in entries[["verdict", "count", "what", "source"]].itertuples(index=False):
        cells = [tag("td", str(count)), tag("td", escape(what)), tag("td", escape(source))]
        yield tag("tr", tag("th", escape(verdict_), scope="row"), *cells)
