"""Case studies: outputs with the accepted drafted tokens coloured and underlined, read off the steps of a record."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from tokenizers import Tokenizer

from ssd_bench import metrics, style
from ssd_bench.model.checkpoint import EMBEDDED, cache_dir
from ssd_bench.papers import figures_layers as layers
from ssd_bench.papers import figures_shared as common
from ssd_bench.papers import figures_streams as streams
from ssd_bench.papers.cells import Cell, Replication
from ssd_bench.papers.figures_shared import Cannot
from ssd_bench.paths import local_path
from ssd_bench.records.reader import Run

FONT, POINTS = "DejaVu Sans Mono", 6.578  # a character is 11 pixels wide at 200 dpi: rounding moves none
ADVANCE = 0.60205 * POINTS
"""Points from one character to the next: 1233 of the font's 2048 units."""
COLUMNS = 122
"""Characters of a line: as many as fit both columns of a paper at this size."""
LINES = 14
"""Most lines of one output; the rest is cut, and the caption says so."""
ACCEPTED = "#D55E00"
SAMPLES = 6
"""Prompts of a stream that KNN-SSD's Figure 8 shows."""

Character = tuple[str, bool]
"""A character of an output, and whether it is of an accepted drafted token."""


@dataclass(frozen=True)
class Output:
    """One output as it is drawn.

    Attributes:
        heading: above it.
        lines: its characters, wrapped.
        cut: whether lines were left out.
    """

    heading: str
    lines: list[list[Character]]
    cut: bool


def tokenizer_of(run: Run) -> Tokenizer | Cannot:
    """The tokenizer of the run's model, if its file is on this machine; nothing is downloaded."""
    source = run.header["config"]["model"]
    for folder in _folders(source):
        if (folder / "tokenizer.json").is_file():
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
    name = run.header["model"]["name"]
    return Cannot(f"The text of single tokens needs the tokenizer of {name}, which is not on this machine.")


def _folders(source: dict[str, Any]) -> Iterator[Path]:
    """Where a model's files may be."""
    if source.get("embedded"):
        yield EMBEDDED / source["embedded"]
    if source.get("path"):
        yield local_path("model.path", source["path"])
    if source.get("gguf"):
        stem = Path(source["gguf"]["file"]).stem
        yield from sorted(path for path in cache_dir().glob("*") if stem.lower() in path.name.lower())
    if source.get("hub"):
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(source["hub"], "tokenizer.json", revision=source.get("revision"))
        if isinstance(found, str):
            yield Path(found).parent


def tokens(run: Run, index: int, tokenizer: Tokenizer) -> list[tuple[str, bool]]:
    """The output of a prompt's first repeat, token by token: its text, and whether it was drafted and accepted."""
    rows = metrics.arm_rows(run.prompts, "method")
    row = rows[rows["prompt_index"] == index].sort_values("repeat").iloc[0]
    steps = metrics.arm_rows(run.steps, "method")
    steps = steps[(steps["prompt_index"] == index) & (steps["repeat"] == row["repeat"])].sort_values("step")
    drafted = [False]  # the prefill's own token
    for accepted, emitted in zip(steps["accepted_len"], steps["emitted"]):
        drafted += [i < accepted for i in range(emitted)]
    ids, found, before = [int(i) for i in row["output_ids"]], [], ""
    for end, flag in zip(range(1, len(ids) + 1), drafted):
        text = tokenizer.decode(ids[:end])
        # half of a character: it comes with the token that completes it
        whole = text.rstrip("\ufffd") if end < len(ids) else text
        whole = whole if len(whole) >= len(before) else before
        found.append((whole[len(before) :], flag))
        before = whole
    return found


def wrap(pieces: Sequence[tuple[str, bool]], most: int) -> tuple[list[list[Character]], bool]:
    """Lines of at most `COLUMNS` characters, broken at spaces where there are any; and whether `most` lines cut it."""
    glyphs = _glyphs()
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


def _glyphs() -> dict[int, int]:
    font = font_manager.get_font(font_manager.findfont(FONT))
    return dict(font.get_charmap())


def draw(body: SubFigure, outputs: Sequence[Output]) -> None:
    """Outputs below one another on a grid of characters."""
    axes = body.add_axes((0.01, 0.0, 0.98, 1.0))  # as wide as it says, whatever the layout does
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
            axes.text(
                start, y, text.strip(), family=FONT, fontsize=POINTS, va="baseline",
                color=ACCEPTED if accepted else "black", parse_math=False,
            )  # fmt: skip
            if accepted:
                axes.plot([start, column + len(text.rstrip())], [y - 0.28] * 2, color=ACCEPTED, linewidth=0.7)
        column += len(text)


def height(outputs: Sequence[Output]) -> float:
    """Inches that the outputs need, with title and caption."""
    rows = sum(1.9 + 1.25 * (len(output.lines) + output.cut) for output in outputs)
    return 0.95 + rows * POINTS * 1.2 / 72


NOTE = "Coloured and underlined: drafted tokens that were accepted; black: tokens of the full model."


def table(replication: Replication) -> Figure | Cannot:
    """SWIFT's Tables 13 and 14: the same prompt decoded by each method."""
    drawn = common.cells(replication)
    tokenizer = tokenizer_of(drawn[0].run)
    if isinstance(tokenizer, Cannot):
        return tokenizer
    index = _example(drawn)
    outputs = [_output(cell, index, cell["method"] + common.sign(cell), tokenizer, LINES) for cell in drawn]
    figure, body = common.page(style.PAGE, height(outputs))
    draw(body, outputs)
    prompt = drawn[0].run.prompts.set_index("prompt_index")["prompt_id"].loc[[index]].iloc[0]
    note = f"{NOTE} Prompt {prompt}: of the run's, the first with the median number of new tokens."
    if any(output.cut for output in outputs):
        note += f" Cut after {LINES} lines."
    return common.finish(figure, replication, drawn, note)


def _example(drawn: Sequence[Cell]) -> int:
    """The first prompt whose output in the first run is of median length."""
    rows = metrics.arm_rows(drawn[0].run.prompts, "method").drop_duplicates("prompt_index").sort_values("prompt_index")
    middle = rows["new_tokens"].quantile(0.5, interpolation="lower")
    return int(rows.loc[rows["new_tokens"] == middle, "prompt_index"].iloc[0])


def _output(cell: Cell, index: int, name: str, tokenizer: Tokenizer, most: int) -> Output:
    rows = streams.stream(cell.run)
    rows = rows[rows["prompt_index"] == index]
    steps = metrics.arm_rows(cell.run.steps, "method")
    steps = steps[steps["prompt_index"] == index]
    alpha = metrics.alpha_micro(steps)
    parts = [f"M = {metrics.tokens_per_pass(steps) or 1:.2f}", f"α = {alpha:.2f}" if alpha is not None else ""]
    if len(rows):
        parts.append(f"speedup {streams.of_rows(rows, 'speedup'):.2f}×")
    lines, cut = wrap(tokens(cell.run, index, tokenizer), most)
    return Output(f"{name}: {', '.join(part for part in parts if part)}", lines, cut)


def stream(replication: Replication) -> Figure | Cannot:
    """KNN-SSD's Figure 8: consecutive samples of a stream, with the set that drafts each."""
    cell = common.cells(replication)[0]
    tokenizer = tokenizer_of(cell.run)
    if isinstance(tokenizer, Cannot):
        return tokenizer
    rows = streams.stream(cell.run).drop_duplicates("domain").head(SAMPLES)
    names = [streams.domain(str(domain)) for domain in rows["domain"]]
    outputs = [_output(cell, int(i), name, tokenizer, 4) for i, name in zip(rows["prompt_index"], names)]
    panels = []
    for index, name in zip(rows["prompt_index"], names):
        found = metrics.main_set(_only(cell.run, int(index)))
        panels.append(layers.Panel(f"{name}: {'nothing drafted' if found is None else layers.counts(found)}", found))
    columns = [panels[::2], panels[1::2]] if layers.width(panels) < style.PAGE and len(panels) > 1 else [panels]
    text, maps = height(outputs) - 0.75, layers.height(len(columns[0])) - 0.75
    figure = style.new(style.PAGE, text + maps + 0.75)
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[text, maps])[:, 0]
    draw(upper, outputs)
    layers.maps(lower, columns)
    note = f"{NOTE} The first prompt of each task in the stream, at most 4 lines of it; below: the set that drafted it."
    return common.finish(figure, replication, [cell], note)


def _only(run: Run, index: int) -> Run:
    frames = {name: getattr(run, name) for name in ("prompts", "steps")}
    own = {name: frame[frame["prompt_index"] == index] for name, frame in frames.items()}
    return Run(run.path, run.header, own["prompts"], own["steps"], run.layer_sets)
