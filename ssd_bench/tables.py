"""The one writer of tables: a frame of texts, for a terminal, as Markdown, LaTeX, CSV and HTML.

An index that has a name stands in front of the columns, but for CSV.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

if TYPE_CHECKING:  # a command that shows no table needs neither
    import pandas as pd
    from markupsafe import Markup

SIGNS = str.maketrans({
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "–": "--", "§": r"\S{}", "[": "{[}", "]": "{]}"
})  # fmt: skip
"""What pandas' escape leaves as it is: three signs that are others in LaTeX's default font, two that are not ASCII, and
brackets, which after the end of a row would be that command's argument."""
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
    """Columns side by side; without heads where none has a name.

    Args:
        right: columns whose texts end at the same place, as numbers do.
        wrap: of each column the most letters of a line, where its texts may take several.
        ruled: with lines below the heads.
    """
    flat = _flat(frame)
    heads = [str(name) for name in flat.columns]
    return tabulate(
        flat.to_numpy().tolist(), heads if any(heads) else (), "simple" if ruled else "plain", disable_numparse=True,
        colalign=["right" if head in right else "left" for head in heads] if len(flat) else None,
        maxcolwidths=list(wrap) or None,
    )  # fmt: skip


def markdown(frame: pd.DataFrame) -> str:
    """A pipe table; tabulate, which pandas writes it with, leaves bars in cells to its callers."""
    cells = _flat(frame).map(lambda cell: " ".join(str(cell).replace("|", r"\|").splitlines()))
    return str(cells.to_markdown(index=False, disable_numparse=True))


def csv(frame: pd.DataFrame) -> str:
    """Its columns, with the same ends of lines everywhere."""
    return frame.to_csv(index=False, lineterminator="\n")


def latex(frame: pd.DataFrame, caption: str, label: str) -> str:
    r"""A `table` of booktabs with caption and label, to be read with \input; small, and as wide as it needs to be."""
    import pandas as pd

    # the writer escapes cells and heads, but not a caption: that is the only cell of a frame
    alone = pd.DataFrame([caption]).style.hide(axis="index").hide(axis="columns").format(escape="latex")
    return "\n".join([
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}",
        rf"\caption{{{_signed(alone.to_string().strip())}}}",
        rf"\label{{{label}}}",
        r"\centering",
        r"\resizebox{\linewidth}{!}{%",
        _signed(_flat(frame).to_latex(index=False, escape=True)) + "}",
        r"\end{table}",
        "",
    ])  # fmt: skip


def html(frame: pd.DataFrame, caption: str, style: str = "") -> Markup:
    """For those who hear it too: heads of columns and rows say which they are (pandas' own writer's do not).

    Args:
        frame: of an index with two names, the first is the head of a group of rows.
        caption: is heard, not seen.
        style: the table's class.
    """
    from jinja2 import Environment
    from markupsafe import Markup

    names = [name for name in frame.index.names if name is not None]
    groups: dict[str, list[tuple[list[Any], list[Any]]]] = {}
    for key, cells in zip(frame.index, frame.to_numpy().tolist()):
        heads = [] if not names else list(key) if len(names) > 1 else [key]
        group = str(heads.pop(0)) if len(heads) > 1 else ""
        groups.setdefault(group, []).append((heads, cells))
    template = Environment(autoescape=True).from_string(HTML)
    return Markup(template.render(heads=[*names, *frame.columns], groups=groups.items(), caption=caption, style=style))


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.reset_index() if any(frame.index.names) else frame


def _signed(text: str) -> str:
    return text.translate(SIGNS).rstrip("\n")
