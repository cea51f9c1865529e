"""The tables as files: Markdown and LaTeX in the papers' layout, CSV with one row a reported number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from ssd_bench.errors import ConfigError
from ssd_bench.metrics.text import REHEARSAL, markdown_table
from ssd_bench.papers import prose, select, verdict
from ssd_bench.papers.cells import Replication
from ssd_bench.papers.reported import exhibits
from ssd_bench.papers.rooms import name_of, room_of
from ssd_bench.papers.values import OVER_AR
from ssd_bench.records.files import write_atomic
from ssd_bench.report.exhibits.tables import everything, wide

LEGEND = "Cells: ours [95 % interval over prompts] / the paper's. –: there is none of ours yet, or none can be."
SPECIAL = {character: rf"\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "—": "---",
    "§": r"\S{}",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    "[": "{[}",  # at the beginning of a row it would be read as an argument of the line break before it
    "]": "{]}",
}


def write_tables(
    replications: Sequence[Replication], out: Path, frames: Mapping[tuple[str, str], pd.DataFrame] | None = None
) -> list[Path]:
    """Write the table of every exhibit and passage with numbers, `out/PAPER_EXHIBIT.{md,tex,csv}`; returns the paths.

    Args:
        frames: what `tables.everything` makes of the replications, where it is known.

    Raises:
        ConfigError: `out` cannot be written.
    """
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for (paper, exhibit), frame in (everything(replications) if frames is None else frames).items():
            texts = {
                ".md": markdown(paper, exhibit, frame, notes(paper, exhibit, replications)),
                ".tex": latex(paper, exhibit, frame),
                ".csv": frame.to_csv(index=False, lineterminator="\n"),
            }
            for suffix, text in texts.items():
                written.append(out / (stem(paper, exhibit) + suffix))
                write_atomic(written[-1], text.encode())
    except OSError as error:
        raise ConfigError("out", str(out), f"a directory that can be written ({error})") from error
    return written


def stem(paper: str, exhibit: str) -> str:
    """Name of an exhibit's files: `knn_ssd_table1`, as its experiment is called; `swift_text_5_2`."""
    numbered = re.sub(r"(Table|Figure) (?=\d)", r"\1", exhibit)
    return re.sub(r"[^a-z0-9]+", "_", f"{paper} {numbered}".lower()).strip("_")


def title(paper: str, exhibit: str) -> str:
    """Paper, exhibit and what it shows."""
    known = exhibits(paper, exhibit)["title"]
    return f"{name_of(paper)}, {exhibit}" + (f": {known.iloc[0]}" if len(known) else "")


def commands(paper: str, exhibit: str, frame: pd.DataFrame) -> list[str]:
    """What makes the runs of a table, at the scale of those that are there, else at the papers' own."""
    sources = select.experiments().get((paper, exhibit), ())
    if not sources:
        tables = prose.sources(paper, exhibit)
        sources = tuple(one for table in tables for one in select.experiments().get((paper, table), ()))
    scales = [scale for scale in dict.fromkeys(frame["scale"]) if scale] or ["paper"]
    return [f"python -m ssd_bench -m experiment={one.name} scale={scale}" for one in sources for scale in scales]


def standing(frame: pd.DataFrame) -> str:
    """A sentence on what our numbers are: of which scale, and whether they say anything about the paper's values."""
    have = frame[frame["ours"].notna()]
    if have.empty:
        return "There is no number of ours yet."
    scales = ", ".join(dict.fromkeys(have["scale"]))
    some = f"Ours at scale {scales}: {len(have)} of {len(frame)} numbers."
    if have["rehearsal"].all():
        return f"{some} This is a {REHEARSAL}."
    if have["rehearsal"].any():
        return f"{some} {int(have['rehearsal'].sum())} of them are a {REHEARSAL}."
    if not have["verdict"].isin((verdict.AGREES, verdict.DIFFERS, verdict.OTHER_HARDWARE, verdict.BY_DEFINITION)).any():
        return (
            f"{some} They are of another model than the paper's or of fewer prompts: not a replication of its values."
        )
    return some


def verdicts(frame: pd.DataFrame) -> list[str]:
    """The two verdicts apart, in a sentence each, and how many row groups have the paper's order."""
    lines = []
    for name in (verdict.ALGORITHMIC, verdict.SPEED):
        found = frame.loc[frame["kind"] == name, "verdict"].value_counts()
        parts = ", ".join(f"{found[one]} {one}" for one in verdict.VERDICTS if one in found)
        lines += [f"{name.capitalize()}: {parts}."] if parts else []
    groups = verdict.orders(frame)
    if groups:
        pairs, concordant = sum(order.pairs for order in groups), sum(order.concordant for order in groups)
        same = sum(order.same_best for order in groups)
        lines.append(
            f"Order: {concordant} of {pairs} pairs as in the paper; same best in {same} of {len(groups)} groups."
        )
    return lines


def speedups(frame: pd.DataFrame) -> list[str]:
    """Of a paper that divides by Hugging Face `generate`: how its speedups are counted, and over what ours are."""
    own = frame[(frame["metric"] == "speedup") & frame["ours"].notna() & (frame["verdict"] != verdict.BY_DEFINITION)]
    counted = None if own.empty else room_of(str(own["paper"].iloc[0])).counts.get("speedup")
    if counted is None or counted.baseline != "hf":
        return []
    over_ar = int((own["reason"] != "").sum())
    parts = [f"{over_ar} of ours {OVER_AR}"] if over_ar else []
    parts += [f"{len(own) - over_ar} of ours over Hugging Face generate, as the paper's"] if over_ar < len(own) else []
    return [f"Speedup: {counted.meaning}, as the paper counts it; {', '.join(parts)}."]


def notes(paper: str, exhibit: str, replications: Iterable[Replication]) -> list[str]:
    """What the scales of the runs that are there take from an exhibit."""
    names = {one.name for one in select.experiments().get((paper, exhibit), ())}
    return [note for one in replications if one.experiment.name in names for note in one.notes]


def markdown(paper: str, exhibit: str, frame: pd.DataFrame, remarks: Sequence[str] = ()) -> str:
    """Title, commands, scale, verdicts, the table, remarks, why numbers are missing, and the runs."""
    parts = [f"# {title(paper, exhibit)}", f"**{standing(frame)}**", *verdicts(frame), *speedups(frame)]
    parts += ["\n".join(f"    {command}" for command in commands(paper, exhibit, frame))]
    parts += [markdown_table(wide(frame)), LEGEND]
    parts += ["\n".join(f"- {line}" for line in [*remarks, *missing(frame)])]
    runs = run_ids(frame)
    parts += [f"Runs: {', '.join(runs)}"] if runs else []
    return "\n\n".join(filter(None, parts)) + "\n"


def missing(frame: pd.DataFrame) -> list[str]:
    """Why numbers have none of ours beside them."""
    found = frame.loc[frame["ours"].isna() & (frame["reason"] != ""), "reason"].value_counts(sort=False)
    return [f"{count} without ours: {reason}" for reason, count in found.items()]


def run_ids(frame: pd.DataFrame) -> list[str]:
    """The runs behind a table, in the order of its numbers."""
    return list(dict.fromkeys(run for runs in frame["runs"] for run in runs.split("; ") if run))


def latex(paper: str, exhibit: str, frame: pd.DataFrame) -> str:
    """A `table` of booktabs with caption and label, to be read with \\input; small, and as wide as it needs to be."""
    body = wide(frame)
    caption = " ".join([f"{title(paper, exhibit)}.", standing(frame), *speedups(frame), LEGEND])
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{tab:{stem(paper, exhibit).replace('_', '-')}}}",
        r"\centering",
        r"\resizebox{\linewidth}{!}{%",
        rf"\begin{{tabular}}{{{'l' * body.shape[1]}}}",
        r"\toprule",
        " & ".join(escape(str(name)) for name in body.columns) + r" \\",
        r"\midrule",
        *(" & ".join(escape(text) for text in row) + r" \\" for row in body.itertuples(index=False, name=None)),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """A text for LaTeX; what it has no sign for here becomes a question mark."""
    return "".join(SPECIAL.get(c, c if c.isascii() or c in "éèöüä°" else "?") for c in text)
