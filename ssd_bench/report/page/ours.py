"""What the page shows beside the papers' exhibits: all methods on one model, and predictions for other hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import pandas as pd

from ssd_bench.papers.cells import Replication
from ssd_bench.papers.rooms import name_of
from ssd_bench.papers.ssd_bench.figures import COMPARISON, table
from ssd_bench.report.exhibits import predictions, write
from ssd_bench.report.page.drawn import Drawn
from ssd_bench.report.page.exhibit import AXES
from ssd_bench.report.page.markup import bullets, grid, joined, paragraphs, tag


def comparison(replications: Sequence[Replication], drawn: Mapping[str, Sequence[Drawn]]) -> str:
    """One article a scale at which the methods were compared; a sentence where there is none."""
    own = [one for one in replications if one.experiment.name == COMPARISON and any(x.record for x in one.cells)]
    images = {one.scale: one for one in drawn.get(COMPARISON, ())}
    if not own:
        text = paragraphs([f"Not run yet: python -m ssd_bench -m experiment={COMPARISON} makes it."])
        return tag("article", text, id=COMPARISON, data_exhibit="All methods on one model", data_paper="")
    return "".join(_compared(one, images.get(one.scale)) for one in own)


def _compared(one: Replication, image: Drawn | None) -> str:
    title = f"All methods on one model, scale {one.scale}"
    reason = [image.reason] if image and image.reason else []
    shown = tag("img", src=image.image, alt=title, width=str(image.width)).removesuffix("</img>") if image else ""
    figure = tag("figure", grid(shown, f"Figure of {title}")) if image and image.image else ""
    command = tag("pre", tag("code", escape(one.command)), tabindex="0")
    labels = {axis: joined(result.labels[axis] for result in one.cells) for axis in AXES}
    return _article(f"{COMPARISON}_{one.scale}", title, "", table(one), labels, figure, bullets(reason), command)


def predicted(frame: pd.DataFrame) -> str:
    """One article a paper that names its hardware."""
    parts = [paragraphs([predictions.INTRO], class_="intro")]
    for paper, rows in frame.groupby("paper", sort=False):
        failed = [f"Not predicted: {reason}" for reason in dict.fromkeys(rows["reason"]) if reason]
        title = f"Predictions for {name_of(str(paper))}"
        labels = {axis: joined(rows[axis]) for axis in AXES}
        name = f"predictions_{write.stem(str(paper), '')}"
        parts.append(_article(name, title, str(paper), predictions.texts(rows), labels, bullets(failed)))
    return "".join(parts)


def _article(
    name: str, title: str, paper: str, frame: pd.DataFrame, labels: Mapping[str, str], *around: str
) -> str:  # fmt: skip
    """A table with what stands around it, to be filtered as an exhibit is."""
    head = tag("tr", *(tag("th", escape(column), scope="col") for column in frame.columns))
    caption = tag("caption", escape(title), class_="hidden")
    body = tag("table", caption, tag("thead", head), tag("tbody", *_rows(frame)))
    data = {f"data_{axis}": values for axis, values in labels.items()}
    return tag(
        "article", tag("h3", escape(title)), *around, grid(body, title), id=name, data_exhibit=title, data_paper=paper,
        **data,
    )  # fmt: skip


def _rows(frame: pd.DataFrame) -> Iterable[str]:
    for row in frame.fillna("").to_numpy():
        yield tag("tr", *(tag("td", escape(str(text))) for text in row))
