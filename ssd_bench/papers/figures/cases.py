"""Case studies: outputs with accepted drafted tokens coloured and underlined, from a record's steps."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from tokenizers import Tokenizer

from ssd_bench.model.checkpoint import EMBEDDED
from ssd_bench.model.packaged import PackagedFile
from ssd_bench.papers.figures import layers, streams, style
from ssd_bench.papers.figures import shared as common
from ssd_bench.papers.figures.shared import NotDrawable
from ssd_bench.papers.ours.cells import Replication, ShownCell
from ssd_bench.paths import cache_dir, local_path
from ssd_bench.records.reader import Run
from ssd_bench.results.definitions import main_set
from ssd_bench.results.prompt_table import of_steps
from ssd_bench.results.rows import arm_rows

FONT, POINTS = "DejaVu Sans Mono", 6.578  # a character is 11 pixels wide at 200 dpi: rounding shifts no character
ADVANCE = 0.60205 * POINTS
"""Character width in points: 1233 of the font's 2048 units per em."""
COLUMNS = 122
"""Characters per line that fit both columns of a paper."""
LINES = 14
"""Most lines of an output."""
ACCEPTED = "#D55E00"
LOOK: dict[str, Any] = {"family": FONT, "fontsize": POINTS, "va": "baseline", "parse_math": False}
SAMPLES = 6
"""Prompts in KNN-SSD's Figure 8."""

Character = tuple[str, bool]
"""Character, and whether an accepted drafted token contains it."""


@dataclass(frozen=True)
class Excerpt:
    """Output of a prompt below a heading, wrapped and perhaps cut to a number of lines."""

    heading: str
    lines: list[list[Character]]
    cut: bool


def tokenizer_of(run: Run) -> Tokenizer | NotDrawable:
    """Return the tokenizer of the run's model if its file is here; nothing is downloaded."""
    for folder in _folders(run.header.options("model")):
        if (folder / "tokenizer.json").is_file():
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
    return NotDrawable(
        f"Drawing single tokens requires the tokenizer of {run.header.model.name}, which is not on this machine."
    )


def _folders(source: Mapping[str, Any]) -> Iterator[Path]:
    if source.get("embedded"):
        yield EMBEDDED / source["embedded"]
    if source.get("path"):
        yield local_path("model.path", source["path"])
    if source.get("gguf"):
        yield PackagedFile(**source["gguf"]).converted(cache_dir())
    if source.get("hub"):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(source["hub"], "tokenizer.json", revision=source.get("revision"))
        if isinstance(cached, str):
            yield Path(cached).parent


def output_tokens(run: Run, index: int, tokenizer: Tokenizer) -> list[tuple[str, bool]]:
    """Return each token's text in a prompt's first repeat, and whether it was drafted and accepted."""
    rows = arm_rows(run.prompts, "method")
    row = rows[rows["prompt_index"] == index].sort_values("repeat").iloc[0]
    steps = arm_rows(run.steps, "method")
    steps = steps[(steps["prompt_index"] == index) & (steps["repeat"] == row["repeat"])].sort_values("step")
    drafted = [False]  # the prefill's own token
    for accepted, emitted in zip(steps["accepted_len"], steps["emitted"]):
        drafted += [i < accepted for i in range(emitted)]
    ids, pieces, decoded = [int(i) for i in row["output_ids"]], [], ""
    for end, flag in zip(range(1, len(ids) + 1), drafted):
        text = tokenizer.decode(ids[:end])
        # an incomplete character is shown with the token that completes it
        complete = text.rstrip("\ufffd") if end < len(ids) else text
        complete = complete if len(complete) >= len(decoded) else decoded
        pieces.append((complete[len(decoded) :], flag))
        decoded = complete
    return pieces


def wrap(pieces: Sequence[tuple[str, bool]], most: int) -> tuple[list[list[Character]], bool]:
    """Wrap to `most` lines of `COLUMNS` characters, at spaces if possible; also return whether lines were cut."""
    glyphs = font_manager.get_font(font_manager.findfont(FONT)).get_charmap()
    characters = [
        (c if c == "\n" or ord(c) in glyphs else "□", flag)
        for text, flag in pieces
        for c in unicodedata.normalize("NFC", text.expandtabs(4))
    ]
    lines: list[list[Character]] = [[]]
    for character in characters:
        if character[0] == "\n":
            lines.append([])
            continue
        lines[-1].append(character)
        if len(lines[-1]) > COLUMNS:
            line = lines[-1]
            blank = max((i for i, (c, _) in enumerate(line) if c == " "), default=COLUMNS - 1)
            lines[-1:] = [line[: blank + 1], line[blank + 1 :]]
    while lines and not lines[-1]:
        lines.pop()
    return lines[:most], len(lines) > most


def draw_excerpts(body: SubFigure, outputs: Sequence[Excerpt]) -> None:
    """Draw outputs below one another on a grid of characters."""
    axes = body.add_axes((0.01, 0.0, 0.98, 1.0))  # a fixed width: the layout engine must not change it
    axes.set_axis_off()
    row = 0.0
    for output in outputs:
        axes.text(0, -row, output.heading, fontweight="bold", fontsize=7, va="baseline", parse_math=False)
        row += 1.3
        for characters in [*output.lines, *([[("…", False)]] if output.cut else [])]:
            _draw_line(axes, characters, -row)
            row += 1.25
        row += 0.6
    axes.set_xlim(0, 0.98 * 72 * style.PAGE / ADVANCE)
    axes.set_ylim(-row + 0.8, 1.1)


def _draw_line(axes: Axes, characters: Sequence[Character], y: float) -> None:
    column = 0
    for accepted, group in groupby(characters, key=lambda character: character[1]):
        text = "".join(character for character, _ in group)
        if text.strip():
            start = column + len(text) - len(text.lstrip())
            axes.text(start, y, text.strip(), color=ACCEPTED if accepted else "black", **LOOK)
            if accepted:
                axes.plot([start, column + len(text.rstrip())], [y - 0.28] * 2, color=ACCEPTED, linewidth=0.7)
        column += len(text)


def excerpts_height(outputs: Sequence[Excerpt]) -> float:
    """Return the outputs' height in inches, with title and caption."""
    rows = sum(1.9 + 1.25 * (len(output.lines) + output.cut) for output in outputs)
    return 0.95 + rows * POINTS * 1.2 / 72


NOTE = "Coloured and underlined: accepted draft tokens; black: tokens of the full model."


def outputs_figure(replication: Replication) -> Figure | NotDrawable:
    """Draw SWIFT's Tables 13 and 14: a prompt decoded by each method."""
    drawn = replication.shown_cells()
    tokenizer = tokenizer_of(drawn[0].run)
    if isinstance(tokenizer, NotDrawable):
        return tokenizer
    rows = arm_rows(drawn[0].run.prompts, "method").drop_duplicates("prompt_index").sort_values("prompt_index")
    is_median = rows["new_tokens"] == rows["new_tokens"].quantile(0.5, interpolation="lower")
    index = int(rows.loc[is_median, "prompt_index"].iloc[0])
    outputs = [_excerpt(cell, index, cell["method"] + common.excluded_sign(cell), tokenizer, LINES) for cell in drawn]
    figure, body = common.new_figure(style.PAGE, excerpts_height(outputs))
    draw_excerpts(body, outputs)
    prompt = drawn[0].run.prompts.set_index("prompt_index")["prompt_id"].loc[[index]].iloc[0]
    note = f"{NOTE} Prompt {prompt}: the first prompt of the run whose output has the median number of tokens."
    if any(output.cut for output in outputs):
        note += f" Outputs are truncated to {LINES} lines."
    return common.finish(figure, replication, drawn, note)


def _excerpt(cell: ShownCell, index: int, name: str, tokenizer: Tokenizer, most: int) -> Excerpt:
    rows = streams.stream_rows(cell.run)
    rows = rows[rows["prompt_index"] == index]
    steps = arm_rows(cell.run.steps, "method")
    steps = steps[steps["prompt_index"] == index]
    alpha = of_steps("alpha", steps)
    parts = [f"M = {of_steps('M', steps) or 1:.2f}", f"α = {alpha:.2f}" if alpha is not None else ""]
    if len(rows):
        parts.append(f"speedup {streams.pooled_value(rows, 'speedup'):.2f}×")
    lines, cut = wrap(output_tokens(cell.run, index, tokenizer), most)
    return Excerpt(f"{name}: {', '.join(part for part in parts if part)}", lines, cut)


def stream_outputs_figure(replication: Replication) -> Figure | NotDrawable:
    """Draw KNN-SSD's Figure 8: consecutive samples of a stream, each with the layer set that drafts it."""
    cell = replication.shown_cells()[0]
    tokenizer = tokenizer_of(cell.run)
    if isinstance(tokenizer, NotDrawable):
        return tokenizer
    rows = streams.stream_rows(cell.run).drop_duplicates("domain").head(SAMPLES)
    names = [streams.domain_title(str(domain)) for domain in rows["domain"]]
    outputs = [_excerpt(cell, int(i), name, tokenizer, 4) for i, name in zip(rows["prompt_index"], names)]
    steps = cell.run.steps
    prompt_runs = [replace(cell.run, steps=steps[steps["prompt_index"] == index]) for index in rows["prompt_index"]]
    panels = [layers.Panel.of(name, main_set(run), "nothing drafted") for name, run in zip(names, prompt_runs)]
    columns = [panels[::2], panels[1::2]] if layers.map_width(panels) < style.PAGE and len(panels) > 1 else [panels]
    text, maps = excerpts_height(outputs) - 0.75, layers.map_height(len(columns[0])) - 0.75
    figure = style.new(style.PAGE, text + maps + 0.75)
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[text, maps])[:, 0]
    draw_excerpts(upper, outputs)
    layers.draw_maps(lower, columns)
    note = (
        f"{NOTE} Outputs: first prompt of each task in the stream, truncated to 4 lines; below: the layer set that "
        "drafted it."
    )
    return common.finish(figure, replication, [cell], note)
