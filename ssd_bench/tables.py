"""Writers of all tables: a frame of texts for a terminal, or as Markdown, LaTeX, CSV and HTML.

A named index is written in front of the columns, except in CSV.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

if TYPE_CHECKING:  # imported late: a command that shows no table needs none of these
    import pandas as pd
    from jinja2 import Template
    from markupsafe import Markup

MATHS = {"×": "times", "≥": "ge", "≤": "le", "≈": "approx", "±": "pm", "−": "-"}
MATHS |= {"α": "alpha", "β": "beta", "γ": "gamma", "τ": "tau"}
SIGNS = str.maketrans(
    {
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "–": "--",
        "—": "---",
        "§": r"\S{}",
        "[": "{[}",
        "]": "{]}",
        "’": "'",
        "…": r"\dots{}",
        **{sign: f"${name}$" if name == "-" else rf"$\{name}$" for sign, name in MATHS.items()},
    }
)
"""Characters that pandas does not escape: three that LaTeX's default font replaces, non-ASCII ones, and brackets, which
LaTeX reads as an argument after the end of a row."""
HTML = """\
<table{% if style %} class="{{ style }}"{% endif %}><caption class="hidden">{{ caption }}</caption>
<thead><tr>{% for head in heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
{% for group, rows in groups %}<tbody>
{% for heads, cells in rows %}<tr>
{%- if group and loop.first %}<th scope="rowgroup" rowspan="{{ rows|length }}">{{ group }}</th>{% endif %}
{%- for head in heads %}<th scope="row">{{ head }}</th>{% endfor %}
{%- for cell in cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
{% endfor %}</table>"""


def terminal(
    frame: pd.DataFrame, right: Collection[str] = (), wrap: Sequence[int | None] = (), ruled: bool = True
) -> str:
    """Return a table for a terminal, without a header if no column has a name.

    Args:
        right: columns to align right, such as numbers.
        wrap: most characters per line, for each column; None: no wrapping.
        ruled: draw a rule below the header.
    """
    flat = _flat(frame)
    heads = [str(name) for name in flat.columns]
    return tabulate(
        flat.to_numpy().tolist(),
        heads if any(heads) else (),
        "simple" if ruled else "plain",
        disable_numparse=True,
        colalign=["right" if head in right else "left" for head in heads] if len(flat) else None,
        maxcolwidths=list(wrap) or None,
    )


def markdown(frame: pd.DataFrame) -> str:
    """Return a Markdown table, with bars escaped, which tabulate does not."""
    cells = _flat(frame).map(lambda cell: " ".join(str(cell).replace("|", r"\|").splitlines()))
    return str(cells.to_markdown(index=False, disable_numparse=True))


def csv(frame: pd.DataFrame) -> str:
    """Return CSV with the same line endings on every system."""
    return frame.to_csv(index=False, lineterminator="\n")


def latex(frame: pd.DataFrame, caption: str, label: str, widths: Mapping[str, str] | None = None) -> str:
    r"""Return a LaTeX `table` (booktabs) with caption and label, for \input, scaled to the line width.

    Args:
        widths: columns of long texts -> their width, such as 6cm, at which lines break.
    """
    import pandas as pd

    flat, breaking = _flat(frame), widths or {}
    columns = "".join(f"p{{{breaking[name]}}}" if name in breaking else "l" for name in map(str, flat.columns))

    # pandas escapes cells but no captions, so the caption is escaped as the only cell of a frame
    caption_cell = pd.DataFrame([caption]).style.hide(axis="index").hide(axis="columns").format(escape="latex")
    return "\n".join(
        [
            r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
            r"\begin{table}",
            rf"\caption{{{_signed(caption_cell.to_string().strip())}}}",
            rf"\label{{{label}}}",
            r"\centering",
            r"\resizebox{\linewidth}{!}{%",
            _signed(flat.to_latex(index=False, escape=True, column_format=columns)) + "}",
            r"\end{table}",
            "",
        ]
    )


def html(frame: pd.DataFrame, caption: str, style: str = "") -> Markup:
    """Return an HTML table whose header cells have a scope, for screen readers; pandas' writer omits it.

    Args:
        frame: the cells; the first of two index levels names groups of rows.
        caption: for screen readers; not visible.
        style: CSS class of the table.
    """
    from markupsafe import Markup

    names = [name for name in frame.index.names if name is not None]
    groups: dict[str, list[tuple[list[Any], list[Any]]]] = {}
    for key, cells in zip(frame.index, frame.to_numpy().tolist()):
        heads = [] if not names else list(key) if len(names) > 1 else [key]
        group = str(heads.pop(0)) if len(heads) > 1 else ""
        groups.setdefault(group, []).append((heads, cells))
    heads = [*names, *frame.columns]
    return Markup(_html_template().render(heads=heads, groups=groups.items(), caption=caption, style=style))


@cache  # compiled once, not for each table of a page
def _html_template() -> Template:
    from jinja2 import Environment

    return Environment(autoescape=True).from_string(HTML)


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.reset_index() if any(frame.index.names) else frame


def _signed(text: str) -> str:
    return text.translate(SIGNS).rstrip("\n")
