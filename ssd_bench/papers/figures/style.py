"""Style of all figures: widths of a paper's columns, colour-blind colours, marks that differ in grey."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_params_from_file
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ssd_bench.papers.printed.catalogue import NAMES

COLUMN, PAGE = 3.4, 7.0
"""Figure widths in inches: one column of a paper, or the page."""

SMALL = 6.5
"""Font size in points of captions and numbers within panels; other text has 8."""

SMALL_TEXT: dict[str, Any] = {"textcoords": "offset points", "fontsize": SMALL}
"""Arguments of `annotate` for a small text at an offset in points."""

STYLE: dict[Any, Any] = dict(rc_params_from_file(Path(__file__).with_suffix(".mplstyle"), use_default_template=False))

# Okabe and Ito's colours for the colour-blind; chosen to differ in grey too (90, 165, 51, 230 of 255), and hatched
ACCOUNTS = {
    "draft": ("#0072B2", "///"),
    "verify": ("#E69F00", ""),
    "policy": ("#333333", "xxx"),
    "other": ("#E6E6E6", ".."),
}
AR_COLOUR, METHOD_COLOUR = "#BDBDBD", "#0072B2"
ATTENTION, MLP = ("#0072B2", ""), ("#E69F00", "////")
"""Colour and hatch of the kinds of sublayers."""

FAINT = "#7F7F7F"
"""Colour of reference lines, such as AR's speed, and of the papers' numbers, not measured by us."""
GREY_TEXT = SMALL_TEXT | {"color": FAINT}
EXCLUDED, EXCLUDED_HATCH, EXCLUDED_MARKER = "∅", "-----", "$∅$"
"""Mark of an excluded result: in text, as a bar's hatch (no method's), and as a point."""
DASHED = (0, (2, 2))
"""Style of a line with an excluded point."""


@dataclass(frozen=True)
class Mark:
    """Look of a series, identified by colour, marker, line or hatch alone."""

    colour: str
    marker: str
    line: Any
    hatch: str


MARKS = (
    Mark("#0072B2", "o", "-", ""),
    Mark("#E69F00", "s", "--", "///"),
    Mark("#009E73", "^", "-.", "xxx"),
    Mark("#CC79A7", "D", ":", "..."),
    Mark("#000000", "v", (0, (5, 1, 1, 1, 1, 1)), "\\\\\\"),
    Mark("#56B4E9", "P", (0, (1, 1)), "++"),
    Mark("#D55E00", "X", (0, (7, 2)), "oo"),
)
METHODS: Mapping[str, int] = NAMES["marks"]


def mark(label: str, position: int) -> Mark:
    """Return a series' mark: a method's is the same in every figure, others go by position."""
    return MARKS[METHODS.get(label, position) % len(MARKS)]


def new(width: float, height: float) -> Figure:
    """Return an empty figure (size in inches); its layout makes room for titles, labels and legends."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.05))


def unbroken(text: str) -> str:
    """Put no-break spaces into sizes ("2.9 million")."""
    return re.sub(r"(?<=\d) (?=(?:thousand|million|billion)\b)", "\xa0", text)


def wrap(text: str, figure: Figure, size: float = SMALL) -> str:
    """Wrap a text to the figure's width at `size` points; never at "=", before "%" or within "2.9 million"."""
    unbreakable = unbroken(text).replace(" = ", "\xa0=\xa0").replace(" %", "\xa0%")
    return textwrap.fill(unbreakable, int(figure.get_figwidth() * 72 / (0.6 * size))).replace("\xa0", " ")


def describe(figure: Figure, title: str, caption: str) -> None:
    """Set title and caption; a long caption makes the figure higher, not its panels smaller."""
    wrapped = wrap(caption, figure)
    figure.suptitle(wrap(title, figure, 8.5), x=0.01, ha="left")
    figure.supxlabel(wrapped, x=0.01, ha="left", fontsize=SMALL)
    figure.set_figheight(figure.get_figheight() + max(0, wrapped.count("\n") - 2) * 1.3 * SMALL / 72)
