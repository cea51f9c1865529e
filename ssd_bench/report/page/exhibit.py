"""One exhibit of a paper as an article of the page: what is there, what is missing and why, and what makes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape

import pandas as pd

from ssd_bench.papers import reported, select
from ssd_bench.papers.cells import Replication
from ssd_bench.papers.figures import FIGURES
from ssd_bench.papers.grid import Experiment
from ssd_bench.papers.match import ordered
from ssd_bench.papers.rooms import name_of
from ssd_bench.report.exhibits import write
from ssd_bench.report.page.drawn import Drawn
from ssd_bench.report.page.layout import table
from ssd_bench.report.page.markup import bullets, disclosure, grid, joined, paragraphs, tag

KINDS = {"sets": "layer sets", "cases": "case study", "vectors": "hidden vectors"}
AXES = ("model", "task", "method")


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
    drawn: Mapping[str, Sequence[Drawn]] = field(repr=False)

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
        return write.stem(self.paper, self.exhibit)

    @property
    def kind(self) -> str:
        """A word or two on what it is."""
        if self.experiments:
            return KINDS.get(self.experiments[0].kind, self.experiments[0].kind)
        if not self.listed:
            return "text"
        return "features" if not self.features.empty else "diagram"

    @cached_property
    def features(self) -> pd.DataFrame:
        """Of methods, where it is a table of such."""
        return reported.features(self.paper, self.exhibit)

    @cached_property
    def figures(self) -> list[Drawn]:
        """That have an image; those of another version of the paper are shown there."""
        own = [one for one in self.experiments if one.paper == self.paper]
        return [drawn for one in own for drawn in self.drawn.get(one.name, ()) if drawn.image]

    @property
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
        return ordered(dict.fromkeys(found)) or ["paper"]

    @property
    def runs(self) -> list[str]:
        """Names of the records behind numbers and figures."""
        found = write.run_ids(self.frame) if self.frame is not None else []
        shown = {(drawn.name, drawn.scale) for drawn in self.figures}
        for one in self.replications:
            if (one.experiment.name, one.scale) in shown:
                found += [result.path.name for result in one.cells if result.record is not None]
        return list(dict.fromkeys(found))

    def values(self, axis: str) -> Iterator[str]:
        """The papers' names on an axis, of its numbers and jobs."""
        if self.frame is not None:
            yield from self.frame[axis]
        for experiment in self.experiments:
            yield from (job.labels[axis] for job in experiment.jobs)

    def article(self) -> str:
        """The HTML."""
        name = self.listed.get("title", "Numbers of the text" if self.exhibit != "abstract" else "Numbers")
        head = tag("h3", escape(f"{self.exhibit[:1].upper()}{self.exhibit[1:]}: {name}"))
        marks = tag("span", escape(self.kind), class_="badge")
        marks += tag("span", escape(self.state), class_=f"badge s-{self.state.replace(' ', '-')}")
        scales = ", ".join(self.scales if self.state in ("filled", "partly filled") else [])
        marks += tag("span", escape(f"scale {scales}"), class_="badge") if scales else ""
        title = write.title(self.paper, self.exhibit)
        attributes = {f"data_{axis}": joined(self.values(axis)) for axis in AXES}
        return tag(
            "article", tag("header", head, tag("p", marks, class_="badges")), paragraphs(self._summary()),
            *(self._figure(drawn) for drawn in self.figures),
            table(self.frame, title) if self.frame is not None else "",
            self._features(), self._missing(), self._made(),
            id=self.anchor, data_exhibit=title, data_paper=self.paper, **attributes,
        )  # fmt: skip

    def _summary(self) -> Iterator[str]:
        if content := self.listed.get("content"):
            yield f"In the paper: {content}."
        if self.frame is not None:
            yield write.standing(self.frame)
            yield from write.verdicts(self.frame)
            yield from write.speedups(self.frame)
        elif not self.experiments:
            yield "It holds no results, but " + (
                "a diagram." if self.features.empty else "marks, unknown where the paper's text lost them."
            )
        for one in self.experiments:
            if one.paper != self.paper:
                yield f"It has the runs of {name_of(one.paper)}, {one.exhibit}" + (
                    ", whose figure is there." if one.name in FIGURES else "."
                )

    def _figure(self, drawn: Drawn) -> str:
        what = self.listed.get("content", "")
        alt = f"{write.title(self.paper, self.exhibit)}, our runs at scale {drawn.scale}; {what}"
        image = tag("img", src=drawn.image, alt=alt, width=str(drawn.width)).removesuffix("</img>")
        names = ", ".join(f"figures/{path.name}" for path in drawn.paths)
        caption = f"Ours at scale {drawn.scale}. Files: {names}"
        name = f"Figure of {drawn.name}, scale {drawn.scale}"
        return tag("figure", grid(image, name), tag("figcaption", escape(caption)))

    def _features(self) -> str:
        if self.features.empty:
            return ""
        body = self.features.pivot(index="method", columns="feature", values="value").fillna("")
        body = body.loc[list(dict.fromkeys(self.features["method"])), list(dict.fromkeys(self.features["feature"]))]
        head = tag("tr", *(tag("th", escape(name), scope="col") for name in ("method", *map(str, body.columns))))
        lines = [
            tag("tr", tag("th", escape(str(name)), scope="row"), *(tag("td", escape(text)) for text in row))
            for name, row in zip(body.index, body.to_numpy())
        ]
        title = write.title(self.paper, self.exhibit)
        caption = tag("caption", escape(title), class_="hidden")
        content = tag("table", caption, tag("thead", head), tag("tbody", *lines))
        return grid(content, f"Features of methods, {title}")

    def _missing(self) -> str:
        """Why numbers, figures and parts are not there."""
        lines = write.notes(self.paper, self.exhibit, self.replications)
        if self.frame is not None:
            lines += write.missing(self.frame)
        for one in self.experiments:
            if one.paper != self.paper:
                continue
            lines += [f"{entry['what']}: {entry['why']}" for entry in one.not_run if not entry.get("numbers")]
            tried = self.drawn.get(one.name, ())
            lines += [f"No figure at scale {drawn.scale}: {drawn.reason}" for drawn in tried if not drawn.image]
            if one.name in FIGURES and not tried:
                lines.append(f"No figure yet: experiment={one.name} was not run at any scale.")
        return disclosure(f"What is missing, and why ({len(lines)})", bullets(lines), open_=self.state == "empty")

    def _made(self) -> str:
        """The commands and the runs."""
        commands = write.commands(self.paper, self.exhibit, pd.DataFrame({"scale": self.scales}))
        shown = tag("pre", tag("code", escape("\n".join(commands))), tabindex="0") if commands else ""
        runs = self.runs
        ids = disclosure(f"Runs ({len(runs)})", tag("p", *_listed(runs), class_="runs"))
        return (tag("p", "Made by:", class_="made") + shown if shown else "") + (ids if runs else "")


def _listed(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield tag("code", escape(name)) + " "
